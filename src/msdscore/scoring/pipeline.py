"""From sources to numbers: the way of one score, to be read first.

1. `Decoder.decode` reads an image and prepares the pixels of the encoder's network.
2. `Embedder` encodes images and captions as `Embeddings`: unit vectors of patches or tokens, and a pooled vector. Items
   that cannot be read have an error instead.
3. `Form.measure` compares them: the similarity is the cosine of pooled vectors, and `Form.terms` fits mixtures to the
   patches (`core.mixture.fit`) and compares densities at every token (`core.divergence.log_ratio`).
4. `Form.numbers` adds the terms up to the columns of the score, and `numbers_of` adds lengths and warnings.
5. `Scores.of` adds the columns of candidate sets: uncertainty and Soft-MSD.

`Pipeline.score` is steps 2 to 4. Everything that scores goes through it: the scorer, runs over files and benchmarks;
explanations and studies use its parts.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from copy import copy
from dataclasses import asdict, replace
from hashlib import sha256
from math import isnan
from typing import TYPE_CHECKING, Any

import numpy as np

from msdscore.core.arrays import device_of, integers, is_gpu, launched, on_cpu, to_numpy, torch_part
from msdscore.core.divergence import fit_all
from msdscore.core.evidence import VERDICT_AT, checked_limits
from msdscore.core.mixture import FitSettings, Mixture
from msdscore.encoders.banks import NamedBank, named
from msdscore.encoders.base import (
    Embeddings,
    Encoder,
    TokenLayout,
    capabilities,
    overflow,
)
from msdscore.encoders.fingerprint import encoder_signature
from msdscore.errors import ConfigError, RowError
from msdscore.forms.base import Form, Measurement, Numbers, Sides, numbers_of
from msdscore.forms.registry import check_form, find_form, form_of_bank
from msdscore.io.images import ImageLimits, ImageSource
from msdscore.scoring.decoder import Decoded, Decoder
from msdscore.scoring.embedder import MEMORY, BatchSizes, Embedded, Embedder, Recent, VectorMemory, not_finite_error
from msdscore.version import __version__

if TYPE_CHECKING:  # imported if vectors are cached on disk
    from msdscore.encoders.cached import CacheUse

Finish = Callable[[], list[Numbers | RowError]]  # waits for the numbers of a batch
LATEST = 64  # images whose mixtures are cached


class Pipeline:
    """A decoder, an embedder, a form and its bank: computes numbers from images and captions.

    It is never changed: `remembering` and `sharing` return other pipelines. Only the batch sizes change, when the
    device runs out of memory, the cached mixtures, and the signature of an encoder that is trained; pipelines derived
    from each other share the first two. `streams` is the
    number of runs that share the decoding processes and their memory, `verdict_at` has the limits of verdicts.

    >>> from PIL import Image
    >>> from msdscore.encoders.registry import load_encoder
    >>> pipeline = Pipeline(load_encoder("toy"))
    >>> red = pipeline.decode([Image.new("RGB", (64, 64), "red")])
    >>> [type(row).__name__ for row in pipeline.score(red, ["a red square", ""], [0, 0])]
    ['Numbers', 'CaptionError']
    """

    def __init__(
        self,
        encoder: Encoder,
        form: Form | None = None,
        *,
        bank: NamedBank | None = None,
        limits: ImageLimits | None = None,
        batch_size: int | None = None,
        decoders: int | None = None,
        verdict_at: tuple[float, float] = VERDICT_AT,
    ) -> None:
        check_form(form)
        self.form = form or recommended_form(encoder, bank)
        signature = encoder_signature(encoder)
        self.bank = _bank(bank, encoder, signature, self.form)
        keyed = self.form.image_fit.init == "sample"  # starts are drawn by the content of an image
        self.encoder, self.can = encoder, capabilities(encoder)
        self.decoder = Decoder(encoder, self.can, limits or ImageLimits(), keyed, decoders)
        self.embedder = Embedder(encoder, self.can, BatchSizes(encoder, batch_size), signature)
        self.streams, self._mixtures = 1, Recent[tuple[bytes, FitSettings], Mixture](LATEST)
        self.verdict_at = checked_limits(verdict_at)

    @property
    def limits(self) -> ImageLimits:
        """The size limits of images."""
        return self.decoder.limits

    @property
    def batch_size(self) -> int:
        """Images per batch of the encoder; smaller once its device has run out of memory."""
        return self.embedder.sizes.images

    def sharing(self, streams: int) -> "Pipeline":
        """Return the same pipeline for several concurrent runs, which share the decoding processes and their memory."""
        other = copy(self)
        other.streams = streams
        return other

    def remembering(self, limit: int = MEMORY) -> "Pipeline":
        """Return the same pipeline for one run: every distinct image and caption is encoded once.

        The vectors of images are cached in `limit` bytes, and those of captions in as many: a stream of images, which
        are large, must not evict the captions.
        """
        other = self.remembering_texts(limit)
        if other.embedder.known_images is None:
            other = copy(other)
            other.embedder = replace(other.embedder, known_images=VectorMemory(limit))
        return other

    def remembering_texts(self, limit: int = MEMORY) -> "Pipeline":
        """Return the same pipeline for a stream of images that occur once: every distinct caption is encoded once."""
        if self.embedder.known_texts is not None:
            return self
        other = copy(self)
        other.embedder = replace(self.embedder, known_texts=VectorMemory(limit))
        return other

    @property
    def cache_use(self) -> "CacheUse | None":
        """Statistics of the cache on disk so far; None without one."""
        return None if self.can.cache is None else self.can.cache.use

    @property
    def signature(self) -> str:
        """Everything that can change a score, as one line of `key:value` facts joined by bars."""
        facts = {"enc": self.embedder.signature} | self.form.facts(None if self.bank is None else self.bank.name)
        settings = (f"{name}:{value}" for name, value in facts.items())
        return "|".join([self.form.name.lower(), *settings, f"v:{__version__}"])

    def manifest(self) -> dict[str, Any]:
        """Return the facts of the signature as plain values, so that a run can report which of them changed.

        The hash of a user's encoder is computed again: it may have been trained since the pipeline was built.
        """
        self.embedder = replace(self.embedder, signature=encoder_signature(self.encoder))
        values = asdict(self.form)
        settings = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
        bank = None if self.bank is None else self.bank.name
        limits = list(self.verdict_at)
        return {"encoder": self.embedder.signature, "settings": settings, "bank": bank, "verdict_at": limits}

    def decode(
        self,
        sources: Iterable[ImageSource],
        *,
        pool: Executor | None = None,
        keep: bool = False,
    ) -> list[Decoded | RowError]:
        """Return images ready for the encoder, in order; see `Decoder.decode`."""
        return self.decoder.decode(sources, pool=pool, keep=keep)

    def start_texts(self, captions: Sequence[str]) -> None:
        """Start encoding captions on a GPU, for a later call with them; they must be remembered."""
        if is_gpu(self.encoder.device) and not self.can.cache:
            torch_part("gpu.launching").launcher(self.encoder.device).submit(lambda: self.embedder.texts(captions))

    def fit_images(self, images: Embedded) -> Mixture:
        """Fit the mixtures of embedded images, one per row."""
        return launched(self.encoder.device, lambda: self._fitted(self._side(images), self.form.image_fit))

    def measure(
        self, images: Embedded, texts: Embedded, image_of: Sequence[int], text_of: Sequence[int]
    ) -> Measurement[Any]:
        """Compute similarity and terms of pairs; `image_of` and `text_of` are the indices of their items."""

        def section() -> Measurement[Any]:
            first, second = self._side(images), self._side(texts)
            rows = [images.row(item) for item in image_of], [texts.row(item) for item in text_of]
            image_rows, text_rows = (integers(side, like=first.mask) for side in rows)
            sides = Sides(first, second, rows, texts.captions, image_rows, text_rows, self._fitted)
            return self.form.measure(sides, None if self.bank is None else self.bank.on(device_of(first.mask)))

        return launched(self.encoder.device, section)

    def score(
        self,
        decoded: Sequence[Decoded | RowError],
        captions: Sequence[str],
        owner: Sequence[int],
        *,
        worst: int = 0,
        references: Sequence[Sequence[str] | None] = (),
    ) -> list[Numbers | RowError]:
        """Return numbers or an error for every caption; `owner[i]` is the index of the image of caption i, -1 for none.

        With `worst`, the numbers name up to that many of the least supported words. `references[i]` are the references
        of caption i, or None; a caption without an image has only the numbers of its references.
        """
        return self.completed(lambda: self.launch(decoded, captions, owner, worst=worst, references=references))

    def completed(self, section: Callable[[], Finish]) -> list[Numbers | RowError]:
        """Call a section that calls `launch`, in the launching thread of a GPU, and finish its scores here.

        A cache on disk is read here: only its encoder runs in that thread.
        """
        if self.can.cache or not is_gpu(self.encoder.device):
            return section()()
        results: list[Numbers | RowError] = torch_part("gpu.launching").launcher(self.encoder.device).complete(section)
        return results

    def launch(
        self,
        decoded: Sequence[Decoded | RowError],
        captions: Sequence[str],
        owner: Sequence[int],
        *,
        worst: int = 0,
        references: Sequence[Sequence[str] | None] = (),
    ) -> Finish:
        """Start `score`: all that does not wait for a GPU. The returned function waits, and returns its result."""
        images = self.embedder.images(decoded)  # a GPU starts with the larger part
        texts = self.embedder.texts(captions)
        results: list[Numbers | RowError | None] = [
            images.errors.get(image, texts.errors.get(item)) for item, image in enumerate(owner)
        ]
        valid = [item for item, error in enumerate(results) if error is None and owner[item] >= 0]
        fetch = self.measure(images, texts, [owner[item] for item in valid], valid).fetching() if valid else None

        def finish() -> list[Numbers | RowError]:
            if fetch is not None:
                measured = fetch()
                marks = self.can.marks_overflow and is_gpu(self.encoder.device)
                if marks and np.isnan(measured.similarity).any():
                    raise overflow(self.encoder.name, self.can.precision)
                for item, row in zip(valid, numbers_of(measured, self.form, worst=worst), strict=True):
                    results[item] = not_finite_error(self.encoder) if isnan(row.values["similarity"] or 0.0) else row
            if references or -1 in owner:
                self._add_references(results, texts, captions, references)
            return [row for row in results if row is not None]

        return finish

    def _add_references(
        self,
        results: list[Numbers | RowError | None],
        texts: Embedded,
        captions: Sequence[str],
        references: Sequence[Sequence[str] | None],
    ) -> None:
        """Compare captions with their references, and fill in the results of captions without an image."""
        from msdscore.scoring.references import ReferenceComparison, compare_texts  # few rows have references

        chosen = {
            item: texts_of_item
            for item, texts_of_item in enumerate(references)
            if texts_of_item is not None and not isinstance(results[item], RowError)
        }
        compared = compare_texts(self.embedder, [captions[item] for item in chosen], list(chosen.values()))
        comparisons = dict(zip(chosen, compared, strict=True))
        for item, row in enumerate(results):
            if isinstance(row, Numbers) and item in comparisons:
                results[item] = comparisons[item].added_to(row)
            elif row is None:
                index = texts.row(item)
                layout = texts.vectors.layout[index]
                windows, warnings = (layout.windows, layout.warnings) if isinstance(layout, TokenLayout) else (1, ())
                length = int(texts.vectors.lengths[index])
                results[item] = comparisons.get(item, ReferenceComparison()).alone(length, windows, warnings)

    def _fitted(self, side: Embeddings, settings: FitSettings) -> Mixture:
        """Return one mixture per item; those of the latest single images, whose captions are edited, are cached.

        On a GPU nothing is cached: fitting is fast there, and comparing vectors would wait for the device.
        """
        if len(side) != 1 or not on_cpu(side.points):
            return fit_all(side, settings)
        digest = sha256(f"{side.points.shape} {side.points.dtype} {side.keys}".encode())
        for array in (side.points, side.mask):
            digest.update(to_numpy(array).tobytes())
        return self._mixtures.get((digest.digest(), settings), lambda: fit_all(side, settings))

    def _side(self, embedded: Embedded) -> Embeddings:
        """Return vectors, with the keys of their items if they seed random starts of mixtures.

        Points that were computed in half precision are float16: they have no more precision than that, and comparisons
        are faster.
        """
        batch = embedded.vectors
        if self.decoder.keyed:
            batch = replace(batch, keys=integers(embedded.keys, like=batch.mask))
        return replace(batch, points=batch.points.half()) if self.can.computes_in_half else batch


def recommended_form(encoder: Encoder, bank: NamedBank | None = None) -> Form:
    """Return the settings that an encoder recommends, else the paper's for short captions.

    A `bank` that was built for a form, such as one from captioned images, recommends that form.
    """
    form = None if bank is None else form_of_bank(bank.bank)
    if form is not None:
        return form
    settings = dict(encoder.recommended or {})
    name = settings.pop("form", settings.pop("preset", "short"))  # `preset` in checkpoints of before version 1
    return find_form(name, **settings)


def _bank(bank: NamedBank | None, encoder: Encoder, signature: str, form: Form) -> NamedBank | None:
    """Return the bank passed, else the encoder's; None if the form needs none."""
    if not form.needs_bank:
        if bank is not None:
            remedy = "choose the form evidence" if form_of_bank(bank.bank) else "set calibration=background"
            raise ConfigError(f"a bank was passed, but these settings use none; {remedy}, or omit it")
        return None
    if bank is None and encoder.bank is not None:
        bank = named(encoder.bank, signature)
    if bank is None:
        raise ConfigError(
            f"these settings need a bank, but encoder {encoder.name!r} has none; build one with: "
            "msdscore bank IMAGES --pairs ROWS.jsonl -o bank.safetensors and the --encoder and --form of this run"
        )
    bank.require(signature, form)
    return bank
