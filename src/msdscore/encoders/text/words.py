"""Which words of a caption can be seen in a picture: content words, told from function words by a fixed list."""

import re
from bisect import bisect_right
from collections.abc import Sequence

from msdscore.encoders.text.windows import Span

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_LIST = """
a an the this that these those some any each every all both no not
i me my we us our you your he him his she her hers it its they them their who whom whose which what one ones
and or but nor so yet if then than as while when where because though
in on at by of to for from with without into onto off up down out over under through about around along across
between among against near next toward towards behind beside beneath below above inside outside after before
during within upon per via like
is are was were be been being am do does did done has have had having can could will would shall should may
might must get gets getting got
there here very too also just only more most much many other another such same own several few
it's he's she's there's that's isn't aren't wasn't don't doesn't can't
"""
_FUNCTION_WORDS = frozenset(_LIST.split())


def words_at(text: str, spans: Sequence[Span]) -> tuple[str, ...]:
    """The whole word that each span lies in, in lower case; empty for a span that begins outside of words.

    >>> words_at("A sky-blue Kayak", [(0, 1), (2, 5), (5, 6), (11, 13), (13, 16)])
    ('a', 'sky', '', 'kayak', 'kayak')
    """
    found = list(_WORD.finditer(text))
    starts = [match.start() for match in found]
    words = []
    for begin, end in spans:
        # A token's span may open with the space before its word.
        first = begin + len(text[begin:end]) - len(text[begin:end].lstrip())
        near = found[bisect_right(starts, first) - 1] if starts and starts[0] <= first else None
        words.append(near.group().casefold() if near is not None and first < near.end() else "")
    return tuple(words)


def content_words(text: str) -> frozenset[str]:
    """All words of a caption that name something to see.

    >>> sorted(content_words("The dog is on a beach."))
    ['beach', 'dog']
    """
    return frozenset(word for word in every_word(text) if is_content(word))


def every_word(text: str) -> frozenset[str]:
    """All words of a caption, in lower case.

    >>> sorted(every_word("The dog, the cat."))
    ['cat', 'dog', 'the']
    """
    return frozenset(match.group().casefold() for match in _WORD.finditer(text))


def is_content(word: str) -> bool:
    """Whether a lower-case word names something to see; signs and function words do not.

    >>> is_content("dog"), is_content("the"), is_content("")
    (True, False, False)
    """
    return bool(word) and word not in _FUNCTION_WORDS


def content_tokens(text: str, spans: Sequence[Span]) -> tuple[bool, ...]:
    """For each token whether it belongs to a content word; all of them where the caption has no such word.

    >>> content_tokens("The dog", [(0, 3), (4, 7)]), content_tokens("The", [(0, 3)])
    ((False, True), (True,))
    """
    kept = tuple(is_content(word) for word in words_at(text, spans))
    return kept if any(kept) else (True,) * len(spans)
