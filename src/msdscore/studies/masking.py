"""Regions taken from a picture: patches dropped from its points, or pixels blanked before it is encoded again."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from msdscore.benchmarks.base import Pair, picture, picture_key
from msdscore.encoders.base import PatchLayout
from msdscore.errors import InputError
from msdscore.explain.maps import Regions, project
from msdscore.explain.terms import terms_of
from msdscore.io.hashing import pixel_key
from msdscore.scoring.batches import take
from msdscore.scoring.comparison import Encoded
from msdscore.scoring.measurement import numbers

if TYPE_CHECKING:
    from msdscore.scoring.scorer import Scorer

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]
CHUNK = 16  # pairs that are worked on together


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some pairs encoded; captions 2i and 2i + 1 are the right and the wrong one of pair i, of picture `owner`."""

    pairs: tuple[Pair, ...]
    encoded: Encoded
    owner: tuple[int, ...]
    layouts: tuple[PatchLayout, ...]
    regions: tuple[Regions, ...]
    divergence: Floats


def sample(pairs: Sequence[Pair], limit: int | None, seed: int) -> list[Pair]:
    """At most `limit` pairs, drawn by `seed` and kept in the order of the file."""
    if not pairs:
        raise InputError("expected at least one pair with a right and a wrong caption, got none")
    if limit is None or limit >= len(pairs):
        return list(pairs)
    chosen = np.random.default_rng(seed).choice(len(pairs), size=limit, replace=False)
    return [pairs[number] for number in np.sort(chosen)]


def chunks(scorer: "Scorer", pairs: Sequence[Pair], projection: str) -> Iterator[Chunk]:
    """Pairs encoded, measured and projected, some at a time; pairs of one picture share it."""
    ordered = sorted(pairs, key=lambda pair: picture_key(pair.image))
    for start in range(0, len(ordered), CHUNK):
        some = tuple(ordered[start : start + CHUNK])
        names = list(dict.fromkeys(picture_key(pair.image) for pair in some))
        sources = {picture_key(pair.image): pair.image for pair in some}
        owner = tuple(names.index(picture_key(pair.image)) for pair in some for _ in pair.captions)
        captions = [caption for pair in some for caption in pair.captions]
        encoded = scorer.encode([picture(sources[name]) for name in names], captions)
        measured = scorer.compare(encoded, owner)
        regions = tuple(project(terms, projection) for terms in terms_of(scorer, encoded, measured))
        yield Chunk(some, encoded, owner, measured.patches, regions, divergences(scorer, encoded, owner))


def divergences(scorer: "Scorer", encoded: Encoded, owner: Sequence[int]) -> Floats:
    """The local divergence d of every caption."""
    return np.array([row.divergence for row in numbers(scorer.compare(encoded, owner), scorer.config)])


def without_patches(scorer: "Scorer", chunk: Chunk, dropped: Sequence[Places]) -> Floats:
    """d of every caption after dropping some patches (numbers, one array a caption) from its picture's points.

    More arrays than captions go round: array i is dropped from the picture of caption i modulo their number.
    """
    captions = [place % len(chunk.owner) for place in range(len(dropped))]
    owner = [chunk.owner[caption] for caption in captions]
    images = take(chunk.encoded.images, owner)
    mask = images.mask.clone()
    for number, places in enumerate(dropped):
        real = torch.nonzero(mask[number]).squeeze(1)
        mask[number, real[torch.as_tensor(places, device=real.device)]] = False
    encoded = replace(
        chunk.encoded,
        images=replace(images, mask=mask),
        texts=take(chunk.encoded.texts, captions),
        image_keys=tuple(chunk.encoded.image_keys[number] for number in owner),
        text_keys=tuple(chunk.encoded.text_keys[caption] for caption in captions),
    )
    return divergences(scorer, encoded, range(len(captions)))


def without_pixels(scorer: "Scorer", chunk: Chunk, dropped: Sequence[Places]) -> Floats:
    """d of every caption after painting some patches in the picture's mean colour and encoding it again."""
    pictures = [
        blank(chunk.encoded.pictures[owner], chunk.layouts[owner], places)
        for owner, places in zip(chunk.owner, dropped, strict=True)
    ]
    keys = tuple(pixel_key(one) for one in pictures)
    encoded = replace(chunk.encoded, images=scorer.embed_pictures(pictures), image_keys=keys)
    return divergences(scorer, encoded, range(len(pictures)))


def blank(image: Image.Image, layout: PatchLayout, places: Places) -> Image.Image:
    """The picture with the boxes of some patches painted in its mean colour."""
    values = np.asarray(image).copy()
    mean = values.reshape(-1, values.shape[-1]).mean(axis=0)
    for left, top, right, bottom in layout.boxes[torch.as_tensor(places)].round().int().tolist():
        values[top:bottom, left:right] = mean
    return Image.fromarray(values)
