"""The encoders that msdscore knows by name: data, no code."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any


def _no_options() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderRow:
    """One encoder: how to load it, and what a user should know before trusting it.

    `loader` is `"module:callable"`, imported when the encoder is loaded and called as
    `loader(source, name=..., revision=..., device=..., dtype=..., **options)`.
    """

    name: str
    loader: str
    family: str
    source: str = ""  # hub name or folder of the weights; empty when there are none
    licence: str = "unknown"
    parameters: int = 0  # in millions
    context: int = 0  # tokens that the text tower reads at once; 0: no limit
    languages: tuple[str, ...] = ("en",)
    trained_on: str = "unknown"
    warning: str = ""  # e.g. a benchmark's pictures in the training data
    options: Mapping[str, Any] = field(default_factory=_no_options, hash=False)


_CLIP = "msdscore.encoders.clip:load_clip"
_WIT = "400 million image-text pairs of the web (OpenAI, not published)"
_LAION = "LAION-2B, English image-text pairs of the web"


def _clip(name: str, source: str, parameters: int, trained_on: str) -> EncoderRow:
    return EncoderRow(
        name=name,
        loader=_CLIP,
        family="clip",
        source=source,
        licence="MIT",
        parameters=parameters,
        context=77,
        trained_on=trained_on,
    )


ROWS: tuple[EncoderRow, ...] = (
    EncoderRow(
        name="toy",
        loader="msdscore.encoders.toy:load_toy",
        family="toy",
        licence="Apache-2.0",
        trained_on="nothing",
        warning="compares colours and places only: for tests and documentation, never for evaluation",
    ),
    _clip("clip-b32", "openai/clip-vit-base-patch32", 151, _WIT),
    _clip("clip-b16", "openai/clip-vit-base-patch16", 150, _WIT),
    _clip("clip-l14", "openai/clip-vit-large-patch14", 428, _WIT),
    _clip("clip-l14-336", "openai/clip-vit-large-patch14-336", 428, _WIT),
    _clip("clip-h14", "laion/CLIP-ViT-H-14-laion2B-s32B-b79K", 986, _LAION),
    _clip("clip-bigg14", "laion/CLIP-ViT-bigG-14-laion2B-39B-b160k", 2540, _LAION),
)

# The `model_type` of a checkpoint's config.json -> the loader of its family.
FAMILIES: Mapping[str, str] = MappingProxyType(
    {"clip": _CLIP, "msdscore-aligned": "msdscore.encoders.aligned:load_aligned"}
)
