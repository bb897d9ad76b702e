"""Tiny open_clip models in published formats: a configuration with safetensors, or a bare state dict."""

import json
from pathlib import Path

import torch

from tiny_models import TOWER, randomise
from tiny_tokenizers import save_bert

CONTEXT = 16
VIT = {"image_size": 32, "layers": 2, "width": 32, "head_width": 8, "patch_size": 8}
TEXT = {"context_length": CONTEXT, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 2}
OWN = {"embed_dim": 24, "vision_cfg": VIT, "text_cfg": TEXT}
# As MobileCLIP: a feature map whose classifier is the projection, and a text tower that attends to padding.
CONVOLUTIONS = {
    "embed_dim": 24,
    "vision_cfg": {"timm_model_name": "test_efficientnet", "timm_pool": "avg", "timm_proj": None, "image_size": 64},
    "text_cfg": {**TEXT, "no_causal_mask": True},
    "custom_text": True,
}
# As BiomedCLIP: a timm transformer with a linear head, and a BERT with an MLP.
BIOMED = {
    "embed_dim": 24,
    "vision_cfg": {"timm_model_name": "test_vit", "timm_pool": "", "timm_proj": "linear", "image_size": 160},
    "text_cfg": {
        "hf_model_name": "text",
        "hf_tokenizer_name": "org/bert",
        "hf_proj_type": "mlp",
        "hf_pooler_type": "cls_last_hidden_state_pooler",
        "context_length": CONTEXT,
    },
}
PREPROCESS = {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4], "interpolation": "bicubic", "resize_mode": "shortest"}


def build(config: dict, seed: int = 0) -> torch.nn.Module:
    import open_clip

    config = {**config, "vision_cfg": dict(config["vision_cfg"]), "text_cfg": dict(config["text_cfg"])}
    custom = config.pop("custom_text", False) or "hf_model_name" in config["text_cfg"]
    model = (open_clip.CustomTextCLIP if custom else open_clip.CLIP)(**config)
    randomise(model, seed)
    return model.eval()


def make_folder(folder: Path, config: dict = OWN) -> Path:
    """Write a folder in the format of open_clip's `push_to_hf_hub`."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    here = config
    if "hf_model_name" in config["text_cfg"]:
        here = {
            **config,
            "text_cfg": {**config["text_cfg"], "hf_model_name": str(_bert(folder)), "hf_model_pretrained": False},
        }
    state = {key: tensor.contiguous() for key, tensor in build(here).state_dict().items()}
    save_file(state, folder / "open_clip_model.safetensors")
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": config, "preprocess_cfg": PREPROCESS}))
    return folder


def make_biomed(folder: Path) -> Path:
    return make_folder(folder, BIOMED)


def make_convolutions(folder: Path) -> Path:
    return make_folder(folder, CONVOLUTIONS)


def _bert(folder: Path) -> Path:
    from transformers import BertConfig

    size = save_bert(folder)
    BertConfig(**TOWER, vocab_size=size, max_position_embeddings=32).save_pretrained(folder / "text")
    return folder / "text"


def register(folder: Path, name: str, config: dict = OWN) -> str:
    """Register an architecture with open_clip, like `add_model_config`."""
    import open_clip

    path = folder / f"{name}.json"
    path.write_text(json.dumps(config))
    open_clip.add_model_config(path)
    return name
