"""Captions to padded windows of token ids, and the tower's states back to one row of tokens per caption."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from msdscore.core.device import sent
from msdscore.core.embeddings import unit
from msdscore.encoders.base import TokenLayout, Windows
from msdscore.encoders.text.windows import Span, Window, plan_cut, plan_windows
from msdscore.errors import WeightsError
from msdscore.text.warnings import spelled_out, token_warnings

# Of a text: the ids of its tokens, their spans, and its words that fall into letters.
Parts: TypeAlias = tuple[tuple[int, ...], tuple[Span, ...], tuple[str, ...]]

_MOST = 1 << 15  # words that are kept; some 10 MB
_LONGEST = 32  # letters of a word that is kept
# Normalisers that change an ASCII character whatever stands beside it, or spaces into other spaces.
_LOCAL = frozenset(("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "BertNormalizer"))
_SPACES = {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "}
# What CLIP takes for a word; some files name the special tokens before it. None of this holds a space.
_CLIP = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
_CLIP_WORDS = (_CLIP, rf"<\|startoftext\|>|<\|endoftext\|>|{_CLIP}")


class WordMemory:
    """Words that one tokenizer has met: captions of known words are put together from them, many times as fast.

    It holds for tokenizers that cut a text at spaces before anything else, which `cuts_at_spaces` reads off their own
    description: there the tokens of a word do not depend on the words around it. Several threads may use it.
    """

    def __init__(self) -> None:
        self._known: dict[str, Parts] = {}

    def parts(self, text: str, read: Callable[[str], Parts]) -> Parts:
        """The parts of an ASCII text, word by word; `read` is asked about words that are new."""
        ids: list[int] = []
        spans: list[Span] = []
        spelled: tuple[str, ...] = ()
        known, at = self._known, 0
        for word in text.split(" "):
            if word:
                own, places, odd = known.get(word) or self._meet(word, read)
                ids += own
                for start, end in places:
                    spans.append((at + start, at + end))
                if odd:
                    spelled += odd
            at += len(word) + 1
        return tuple(ids), tuple(spans), spelled

    def _meet(self, word: str, read: Callable[[str], Parts]) -> Parts:
        found = read(word)
        if len(word) <= _LONGEST:
            if len(self._known) >= _MOST:
                self._known.clear()
            self._known[word] = found
        return found


_memories: WeakKeyDictionary[Any, WordMemory | None] = WeakKeyDictionary()


def memory_of(backend: Any) -> WordMemory | None:
    """The memory of a Rust tokenizer, as long as that lives; None where words depend on those around them."""
    if backend not in _memories:
        _memories[backend] = WordMemory() if cuts_at_spaces(backend) else None
    return _memories[backend]


def cuts_at_spaces(backend: Any) -> bool:
    """Whether a tokenizer is known to read the words of an ASCII text one by one."""
    try:
        normalizer, cutter = _description(backend.normalizer), _description(backend.pre_tokenizer)
        model, added = type(backend.model).__name__, backend.get_added_tokens_decoder().values()
        drawn = getattr(backend.model, "dropout", None)
    except (AttributeError, TypeError, ValueError):  # no tokenizer of the library, or one of another time
        return False
    # Added tokens that are no special ones are found in a text before it is cut.
    plain = model in ("BPE", "WordPiece") and not drawn and all(token.special for token in added)
    return plain and backend.encode_special_tokens is True and _is_local(normalizer) and _cuts(cutter)


def _description(part: Any) -> Mapping[str, Any]:
    return {} if part is None else json.loads(part.__getstate__())


def _is_local(normalizer: Mapping[str, Any]) -> bool:
    if normalizer.get("type") == "Sequence":
        return all(map(_is_local, normalizer["normalizers"]))
    return not normalizer or normalizer["type"] in _LOCAL or normalizer == _SPACES


def _cuts(cutter: Mapping[str, Any]) -> bool:
    if cutter.get("type") != "Sequence":
        return cutter.get("type") in ("BertPreTokenizer", "Whitespace", "WhitespaceSplit")
    first, *others = cutter["pretokenizers"]
    clip = first["type"] == "Split" and first["pattern"].get("Regex") in _CLIP_WORDS
    bytewise = all(other["type"] == "ByteLevel" and not other["add_prefix_space"] for other in others)
    return clip and bytewise and (first["behavior"], first["invert"]) == ("Removed", True)


# No caption is longer; a whole book would take minutes.
MOST_TOKENS = 4096
# Half of a pair alone cannot be encoded as UTF-8; one character replaces one, so that spans stay true.
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Tokens:
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

    @property
    def most(self) -> int:
        """Tokens of a caption that are read at all, in however many windows."""
        return max(self.room, MOST_TOKENS)


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


def literal_backend(tokenizer: Any) -> Any:
    """The Rust tokenizer behind a fast tokenizer, set to read a text as nothing but text.

    Without truncation and padding, and with the spelling of a special token inside a caption read as
    characters: a caption cannot end itself early.
    """
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = True
    return backend


def tokenise(backend: Any, text: str) -> Tokens:
    """The tokens of one caption."""
    encoding = backend.encode(_LONE_SURROGATE.sub("\ufffd", text), add_special_tokens=False)
    spans = close_spans(text, [_trimmed(text, span) for span in encoding.offsets])
    return Tokens(text, tuple(encoding.ids), spans)


def tokenise_all(backend: Any, texts: Sequence[str]) -> list[Tokens]:
    """The tokens of some captions; words that the tokenizer has met before do not go through it again."""
    memory, read = memory_of(backend), partial(_parts, backend)
    if memory is None:
        return [tokenise(backend, text) for text in texts]
    return [Tokens(text, *memory.parts(text, read)) if text.isascii() else tokenise(backend, text) for text in texts]


def _parts(backend: Any, word: str) -> Parts:
    tokens = tokenise(backend, word)
    return tokens.ids, tokens.spans, tuple(spelled_out(word, tokens.spans))


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
    plans = [_plan(caption, reading) for caption in captions]
    rows = [
        [*reading.prefix, *caption.ids[window.start : window.stop], *reading.suffix]
        for caption, plan in zip(captions, plans, strict=True)
        for window in plan
    ]
    windows, positions = _places(plans, lead=len(reading.prefix))
    width = reading.context if reading.full else 0
    return TextBatch(
        ids=_padded(rows, fill=reading.pad, width=width),
        attention=torch.from_numpy(_real(rows, width)),
        window_of=_padded(windows, fill=0),
        position=_padded(positions, fill=0),
        mask=torch.from_numpy(_real(windows)),
        windows=Windows(_own(plans), _shares(plans)),
        layout=tuple(_layout(caption, plan, reading) for caption, plan in zip(captions, plans, strict=True)),
    )


def unpack_tokens(
    states: Float[Tensor, "windows positions dim"], batch: TextBatch
) -> Float[Tensor, "batch points dim"]:
    """The state of every token of every caption, in caption order; padded places hold some other state."""
    return states[sent(batch.window_of, states.device), sent(batch.position, states.device)]


def unpack_pooled(pooled: Float[Tensor, "windows dim"], batch: TextBatch) -> Float[Tensor, "batch dim"]:
    """One unit vector per caption from one vector per window."""
    return join_windows(pooled, batch.windows)


def join_windows(pooled: Float[Tensor, "windows dim"], windows: Windows) -> Float[Tensor, "batch dim"]:
    """One unit vector per caption: the mean of its windows' unit vectors, weighted by the tokens they keep."""
    shares = sent(windows.shares, pooled.device).unsqueeze(-1)
    return unit((unit(pooled)[sent(windows.own, pooled.device)] * shares).sum(dim=1))


