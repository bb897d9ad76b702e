"""Checkpoints with random weights in the format of the published ones, to test a reproduction offline."""

import json
import shutil
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch

from msdscore.encoders.registry import find_row
from msdscore.errors import ConfigError, require
from msdscore_lab.paper.rehearsal_data import words

Shape = Mapping[str, Any]
_VIT_L = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16}
_BASE = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
_SMALL = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 8}
_LLAMA = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32}
_QWEN = {
    "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
    "num_key_value_heads": 4, "max_position_embeddings": 32768,
}  # fmt: skip
_ONEVISION = {
    "text": {**_QWEN, "vocab_size": 152000},
    "vision": {
        "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 26, "num_attention_heads": 16,
        "image_size": 384, "patch_size": 14,
    },
}  # fmt: skip
_CLIP_TEXT = {"vocab_size": 49408, "max_position_embeddings": 77}

_CHAT = (
    "{% for turn in messages %}USER: {% for part in turn['content'] %}"
    "{% if part['type'] == 'image' %}<image>\n{% else %}{{ part['text'] }}{% endif %}{% endfor %} {% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)

# From the configurations of the published checkpoints; LongCLIP and RemoteCLIP are architectures of open_clip.
FULL: Mapping[str, Shape] = {
    "clip-b32": {
        "text": {**_SMALL, **_CLIP_TEXT}, "vision": {**_BASE, "image_size": 224, "patch_size": 32}, "projection": 512,
    },
    "clip-l14": {
        "text": {**_BASE, **_CLIP_TEXT}, "vision": {**_VIT_L, "image_size": 224, "patch_size": 14}, "projection": 768,
    },
    "longclip-l": {"architecture": "ViT-L-14-quickgelu", "context": 248},
    "remoteclip-l14": {"architecture": "ViT-L-14", "context": 77},
    "biomedclip": {
        "vision": {"timm_model_name": "vit_base_patch16_224", "image_size": 224}, "projection": 512,
        "text": {**_BASE, "vocab_size": 30522, "max_position_embeddings": 512}, "context": 256,
    },
    "llama-7b": {"text": {**_LLAMA, "vocab_size": 32000, "max_position_embeddings": 2048}},
    "siglip2-base": {
        "text": {**_BASE, "vocab_size": 256000, "max_position_embeddings": 64},
        "vision": {**_BASE, "image_size": 224, "patch_size": 16},
    },
    "llava-1.5-7b": {
        "text": {**_LLAMA, "vocab_size": 32064, "max_position_embeddings": 4096},
        "vision": {**_VIT_L, "image_size": 336, "patch_size": 14, "projection_dim": 768},
    },
    "llava-onevision-7b": _ONEVISION, "llava-critic-7b": _ONEVISION,  # the latter as a folder of transformers
    "qwen2.5-vl-7b": {
        "text": {**_QWEN, "vocab_size": 152064, "mrope_section": [16, 24, 24]},
        "vision": {
            "hidden_size": 1280, "intermediate_size": 3420, "depth": 32, "num_heads": 16, "out_hidden_size": 3584,
            "patch_size": 14, "spatial_merge_size": 2, "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31],
        },
    },
}  # fmt: skip


def write_checkpoint(folder: Path, name: str, shape: Shape | None = None, *, device: str = "cpu") -> Path:
    """Write one checkpoint with random weights drawn on `device`, full-size unless another shape is passed.

    The folder appears complete or not at all.
    """
    shape = FULL[name] if shape is None else shape
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    if "architecture" in shape:
        _write_openclip(partial, find_row(name).options["file"], shape, device)
    else:
        _WRITERS[name if name in _WRITERS else name.split("-")[0]](partial, shape, device)
    partial.rename(folder)
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
    """Write a chat model: judges and FLEUR ask it questions."""
    transformers = require("transformers", extra="hf")
    extra = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True}
    names = ["<unk>", "<bos>", "<eos>", "<pad>", "<image>"]
    _save_byte_tokenizer(folder, names, "<bos> $A", _sizes(shape)["vocabulary"], extra)
    _save_processor(folder, "CLIPImageProcessor", shape["vision"]["image_size"], crop=True)
    text = {**shape["text"], "model_type": "llama", "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3}
    vision = {**shape["vision"], "model_type": "clip_vision_model"}
    config = transformers.LlavaConfig(text_config=text, vision_config=vision, image_token_index=names.index("<image>"))
    transformers.LlavaProcessor(
        image_processor=transformers.CLIPImageProcessor.from_pretrained(folder),
        tokenizer=transformers.AutoTokenizer.from_pretrained(folder), chat_template=_CHAT,
        patch_size=shape["vision"]["patch_size"], vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
    ).save_pretrained(folder)  # fmt: skip
    _save_model(transformers.LlavaForConditionalGeneration, config, folder, device)


def _write_onevision(folder: Path, shape: Shape, device: str) -> None:
    transformers = require("transformers", extra="hf")
    size, side = _save_qwen_tokenizer(folder, shape["text"]["vocab_size"]), shape["vision"]["image_size"]
    canvases = [[rows * side, columns * side] for rows in range(1, 7) for columns in range(1, 7)]
    half = [0.5, 0.5, 0.5]
    transformers.LlavaOnevisionImageProcessor(
        size={"height": side, "width": side}, image_grid_pinpoints=canvases, image_mean=half, image_std=half
    ).save_pretrained(folder)
    config = transformers.LlavaOnevisionConfig(
        text_config={**shape["text"], "model_type": "qwen2", "vocab_size": size, "rope_theta": 1e6},
        vision_config={**shape["vision"], "model_type": "siglip_vision_model", "vision_use_head": False},
        image_grid_pinpoints=canvases, vision_feature_layer=-1, vision_feature_select_strategy="full",
        vision_aspect_ratio="anyres_max_9",
    )  # fmt: skip
    _save_model(transformers.LlavaOnevisionForConditionalGeneration, config, folder, device)


def _write_qwen(folder: Path, shape: Shape, device: str) -> None:
    transformers = require("transformers", extra="hf")
    text, vision = dict(shape["text"]), shape["vision"]
    text |= {"vocab_size": _save_qwen_tokenizer(folder, text["vocab_size"]), "rope_theta": 1e6}
    text["rope_scaling"] = {"type": "default", "mrope_section": text.pop("mrope_section")}
    side = vision["patch_size"] * vision["spatial_merge_size"]
    transformers.Qwen2VLImageProcessor(
        patch_size=vision["patch_size"], merge_size=vision["spatial_merge_size"], min_pixels=4 * side**2,
        max_pixels=16384 * side**2,
    ).save_pretrained(folder)  # fmt: skip
    config = transformers.Qwen2_5_VLConfig(text_config=text, vision_config=dict(vision))
    _save_model(transformers.Qwen2_5_VLForConditionalGeneration, config, folder, device)


def _write_llama(folder: Path, shape: Shape, device: str) -> None:
    transformers = require("transformers", extra="hf")
    extra = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True}
    _save_byte_tokenizer(folder, ["<unk>", "<bos>", "<eos>", "<pad>"], "<bos> $A", _sizes(shape)["vocabulary"], extra)
    config = transformers.LlamaConfig(**shape["text"], bos_token_id=1, eos_token_id=2, pad_token_id=3)
    _save_model(transformers.LlamaForCausalLM, config, folder, device)


