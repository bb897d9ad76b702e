"""Calibration of the probabilities: `match` of captions, p-values and probabilities of words.

Every image is paired with its own captions, with captions of the most similar images, and with captions of an image far
away in the list, single and joined into paragraphs, as in the fit of `match`. Own captions have the same total weight
as all others. True words are in at least two captions of the image; likely but absent words are in captions of similar
images and in none of the image. The images must not be those of the bank.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from msdscore.core.evidence import PRIOR
from msdscore.errors import ConfigError, InputError, RowError
from msdscore.forms.evidence import WordMeasurement
from msdscore.intervals import Floats, Interval, Ints
from msdscore.scoring.pipeline import Pipeline
from msdscore_lab.bank.calibrate import CONFIRMED, similar_texts, stems_of
from msdscore_lab.benchmarks.base import Image, image_source
from msdscore_lab.benchmarks.protocols.counting import Flags
from msdscore_lab.edits import joined
from msdscore_lab.stats.ranks import auc, prepare
from msdscore_lab.stats.resample import bootstrap, bootstrap_share
from msdscore_lab.studies.context import Study, every_nth, measure_readable, require_bank, require_some
from msdscore_lab.studies.table import Column, Plot, Row, Table, cell, per_cent

ShownImage = tuple[int, Image, tuple[Sequence[str], ...]]  # index, image, captions by `KINDS`
Matched = tuple[int, int, int, float]  # image, kind of caption, number of joined captions, match
JudgedWord = tuple[int, int, int, float, float]  # image, kind of word, captions that have it, p-value, probability
BINS = 10
KINDS = ("own", "similar", "other")
PARAGRAPHS = (1, 2, 4)  # numbers of joined captions
LEVELS = (0.01, 0.05, 0.1, 0.2, 0.5)  # of p-values


@dataclass(frozen=True, slots=True)
class Predictions:
    """Probabilities with their outcomes and images; `prior` is the total weight of the true outcomes."""

    values: Floats
    truth: Flags
    clusters: Ints
    prior: float = 0.5

    @property
    def weights(self) -> Floats:
        """Weights with mean 1: true predictions have the share `prior`."""
        share = self.truth.mean()
        return np.where(self.truth, self.prior / share, (1 - self.prior) / (1 - share))

    def take(self, mask: Flags) -> "Predictions":
        """Return the predictions of a mask."""
        return Predictions(self.values[mask], self.truth[mask], self.clusters[mask], self.prior)


def match(study: Study) -> list[Table]:
    """Reliability of `match` on at most `limit` captioned images; other captions come from all images."""
    pipeline = study.pipeline()
    require_bank(pipeline, "match")
    return reliability(over_images(study, pipeline, "match", _matches), pipeline.signature)


def word_reliability(study: Study) -> list[Table]:
    """Shares of words with a p-value below each level, and the reliability of word probabilities."""
    pipeline = study.pipeline()
    require_bank(pipeline, "words")
    return word_tables(over_images(study, pipeline, "judged-words", _judged_words), pipeline.signature)


def over_images(
    study: Study,
    pipeline: Pipeline,
    title: str,
    measure: Callable[[Pipeline, Sequence[ShownImage]], Sequence[Any]],
) -> list[Any]:
    """Measure images with their captions, those of a similar and of another image."""
    entries = study.captioned()
    texts = [entry.captions for entry in entries]
    similar, half = similar_texts(texts), len(entries) // 2
    inputs = [
        (index, entries[index].image, (texts[index], similar[index], texts[(index + half) % len(entries)]))
        for index in every_nth(range(len(entries)), study.limit)
    ]
    rows = study.rows(title, inputs, lambda batch: measure(pipeline, batch), pipeline)
    if not rows:
        require_some(pipeline.decode([image_source(image)])[0] for _, image, _ in inputs)
    return rows


def _matches(pipeline: Pipeline, inputs: Sequence[ShownImage]) -> list[Matched]:
    """Return image, kind of caption, number of joined captions and match of every text that could be scored."""
    cells = [
        (index, kind, size, text)
        for index, (*_, kinds) in enumerate(inputs)
        for kind, texts in enumerate(kinds)
        for size in PARAGRAPHS
        for text in (texts if size == 1 else [joined(texts[:size])] if len(texts) >= size else [])
    ]
    decoded = pipeline.decode([image_source(image) for _, image, _ in inputs])
    scores = pipeline.score(decoded, [text for *_, text in cells], [index for index, *_ in cells])
    return [
        (inputs[index][0], kind, size, score.values["match"])
        for (index, kind, size, _), score in zip(cells, scores, strict=True)
        if not isinstance(score, RowError) and score.values.get("match") is not None
    ]


def _judged_words(pipeline: Pipeline, inputs: Sequence[ShownImage]) -> list[JudgedWord]:
    """Return the judged words of the image's captions, and those that only captions of similar images have."""
    texts = [
        (index, kind == 0, text) for index, (*_, kinds) in enumerate(inputs) for kind in (0, 1) for text in kinds[kind]
    ]
    pairs = [(index, row) for row, (index, _, _) in enumerate(texts)]
    images = [image for _, image, _ in inputs]
    readable, measured = measure_readable(pipeline, images, [text for *_, text in texts], pairs)
    if measured is None:
        return []
    words: WordMeasurement = measured.terms
    stem_counts = [Counter(word for text in kinds[0] for word in stems_of([text])) for *_, kinds in inputs]
    rows: list[JudgedWord] = []
    for pair, (index, is_own, _) in enumerate(texts[row] for row in readable):
        for unit, word in zip(pipeline.form.units(measured, pair), words.spoken[pair], strict=True):
            if (
                unit.p_value is not None
                and unit.probability is not None
                and (is_own or word.stem not in stem_counts[index])
            ):
                kind = words.calibration.kind_of(word.stem) or 0
                rows.append((inputs[index][0], kind, stem_counts[index][word.stem], unit.p_value, unit.probability))
    return rows


