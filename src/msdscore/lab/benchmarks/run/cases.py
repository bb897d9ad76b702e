"""Batches of a benchmark's images with their items, decoded, encoded and measured once for all metrics."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from msdscore.core.paper import total
from msdscore.encoders.base import Embeddings
from msdscore.errors import RowError
from msdscore.intervals import Floats
from msdscore.io.images import open_image
from msdscore.io.parquet_images import StoredImage
from msdscore.lab.benchmarks.base import (
    Image,
    Item,
    cluster,
    image_key,
    image_names,
    image_ring,
    image_source,
    wrong_image_by_key,
)
from msdscore.lab.metrics.base import Cases, Compare, Need, Vectors
from msdscore.scoring.decoder import Decoded
from msdscore.scoring.embedder import Embedded
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.references import ReferenceComparison, compare_texts

BATCH_IMAGES = 64  # decoded together; also the resume granularity


@dataclass(frozen=True, slots=True)
class ItemBatch:
    """Items of a few images: `owner[k]` is the index of the image of `items[k]`, `stranger[k]` that of the wrong one.

    Without a control, `stranger` is empty.
    """

    images: tuple[Image, ...]
    items: tuple[int, ...]
    owner: tuple[int, ...]
    stranger: tuple[int, ...]


def item_batches(
    items: Sequence[Item],
    *,
    seed: int,
    control: bool,
    size: int = BATCH_IMAGES,
    chosen: Collection[int] | None = None,
) -> Iterator[ItemBatch]:
    """Yield all items, or the `chosen` ones, in batches of `size` images and their wrong images.

    The wrong image is the next one in the ring, so that a batch needs few additional images. Images of one prompt are
    in one batch, because Soft-MSD compares them.
    """
    keys = [image_key(item.image) for item in items]
    position = {image_key(image): at for at, image in enumerate(image_ring(items, seed))}
    together: dict[str, list[int]] = defaultdict(list)
    for number in range(len(items)) if chosen is None else sorted(chosen):
        together[cluster(items[number])].append(number)
    strangers = wrong_image_by_key(items, seed) if control else {}
    ordered = sorted(together.values(), key=lambda numbers: min(position[keys[number]] for number in numbers))
    for numbers in _grouped(ordered, keys, size):
        images = {keys[number]: items[number].image for number in numbers}
        images |= {image_key(other): other for other in (strangers[key] for key in list(images) if control)}
        number_of = {key: number for number, key in enumerate(images)}
        yield ItemBatch(
            tuple(images.values()),
            tuple(numbers),
            tuple(number_of[keys[number]] for number in numbers),
            tuple(number_of[image_key(strangers[keys[number]])] for number in numbers) if control else (),
        )


def _grouped(clusters: Iterable[list[int]], keys: Sequence[str], size: int) -> Iterator[list[int]]:
    """Join clusters of items while they have at most `size` images."""
    batch, images = list[int](), set[str]()
    for numbers in clusters:
        more = {keys[number] for number in numbers} - images
        if batch and len(images) + len(more) > size:
            yield batch
            batch, images = [], set()
        batch += numbers
        images |= {keys[number] for number in numbers}
    if batch:
        yield batch


_DECODERS = 4
Seen = TypeVar("Seen")


def text_cases(items: Sequence[Item]) -> Callable[..., Cases]:
    """Return a function from a batch (and whether it is the `whole` benchmark) to its cases, without vectors.

    A wrong image has the references of its first item.
    """
    names, references = image_names(item.image for item in items), dict[str, tuple[str, ...]]()
    for item in items:
        references.setdefault(image_key(item.image), item.references)

    def cases(batch: ItemBatch, *, whole: bool) -> Cases:
        mine = [items[number] for number in batch.items]
        texts = tuple(dict.fromkeys(text for item in mine for text in item.captions))
        number_of = {text: number for number, text in enumerate(texts)}
        captions = np.array([[number_of[text] for text in item.captions] for item in mine], dtype=np.int64)
        turns = 2 if batch.stranger else 1
        owner = np.array([*batch.owner, *batch.stranger], dtype=np.int64)
        control = np.repeat([False, True], [len(mine), len(batch.stranger)])
        keys = [image_key(image) for image in batch.images]
        group = dict[str | int, int]()
        own = [getattr(item, "group", "") or number for number, item in enumerate(mine)]
        sets = np.array([group.setdefault(key, len(group)) for key in own], dtype=np.int64)
        return Cases(
            ids=tuple(item.id for item in mine) * turns,
            texts=texts,
            captions=np.tile(captions, (turns, 1)),
            images=(None,) * len(keys),
            owner=owner,
            group=owner + len(keys) * control,
            control=control,
            references=(*(item.references for item in mine), *(references[keys[n]] for n in batch.stranger)),
            whole=whole,
            names=tuple(names[key] for key in keys),
            sets=np.concatenate([sets + turn * len(mine) for turn in range(turns)]),
        )

    return cases


def fill(
    bare: Cases, batch: ItemBatch, needs: Collection[Need], pipeline: Pipeline | None
) -> tuple[Cases, dict[int, str]]:
    """Decode and encode as the metrics need; return the cases, and errors by position in the batch."""
    if "encoder" not in needs and "images" not in needs:
        return bare, {}
    decode = open_image if pipeline is None else lambda source: pipeline.decode([source], keep="images" in needs)[0]
    decoded: list[Any] = _read_all(batch.images, decode)
    unseen = {number: str(error) for number, error in enumerate(decoded) if isinstance(error, RowError)}
    errors = {number: unseen[owner] for number, owner in enumerate(batch.owner) if owner in unseen}
    opened = tuple(None if isinstance(d, RowError) else d if pipeline is None else d.image for d in decoded)
    if pipeline is None:
        return replace(bare, images=opened), errors
    vectors, unread = make_vectors(bare, decoded, pipeline, mixtures="mixtures" in needs)
    for number, row in enumerate(bare.captions[: len(batch.items)].tolist()):
        reasons = [unread[text] for text in row if text in unread]
        errors |= {number: reasons[0]} if reasons and number not in errors else {}
    return replace(bare, images=opened, vectors=vectors), errors


def _read_all(images: Sequence[Image], decode: Callable[[Path | bytes], Seen | RowError]) -> list[Seen | RowError]:
    """Read images concurrently, those inside tables in the order of their rows."""

    def read(number: int) -> Seen | RowError:
        try:
            return decode(image_source(images[number]))
        except RowError as error:
            return error

    places = [(str(i.file), i.row) if isinstance(i, StoredImage) else ("", number) for number, i in enumerate(images)]
    order = sorted(range(len(images)), key=places.__getitem__)
    with ThreadPoolExecutor(_DECODERS) as pool:
        opened = dict(zip(order, pool.map(read, order), strict=True))
    return [opened[number] for number in range(len(images))]


def make_vectors(
    cases: Cases, decoded: Sequence[Decoded | RowError], pipeline: Pipeline, *, mixtures: bool
) -> tuple[Vectors, dict[int, str]]:
    """Return the vectors of a batch, for true and wrong images, and the errors of unreadable texts."""
    images, texts = pipeline.embed_images(decoded), pipeline.embed_texts(cases.texts)
    known: dict[tuple[int, int], int] = {}  # distinct pairs of image and text
    pair_of = np.full(cases.captions.shape, -1, dtype=np.int64)
    for (case, candidate), text in np.ndenumerate(cases.captions):
        image = int(cases.owner[case])
        if images.rows[image] is not None and texts.rows[text] is not None:
            pair_of[case, candidate] = known.setdefault((image, int(text)), len(known))
    pairs, bank = list(known), pipeline.placed_bank(pipeline.encoder.device)
    empty = Embeddings(torch.zeros(0, 1, 1), torch.zeros(0, 1, dtype=torch.bool), torch.zeros(0, 1), ())
    vectors = Vectors(
        images.batch or empty,
        texts.batch or empty,
        tuple(text for text, row in zip(cases.texts, texts.rows, strict=True) if row is not None),
        np.array([images.row(image) for image, _ in pairs], dtype=np.int64),
        np.array([texts.row(text) for _, text in pairs], dtype=np.int64),
        pair_of,
        _columns(pipeline, images, texts, pairs, mixtures=mixtures),
        pipeline.embedder.vectors,
        _compared_once(partial(compare_texts, pipeline.embedder)),
        pipeline.config,
        None if bank is None else bank.images.means,
    )
    return vectors, {item: str(reason) for item, reason in texts.reasons.items()}


def _compared_once(compare: Compare) -> Compare:
    """Compare every caption with its references once, whichever metrics of a batch need it."""
    known: dict[tuple[str, tuple[str, ...]], ReferenceComparison] = {}

    def compare_new(captions: Sequence[str], references: Sequence[Sequence[str]]) -> list[ReferenceComparison]:
        pairs = [(text, tuple(own)) for text, own in zip(captions, references, strict=True)]
        fresh = [key for key in dict.fromkeys(pairs) if key not in known]
        known.update(zip(fresh, compare([text for text, _ in fresh], [own for _, own in fresh]), strict=True))
        return [known[key] for key in pairs]

    return compare_new


def _columns(
    pipeline: Pipeline, images: Embedded, texts: Embedded, pairs: Sequence[tuple[int, int]], *, mixtures: bool
) -> Mapping[str, Floats]:
    """Return the numbers of all pairs; without mixtures only their similarity."""
    if not pairs:
        return {name: np.zeros(0) for name in ("similarity", *pipeline.config.columns, "msd")}
    image_of, text_of = [image for image, _ in pairs], [text for _, text in pairs]
    if not mixtures:
        first = images.vectors.pooled[[images.row(item) for item in image_of]]
        second = texts.vectors.pooled[[texts.row(item) for item in text_of]]
        return {"similarity": total(first * second).double().cpu().numpy()}
    measured = pipeline.measure(images, texts, image_of, text_of)
    numbers = {name: values.numpy() for name, values in pipeline.config.numbers(measured).items()}
    # The baseline is the plain cosine, also for captions with negations.
    return numbers | {"similarity": measured.similarity.double().cpu().numpy()}