def _plan(caption: Tokens, reading: Reading) -> tuple[Window, ...]:
    room = reading.room
    if reading.long_text == "cut" or len(caption.ids) <= room:
        return plan_cut(len(caption.ids), room=room)
    return plan_windows(caption.text, caption.spans[: reading.most], room=room)


def _layout(caption: Tokens, plan: Sequence[Window], reading: Reading) -> TokenLayout:
    kept = plan[-1].last
    cut = len(caption.ids) - kept
    notes = token_warnings(caption.text, caption.ids, caption.spans, unknown=reading.unknown, spelled=caption.spelled)
    return TokenLayout(spans=caption.spans[:kept], windows=len(plan), cut=cut, warnings=notes)


def _places(plans: Sequence[Sequence[Window]], *, lead: int) -> tuple[list[list[int]], list[list[int]]]:
    """Window number and position of every kept token, caption by caption."""
    windows: list[list[int]] = []
    positions: list[list[int]] = []
    number = 0
    for plan in plans:
        windows.append([])
        positions.append([])
        for window in plan:
            windows[-1] += [number] * window.kept
            positions[-1] += range(lead + window.first - window.start, lead + window.last - window.start)
            number += 1
    return windows, positions


def _own(plans: Sequence[Sequence[Window]]) -> Int[Tensor, "batch parts"]:
    most = max(map(len, plans), default=0)
    if most == 1:
        return torch.arange(len(plans)).unsqueeze(1)
    firsts = [0, *accumulate(map(len, plans))]
    rows = [
        [first + part if part < len(plan) else first for part in range(most)]
        for first, plan in zip(firsts, plans, strict=False)
    ]
    return torch.tensor(rows, dtype=torch.long).reshape(len(plans), most)


def _shares(plans: Sequence[Sequence[Window]]) -> Float[Tensor, "batch parts"]:
    """Kept tokens of each window over all tokens; a text without tokens has one window and all its share."""
    most = max(map(len, plans), default=0)
    if most == 1:
        return torch.ones(len(plans), 1)
    totals = [sum(window.kept for window in plan) for plan in plans]
    rows = [
        [*(window.kept / total if total else 1.0 for window in plan), *[0.0] * (most - len(plan))]
        for plan, total in zip(plans, totals, strict=True)
    ]
    return torch.tensor(rows, dtype=torch.float32).reshape(len(plans), most)


def _padded(rows: Sequence[Sequence[int]], *, fill: int, width: int = 0) -> Int[Tensor, "rows longest"]:
    real = _real(rows, width)
    padded = np.full(real.shape, fill, dtype=np.int64)
    padded[real] = np.fromiter(chain.from_iterable(rows), np.int64)
    return torch.from_numpy(padded)


def _real(rows: Sequence[Sequence[int]], width: int = 0) -> Bool[np.ndarray, "rows longest"]:
    """True for what rows hold, False for their padding to the longest of them, or to `width` where that is more."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    return np.arange(max(width, lengths.max(initial=0))) < lengths[:, np.newaxis]
