"""Plan how a caption longer than the context is read: in overlapping windows, of whole sentences if possible.

The rule, on tokens and their character spans alone, so that it is one for every family:

1. A window ends where a sentence ends, as far on as fits. Only a sentence longer than a whole window is cut,
   and then between words if there is a gap in the last quarter of the window.
2. The next window goes back to the start of the last sentence, if that one is at most half a window long and
   the next sentence still fits whole; else it starts where the last one ended, or, inside a cut sentence, a
   quarter of a window earlier.
3. A token read in two windows counts once: the copy is kept that stands further from both ends of its window,
   the earlier one in a tie.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

Span = tuple[int, int]

_SENTENCE_END = re.compile(
    r"""[.!?…؟۔।]+["'”’)\]]*\s+   # marks that a space must follow: 3.5 and e.g are no ends
      | [。！？]+[”’」』）]*\s*      # marks of scripts that write no spaces
      | \s*\n\s*""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Window:
    """Tokens `start` to `stop` are read together; the vectors of `first` to `last` (excluded) are kept."""

    start: int
    stop: int
    first: int
    last: int

    @property
    def kept(self) -> int:
        """How many tokens count in this window."""
        return self.last - self.first


def plan_windows(text: str, spans: Sequence[Span], *, room: int) -> tuple[Window, ...]:
    """Windows of at most `room` tokens that keep every token exactly once, in caption order.

    >>> text = "A red ball. A dog."
    >>> spans = [(0, 1), (2, 5), (6, 10), (10, 11), (12, 13), (14, 17), (17, 18)]
    >>> plan_windows(text, spans, room=5)
    (Window(start=0, stop=4, first=0, last=4), Window(start=4, stop=7, first=4, last=7))
    """
    count = len(spans)
    if count <= room:
        return _whole(count)
    sentences = sentence_starts(text, spans)
    words = [i for i in range(1, count) if spans[i][0] > spans[i - 1][1]]
    ranges: list[Span] = []
    start = stop = 0
    while stop < count:
        start = _start(stop, sentences, words, count=count, room=room) if ranges else 0
        stop = _stop(start, stop, sentences, words, count=count, room=room)
        ranges.append((start, stop))
    return _keep_once(ranges, count)


def plan_cut(count: int, *, room: int) -> tuple[Window, ...]:
    """One window of the first `room` tokens; the rest is dropped.

    >>> plan_cut(9, room=5)
    (Window(start=0, stop=5, first=0, last=5),)
    """
    return _whole(min(count, room))


@lru_cache(maxsize=1024)
def _whole(count: int) -> tuple[Window, ...]:
    return (Window(0, count, 0, count),)


def sentence_starts(text: str, spans: Sequence[Span]) -> list[int]:
    """Indices of the tokens that begin a sentence; the first token always does.

    >>> sentence_starts("Hi. Yo", [(0, 2), (2, 3), (4, 6)])
    [0, 2]
    """
    begins = [begin for begin, _ in spans]
    found = {bisect_left(begins, match.end()) for match in _SENTENCE_END.finditer(text)}
    return sorted({0, *found} - {len(spans)})


def _stop(start: int, reached: int, sentences: Sequence[int], words: Sequence[int], *, count: int, room: int) -> int:
    """Where the window from `start` ends: beyond `reached`, at a sentence's end if the next fits whole."""
    limit = start + room
    if limit >= count:
        return count
    found = bisect_right(sentences, limit) - 1
    ends = sentences[found + 1] if found + 1 < len(sentences) else count
    if sentences[found] > reached and ends - sentences[found] <= room:
        return sentences[found]
    return _at_or_before(words, limit, floor=max(reached, limit - room // 4))


def _start(stop: int, sentences: Sequence[int], words: Sequence[int], *, count: int, room: int) -> int:
    """Where the window after one that ended at `stop` starts."""
    last = sentences[bisect_left(sentences, stop) - 1]
    after = bisect_right(sentences, stop)
    ends = sentences[after] if after < len(sentences) else count
    if stop - last <= room // 2 and ends - last <= room:
        return last
    if sentences[after - 1] == stop:
        return stop
    back = bisect_left(words, stop - room // 4)
    return words[back] if back < len(words) and words[back] <= stop else stop - room // 4


def _at_or_before(places: Sequence[int], limit: int, *, floor: int) -> int:
    """The last place that is over `floor` and not over `limit`; `limit` where there is none."""
    found = bisect_right(places, limit) - 1
    return places[found] if found >= 0 and places[found] > floor else limit


def _keep_once(ranges: Sequence[Span], count: int) -> tuple[Window, ...]:
    """Give every token to one window; a window that keeps nothing is not read."""

    def margin(number: int, token: int) -> int:
        start, stop = ranges[number]
        return min(token - start, stop - 1 - token)

    starts, stops = [start for start, _ in ranges], [stop for _, stop in ranges]
    # max takes the first of equals: the earlier window wins a tie. Both ends rise from window to window.
    owners = [
        max(range(bisect_right(stops, token), bisect_right(starts, token)), key=lambda number: margin(number, token))
        for token in range(count)
    ]
    windows = []
    for number, tokens in groupby(range(count), key=owners.__getitem__):
        kept = list(tokens)
        windows.append(Window(*ranges[number], kept[0], kept[-1] + 1))
    return tuple(windows)
