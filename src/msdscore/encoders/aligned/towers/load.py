"""Load the two frozen towers that a spec names; either side of any registered encoder can be one."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from msdscore.encoders.aligned.heads import SideDims
from msdscore.encoders.aligned.towers.base import (
    ImageTower,
    ImageTowerSpec,
    TextTower,
    TextTowerSpec,
    TowerPlace,
    feature_dims,
    keep_content,
)
from msdscore.encoders.aligned.towers.transformers import TransformersImages, TransformersTexts
from msdscore.encoders.base import Embeddings, Encoder, Features, Prepared
from msdscore.encoders.loading.checkpoints import find_checkpoint, locate, looks_like_hub_name
from msdscore.encoders.loading.hashing import verify_files
from msdscore.encoders.registry import find_row, load_encoder
from msdscore.encoders.vision.preprocessing import Preprocessing, preprocessing_of
from msdscore.errors import WeightsError


class EncoderImages:
    """The image side of any registered encoder as a tower; its features are the encoder's own unit vectors."""

    def __init__(self, encoder: Encoder, *, files: tuple[Path, ...], whole: bool) -> None:
        self._encoder, self.files, self._whole = encoder, files, whole

    @property
    def device(self) -> torch.device:
        """Where its features are made."""
        return self._encoder.device

    @property
    def preprocessing(self) -> Preprocessing | None:
        """The steps of the encoder, where it has some."""
        return preprocessing_of(self._encoder)

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

    @property
    def device(self) -> torch.device:
        """Where its features are made."""
        return self._encoder.device

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
    return (
        load_image_tower(image, where, base=base, loaded=loaded),
        load_text_tower(text, where, base=base, loaded=loaded),
    )


def load_image_tower(
    spec: ImageTowerSpec, where: TowerPlace, *, base: Path | None = None, loaded: dict[tuple[str, str], Encoder]
) -> ImageTower:
    """A frozen image tower; `loaded` holds encoders that are already there."""
    if spec.kind == "timm":
        from msdscore.encoders.aligned.towers.timm import TimmImages

        return TimmImages(spec, where, base=base)
    if spec.kind == "mini":
        from msdscore.encoders.aligned.towers.mini import Lite2Images

        return Lite2Images(spec, where, base=base)
    source = locate(spec.source, base=base)
    if spec.kind == "transformers":
        return TransformersImages(spec, where, source=source)
    files = _encoder_files(source, spec.revision, spec.sha256, spec.source)
    return EncoderImages(_encoder(source, spec.revision, where, loaded), files=files, whole=where.whole)


def load_text_tower(
    spec: TextTowerSpec, where: TowerPlace, *, base: Path | None = None, loaded: dict[tuple[str, str], Encoder]
) -> TextTower:
    """A frozen text tower."""
    if spec.kind == "mini":
        from msdscore.encoders.aligned.towers.mini import MiniLMTexts

        return MiniLMTexts(spec, where)
    source = locate(spec.source, base=base)
    if spec.kind == "transformers":
        return TransformersTexts(spec, where, source=source)
    files = _encoder_files(source, spec.revision, spec.sha256, spec.source)
    encoder = _encoder(source, spec.revision, where, loaded)
    return EncoderTexts(encoder, files=files, whole=where.whole, words=spec.words)


def tower_dims(image: ImageTower, text: TextTower) -> tuple[SideDims, SideDims]:
    """Feature sizes of both towers."""
    grey = image.prepare(Image.new("RGB", (64, 64), "grey"))
    seen, read = image.features([grey]), text.features(["a photo of a dog"])
    return SideDims(*feature_dims(seen)), SideDims(*feature_dims(read))


def _encoder(source: str, revision: str, where: TowerPlace, loaded: dict[tuple[str, str], Encoder]) -> Encoder:
    key = (source, revision)
    if key not in loaded:
        # Only a family that reads in windows knows what to do with long texts; its default is to window.
        options: dict[str, Any] = {} if where.long_text == "window" else {"long_text": where.long_text}
        loaded[key] = load_encoder(source, device=where.device, dtype=where.dtype, revision=revision or None, **options)
    return loaded[key]


def _encoder_files(source: str, revision: str, sha256: str, given: str) -> tuple[Path, ...]:
    files = _files(find_row(source, revision=revision or None).source, revision)
    verify_files(files, sha256, source=given)
    return files


def _files(source: str, revision: str) -> tuple[Path, ...]:
    """Weight files of a checkpoint; none for encoders without weights, or with files of another kind."""
    if not source or not (Path(source).expanduser().is_dir() or looks_like_hub_name(source)):
        return ()
    try:
        return find_checkpoint(source, revision=revision or None).weight_files()
    except WeightsError:
        # Loading the encoder itself says what is wrong, if anything is.
        return ()
