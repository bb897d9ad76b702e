"""Selection rules: rows within bounds, and of these the best by one column, overall or per group.

DuckDB sorts and groups, and spills to disk when memory is full. A survey of a selection has histograms, rows on both
sides of the threshold, and the agreement with a selection by cosine.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from msdscore import threads
from msdscore.errors import ConfigError, RunError, require, shortened, unknown_name
from msdscore.forms.registry import columns_shown, lower_is_better
from msdscore.io.arrow import pa
from msdscore.select.scores import Positions, ScoreFile

duckdb = require("duckdb", extra="select")

COSINE = "similarity"
FILE = 1 << 32  # more than the rows of any file
BINS = 60  # of a histogram
_SAMPLED = 50_000  # evenly spaced rows for ranges and rank correlation
_OUTSIDE = 0.001  # share on each side that is clipped to the last bin
_WARNINGS = "warnings"  # a list of texts, or one text
_SCORE = "msd"  # the number that every scored row has
_MEMORY = "512MB"
_THREADS = 4
_ESCAPES = str.maketrans({"*": "[*]", "?": "[?]", "[": "[[]"})  # of file names, which DuckDB parses as patterns


@dataclass(frozen=True, slots=True)
class Quota:
    """Number of rows to select: a share, rounded to the nearest integer, or a count.

    >>> Quota.parse("0.3").of(10), Quota.parse("30%").of(5), Quota.parse("2").of(10), Quota.parse("2").of(1)
    (3, 2, 2, 1)
    """

    share: Fraction | None = None
    count: int | None = None

    @classmethod
    def parse(cls, text: str) -> "Quota":
        """Parse a share such as 0.3 or 30%, or a number of rows; 1.0 is rejected, as it may mean either."""
        plain = text.strip()
        try:
            if plain.isdigit() and int(plain) > 0:
                return cls(count=int(plain))
            share = Fraction(plain.removesuffix("%")) / (100 if plain.endswith("%") else 1)
            share = Fraction(0) if share == 1 and not plain.endswith("%") else share
        except (ValueError, ZeroDivisionError):
            share = Fraction(0)
        if not 0 < share <= 1 or share.denominator > 10**9:
            raise ConfigError(f"expected a share such as 0.3 or 100%, or a number of rows such as 1000, got {text!r}")
        return cls(share=share)

    def of(self, rows: int) -> int:
        """Return how many of `rows` rows are selected."""
        if self.share is None:
            return min(rows, self.count or 0)
        # In integers: 0.3 is not exact as a float.
        return (2 * rows * self.share.numerator + self.share.denominator) // (2 * self.share.denominator)

    def sql(self, rows: str) -> str:
        """Return the same as an SQL expression of a column, in 128 bits."""
        if self.share is None:
            return str(min(self.count or 0, 2**63 - 1))
        top, bottom = self.share.numerator, self.share.denominator
        return f"(2 * {rows}::HUGEINT * {top} + {bottom}) // {2 * bottom}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Selection rule: rows with values of at least `minima` and at most `maxima`, and of these `keep` by `by`.

    Rows with a warning that contains one of the texts in `without` are dropped first. With `per`, `keep` applies to
    every group of rows with the same value there. Rows without a value are dropped.
    """

    by: str = "msd"
    keep: Quota | None = None
    minima: tuple[tuple[str, float], ...] = ()
    maxima: tuple[tuple[str, float], ...] = ()
    per: str | None = None
    without: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.keep is None and not self.minima and not self.maxima and not self.without:
            raise ConfigError("expected a rule, got none; pass --keep 0.3, --min match=0.7 or --max support=2")
        if not all(map(str.strip, self.without)):
            raise ConfigError("expected the text of a warning, got an empty one; see the column warnings")
        for name, value in (*self.minima, *self.maxima):
            if math.isnan(value):
                raise ConfigError(f"a bound must be a number, got nan for {name}")
        if self.per is not None and self.keep is None:
            raise ConfigError(f"--per {self.per} needs --keep: a bound is the same for every group")

    @property
    def numbers(self) -> tuple[str, ...]:
        """The numeric columns that the rule uses."""
        return tuple(dict.fromkeys([self.by, *(name for name, _ in (*self.minima, *self.maxima))]))

    @property
    def valid(self) -> str:
        """SQL condition for rows that have a value within the bounds."""
        bounds = [("<=", *bound) for bound in self.maxima] + [(">=", *bound) for bound in self.minima]
        # DuckDB sorts NaN above every number.
        known = [f"({number(name)} IS NOT NULL AND NOT isnan({number(name)}))" for name in self.numbers]
        clean = [f"NOT coalesce(contains(lower({_WARNINGS}::VARCHAR), {_text(text.lower())}), false)"
                 for text in self.without]  # fmt: skip
        limits = [f"{number(name)} {sign} {literal(value)}" for sign, name, value in bounds]
        return " AND ".join([*known, *limits, *clean])


