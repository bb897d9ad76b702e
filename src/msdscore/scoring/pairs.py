"""From vectors to numbers: the way of one score, to be read first.

An encoder turns an image into unit vectors of its patches and a caption into unit vectors of its tokens (`Embeddings`).
A form fits mixtures to them and compares densities (`Form.measure`, with `core.divergence.log_ratio` as the primitive);
the terms of each patch, token or word add up to the columns of the score (`Form.numbers`). Everything before, such as
decoding and batching, is in `pipeline`; everything after, such as candidate sets and files, in `results`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from msdscore.core.arrays import integers, take_rows
from msdscore.core.divergence import total
from msdscore.core.embeddings import Embeddings, PatchLayout
from msdscore.core.evidence import Bank
from msdscore.forms.base import Form, Measurement, Sides, Values


class Pairs(NamedTuple):
    """Pairs of an image and a caption: the rows of both, and one text per row of the captions."""

    images: Sequence[int]
    texts: Sequence[int]
    captions: Sequence[str] = ()


def score_pairs(
    images: Embeddings, texts: Embeddings, pairs: Pairs, form: Form, bank: Bank | None = None
) -> dict[str, Values]:
    """Return similarity, the columns of the form and MSD of every pair, in float64 on the host.

    >>> from PIL import Image
    >>> from msdscore.encoders.registry import load_encoder
    >>> from msdscore.forms.registry import preset
    >>> toy = load_encoder("toy")
    >>> images, texts = toy.encode_images([toy.prepare(Image.new("RGB", (64, 64), "red"))]), toy.encode_texts(["red"])
    >>> list(score_pairs(images, texts, Pairs([0], [0], ["red"]), preset("short")))
    ['similarity', 'coverage', 'support', 'beta', 'divergence', 'msd']
    """
    return form.numbers(measure_pairs(images, texts, pairs, form, bank).fetching()())


def measure_pairs(
    images: Embeddings, texts: Embeddings, pairs: Pairs, form: Form, bank: Bank | None = None
) -> Measurement[Any]:
    """Compute similarity and terms of pairs, as arrays of the library and on the device of the vectors.

    The bank must be on the same device.
    """
    image_of, text_of = integers(pairs.images, like=images.mask), integers(pairs.texts, like=texts.mask)
    sides = Sides(images, texts, (pairs.images, pairs.texts), image_of, text_of, pairs.captions)
    terms, layouts = form.measure(sides, bank), sides.layouts
    similarity = total(take_rows(form.pooled(images), image_of) * take_rows(form.pooled(texts), text_of))
    return Measurement(
        similarity,
        take_rows(texts.lengths, text_of),
        image_of,
        text_of,
        tuple(layout for layout in images.layout if isinstance(layout, PatchLayout)),
        tuple(layouts[row] for row in pairs.texts),
        tuple(pairs.captions[row] for row in pairs.texts) if pairs.captions else (),
        terms,
    )
