"""Tokenizers of the library `tokenizers`: how they read captions, and which of them may cache the tokens of words."""

import json
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from msdscore.core.arrays import Array, Float, from_numpy
from msdscore.encoders import tokens
from msdscore.encoders.tokens import TextBatch, Tokens, WordTokens, tokenise
from msdscore.errors import WeightsError, require

# Normalisers that change an ASCII character whatever its neighbours, or spaces into other spaces.
_LOCAL = frozenset(("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "BertNormalizer"))
SPACES = (r"\s+", " ")
_SPACES = {"type": "Replace", "pattern": {"Regex": SPACES[0]}, "content": SPACES[1]}
# CLIP's pattern of a word; some files list the special tokens before it. None of it contains a space.
CLIP_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
_CLIP_CUTS = (CLIP_WORDS, rf"<\|startoftext\|>|<\|endoftext\|>|{CLIP_WORDS}")


def cuts_at_spaces(backend: Any) -> bool:
    """Whether a tokenizer is known to tokenise the words of an ASCII text independently of each other."""
    try:
        normalizer, cutter = (
            {} if part is None else json.loads(part.__getstate__())
            for part in (backend.normalizer, backend.pre_tokenizer)
        )
        model, added = type(backend.model).__name__, backend.get_added_tokens_decoder().values()
        drawn = getattr(backend.model, "dropout", None)
    except (AttributeError, TypeError, ValueError):  # not a tokenizer of the library, or one of another version
        return False
    # Added tokens that are not special are matched before a text is split.
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


def literal_backend(backend: Any) -> Any:
    """Configure a Rust tokenizer to read a text literally.

    Truncation and padding are disabled, and the spelling of a special token inside a caption is read as
    characters: a caption cannot terminate itself early.
    """
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = True
    return backend


def normalise_first(backend: Any, *steps: str | tuple[str, str]) -> None:
    """Prepend steps to a tokenizer's normaliser: normalisers by name, or a pattern and its replacement.

    Texts are normalised as in a model's training inside the tokenizer, so that spans remain valid.
    """
    library, normalizers = (require(name, extra="hf") for name in ("tokenizers", "tokenizers.normalizers"))
    present = [backend.normalizer] if backend.normalizer else []
    first = [
        getattr(normalizers, step)() if isinstance(step, str) else normalizers.Replace(library.Regex(step[0]), step[1])
        for step in steps
    ]
    backend.normalizer = normalizers.Sequence([*first, *present])


# Words that each tokenizer has seen; None if words depend on their context.
_known: WeakKeyDictionary[Any, dict[str, WordTokens] | None] = WeakKeyDictionary()


def tokenise_all(backend: Any, texts: Sequence[str]) -> list[Tokens]:
    """Tokenise captions; word by word if the tokenizer does the same. Thread-safe."""
    if backend not in _known:
        _known[backend] = {} if cuts_at_spaces(backend) else None
    known = _known[backend]
    return [tokenise(backend, text) for text in texts] if known is None else tokens.tokenise_all(backend, texts, known)


def special_ids(backend: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids that a tokenizer adds before and after a text.

    Raises:
        WeightsError: it changes the text when it adds them.
    """
    # Some checkpoints enable padding to a fixed length in their file.
    backend.no_padding()
    backend.no_truncation()
    inner = backend.encode("a", add_special_tokens=False).ids
    whole = backend.encode("a", add_special_tokens=True).ids
    for start in range(len(whole) - len(inner) + 1):
        if whole[start : start + len(inner)] == inner:
            return tuple(whole[:start]), tuple(whole[start + len(inner) :])
    raise WeightsError("the tokenizer changes a text when it adds special tokens; use another checkpoint")


def unpack_tokens(states: Float[Array, "windows positions dim"], batch: TextBatch) -> Float[Array, "batch points dim"]:
    """The state of every token of every caption, in caption order; padded positions have an arbitrary state."""
    return states[from_numpy(batch.window_of, like=states), from_numpy(batch.position, like=states)]
