"""Captions to padded windows of token ids, and the tower's states back to one row of tokens per caption.

A caption longer than the context is read in overlapping windows, of whole sentences if possible. The rule, on tokens
and their character spans alone, so that it is one for every family:

1. A window ends where a sentence ends, as far on as fits. Only a sentence longer than a whole window is cut,
   and then between words if there is a gap in the last quarter of the window.
2. The next window goes back to the start of the last sentence, if that one is at most half a window long and
   the next sentence still fits whole; else it starts where the last one ended, or, inside a cut sentence, a
   quarter of a window earlier.
3. A token read in two windows counts once: the copy is kept that stands further from both ends of its window,
   the earlier one in a tie.
"""

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, groupby
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from msdscore.core.device import sent
from msdscore.core.embeddings import unit
from msdscore.encoders.base import TokenLayout, Windows
from msdscore.errors import WeightsError, require
from msdscore.text.warnings import spelled_out, token_warnings
from msdscore.text.words import Span

# Of a text: the ids of its tokens, their spans, and its words that fall into letters.
Parts: TypeAlias = tuple[tuple[int, ...], tuple[Span, ...], tuple[str, ...]]

MOST_WORDS = 1 << 15  # that are kept of a tokenizer; some 10 MB
_LONGEST = 32  # letters of a word that is kept
# Normalisers that change an ASCII character whatever stands beside it, or spaces into other spaces.
_LOCAL = frozenset(("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "BertNormalizer"))
SPACES = (r"\s+", " ")
_SPACES = {"type": "Replace", "pattern": {"Regex": SPACES[0]}, "content": SPACES[1]}
# What CLIP takes for a word; some files name the special tokens before it. None of this holds a space.
CLIP_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
_CLIP_CUTS = (CLIP_WORDS, rf"<\|startoftext\|>|<\|endoftext\|>|{CLIP_WORDS}")


def cuts_at_spaces(backend: Any) -> bool:
    """Whether a tokenizer is known to read the words of an ASCII text one by one, whatever stands around them."""
    try:
        normalizer, cutter = (
            {} if part is None else json.loads(part.__getstate__())
            for part in (backend.normalizer, backend.pre_tokenizer)
        )
        model, added = type(backend.model).__name__, backend.get_added_tokens_decoder().values()
        drawn = getattr(backend.model, "dropout", None)
    except (AttributeError, TypeError, ValueError):  # no tokenizer of the library, or one of another time
        return False
    # Added tokens that are no special ones are found in a text before it is cut.
    plain = model in ("BPE", "WordPiece") and not drawn and all(token.special for token in added)
    return plain and backend.encode_special_tokens is True and _is_local(normalizer) and _cuts(cutter)


def _is_local(normalizer: Mapping[str, Any]) -> bool:
    if normalizer.get("type") == "Sequence":
        return all(map(_is_local, normalizer["normalizers"]))
    return not normalizer or normalizer["type"] in _LOCAL or normalizer == _SPACES


def _cuts(cutter: Mapping[str, Any]) -> bool:
    if cutter.get("type") != "Sequence":
        return cutter.get("type") in ("BertPreTokenizer", "Whitespace", "WhitespaceSplit")
    first, *others = cutter["pretokenizers"]
    clip = first["type"] == "Split" and first["pattern"].get("Regex") in _CLIP_CUTS
    bytewise = all(other["type"] == "ByteLevel" and not other["add_prefix_space"] for other in others)
    return clip and bytewise and (first["behavior"], first["invert"]) == ("Removed", True)


# No caption is longer; a whole book would take minutes.
MOST_TOKENS = 4096
_SENTENCE_END = re.compile(
    r"""[.!?…؟۔।]+["'”’)\]]*\s+   # marks that a space must follow: 3.5 and e.g are no ends
      | [。！？]+[”’」』）]*\s*      # marks of scripts that write no spaces
      | \s*\n\s*""",
    re.VERBOSE,
)
# Half of a pair alone cannot be encoded as UTF-8; one character replaces one, so that spans stay true.
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class Tokens(NamedTuple):
    """The tokens of one caption, without special ones, and their character spans in the caption as given.

    `spelled` are the words that fall into letters, where they were looked for.
    """

    text: str
    ids: tuple[int, ...]
    spans: tuple[Span, ...]
    spelled: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """How a text tower reads: its context in tokens, what stands around a text, what becomes of long ones."""

    context: int
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    pad: int
    long_text: str = "window"  # or "cut"
    full: bool = False  # every window is padded to the whole context, for towers that read their padding
    unknown: int | None = None  # the token of everything that the vocabulary does not hold

    @property
    def room(self) -> int:
        """Tokens of a caption that fit into one window."""
        return self.context - len(self.prefix) - len(self.suffix)


class Window(NamedTuple):
    """Tokens `start` to `stop` are read together; the vectors of `first` to `last` (excluded) are kept."""

    start: int
    stop: int
    first: int
    last: int

    @property
    def kept(self) -> int:
        """How many tokens count in this window."""
        return self.last - self.first


@dataclass(frozen=True, slots=True)
class TextBatch:
    """Windows of all captions as one padded batch, and where each caption's tokens are in it."""

    ids: Int[Tensor, "windows positions"]
    attention: Bool[Tensor, "windows positions"]
    window_of: Int[Tensor, "batch points"]  # for each token of a caption: its window
    position: Int[Tensor, "batch points"]  # and its position there
    mask: Bool[Tensor, "batch points"]
    windows: Windows
    layout: tuple[TokenLayout, ...]


def literal_backend(backend: Any) -> Any:
    """A Rust tokenizer, set to read a text as nothing but text.

    Without truncation and padding, and with the spelling of a special token inside a caption read as
    characters: a caption cannot end itself early.
    """
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = True
    return backend


def normalise_first(backend: Any, *steps: str | tuple[str, str]) -> None:
    """Let a tokenizer take further steps before its own: normalisers by name, or a pattern and what replaces it.

    Texts are prepared as in a model's training inside the tokenizer, so that spans stay true.
    """
    library, normalizers = (require(name, extra="hf") for name in ("tokenizers", "tokenizers.normalizers"))
    own = [backend.normalizer] if backend.normalizer else []
    first = [
        getattr(normalizers, step)() if isinstance(step, str) else normalizers.Replace(library.Regex(step[0]), step[1])
        for step in steps
    ]
    backend.normalizer = normalizers.Sequence([*first, *own])


def tokenise(backend: Any, text: str) -> Tokens:
    """The tokens of one caption."""
    encoding = backend.encode(_LONE_SURROGATE.sub("\ufffd", text), add_special_tokens=False)
    spans = close_spans(text, [_trimmed(text, span) for span in encoding.offsets])
    return Tokens(text, tuple(encoding.ids), spans)


_known: WeakKeyDictionary[Any, dict[str, Parts] | None] = WeakKeyDictionary()  # words that each tokenizer has met


def tokenise_all(backend: Any, texts: Sequence[str]) -> list[Tokens]:
    """The tokens of captions, put together from words that the tokenizer has met before, many times as fast.

    Where words depend on those around them every caption is read whole. Several threads may call it.
    """
    if backend not in _known:
        _known[backend] = {} if cuts_at_spaces(backend) else None
    known = _known[backend]
    if known is None:
        return [tokenise(backend, text) for text in texts]
    return [_by_words(backend, text, known) if text.isascii() else tokenise(backend, text) for text in texts]


def _by_words(backend: Any, text: str, known: dict[str, Parts]) -> Tokens:
    ids: list[int] = []
    spans: list[Span] = []
    spelled: tuple[str, ...] = ()
    at = 0
    for word in text.split(" "):
        if word:
            own, places, odd = known.get(word) or _meet(backend, word, known)
            ids += own
            for start, end in places:
                spans.append((at + start, at + end))
            if odd:
                spelled += odd
        at += len(word) + 1
    return Tokens(text, tuple(ids), tuple(spans), spelled)


def _meet(backend: Any, word: str, known: dict[str, Parts]) -> Parts:
    tokens = tokenise(backend, word)
    parts = tokens.ids, tokens.spans, tuple(spelled_out(word, tokens.spans))
    if len(word) <= _LONGEST:
        if len(known) >= MOST_WORDS:
            known.clear()
        known[word] = parts
    return parts


def special_ids(backend: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids that a tokenizer puts before and after a text.

    Raises:
        WeightsError: it changes the text itself when it adds them.
    """
    # Some checkpoints ask for padding to a fixed length in their own file.
    backend.no_padding()
    backend.no_truncation()
    inner = backend.encode("a", add_special_tokens=False).ids
    whole = backend.encode("a", add_special_tokens=True).ids
    for start in range(len(whole) - len(inner) + 1):
        if whole[start : start + len(inner)] == inner:
            return tuple(whole[:start]), tuple(whole[start + len(inner) :])
    raise WeightsError("the tokenizer changes a text when it adds special tokens; use another checkpoint")


def _trimmed(text: str, span: Span) -> Span:
    """The span without the spaces around its word, which some vocabularies count in; a span of spaces stays."""
    start, end = span
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return (start, end) if start < end else span


def close_spans(text: str, spans: Sequence[Span]) -> tuple[Span, ...]:
    """Give characters that a normaliser merged or dropped (accents, vowel signs) to the token before them.

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


def pack_texts(texts: Sequence[str], backend: Any, reading: Reading) -> TextBatch:
    """All windows of some captions as one padded batch."""
    return pack(tokenise_all(backend, texts), reading)


def pack(captions: Sequence[Tokens], reading: Reading) -> TextBatch:
    """All windows of tokenised captions as one padded batch."""
    room, most = reading.room, max(reading.room, MOST_TOKENS)
    plans = [
        plan_cut(len(caption.ids), room=room)
        if reading.long_text == "cut"
        else plan_windows(caption.text, caption.spans[:most], room=room)
        for caption in captions
    ]
    rows = [
        [*reading.prefix, *caption.ids[window.start : window.stop], *reading.suffix]
        for caption, plan in zip(captions, plans, strict=True)
        for window in plan
    ]
    ids, attention = _padded(rows, fill=reading.pad, width=reading.context if reading.full else 0)
    windows, positions, layout, number, lead = list[list[int]](), list[list[int]](), [], 0, len(reading.prefix)
    for caption, plan in zip(captions, plans, strict=True):
        windows.append([])
        positions.append([])
        for window in plan:
            windows[-1] += [number] * window.kept
            positions[-1] += range(lead + window.first - window.start, lead + window.last - window.start)
            number += 1
        notes = token_warnings(*caption[:3], unknown=reading.unknown, spelled=caption.spelled)
        last = plan[-1].last
        layout.append(TokenLayout(caption.spans[:last], len(plan), len(caption.ids) - last, notes))
    window_of, mask = _padded(windows)
    return TextBatch(ids, attention, window_of, _padded(positions)[0], mask, _windows(plans), tuple(layout))


def unpack_tokens(
    states: Float[Tensor, "windows positions dim"], batch: TextBatch
) -> Float[Tensor, "batch points dim"]:
    """The state of every token of every caption, in caption order; padded places hold some other state."""
    return states[sent(batch.window_of, states.device), sent(batch.position, states.device)]


def join_windows(pooled: Float[Tensor, "windows dim"], windows: Windows) -> Float[Tensor, "batch dim"]:
    """One unit vector per caption: the mean of its windows' unit vectors, weighted by the tokens they keep."""
    own, shares = (sent(part, pooled.device) for part in windows)
    return unit((unit(pooled)[own] * shares.unsqueeze(-1)).sum(dim=1))


def _windows(plans: Sequence[Sequence[Window]]) -> Windows:
    """The windows of each caption, padded with its first, and their shares by kept tokens; padding has none."""
    most = max(map(len, plans), default=0)
    if most == 1:
        return torch.arange(len(plans)).unsqueeze(1), torch.ones(len(plans), 1)
    own, shares, first = list[list[int]](), list[list[float]](), 0
    for plan in plans:
        kept, spare = sum(window.kept for window in plan), most - len(plan)
        own.append([*range(first, first + len(plan)), *[first] * spare])
        # A text without tokens has one window and all its share.
        shares.append([*(window.kept / kept if kept else 1.0 for window in plan), *[0.0] * spare])
        first += len(plan)
    shape = (len(plans), most)
    return torch.tensor(own, dtype=torch.long).reshape(shape), torch.tensor(shares).reshape(shape)


def _padded(
    rows: Sequence[Sequence[int]], *, fill: int = 0, width: int = 0
) -> tuple[Int[Tensor, "rows longest"], Bool[Tensor, "rows longest"]]:
    """Rows padded to the longest of them, or to `width` where that is more, and True for what they hold."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    real = np.arange(max(width, lengths.max(initial=0))) < lengths[:, np.newaxis]
    padded = np.full(real.shape, fill, dtype=np.int64)
    padded[real] = np.fromiter(chain.from_iterable(rows), np.int64)
    return torch.from_numpy(padded), torch.from_numpy(real)


def plan_windows(text: str, spans: Sequence[Span], *, room: int) -> tuple[Window, ...]:
    """Windows of at most `room` tokens that keep every token exactly once, in caption order.

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
    """One window of the first `room` tokens; the rest is dropped.

    >>> plan_cut(9, room=5)
    (Window(start=0, stop=5, first=0, last=5),)
    """
    kept = min(count, room)
    return (Window(0, kept, 0, kept),)


def sentence_starts(text: str, spans: Sequence[Span]) -> list[int]:
    """Indices of the tokens that begin a sentence; the first token always does.

    >>> sentence_starts("Hi. Yo", [(0, 2), (2, 3), (4, 6)])
    [0, 2]
    """
    begins = [begin for begin, _ in spans]
    starts = {bisect_left(begins, match.end()) for match in _SENTENCE_END.finditer(text)}
    return sorted({0, *starts} - {len(spans)})


def _stop(start: int, reached: int, sentences: Sequence[int], words: Sequence[int], *, count: int, room: int) -> int:
    """Where the window from `start` ends: beyond `reached`, at a sentence's end if the next fits whole."""
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
