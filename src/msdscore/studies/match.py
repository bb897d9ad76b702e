"""Does `match` mean what it says? Predicted probabilities against how often captions do belong to their images.

Every image is shown its own captions, captions of the images whose captions are most like its own, and captions of
an image far away in the list: the same three kinds that the map was fitted on, own ones counting as much as all others
together. The images must be others than those of the bank.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from msdscore.benchmarks.base import picture
from msdscore.benchmarks.readers.captioned import CaptionedPicture
from msdscore.benchmarks.readers.rows import captioned_pictures
from msdscore.errors import ConfigError, InputError, RowError
from msdscore.scoring.calibrate import similar_texts
from msdscore.scoring.embedded import require_some
from msdscore.scoring.pipeline import Pipeline
from msdscore.stats.ranks import auc, prepare
from msdscore.stats.resample import bootstrap
from msdscore.studies.context import Study, every_nth, split
from msdscore.studies.table import Column, Plot, Row, Table, cell, per_cent

Floats = npt.NDArray[np.float64]
Matched = tuple[int, int, float]  # image, kind of caption, match
BINS = 10
KINDS = ("own", "similar", "other")
_IMAGES = 16  # of a batch


@dataclass(frozen=True, slots=True)
class _Judged:
    match: Floats
    own: npt.NDArray[np.bool_]
    clusters: npt.NDArray[np.int64]

    @property
    def shares(self) -> Floats:
        """Own captions count as much as all others together."""
        truth = self.own.mean()
        return np.where(self.own, 0.5 / truth, 0.5 / (1 - truth))


def match(study: Study) -> list[Table]:
    """The reliability of `match` on captioned images, at most `limit` of them; all lend captions to the others."""
    pipeline = study.pipeline()
    if pipeline.bank is None or pipeline.bank.bank.match is None:
        raise ConfigError(
            "expected settings with a match; build a bank with: msdscore bank PICTURES --pairs ROWS.jsonl"
        )
    entries = captioned_pictures(study.root)
    if len(entries) < 2:
        raise InputError(f"expected at least 2 captioned pictures, got {len(entries)}")
    similar = similar_texts([entry.captions for entry in entries])
    chosen = every_nth(range(len(entries)), study.limit)

    def measure(_: int, batch: Sequence[int]) -> list[Matched]:
        return _measure(pipeline, entries, similar, batch)

    answers = study.run("match", split(chosen, _IMAGES), measure, pipeline)
    rows = [(int(image), int(kind), float(value)) for answer in answers for image, kind, value in answer]
    if not rows:
        require_some(pipeline.decode([picture(entries[number].image)])[0] for number in chosen)
    return [reliability(rows, pipeline.signature)]


def _measure(
    pipeline: Pipeline, entries: Sequence[CaptionedPicture], similar: Sequence[Sequence[str]], batch: Sequence[int]
) -> list[Matched]:
    """Image, kind of caption and match of every caption that could be scored."""
    shown = [(number, kind, text) for number in batch for kind, text in _captions(entries, similar, number)]
    decoded = pipeline.decode([picture(entries[number].image) for number in batch])
    scores = pipeline.score(decoded, [text for _, _, text in shown], [batch.index(number) for number, _, _ in shown])
    return [
        (number, kind, score.match)
        for (number, kind, _), score in zip(shown, scores, strict=True)
        if not isinstance(score, RowError) and score.match is not None
    ]


def _captions(
    entries: Sequence[CaptionedPicture], similar: Sequence[Sequence[str]], number: int
) -> Iterator[tuple[int, str]]:
    """Kind and text of every caption that an image is shown."""
    away = entries[(number + len(entries) // 2) % len(entries)]
    for kind, texts in enumerate((entries[number].captions, similar[number], away.captions)):
        yield from ((kind, text) for text in texts)


def reliability(rows: Sequence[Matched], signature: str) -> Table:
    """The table of a reliability diagram: what was predicted of the captions of each tenth, and how many belong."""
    if not rows:
        raise ConfigError("no caption has a match; it is known only under the settings that the bank was fitted with")
    image, kind, values = (np.array(column) for column in zip(*rows, strict=True))
    own = kind == 0
    if own.all() or not own.any():
        raise InputError("expected captions that belong to their pictures and captions that do not")
    judged = _Judged(values.astype(np.float64), own, image)
    areas = {KINDS[other]: auc(prepare(values[own | (kind == other)], own[own | (kind == other)])) for other in (1, 2)}
    medians = {name: float(np.median(values[kind == number])) for number, name in enumerate(KINDS)}
    error = bootstrap(partial(_error, judged), len(values), clusters=image)
    return Table(
        name="bins",
        title=f"Reliability of match on {len(np.unique(image))} images",
        columns=[Column("match"), Column("n", "captions"), Column("predicted", "", ".3f"),
                 Column("observed", "belong", ".3f")],
        rows=list(_bins(judged)),
        notes=[
            "own captions count as much as all others together",
            f"mean distance between predicted and observed: {cell(error, per_cent('error'))}",
            "median match: " + ", ".join(f"{name} {medians[name]:.2f}" for name in KINDS),
            "AUC of own captions against: " + ", ".join(f"{name} {100 * area:.1f}" for name, area in areas.items()),
        ],
        signature=signature,
        facts={"pictures": len(np.unique(image)), "error": error, "medians": medians, "areas": areas},
        plots=[
            Plot(
                x="predicted", y=["observed"], title="Does match mean what it says?", x_label="match",
                y_label="share that belong", diagonal=True,
            )
        ],
    )  # fmt: skip


def _bins(judged: _Judged) -> Iterator[Row]:
    tenth, shares = _tenths(judged.match), judged.shares
    for number in range(BINS):
        here = tenth == number
        if not here.any():
            continue
        weights, own, clusters = shares[here], judged.own[here], judged.clusters[here]

        def share(drawn: Floats, weights: Floats = weights, own: npt.NDArray[np.bool_] = own) -> float:
            return float((drawn * weights)[own].sum() / max((drawn * weights).sum(), 1e-12))

        observed = bootstrap(share, int(here.sum()), clusters=clusters)
        yield {
            "match": f"{number / BINS:.1f} to {(number + 1) / BINS:.1f}", "low": number / BINS,
            "high": (number + 1) / BINS, "n": int(here.sum()),
            "predicted": float(np.average(judged.match[here], weights=weights)), "observed": observed,
        }  # fmt: skip


def _error(judged: _Judged, drawn: Floats) -> float:
    """The expected calibration error: distances of the tenths, weighed by their captions."""
    weights, tenth = drawn * judged.shares, _tenths(judged.match)
    distances = np.bincount(tenth, weights * (judged.match - judged.own), minlength=BINS)
    return float(np.abs(distances).sum() / weights.sum())


def _tenths(match: Floats) -> npt.NDArray[np.int64]:
    return np.minimum((match * BINS).astype(np.int64), BINS - 1)
