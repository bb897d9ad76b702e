"""Tokenise captions into padded windows, and map the tower's states back to one row of tokens per caption.

A caption longer than the context is read in overlapping windows, of whole sentences if possible. The rule depends only
on tokens and their character spans, so that it is the same for every family:

1. A window ends at the last sentence end that fits. Only a sentence longer than a whole window is cut,
   and then between words if there is a gap in the last quarter of the window.
2. The next window starts at the last sentence again, if that one is at most half a window long and
   the next sentence still fits whole; otherwise it starts at the end of the last window, or, inside a cut sentence, a
   quarter of a window earlier.
3. A token read in two windows counts once: the copy further from both ends of its window is used,
   the earlier one in a tie.
"""

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, groupby
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from msdscore.core.arrays import Array, Bool, Float, Int, from_numpy, namespace
from msdscore.core.embeddings import TokenLayout, unit
from msdscore.errors import WeightsError
from msdscore.text.warnings import spelled_out, token_warnings
from msdscore.text.words import Span

# Of a text: the ids of its tokens, their spans, and its words that are split into letters.
WordTokens: TypeAlias = tuple[tuple[int, ...], tuple[Span, ...], tuple[str, ...]]

# The windows of each caption in a batch of windows, padded with its first one, and their weights in its pooled vector.
Windows = tuple[Int[Array, "batch parts"], Float[Array, "batch parts"]]

MOST_WORDS = 1 << 15  # cached per tokenizer; about 10 MB
_LONGEST = 32  # letters of a cached word
_LONGEST_WORD = 100  # letters of a word; a longer one is unknown
_UNKNOWN = "[UNK]"
_CONTROL = ("Cc", "Cf", "Co", "Cs")
_IDEOGRAPHS = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip

_Word = list[tuple[str, int]]  # normalised characters, each with its position in the text
# No caption is longer; a whole book would take minutes.
MOST_TOKENS = 4096
_SENTENCE_END = re.compile(
    r"""[.!?…؟۔।]+["'”’)\]]*\s+   # marks that a space must follow: 3.5 and e.g are not ends
      | [。！？]+[”’」』）]*\s*      # marks of scripts that write no spaces
      | \s*\n\s*""",
    re.VERBOSE,
)
# A lone surrogate cannot be encoded as UTF-8; one character replaces one, so that spans remain valid.
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class Tokens(NamedTuple):
    """The tokens of one caption, without special ones, and their character spans in the original caption.

    `spelled` are the words that are split into letters, if they were computed.
    """

    text: str
    ids: tuple[int, ...]
    spans: tuple[Span, ...]
    spelled: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class TextSettings:
    """Settings of a text tower: its context in tokens, its special tokens, and its handling of long texts."""

    context: int
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    pad: int
    long_text: str = "window"  # or "cut"
    full: bool = False  # every window is padded to the whole context, for towers that read their padding
    unknown: int | None = None  # the token of everything outside the vocabulary


class Window(NamedTuple):
    """Tokens `start` to `stop` are read together; the vectors of `first` to `last` (excluded) are used."""

    start: int
    stop: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class TextBatch:
    """Windows of all captions as one padded batch, and the positions of each caption's tokens in it.

    Arrays are NumPy's; families that use torch replace `ids`, `attention` and `mask` with tensors.
    """

    ids: Int[Array, "windows positions"]
    attention: Bool[Array, "windows positions"]
    window_of: Int[np.ndarray, "batch points"]  # for each token of a caption: its window
    position: Int[np.ndarray, "batch points"]  # and its position there
    mask: Bool[Array, "batch points"]
    windows: Windows
    layout: tuple[TokenLayout, ...]


def tokenise(backend: Any, text: str) -> Tokens:
    """Tokenise one caption."""
    encoding = backend.encode(_LONE_SURROGATE.sub("\ufffd", text), add_special_tokens=False)
    spans = list[Span]()
    for start, end in encoding.offsets:
        # Some vocabularies include the spaces around a word in its span; a span of spaces is unchanged.
        word = text[start:end]
        bare = word.lstrip()
        first = start + len(word) - len(bare)
        spans.append((first, first + len(bare.rstrip())) if bare else (start, end))
    return Tokens(text, tuple(encoding.ids), close_spans(text, spans))


