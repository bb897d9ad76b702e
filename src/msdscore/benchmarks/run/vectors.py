"""The embeddings of a portion, and every pair of image and caption measured once for all metrics."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from msdscore.core.paper import total
from msdscore.encoders.base import Embeddings
from msdscore.errors import RowError
from msdscore.metrics.base import Cases, Floats, Ints, Vectors
from msdscore.scoring.embedded import Decoded, Embedded
from msdscore.scoring.measurement import columns
from msdscore.scoring.pipeline import Pipeline


def make_vectors(
    cases: Cases, decoded: Sequence[Decoded | RowError], pipeline: Pipeline, *, mixtures: bool
) -> tuple[Vectors, dict[int, str]]:
    """Vectors of a portion, true and wrong images alike, and why some of its texts have none."""
    images, texts = pipeline.embed_images(decoded), pipeline.embed_texts(cases.texts)
    pair_of, pairs = _pairs(cases, images, texts)
    bank = pipeline.placed_bank(pipeline.encoder.device)
    found = Vectors(
        images.batch or _empty(),
        texts.batch or _empty(),
        tuple(text for text, row in zip(cases.texts, texts.rows, strict=True) if row is not None),
        np.array([images.row(image) for image, _ in pairs], dtype=np.int64),
        np.array([texts.row(text) for _, text in pairs], dtype=np.int64),
        pair_of,
        _columns(pipeline, images, texts, pairs, mixtures=mixtures),
        pipeline.encode_texts,
        pipeline.config,
        None if bank is None else bank.images.means,
    )
    return found, {item: str(reason) for item, reason in texts.reasons.items()}


def _pairs(cases: Cases, images: Embedded, texts: Embedded) -> tuple[Ints, list[tuple[int, int]]]:
    """The pair of every case and candidate (−1: none), and the image and text of every pair, each once."""
    known: dict[tuple[int, int], int] = {}
    pair_of = np.full(cases.captions.shape, -1, dtype=np.int64)
    for case, candidates in enumerate(cases.captions.tolist()):
        image = int(cases.owner[case])
        for place, text in enumerate(candidates):
            if images.rows[image] is not None and texts.rows[text] is not None:
                pair_of[case, place] = known.setdefault((image, text), len(known))
    return pair_of, list(known)


def _columns(
    pipeline: Pipeline, images: Embedded, texts: Embedded, pairs: Sequence[tuple[int, int]], *, mixtures: bool
) -> Mapping[str, Floats]:
    """The numbers of all pairs; without mixtures their similarity alone."""
    if not pairs:
        return {name: np.zeros(0) for name in ("similarity", *pipeline.config.columns, "msd")}
    image_of, text_of = [image for image, _ in pairs], [text for _, text in pairs]
    if not mixtures:
        first = images.vectors.pooled[[images.row(item) for item in image_of]]
        second = texts.vectors.pooled[[texts.row(item) for item in text_of]]
        return {"similarity": total(first * second).double().cpu().numpy()}
    measured = pipeline.measure(images, texts, image_of, text_of)
    numbers = {name: values.numpy() for name, values in columns(measured, pipeline.config).items()}
    # The baseline is the plain cosine, of captions that deny something too.
    return numbers | {"similarity": measured.similarity.double().cpu().numpy()}


def _empty() -> Embeddings:
    return Embeddings(torch.zeros(0, 1, 1), torch.zeros(0, 1, dtype=torch.bool), torch.zeros(0, 1), ())
