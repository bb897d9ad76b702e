"""Metrics without a model: scores of another program, caption length, chance, and ties."""

import functools
import json
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from msdscore.errors import ConfigError, InputError
from msdscore.io.files import file_key
from msdscore_lab.metrics.base import Cases, CaseScores, Loaded
from msdscore_lab.metrics.registry import choice

_VERDICTS = {"a": (1.0, 0.0), "b": (0.0, 1.0), "tie": (0.5, 0.5)}
_Row = dict[str, Any]


def load_file(path: str, lower_is_better: str = "false", partial: str = "false") -> Loaded:
    """Scores of a JSON Lines file with one row per item (`msdscore benchmarks items NAME` lists them).

    Rows have `id` with `score`, `scores` (one per caption) or `verdict` ("a", "b" or "tie"; a file of verdicts is a
    judge that decides ties itself); their wrong-image control is taken from `wrong_score`, `wrong_scores` or
    `wrong_verdict`. Items without scores are an error, unless `partial` is true.
    """
    choice("lower_is_better", lower_is_better, ("true", "false"))
    choice("partial", partial, ("true", "false"))
    file = Path(path)
    if not file.is_file():
        raise InputError(f"{path}: no such file; expected JSON Lines with id and score")
    rows = _read(file)
    score = functools.partial(_score_file, path=path, rows=rows, is_partial=partial == "true")
    verdicts = all("verdict" in row for row in rows.values())
    return Loaded(score, f"file:{file.name}@{file_key(file)[:8]}", lower_is_better == "true", verdicts)


def _score_file(cases: Cases, *, path: str, rows: dict[str, _Row], is_partial: bool) -> CaseScores:
    unknown = rows.keys() - set(cases.ids)
    if unknown and (cases.whole or len(unknown) == len(rows)):
        raise InputError(
            f"{path}: {len(unknown)} ids are not in the benchmark, for example {min(unknown)!r}; "
            f"expected ids such as {cases.ids[0]!r}"
        )
    width = cases.captions.shape[1]
    values = [
        _item_scores(rows.get(key, {}), width, bool(control), key)
        for key, control in zip(cases.ids, cases.control, strict=True)
    ]
    true_cases = np.flatnonzero(~cases.control).tolist()
    without = [case for case in true_cases if cases.ids[case] not in rows]
    if without and not is_partial:
        raise InputError(
            f"{path}: has scores for {len(true_cases) - len(without)} of {len(true_cases)} items, and none for "
            f"{cases.ids[without[0]]!r}; add them, or use file:{path},partial=true"
        )
    return CaseScores(np.array(values, dtype=np.float64).reshape(cases.captions.shape))


def _read(path: Path) -> dict[str, _Row]:
    """Read the rows of a file by item id."""
    rows: dict[str, _Row] = {}
    for line_number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path} line {line_number} is not valid JSON: {error}") from error
        if not isinstance(row, dict) or "id" not in row:
            raise InputError(f"{path} line {line_number}: expected an object with the field id")
        if rows.setdefault(str(row["id"]), row) is not row:
            raise InputError(f"{path}: the id {row['id']!r} occurs twice; expected every item once")
    return rows


def _item_scores(row: _Row, width: int, control: bool, key: str) -> Sequence[float]:
    prefix = "wrong_" if control else ""
    if (verdict := row.get(f"{prefix}verdict")) is not None:
        if verdict not in _VERDICTS or width != 2:
            raise InputError(f"item {key}: expected a verdict a, b or tie on two captions, got {verdict!r}")
        return _VERDICTS[verdict]
    value = row.get(f"{prefix}scores", row.get(f"{prefix}score"))
    if value is None:
        return [np.nan] * width
    scores = value if isinstance(value, list) else [value]
    if len(scores) != width:
        raise InputError(f"item {key}: expected {width} scores, got {len(scores)}")
    return [_number(score, f"item {key}") for score in scores]


def _number(value: Any, where: str) -> float:
    """Return a score as a float; null (not computed) becomes NaN."""
    if value is None:
        return float("nan")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{where}: expected a number as score, got {value!r}")
    return float(value)


def load_length(sign: float = 1.0) -> Loaded:
    """Number of words."""
    return Loaded(
        lambda batch: CaseScores(np.array([sign * len(text.split()) for text in batch.texts])[batch.captions])
    )


load_shorter = functools.partial(load_length, -1.0)  # negative number of words


def load_constant() -> Loaded:
    """Zero for every caption."""
    return Loaded(lambda batch: CaseScores(np.zeros(batch.captions.shape)))


def load_random(seed: str = "0") -> Loaded:
    """A hash in [0, 1) of the seed, the item's id and the index of the caption, independent of the order of items."""
    if not seed.isdigit():
        raise ConfigError(f"seed must be a whole number, got {seed!r}")
    return Loaded(functools.partial(_score_random, seed=seed), f"seed:{seed}")


def _score_random(batch: Cases, *, seed: str) -> CaseScores:
    keys = [[f"{seed}\n{index}\n{key}".encode() for index in range(batch.captions.shape[1])] for key in batch.ids]
    digests = [[blake2b(text, digest_size=8).digest() for text in row] for row in keys]
    return CaseScores(np.array([[int.from_bytes(digest, "big") / 2**64 for digest in row] for row in digests]))
