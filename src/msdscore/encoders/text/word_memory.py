"""Words that a tokenizer has met before: captions of known words are put together from them, many times as fast.

It holds for tokenizers that cut a text at spaces before anything else: there the tokens of a word do not depend on
the words around it. Which ones do is read off their own description; of others every caption goes through them whole.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from msdscore.encoders.text.windows import Span

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
    """The words of one tokenizer; may be used by several threads."""

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
