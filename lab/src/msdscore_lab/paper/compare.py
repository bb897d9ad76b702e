"""Verdicts on the published values: each is one value of a step's result, judged by a tolerance derived from it.

- *Rounding*: half a unit of the last printed digit.
- *Repeated* values (same weights, items and protocol): the value is computed again from scores rounded to half
  precision, which published scripts use. The tolerance is rounding plus twice that change, plus one item, since JPEG
  decoders differ.
- *Redrawn* values (other random starts, draws or weights): rounding plus 1.96 standard errors of the statistic, by
  bootstrap over images, or binomial for a fraction without an interval.

Only complete data are judged, and no value on which the paper contradicts itself.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from msdscore.intervals import Resampling
from msdscore_lab.benchmarks.protocols.counting import evaluate
from msdscore_lab.benchmarks.registry import benchmark
from msdscore_lab.benchmarks.results.grids import NONE, Grid
from msdscore_lab.benchmarks.results.result import MetricResult, Result, items_of, read_result, score_matrix
from msdscore_lab.paper import published as tables
from msdscore_lab.paper.plan import LONG, MAIN, PTB, Settings, Step, finished, read_state, steps_of

CITATION = "Kan et al., MSD-Score, 2026, arXiv:2605.06080"
CLIPSCORE = "Hessel et al., CLIPScore, EMNLP 2021, arXiv:2104.08718"
SUGARCREPE = "Hsieh et al., SugarCrepe, NeurIPS 2023, table of github.com/RAIVNLab/sugar-crepe"
# Number of items in the released files. None: the items of the paper are not released (COCO-CF) or not counted.
ITEMS: dict[str, int | None] = {
    "sugarcrepe": 7511, "flickr8k-expert": 5664, "pascal50s": 4000, "flickr8k-cf": 47830, "composite": 11985,
    "caparena": 6523, "docent": None, "coco-cf": None, "rsicd": 1093, "rocov2": None,
}  # fmt: skip
COMPLETE = 0.99  # fraction of a benchmark's items below which a result is not judged
Z = 1.96  # standard errors of a 95 % interval

SAME = "same weights, images and protocol; rounding to half precision and the JPEG decoder may differ"
STARTS = "the authors' scripts initialise EM at random, in an order that cannot be reproduced"
RETRAINED = "the paper's trained aligner is not released; another run of its training is used"
DRAWN = "the mean over captions depends on which captions and starts are drawn"
VERDICTS = ("reproduced", "not reproduced", "not judged", "not run")


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One printed value: the step that computes it, and its location in the step's result.

    Of a benchmark: metric and figure. Of a study: table, values that select the row, and column. With
    `same`, only precision may differ; `open` is why it is never judged.
    """

    step: str
    metric: str = ""
    figure: str
    value: float
    digits: int = 1  # printed decimals
    reason: str = RETRAINED
    source: str = CITATION
    table: str = ""
    row: Mapping[str, Any] | None = None
    scale: float = 100.0
    same: bool = False
    either: bool = False  # also judged without the aligner
    open: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A published value next to ours, with the reason if it is not judged."""

    published: Published
    ours: float | None = None
    tolerance: float | None = None
    reason: str = ""  # why there is no verdict
    signature: str = ""

    @property
    def outcome(self) -> str:
        """One of `VERDICTS`."""
        if self.ours is None or self.tolerance is None:
            return "not run"
        if self.reason:
            return "not judged"
        return "reproduced" if abs(round(self.ours - self.published.value, 4)) <= self.tolerance else "not reproduced"

    @property
    def name(self) -> str:
        """Step, metric or row, and figure."""
        one = self.published
        row = [str(value) for value in (one.row or {}).values()]
        return ", ".join(filter(None, (one.step, one.table, one.metric, *row, one.figure)))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"name": self.name, "outcome": self.outcome, **asdict(self)}


def verdicts(settings: Settings) -> list[Verdict]:
    """Return the verdict on every published value whose step is in the plan."""
    steps, answers = {step.name: step for step in steps_of(settings)}, list[Verdict]()
    for name in dict.fromkeys(one.step for one in PUBLISHED):
        values = [one for one in PUBLISHED if one.step == name]
        if name in steps:
            answers += _of_step(steps[name], values, settings)
    return answers


def _of_step(step: Step, values: Sequence[Published], settings: Settings) -> list[Verdict]:
    if not finished(step, settings):
        reason = read_state(settings.output, step.name).reason or "not run yet"
        return [Verdict(published=one, reason=reason) for one in values]
    path = step.result(settings)
    if step.command[0] == "bench":
        result = read_result(path)
        answers = _of_benchmark(values, result, path)
        incomplete = _incomplete([(result.benchmark, result.counted)])
    else:
        content = json.loads(path.read_text(encoding="utf-8"))
        answers = [_of_study(one, content) for one in values]
        counts = [(table["benchmark"], table["counted"]) for table in content["tables"] if table.get("counted")]
        incomplete = _incomplete(counts)
    common = f"at most {settings.limit} items were scored" if settings.limit else incomplete
    plain = "" if settings.main or step.encoder != MAIN else "the paper uses its aligner, this run none"

    return [
        answer if answer.ours is None else replace(answer, reason=_open(answer.published, common, plain))
        for answer in answers
    ]


def _open(one: Published, common: str, plain: str) -> str:
    """Return why a value is not judged; an empty string if it is."""
    return one.open or common or ("" if one.either else plain)


def _incomplete(counts: Sequence[tuple[str, int]]) -> str:
    """Return why a result on so many items of each benchmark is not judged; an empty string if it is."""
    for name, counted in counts:
        items = ITEMS.get(name)
        if items is None:
            return "the items of the published figure are not known"
        if counted < COMPLETE * items:
            return f"{counted:,} of {items:,} items were scored"
    return "" if counts else "the study does not report its items"


def _of_benchmark(values: Sequence[Published], result: Result, path: Path) -> list[Verdict]:
    """Return the verdicts on the values of one benchmark."""
    again: dict[str, dict[str, float]] = {}
    answers = []
    for one in values:
        names = (one.metric, f"{one.metric}:")  # a judge has its model as argument
        metric = next(own for own in result.metrics if own.label == names[0] or own.label.startswith(names[1]))
        if one.same and metric.label not in again:
            again[metric.label] = _halved(result, metric, path)
        answers.append(_of_figure(one, result, metric, again.get(metric.label, {})))
    return answers


def _of_figure(one: Published, result: Result, metric: MetricResult, halved: Mapping[str, float]) -> Verdict:
    measured = metric.figure(one.figure)
    if measured is None or measured.value != measured.value:
        return Verdict(published=one, reason=f"too few of its items are among the {result.counted} that were scored")
    if one.same:
        again = halved.get(one.figure, measured.value)
        allowed = rounding(one.digits) + measured.scale * (2 * abs(again - measured.value) + 1 / max(measured.n, 1))
    else:
        ends = (None, None) if measured.interval is None else (measured.interval.low, measured.interval.high)
        allowed = redrawn(measured.value, ends, measured.n, digits=one.digits, scale=measured.scale)
    ours = round(measured.scale * measured.value, 4)
    return Verdict(published=one, ours=ours, tolerance=round(allowed, 4), signature=metric.signature)


def _of_study(one: Published, content: Mapping[str, Any]) -> Verdict:
    """Return the verdict on a value of a study; `headline` is the headline figure of its table."""
    for table in content["tables"]:
        for position, row in enumerate(table["rows"] if table["name"] == one.table else ()):
            known = {**row, "position": position}
            if all(known.get(name) == value for name, value in (one.row or {}).items()):
                value = row.get(table["headline"] if one.figure == "headline" else one.figure)
                interval = value if isinstance(value, Mapping) else {"value": value}
                if interval["value"] is None:
                    break
                ends, share = (interval.get("low"), interval.get("high")), float(interval["value"])
                allowed = redrawn(share, ends, interval.get("n", 0), digits=one.digits, scale=one.scale)
                signature = row.get("signature") or table.get("signature", "")
                return Verdict(published=one, ours=round(one.scale * share, 4), tolerance=round(allowed, 4),
                               signature=signature)  # fmt: skip
    return Verdict(published=one, reason="the study has no such row")


def rounding(digits: int) -> float:
    """Return half a unit of the last printed decimal.

    >>> rounding(1)
    0.05
    """
    return 0.5 * 10.0**-digits


def redrawn(
    value: float, ends: tuple[float | None, float | None], n: int, *, digits: int, scale: float = 100.0
) -> float:
    """Return the tolerance of a value that depends on a random draw, in printed units; `ends` is its 95 % interval.

    >>> round(redrawn(0.5, (None, None), 2500, digits=1), 2)  # binomial: a standard error of one point
    2.01
    >>> round(redrawn(0.5, (0.46, 0.54), 2500, digits=1), 2)
    4.05
    """
    low, high = ends
    if low is not None and high is not None and isfinite(low) and isfinite(high):
        half = (high - low) / 2
    else:
        half = Z * sqrt(max(value * (1 - value), 0.0) / n) if n and 0 <= value <= 1 else 0.0
    return rounding(digits) + scale * half


def _halved(result: Result, metric: MetricResult, path: Path) -> dict[str, float]:
    """Return the figures of a metric by name, computed from scores in half precision."""
    table = pq.read_table(path.with_name(result.scores))
    matrix = score_matrix(table, metric.label)
    if matrix is None:
        return {}
    complete = np.asarray(~np.isnan(matrix).any(axis=1))
    items = [item for item, scored in zip(items_of(table, result.kind), complete, strict=True) if scored]
    sign = 1 if metric.higher_is_better else -1
    rounded = sign * matrix[complete].astype(np.float16).astype(np.float64)
    figures = evaluate(benchmark(result.benchmark), items, rounded, protocol=result.protocol, how=Resampling(samples=1))
    return {figure.name: figure.value for figure in figures}


def summary(answers: Sequence[Verdict]) -> dict[str, int]:
    """Count the verdicts by outcome."""
    return {outcome: sum(answer.outcome == outcome for answer in answers) for outcome in VERDICTS}


def comparison_grid(answers: Sequence[Verdict]) -> Grid:
    """Return one row per published value: ours, the difference, the tolerance and the verdict."""
    rows = tuple(
        (answer.name, f"{answer.published.value:g}",
         *((NONE,) * 3 if answer.ours is None else
           (f"{answer.ours:.4g}", f"{answer.ours - answer.published.value:+.3g}", f"±{answer.tolerance:.3g}")),
         answer.outcome)
        for answer in answers
    )  # fmt: skip
    reasons = [f"{answer.published.step}: {answer.outcome}, {answer.reason}" for answer in answers if answer.reason]
    judged = [answer.published for answer in answers if not answer.reason]
    reasons += [f"{one.step}, {one.source}: {one.reason}" for one in judged]
    columns = ("step, row and figure", "published", "ours", "difference", "tolerance", "verdict")
    return Grid("Published values and ours", columns, rows, tuple(dict.fromkeys(reasons)))


def _figures(step: str, metric: str, values: Mapping[str, float | None], **about: Any) -> Iterator[Published]:
    """Yield the printed values of one metric of a benchmark, by figure."""
    for figure, value in values.items():
        if value is not None:
            yield Published(step=step, metric=metric, figure=figure, value=value, **about)


def _subtasks(step: str, values: Sequence[float], **about: Any) -> Iterator[Published]:
    """Yield the accuracies of the subtasks of SugarCrepe; that of replace_rel is printed as two numbers."""
    for name, value in zip(tables.SUBTASKS, values, strict=True):
        opened = {"open": TWO_NUMBERS} if value in TWICE else {}
        yield Published(step=step, figure=f"accuracy/{name}", value=value, **{"digits": 2} | about | opened)


def _checks() -> Iterator[Published]:
    """Yield figures that others published for the plain encoders."""
    for encoder, values in tables.COSINES.items():
        for one in _subtasks(f"sugarcrepe-{encoder}", values, metric="clipscore,prefix=", same=True, reason=SAME,
                             source=SUGARCREPE):  # fmt: skip
            yield replace(one, reason=ONE_LESS) if one.figure == "accuracy/swap_obj" else one
    yield from _figures("flickr8k-expert-clip-b32", "clipscore", {"tau_c": 51.2}, same=True, reason=SAME,
                        source=CLIPSCORE)  # fmt: skip
    pascal = dict(zip(tables.PASCAL.values(), (56.5, 99.3, 96.4, 70.4, 80.7), strict=True))
    yield from _figures("pascal50s-clip-b32", "clipscore", pascal, reason=VOTES, source=CLIPSCORE)


def _benchmarks() -> Iterator[Published]:
    """Yield the paper's tables of benchmarks."""
    for row, (step, metric) in CAPARENA_ROWS.items():
        same: dict[str, Any] = {} if metric.endswith("msd") else {"either": True, "reason": TOOLS}
        same |= {"open": ONE_ROW} if row == "Soft-MSD, LLaVA-1.5-7B" else {}
        yield from _figures(step, metric, tables.CAPARENA[row], **same)
    for row, (step, metric) in DOCENT_ROWS.items():
        yield from _figures(step, metric, tables.DOCENT[row])
    for name in tables.LEGACY_COLUMNS:
        yield from _figures(name, "soft-msd", tables.legacy_figures(name))
    for step in ("sugarcrepe", "sugarcrepe-plain"):  # the authors' script runs plain CLIP
        yield from _subtasks(step, tables.KAPPA["kappa=20"], metric="msd", reason=STARTS, either=True)
    for metric, figures in tables.COCO_CF_FIGURES.items():
        yield from _figures("coco-cf", metric.lower(), figures, digits=2)
    for name, values in tables.OOD.items():
        for metric, value in zip(("clipscore", "msd", "soft-msd"), values, strict=True):
            yield from _figures(OOD_STEPS[name], metric, {"accuracy/all": value}, open=NEGATIVES)


