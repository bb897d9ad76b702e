"""Batches of a benchmark's images with their items, decoded, encoded and measured once for all metrics."""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from msdscore.core.arrays import float64, to_numpy
from msdscore.core.divergence import total
from msdscore.encoders.base import Embeddings, Encoder, Published, offers
from msdscore.errors import RowError
from msdscore.intervals import Floats
from msdscore.io.images import open_image
from msdscore.rows.images import StoredImage
from msdscore.rows.rules import caption_error
from msdscore.scoring.decoder import Decoded
from msdscore.scoring.embedder import Embedded
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.references import ReferenceComparison, compare_texts
from msdscore_lab.benchmarks.base import (
    Image,
    Item,
    image_key,
    image_names,
    image_ring,
    image_source,
    wrong_image_by_key,
)
from msdscore_lab.metrics.base import Cases, Compare, Need, PublishedVectors, Vectors

BATCH_IMAGES = 64  # decoded together; also the resume granularity


@dataclass(frozen=True, slots=True)
class ItemBatch:
    """Items of a few images: `owner[k]` is the index of the image of `items[k]`, `wrong[k]` of its wrong image.

    Without a control, `wrong` is empty.
    """

    images: tuple[Image, ...]
    items: tuple[int, ...]
    owner: tuple[int, ...]
    wrong: tuple[int, ...]


def item_batches(items: Sequence[Item], *, seed: int, control: bool, size: int = BATCH_IMAGES) -> Iterator[ItemBatch]:
    """Yield all items in batches of `size` images and their wrong images.

    The wrong image is the next one in the ring, so that a batch needs few additional images.
    """
    by_image: dict[str, list[int]] = defaultdict(list)
    for index, item in enumerate(items):
        by_image[image_key(item.image)].append(index)
    wrong_images = wrong_image_by_key(items, seed) if control else {}
    ring = {image_key(image): image for image in image_ring(items, seed)}
    for start in range(0, len(ring), size):
        keys = list(ring)[start : start + size]
        images = {key: ring[key] for key in keys}
        images |= {image_key(wrong): wrong for wrong in (wrong_images[key] for key in keys if control)}
        image_index = {key: index for index, key in enumerate(images)}
        owners = [(index, key) for key in keys for index in by_image[key]]
        yield ItemBatch(
            tuple(images.values()),
            tuple(index for index, _ in owners),
            tuple(image_index[key] for _, key in owners),
            tuple(image_index[image_key(wrong_images[key])] for _, key in owners) if control else (),
        )


_DECODERS = 4
_LONG = re.compile(r",long:\w+")
DecodedT = TypeVar("DecodedT")


def text_cases(items: Sequence[Item]) -> Callable[..., Cases]:
    """Return a function that converts a batch to cases without vectors; `whole` marks the complete benchmark.

    A wrong image has the references of its first item.
    """
    references: dict[str, tuple[str, ...]] = {}
    for item in items:
        references.setdefault(image_key(item.image), item.references)
    return partial(_cases, items, image_names(item.image for item in items), references)


def _cases(
    items: Sequence[Item],
    names: Mapping[str, str],
    references: Mapping[str, tuple[str, ...]],
    batch: ItemBatch,
    *,
    whole: bool,
) -> Cases:
    batch_items = [items[index] for index in batch.items]
    texts = tuple(dict.fromkeys(text for item in batch_items for text in item.captions))
    text_index = {text: index for index, text in enumerate(texts)}
    captions = np.array([[text_index[text] for text in item.captions] for item in batch_items], dtype=np.int64)
    repeats = 2 if batch.wrong else 1
    owner = np.array([*batch.owner, *batch.wrong], dtype=np.int64)
    control = np.repeat([False, True], [len(batch_items), len(batch.wrong)])
    keys = [image_key(image) for image in batch.images]
    wrong_references = (references[keys[wrong]] for wrong in batch.wrong)
    return Cases(
        ids=tuple(item.id for item in batch_items) * repeats,
        texts=texts,
        captions=np.tile(captions, (repeats, 1)),
        images=(None,) * len(keys),
        owner=owner,
        group=owner + len(keys) * control,
        control=control,
        references=(*(item.references for item in batch_items), *wrong_references),
        whole=whole,
        names=tuple(names[key] for key in keys),
    )


def fill(
    bare: Cases, batch: ItemBatch, needs: Collection[Need], pipeline: Pipeline | None
) -> tuple[Cases, dict[int, str]]:
    """Decode and encode what the metrics need; return the cases, and errors by index in the batch."""
    if "encoder" not in needs and "images" not in needs:
        return bare, {}
    if pipeline is None:
        opened = _read_all(batch.images, open_image)
        images = tuple(None if isinstance(image, RowError) else image for image in opened)
        return replace(bare, images=images), _image_errors(opened, batch)
    decoded = _read_all(batch.images, lambda source: pipeline.decode([source], keep="images" in needs)[0])
    images = tuple(None if isinstance(image, RowError) else image.image for image in decoded)
    vectors, text_errors = make_vectors(bare, decoded, pipeline, mixtures="mixtures" in needs)
    errors = _image_errors(decoded, batch)
    for index, texts in enumerate(bare.captions[: len(batch.items)].tolist()):
        for text in texts:
            if bare.texts[text] in text_errors:
                errors.setdefault(index, text_errors[bare.texts[text]])
    return replace(bare, images=images, vectors=vectors), errors