def quoted(name: str) -> str:
    """Quote a column name for SQL."""
    return '"' + name.replace('"', '""') + '"'


def _text(value: str) -> str:
    """Return text as an SQL literal."""
    return "'" + value.replace("'", "''") + "'"


def number(name: str) -> str:
    """Return the SQL expression of a column as numbers; -0.0 is 0.0."""
    return f"({quoted(name)}::DOUBLE + 0.0)"


def literal(value: float) -> str:
    """Return a number as an SQL literal."""
    return f"'{value!r}'::DOUBLE"


class ScoreTable:
    """The rows of several files as a view `scores` of a database in `folder`.

    `file` is the index of a row's file, `row` is that index times `FILE` plus the position within the file.
    """

    def __init__(self, files: Sequence[ScoreFile], folder: Path) -> None:
        self.files, self.rows = list(files), sum(file.rows for file in files)
        self.signature = next((file.signature for file in files if file.signature), "")
        try:
            self._database = duckdb.connect(str(folder / "rows.duckdb"))
        except duckdb.Error as error:
            raise RunError(f"{folder}: cannot be written ({str(error).splitlines()[0]}); set TMPDIR") from error
        self.close = self._database.close
        self.ask(f"SET memory_limit = '{_MEMORY}'")
        self.ask(f"SET threads = {min(_THREADS, threads.available())}")
        self.ask(f"SET temp_directory = {_text(str(folder / 'sorting'))}")
        paths = []
        for number, file in enumerate(files):
            path = file.path.absolute()
            try:
                paths.append(str(path).encode().decode().translate(_ESCAPES))
            except UnicodeEncodeError:  # DuckDB only accepts UTF-8
                (link := folder / f"{number}.parquet").symlink_to(path)
                paths.append(str(link))
        names = ", ".join(map(_text, paths))
        same = all(file.schema.equals(files[0].schema) for file in files)
        self.ask(
            f"CREATE VIEW scores AS SELECT given.file_index::BIGINT AS file, file * {FILE} + file_row_number AS row, "
            f"given.* FROM read_parquet([{names}], file_row_number = true, hive_partitioning = false, "
            f"union_by_name = {not same}) AS given"
        )

    def ask(self, sql: str) -> Any:
        """Execute a query."""
        try:
            return self._database.execute(sql)
        except duckdb.Error as error:
            raise RunError(f"the scores cannot be sorted ({str(error).splitlines()[0]})") from error

    def count(self, rows: str) -> int:
        """Return the number of rows of a FROM clause, such as a table with a condition."""
        return int(self.ask(f"SELECT count(*) FROM {rows}").fetchone()[0])

    def kept_of(self, number: int) -> Positions:
        """Return the positions of the selected rows of one file, in order."""
        first = number * FILE
        answer = self.ask(f"SELECT row FROM kept WHERE row >= {first} AND row < {first + FILE} ORDER BY row")
        return np.asarray(answer.fetchnumpy()["row"], dtype=np.int64) - first


def choose(table: ScoreTable, rule: Rule, into: str = "kept") -> tuple[int, int, float | None]:
    """Write the rows that a rule selects into a table of the database.

    Returns the number of rows with a value within the bounds, the number of selected rows, and the value of the last
    selected row: None if every group has its own or all rows were selected.
    """
    _require_columns(table, rule)
    value, among, threshold = number(rule.by), f"scores WHERE {rule.valid}", None
    direction, better = ("ASC", "<") if rule.by in lower_is_better() else ("DESC", ">")
    valid = table.count(among)
    if table.rows and not valid:
        _reject_unknown(table, rule)
    wanted = valid if rule.keep is None else rule.keep.of(valid)
    if rule.per is not None and rule.keep is not None:
        # Rows without a group form one group.
        group = f"coalesce({quoted(rule.per)}::VARCHAR, '')"
        table.ask(
            f"CREATE TABLE {into} AS SELECT row FROM (SELECT row, row_number() OVER (PARTITION BY {group} ORDER BY "
            f"{value} {direction}, row) AS place, count(*) OVER (PARTITION BY {group}) AS size FROM {among}) "
            f"WHERE place <= {rule.keep.sql('size')}"
        )
    elif 0 < wanted < valid:
        last = f"SELECT {value} AS value FROM {among} ORDER BY value {direction} LIMIT 1 OFFSET {wanted - 1}"
        threshold = float(table.ask(last).fetchone()[0])
        table.ask(f"CREATE TABLE {into} AS SELECT row FROM {among} AND {value} {better} {literal(threshold)}")
        ties = f"SELECT row FROM {among} AND {value} = {literal(threshold)} ORDER BY row"
        table.ask(f"INSERT INTO {into} {ties} LIMIT {wanted - table.count(into)}")
    else:
        table.ask(f"CREATE TABLE {into} AS SELECT row FROM {among} AND {wanted > 0}")
    return valid, table.count(into), threshold


