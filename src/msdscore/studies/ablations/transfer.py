"""Encoders side by side on benchmarks: what the score gains over the cosine with each, in the domain and outside."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msdscore.benchmarks.results.compare import Difference, compare_sides, side_of
from msdscore.benchmarks.results.grids import Grid, markdown, number, p_value, result_grids
from msdscore.stats.resample import Resampling, holm
from msdscore.studies.ablations.sweep import Sweep, VariantResult, interval_of
from msdscore.studies.outcome import Chart, ChartLine, spelled

BASELINE = "cosine"
BACKBONE_METRICS = (BASELINE, "coverage", "support", "bi-kl", "msd", "soft-msd", "rank-agg")
TRANSFER_METRICS = (BASELINE, "msd", "soft-msd")


@dataclass(frozen=True, slots=True)
class EncoderGains:
    """One encoder on one set: its result, and every metric's headline against the cosine's."""

    dataset: str
    row: VariantResult
    gains: dict[str, Difference]
    adjusted: dict[str, float]


def gains_of(dataset: str, sweep: Sweep, *, how: Resampling) -> list[EncoderGains]:
    """Every metric of every encoder against the cosine; Holm's correction goes over both."""
    found = []
    for row in sweep.rows:
        base = side_of(row.result, BASELINE, row.folder)
        rivals = [label for label in sweep.metrics if label != BASELINE]
        sides = {label: side_of(row.result, label, row.folder) for label in rivals}
        found.append((row, {label: compare_sides(side, base, how=how).differences[0] for label, side in sides.items()}))
    p_values = iter(holm([one.tests[0].p_value for _, gains in found for one in gains.values()]).tolist())
    return [EncoderGains(dataset, row, gains, {label: next(p_values) for label in gains}) for row, gains in found]


def to_dict(found: Sequence[EncoderGains]) -> list[dict[str, Any]]:
    """Plain values, for JSON."""
    return [
        {
            "dataset": one.dataset,
            "encoder": one.row.variant.name,
            "signature": one.row.result.encoder,
            "metrics": {metric.label: spelled(interval_of(metric.figures[0])) for metric in one.row.result.metrics},
            "gains": {
                label: {**spelled(gain.interval), "p": gain.tests[0].p_value, "p_holm": one.adjusted[label]}
                for label, gain in one.gains.items()
            },
        }
        for one in found
    ]


def section(found: Sequence[EncoderGains]) -> str:
    """Headlines and gains in one table, then every figure of every encoder."""
    labels = [metric.label for metric in found[0].row.result.metrics]
    rivals = [label for label in labels if label in ("msd", "soft-msd")]
    rows = [
        (
            one.dataset,
            one.row.variant.name,
            *(number(one.row.result.metric(label).figures[0]) for label in labels),
            *(_gain(one, label) for label in rivals),
        )
        for one in found
    ]
    columns = ("dataset", "encoder", *labels, *(f"{label} − {BASELINE} (p, Holm)" for label in rivals))
    head = found[0].row.result.metrics[0].figures[0].name
    table = markdown(Grid(f"{head}, by encoder", columns, tuple(rows)))
    return "\n".join([table, *map(markdown, result_grids([one.row.result for one in found]))])


def _gain(one: EncoderGains, label: str) -> str:
    gain = one.gains[label]
    value, low, high = (gain.scale * x for x in (gain.first - gain.second, gain.interval.low, gain.interval.high))
    return f"{value:+.1f} [{low:+.1f}, {high:+.1f}] ({p_value(one.adjusted[label])})"


def charts(found: Sequence[EncoderGains]) -> tuple[Chart, ...]:
    """One panel per set: metrics by encoder."""
    panels = []
    for dataset in dict.fromkeys(one.dataset for one in found):
        mine = [one for one in found if one.dataset == dataset]
        head = mine[0].row.result.metrics[0].figures[0]
        labels = [metric.label for metric in mine[0].row.result.metrics]
        lines = [
            ChartLine.of(
                label,
                {one.row.variant.name: interval_of(one.row.result.metric(label).figures[0]) for one in mine},
                scale=head.scale,
            )
            for label in labels
        ]
        level = 50.0 if head.name.startswith("accuracy") else None
        panels.append(Chart(title=dataset, x_label="encoder", y_label=head.name, lines=tuple(lines), level=level))
    return tuple(panels)
