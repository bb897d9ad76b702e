"""Earlier home of `msdscore.text.words`: the names that other packages import from here until they have moved."""

from collections.abc import Sequence
from functools import lru_cache

from msdscore.text.words import Span, best_owner, owners, segment
from msdscore.text.words import Word as Piece
from msdscore.text.words import phrases as group

__all__ = ["Piece", "Span", "best_owner", "group", "names_something", "owners", "owners_of", "places", "segment"]


@lru_cache(maxsize=1 << 15)
def names_something(word: str) -> bool:
    """Whether a word, as it is written, names something to see."""
    return any(one.content for one in segment(word))


def places(text: str) -> list[tuple[int, int, str]]:
    """Where the words and marks of a caption begin and end, in order, and which of the two they are."""
    return [(word.start, word.end, word.kind) for word in segment(text)]


def owners_of(starts: Sequence[int], ends: Sequence[int], spans: Sequence[Span]) -> tuple[int, ...]:
    """`owners` of words that are given by where they start and end."""
    words = [
        Piece("", start, end, "", content=False, denied=False, new=False)
        for start, end in zip(starts, ends, strict=True)
    ]
    return owners(spans, words)
