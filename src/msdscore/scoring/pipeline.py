"""From sources to numbers: decode, embed with a reason for every item that fails, measure.

Everything that scores goes through here: the scorer, runs over files, benchmarks, studies and explanations.
"""

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from PIL import __version__ as pillow_version

from msdscore.core.device import in_flight, launching
from msdscore.core.evidence import Bank
from msdscore.core.mixture import Mixture
from msdscore.core.schedule import fit_all
from msdscore.encoders.backbone import checked_late, overflow
from msdscore.encoders.base import (
    Embeddings,
    Encoder,
    Prepared,
    TextMemory,
    TokenLayout,
    computes_in_half,
    encode_by_length,
    encode_in_batches,
)
from msdscore.encoders.cached import CachedEncoder, CacheUse
from msdscore.encoders.vision.device import decode_jpegs
from msdscore.encoders.vision.preprocessing import Preprocessing, preprocessing_of
from msdscore.errors import CaptionError, ConfigError, RowError
from msdscore.forms.base import Form, Measurement
from msdscore.forms.registry import check_form, form_of_bank, preset
from msdscore.io.hashing import pixel_key, text_key
from msdscore.io.images import ImageLimits, ImageSource, open_image, read_source, source_name
from msdscore.io.tar import File, TarImage
from msdscore.scoring.bank import NamedBank, own_bank
from msdscore.scoring.config import Identity
from msdscore.scoring.embedded import Decoded, Embedded, open_prepared, sort_out, without_empty
from msdscore.scoring.measurement import Numbers, measure_pairs, numbers

if TYPE_CHECKING:  # imported where decoding processes are used
    from msdscore.scoring.decoding import DecodingProcesses

# Images per batch by kind of device: what fills it, halved where its memory runs out.
BATCH_SIZES = {"cpu": 32, "cuda": 256}
# Texts per batch: short ones go with short ones, so that little is padded; to a GPU every batch is work for the host.
MOST_TEXTS = {"cpu": 128, "cuda": 256}