def reliability(rows: Sequence[Matched], signature: str) -> list[Table]:
    """Return the reliability diagram of `match`, and its error by length."""
    if not rows:
        raise ConfigError("no caption has a match; use the settings that the bank was fitted with")
    image, kind, size, values = (np.array(column) for column in zip(*rows, strict=True))
    is_own = kind == 0
    if is_own.all() or not is_own.any():
        raise InputError("expected captions that belong to their images and captions that do not")
    predictions = Predictions(values.astype(np.float64), is_own, image)
    areas = {
        KINDS[other]: auc(prepare(values[is_own | (kind == other)], is_own[is_own | (kind == other)]))
        for other in (1, 2)
    }
    medians = {name: float(np.median(values[kind == index])) for index, name in enumerate(KINDS)}
    error = calibration_error(predictions)
    notes = [
        "own captions have the same total weight as all others",
        f"mean distance between predicted and observed: {cell(error, per_cent('error'))}",
        "median match: " + ", ".join(f"{name} {medians[name]:.2f}" for name in KINDS),
        "AUC of own captions against: " + ", ".join(f"{name} {100 * area:.1f}" for name, area in areas.items()),
    ]
    facts = {"images": len(np.unique(image)), "error": error, "medians": medians, "areas": areas}
    title = f"Reliability of match on {len(np.unique(image))} images"
    return [
        _diagram(title, predictions, "match", notes=notes, signature=signature, facts=facts),
        _length_table(predictions, size, signature),
    ]


def _length_table(predictions: Predictions, size: Ints, signature: str) -> Table:
    rows: list[Row] = []
    for count in np.unique(size).tolist():
        part = predictions.take(size == count)
        if part.truth.all() or not part.truth.any():
            continue
        reached = bootstrap_share((part.values[part.truth] >= 0.5).astype(float), clusters=part.clusters[part.truth])
        rows.append({"captions": count, "n": len(part.values), "error": calibration_error(part), "reached": reached})
    return Table(
        name="lengths",
        title="Match by length: captions joined into one text",
        columns=[Column("captions", "captions joined"), Column("n"), per_cent("error", "predicted from observed"),
                 per_cent("reached", "own with a match of 0.5 or more")],
        rows=rows,
        signature=signature,
    )  # fmt: skip


