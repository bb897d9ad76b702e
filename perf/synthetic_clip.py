"""Synthetic benchmark data: a CLIP checkpoint with random weights, JPEG files, captions, rows and tars."""

import io
import json
import random
import tarfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from os import cpu_count

import numpy as np
import torch
from PIL import Image
from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPTokenizerFast

WORDS = [
    "a", "the", "dog", "cat", "man", "woman", "child", "horse", "boat", "train", "red", "blue", "green",
    "small", "large", "old", "wooden", "white", "black", "on", "under", "near", "beside", "runs", "stands",
    "sits", "sleeps", "jumps", "holds", "rides", "eats", "grass", "street", "beach", "table", "house", "tree",
    "river", "field", "snow", "window", "chair", "ball", "hat", "umbrella", "bicycle", "kite", "plate", "cake",
    "bench", "bridge", "clock", "with", "and", "two", "three", "in", "front", "of", "behind",
]  # fmt: skip
LARGE = {
    "vision": {
        "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
        "patch_size": 14, "image_size": 224, "projection_dim": 768,
    },
    "text": {
        "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
        "projection_dim": 768,
    },
}  # fmt: skip
BASE = {
    "vision": {**LARGE["vision"], "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
               "num_attention_heads": 12, "patch_size": 32, "projection_dim": 512},
    "text": {**LARGE["text"], "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12,
             "num_attention_heads": 8, "projection_dim": 512},
}  # fmt: skip
SMALL = {
    "vision": {**LARGE["vision"], "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4,
               "num_attention_heads": 4, "patch_size": 32, "projection_dim": 256},
    "text": {**LARGE["text"], "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4,
             "num_attention_heads": 4, "projection_dim": 256},
}  # fmt: skip
TAR_ROWS = 4096
DISTINCT = 128  # number of distinct images; the others are links to them


def make_tokenizer(folder):
    """Write a CLIP tokenizer in which every word of the captions is one token; return its vocabulary size."""
    from tokenizers import pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens, merges = [*letters, *(f"{letter}</w>" for letter in letters)], []
    for word in WORDS:
        built = word[0]
        for number, letter in enumerate(word[1:], start=2):
            more = letter + ("</w>" if number == len(word) else "")
            merges.append(f"{built} {more}")
            built += more
            tokens.append(built)
    tokens = [*dict.fromkeys(tokens), "<|startoftext|>", "<|endoftext|>"]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *dict.fromkeys(merges)]) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "CLIPTokenizer", "model_max_length": 77}), encoding="utf-8"
    )
    CLIPTokenizerFast.from_pretrained(folder).save_pretrained(folder)
    return len(tokens)


def random_clip(device, sizes, vocabulary):
    """Return a CLIP model with random weights in bfloat16."""
    ids = {"bos_token_id": vocabulary - 2, "eos_token_id": vocabulary - 1, "pad_token_id": vocabulary - 1}
    text = {**sizes["text"], **ids, "vocab_size": vocabulary, "max_position_embeddings": 77}
    config = CLIPConfig(vision_config=sizes["vision"], text_config=text, projection_dim=sizes["text"]["projection_dim"])
    torch.manual_seed(0)
    with torch.device(device):
        model = CLIPModel(config).to(torch.bfloat16)
        for parameter in model.parameters():
            if parameter.ndim > 1:  # with the library's initialisation, all tokens would be nearly equal
                torch.nn.init.normal_(parameter, std=0.05)
    return model


def make_checkpoint(folder, device, sizes):
    """Write a CLIP checkpoint with random weights."""
    folder.mkdir()
    random_clip(device, sizes, make_tokenizer(folder)).save_pretrained(folder)
    edge = {"height": 224, "width": 224}
    CLIPImageProcessor(size={"shortest_edge": 224}, crop_size=edge).save_pretrained(folder)


def photograph(seed, size=(640, 480)):
    """Return a JPEG with smooth areas, edges and noise, of about the size of a photograph."""
    noise = np.random.RandomState(seed)
    coarse = Image.fromarray(noise.randint(0, 255, (12, 16, 3), dtype=np.uint8)).resize(size, Image.BICUBIC)
    blocks = Image.fromarray(noise.randint(0, 255, (24, 32, 3), dtype=np.uint8)).resize(size, Image.NEAREST)
    grain = noise.normal(0, 6, (size[1], size[0], 3))
    mixed = 0.6 * np.asarray(coarse) + 0.4 * np.asarray(blocks) + grain
    file = io.BytesIO()
    Image.fromarray(mixed.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=85)
    return file.getvalue()


def make_captions(count, seed=0):
    """Return captions of 8 to 14 words."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(8, 14))) for _ in range(count)]


def make_rows(folder, count, *, size=(640, 480), tars=True):
    """Write images, captions, a file of rows, and the same in tars."""
    with ProcessPoolExecutor(cpu_count()) as pool:
        contents = list(pool.map(partial(photograph, size=size), range(min(count, DISTINCT))))
    captions, images = make_captions(count), folder / "images"
    images.mkdir()
    paths = [images / f"{number:06d}.jpg" for number in range(count)]
    for number, path in enumerate(paths):
        if number < len(contents):
            path.write_bytes(contents[number])
        else:
            path.hardlink_to(paths[number % len(contents)])
    write_rows(folder / "rows.jsonl", paths, captions)
    if tars:
        make_tars(folder, paths, captions)
    return paths, captions


def write_rows(file, paths, captions):
    """Write image paths and captions as JSON lines."""
    rows = [{"image": f"images/{path.name}", "caption": text} for path, text in zip(paths, captions, strict=True)]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def make_lists(folder, paths, captions, rows):
    """Write files of `rows` rows with image paths: `list-00000.jsonl` and so on."""
    for first in range(0, len(paths), rows):
        part = slice(first, first + rows)
        write_rows(folder / f"list-{first // rows:05d}.jsonl", paths[part], captions[part])


def make_tars(folder, paths, captions, rows=TAR_ROWS):
    """Write images and captions into tars of `rows` samples."""
    contents = {number: path.read_bytes() for number, path in enumerate(paths[:DISTINCT])}
    for first in range(0, len(paths), rows):
        with tarfile.open(folder / f"{first // rows:05d}.tar", "w") as tar:
            for number in range(first, min(first + rows, len(paths))):
                parts = {"jpg": contents[number % len(contents)], "txt": captions[number].encode()}
                for suffix, content in parts.items():
                    member = tarfile.TarInfo(f"{number:06d}.{suffix}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
