"""Trained heads over two frozen backbones as an encoder, from the folder that `align export` writes.

`mini`, the embedded default, is such a folder inside this package. A tower is a checkpoint of transformers or timm, a
network of `mini`, or either side of any registered encoder.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from PIL import Image
from torch import nn

from msdscore.core.evidence import Bank
from msdscore.encoders.aligned.heads import AlignedHeads, HeadsSpec, JoinedHeads, SideDims
from msdscore.encoders.aligned.towers import (
    ImageTower,
    ImageTowerSpec,
    TextTower,
    TextTowerSpec,
    TowerPlace,
    keep_content,
    read_spec,
)
from msdscore.encoders.backbone import Backbone, Identity, SharedOptions, place, read_options
from msdscore.encoders.base import Embeddings, Encoder, Features, Prepared
from msdscore.encoders.loading.checkpoints import BANK, Checkpoint, find_checkpoint, locate, looks_like_hub_name
from msdscore.encoders.loading.hashing import verify_files, verify_sums
from msdscore.encoders.loading.tensors import read_bank, read_tensors, widened
from msdscore.encoders.registry import find_row, load_encoder
from msdscore.encoders.vision.preprocessing import preprocessing_of
from msdscore.errors import ConfigError, MSDScoreError, WeightsError

MODEL_TYPE = "msdscore-aligned"
FORMAT = 2

Spec = TypeVar("Spec")


@dataclass(frozen=True, slots=True, kw_only=True)
class AlignedOptions(SharedOptions):
    """What a user can choose about an aligned encoder."""

    image_backbone: str = ""  # another place of the same weights
    text_backbone: str = ""

    def __post_init__(self) -> None:
        SharedOptions.__post_init__(self)
        if self.compile:
            raise ConfigError(f"an aligned encoder cannot be compiled; leave out compile={self.compile!r}")
        if self.resize == "device":
            raise ConfigError("an aligned encoder resizes images with Pillow; leave out resize='device'")


class AlignedEncoder(Backbone):
    """Patches, tokens and pooled vectors in the space that the local aligner learned; no language model is here."""

    def __init__(
        self,
        identity: Identity,
        *,
        image: ImageTower,
        text: TextTower,
        heads: AlignedHeads | JoinedHeads,
        bank: Bank | None,
        recommended: Mapping[str, Any] | None,
    ) -> None:
        steps = preprocessing_of(image)
        super().__init__(identity, preprocessing=None if steps is None else identity.options.applied(steps))
        self._image, self._text, self._heads = image, text, heads
        self.bank, self.recommended = bank, recommended

    def prepare(self, image: Image.Image) -> Prepared:
        """The image as the image tower takes it."""
        return self._image.prepare(image)

    def _see(self, images: Sequence[Prepared]) -> Features:
        return self._heads.image_states(_moved(self._image.features(images), self.device))

    def _read(self, texts: Sequence[str]) -> Features:
        return self._heads.text_states(_moved(self._text.features(texts), self.device))


def load_aligned(
    source: str, *, name: str, revision: str | None = None, device: str = "auto", dtype: str = "auto", **options: Any
) -> AlignedEncoder:
    """Load an exported aligner; `dtype` is that of the backbones, the heads always compute in float32.

    Raises:
        WeightsError: files are missing or damaged, or a backbone is not the one that the heads were trained on.
    """
    chosen = read_options(AlignedOptions, options)
    if revision is not None and source.startswith("package:"):
        raise ConfigError(f"{name} comes with this version of msdscore and has no revisions")
    checkpoint = find_checkpoint(locate(source), revision=revision)
    config = checkpoint.read_json("config.json")
    if config.get("format") != FORMAT:
        raise WeightsError(
            f"{source!r} has format {config.get('format')!r} of {MODEL_TYPE}, expected {FORMAT}; export it again"
        )
    verify_sums(checkpoint.folder)
    placement = place(device, str(config.get("dtype", "auto")) if dtype == "auto" else dtype)
    image = _backbone(_spec(ImageTowerSpec, config, "image"), chosen.image_backbone)
    text = _backbone(_spec(TextTowerSpec, config, "text"), chosen.text_backbone)
    specs = head_specs(config)
    where = TowerPlace(
        device=str(placement.device),
        dtype=placement.dtype_name,
        whole=any(spec.pool == "own" for spec in specs),
        long_text=chosen.long_text,
    )
    seeing, reading = load_towers(image, text, where, base=checkpoint.folder)
    if preprocessing_of(seeing) is None:
        chosen.refuse_pixel_choices()
    heads = _heads(specs, config, branches=bool(image.branches))
    _fill(heads, checkpoint)
    bank = checkpoint.folder / BANK
    languages = ("en",) if config["text"].get("kind") == "mini" else ()
    return AlignedEncoder(
        Identity(name, checkpoint.signed(name), placement, chosen, languages=languages),
        image=seeing,
        text=reading,
        heads=heads.to(placement.device).eval().requires_grad_(False),
        bank=read_bank(bank)[0] if bank.is_file() else None,
        recommended=_recommended(config),
    )


def head_specs(config: Mapping[str, Any]) -> list[HeadsSpec]:
    """The heads of an exported encoder: one spec, or those of all members where several are joined."""
    given = config.get("heads")
    each = given if isinstance(given, list) else [given]
    return [_spec(HeadsSpec, {"heads": one}, "heads") for one in each]


def _heads(specs: Sequence[HeadsSpec], config: Mapping[str, Any], *, branches: bool) -> AlignedHeads | JoinedHeads:
    dims = _spec(SideDims, config, "image_dims"), _spec(SideDims, config, "text_dims")
    members = [AlignedHeads(spec, *dims) for spec in specs]
    return members[0] if len(members) == 1 else JoinedHeads(members, branches=branches)


def _recommended(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Settings as the configuration of the score takes them: JSON has no tuples."""
    given = config.get("recommended")
    if given is None:
        return None
    return {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}


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