def tokenise_all(backend: Any, texts: Sequence[str], known: dict[str, WordTokens]) -> list[Tokens]:
    """Tokenise captions, many times faster by caching the tokens of words in `known`; thread-safe.

    The backend must tokenise the words of an ASCII text independently of each other.
    """
    return [_by_words(backend, text, known) if text.isascii() else tokenise(backend, text) for text in texts]


def _by_words(backend: Any, text: str, known: dict[str, WordTokens]) -> Tokens:
    ids: list[int] = []
    spans: list[Span] = []
    spelled: tuple[str, ...] = ()
    at = 0
    for word in text.split(" "):
        if word:
            tokens, offsets, odd = known.get(word) or _tokenise_word(backend, word, known)
            ids += tokens
            for start, end in offsets:
                spans.append((at + start, at + end))
            if odd:
                spelled += odd
        at += len(word) + 1
    return Tokens(text, tuple(ids), tuple(spans), spelled)


def _tokenise_word(backend: Any, word: str, known: dict[str, WordTokens]) -> WordTokens:
    tokens = tokenise(backend, word)
    parts = tokens.ids, tokens.spans, tuple(spelled_out(word, tokens.spans))
    if len(word) <= _LONGEST:
        if len(known) >= MOST_WORDS:
            known.clear()
        known[word] = parts
    return parts


def close_spans(text: str, spans: Sequence[Span]) -> tuple[Span, ...]:
    """Assign characters that a normaliser merged or dropped (accents, vowel signs) to the token before them.

    >>> close_spans("cafe\u0301 x", [(0, 4), (6, 7)])
    ((0, 5), (6, 7))
    """
    if text.isascii():
        return tuple(spans)
    closed, limit = [], len(text)
    for index in reversed(range(len(spans))):
        start, end = spans[index]
        if index + 1 < len(spans) and spans[index + 1][0] > start:
            limit = spans[index + 1][0]
        while end < limit and not text[end].isspace():
            end += 1
        closed.append((start, end))
    return tuple(reversed(closed))


def pack(captions: Sequence[Tokens], settings: TextSettings) -> TextBatch:
    """Pack all windows of tokenised captions into one padded batch."""
    room = settings.context - len(settings.prefix) - len(settings.suffix)  # tokens of a caption in one window
    most = max(room, MOST_TOKENS)
    plans = [
        plan_cut(len(caption.ids), room=room)
        if settings.long_text == "cut"
        else plan_windows(caption.text, caption.spans[:most], room=room)
        for caption in captions
    ]
    rows = [
        [*settings.prefix, *caption.ids[window.start : window.stop], *settings.suffix]
        for caption, plan in zip(captions, plans, strict=True)
        for window in plan
    ]
    ids, attention = _padded(rows, fill=settings.pad, width=settings.context if settings.full else 0)
    windows, positions, layout, number, lead = list[list[int]](), list[list[int]](), [], 0, len(settings.prefix)
    for caption, plan in zip(captions, plans, strict=True):
        windows.append([])
        positions.append([])
        for window in plan:
            windows[-1] += [number] * (window.last - window.first)
            positions[-1] += range(lead + window.first - window.start, lead + window.last - window.start)
            number += 1
        notes = token_warnings(*caption[:3], unknown=settings.unknown, spelled=caption.spelled)
        last = plan[-1].last
        layout.append(TokenLayout(caption.spans[:last], len(plan), len(caption.ids) - last, notes))
    window_of, mask = _padded(windows)
    return TextBatch(ids, attention, window_of, _padded(positions)[0], mask, _windows(plans), tuple(layout))


def join_windows(pooled: Float[Array, "windows dim"], windows: Windows) -> Float[Array, "batch dim"]:
    """One unit vector per caption: the mean of its windows' unit vectors, weighted by their used tokens."""
    rows, shares = (from_numpy(part, like=pooled) for part in windows)
    return unit(namespace(pooled).sum(unit(pooled)[rows] * shares[..., None], axis=1))


