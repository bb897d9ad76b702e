"""The scorer: pictures and captions in, scores out."""

from collections.abc import Sequence
from typing import Any

from PIL.Image import Image

from msdscore.encoders.base import Embeddings, Encoder
from msdscore.encoders.registry import load_encoder
from msdscore.errors import CaptionError, ConfigError
from msdscore.io.images import ImageLimits, ImageSource, open_image
from msdscore.io.keys import pixel_key, text_key
from msdscore.scoring.batches import encode_by_length, encode_in_batches
from msdscore.scoring.comparison import compare
from msdscore.scoring.config import MSDConfig
from msdscore.scoring.measurement import Measurement, numbers, soften
from msdscore.scoring.results import Score, Scores
from msdscore.scoring.signature import signature

DEFAULT_ENCODER = "mini"


class Scorer:
    """Scores captions against pictures with one encoder and one configuration.

    >>> from PIL import Image
    >>> scorer = Scorer("toy")
    >>> red = Image.new("RGB", (64, 64), "red")
    >>> scorer.rank(red, ["a blue square", "a red square"]).best
    'a red square'
    """

    def __init__(
        self,
        encoder: str | Encoder = DEFAULT_ENCODER,
        config: MSDConfig | str = "short",
        *,
        batch_size: int = 32,
        limits: ImageLimits | None = None,
        **options: Any,
    ) -> None:
        if batch_size < 1:
            raise ConfigError(f"batch_size must be at least 1, got {batch_size}")
        if options and not isinstance(encoder, str):
            raise ConfigError(f"options go with an encoder's name, not with a loaded encoder: {', '.join(options)}")
        self.encoder = load_encoder(encoder, **options) if isinstance(encoder, str) else encoder
        self.config = MSDConfig.preset(config) if isinstance(config, str) else config
        self.batch_size = batch_size
        self.limits = limits or ImageLimits()

    @property
    def signature(self) -> str:
        """Everything that can change a score, in one line."""
        return signature(self.encoder, self.config)

    def score(self, image: ImageSource, caption: str) -> Score:
        """Score one caption. Alone it has no candidate set, so its soft score is its MSD."""
        return self.rank(image, [caption])[0]

    def rank(self, image: ImageSource, captions: Sequence[str]) -> Scores:
        """Score captions of one picture as a candidate set; `ranking` and `best` order them by Soft-MSD."""
        if isinstance(captions, str) or not captions:
            raise ConfigError("rank needs a list of at least one caption; score takes a single one")
        measured = self.measure([image], captions, [0] * len(captions))
        rows = numbers(measured, self.config)
        uncertainty, soft = soften(
            [row.similarity for row in rows], [row.divergence for row in rows], [0] * len(rows), self.config
        )
        return Scores(tuple(captions), rows, tuple(uncertainty), tuple(soft), self.signature)

    def measure(self, images: Sequence[ImageSource], captions: Sequence[str], owner: Sequence[int]) -> Measurement:
        """Similarity and terms of many captions; `owner[i]` is the number of the image of caption i.

        Raises `ImageError` or `CaptionError` for the first item that cannot be read.
        """
        pictures = [open_image(image, limits=self.limits) for image in images]
        text_side = self.embed_captions(captions)
        for caption, readable in zip(captions, text_side.mask.any(dim=1).tolist(), strict=True):
            if not readable:
                raise CaptionError(unreadable(caption))
        return compare(
            self.embed_pictures(pictures),
            text_side,
            owner,
            image_keys=[pixel_key(picture) for picture in pictures],
            text_keys=[text_key(caption) for caption in captions],
            config=self.config,
        )

    def embed_pictures(self, pictures: Sequence[Image]) -> Embeddings:
        """Embeddings of decoded pictures, batch by batch."""
        return encode_in_batches(pictures, self.encoder.encode_images, size=self.batch_size)

    def embed_captions(self, captions: Sequence[str]) -> Embeddings:
        """Embeddings of captions, batch by batch; one that holds nothing to read has an empty mask."""
        return encode_by_length(captions, self.encoder.encode_texts, size=4 * self.batch_size)


def unreadable(caption: str) -> str:
    """Why a caption without tokens cannot be scored."""
    return f"the caption {caption[:40]!r} holds no words that the encoder can read"
