"""Which rows are kept: those within given bounds, and of these the best by one number, in all or in every group."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from msdscore.errors import ConfigError
from msdscore.selection.groups import GroupMarks
from msdscore.selection.scores import ScoreFile, ScoreRows, read_scores, require_columns
from msdscore.selection.top import Cut, Mask, Quota, Ranks, find_cut, ranks_of, value_of

LOWER_IS_BETTER = frozenset(("coverage", "support", "divergence", "uncertainty"))
_SCORE = "msd"  # the number that every scored row has
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What to keep: rows whose numbers are at least `minima` and at most `maxima`, and of these `keep` by `by`.

    With `per`, so much of every group of rows that share the value of that column. Rows without a number are dropped.
    """

    by: str = "msd"
    keep: Quota | None = None
    minima: tuple[tuple[str, float], ...] = ()
    maxima: tuple[tuple[str, float], ...] = ()
    per: str | None = None

    def __post_init__(self) -> None:
        if self.keep is None and not self.minima and not self.maxima:
            raise ConfigError("nothing says what to keep; give --keep 0.3, --min match=0.7 or --max support=2")
        for name, value in (*self.minima, *self.maxima):
            if math.isnan(value):
                raise ConfigError(f"a bound must be a number, got nan for {name}")
        if self.per is not None and self.keep is None:
            raise ConfigError(f"--per {self.per} needs --keep: a bound is the same for every group")

    @property
    def lower_is_better(self) -> bool:
        """Whether the lowest numbers are the best ones."""
        return self.by in LOWER_IS_BETTER

    @property
    def numbers(self) -> tuple[str, ...]:
        """The columns of numbers that it looks at."""
        return tuple(dict.fromkeys([self.by, *(name for name, _ in (*self.minima, *self.maxima))]))

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that it looks at."""
        return self.numbers if self.per is None else (*self.numbers, self.per)

    def valid(self, rows: ScoreRows) -> Mask:
        """Which rows have a number and are within the bounds."""
        found: Mask = ~np.isnan(rows.numbers(self.by))
        for name, least in self.minima:
            found &= rows.numbers(name) >= least
        for name, most in self.maxima:
            found &= rows.numbers(name) <= most
        return found

    def ranks(self, rows: ScoreRows) -> Ranks:
        """The rows' places in the order of `by`."""
        return ranks_of(np.nan_to_num(rows.numbers(self.by)), lower_is_better=self.lower_is_better)


@dataclass(frozen=True, slots=True)
class Choice:
    """A rule with what was found out about some files: which rows it keeps, batch by batch in order.

    `valid` rows have a number and are within the bounds; `threshold` is the number of the last row kept, None where
    every group has its own or nothing was cut.
    """

    rule: Rule
    rows: int
    valid: int
    kept: int
    _cut: Cut | None = None
    _groups: GroupMarks | None = None

    @property
    def threshold(self) -> float | None:
        """The number of the last row that is kept by rank."""
        if self._cut is None or not 0 < self._cut.kept < self._cut.total:
            return None
        return value_of(self._cut.rank, lower_is_better=self.rule.lower_is_better)

    def keeper(self) -> Callable[[ScoreRows], Mask]:
        """A function that says which rows are kept, called for one batch after the other of a new reading."""
        groups, rule = self._groups, self.rule
        if groups is not None:
            return lambda rows: groups.mask(rows.start, len(rows))
        if self._cut is None:
            return rule.valid
        keep = self._cut.keeper()
        return lambda rows: keep(rule.ranks(rows), rule.valid(rows))


def choose(
    files: Sequence[ScoreFile], rule: Rule, folder: Path, *, progress: Progress = lambda done, total: None
) -> Choice:
    """Find out what a rule keeps of some files; `folder` is for what does not fit into memory."""
    require_columns(files, rule.columns)
    rows = sum(file.rows for file in files)

    def read() -> Iterator[ScoreRows]:
        for one in read_scores(files, rule.columns):
            yield one
            progress(one.start + len(one), rows)

    if rule.per is not None and rule.keep is not None:
        groups = GroupMarks(folder, rows)
        per = rule.per
        groups.choose(((one.start, one.texts(per), rule.ranks(one), rule.valid(one)) for one in read()), rule.keep)
        found = Choice(rule, rows, groups.total, groups.kept, None, groups)
    else:
        # Without a quota all valid rows are kept, which one reading counts.
        cut = find_cut(lambda: (rule.ranks(one)[rule.valid(one)] for one in read()), rule.keep or Quota.parse("1.0"))
        found = Choice(rule, rows, cut.total, cut.kept, cut if rule.keep else None)
    if not found.valid:
        _refuse_untold(files, rule.numbers)
    return found


def _refuse_untold(files: Sequence[ScoreFile], names: Sequence[str]) -> None:
    """Refuse a number that no row has although rows were scored: a bound on it would silently drop them all."""
    scored = [_SCORE] if all(_SCORE in file.schema.names for file in files) else []
    told: set[str] = set()
    for rows in read_scores(files, [*names, *scored]):
        told |= {name for name in (*names, *scored) if not np.isnan(rows.numbers(name)).all()}
    untold = next((name for name in names if name not in told), None)
    if told and untold is not None:
        raise ConfigError(f"no row has a number in column {untold}; match and information need a bank (msdscore bank)")


def by_cosine(rule: Rule, kept: int) -> Rule:
    """The rule that keeps as many rows by similarity alone, within every group if the rule does."""
    if rule.keep is not None and rule.per is not None:
        return replace(rule, by="similarity", minima=(), maxima=())
    return Rule(by="similarity", keep=Quota(count=kept))