def _windows(plans: Sequence[Sequence[Window]]) -> Windows:
    """The windows of each caption, padded with its first, and their shares by used tokens; padding has none."""
    most = max(map(len, plans), default=0)
    if most == 1:
        return np.arange(len(plans))[:, np.newaxis], np.ones((len(plans), 1), dtype=np.float32)
    rows, shares, first = list[list[int]](), list[list[float]](), 0
    for plan in plans:
        used, spare = sum(window.last - window.first for window in plan), most - len(plan)
        rows.append([*range(first, first + len(plan)), *[first] * spare])
        # A text without tokens has one window, with a share of 1.
        shares.append([*((window.last - window.first) / used if used else 1.0 for window in plan), *[0.0] * spare])
        first += len(plan)
    shape = (len(plans), most)
    return np.array(rows, dtype=np.int64).reshape(shape), np.array(shares, dtype=np.float32).reshape(shape)


def _padded(
    rows: Sequence[Sequence[int]], *, fill: int = 0, width: int = 0
) -> tuple[Int[np.ndarray, "rows longest"], Bool[np.ndarray, "rows longest"]]:
    """Rows padded to the longest of them, or to `width` if that is more, and a mask that is True for their values."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    real = np.arange(max(width, lengths.max(initial=0))) < lengths[:, np.newaxis]
    padded = np.full(real.shape, fill, dtype=np.int64)
    padded[real] = np.fromiter(chain.from_iterable(rows), np.int64)
    return padded, real


def plan_windows(text: str, spans: Sequence[Span], *, room: int) -> tuple[Window, ...]:
    """Plan windows of at most `room` tokens that use every token exactly once, in caption order.

    >>> text = "A red ball. A dog."
    >>> spans = [(0, 1), (2, 5), (6, 10), (10, 11), (12, 13), (14, 17), (17, 18)]
    >>> plan_windows(text, spans, room=5)
    (Window(start=0, stop=4, first=0, last=4), Window(start=4, stop=7, first=4, last=7))
    """
    count = len(spans)
    if count <= room:
        return plan_cut(count, room=room)
    sentences = sentence_starts(text, spans)
    words = [i for i in range(1, count) if spans[i][0] > spans[i - 1][1]]
    ranges: list[Span] = []
    start = stop = 0
    while stop < count:
        start = _start(stop, sentences, words, count=count, room=room) if ranges else 0
        stop = _stop(start, stop, sentences, words, count=count, room=room)
        ranges.append((start, stop))
    return _keep_once(ranges, count)


@lru_cache(maxsize=1024)
def plan_cut(count: int, *, room: int) -> tuple[Window, ...]:
    """Plan one window of the first `room` tokens; the rest is dropped.

    >>> plan_cut(9, room=5)
    (Window(start=0, stop=5, first=0, last=5),)
    """
    used = min(count, room)
    return (Window(0, used, 0, used),)


def sentence_starts(text: str, spans: Sequence[Span]) -> list[int]:
    """Indices of the first tokens of sentences; the first token is always one of them.

    >>> sentence_starts("Hi. Yo", [(0, 2), (2, 3), (4, 6)])
    [0, 2]
    """
    begins = [begin for begin, _ in spans]
    starts = {bisect_left(begins, match.end()) for match in _SENTENCE_END.finditer(text)}
    return sorted({0, *starts} - {len(spans)})


def _stop(start: int, reached: int, sentences: Sequence[int], words: Sequence[int], *, count: int, room: int) -> int:
    """The end of the window from `start`: beyond `reached`, at a sentence's end if the next fits whole."""
    limit = start + room
    if limit >= count:
        return count
    last = bisect_right(sentences, limit) - 1
    ends = sentences[last + 1] if last + 1 < len(sentences) else count
    if sentences[last] > reached and ends - sentences[last] <= room:
        return sentences[last]
    gap = bisect_right(words, limit) - 1
    return words[gap] if gap >= 0 and words[gap] > max(reached, limit - room // 4) else limit


def _start(stop: int, sentences: Sequence[int], words: Sequence[int], *, count: int, room: int) -> int:
    """The start of the window after one that ended at `stop`."""
    last = sentences[bisect_left(sentences, stop) - 1]
    after = bisect_right(sentences, stop)
    ends = sentences[after] if after < len(sentences) else count
    if stop - last <= room // 2 and ends - last <= room:
        return last
    if sentences[after - 1] == stop:
        return stop
    back = bisect_left(words, stop - room // 4)
    return words[back] if back < len(words) and words[back] <= stop else stop - room // 4


def _keep_once(ranges: Sequence[Span], count: int) -> tuple[Window, ...]:
    """Assign every token to one window; a window without tokens is dropped."""

    def margin(number: int, token: int) -> int:
        start, stop = ranges[number]
        return min(token - start, stop - 1 - token)

    starts, stops = [start for start, _ in ranges], [stop for _, stop in ranges]
    # max returns the first of equals: the earlier window wins a tie. Both ends increase from window to window.
    owners = [
        max(range(bisect_right(stops, token), bisect_right(starts, token)), key=lambda number: margin(number, token))
        for token in range(count)
    ]
    windows = []
    for number, tokens in groupby(range(count), key=owners.__getitem__):
        used = list(tokens)
        windows.append(Window(*ranges[number], used[0], used[-1] + 1))
    return tuple(windows)


class Encoding(NamedTuple):
    """Token ids of a text and their character spans."""

    ids: list[int]
    offsets: list[tuple[int, int]]


class WordPiece:
    """WordPiece tokenizer of uncased BERT models: it cleans and splits a text, and matches the longest known pieces.

    Written here because the library `tokenizers` installs a dozen packages for a hub that is not used; a test compares
    ids and spans with that library. Words between spaces are tokenised independently of each other.
    """

    def __init__(self, vocabulary: Sequence[str]) -> None:
        self._ids = {piece: number for number, piece in enumerate(vocabulary)}
        if _UNKNOWN not in self._ids:
            raise WeightsError(f"the vocabulary has no {_UNKNOWN}; install its package again")

    @classmethod
    def read(cls, path: Path) -> "WordPiece":
        """Read a vocabulary with one piece per line."""
        return cls(path.read_text(encoding="utf-8").rstrip("\n").split("\n"))

    def encode(self, text: str, *, add_special_tokens: bool = False) -> Encoding:
        """Tokenise a text; special tokens are never added, and their spelling is read as characters."""
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        for word in _words(text):
            for number, start, end in self._pieces(word):
                ids.append(number)
                offsets.append((word[start][1], word[end - 1][1] + 1))
        return Encoding(ids, offsets)

    def _pieces(self, word: _Word) -> list[tuple[int, int, int]]:
        """Id, start and end of each piece of a word; one unknown token if it cannot be split."""
        letters, pieces, start = "".join(letter for letter, _ in word), list[tuple[int, int, int]](), 0
        while start < len(letters) <= _LONGEST_WORD:
            prefix = "##" if start else ""
            for end in range(len(letters), start, -1):
                number = self._ids.get(prefix + letters[start:end])
                if number is not None:
                    break
            else:
                break
            pieces.append((number, start, end))
            start = end
        return pieces if start == len(letters) else [(self._ids[_UNKNOWN], 0, len(letters))]


def _words(text: str) -> Iterator[_Word]:
    """Words and punctuation marks of a text, normalised."""
    word: _Word = []
    for position, character in enumerate(text):
        for letter in _normalised(character):
            if letter.isspace() or _is_punctuation(letter):
                if word:
                    yield word
                    word = []
                if not letter.isspace():
                    yield [(letter, position)]
            else:
                word.append((letter, position))
    if word:
        yield word


@lru_cache(maxsize=1 << 16)
def _normalised(character: str) -> str:
    """A character without accents and in lower case; a space for white space, nothing for control characters."""
    if character in "\t\n\r":
        return " "
    if character == "\ufffd" or unicodedata.category(character) in _CONTROL:
        return ""
    if character.isspace():
        return " "
    parts = unicodedata.normalize("NFD", character)
    plain = "".join(part.lower() for part in parts if unicodedata.category(part) != "Mn")
    is_ideograph = any(first <= ord(character) <= last for first, last in _IDEOGRAPHS)
    return f" {plain} " if is_ideograph else plain


@lru_cache(maxsize=1 << 16)
def _is_punctuation(letter: str) -> bool:
    return (letter.isascii() and letter.isprintable() and not letter.isalnum() and letter != " ") or (
        unicodedata.category(letter)[0] == "P"
    )