def _studies() -> Iterator[Published]:
    """Yield the paper's tables and figures of ablations."""
    for name, values in tables.MIXTURES.items():
        row = {"variant": "Gaussian, diagonal" if name == "Gaussian" else name, "metric": "msd"}
        yield from _subtasks("mixture", values, table="same_alpha", row=row, open=OTHER_SET)
    for name, values in tables.KAPPA.items():
        row = {"variant": name, "metric": "msd"}
        yield from _subtasks("kappa", values, table="sugarcrepe", row=row, reason=STARTS)
    for name, (mean, _) in tables.STABILITY.items():
        row = {"mixture": "Gaussian, diagonal" if name == "Gaussian" else name}
        yield Published(
            step="stability", table="clusterings", row=row, figure="ari", value=round(100 * mean, 1), reason=DRAWN
        )
    for name, values in tables.DIRECTION.items():
        row = {"variant": name, "metric": "soft-msd"}
        for figure, value in zip(tables.CAPARENA_COLUMNS.values(), values, strict=True):
            yield Published(step="direction", table="caparena", row=row, figure=figure, value=value)
    for at, accuracies in enumerate(tables.BY_LENGTH.values()):
        for figure, value in zip(("coverage", "support", "bi-kl"), accuracies, strict=True):
            yield Published(step="direction", table="by_length", row={"position": at}, figure=figure, value=value,
                            open=SAMPLE)  # fmt: skip
    for split, value in (("easy", 4.70), ("hard", 3.18)):
        yield Published(step="margin", table=f"gains-{split}", row={"metrics": "soft-msd − clipscore"},
                        figure="difference", value=value, digits=2, open=OVER_CLIPSCORE)  # fmt: skip
    for kind, effects in tables.FAITHFULNESS.items():
        row = {"projection": "carried", "kind": kind, "masking": "patches"}
        for figure, value in zip(("top", "random", "bottom"), effects, strict=True):
            yield Published(
                step="faithfulness", table="masking", row=row, figure=figure, value=value, digits=4, scale=1
            )
    for name in ("without reconstruction", "with reconstruction"):
        for data, value in zip(("docent", "caparena"), tables.RECONSTRUCTION[name][::3], strict=True):
            yield Published(step="reconstruction", table="encoders", row={"dataset": data, "encoder": name},
                            figure="soft-msd", value=value, reason=RETRAINED)  # fmt: skip
    yield Published(step="timing", table="buckets", row={"tokens": "overall"}, figure="Soft-MSD",
                    value=tables.LATENCY["overall"][5], digits=2, scale=1, open=OTHER_DEVICE)  # fmt: skip


