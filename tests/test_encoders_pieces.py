"""Words, marks and phrases of captions in any script, and the tokens that belong to them."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msdscore.encoders.text.pieces import _places_of_any, best_owner, group, owners, places, segment


def texts(caption):
    return [piece.text for piece in segment(caption)]


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("a dog, running.", ["a", "dog", ",", "running", "."]),
        ("don’t re-use 3.5 m", ["don’t", "re-use", "3.5", "m"]),
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
def test_pieces_cover_everything_but_white_space(caption):
    pieces = segment(caption)
    assert all(piece.text == caption[piece.start : piece.end] and piece.text for piece in pieces)
    assert all(before.end <= after.start for before, after in itertools.pairwise(pieces))
    covered = {place for piece in pieces for place in range(piece.start, piece.end)}
    assert all(caption[place].isspace() for place in set(range(len(caption))) - covered)


def test_emoji_are_words_and_marks_are_not():
    kinds = {piece.text: (piece.kind, piece.content) for piece in segment("The dog 🐕 !")}
    assert kinds == {"The": ("word", False), "dog": ("word", True), "🐕": ("word", True), "!": ("mark", False)}


def test_phrases_stop_at_marks_and_function_words():
    pieces = segment("two black dogs, a cup of hot milk of the farm")
    phrases = [" ".join(pieces[number].text for number in phrase) for phrase in group(pieces)]
    assert phrases == ["two black dogs", "cup of hot milk", "farm"]


@given(st.text(max_size=30).filter(lambda text: text.strip()), st.data())
def test_every_token_has_an_owner(caption, data):
    pieces = segment(caption)
    place = st.integers(0, len(caption))
    spans = data.draw(st.lists(st.tuples(place, place).map(lambda pair: (min(pair), max(pair))), max_size=5))
    owned = owners(spans, pieces)
    assert len(owned) == len(spans)
    assert all(0 <= number < len(pieces) for number in owned)


def test_a_token_goes_where_it_shares_most_characters_else_to_the_nearest():
    pieces = segment("ab  cdef !")
    assert owners([(1, 6), (2, 3), (8, 9), (4, 8)], pieces) == (1, 0, 1, 1)


@given(st.text(st.characters(codec="ascii"), max_size=40))
def test_the_fast_way_for_ascii_finds_the_same_pieces(caption):
    assert list(places(caption)) == list(_places_of_any(caption))


@given(st.text("ab,. -é", min_size=1, max_size=20).filter(lambda text: text.strip()), st.data())
def test_the_owner_is_the_best_of_all_pieces(caption, data):
    pieces = segment(caption)
    place = st.integers(0, len(caption))
    spans = [tuple(sorted(data.draw(st.tuples(place, place)))) for _ in range(4)]
    starts, ends = [piece.start for piece in pieces], [piece.end for piece in pieces]
    best = tuple(best_owner(span, starts, ends, range(len(pieces))) for span in spans)
    assert owners(spans, pieces) == best
