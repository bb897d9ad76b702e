"""The best of any number of values, exactly and in little memory.

The values are read several times. A float64 has an order-preserving form as a whole number of 64 bits; counting by its
first 16 bits tells in which of 65,536 bins the last value to keep lies, the next reading looks into that bin alone.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from msdscore.errors import ConfigError

Ranks = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
_STEP = 16  # bits that one reading tells apart
_GATHERED = 1 << 20  # values that are sorted in memory once so few are left
_SIGN = np.uint64(1 << 63)


@dataclass(frozen=True, slots=True)
class Quota:
    """How many of some rows are kept: a share of them, rounded to the nearest number, or a number of them.

    >>> Quota.parse("0.3").of(10), Quota.parse("30%").of(5), Quota.parse("2").of(10), Quota.parse("2").of(1)
    (3, 2, 2, 1)
    """

    share: Fraction | None = None
    count: int | None = None

    @classmethod
    def parse(cls, text: str) -> "Quota":
        """A share such as 0.3 or 30%, or a whole number of rows."""
        plain = text.strip()
        try:
            if plain.isdigit() and int(plain) > 0:
                return cls(count=int(plain))
            share = Fraction(plain.removesuffix("%")) / (100 if plain.endswith("%") else 1)
        except (ValueError, ZeroDivisionError):
            share = Fraction(0)
        if not 0 < share <= 1 or share.denominator > 10**9:
            raise ConfigError(f"expected a share such as 0.3 or 30%, or a number of rows such as 1000, got {text!r}")
        return cls(share=share)

    def of(self, rows: int) -> int:
        """How many of so many rows are kept."""
        return int(self.of_each(np.array([rows]))[0])

    def of_each(self, rows: Ints) -> Ints:
        """How many are kept of each of some numbers of rows."""
        if self.share is None:
            return np.minimum(rows, min(self.count or 0, np.iinfo(np.int64).max))
        # In whole numbers: 0.3 has no exact form as a float.
        top, bottom = self.share.numerator, self.share.denominator
        return np.asarray((2 * rows * top + bottom) // (2 * bottom), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Cut:
    """Values above `rank` are kept, and the first `ties` of those equal to it; `kept` of `total` in all."""

    rank: int
    ties: int
    kept: int
    total: int

    def keeper(self) -> Callable[[Ranks, Mask], Mask]:
        """A function that says which values of a batch are kept, called for one batch after the other in order."""
        left = self.ties

        def keep(ranks: Ranks, valid: Mask) -> Mask:
            nonlocal left
            equal = valid & (ranks == np.uint64(self.rank))
            first = equal & (np.cumsum(equal) <= left)
            left -= int(first.sum())
            return np.asarray((valid & (ranks > np.uint64(self.rank))) | first)

        return keep


def ranks_of(values: npt.NDArray[np.float64], *, lower_is_better: bool = False) -> Ranks:
    """Whole numbers in the order of the values, the best the largest; NaN has to be left out by the caller.

    >>> ranks = ranks_of(np.array([-1.5, 0.0, -0.0, 2.0]))
    >>> bool(ranks[0] < ranks[1]), bool(ranks[1] == ranks[2]), bool(ranks[2] < ranks[3])
    (True, True, True)
    """
    bits = (values + 0.0).view(np.uint64)  # -0.0 becomes 0.0
    ordered = np.where(bits >= _SIGN, ~bits, bits | _SIGN)
    return np.asarray(~ordered if lower_is_better else ordered, dtype=np.uint64)


def value_of(rank: int, *, lower_is_better: bool = False) -> float:
    """The value of a rank.

    >>> value_of(int(ranks_of(np.array([-0.25]))[0]))
    -0.25
    """
    ordered = np.array([rank], dtype=np.uint64)
    ordered = ~ordered if lower_is_better else ordered
    return float(np.where(ordered >= _SIGN, ordered ^ _SIGN, ~ordered).view(np.float64)[0])


def find_cut(read: Callable[[], Iterable[Ranks]], quota: Quota) -> Cut:
    """The cut below the best values; `read` gives all of them anew, whatever their number, in parts."""
    prefix, depth = 0, 0
    counts = _count(read(), prefix, depth)
    total = int(counts.sum())
    kept = left = quota.of(total)
    if not 0 < kept < total:
        return Cut(0 if kept else 2**64 - 1, 0, kept, total)  # rank 0 is that of a NaN alone
    while True:
        # From the best bin down, the one in which the last value to keep lies.
        above = np.cumsum(counts[::-1])
        place = int(np.searchsorted(above, left))
        left -= int(above[place - 1]) if place else 0
        size = int(counts[::-1][place])
        prefix, depth = (prefix << _STEP) | (len(counts) - 1 - place), depth + _STEP
        if depth == 64:
            return Cut(prefix, left, kept, total)
        if size <= _GATHERED:
            inside = np.sort(np.concatenate([_within(ranks, prefix, depth) for ranks in read()]))[::-1]
            last = inside[left - 1]
            return Cut(int(last), left - int((inside > last).sum()), kept, total)
        counts = _count(read(), prefix, depth)


def _count(batches: Iterable[Ranks], prefix: int, depth: int) -> Ints:
    """How many values that begin with a prefix of `depth` bits go on with each 16 bits."""
    counts = np.zeros(1 << _STEP, dtype=np.int64)
    for ranks in batches:
        inside = _within(ranks, prefix, depth)
        bins = (inside >> np.uint64(64 - depth - _STEP)) & np.uint64((1 << _STEP) - 1)
        counts += np.bincount(bins.astype(np.int64), minlength=1 << _STEP)
    return counts


def _within(ranks: Ranks, prefix: int, depth: int) -> Ranks:
    return ranks if depth == 0 else ranks[(ranks >> np.uint64(64 - depth)) == np.uint64(prefix)]