def word_tables(rows: Sequence[JudgedWord], signature: str) -> list[Table]:
    """Return the shares of words with a p-value below each level, and the reliability diagram of word probabilities."""
    image, kind, caption_counts, p_values, probabilities = (np.array(column) for column in zip(*rows, strict=True))
    truth, once, absent = caption_counts >= CONFIRMED, caption_counts == 1, caption_counts == 0
    if not truth.any() or not absent.any():
        raise InputError("expected words that are true of their images and words that are not")
    all_words = np.ones(len(truth), dtype=bool)
    groups = {"all": all_words} | {f"kind {kind_index}": kind == kind_index for kind_index in np.unique(kind).tolist()}
    shares: list[Row] = []
    for name, in_group in groups.items():
        for level in LEVELS if name == "all" else (0.1,):
            sides = {"true": in_group & truth, "once": in_group & once, "absent": in_group & absent}
            below = shares_below(p_values, level, sides, image)
            shares.append({"words": name, "level": level, "n": int(sides["true"].sum()), **below})
    area = auc(prepare(p_values[~once], truth[~once].astype(float)))
    predictions = Predictions(probabilities.astype(np.float64), truth, image, PRIOR).take(~once)
    error = calibration_error(predictions)
    notes = [f"true words count as {PRIOR:.0%} of all",
             f"mean distance between predicted and observed: {cell(error, per_cent('error'))}"]  # fmt: skip
    levels = Table(
        name="p_values",
        title=f"Words with a p-value below a level, per cent ({len(np.unique(image))} images)",
        columns=[Column("words"), Column("level", "", "g"), Column("n", "true words"), per_cent("true"),
                 per_cent("once", "in one caption only"), per_cent("absent", "likely but absent")],
        rows=shares,
        notes=["the share of true words (in two captions) below a level should equal the level",
               f"AUC of the p-value: {100 * area:.1f}"],
        signature=signature,
        facts={"auc": area, "images": len(np.unique(image))},
    )  # fmt: skip
    title = "Reliability of the probabilities of words"
    facts = {"error": error, "prior": PRIOR}
    return [levels, _diagram(title, predictions, "probability", notes=notes, signature=signature, facts=facts)]


def shares_below(values: Floats, level: float, sides: Mapping[str, Flags], images: Any) -> dict[str, Interval | None]:
    """Return the share of values below a level on each side, resampled by image; None for an empty side."""
    return {
        side: bootstrap_share((values[mask] < level).astype(float), clusters=images[mask]) if mask.any() else None
        for side, mask in sides.items()
    }


def _diagram(title: str, predictions: Predictions, label: str, **shared: Any) -> Table:
    plot = Plot(x="predicted", y=["observed"], title=title, x_label=label, y_label="share that is true", diagonal=True)
    columns = [Column("range", label), Column("n"), Column("predicted", "", ".3f"), Column("observed", "", ".3f")]
    return Table(name="bins", title=title, columns=columns, rows=list(_bins(predictions)), plots=[plot], **shared)


def _bins(predictions: Predictions) -> Iterator[Row]:
    bin_of, all_weights = _bin_indices(predictions.values), predictions.weights
    for index in range(BINS):
        in_bin = bin_of == index
        if not in_bin.any():
            continue
        weights, truth, clusters = all_weights[in_bin], predictions.truth[in_bin], predictions.clusters[in_bin]

        def share(resample: Floats, weights: Floats = weights, truth: Flags = truth) -> float:
            return float((resample * weights)[truth].sum() / max((resample * weights).sum(), 1e-12))

        yield {
            "range": f"{index / BINS:.1f} to {(index + 1) / BINS:.1f}", "low": index / BINS,
            "high": (index + 1) / BINS, "n": int(in_bin.sum()),
            "predicted": float(np.average(predictions.values[in_bin], weights=weights)),
            "observed": bootstrap(share, int(in_bin.sum()), clusters=clusters),
        }  # fmt: skip


def calibration_error(predictions: Predictions) -> Interval:
    """Return the expected calibration error over ten bins."""
    base_weights, bin_of, gaps = (
        predictions.weights,
        _bin_indices(predictions.values),
        predictions.values - predictions.truth,
    )

    def error(resample: Floats) -> float:
        weights = resample * base_weights
        return float(np.abs(np.bincount(bin_of, weights * gaps, minlength=BINS)).sum() / weights.sum())

    return bootstrap(error, len(gaps), clusters=predictions.clusters)


def _bin_indices(values: Floats) -> Ints:
    return np.minimum((values * BINS).astype(np.int64), BINS - 1)
