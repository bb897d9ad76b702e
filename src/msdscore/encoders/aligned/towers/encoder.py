"""Either side of any registered encoder as a tower: its features are the encoder's own unit vectors."""

from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image

from msdscore.encoders.aligned.towers.base import Features, Points, keep_content
from msdscore.encoders.base import Encoder, Prepared
from msdscore.encoders.vision.preprocessing import Preprocessing, preprocessing_of


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
        """The picture as the encoder takes it."""
        return self._encoder.prepare(image)

    @torch.no_grad()
    def features(self, images: Sequence[Prepared]) -> Features:
        """Patches and pooled vectors of the encoder."""
        found = self._encoder.encode_images(images)
        points = Points(found.points, found.mask)
        return Features(points, points if self._whole else None, found.pooled, found.layout)


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
        found = self._encoder.encode_texts(texts)
        points = Points(found.points, found.mask)
        every = Features(points, points if self._whole else None, found.pooled, found.layout)
        return keep_content(every, texts) if self._words == "content" else every