class Pipeline:
    """One encoder, one configuration and one bank, and the way from images and captions to numbers.

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
        config: Form | None = None,
        *,
        bank: NamedBank | None = None,
        limits: ImageLimits | None = None,
        batch_size: int | None = None,
        decoders: int | None = None,
    ) -> None:
        if batch_size is not None and (not isinstance(batch_size, int) or batch_size < 1):
            raise ConfigError(f"batch_size must be a whole number of at least 1, got {batch_size!r}")
        if not hasattr(encoder, "encode_images"):
            raise ConfigError(f"expected an encoder or the name of one, got {type(encoder).__name__}")
        check_form(config)
        self.encoder = encoder
        self.config = config or recommended_config(encoder, bank)
        self.bank = _bank(bank, encoder, self.config)
        self.limits = limits or ImageLimits()
        self.batch_size = batch_size or BATCH_SIZES.get(encoder.device.type, BATCH_SIZES["cpu"])
        self.decoders = decoders
        self.streams = 1  # that share the decoding processes and their memory
        self._draws = self.config.image_fit.init == "sample"  # starts, by an item's content
        self._texts: TextMemory | None = None
        self._placed: Bank | None = None

    def remembering(self) -> "Pipeline":
        """The same pipeline for one run: every distinct image and caption goes through the encoder once."""
        if isinstance(self.encoder, CachedEncoder):
            return self
        other = copy(self)
        other.encoder = CachedEncoder(self.encoder)
        return other

    def remembering_texts(self) -> "Pipeline":
        """The same pipeline for a stream of images that come once: every distinct caption is encoded once."""
        if isinstance(self.encoder, CachedEncoder):
            return self
        other = copy(self)
        other._texts = TextMemory()
        return other

    @property
    def cache_use(self) -> CacheUse | None:
        """What a cache on disk has saved so far; None where there is none."""
        encoder = self.encoder
        return encoder.use if isinstance(encoder, CachedEncoder) and encoder.is_lasting else None

    @property
    def identity(self) -> Identity:
        """Everything that can change a score."""
        return Identity(self.encoder.signature, self.config, None if self.bank is None else self.bank.name)

    @property
    def signature(self) -> str:
        """Everything that can change a score, in one line."""
        return self.identity.signature

    def decode(
        self, sources: Iterable[ImageSource], *, pool: Executor | None = None, keep: bool = False
    ) -> list[Decoded | RowError]:
        """Images ready for the encoder, in order; the error stands in place of one that cannot be read.

        With a `pool` of threads they are read side by side. With `keep` the decoded images are kept in full size.
        """
        encoder, draws, lasting = self.encoder, self._draws, None
        if isinstance(encoder, CachedEncoder) and encoder.is_lasting and not (keep or draws):
            lasting = encoder  # it knows images by the bytes of their files; drawn starts need pixels

        def read(source: ImageSource) -> Decoded | RowError:
            try:
                if lasting and isinstance(source, str | Path | bytes | TarImage):
                    return Decoded(self._prepare_file(lasting, source))
                # A full hash of the pixels costs as much as decoding: only drawn starts need it.
                if not (keep or draws):
                    return Decoded(self._prepare(source))
                image = open_image(source, limits=self.limits)
                # A reduced image is decoded once more, so that it has the same numbers whatever is asked for.
                prepared = self._prepare(source if isinstance(source, File) else image)
                return Decoded(prepared, pixel_key(image) if draws else 0, image if keep else None)
            except RowError as error:
                return error

        given = list(sources)
        decoded = list(map(read, given) if pool is None else pool.map(read, given))
        steps = preprocessing_of(encoder)
        if lasting or steps is None or not steps.jpeg_on_device:
            return decoded
        ready = self.decode_on_device(given, [item.prepared if isinstance(item, Decoded) else item for item in decoded])
        for number, (item, image) in enumerate(zip(decoded, ready, strict=True)):
            if isinstance(item, Decoded):
                decoded[number] = image if isinstance(image, RowError) else replace(item, prepared=image)
        return decoded

    def decode_on_device(
        self, sources: Sequence[ImageSource], images: Sequence[Prepared | RowError]
    ) -> list[Prepared | RowError]:
        """Images of which those that are still files are decoded by the device, or the usual way where it cannot."""
        ready, steps = list(images), preprocessing_of(self.encoder)
        if steps is None or not steps.jpeg_on_device:
            return ready
        files = {n: image for n, image in enumerate(images) if isinstance(image, Prepared) and image.pixels.dim() == 1}
        for number, canvas in zip(files, decode_jpegs(list(files.values()), steps, self.encoder.device), strict=True):
            try:
                ready[number] = canvas or self._prepare(sources[number], steps=replace(steps, jpeg_on_device=False))
            except RowError as error:
                ready[number] = error
        return ready

    def decoding_processes(self, threads: Executor, *, ahead: int) -> "DecodingProcesses | None":
        """Processes that decode for a long run, where the encoder and its settings allow it; `ahead` images at most.

        Unless their number is given there is one per core where a GPU waits for images, and none on a CPU.
        """
        prepare, steps = getattr(self.encoder, "sendable_prepare", None), preprocessing_of(self.encoder)
        # Without steps a process needs torch, and takes seconds to start: only where it is asked for.
        wanted = self.encoder.device.type == "cuda" and steps is not None if self.decoders is None else self.decoders
        # Only Posix systems can hand open files to other processes.
        if not wanted or prepare is None or self._draws or os.name != "posix":
            return None
        from msdscore.scoring.decoding import DecodingProcesses, reader, room_per_image

        def otherwise(sources: Sequence[ImageSource]) -> list[Prepared | RowError]:
            decoded = self.decode(sources, pool=threads)
            return [image.prepared if isinstance(image, Decoded) else image for image in decoded]

        return DecodingProcesses(
            self.decoders,
            reader(prepare, steps=steps, limits=self.limits),
            room=room_per_image(steps),
            ahead=ahead,
            otherwise=otherwise,
        )

    def embed_images(self, decoded: Sequence[Decoded | RowError]) -> Embedded:
        """Vectors of decoded images, batch by batch."""

        def encode(items: Sequence[Decoded]) -> Embeddings:
            prepared = [item.prepared for item in items]
            # Where the device has no memory for larger batches, smaller ones are used from then on.
            smaller = partial(setattr, self, "batch_size")
            return encode_in_batches(prepared, self.encoder.encode_images, size=self.batch_size, smaller=smaller)

        batch, rows, reasons = sort_out(decoded, encode)
        keys = tuple(
            item.key for item, row in zip(decoded, rows, strict=True) if row is not None and isinstance(item, Decoded)
        )
        return Embedded(batch, rows, reasons, keys)

    def embed_texts(self, captions: Sequence[str]) -> Embedded:
        """Vectors of captions, each distinct one embedded once; one that holds nothing to read has a reason."""
        # An error is compared by identity: every caption that is no text stays an item of its own.
        checked = [
            text if isinstance(text, str) else CaptionError(f"a caption must be text, got {type(text).__name__}")
            for text in captions
        ]
        number_of = {text: number for number, text in enumerate(dict.fromkeys(checked))}
        distinct, numbers = list(number_of), [number_of[text] for text in checked]
        memory = self._texts
        encode = self.encode_texts if memory is None else lambda texts: memory.recall(texts, self.encode_texts)
        batch, rows, reasons = sort_out(distinct, encode)
        if batch is not None:
            batch, rows, reasons = without_empty(distinct, batch, rows, reasons)
        captions = tuple(str(text) for text, row in zip(distinct, rows, strict=True) if row is not None)
        return Embedded(
            batch,
            tuple(rows[number] for number in numbers),
            {item: reasons[number] for item, number in enumerate(numbers) if number in reasons},
            tuple(map(text_key, captions)),
            captions,
        )

    def encode_texts(self, captions: Sequence[str]) -> Embeddings:
        """Vectors of texts as they are, in order; raises `RowError` for one that the encoder refuses."""
        most = MOST_TEXTS.get(self.encoder.device.type, MOST_TEXTS["cpu"])
        return encode_by_length(captions, self.encoder.encode_texts, size=min(4 * self.batch_size, most))

    def placed_bank(self, device: torch.device) -> Bank | None:
        """The bank on a device; moved there once."""
        if self.bank is not None and (self._placed is None or self._placed.images.means.device != device):
            bank = self.bank.bank
            texts = None if bank.texts is None else bank.texts.to(device)
            self._placed = replace(bank, images=bank.images.to(device), texts=texts)
        return self._placed

    def fit_images(self, images: Embedded) -> Mixture:
        """The mixtures of embedded images, one per row."""
        batch = self._as_computed(images.vectors)
        keys = torch.tensor(images.keys, dtype=torch.int64, device=batch.points.device)
        return fit_all(replace(batch, keys=keys), self.config.image_fit)

    def measure(
        self, images: Embedded, texts: Embedded, image_of: Sequence[int], text_of: Sequence[int]
    ) -> Measurement[Any]:
        """Similarity and terms of pairs; `image_of` and `text_of` are the numbers of their image and caption."""
        return measure_pairs(
            self._as_computed(images.vectors),
            self._as_computed(texts.vectors),
            ([images.row(item) for item in image_of], [texts.row(item) for item in text_of]),
            keys=(images.keys, texts.keys),
            form=self.config,
            bank=self.placed_bank(images.vectors.points.device),
            captions=texts.captions,
        )

    def score(
        self,
        decoded: Sequence[Decoded | RowError],
        captions: Sequence[str],
        owner: Sequence[int],
        *,
        worst: int = 0,
        references: Sequence[Sequence[str] | None] = (),
    ) -> list[Numbers | RowError]:
        """Numbers or an error for every caption; `owner[i]` is the index of the image of caption i, -1 for none.

        With `worst`, the numbers name up to that many of the least supported words. `references[i]` are the references
        of caption i, or None; a caption without an image has only the numbers of its references.
        """
        # On a GPU the host waits for the device once, for the numbers: all that it can know before is known by then.
        late = self.encoder.device.type == "cuda" and not isinstance(self.encoder, CachedEncoder)
        with in_flight(self.encoder.device) if late else nullcontext():
            with launching(self.encoder.device) if late else nullcontext():
                with checked_late() if late else nullcontext():
                    texts, images = self.embed_texts(captions), self.embed_images(decoded)
                results: list[Numbers | RowError | None] = [
                    images.reasons.get(image, texts.reasons.get(item)) for item, image in enumerate(owner)
                ]
                good = [item for item, reason in enumerate(results) if reason is None and owner[item] >= 0]
                fetch = self.measure(images, texts, [owner[item] for item in good], good).fetching() if good else None
            measured = None if fetch is None else fetch()
        if measured is not None:
            if late and bool(measured.similarity.isnan().any()):
                raise overflow(self.encoder)
            rows = numbers(measured, self.config, worst=worst)
            for item, row in zip(good, rows, strict=True):
                results[item] = row
        if references or -1 in owner:
            self._add_references(results, texts, captions, references)
        return [row for row in results if row is not None]

    def _add_references(
        self,
        results: list[Numbers | RowError | None],
        texts: Embedded,
        captions: Sequence[str],
        references: Sequence[Sequence[str] | None],
    ) -> None:
        """Compare captions with their references, and fill in the results of captions without an image."""
        from msdscore.scoring.references import Comparison, compare_texts

        own = references or [None] * len(captions)
        chosen = [item for item, row in enumerate(results) if own[item] is not None and not isinstance(row, RowError)]
        compared = compare_texts(self, [captions[item] for item in chosen], [own[item] or () for item in chosen])
        known = dict(zip(chosen, compared, strict=True))
        for item, row in enumerate(results):
            if isinstance(row, Numbers) and item in known:
                results[item] = known[item].added_to(row)
            elif row is None:
                place = texts.row(item)
                layout = texts.vectors.layout[place]
                windows, warnings = (layout.windows, layout.warnings) if isinstance(layout, TokenLayout) else (1, ())
                length = int(texts.vectors.mask[place].sum())
                results[item] = known.get(item, Comparison()).alone(length, windows, warnings)

    def _prepare_file(self, encoder: CachedEncoder, source: str | Path | bytes | TarImage) -> Prepared:
        content = read_source(source, limits=self.limits)

        def make() -> Prepared:
            prepared = self._prepare(content, name=source_name(source))
            (ready,) = self.decode_on_device([source], [prepared])
            if isinstance(ready, RowError):
                raise ready
            return ready

        # Everything that can change the pixels of a file, or refuse it.
        return encoder.prepare_file(content, f"Pillow {pillow_version} {self.limits}", make)

    def _as_computed(self, batch: Embeddings) -> Embeddings:
        """Points computed in half precision, as float16: they hold no more than that, and are compared faster."""
        return replace(batch, points=batch.points.half()) if computes_in_half(self.encoder) else batch

    def _prepare(self, source: ImageSource, *, steps: Preprocessing | None = None, name: str | None = None) -> Prepared:
        steps = steps or preprocessing_of(self.encoder)
        return open_prepared(source, self.encoder.prepare, steps=steps, limits=self.limits, name=name)


def recommended_config(encoder: Encoder, bank: NamedBank | None = None) -> Form:
    """The settings that an encoder recommends for itself, else the paper's for short captions.

    A `bank` that was built for a form, such as one from captioned images, recommends that form.
    """
    form = None if bank is None else form_of_bank(bank.bank)
    if form is not None:
        return form
    given = dict(encoder.recommended or {})
    return preset(given.pop("preset", "short"), **given)


def _bank(given: NamedBank | None, encoder: Encoder, form: Form) -> NamedBank | None:
    """The bank given, else the one that comes with the encoder; none where the form needs none."""
    if not form.needs_bank:
        if given is not None:
            own = form_of_bank(given.bank)
            remedy = "set calibration=background" if own is None else f"choose the preset {own.facts()['form']}"
            raise ConfigError(f"a bank is given, and these settings use none; {remedy}, or leave it out")
        return None
    named = given or own_bank(encoder)
    if named is None:
        raise ConfigError(
            f"these settings need a bank, and encoder {encoder.name!r} brings none; build one with: "
            f"msdscore bank IMAGES -o bank.safetensors --encoder {encoder.name}"
        )
    named.require(encoder, form)
    return named
