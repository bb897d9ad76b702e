"""Earlier home of `msdscore.text.words`: the names that other packages import from here until they have moved."""

from msdscore.text.words import (
    STOP_WORDS,
    content_tokens,
    content_words,
    each_word,
    is_content,
    is_plural,
    stem,
    words_at,
)

__all__ = [
    "STOP_WORDS",
    "content_tokens",
    "content_words",
    "each_word",
    "every_word",
    "is_content",
    "is_plural",
    "stem",
    "words_at",
]


def every_word(text: str) -> frozenset[str]:
    """All words of a caption, in lower case."""
    return frozenset(each_word(text))
