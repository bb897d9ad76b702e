"""Trained heads over two frozen backbones as an encoder, from the folder that `align export` writes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from PIL.Image import Image
from safetensors.torch import load_file

from msdscore.core.calibration import Bank
from msdscore.encoders.aligned.heads import AlignedHeads, HeadsSpec, Projected, SideDims
from msdscore.encoders.aligned.specs import read_spec
from msdscore.encoders.aligned.towers.base import (
    Features,
    ImageTower,
    ImageTowerSpec,
    TextTower,
    TextTowerSpec,
    TowerPlace,
)
from msdscore.encoders.aligned.towers.load import load_towers
from msdscore.encoders.backbone import Placement, place, read_options, require_choice
from msdscore.encoders.base import Embeddings, Prepared
from msdscore.encoders.loading.checkpoints import Checkpoint, find_checkpoint
from msdscore.errors import ConfigError, MSDScoreError, WeightsError

MODEL_TYPE = "msdscore-aligned"
FORMAT = 1

Spec = TypeVar("Spec")


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignedOptions:
    """What a user can choose about an aligned encoder."""

    image_backbone: str = ""  # another place of the same weights
    text_backbone: str = ""
    long_text: str = "window"  # or "cut"

    def __post_init__(self) -> None:
        require_choice("long_text", self.long_text, ("window", "cut"))


@dataclass(frozen=True, slots=True)
class AlignedParts:
    """Two frozen towers and the heads on them."""

    image: ImageTower
    text: TextTower
    heads: AlignedHeads


class AlignedEncoder:
    """Patches, tokens and pooled vectors in the space that the local aligner learned; no language model is here."""

    def __init__(self, parts: AlignedParts, *, name: str, signed: str, placement: Placement, long_text: str) -> None:
        self._parts = parts
        self._name, self._signed, self._placement, self._long_text = name, signed, placement, long_text

    @property
    def name(self) -> str:
        """The name it was loaded by."""
        return self._name

    @property
    def signature(self) -> str:
        """Everything that can change a vector; the mark covers config.json, and so the SHA-256 of both backbones."""
        pool = self._parts.heads.spec.pool
        return f"{self._signed},pool:{pool},long:{self._long_text},dtype:{self._placement.dtype_name}"

    @property
    def device(self) -> torch.device:
        """Where the vectors are made."""
        return self._placement.device

    @property
    def bank(self) -> Bank | None:
        """It brings none yet."""
        return None

    @property
    def recommended(self) -> Mapping[str, Any] | None:
        """It knows none yet."""
        return None

    def prepare(self, image: Image) -> Prepared:
        """The picture as the image tower takes it."""
        return self._parts.image.prepare(image)

    @torch.no_grad()
    def encode_images(self, images: Sequence[Prepared]) -> Embeddings:
        """Patches and pooled vectors; `layout` holds one `PatchLayout` per item."""
        _require_items(images, "picture")
        features = self._parts.image.features(images)
        return self._embeddings(self._parts.heads.project_images(_moved(features, self.device)), features)

    @torch.no_grad()
    def encode_texts(self, texts: Sequence[str]) -> Embeddings:
        """Tokens and pooled vectors; `layout` holds a `TokenLayout` an item."""
        _require_items(texts, "caption")
        features = self._parts.text.features(texts)
        return self._embeddings(self._parts.heads.project_texts(_moved(features, self.device)), features)

    def _embeddings(self, found: Projected, features: Features) -> Embeddings:
        if not (torch.isfinite(found.points).all() and torch.isfinite(found.pooled).all()):
            raise ConfigError(
                f"a backbone of {self._name} overflows in {self._placement.dtype_name}; "
                "load it with dtype='float32' or dtype='bfloat16'"
            )
        return Embeddings(found.points, found.mask, found.pooled, features.layout)


def load_aligned(
    source: str,
    *,
    name: str,
    revision: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    **options: Any,
) -> AlignedEncoder:
    """Load an exported aligner; `dtype` is that of the backbones, the heads always compute in float32.

    Raises:
        WeightsError: files are missing or damaged, or a backbone is not the one that the heads were trained on.
    """
    chosen = read_options(AlignedOptions, options)
    placement = place(device, dtype)
    checkpoint = find_checkpoint(source, revision=revision)
    config = checkpoint.read_json("config.json")
    if config.get("format") != FORMAT:
        raise WeightsError(
            f"{source!r} has format {config.get('format')!r} of {MODEL_TYPE}, expected {FORMAT}; update msdscore"
        )
    parts = _parts(checkpoint, config, placement, chosen)
    signed = checkpoint.signed(name)
    return AlignedEncoder(parts, name=name, signed=signed, placement=placement, long_text=chosen.long_text)


def _parts(
    checkpoint: Checkpoint, config: Mapping[str, Any], placement: Placement, options: AlignedOptions
) -> AlignedParts:
    image = _backbone(_spec(ImageTowerSpec, config, "image"), options.image_backbone)
    text = _backbone(_spec(TextTowerSpec, config, "text"), options.text_backbone)
    spec = _spec(HeadsSpec, config, "heads")
    dims = _spec(SideDims, config, "image_dims"), _spec(SideDims, config, "text_dims")
    where = TowerPlace(
        device=str(placement.device),
        dtype=placement.dtype_name,
        whole=spec.pool == "own",
        long_text=options.long_text,
    )
    towers = load_towers(image, text, where, base=checkpoint.folder)
    heads = AlignedHeads(spec, *dims)
    _fill(heads, checkpoint)
    return AlignedParts(*towers, heads.to(placement.device).eval().requires_grad_(False))


def _spec(kind: type[Spec], config: Mapping[str, Any], key: str) -> Spec:
    try:
        return read_spec(kind, config.get(key), where=key)
    except MSDScoreError as error:
        raise WeightsError(f"config.json of an aligned encoder cannot be used: {error}") from error


def _backbone(spec: Any, override: str) -> Any:
    """The spec with another place of its weights: of the file for timm, of the checkpoint for the rest."""
    if not override:
        return spec
    return replace(spec, weights=override) if spec.kind == "timm" else replace(spec, source=override)


def _fill(heads: AlignedHeads, checkpoint: Checkpoint) -> None:
    path = checkpoint.folder / "model.safetensors"
    try:
        # Shipped in half precision to stay small; heads are light, so they always compute in float32.
        tensors = {key: tensor.float() for key, tensor in load_file(path).items()}
        heads.load_state_dict(tensors)
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise WeightsError(f"heads of {checkpoint.source!r} cannot be loaded ({reason}); export them again") from error


def _moved(features: Features, device: torch.device) -> Features:
    if features.local.vectors.device == device:
        return features
    whole = features.whole
    return replace(
        features,
        local=replace(features.local, vectors=features.local.vectors.to(device), mask=features.local.mask.to(device)),
        whole=whole and replace(whole, vectors=whole.vectors.to(device), mask=whole.mask.to(device)),
        pooled=None if features.pooled is None else features.pooled.to(device),
    )


def _require_items(items: Sequence[object], kind: str) -> None:
    if not items:
        raise ConfigError(f"expected at least one {kind} to encode, got none")
