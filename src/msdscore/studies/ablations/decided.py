"""Pairs of captions of one picture of which people, or rules, say which is better, with the scores of any benchmark."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from msdscore.benchmarks.base import Battle, Item, Pair, Rated, clusters
from msdscore.benchmarks.protocols.lengths import words
from msdscore.benchmarks.results.result import Result
from msdscore.benchmarks.results.scores import items_of, score_matrix
from msdscore.errors import InputError
from msdscore.stats.pairs import credits_of

Floats = npt.NDArray[np.float64]
Place = tuple[int, int]  # item, candidate


@dataclass(frozen=True, slots=True)
class DecidedPairs:
    """Scores (pairs, 2) of every metric, the better caption first and higher always better; `length` is in words."""

    scores: Mapping[str, Floats]
    length: Floats
    cluster: npt.NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.length)

    def right(self, label: str) -> Floats:
        """1 where the better caption scores strictly higher, else 0."""
        found = self.scores[label]
        return credits_of(found[:, 0], found[:, 1]).values

    def take(self, chosen: npt.NDArray[Any]) -> "DecidedPairs":
        """Some of the pairs."""
        some = {label: values[chosen] for label, values in self.scores.items()}
        return DecidedPairs(some, self.length[chosen], self.cluster[chosen])


def decided_pairs(result: Result, folder: Path, labels: Sequence[str]) -> DecidedPairs:
    """The pairs of a result that every metric scored: as they are, of battles with a winner, or of unequal ratings."""
    table = pq.read_table(folder / result.scores)
    items = items_of(table, result.kind)
    places = _places(items)
    if not places:
        raise InputError(f"{result.benchmark} holds no two captions of one picture of which one is better")
    columns = {}
    for label in labels:
        found = score_matrix(table, label)
        assert found is not None, "a result names only metrics whose scores lie beside it"
        sign = 1 if result.metric(label).higher_is_better else -1
        columns[label] = sign * np.array([[found[place] for place in both] for both in places])
    known = ~np.isnan(np.hstack(list(columns.values()))).any(axis=1)
    lengths = [np.mean([words(items[item].captions[at]) for item, at in both]) for both in places]
    names = clusters([items[first[0]] for first, _ in places])
    whole = DecidedPairs(columns, np.array(lengths), np.char.add(f"{result.benchmark}/", names))
    return whole.take(np.flatnonzero(known))


def joined(parts: Sequence[DecidedPairs]) -> DecidedPairs:
    """Pairs of several benchmarks."""
    return DecidedPairs(
        {label: np.concatenate([part.scores[label] for part in parts]) for label in parts[0].scores},
        np.concatenate([part.length for part in parts]),
        np.concatenate([part.cluster for part in parts]),
    )


def quantile_bins(values: Floats, count: int) -> list[npt.NDArray[np.int64]]:
    """Numbers of the items in bins of about equal size by rising value; equal values share a bin.

    >>> [found.tolist() for found in quantile_bins(np.array([5.0, 1.0, 1.0, 9.0]), 2)]
    [[1, 2], [0, 3]]
    """
    edges = np.quantile(values, np.linspace(0, 1, count + 1)[1:-1])
    codes = np.searchsorted(edges, values, side="left")
    return [np.flatnonzero(codes == code) for code in np.unique(codes)]


def _places(items: Sequence[Item]) -> list[tuple[Place, Place]]:
    """Item and candidate of the better and of the worse caption."""
    found: list[tuple[Place, Place]] = []
    rated: dict[str, list[tuple[float, int]]] = defaultdict(list)
    names = clusters(items)
    for number, item in enumerate(items):
        if isinstance(item, Pair):
            found.append(((number, 0), (number, 1)))
        elif isinstance(item, Battle) and item.winner in ("a", "b"):
            sides = (number, 0), (number, 1)
            found.append(sides if item.winner == "a" else (sides[1], sides[0]))
        elif isinstance(item, Rated):
            rated[names[number]].append((float(np.mean(item.ratings)), number))
    for mine in rated.values():
        found += [((a, 0), (b, 0)) for first, a in mine for second, b in mine if first > second]
    return found