def _require_columns(table: ScoreTable, rule: Rule) -> None:
    """Raise for unknown columns, columns without numbers, and groups that are lists or objects."""
    for name in (*rule.numbers, *([rule.per] if rule.per else ()), *([_WARNINGS] if rule.without else ())):
        for file in table.files:
            if name not in file.schema.names:
                raise unknown_name(f"column of {shortened(file.name)}", name, file.schema.names)
        kinds = [file.schema.field(name).type for file in table.files]
        if name == rule.per and any(map(pa.types.is_nested, kinds)):
            nested = next(filter(pa.types.is_nested, kinds))
            raise ConfigError(f"column {name} has neither text nor numbers ({nested}); choose another")
        if name in rule.numbers and not holds_numbers(table, name):
            raise ConfigError(f"column {name} is not numeric ({kinds[0]}); choose another")


def holds_numbers(table: ScoreTable, name: str) -> bool:
    """Whether a column has numbers, or text that can be parsed as numbers."""
    kinds = {file.schema.field(name).type for file in table.files}
    if any(pa.types.is_nested(kind) or pa.types.is_temporal(kind) for kind in kinds):
        return False
    if all(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind) for kind in kinds):
        return True
    wrong = f"{quoted(name)} IS NOT NULL AND TRY_CAST({quoted(name)} AS DOUBLE) IS NULL"
    return table.ask(f"SELECT 1 FROM scores WHERE {wrong} LIMIT 1").fetchone() is None


def _reject_unknown(table: ScoreTable, rule: Rule) -> None:
    """Raise for a column without values although rows were scored: a bound on it would silently drop all rows."""
    scored = [_SCORE] if all(_SCORE in file.schema.names for file in table.files) else []
    known = [name for name in (*rule.numbers, *scored) if table.count(f"scores WHERE NOT isnan({number(name)})")]
    unknown = [name for name in rule.numbers if name not in known]
    if known and unknown:
        raise ConfigError(
            f"no row has a value in column {unknown[0]}; match and information need a bank (msdscore bank)"
        )


@dataclass(frozen=True, slots=True)
class Histogram:
    """Row counts by the value of one column, in equal bins from `low` to `high`; the outer bins include outliers."""

    name: str
    low: float
    high: float
    kept: npt.NDArray[np.int64]
    dropped: npt.NDArray[np.int64]


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
    names = [name for name in dict.fromkeys([*rule.numbers, *columns_shown(), "length"]) if name in shared]
    names = [name for name in names if holds_numbers(table, name)]
    step = max(1, table.rows // _SAMPLED)
    columns = ", ".join(f"{number(name)} AS {quoted(name)}" for name in names)
    sampled = table.ask(f"SELECT {columns} FROM scores WHERE row % {FILE} % {step} = 0 ORDER BY row").fetchnumpy()
    sample = {name: np.ma.filled(np.ma.asarray(sampled[name], dtype=np.float64), np.nan) for name in names}
    histograms = [_histogram(table, name, values) for name, values in sample.items() if not np.isnan(values).all()]
    order, cosine = f"{number(rule.by)}{' * -1' if rule.by in lower_is_better() else ''}", number(COSINE)
    agreement = None
    # The condition and the order of the rows of each kind.
    kinds = {
        "last kept": ("kept.row IS NOT NULL", order),
        "first dropped": (f"kept.row IS NULL AND {rule.valid}", f"-1 * {order}"),
    }
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
    joined = "scores LEFT JOIN kept ON kept.row = scores.row"
    joined += "" if agreement is None else " LEFT JOIN cosine ON cosine.row = scores.row"
    examples = {kind: _examples(table, joined, condition, by, show) for kind, (condition, by) in kinds.items()}
    return Survey(tuple(histograms), agreement, examples)


def _examples(table: ScoreTable, joined: str, condition: str, order: str, show: int) -> list[dict[str, Any]]:
    """Return the first rows of an order that fulfil a condition, with their `file` and the `position` in it."""
    answer = table.ask(
        f"SELECT scores.* FROM {joined} WHERE {condition} AND NOT isnan({order}) "
        f"ORDER BY {order}, scores.row LIMIT {show}"
    )
    names = [column[0] for column in answer.description]
    rows = [dict(zip(names, values, strict=True)) for values in answer.fetchall()]
    return [row | {"file": table.files[row["row"] // FILE], "position": row["row"] % FILE} for row in rows]


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
