"""LLaVA-OneVision and LLaVA-Critic in the format of the LLaVA-NeXT repository, made ready for transformers.

That format spells the language model's settings in the open, names the vision tower by its hub name, and names
tensors after its own modules. The sizes of the vision tower are read off the tensors.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from torch import Tensor

from msdscore.encoders.loading.checkpoints import Checkpoint
from msdscore.encoders.loading.tensors import read_tensors
from msdscore.errors import WeightsError, require

# What SigLIP so400m takes, the one vision tower these models were published with.
PREPROCESSOR: Mapping[str, Any] = MappingProxyType(
    {"resample": 3, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
)
_HEADS = 16
_TOWER = "vision_tower.vision_model."
# In order: the first beginning that fits is replaced.
_NAMES = (
    ("model.vision_tower.vision_tower.vision_model.", _TOWER),
    ("model.mm_projector.0.", "multi_modal_projector.linear_1."),
    ("model.mm_projector.2.", "multi_modal_projector.linear_2."),
    ("model.image_newline", "image_newline"),
    ("model.", "language_model.model."),
    ("lm_head.", "language_model.lm_head."),
)
# Settings of the language model; all others are of the vision tower, the projector, or the training.
_TEXT = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "hidden_act",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_theta",
    "tie_word_embeddings",
    "use_sliding_window",
    "sliding_window",
    "max_window_layers",
    "bos_token_id",
    "eos_token_id",
)


def is_original(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is of that format.

    >>> is_original({"architectures": ["LlavaQwenForCausalLM"], "mm_vision_tower": "google/siglip"})
    True
    """
    return "mm_vision_tower" in config and "LlavaQwenForCausalLM" in config.get("architectures", ())


def converted(checkpoint: Checkpoint) -> dict[str, Any]:
    """The `config` and `state_dict` that `from_pretrained` takes in place of a folder.

    Raises:
        WeightsError: files are damaged, or settings are missing.
    """
    state = {_renamed(key): tensor for key, tensor in read_tensors(checkpoint.weight_files()).items()}
    config = checkpoint.read_json("config.json")
    try:
        return {"config": _config(config, state), "state_dict": state}
    except (KeyError, TypeError, ValueError) as error:
        raise WeightsError(
            f"config.json of {checkpoint.source!r} is not understood ({error!r}); fetch it again"
        ) from None


def _renamed(key: str) -> str:
    old, new = next(((old, new) for old, new in _NAMES if key.startswith(old)), ("", ""))
    return new + key.removeprefix(old)


def _config(config: Mapping[str, Any], state: Mapping[str, Tensor]) -> Any:
    transformers = require("transformers", extra="hf")
    canvases = [[int(height), int(width)] for width, height in config["image_grid_pinpoints"]]
    return transformers.LlavaOnevisionConfig(
        text_config={"model_type": "qwen2", **{name: config[name] for name in _TEXT if name in config}},
        vision_config=_vision(state, tile=min(min(pair) for pair in canvases)),
        image_grid_pinpoints=canvases,
        vision_aspect_ratio=config["image_aspect_ratio"],
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
    )


def _vision(state: Mapping[str, Tensor], *, tile: int) -> dict[str, Any]:
    patches = state[f"{_TOWER}embeddings.patch_embedding.weight"]
    layers = {key.split(".")[4] for key in state if key.startswith(f"{_TOWER}encoder.layers.")}
    return {
        "model_type": "siglip_vision_model",
        "hidden_size": len(patches),
        "intermediate_size": len(state[f"{_TOWER}encoder.layers.0.mlp.fc1.bias"]),
        "num_hidden_layers": len(layers),
        "num_attention_heads": _HEADS,
        "image_size": tile,
        "patch_size": int(patches.shape[-1]),
        "vision_use_head": False,
    }
