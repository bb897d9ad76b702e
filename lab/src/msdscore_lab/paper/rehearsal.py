"""Checkpoints with random weights in the format of the published ones, and small benchmarks.

They allow to test a reproduction offline; only the numbers differ.
"""

import json
import random
import string
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw

from msdscore.encoders.registry import find_row
from msdscore.errors import ConfigError, require
from msdscore_lab.benchmarks.readers.battles import HUMAN_ORDER

Shape = Mapping[str, Any]
_VIT_L = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16}
_BASE = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
_SMALL = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 8}
_LLAMA = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32}
_CLIP_TEXT = {"vocab_size": 49408, "max_position_embeddings": 77}

# From config.json of the published checkpoints; LongCLIP is an architecture of open_clip.
FULL: Mapping[str, Shape] = {
    "clip-b32": {
        "text": {**_SMALL, **_CLIP_TEXT}, "vision": {**_BASE, "image_size": 224, "patch_size": 32}, "projection": 512,
    },
    "clip-l14": {
        "text": {**_BASE, **_CLIP_TEXT}, "vision": {**_VIT_L, "image_size": 224, "patch_size": 14}, "projection": 768,
    },
    "longclip-l": {"architecture": "ViT-L-14-quickgelu", "context": 248},
    "remoteclip-l14": {"architecture": "ViT-L-14", "context": 77},
    "llama-7b": {"text": {**_LLAMA, "vocab_size": 32000, "max_position_embeddings": 2048}},
    "siglip2-base": {
        "text": {**_BASE, "vocab_size": 256000, "max_position_embeddings": 64},
        "vision": {**_BASE, "image_size": 224, "patch_size": 16},
    },
    "llava-1.5-7b": {
        "text": {**_LLAMA, "vocab_size": 32064, "max_position_embeddings": 4096},
        "vision": {**_VIT_L, "image_size": 336, "patch_size": 14, "projection_dim": 768},
    },
}  # fmt: skip


def write_checkpoint(folder: Path, name: str, shape: Shape | None = None, *, device: str = "cpu") -> Path:
    """Write one checkpoint with random weights drawn on `device`, full-size unless another shape is passed."""
    shape = FULL[name] if shape is None else shape
    folder.mkdir(parents=True, exist_ok=True)
    if "architecture" in shape:
        _write_longclip(folder, find_row(name).options["file"], shape, device)
    else:
        _WRITERS[name.split("-")[0]](folder, shape, device)
    return folder


def _write_clip(folder: Path, shape: Shape, device: str) -> None:
    transformers = require("transformers", extra="hf")
    size, start, end = _save_clip_tokenizer(folder, **_sizes(shape))
    _save_processor(folder, "CLIPImageProcessor", shape["vision"]["image_size"], crop=True)
    text = {**shape["text"], "bos_token_id": start, "eos_token_id": end, "pad_token_id": end, "vocab_size": size}
    text["projection_dim"] = shape["projection"]
    vision = {**shape["vision"], "projection_dim": shape["projection"]}
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=shape["projection"])
    _save_model(transformers.CLIPModel, config, folder, device)


def _write_siglip(folder: Path, shape: Shape, device: str) -> None:
    transformers = require("transformers", extra="hf")
    names = ["<pad>", "<eos>", "<bos>", "<unk>"]
    extra = {"tokenizer_class": "GemmaTokenizer", "add_bos_token": False, "add_eos_token": True}
    sizes = _sizes(shape)
    _save_byte_tokenizer(
        folder, names, "$A <eos>", sizes["vocabulary"], {**extra, "model_max_length": sizes["context"]}
    )
    _save_processor(folder, "SiglipImageProcessor", shape["vision"]["image_size"], crop=False)
    text = {**shape["text"], "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
    text["projection_size"] = shape["vision"]["hidden_size"]
    config = transformers.SiglipConfig(text_config=text, vision_config=dict(shape["vision"]))
    _save_model(transformers.SiglipModel, config, folder, device)


def _write_llava(folder: Path, shape: Shape, device: str) -> None:
    transformers = require("transformers", extra="hf")
    extra = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True}
    _save_byte_tokenizer(folder, ["<unk>", "<bos>", "<eos>", "<pad>"], "<bos> $A", _sizes(shape)["vocabulary"], extra)
    _save_processor(folder, "CLIPImageProcessor", shape["vision"]["image_size"], crop=True)
    text = {**shape["text"], "model_type": "llama"}
    vision = {**shape["vision"], "model_type": "clip_vision_model"}
    config = transformers.LlavaConfig(text_config=text, vision_config=vision)
    _save_model(transformers.LlavaForConditionalGeneration, config, folder, device)


