"""Load models that do not fit in one piece: spread over devices, or in 4 and 8 bits, where transformers offers it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from msdscore.encoders.backbone import SharedOptions
from msdscore.encoders.hf import load_model
from msdscore.encoders.placement import Placement
from msdscore.encoders.weights import Checkpoint
from msdscore.errors import ConfigError, require

# Layers whose numbers are read by other code, which would take the packed bits for them: SigLIP's attention pool,
# and the patches of SigLIP 2, whose dtype the pixels are turned into.
_WHOLE = ["vision_model.head", "vision_model.embeddings.patch_embedding", "lm_head"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeOptions(SharedOptions):
    """What can be chosen about how a transformers model is loaded.

    `device_map` is what transformers takes, such as "auto"; `bits` is 4 or 8, or 0 for whole weights.
    """

    device_map: str = ""
    bits: int = 0

    def __post_init__(self) -> None:
        SharedOptions.__post_init__(self)
        if self.bits not in (0, 4, 8):
            raise ConfigError(f"bits must be 0, 4 or 8, got {self.bits!r}")

    @property
    def bits_choice(self) -> tuple[str, ...]:
        """The signature's part for quantised weights; where a layer lies does not change a vector."""
        return (f"bits:{self.bits}",) if self.bits else ()


def load_placed(
    kind: str, checkpoint: Checkpoint, placement: Placement, options: LargeOptions, **given: Any
) -> tuple[Any, Placement]:
    """A model of the transformers class `kind`, ready to run, and where its inputs belong.

    What is `given` goes to `from_pretrained` as it is.

    Raises:
        MissingExtraError: a spread or quantised model needs accelerate, and quantised ones bitsandbytes.
        WeightsError: the files are damaged, of another model, or do not hold every tensor.
    """
    spread = _keywords(placement, options)
    model = load_model(kind, checkpoint, dtype=placement.dtype, **spread, **given)
    if not spread:
        return model.to(device=placement.device, dtype=placement.dtype).eval(), placement
    return model.eval(), replace(placement, device=torch.device(model.device))


def _keywords(placement: Placement, options: LargeOptions) -> Mapping[str, Any]:
    if not options.bits and not options.device_map:
        return {}
    require("accelerate", extra="large")
    spread = options.device_map or {"": placement.device}
    return {"device_map": spread, **_quantised(options.bits, placement.dtype)}


def _quantised(bits: int, dtype: torch.dtype) -> Mapping[str, Any]:
    if not bits:
        return {}
    require("bitsandbytes", extra="large")
    transformers = require("transformers", extra="hf")
    config = transformers.BitsAndBytesConfig(
        load_in_4bit=bits == 4, load_in_8bit=bits == 8, bnb_4bit_compute_dtype=dtype, llm_int8_skip_modules=_WHOLE
    )
    return {"quantization_config": config}
