"""Tiny tokenizers in the formats of real checkpoints."""

import json
import string
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

WORDS = ("a", "the", "cat", "dog", "mat", "sat", "on", "red", "ball")
_BYTES = [f"<0x{number:02X}>" for number in range(256)]


def _write(folder: Path, name: str, content: dict) -> None:
    (folder / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def save_unigram(folder: Path, context: int) -> int:
    """Save a SigLIP tokenizer: unigram, padded with the end token; its slow class needs an extra library."""
    letters = sorted({*string.ascii_letters, *string.digits, *"éàß日本語.,!-"})
    words = [(f"▁{word}", -2.0) for word in WORDS]
    pieces = [
        ("<pad>", 0.0),
        ("</s>", 0.0),
        ("<unk>", 0.0),
        ("▁", -4.0),
        *words,
        *((letter, -6.0) for letter in letters),
    ]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=2))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"eos_token": "</s>", "pad_token": "</s>", "unk_token": "<unk>", "model_input_names": ["input_ids"]}
    _write(
        folder, "tokenizer_config.json", {"tokenizer_class": "SiglipTokenizer", "model_max_length": context, **names}
    )
    return len(pieces)


def _merged(words: tuple[str, ...], lead: str) -> tuple[list[str], list[tuple[str, str]]]:
    """Return tokens and merges that build every word from left to right."""
    pieces: list[str] = []
    merges: list[tuple[str, str]] = []
    for word in words:
        built = lead
        for letter in word:
            if built and built + letter not in pieces:
                merges.append((built, letter))
                pieces.append(built + letter)
            built += letter
    return pieces, merges


def save_gemma(folder: Path, context: int) -> int:
    """Save a SigLIP 2 tokenizer: byte fallback, an end token but no start token."""
    pieces, merges = _merged(WORDS, "▁")
    names = ["<pad>", "<eos>", "<bos>", "<unk>", *_BYTES, "▁", *string.ascii_letters, *pieces]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(names))}
    model = models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.post_processor = processors.TemplateProcessing("$A <eos>", special_tokens=[("<eos>", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "GemmaTokenizer", "add_bos_token": False, "add_eos_token": True, "pad_token": "<pad>"}
    names_of = {"eos_token": "<eos>", "bos_token": "<bos>", "unk_token": "<unk>", "padding_side": "right"}
    _write(folder, "tokenizer_config.json", {**config, **names_of, "model_max_length": context})
    return len(vocabulary)


def save_llama(folder: Path) -> int:
    """Save a LLaVA-1.5 tokenizer: a start token, a space before the first word, byte fallback."""
    pieces, merges = _merged(WORDS, "▁")
    names = ["<unk>", "<s>", "</s>", *_BYTES, "▁", *string.ascii_letters, *pieces]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(names))}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    names_of = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<unk>"}
    _write(folder, "tokenizer_config.json", {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, **names_of})
    return len(vocabulary)


def save_qwen(folder: Path) -> int:
    """Save a Qwen2 tokenizer: byte-level, without start and end tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces, merges = _merged(WORDS, "Ġ")
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys([*letters, *pieces, "<|endoftext|>"]))}
    _write(folder, "vocab.json", vocabulary)
    lines = ["#version: 0.2", *(f"{left} {right}" for left, right in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    names_of = {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>", "bos_token": None}
    _write(folder, "tokenizer_config.json", {"tokenizer_class": "Qwen2Tokenizer", **names_of})
    return len(vocabulary)


def save_bert(folder: Path) -> int:
    """Save a tokenizer of BLIP and BiomedCLIP: lower-case word pieces."""
    from transformers import BertTokenizerFast

    letters = string.ascii_lowercase + string.digits + ".,!'日本語"
    rest = [*WORDS, *letters, *(f"##{letter}" for letter in letters)]
    pieces = list(dict.fromkeys(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *rest]))
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    _write(folder, "tokenizer_config.json", {"tokenizer_class": "BertTokenizer", "do_lower_case": True})
    BertTokenizerFast.from_pretrained(folder).save_pretrained(folder)
    return len(pieces)