def _write_llama(folder: Path, shape: Shape, device: str) -> None:
    transformers = require("transformers", extra="hf")
    extra = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True}
    _save_byte_tokenizer(folder, ["<unk>", "<bos>", "<eos>", "<pad>"], "<bos> $A", _sizes(shape)["vocabulary"], extra)
    config = transformers.LlamaConfig(**shape["text"], bos_token_id=1, eos_token_id=2, pad_token_id=3)
    _save_model(transformers.LlamaForCausalLM, config, folder, device)


_WRITERS: Mapping[str, Callable[[Path, Shape, str], None]] = {
    "clip": _write_clip,
    "longclip": _write_clip,
    "siglip2": _write_siglip,
    "llava": _write_llava,
    "llama": _write_llama,
}


def _write_longclip(folder: Path, file: str, shape: Shape, device: str) -> None:
    """Write a state dict of open_clip; that of LongCLIP has two position embeddings."""
    open_clip = require("open_clip", extra="openclip")
    published = open_clip.get_model_config(shape["architecture"])
    if published is None:
        raise ConfigError(f"open_clip has no architecture {shape['architecture']!r}; update open_clip_torch")
    config = deepcopy(published)
    config["text_cfg"]["context_length"] = shape["context"]
    with torch.device("meta"):
        model = open_clip.CLIP(**config)
    model = _drawn(model, device)
    state = dict(model.state_dict())
    if shape["context"] > 77:
        state["positional_embedding_res"] = state["positional_embedding"].clone()
    torch.save({name: tensor.cpu() for name, tensor in state.items()}, folder / file)


def _save_model(kind: Any, config: Any, folder: Path, device: str) -> None:
    with torch.device("meta"):
        model = kind(config)
    _drawn(model, device).save_pretrained(folder)


def _drawn(model: Any, device: str, seed: int = 0) -> Any:
    """Initialise the weights at a scale at which activations neither vanish nor overflow half precision."""
    model = model.to(torch.float16).to_empty(device=device)
    generator = torch.Generator(device).manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim < 2:  # norms near one, biases and the class token near zero
                centre = 1.0 if name.endswith("weight") and "embedding" not in name else 0.0
                parameter.normal_(centre, 0.02, generator=generator)
            else:
                inputs = parameter[0].numel()
                parameter.normal_(0.0, inputs**-0.5, generator=generator)
    return model


def _sizes(shape: Shape) -> dict[str, int]:
    return {"vocabulary": shape["text"]["vocab_size"], "context": shape["text"]["max_position_embeddings"]}


