"""Human agreement by the number of references."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from statistics import fmean, stdev

from msdscore_lab.benchmarks.protocols.counting import Figure
from msdscore_lab.benchmarks.run.plan import pipeline_for, prepare_work
from msdscore_lab.studies.ablations.sweep import run_once
from msdscore_lab.studies.context import Study
from msdscore_lab.studies.table import Column, Plot, Row, Table

BENCHMARKS = ("flickr8k-expert", "composite", "pascal50s")
COUNTS = (1, 2, 3, 5, 10, 48)
SEEDS = 5


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