def _image_errors(images: Sequence[object], batch: ItemBatch) -> dict[int, str]:
    """Return the error of each item whose image could not be read, by its index in the batch."""
    errors = {index: str(error) for index, error in enumerate(images) if isinstance(error, RowError)}
    return {index: errors[owner] for index, owner in enumerate(batch.owner) if owner in errors}


def _read_all(
    images: Sequence[Image], decode: Callable[[Path | bytes], DecodedT | RowError]
) -> list[DecodedT | RowError]:
    """Read images concurrently, those inside tables in the order of their rows."""

    def read(index: int) -> DecodedT | RowError:
        try:
            return decode(image_source(images[index]))
        except RowError as error:
            return error

    read_order = [
        (str(image.file), image.row) if isinstance(image, StoredImage) else ("", index)
        for index, image in enumerate(images)
    ]
    order = sorted(range(len(images)), key=read_order.__getitem__)
    with ThreadPoolExecutor(_DECODERS) as pool:
        opened = dict(zip(order, pool.map(read, order), strict=True))
    return [opened[index] for index in range(len(images))]


def make_vectors(
    cases: Cases, decoded: Sequence[Decoded | RowError], pipeline: Pipeline, *, mixtures: bool
) -> tuple[Vectors, dict[str, str]]:
    """Return the vectors of a batch, for true and wrong images, and the errors of texts that cannot be scored."""
    images, texts = pipeline.embedder.images(decoded), pipeline.embedder.texts(cases.texts)
    errors = {text: str(texts.errors[item]) for item, text in enumerate(cases.texts) if item in texts.errors}
    errors |= {text: str(error) for text in cases.texts if (error := caption_error(text)) is not None}
    pair_index: dict[tuple[int, int], int] = {}  # distinct pairs of image and text
    pair_of = np.full(cases.captions.shape, -1, dtype=np.int64)
    for (case, candidate), text in np.ndenumerate(cases.captions):
        image = int(cases.owner[case])
        if images.rows[image] is not None and cases.texts[text] not in errors:
            pair_of[case, candidate] = pair_index.setdefault((image, int(text)), len(pair_index))
    pairs, bank = list(pair_index), pipeline.bank
    empty = Embeddings(np.zeros((0, 1, 1)), np.zeros((0, 1), dtype=bool), np.zeros((0, 1)), ())
    vectors = Vectors(
        images.batch or empty,
        texts.batch or empty,
        tuple(text for text, row in zip(cases.texts, texts.rows, strict=True) if row is not None),
        np.array([images.row(image) for image, _ in pairs], dtype=np.int64),
        np.array([texts.row(text) for _, text in pairs], dtype=np.int64),
        pair_of,
        _columns(pipeline, images, texts, pairs, mixtures=mixtures),
        cache(partial(_published, pipeline, decoded, images)),
        _cached_compare(partial(compare_texts, pipeline.embedder)),
        pipeline.form,
        None if bank is None else to_numpy(bank.bank.images.means),
    )
    return vectors, errors


def _published(pipeline: Pipeline, decoded: Sequence[Decoded | RowError], images: Embedded) -> PublishedVectors:
    """Encode the images of a batch as the encoder's publication defines it, unless they already are."""
    plain = published_encoder(pipeline.encoder)
    memories: dict[str, Any] = {} if plain is pipeline.encoder else {"known_images": None, "known_texts": None}
    embedder = replace(pipeline.embedder, encoder=plain, **memories)
    # Only texts depend on the handling of long captions.
    same_images = _LONG.sub("", plain.signature) == _LONG.sub("", pipeline.encoder.signature)
    batch = images.batch if same_images else embedder.images(decoded).batch
    return PublishedVectors(np.zeros((0, 1)) if batch is None else batch.pooled, embedder.vectors)


def published_encoder(encoder: Encoder) -> Encoder:
    """Return the encoder with the model's own pooling and captions cut at the context, on the plain backbone.

    Raises:
        ConfigError: If the model has no pooled vectors.
    """
    return encoder.as_published() if offers(encoder, Published) else encoder


def _cached_compare(compare: Compare) -> Compare:
    """Cache comparisons of captions with their references across the metrics of a batch."""
    cached: dict[tuple[str, tuple[str, ...]], ReferenceComparison] = {}

    def compare_new(captions: Sequence[str], references: Sequence[Sequence[str]]) -> list[ReferenceComparison]:
        pairs = [(text, tuple(item_references)) for text, item_references in zip(captions, references, strict=True)]
        new = [key for key in dict.fromkeys(pairs) if key not in cached]
        cached.update(
            zip(new, compare([text for text, _ in new], [item_references for _, item_references in new]), strict=True)
        )
        return [cached[key] for key in pairs]

    return compare_new


def _columns(
    pipeline: Pipeline, images: Embedded, texts: Embedded, pairs: Sequence[tuple[int, int]], *, mixtures: bool
) -> Mapping[str, Floats]:
    """Return the scores of all pairs; without mixtures only their similarity."""
    if not pairs:
        return {name: np.zeros(0) for name in ("similarity", *pipeline.form.columns, "msd")}
    image_of, text_of = [image for image, _ in pairs], [text for _, text in pairs]
    if not mixtures:
        first = pipeline.form.pooled(images.vectors)[[images.row(item) for item in image_of]]
        second = pipeline.form.pooled(texts.vectors)[[texts.row(item) for item in text_of]]
        return {"similarity": float64(total(first * second))}
    measured = pipeline.measure(images, texts, image_of, text_of)
    columns = dict(pipeline.form.numbers(measured))
    # The baseline is the plain cosine, including captions with negations.
    return columns | {"similarity": float64(measured.similarity)}