def _save_clip_tokenizer(folder: Path, *, vocabulary: int, context: int) -> tuple[int, int, int]:
    """Save a CLIP tokenizer: all bytes inside and at the end of words, unused tokens, two special tokens last."""
    alphabet = require("tokenizers.pre_tokenizers", extra="hf").ByteLevel.alphabet()
    letters = sorted(alphabet)
    names = [*letters, *(letter + "</w>" for letter in letters)]
    names += [f"<unused{number}>" for number in range(vocabulary - 2 - len(names))]
    names += ["<|startoftext|>", "<|endoftext|>"]
    _write_json(folder / "vocab.json", {piece: number for number, piece in enumerate(names)})
    (folder / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    _write_json(folder / "tokenizer_config.json", {"tokenizer_class": "CLIPTokenizer", "model_max_length": context})
    require("transformers", extra="hf").CLIPTokenizerFast.from_pretrained(folder).save_pretrained(folder)
    return len(names), len(names) - 2, len(names) - 1


def _save_byte_tokenizer(folder: Path, names: list[str], template: str, size: int, config: Mapping[str, Any]) -> None:
    """Save a tokenizer of letters with byte fallback, and unused tokens up to the vocabulary size."""
    tokenizers = require("tokenizers", extra="hf")
    tokens = [*names, *(f"<0x{number:02X}>" for number in range(256)), "▁", *string.ascii_letters]
    tokens += [f"<unused{number}>" for number in range(size - len(tokens))]
    table = {token: number for number, token in enumerate(tokens)}
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.BPE(table, [], unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = tokenizers.normalizers.Replace(" ", "▁")
    marks = [(name, table[name]) for name in template.split() if name in table]
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(template, special_tokens=marks)
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {f"{name.strip('<>')}_token": name for name in names}
    _write_json(folder / "tokenizer_config.json", {**config, **special})


def _save_processor(folder: Path, kind: str, side: int, *, crop: bool) -> None:
    square = {"height": side, "width": side}
    sizes = {"size": {"shortest_edge": side}, "crop_size": square} if crop else {"size": square}
    getattr(require("transformers", extra="hf"), kind)(**sizes).save_pretrained(folder)


_COLOURS = ("red", "green", "blue", "yellow", "purple", "orange", "white", "black")
_SHAPES = ("square", "ball", "box")
_SYSTEMS = tuple(name for name in HUMAN_ORDER if name != "human")[:3]  # model names of CapArena
_SUBSETS = ("replace_obj", "replace_att", "replace_rel", "swap_obj", "swap_att", "add_obj", "add_att")


def write_benchmarks(folder: Path, *, images: int = 8, size: tuple[int, int] = (320, 240)) -> Path:
    """Write benchmarks of drawn scenes, three in their released formats, the others as rows, and all other inputs.

    SugarCrepe has seven pairs per image, the others one item or a few.
    """
    draw = random.Random(0)
    scenes = [(draw.choice(_COLOURS), draw.choice(_COLOURS), draw.choice(_SHAPES)) for _ in range(images)]
    _write_sugarcrepe(folder / "sugarcrepe", scenes, size)
    _write_expert(folder / "flickr8k-expert", scenes, size)
    _write_pascal(folder / "pascal50s", scenes, size)
    for name in ("flickr8k-cf", "composite", "caparena", "docent", "coco-cf"):
        _write_rows(folder / name, name, scenes, size)
    for name in ("rsicd", "rocov2"):
        _write_captions(folder / name / f"{name}.jsonl", scenes, size)
    _write_captions(folder / "captions.jsonl", scenes, size)
    _write_captions(folder / "captioners.jsonl", scenes, size, systems=("GPT-4o-mini", "LLaVA-1.5-7B"))
    _write_chat(folder, scenes, size)
    return folder


def _write_captions(
    path: Path, scenes: list[tuple[str, str, str]], size: tuple[int, int], systems: tuple[str, ...] = ()
) -> None:
    """Write images with captions, one per system if there are several."""
    names = [f"scene_{number}.jpg" for number in range(len(scenes))]
    _draw_all(path.parent, names, scenes, size)
    rows: list[dict[str, Any]] = [
        {"id": f"{number} {system}".strip(), "image": name, "caption": f"{_caption(scene)}{' ' + system if at else ''}"}
        | ({"system": system} if system else {})
        for number, (name, scene) in enumerate(zip(names, scenes, strict=True))
        for at, system in enumerate(systems or ("",))
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _write_chat(folder: Path, scenes: list[tuple[str, str, str]], size: tuple[int, int]) -> None:
    """Write captioned images in the format of CC3M-595K: `chat.json` and `images`."""
    names = [f"{number:09d}.jpg" for number in range(len(scenes))]
    _draw_all(folder / "images", names, scenes, size)
    chats = [
        {"id": name, "image": name, "conversations": [
            {"from": "human", "value": "<image>\nDescribe the image."}, {"from": "gpt", "value": _caption(scene)}]}
        for name, scene in zip(names, scenes, strict=True)
    ]  # fmt: skip
    _write_json(folder / "chat.json", chats)


def _write_sugarcrepe(folder: Path, scenes: list[tuple[str, str, str]], size: tuple[int, int]) -> None:
    _draw_all(folder / "val2017", [f"{number:012d}.jpg" for number in range(len(scenes))], scenes, size)
    for index, subset in enumerate(_SUBSETS):
        rows = {
            str(2 * number): {
                "filename": f"{number:012d}.jpg",
                "caption": _caption(scene),
                "negative_caption": _caption(scenes[(number + index + 1) % len(scenes)]) + " on a table",
            }
            for number, scene in enumerate(scenes)
        }
        _write_json(folder / "data" / f"{subset}.json", rows)


def _write_expert(folder: Path, scenes: list[tuple[str, str, str]], size: tuple[int, int]) -> None:
    names = [f"{number}_ab.jpg" for number in range(len(scenes))]
    _draw_all(folder / "Flicker8k_Dataset", names, scenes, size)
    tokens = [
        f"{name}#{k}\t{_caption(scene)} number {number} {k} ."
        for number, (name, scene) in enumerate(zip(names, scenes, strict=True))
        for k in range(5)
    ]
    ratings = [
        f"{name}\t{names[(number + step) % len(names)]}#{step}\t{rating}\t{rating}\t{max(1, rating - 1)}"
        for number, name in enumerate(names)
        for step, rating in ((1, 3), (2, 2), (3, 1))
    ]
    (folder / "Flickr8k.token.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    (folder / "ExpertAnnotations.txt").write_text("\n".join(ratings) + "\n", encoding="utf-8")


def _write_pascal(folder: Path, scenes: list[tuple[str, str, str]], size: tuple[int, int]) -> None:
    names = [f"2008_{number:06d}.jpg" for number in range(len(scenes))]
    _draw_all(folder / "JPEGImages", names, scenes, size)
    categories: dict[str, list[dict[str, Any]]] = {category: [] for category in ("HC", "HI", "HM", "MM")}
    for number, (name, scene) in enumerate(zip(names, scenes, strict=True)):
        wrong = _caption(scenes[(number + 1) % len(scenes)]) + " in the rain"
        row = {"image": name, "captions": [wrong, _caption(scene)], "label": 1, "references": [_caption(scene)] * 5}
        list(categories.values())[number % len(categories)].append(row)
    _write_json(folder / "pascal_50s.json", categories)


def _write_rows(folder: Path, name: str, scenes: list[tuple[str, str, str]], size: tuple[int, int]) -> None:
    """Write a benchmark as rows, which every reader accepts."""
    names = [f"{number}.jpg" for number in range(len(scenes))]
    _draw_all(folder / "images", names, scenes, size)
    rows = []
    for number, (file, scene) in enumerate(zip(names, scenes, strict=True)):
        right, wrong = _caption(scene), _caption(scenes[(number + 1) % len(scenes)]) + " in the rain"
        row: dict[str, Any] = {"id": str(number), "image": file, "subset": ("easy", "hard")[number % 2]}
        aspects = dict.fromkeys(("mistakes", "omissions", "overall_quality"), 1 - number % 3)
        first, second = number % 3, (number + 1) % 3  # systems in the order of their human rank
        battle: dict[str, Any] = {
            "caption_a": right, "caption_b": wrong, "winner": "a" if first < second else "b",
            "system_a": _SYSTEMS[first], "system_b": _SYSTEMS[second], "level": f"level {number % 4 + 1}",
        }  # fmt: skip
        kinds: dict[str, dict[str, Any]] = {
            "caparena": battle, "docent": battle | {"aspects": aspects},
            "coco-cf": {"caption": right, "negative_caption": wrong},
        }  # fmt: skip
        row |= kinds.get(name, {"caption": (right, wrong)[number % 2], "ratings": [1.0 - number % 2]})
        rows.append(json.dumps(row))
    (folder / f"{name.replace('-', '_')}.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")


def _draw_all(folder: Path, names: list[str], scenes: list[tuple[str, str, str]], size: tuple[int, int]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    width, height = size
    for number, (name, (ground, colour, shape)) in enumerate(zip(names, scenes, strict=True)):
        image = Image.new("RGB", size, ground)
        pen, left, top = ImageDraw.Draw(image), number * 7 % (width // 2), number * 5 % (height // 2)
        outline = (left, top, left + width // 3, top + height // 3)
        (pen.ellipse if shape == "ball" else pen.rectangle)(outline, fill=colour)
        image.save(folder / name, quality=90)


def _caption(scene: tuple[str, str, str]) -> str:
    ground, colour, shape = scene
    return f"a {colour} {shape} before a {ground} wall"


def _write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
