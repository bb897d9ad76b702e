"""Windows of long captions: every token once, in order."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msdscore.encoders.tokens import Window, plan_cut, plan_windows, sentence_starts


def word_spans(text):
    return [match.span() for match in re.finditer(r"\w+|[^\w\s]", text)]


captions = st.lists(
    st.sampled_from(["a", "red", "ball", "dog", ".", "!", ". ", " ", " ", "\n", "犬", "。", "? "]),
    max_size=120,
).map("".join)
rooms = st.integers(1, 20)


@given(captions, rooms)
def test_every_token_is_used_exactly_once_and_in_order(text, room):
    spans = word_spans(text)
    plan = plan_windows(text, spans, room=room)
    kept = [token for window in plan for token in range(window.first, window.last)]
    assert kept == list(range(len(spans)))


@given(captions, rooms)
def test_windows_fit_and_contain_their_tokens(text, room):
    spans = word_spans(text)
    plan = plan_windows(text, spans, room=room)
    for window in plan:
        assert window.stop - window.start <= room
        assert window.start <= window.first <= window.last <= window.stop
        assert window.last > window.first or not spans
    for before, after in pairwise(plan):
        assert before.start < after.start <= before.stop < after.stop


@given(captions)
def test_short_text_is_one_window(text):
    spans = word_spans(text)
    assert plan_windows(text, spans, room=max(1, len(spans))) == (Window(0, len(spans), 0, len(spans)),)


@given(captions, rooms)
def test_each_token_is_taken_from_the_window_with_most_context(text, room):
    plan = plan_windows(text, word_spans(text), room=room)
    for window in plan:
        for token in range(window.first, window.last):
            own = min(token - window.start, window.stop - 1 - token)
            assert all(own >= min(token - w.start, w.stop - 1 - token) for w in plan)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=12))
def test_short_sentences_are_not_split(lengths):
    text = " ".join(" ".join(["dog"] * (length - 1) + ["cat."]) for length in lengths)
    spans = [match.span() for match in re.finditer(r"\S+", text)]
    plan = plan_windows(text, spans, room=12)
    starts = [*sentence_starts(text, spans), len(spans)]
    for start, stop in pairwise(starts):
        assert any(window.start <= start and stop <= window.stop for window in plan)


def test_short_sentences_are_repeated_as_context():
    text = "aa bb cc. dd ee ff. gg hh ii."
    plan = plan_windows(text, [match.span() for match in re.finditer(r"\S+", text)], room=6)
    assert plan == (Window(0, 6, 0, 5), Window(3, 9, 5, 9))


def test_long_sentence_is_split_between_words_with_an_overlap():
    spans = [(5 * i, 5 * i + 4) for i in range(20)]
    plan = plan_windows("word " * 20, spans, room=8)
    assert plan == (Window(0, 8, 0, 7), Window(6, 14, 7, 13), Window(12, 20, 13, 20))


def test_words_are_not_split_if_a_boundary_is_near():
    text = "aabb " * 10
    spans = [(5 * i + 2 * k, 5 * i + 2 * k + 2) for i in range(10) for k in (0, 1)]
    for window in plan_windows(text, spans, room=9):
        assert window.start % 2 == 0
        assert window.stop % 2 == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One dog. Two cats! Three?", ["One", "Two", "Three"]),
        ("It costs 3.5 dollars. Yes", ["It", "Yes"]),
        ('He said "no." Then left', ["He", "Then"]),
        ("a line\nanother", ["a", "another"]),
        ("一只狗。两只猫", ["一只狗", "两只猫"]),
        ("... and so on", [".", "and"]),
        ("", []),
    ],
)
def test_sentence_boundaries(text, expected):
    spans = word_spans(text)
    starts = sentence_starts(text, spans) if spans else []
    assert [text[slice(*spans[i])] for i in starts] == expected


def test_truncation_keeps_the_first_tokens():
    assert plan_cut(3, room=5) == (Window(0, 3, 0, 3),)
    assert plan_cut(0, room=5) == (Window(0, 0, 0, 0),)
