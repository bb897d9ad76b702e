"""Words, punctuation and phrases of captions in any script, and their tokens."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msdscore.text.normal import clean
from msdscore.text.words import best_owner, content_tokens, phrases, segment, token_contents


def texts(caption):
    return [piece.text for piece in segment(caption)]


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("a dog, running.", ["a", "dog", ",", "running", "."]),
        ("don’t re-use 3.5 m", ["don’t", "re-use", "3.5", "m"]),
        ("3.5 kg, 3.๕ kg", ["3.5", "kg", ",", "3", ".", "๕", "kg"]),
        ("- dash - ends-", ["-", "dash", "-", "ends", "-"]),
        ("été à l'école", ["été", "à", "l'école"]),
        ("e\u0301te\u0301", ["e\u0301te\u0301"]),
        ("कुत्ता दौड़ता है", ["कुत्ता", "दौड़ता", "है"]),
        ("一只狗 runs", ["一", "只", "狗", "runs"]),
        ("كلب يركض", ["كلب", "يركض"]),
        ("a 🐕 and 👨‍👩", ["a", "🐕", "and", "👨‍", "👩"]),
        ("", []),
        (" \n\t", []),
        ("$5 (50%)", ["$", "5", "(", "50", "%", ")"]),
    ],
)
def test_segments(caption, expected):
    assert texts(caption) == expected


@given(st.text(max_size=60))
def test_segments_cover_all_visible_characters(caption):
    pieces = segment(caption)
    assert all(piece.text == caption[piece.start : piece.end] and piece.text for piece in pieces)
    assert all(before.end <= after.start for before, after in itertools.pairwise(pieces))
    covered = {place for piece in pieces for place in range(piece.start, piece.end)}
    found = clean(caption)
    kept = range(len(caption)) if found is None else found.starts[:-1]
    assert all(caption[place].isspace() for place in set(kept) - covered)


def test_emoji_are_words_and_punctuation_is_not():
    kinds = {piece.text: (piece.kind, piece.content) for piece in segment("The dog 🐕 !")}
    assert kinds == {"The": ("word", False), "dog": ("word", True), "🐕": ("word", True), "!": ("mark", False)}


def test_phrases_end_at_punctuation_and_function_words():
    pieces = segment("two black dogs, a cup of hot milk of the farm")
    groups = [" ".join(pieces[number].text for number in phrase) for phrase in phrases(pieces)]
    assert groups == ["two black dogs", "cup of hot milk", "farm"]


@given(st.text(max_size=30).filter(segment), st.data())
def test_every_token_belongs_to_a_segment(caption, data):
    pieces = segment(caption)
    place = st.integers(0, len(caption))
    spans = data.draw(st.lists(st.tuples(place, place).map(lambda pair: (min(pair), max(pair))), max_size=5))
    owned = [token for word in segment(caption, spans) for token in word.tokens]
    assert sorted(owned) == list(range(len(spans)))
    assert [word[:-1] for word in segment(caption, spans)] == [piece[:-1] for piece in pieces]


def test_token_belongs_to_the_segment_with_most_overlap():
    words = segment("ab  cdef !", [(1, 6), (2, 3), (8, 9), (4, 8)])
    assert [word.tokens for word in words] == [(1,), (0, 2, 3), ()]


@pytest.mark.parametrize("compounds", [True, False])
@given(st.text(st.characters(codec="ascii"), max_size=40))
def test_ascii_fast_path_equals_the_general_path(compounds, caption):
    """An accented letter at the end forces the general path."""
    fast, slow = segment(caption, compounds=compounds), segment(f"{caption} é", compounds=compounds)
    assert [word[:4] for word in fast] == [word[:4] for word in slow[:-1]]


@given(st.text("ab,. -é", min_size=1, max_size=20).filter(lambda text: text.strip()), st.data())
def test_segment_of_a_token_is_the_best_of_all(caption, data):
    pieces = segment(caption)
    place = st.integers(0, len(caption))
    spans = [tuple(sorted(data.draw(st.tuples(place, place)))) for _ in range(4)]
    starts, ends = [piece.start for piece in pieces], [piece.end for piece in pieces]
    best = tuple(best_owner(span, starts, ends, range(len(pieces))) for span in spans)
    owned = [tuple(token for token, owner in enumerate(best) if owner == number) for number in range(len(pieces))]
    assert [word.tokens for word in segment(caption, spans)] == owned


def test_compounds_are_split_for_counting():
    caption = "a black-and-white 3.5 m IMG_20 dog's"
    assert [word.text for word in segment(caption)] == ["a", "black-and-white", "3.5", "m", "IMG_20", "dog's"]
    cut = [word.text for word in segment(caption, compounds=False) if word.kind == "word"]
    assert cut == ["a", "black", "and", "white", "3", "5", "m", "IMG", "20", "dog's"]


@pytest.mark.parametrize(
    ("caption", "negated"),
    [
        ("a man without a hat on the beach", ["a", "hat", "on"]),
        ("no dogs, cats", ["dogs"]),
        ("there isn't any red car here today", ["any", "red", "car"]),
        ("it isn’t wet", ["wet"]),
        ("a dog", []),
    ],
)
def test_negation_scope_is_three_words_or_the_next_punctuation(caption, negated):
    words = segment(caption)
    assert [word.text for word in words if word.negated] == negated
    assert not any(word.content for word in words if word.text in ("no", "without", "isn't", "isn’t"))


def test_a_stem_is_new_once():
    words = segment("A dog and two Dogs, a DOG")
    assert [(word.text, word.new) for word in words if word.stem == "dog"] == [
        ("dog", True),
        ("Dogs", False),
        ("DOG", False),
    ]


@given(st.text("abc ,.-'é🐕狗", max_size=25), st.data(), st.booleans())
def test_every_token_is_owned_once_by_its_best_word(caption, data, compounds):
    place = st.integers(0, len(caption))
    spans = [tuple(sorted(data.draw(st.tuples(place, place)))) for _ in range(3)]
    words = segment(caption, spans, compounds=compounds)
    owned = sorted(token for word in words for token in word.tokens)
    assert owned == (list(range(3)) if words else [])
    starts, ends = [word.start for word in words], [word.end for word in words]
    for token, span in enumerate(spans if words else ()):
        assert token in words[best_owner(span, starts, ends, range(len(words)))].tokens


def test_tokens_of_content_words():
    caption, spans = "the dog's red-hot", [(0, 3), (4, 7), (7, 8), (8, 9), (10, 13), (13, 14), (14, 17)]
    assert token_contents(caption, spans) == ["", "dog", "", "", "red", "", "hot"]
    assert content_tokens(caption, spans) == (1, 4, 6)
    assert content_tokens("of the", [(0, 2), (3, 6)]) == (0, 1)