ONE_LESS = "the table counts 246 pairs, the released file has 245, and one pair is 0.4 points"
VOTES = "tied votes and tied scores were resolved at random in the published run"
TOOLS = "versions of the tools and prompts may differ"
NEGATIVES = "the paper does not say how its negatives are made"
TWO_NUMBERS = "the paper prints 63.44 and 66.36 for the same setting"
TWICE = (63.44, 66.36)
ONE_ROW = "the paper prints the same seven numbers for its default encoder"
OVER_CLIPSCORE = "printed as the gain over the cosine, equal to that over CLIPScore"
OTHER_SET = "the caption of the table names COCO-CF, its rows are the subtasks of SugarCrepe"
SAMPLE = "the paper's random sample of pairs is not known"
OTHER_DEVICE = "milliseconds depend on the device"
CAPARENA_ROWS = {
    "BLEU-4": ("caparena-references", f"bleu-4{PTB}"), "CIDEr": ("caparena-references", f"cider{PTB}"),
    "METEOR": ("caparena-references", f"meteor{PTB}"), "SPICE": ("caparena-spice", "spice"),
    "CLIPScore": ("caparena", "clipscore"), "LongCLIPScore": (f"caparena-{LONG}", "longclipscore"),
    "FLEUR": ("caparena-fleur", "fleur"), "Soft-MSD": ("caparena", "soft-msd"),
    **{f"Soft-MSD, {name}": (f"caparena-{folder}", "soft-msd") for folder, name in tables.VLM_NAMES.items()},
    **{f"judge, {name}": (f"caparena-judge-{folder}", "judge") for folder, name in tables.VLM_NAMES.items()},
}  # fmt: skip
DOCENT_ROWS = {
    "CLIPScore": ("docent", "clipscore"),
    "FLEUR": ("docent-fleur", "fleur"),
    "Soft-MSD": ("docent", "soft-msd"),
}
OOD_STEPS = {"ROCOv2, BiomedCLIP": "rocov2-biomedclip", "RSICD, RemoteCLIP": "rsicd-remoteclip-l14"}
PUBLISHED: tuple[Published, ...] = (*_checks(), *_benchmarks(), *_studies())
