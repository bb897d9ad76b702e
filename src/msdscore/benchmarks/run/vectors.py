"""The embeddings of a batch, and every pair of picture and caption measured once for all metrics."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from PIL.Image import Image

from msdscore.benchmarks.run.store import TextStore
from msdscore.encoders.base import Embeddings
from msdscore.errors import RowError
from msdscore.io.hashing import pixel_key, text_key
from msdscore.metrics.base import Cases, Floats, Ints, Vectors
from msdscore.scoring.bank import moved
from msdscore.scoring.batches import join, take
from msdscore.scoring.comparison import Encoded
from msdscore.scoring.measurement import numbers
from msdscore.scoring.scorer import Scorer, unreadable

_COLUMNS = ("similarity", "coverage", "support", "beta", "divergence", "msd")


def make_vectors(
    batch: Cases, pictures: Sequence[Image | None], scorer: Scorer, store: TextStore, *, mixtures: bool
) -> tuple[Vectors, dict[int, str]]:
    """Vectors of a batch, true and wrong pictures alike, and why some of its texts have none."""
    images, image_row = _embed_pictures(pictures, scorer)
    texts, text_row, reasons = _embed_texts(batch.texts, store)
    pair_of, pair_images, pair_texts = _pairs(batch, image_row, text_row)
    readable = tuple(batch.texts[number] for number in text_row)
    good = tuple(picture for number, picture in enumerate(pictures) if number in image_row and picture is not None)
    if not len(pair_images):
        columns: Mapping[str, Floats] = {name: np.zeros(0) for name in _COLUMNS}
    elif mixtures:
        paired = take(texts, pair_texts.tolist())
        keys = tuple(text_key(readable[row]) for row in pair_texts.tolist())
        encoded = Encoded(good, images, paired, tuple(map(pixel_key, good)), keys)
        rows = numbers(scorer.compare(encoded, pair_images.tolist()), scorer.config)
        columns = {name: np.array([getattr(row, name) for row in rows], dtype=np.float64) for name in _COLUMNS}
    else:
        columns = {"similarity": _similarity(images, texts, pair_images, pair_texts)}
    background = None if scorer.bank is None else moved(scorer.bank.bank, images.points.device).images.means
    found = Vectors(
        images, texts, readable, pair_images, pair_texts, pair_of, columns, store.embed, scorer.config, background
    )
    return found, reasons


def _similarity(images: Embeddings, texts: Embeddings, pair_images: Ints, pair_texts: Ints) -> Floats:
    first, second = images.pooled[torch.from_numpy(pair_images)], texts.pooled[torch.from_numpy(pair_texts)]
    similarity: Floats = (first * second).sum(dim=-1).double().cpu().numpy()
    return similarity


def _embed_pictures(pictures: Sequence[Image | None], scorer: Scorer) -> tuple[Embeddings, dict[int, int]]:
    """Embeddings of the readable pictures, with the row of each by its number."""
    whole = {number: picture for number, picture in enumerate(pictures) if picture is not None}
    try:
        return (scorer.embed_pictures(list(whole.values())) if whole else _empty()), _rows(whole)
    except RowError:
        singles = {number: _embed_one(picture, scorer) for number, picture in whole.items()}
        kept = {number: one for number, one in singles.items() if one is not None}
        return (join(list(kept.values())) if kept else _empty()), _rows(kept)


def _embed_one(picture: Image, scorer: Scorer) -> Embeddings | None:
    try:
        return scorer.embed_pictures([picture])
    except RowError:
        return None


def _embed_texts(texts: Sequence[str], store: TextStore) -> tuple[Embeddings, dict[int, int], dict[int, str]]:
    """Embeddings of the readable texts, with the row of each by its number, and the reasons of the others."""
    batch, row_of, reasons = store.embed_each(texts)
    if batch is None:
        return _empty(), {}, reasons
    filled = batch.mask.any(dim=1).tolist()
    reasons |= {number: unreadable(texts[number]) for number, row in row_of.items() if not filled[row]}
    kept = [number for number, row in row_of.items() if filled[row]]
    return take(batch, [row_of[number] for number in kept]), {n: row for row, n in enumerate(kept)}, reasons


def _pairs(batch: Cases, image_row: Mapping[int, int], text_row: Mapping[int, int]) -> tuple[Ints, Ints, Ints]:
    """The pair of every case and candidate (−1: none), and the rows of every pair, each once."""
    known: dict[tuple[int, int], int] = {}
    pair_of = np.full(batch.captions.shape, -1, dtype=np.int64)
    for case, row in enumerate(batch.captions.tolist()):
        image = image_row.get(int(batch.owner[case]))
        for place, number in enumerate(row):
            text = text_row.get(number)
            if image is not None and text is not None:
                pair_of[case, place] = known.setdefault((image, text), len(known))
    both = np.array(list(known), dtype=np.int64).reshape(-1, 2)
    return pair_of, both[:, 0], both[:, 1]


def _rows(kept: Mapping[int, object]) -> dict[int, int]:
    return {number: row for row, number in enumerate(kept)}


def _empty() -> Embeddings:
    return Embeddings(torch.zeros(0, 1, 1), torch.zeros(0, 1, dtype=torch.bool), torch.zeros(0, 1), ())