def _write_biomedclip(folder: Path, shape: Shape, device: str) -> None:
    """Write a folder as open_clip publishes it: a timm tower, and a BERT whose configuration is in `text`."""
    open_clip, transformers = require("open_clip", extra="openclip"), require("transformers", extra="hf")
    _save_bert_tokenizer(folder, shape["text"]["vocab_size"])
    transformers.BertConfig(**shape["text"]).save_pretrained(folder / "text")
    text = {
        "hf_model_name": "text", "hf_tokenizer_name": "text", "hf_proj_type": "mlp",
        "hf_pooler_type": "cls_last_hidden_state_pooler", "context_length": shape["context"],
    }  # fmt: skip
    vision = {"timm_pool": "", "timm_proj": "linear", **shape["vision"]}
    config = {"embed_dim": shape["projection"], "vision_cfg": vision, "text_cfg": text}
    own = {**text, "hf_model_name": str(folder / "text"), "hf_model_pretrained": False}
    # Not on the meta device, on which timm cannot build its towers.
    model = open_clip.CustomTextCLIP(**{**config, "vision_cfg": dict(vision), "text_cfg": own})
    state = {name: tensor.contiguous().cpu() for name, tensor in _drawn(model, device).state_dict().items()}
    require("safetensors.torch", extra="hf").save_file(state, folder / "open_clip_model.safetensors")
    mean, std = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
    _write_json(folder / "open_clip_config.json", {"model_cfg": config, "preprocess_cfg": {"mean": mean, "std": std}})


_WRITERS: Mapping[str, Callable[[Path, Shape, str], None]] = {
    "clip": _write_clip,
    "longclip": _write_clip,  # of other shapes; the published file is one of open_clip
    "remoteclip": _write_clip,
    "siglip2": _write_siglip,
    "llava": _write_llava,
    "llava-onevision-7b": _write_onevision,
    "llava-critic-7b": _write_onevision,
    "qwen2.5": _write_qwen,
    "llama": _write_llama,
    "biomedclip": _write_biomedclip,
}


