"""Regions taken from a picture: patches dropped from its points, or pixels blanked before it is encoded again."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from msdscore.benchmarks.base import Pair, picture, picture_key
from msdscore.encoders.base import PatchLayout
from msdscore.encoders.batches import take
from msdscore.errors import InputError
from msdscore.explain.maps import Regions, project
from msdscore.explain.terms import picture_of, terms_of
from msdscore.scoring.embedded import Embedded
from msdscore.scoring.measurement import numbers
from msdscore.scoring.pipeline import Pipeline

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]
PAIRS = 16  # that are worked on together


@dataclass(frozen=True, slots=True)
class MeasuredPairs:
    """Some pairs embedded and measured; captions 2i and 2i + 1 are the right and the wrong one of pair i.

    `owner` holds the number of each caption's picture.
    """

    pairs: tuple[Pair, ...]
    pictures: tuple[Image.Image, ...]
    images: Embedded
    texts: Embedded
    owner: tuple[int, ...]
    layouts: tuple[PatchLayout, ...]
    regions: tuple[Regions, ...]
    divergence: Floats


def drawn_pairs(pairs: Sequence[Pair], limit: int | None, seed: int) -> list[Pair]:
    """At most `limit` pairs, drawn by `seed` and kept in the order of the file."""
    if not pairs:
        raise InputError("expected at least one pair with a right and a wrong caption, got none")
    if limit is None or limit >= len(pairs):
        return list(pairs)
    chosen = np.random.default_rng(seed).choice(len(pairs), size=limit, replace=False)
    return [pairs[number] for number in np.sort(chosen)]


def pair_groups(pairs: Sequence[Pair]) -> list[tuple[Pair, ...]]:
    """Pairs some at a time, those of one picture side by side."""
    ordered = sorted(pairs, key=lambda pair: picture_key(pair.image))
    return [tuple(ordered[start : start + PAIRS]) for start in range(0, len(ordered), PAIRS)]


def measured_pairs(pipeline: Pipeline, some: Sequence[Pair], projection: str) -> MeasuredPairs:
    """Some pairs embedded, measured and projected; pairs of one picture share it."""
    names = list(dict.fromkeys(picture_key(pair.image) for pair in some))
    sources = {picture_key(pair.image): pair.image for pair in some}
    owner = tuple(names.index(picture_key(pair.image)) for pair in some for _ in pair.captions)
    captions = [caption for pair in some for caption in pair.captions]
    decoded = pipeline.decode([picture(sources[name]) for name in names], keep=True)
    images, texts = pipeline.embed_images(decoded).require(), pipeline.embed_texts(captions).require()
    measured = pipeline.measure(images, texts, owner, range(len(captions)))
    return MeasuredPairs(
        tuple(some),
        tuple(map(picture_of, decoded)),
        images,
        texts,
        owner,
        measured.patches,
        tuple(project(terms, projection) for terms in terms_of(pipeline.config, images, texts, measured)),
        np.array([row.divergence for row in numbers(measured, pipeline.config)]),
    )


def divergences(
    pipeline: Pipeline, images: Embedded, texts: Embedded, image_of: Sequence[int], text_of: Sequence[int]
) -> Floats:
    """The local divergence d of every pair."""
    measured = pipeline.measure(images, texts, image_of, text_of)
    return np.array([row.divergence for row in numbers(measured, pipeline.config)])


def without_patches(pipeline: Pipeline, known: MeasuredPairs, dropped: Sequence[Places]) -> Floats:
    """d of every caption after dropping some patches (numbers, one array per caption) from its picture's points.

    More arrays than captions go round: array i is dropped from the picture of caption i modulo their number.
    """
    captions = [place % len(known.owner) for place in range(len(dropped))]
    owner = [known.owner[caption] for caption in captions]
    batch = take(known.images.vectors, [known.images.row(item) for item in owner])
    mask = batch.mask.clone()
    for number, places in enumerate(dropped):
        real = torch.nonzero(mask[number]).squeeze(1)
        mask[number, real[torch.as_tensor(places, device=real.device)]] = False
    keys = tuple(known.images.keys[known.images.row(item)] for item in owner)
    images = Embedded(replace(batch, mask=mask), tuple(range(len(owner))), {}, keys)
    return divergences(pipeline, images, known.texts, range(len(owner)), captions)


def without_pixels(pipeline: Pipeline, known: MeasuredPairs, dropped: Sequence[Places]) -> Floats:
    """d of every caption after painting some patches in the picture's mean colour and encoding it again."""
    pictures = []
    for owner, places in zip(known.owner, dropped, strict=True):
        visible = torch.nonzero(known.images.vectors.mask[known.images.row(owner)]).squeeze(1).cpu().numpy()
        pictures.append(blank(known.pictures[owner], known.layouts[owner], visible[places]))
    images = pipeline.embed_images(pipeline.decode(pictures)).require()
    return divergences(pipeline, images, known.texts, range(len(pictures)), range(len(pictures)))


def blank(image: Image.Image, layout: PatchLayout, places: Places) -> Image.Image:
    """The picture with the boxes of some patches painted in its mean colour."""
    values = np.asarray(image).copy()
    mean = values.reshape(-1, values.shape[-1]).mean(axis=0)
    for left, top, right, bottom in layout.boxes[torch.as_tensor(places)].round().int().tolist():
        values[top:bottom, left:right] = mean
    return Image.fromarray(values)
