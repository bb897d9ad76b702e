"""Words that are not judged, findings about words, and persons."""

from dataclasses import replace

import pytest

from msdscore.explain.explanation import Explanation
from msdscore.explain.look import PALEST, word_colour
from msdscore.forms.base import Unit, finding
from msdscore.scoring.vocabulary import is_exchange
from msdscore.text.words import segment, spelling, unjudged

KNOWN = frozenset(("dog", "seven", "row", "table", "left", "restaurant", "sign", "couple"))


def reasons(caption):
    words = segment(caption, compounds=False)
    return {words[number].text: reason.split()[0] for number, reason in unjudged(words, KNOWN).items()}


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("seven dogs", {"seven": "counts"}),
        ("a hundred dogs in a row of 3", {"hundred": "counts", "row": "counts", "3": "counts"}),
        ("a couple of dogs next to a couple", {"couple": "counts"}),
        ("a dog on the left side", {"left": "positions", "side": "positions"}),
        ("A dog in Paris. Dogs bark", {"Paris": "names"}),
        ("a sign that says 'no dogs here'", {"dogs": "text"}),
        ("the boys' dog at a table", {}),
        ("a brown dog", {}),
    ],
)
def test_counts_positions_names_and_quoted_text_are_not_judged(caption, expected):
    assert reasons(caption) == expected


@pytest.mark.parametrize(
    ("text", "hint"),
    [("tabel", "table"), ("restuarant", "restaurant"), ("restarant", "restaurant"), ("tables", ""), ("tabled", ""),
     ("zzzz", "")],
)  # fmt: skip
def test_misspelt_words_get_a_hint(text, hint):
    (word,) = segment(text, [(0, 2), (2, len(text))])
    assert spelling(word, KNOWN) == hint
    assert spelling(word._replace(tokens=(0,)), KNOWN) == ""  # a word that the encoder reads in one piece
    assert unjudged([word], KNOWN).keys() == ({0} if hint else set())


def said_of(word):
    return finding(word.text, word.p_value, word.probability)


def test_likely_wrong_needs_a_low_p_value_and_a_low_probability():
    word = Unit("dog", 0, 3, "word", True, (0,), p_value=0.05, probability=0.3)
    assert said_of(word) == "likely wrong"
    assert said_of(replace(word, probability=0.58)) == "check"
    assert said_of(replace(word, p_value=0.2)) == ""
    assert said_of(replace(word, p_value=None)) == ""
    assert word_colour(replace(word, probability=0.58), 1.0) == ("penalty", PALEST)
    assert word_colour(word, 1.0)[1] > PALEST


@pytest.mark.parametrize("person", ["woman", "Women", "boy", "people", "children"])
def test_persons_are_at_most_to_check_and_never_suggested_for_each_other(person):
    word = Unit(person, 0, 3, "word", True, (0,), p_value=0.001, probability=0.01)
    assert said_of(word) == "check"
    assert not is_exchange(person.lower(), "man")
    assert not is_exchange("dog", "man")  # sex and age are not judged
    assert is_exchange("man", "dog")


def test_only_supported_words_have_a_region():
    word = Unit("dog", 0, 3, "word", True, (0,), p_value=0.8, probability=0.95)
    has_region = Explanation.has_region
    assert has_region(None, word)
    assert not has_region(None, replace(word, p_value=0.6))
    assert not has_region(None, replace(word, tokens=()))
    assert not has_region(None, replace(word, p_value=None))
    assert has_region(None, replace(word, p_value=None, gap=0.1))  # the paper's form