def _write_openclip(folder: Path, file: str, shape: Shape, device: str) -> None:
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
    """Save a CLIP tokenizer: all bytes inside and at the end of words, words, unused tokens, two special tokens."""
    alphabet = require("tokenizers.pre_tokenizers", extra="hf").ByteLevel.alphabet()
    letters = sorted(alphabet)
    names = [*letters, *(letter + "</w>" for letter in letters)]
    merges = _merges(([*word[:-1], f"{word[-1]}</w>"] for word in words()), names, vocabulary - 2 - len(names))
    names += ["".join(pair) for pair in merges]
    names += [f"<unused{number}>" for number in range(vocabulary - 2 - len(names))]
    names += ["<|startoftext|>", "<|endoftext|>"]
    _write_json(folder / "vocab.json", {piece: number for number, piece in enumerate(names)})
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    _write_json(folder / "tokenizer_config.json", {"tokenizer_class": "CLIPTokenizer", "model_max_length": context})
    require("transformers", extra="hf").CLIPTokenizerFast.from_pretrained(folder).save_pretrained(folder)
    return len(names), len(names) - 2, len(names) - 1


def _save_qwen_tokenizer(folder: Path, size: int) -> int:
    """Save a byte-level tokenizer with words that follow a space, without start and end tokens."""
    letters = sorted(require("tokenizers.pre_tokenizers", extra="hf").ByteLevel.alphabet())
    merges = _merges((["Ġ", *word] for word in words()), letters, size - 1 - len(letters))
    names = [*letters, *("".join(pair) for pair in merges)]
    names += [f"<unused{number}>" for number in range(size - 1 - len(names))] + ["<|endoftext|>"]
    _write_json(folder / "vocab.json", {piece: number for number, piece in enumerate(names)})
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    special = {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>", "bos_token": None}
    _write_json(folder / "tokenizer_config.json", {"tokenizer_class": "Qwen2Tokenizer", **special})
    return len(names)


def _merges(symbols: Iterable[Sequence[str]], known: Sequence[str], limit: int) -> list[tuple[str, str]]:
    """Return merges, at most `limit`, that join the symbols of each word from left to right.

    >>> _merges([["a", "t", "e</w>"], ["a", "t</w>"]], ["a", "t", "e</w>", "t</w>"], 9)
    [('a', 't'), ('at', 'e</w>'), ('a', 't</w>')]
    """
    merges: dict[str, tuple[str, str]] = {}
    for word in symbols:
        for end in range(1, len(word)):
            pair = "".join(word[:end]), word[end]
            if "".join(pair) not in known:
                merges.setdefault("".join(pair), pair)
    return list(merges.values())[: max(0, limit)]


def _save_byte_tokenizer(folder: Path, names: list[str], template: str, size: int, config: Mapping[str, Any]) -> None:
    """Save a tokenizer of letters with byte fallback, words, and unused tokens up to the vocabulary size."""
    tokenizers = require("tokenizers", extra="hf")
    tokens = [*names, *(f"<0x{number:02X}>" for number in range(256)), "▁", *string.ascii_letters, *string.digits]
    merges = _merges((["▁", *word] for word in words()), tokens, size - len(tokens))
    tokens += ["".join(pair) for pair in merges]
    tokens += [f"<unused{number}>" for number in range(size - len(tokens))]
    table = {token: number for number, token in enumerate(tokens)}
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.BPE(table, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = tokenizers.normalizers.Replace(" ", "▁")
    marks = [(name, table[name]) for name in template.split() if name in table]
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(template, special_tokens=marks)
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {f"{name.strip('<>')}_token": name for name in names}
    _write_json(folder / "tokenizer_config.json", {**config, **special})


def _save_bert_tokenizer(folder: Path, size: int) -> None:
    """Save a WordPiece tokenizer of words, letters and unused tokens."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = string.ascii_lowercase + string.digits + string.punctuation
    names = list(dict.fromkeys([*special, *letters, *(f"##{letter}" for letter in letters), *words()]))[:size]
    names += [f"[unused{number}]" for number in range(size - len(names))]
    (folder / "vocab.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
    require("transformers", extra="hf").BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)


def _save_processor(folder: Path, kind: str, side: int, *, crop: bool) -> None:
    square = {"height": side, "width": side}
    sizes = {"size": {"shortest_edge": side}, "crop_size": square} if crop else {"size": square}
    getattr(require("transformers", extra="hf"), kind)(**sizes).save_pretrained(folder)


def _write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
