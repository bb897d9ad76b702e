"""Tiny CLIP checkpoints with random weights, in the format of real ones."""

import json
from pathlib import Path

CONTEXT = 16  # so small that short captions need windows
IMAGE_SIZE = 32
PATCH_SIZE = 8
WIDTH = 32
PROJECTION = 24

_START, _END = "<|startoftext|>", "<|endoftext|>"
_MERGES = (("a", "t</w>"), ("c", "at</w>"), ("o", "g</w>"), ("d", "og</w>"), ("t", "h"), ("th", "e</w>"))


def make_tiny_clip(folder: Path, *, context: int = CONTEXT, seed: int = 0) -> Path:
    """Write a checkpoint with two layers per tower; any text can be encoded, since all bytes are in the vocabulary."""
    folder.mkdir(parents=True, exist_ok=True)
    _save_tokenizer(folder, context)
    _save_preprocessor(folder)
    _save_model(folder, context, seed)
    return folder


def byte_letters() -> list[str]:
    """Return the 256 printable characters that represent bytes in byte-level BPE."""
    from tokenizers import pre_tokenizers

    return sorted(pre_tokenizers.ByteLevel.alphabet())


def vocabulary() -> dict[str, int]:
    """Return all bytes (inside and at the end of a word), merged tokens, and two special tokens last."""
    letters = byte_letters()
    merged = [left + right for left, right in _MERGES]
    pieces = [*letters, *(letter + "</w>" for letter in letters), *merged, _START, _END]
    return {piece: number for number, piece in enumerate(pieces)}


def _save_tokenizer(folder: Path, context: int) -> None:
    from transformers import CLIPTokenizerFast

    (folder / "vocab.json").write_text(json.dumps(vocabulary(), ensure_ascii=False), encoding="utf-8")
    merges = "\n".join(["#version: 0.2", *(f"{left} {right}" for left, right in _MERGES)])
    (folder / "merges.txt").write_text(merges + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "CLIPTokenizer", "model_max_length": context}), encoding="utf-8"
    )
    CLIPTokenizerFast.from_pretrained(folder).save_pretrained(folder)


def _save_preprocessor(folder: Path) -> None:
    from transformers import CLIPImageProcessor

    CLIPImageProcessor(
        size={"shortest_edge": IMAGE_SIZE}, crop_size={"height": IMAGE_SIZE, "width": IMAGE_SIZE}
    ).save_pretrained(folder)


def _save_model(folder: Path, context: int, seed: int) -> None:
    import torch
    from transformers import CLIPConfig, CLIPModel

    tower = {"hidden_size": WIDTH, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    size = len(vocabulary())
    text = {
        **tower,
        "vocab_size": size,
        "max_position_embeddings": context,
        "projection_dim": PROJECTION,
        "bos_token_id": size - 2,
        "eos_token_id": size - 1,
        "pad_token_id": size - 1,
    }
    vision = {**tower, "image_size": IMAGE_SIZE, "patch_size": PATCH_SIZE, "projection_dim": PROJECTION}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=PROJECTION))
        for parameter in model.parameters():
            # With the library's initialisation, all tokens would be nearly equal.
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.2)
            else:
                torch.nn.init.normal_(parameter, mean=parameter.mean().item(), std=0.1)
    model.save_pretrained(folder)
