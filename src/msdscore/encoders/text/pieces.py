"""A caption cut into words, marks and phrases by its characters, whatever the encoder's tokens are."""

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from msdscore.encoders.text.words import is_content

PieceKind = Literal["word", "mark"]
Span = tuple[int, int]

# Between two letters or digits these belong to the word: don't, black-and-white, 3.5.
_JOINERS = frozenset("'’-‐‑")
_DIGIT_JOINERS = frozenset(".,:")
# Scripts written without spaces; each of their characters stands as a word.
_UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")
_BRIDGE = "of"
# What `_places_of_any` finds in a caption of ASCII alone, many times as fast.
_ASCII = re.compile(r"(\w+(?:(?:['-]|(?<=\d)[.,:](?=\d))\w+)*)|\S")


@dataclass(frozen=True, slots=True)
class Piece:
    """A word or a mark of a caption, at characters `start` to `end`; `content` words name what can be seen."""

    text: str
    start: int
    end: int
    kind: PieceKind
    content: bool


def segment(caption: str) -> tuple[Piece, ...]:
    """Words and marks of a caption in order; white space belongs to none.

    >>> [piece.text for piece in segment("A dog's 3.5-year-old toy, isn't it?")]
    ['A', "dog's", '3.5-year-old', 'toy', ',', "isn't", 'it', '?']
    """
    return tuple(_piece(caption, start, end, kind) for start, end, kind in places(caption))


def group(pieces: Sequence[Piece]) -> tuple[tuple[int, ...], ...]:
    """Numbers of the pieces of every phrase: adjacent content words, joined over "of".

    >>> pieces = segment("a large cup of milk on the table, outdoors")
    >>> [" ".join(pieces[number].text for number in phrase) for phrase in group(pieces)]
    ['large cup of milk', 'table', 'outdoors']
    """
    phrases: list[tuple[int, ...]] = []
    current: list[int] = []
    for number, piece in enumerate(pieces):
        if piece.content or (current and _bridges(pieces, number)):
            current.append(number)
        elif current:
            phrases.append(tuple(current))
            current = []
    return (*phrases, tuple(current)) if current else tuple(phrases)


def owners(spans: Sequence[Span], pieces: Sequence[Piece]) -> tuple[int, ...]:
    """The piece that every token belongs to: the one it shares most characters with, else the nearest.

    No token is left out, so sums over pieces are sums over tokens.

    >>> owners([(0, 4), (4, 7), (7, 8)], segment("playing."))
    (0, 0, 1)
    """
    return owners_of([piece.start for piece in pieces], [piece.end for piece in pieces], spans)


def owners_of(starts: Sequence[int], ends: Sequence[int], spans: Sequence[Span]) -> tuple[int, ...]:
    """`owners` of pieces that are given by where they start and end."""
    whole = {span: number for number, span in enumerate(zip(starts, ends, strict=True))}
    found = [whole.get(span) for span in spans]
    return tuple(
        _owner(span, starts, ends) if number is None else number for number, span in zip(found, spans, strict=True)
    )


def _owner(span: Span, starts: Sequence[int], ends: Sequence[int]) -> int:
    start, end = span
    first = bisect_right(ends, start)
    last = bisect_left(starts, end)
    if last == first + 1 and start < end:
        return first  # one piece alone shares characters with it
    near = range(max(first - 1, 0), min(max(last, first + 1), len(starts)))
    return best_owner(span, starts, ends, near)


def best_owner(span: Span, starts: Sequence[int], ends: Sequence[int], among: range) -> int:
    """The piece among these that shares most characters with a span, else the nearest; of equals the first."""
    start, end = span

    def fit(number: int) -> tuple[int, int]:
        shared = min(end, ends[number]) - max(start, starts[number])
        return max(shared, 0), -max(starts[number] - end, start - ends[number], 0)

    return max(among, key=fit)


def _bridges(pieces: Sequence[Piece], number: int) -> bool:
    follows = number + 1 < len(pieces) and pieces[number + 1].content
    return pieces[number].text.casefold() == _BRIDGE and follows


def _piece(caption: str, start: int, end: int, kind: PieceKind) -> Piece:
    text = caption[start:end]
    return Piece(text, start, end, kind, kind == "word" and names_something(text))


@lru_cache(maxsize=1 << 15)
def names_something(word: str) -> bool:
    """Whether a word, as it is written, names something to see."""
    return is_content(word.casefold().replace("’", "'"))


def places(text: str) -> list[tuple[int, int, PieceKind]]:
    """Where the pieces of a caption begin and end, in order."""
    if not text.isascii():
        return list(_places_of_any(text))
    found: list[tuple[int, int, PieceKind]] = []
    at = 0
    for part in text.split(" "):
        end = at + len(part)
        if part.isalnum():
            found.append((at, end, "word"))
        elif part:
            found += [
                (*match.span(), "word" if match.lastindex else "mark") for match in _ASCII.finditer(text, at, end)
            ]
        at = end + 1
    return found


def _places_of_any(text: str) -> Iterator[tuple[int, int, PieceKind]]:
    place = 0
    while place < len(text):
        if text[place].isspace():
            place += 1
            continue
        end = _word_end(text, place)
        kind: PieceKind = "word" if end > place else "mark"
        # Signs such as emoji say something a picture can show; punctuation does not.
        if kind == "mark" and unicodedata.category(text[place]) == "So":
            kind = "word"
        end = max(end, _with_marks(text, place + 1))
        yield place, end, kind
        place = end


def _word_end(text: str, start: int) -> int:
    """Where the word that begins at `start` ends; `start` itself if none begins there."""
    if not _is_letter(text[start]):
        return start
    if _is_unspaced(text[start]):
        return _with_marks(text, start + 1)
    place = start
    while place < len(text) and (_continues(text, place) or _joins(text, place)):
        place += 1
    return place


def _continues(text: str, place: int) -> bool:
    char = text[place]
    return unicodedata.category(char)[0] == "M" or (_is_letter(char) and not _is_unspaced(char))


def _joins(text: str, place: int) -> bool:
    if place == 0 or place + 1 >= len(text):
        return False
    before, char, after = text[place - 1], text[place], text[place + 1]
    if char in _DIGIT_JOINERS:
        return before.isdigit() and after.isdigit()
    return char in _JOINERS and _is_letter(before) and _is_letter(after)


def _with_marks(text: str, place: int) -> int:
    """Past combining marks and variation selectors, which belong to the character before them."""
    while place < len(text) and (unicodedata.category(text[place])[0] == "M" or text[place] == "\u200d"):
        place += 1
    return place


def _is_letter(char: str) -> bool:
    return unicodedata.category(char)[0] in "LN" or char == "_"


def _is_unspaced(char: str) -> bool:
    return ord(char) > 0x0E00 and unicodedata.name(char, "").startswith(_UNSPACED)
