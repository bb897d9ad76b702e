"""The scorer: pictures and captions in, scores out."""

from collections.abc import Iterable, Sequence
from functools import partial
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from PIL.Image import Image

from msdscore.encoders.base import Embeddings, Encoder, encode_pictures
from msdscore.encoders.registry import load_encoder
from msdscore.errors import CaptionError, ConfigError
from msdscore.io.hashing import pixel_key, text_key
from msdscore.io.images import ImageLimits, ImageSource, open_image
from msdscore.scoring.bank import NamedBank, load_bank, moved, own_bank
from msdscore.scoring.batches import encode_by_length, encode_in_batches
from msdscore.scoring.comparison import Encoded, compare
from msdscore.scoring.config import MSDConfig
from msdscore.scoring.measurement import Measurement, numbers, soften
from msdscore.scoring.results import Score, Scores
from msdscore.scoring.signature import signature

if TYPE_CHECKING:
    from msdscore.explain.terms import Explanation, Explanations

DEFAULT_ENCODER = "mini"
Item = TypeVar("Item")


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
        config: MSDConfig | str | None = None,
        *,
        bank: NamedBank | str | Path | None = None,
        batch_size: int = 32,
        limits: ImageLimits | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(batch_size, int) or batch_size < 1:
            raise ConfigError(f"batch_size must be a whole number of at least 1, got {batch_size!r}")
        if options and not isinstance(encoder, str):
            raise ConfigError(f"options go with an encoder's name, not with a loaded encoder: {', '.join(options)}")
        self.encoder = load_encoder(encoder, **options) if isinstance(encoder, str) else encoder
        if not hasattr(self.encoder, "encode_images"):
            raise ConfigError(f"expected an encoder or the name of one, got {type(encoder).__name__}")
        if not isinstance(config, MSDConfig | str | None):
            raise ConfigError(f"expected an MSDConfig or the name of a preset, got {type(config).__name__}")
        self.config = MSDConfig.preset(config) if isinstance(config, str) else config or own_config(self.encoder)
        if bank is not None and self.config.calibration == "none":
            raise ConfigError("a bank is given, and calibration is none; set calibration=background, or leave it out")
        self.bank = self._bank(bank) if self.config.calibration == "background" else None
        self.batch_size = batch_size
        self.limits = limits or ImageLimits()

    @property
    def signature(self) -> str:
        """Everything that can change a score, in one line."""
        return signature(self.encoder, self.config, None if self.bank is None else self.bank.name)

    def score(self, image: ImageSource, caption: str) -> Score:
        """Score one caption. Alone it has no candidate set, so its soft score is its MSD."""
        return self.rank(image, [caption])[0]

    def rank(self, image: ImageSource, captions: Iterable[str]) -> Scores:
        """Score captions of one picture as a candidate set; `ranking` and `best` order them by Soft-MSD."""
        texts = _listed(captions)
        if not texts:
            raise ConfigError("rank needs a list of at least one caption; score takes a single one")
        return self.fuse(texts, self.measure([image], texts, [0] * len(texts)))

    def explain(self, image: ImageSource, caption: str) -> "Explanation":
        """The score of one caption with its terms a word and a region, ready to look at or to `save`."""
        return self.contrast(image, [caption])[0]

    def contrast(self, image: ImageSource, captions: Iterable[str]) -> "Explanations":
        """Explanations of captions of one picture, scored as a candidate set and shown side by side."""
        # The one import that goes up a floor, named in the contract: the scorer is where a user looks for it.
        from msdscore.explain.terms import explain

        return explain(self, image, _listed(captions))

    def fuse(self, captions: Sequence[str], measured: Measurement) -> Scores:
        """The scores of captions that were measured as one candidate set."""
        rows = numbers(measured, self.config)
        uncertainty, soft = soften(
            [row.similarity for row in rows], [row.divergence for row in rows], [0] * len(rows), self.config
        )
        return Scores(tuple(captions), rows, tuple(uncertainty), tuple(soft), self.signature)

    def measure(self, images: Sequence[ImageSource], captions: Sequence[str], owner: Sequence[int]) -> Measurement:
        """Similarity and terms of many captions; `owner[i]` is the number of the image of caption i.

        Raises `ImageError` or `CaptionError` for the first item that cannot be read.
        """
        encoded = self.encode(images, captions)
        return self.compare(encoded, _owners(owner, len(encoded.texts), len(encoded.pictures)))

    def encode(self, images: Sequence[ImageSource], captions: Sequence[str]) -> Encoded:
        """Pictures and captions as vectors, ready to compare; raises as `measure` does."""
        sources, captions = _listed(images), _listed(captions)
        if not sources or not captions:
            raise ConfigError("expected a list of at least one picture and a list of at least one caption")
        pictures = [open_image(image, limits=self.limits) for image in sources]
        for caption in captions:
            if not isinstance(caption, str):
                raise CaptionError(f"a caption must be text, got {type(caption).__name__}")
        texts = self.embed_captions(captions)
        for caption, readable in zip(captions, texts.mask.any(dim=1).tolist(), strict=True):
            if not readable:
                raise CaptionError(unreadable(caption))
        return Encoded(
            tuple(pictures),
            self.embed_pictures(pictures),
            texts,
            image_keys=tuple(pixel_key(picture) for picture in pictures),
            text_keys=tuple(text_key(caption) for caption in captions),
        )

    def compare(self, encoded: Encoded, owner: Sequence[int]) -> Measurement:
        """Similarity and terms of what was encoded."""
        return compare(
            encoded.images,
            encoded.texts,
            owner,
            image_keys=encoded.image_keys,
            text_keys=encoded.text_keys,
            config=self.config,
            bank=None if self.bank is None else moved(self.bank.bank, encoded.images.points.device),
        )

    def embed_pictures(self, pictures: Sequence[Image]) -> Embeddings:
        """Embeddings of decoded pictures, batch by batch."""
        return encode_in_batches(pictures, partial(encode_pictures, self.encoder), size=self.batch_size)

    def embed_captions(self, captions: Sequence[str]) -> Embeddings:
        """Embeddings of captions, batch by batch; one that holds nothing to read has an empty mask."""
        return encode_by_length(captions, self.encoder.encode_texts, size=4 * self.batch_size)

    def _bank(self, given: NamedBank | str | Path | None) -> NamedBank:
        """The bank asked for, else the one that comes with the encoder."""
        named = load_bank(Path(given)) if isinstance(given, str | Path) else given or own_bank(self.encoder)
        if named is None:
            raise ConfigError(
                f"calibration needs a bank, and encoder {self.encoder.name!r} brings none; build one with: "
                f"msdscore bank PICTURES -o bank.safetensors --encoder {self.encoder.name}"
            )
        named.require(self.encoder, self.config)
        return named


def _listed(items: Iterable[Item]) -> list[Item]:
    """The items as a list; empty for a lone text or picture, which is no list of them, and for what is no series."""
    lone = isinstance(items, str | bytes | Path | Image) or not isinstance(items, Iterable)
    return [] if lone else list(items)


def _owners(owner: Iterable[int], captions: int, pictures: int) -> list[int]:
    """The numbers of the captions' pictures; a wrong one would quietly score a caption with another picture."""
    places = [index(place) for place in _listed(owner) if hasattr(place, "__index__")]
    if len(places) != captions or not all(0 <= place < pictures for place in places):
        raise ConfigError(
            f"owner must be the numbers (0 to {pictures - 1}) of the pictures of {captions} captions, got {owner!r}"
        )
    return places


def own_config(encoder: Encoder) -> MSDConfig:
    """The settings that an encoder recommends for itself, else the paper's for short captions."""
    return MSDConfig.preset("short", **(encoder.recommended or {}))


def unreadable(caption: str) -> str:
    """Why a caption without tokens cannot be scored."""
    return f"the caption {caption[:40]!r} holds no words that the encoder can read"
