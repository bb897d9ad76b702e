"""References: human agreement by number of references, and calibration of word p-values that use them."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, product
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import numpy.typing as npt

from msdscore.errors import InputError
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.references import compare_texts, log_shares, p_value_with_references
from msdscore_lab.bank.calibrate import stems_of
from msdscore_lab.benchmarks.protocols.counting import Figure
from msdscore_lab.benchmarks.run.plan import pipeline_for, prepare_work
from msdscore_lab.stats.ranks import auc, prepare
from msdscore_lab.studies.ablations.sweep import run_once
from msdscore_lab.studies.context import Study, measure_readable, require_bank
from msdscore_lab.studies.match import LEVELS, ShownImage, over_images, shares_below
from msdscore_lab.studies.table import Column, Plot, Row, Table, per_cent

BENCHMARKS = ("flickr8k-expert", "composite", "pascal50s")
COUNTS = (1, 2, 3, 5, 10, 48)
SEEDS = 5
SHAPES = tuple(0.05 * 1.2**step for step in range(25))  # grid for the Beta distributions of words, up to 4
JudgedWord = tuple[int, bool, float, int, int]  # image, is true, p-value, references with the word, all references


def curve(
    study: Study, *, benchmark: Sequence[str] = BENCHMARKS, references: Path | None = None, seeds: int = SEEDS
) -> list[Table]:
    """Human agreement of `ref-msd` by number of references, averaged over `seeds` random draws of each number.

    `references` is a file for benchmarks whose items have none.
    """
    rows, signatures = list[Row](), list[str]()
    for name in study.present(benchmark):
        has_own = any(item.references for item in study.items(name))
        plan = study.plan(name, ("ref-msd",), references=None if has_own else references, control=False)
        max_references = max(len(item.references) for item in prepare_work(plan).item_set.items)
        drawn_labels = {
            count: [f"ref-msd,most={count},seed={seed}" for seed in range(seeds)]
            for count in COUNTS
            if count < max_references
        }
        labels = {0: ["msd"], **drawn_labels, max_references: ["ref-msd"]}
        plan = replace(plan, metrics=tuple(chain.from_iterable(labels.values())))
        result = run_once(study, plan, pipeline_for(name, study.pipeline(), study.spec)).result
        for count, count_labels in labels.items():
            headlines = [result.metric(label).figures[0] for label in count_labels]
            rows.append({"benchmark": f"{result.title}, {headlines[0].name}", "count": count, **_mean(headlines)})
        signatures.append(result.metrics[-1].signature)
    columns = [Column("benchmark"), Column("count", "references"), Column("figure", "", ".1f"),
               Column("spread", "deviation of the draws", ".2f")]  # fmt: skip
    plot = Plot(x="count", y=["figure"], panel=["benchmark"], x_label="references per image",
                y_label="agreement, times 100")  # fmt: skip
    return [Table(
        name="rows",
        title="Agreement with people by the number of references",
        columns=columns,
        rows=rows,
        notes=[f"references are drawn {seeds} times: means of the figures and of the ends of their intervals",
               "0 references is msd; items with fewer references use all that they have",
               "95 % cluster-bootstrap intervals over images"],
        signature="; ".join(signatures),
        plots=[plot],
    )]  # fmt: skip


def _mean(headlines: Sequence[Figure]) -> Row:
    """Return the mean figure over draws, with the mean limits of their intervals, and their standard deviation."""
    values = [headline.value * headline.scale for headline in headlines]
    intervals = [(headline.interval, headline.scale) for headline in headlines if headline.interval is not None]
    low, high = (fmean(getattr(interval, end) * scale for interval, scale in intervals) for end in ("low", "high"))
    figure = replace(intervals[0][0], value=fmean(values), low=low, high=high)
    return {"figure": figure, "spread": stdev(values) if len(values) > 1 else None}


def word_reliability(study: Study) -> list[Table]:
    """Shares of words below each level of the p-value, with the image's other captions as references.

    Likely but absent words are in captions of similar images and in no caption of the image.
    """
    pipeline = study.pipeline()
    require_bank(pipeline, "words")
    rows = over_images(study, pipeline, "reference-words", _judged_words, captions=2)
    return [level_table(rows, pipeline.signature)]


def _judged_words(pipeline: Pipeline, inputs: Sequence[ShownImage]) -> list[JudgedWord]:
    """Return the judged words of one caption per image and of similar images; the other captions are references."""
    texts, references = list[tuple[int, bool, str]](), list[Sequence[str]]()
    for index, (number, _, (captions, similar, _)) in enumerate(inputs):
        candidate = captions[number % len(captions)]
        others = [text for text in captions if text != candidate]
        texts += [(index, True, candidate), *((index, False, text) for text in similar)]
        references += [others] * (1 + len(similar))
    pairs = [(index, row) for row, (index, _, _) in enumerate(texts)]
    readable, measured = measure_readable(pipeline, [image for _, image, _ in inputs], [t for *_, t in texts], pairs)
    if measured is None:
        return []
    compared = compare_texts(pipeline.embedder, [text for *_, text in texts], references)
    own_stems, rows = [stems_of(captions) for *_, (captions, _, _) in inputs], list[JudgedWord]()
    for pair, row in enumerate(readable):
        index, is_own, _ = texts[row]
        words = pipeline.form.words(measured, pair)
        counts = compared[row].count_words(words)
        for unit, word, count in zip(pipeline.form.units(measured, pair), words, counts, strict=True):
            if unit.p_value is not None and count is not None and (is_own or word.stem not in own_stems[index]):
                rows.append((inputs[index][0], is_own, unit.p_value, count, len(compared[row].references)))
    return rows


def level_table(rows: Sequence[JudgedWord], signature: str) -> Table:
    """Return the shares of words with a p-value below each level, from the image only and with references."""
    image, truth, image_p_values, with_word, counts = (np.array(column) for column in zip(*rows, strict=True))
    if truth.all() or not truth.any():
        raise InputError("expected words that are true of their images and words that are not")
    cells = zip(image_p_values.tolist(), with_word.tolist(), counts.tolist(), strict=True)
    combined_p_values = np.array([p_value_with_references(*cell) for cell in cells])
    kinds = {"image": image_p_values, "image and references": combined_p_values}
    sides = {"true": truth, "absent": ~truth}
    shares: list[Row] = [
        {"evidence": name, "level": level, **shares_below(values, level, sides, image)}
        for name, values in kinds.items()
        for level in LEVELS
    ]
    areas = {name: auc(prepare(values, truth.astype(float))) for name, values in kinds.items()}
    fitted = {name: fit_shares(with_word[mask], counts[mask]) for name, mask in sides.items()}
    notes = [
        "the share of true words below a level should equal the level",
        "AUC of the p-value: " + ", ".join(f"{name} {100 * area:.1f}" for name, area in areas.items()),
        "share of references that have a word, as a Beta distribution fitted here: "
        + ", ".join(f"{name} ({a:.2f}, {b:.2f})" for name, (a, b) in fitted.items()),
    ]
    return Table(
        name="p_values",
        title=f"Words with a p-value below a level, per cent ({len(np.unique(image))} images, "
        f"{int(truth.sum())} true and {int((~truth).sum())} absent words)",
        columns=[Column("evidence"), Column("level", "", "g"), per_cent("true"),
                 per_cent("absent", "likely but absent")],
        rows=shares,
        notes=notes,
        signature=signature,
        facts={"auc": areas, "fitted": fitted},
    )  # fmt: skip


def fit_shares(with_word: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]) -> tuple[float, float]:
    """Fit the shapes of the Beta distribution of the share of references with a word, on a grid."""
    cells, occurrences = np.unique(np.stack([with_word, counts]), axis=1, return_counts=True)
    k, n, weights = *cells, occurrences
    shapes = list(product(SHAPES, SHAPES))
    return max(shapes, key=lambda shape: float((weights * log_shares(k, n, shape)).sum()))