def _fill(heads: nn.Module, checkpoint: Checkpoint) -> None:
    try:
        # Stored small; heads are light, so they always compute in float32.
        heads.load_state_dict(widened(read_tensors(checkpoint.weight_files())))
    except (RuntimeError, WeightsError) as error:
        reason = str(error).strip().splitlines()[0]
        raise WeightsError(f"heads of {checkpoint.source!r} cannot be loaded ({reason}); export them again") from error


def _moved(features: Features, device: torch.device) -> Features:
    if features.points.device == device:
        return features
    return replace(
        features,
        points=features.points.to(device),
        mask=features.mask.to(device),
        pooled=None if features.pooled is None else features.pooled.to(device),
        whole=None if features.whole is None else _moved(features.whole, device),
    )


class EncoderImages:
    """The image side of any registered encoder as a tower; its features are the encoder's own unit vectors."""

    def __init__(self, encoder: Encoder, *, files: tuple[Path, ...], whole: bool) -> None:
        self._encoder, self.files, self._whole = encoder, files, whole
        self.device, self.preprocessing = encoder.device, preprocessing_of(encoder)

    def prepare(self, image: Image.Image) -> Prepared:
        """The image as the encoder takes it."""
        return self._encoder.prepare(image)

    @torch.no_grad()
    def features(self, images: Sequence[Prepared]) -> Features:
        """Patches and pooled vectors of the encoder."""
        return _as_features(self._encoder.encode_images(images), whole=self._whole)


class EncoderTexts:
    """The text side of any registered encoder as a tower."""

    def __init__(self, encoder: Encoder, *, files: tuple[Path, ...], whole: bool, words: str) -> None:
        self._encoder, self.files, self._whole, self._words = encoder, files, whole, words
        self.device = encoder.device

    @torch.no_grad()
    def features(self, texts: Sequence[str]) -> Features:
        """Tokens and pooled vectors of the encoder."""
        every = _as_features(self._encoder.encode_texts(texts), whole=self._whole)
        return keep_content(every, texts) if self._words == "content" else every


