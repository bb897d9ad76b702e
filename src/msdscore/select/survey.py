"""Survey of a selection: histograms, rows on both sides of the threshold, agreement with cosine."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from msdscore.forms.columns import LOWER_IS_BETTER, SHOWN
from msdscore.select.rule import COSINE, FILE, Quota, Rule, ScoreTable, choose, holds_numbers, literal, number, quoted

BINS = 60
_SAMPLED = 50_000  # evenly spaced rows for ranges and rank correlation
_OUTSIDE = 0.001  # share on each side that is clipped to the last bin
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Histogram:
    """Row counts by the value of one column, in equal bins from `low` to `high`; the outer bins include outliers."""

    name: str
    low: float
    high: float
    kept: Ints
    dropped: Ints


@dataclass(frozen=True, slots=True)
class Agreement:
    """Overlap with a selection of `kept` rows by plain cosine; `shared` rows are in both.

    `expected` is the overlap expected by chance. `correlation` is Spearman's, of the two rankings.
    """

    kept: int
    shared: int
    expected: float
    correlation: float | None

    @property
    def share(self) -> float:
        """The share of selected rows that cosine selects as well."""
        return self.shared / self.kept if self.kept else 0.0


@dataclass(frozen=True, slots=True)
class Survey:
    """The whole survey; `examples` are rows by category, with their `file` and the `position` in it."""

    histograms: tuple[Histogram, ...]
    agreement: Agreement | None
    examples: dict[str, list[dict[str, Any]]]


def survey(table: ScoreTable, rule: Rule, kept: int, show: int) -> Survey:
    """Survey a selection of `kept` rows, with `show` example rows of each kind."""
    shared = set.intersection(*(set(file.schema.names) for file in table.files))
    names = [name for name in dict.fromkeys([*rule.numbers, *SHOWN, "length"]) if name in shared]
    names = [name for name in names if holds_numbers(table, name)]
    step = max(1, table.rows // _SAMPLED)
    columns = ", ".join(f"{number(name)} AS {quoted(name)}" for name in names)
    sampled = table.ask(f"SELECT {columns} FROM scores WHERE row % {FILE} % {step} = 0 ORDER BY row").fetchnumpy()
    sample = {name: np.ma.filled(np.ma.asarray(sampled[name], dtype=np.float64), np.nan) for name in names}
    histograms = [_histogram(table, name, values) for name, values in sample.items() if not np.isnan(values).all()]
    order, cosine = f"{number(rule.by)}{' * -1' if rule.by in LOWER_IS_BETTER else ''}", number(COSINE)
    kinds = {
        "last kept": ("kept.row IS NOT NULL", order),
        "first dropped": (f"kept.row IS NULL AND {rule.valid}", f"-1 * {order}"),
    }
    agreement, join = None, ""
    if rule.by != COSINE and COSINE in shared:
        # As many rows by similarity only, per group if the rule has groups.
        grouped = rule.keep is not None and rule.per is not None
        alone = Rule(by=COSINE, keep=rule.keep, per=rule.per) if grouped else Rule(by=COSINE, keep=Quota(count=kept))
        chosen = choose(table, alone, into="cosine")[1]
        both = table.count("kept SEMI JOIN cosine USING (row)")
        correlation = _correlation(table, order, cosine, step)
        agreement = Agreement(kept, both, chosen / max(table.rows, 1), correlation)
        kinds["kept here, dropped by cosine"] = ("kept.row IS NOT NULL AND cosine.row IS NULL", cosine)
        kinds["dropped here, kept by cosine"] = ("kept.row IS NULL AND cosine.row IS NOT NULL", f"-1 * {cosine}")
        join = "LEFT JOIN cosine ON cosine.row = scores.row"
    examples = {}
    for what, (condition, by) in kinds.items():
        answer = table.ask(
            f"SELECT scores.* FROM scores LEFT JOIN kept ON kept.row = scores.row {join} WHERE {condition} "
            f"AND NOT isnan({by}) ORDER BY {by}, scores.row LIMIT {show}"
        )
        given = [column[0] for column in answer.description]
        rows = [dict(zip(given, values, strict=True)) for values in answer.fetchall()]
        examples[what] = [
            row | {"file": table.files[row["row"] // FILE], "position": row["row"] % FILE} for row in rows
        ]
    return Survey(tuple(histograms), agreement, examples)


def _histogram(table: ScoreTable, name: str, values: npt.NDArray[np.float64]) -> Histogram:
    finite = values[np.isfinite(values)]
    low, high = np.quantile(finite, [_OUTSIDE, 1 - _OUTSIDE]) if len(finite) else (0.0, 1.0)
    high = high if high > low else low + 1.0
    position = f"({number(name)} - {literal(float(low))}) / {literal(float(high - low))} * {BINS}"
    counted = table.ask(
        f"SELECT kept.row IS NOT NULL, least(greatest(floor({position}), 0), {BINS - 1})::INT AS bin, count(*) FROM "
        f"scores LEFT JOIN kept ON kept.row = scores.row WHERE isfinite({number(name)}) GROUP BY ALL"
    ).fetchall()
    kept, dropped = np.zeros(BINS, dtype=np.int64), np.zeros(BINS, dtype=np.int64)
    for is_kept, index, count in counted:
        (kept if is_kept else dropped)[index] = count
    return Histogram(name, float(low), float(high), kept, dropped)


def _correlation(table: ScoreTable, first: str, second: str, step: int) -> float | None:
    """Spearman's correlation of two columns over the sampled rows; None if one of the two is constant."""
    # Equal values share the mean of their ranks.
    ranks = [f"rank() OVER (ORDER BY {name}) + count(*) OVER (PARTITION BY {name}) / 2" for name in ("a", "b")]
    sampled = f"SELECT {first} AS a, {second} AS b FROM scores WHERE row % {FILE} % {step} = 0"
    whole = f"SELECT * FROM ({sampled}) WHERE NOT isnan(a) AND NOT isnan(b)"
    (value,) = table.ask(f"SELECT corr(x, y) FROM (SELECT {ranks[0]} AS x, {ranks[1]} AS y FROM ({whole}))").fetchone()
    return None if value is None or np.isnan(value) else float(value)
