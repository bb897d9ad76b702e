"""Tokenizers of open_clip models, with character spans, and how their text towers read."""

from collections.abc import Mapping
from typing import Any

from msdscore.encoders.loading.checkpoints import Checkpoint, find_settings
from msdscore.encoders.loading.transformers import load_tokenizer
from msdscore.encoders.text.tokens import Reading, literal_backend, special_ids
from msdscore.errors import ConfigError, require

# How CLIP cuts a text into words before pairs of bytes are merged.
_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
_PUNCTUATION = r"""[!-/:-@\[-^`{-~]"""  # without the underscore, which becomes a space


def load_reader(config: Mapping[str, Any], checkpoint: Checkpoint, long_text: str) -> tuple[Any, Reading]:
    """The tokenizer of a `text_cfg` and how its tower reads.

    Raises:
        ConfigError: a kind of tokenizer that is not understood.
        WeightsError: its files are missing and cannot be fetched.
    """
    context = int(config.get("context_length", 77))
    extras = dict(config.get("tokenizer_kwargs") or {})
    clean = extras.pop("clean", None)
    if config.get("tokenizer_mode") or extras:
        raise ConfigError(f"this open_clip tokenizer is not understood: {config.get('tokenizer_mode') or extras}")
    if not config.get("hf_tokenizer_name"):
        return _simple(context, long_text)
    # The files in the folder come first: that is what the model was published with.
    own = any((checkpoint.folder / name).is_file() for name in ("tokenizer.json", "vocab.txt"))
    tokenizer = load_tokenizer(checkpoint if own else find_settings(config["hf_tokenizer_name"]))
    backend = literal_backend(tokenizer)
    _clean(backend, clean or "whitespace")
    prefix, suffix = special_ids(backend)
    # A transformers tower masks its padding; open_clip's own ones read it.
    full = not config.get("hf_model_name")
    return backend, Reading(context, prefix, suffix, int(tokenizer.pad_token_id), long_text, full)


def _simple(context: int, long_text: str) -> tuple[Any, Reading]:
    """CLIP's own tokenizer: the table comes with open_clip, the spans from the tokenizers library."""
    tokenizers = require("tokenizers", extra="hf")
    normalizers, pre_tokenizers = (
        require(f"tokenizers.{part}", extra="hf") for part in ("normalizers", "pre_tokenizers")
    )
    table = require("open_clip.tokenizer", extra="openclip").SimpleTokenizer()
    model = require("tokenizers.models", extra="hf").BPE(
        vocab=table.encoder, merges=list(table.bpe_ranks), end_of_word_suffix="</w>", continuing_subword_prefix=""
    )
    backend = tokenizers.Tokenizer(model)
    spaces = normalizers.Replace(tokenizers.Regex(r"\s+"), " ")
    backend.normalizer = normalizers.Sequence([normalizers.NFC(), spaces, normalizers.Lowercase()])
    words = pre_tokenizers.Split(tokenizers.Regex(_WORDS), behavior="removed", invert=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    return backend, Reading(context, (table.sot_token_id,), (table.eot_token_id,), 0, long_text, full=True)


def _clean(backend: Any, kind: str) -> None:
    """Prepare texts as the model's training did; inside the tokenizer, so that spans stay true."""
    normalizers = require("tokenizers.normalizers", extra="hf")
    regex = require("tokenizers", extra="hf").Regex
    steps = [normalizers.Replace(regex(r"\s+"), " "), normalizers.Strip()]
    if kind in ("lower", "canonicalize"):
        steps.insert(0, normalizers.Lowercase())
    if kind == "canonicalize":
        steps[:0] = [normalizers.Replace("_", " "), normalizers.Replace(regex(_PUNCTUATION), "")]
    own = [backend.normalizer] if backend.normalizer else []
    backend.normalizer = normalizers.Sequence([*steps, *own])