def _as_features(vectors: Embeddings, *, whole: bool) -> Features:
    points = Features(vectors.points, vectors.mask)
    return replace(points, pooled=vectors.pooled, layout=vectors.layout, whole=points if whole else None)


def load_towers(
    image: ImageTowerSpec, text: TextTowerSpec, where: TowerPlace, *, base: Path | None = None
) -> tuple[ImageTower, TextTower]:
    """Both towers; one encoder that serves both sides is loaded once. `base` is where relative folders lie."""
    loaded: dict[tuple[str, str], Encoder] = {}
    return _image_tower(image, where, base, loaded), _text_tower(text, where, base, loaded)


def _image_tower(
    spec: ImageTowerSpec, where: TowerPlace, base: Path | None, loaded: dict[tuple[str, str], Encoder]
) -> ImageTower:
    if spec.kind == "timm":
        from msdscore.encoders.aligned.backbones import TimmImages

        return TimmImages(spec, where, base=base)
    if spec.kind == "mini":
        from msdscore.encoders.mini.towers import Lite2Images

        return Lite2Images(spec, where, base=base)
    source = locate(spec.source, base=base)
    if spec.kind == "transformers":
        from msdscore.encoders.aligned.backbones import TransformersImages

        return TransformersImages(spec, where, source=source)
    files = _encoder_files(source, spec.revision, spec.sha256, spec.source)
    return EncoderImages(_encoder(source, spec.revision, where, loaded), files=files, whole=where.whole)


def _text_tower(
    spec: TextTowerSpec, where: TowerPlace, base: Path | None, loaded: dict[tuple[str, str], Encoder]
) -> TextTower:
    if spec.kind == "mini":
        from msdscore.encoders.mini.towers import MiniLMTexts

        return MiniLMTexts(spec, where)
    source = locate(spec.source, base=base)
    if spec.kind == "transformers":
        from msdscore.encoders.aligned.backbones import TransformersTexts

        return TransformersTexts(spec, where, source=source)
    files = _encoder_files(source, spec.revision, spec.sha256, spec.source)
    encoder = _encoder(source, spec.revision, where, loaded)
    return EncoderTexts(encoder, files=files, whole=where.whole, words=spec.words)


def tower_dims(image: ImageTower, text: TextTower) -> tuple[SideDims, SideDims]:
    """Feature sizes of both towers."""
    grey = image.prepare(Image.new("RGB", (64, 64), "grey"))
    return _dims(image.features([grey])), _dims(text.features(["a photo of a dog"]))


def _dims(features: Features) -> SideDims:
    whole = 0 if features.whole is None else features.whole.points.shape[-1]
    return SideDims(features.points.shape[-1], whole, 0 if features.pooled is None else features.pooled.shape[-1])


def _encoder(source: str, revision: str, where: TowerPlace, loaded: dict[tuple[str, str], Encoder]) -> Encoder:
    key = (source, revision)
    if key not in loaded:
        # Only a family that reads in windows knows what to do with long texts; its default is to window.
        options: dict[str, Any] = {} if where.long_text == "window" else {"long_text": where.long_text}
        loaded[key] = load_encoder(source, device=where.device, dtype=where.dtype, revision=revision or None, **options)
    return loaded[key]


def _encoder_files(source: str, revision: str, sha256: str, given: str) -> tuple[Path, ...]:
    """Weight files of an encoder, verified; none for encoders without weights, or with files of another kind."""
    files: tuple[Path, ...] = ()
    weights = find_row(source, revision=revision or None).source
    if weights and (Path(weights).expanduser().is_dir() or looks_like_hub_name(weights)):
        # Loading the encoder itself says what is wrong, if anything is.
        with suppress(WeightsError):
            files = find_checkpoint(weights, revision=revision or None).weight_files()
    verify_files(files, sha256, source=given)
    return files
