"""Scores that another program computed, joined on the item id."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from msdscore.errors import ConfigError, InputError
from msdscore.io.hashing import file_key
from msdscore.metrics.base import Cases, CaseScores, Floats, Loaded

_VERDICTS = {"a": (1.0, 0.0), "b": (0.0, 1.0), "tie": (0.5, 0.5)}
_Rows = dict[str, dict[str, Any]]


def load_file(path: str, lower_is_better: str = "false") -> Loaded:
    """Scores of a JSON Lines file: a row an item, `id` with `score`, `scores` (one a caption) or `verdict`.

    A verdict is "a", "b" or "tie"; a file of verdicts is a judge that calls its own ties. The wrong-image control
    is taken from `wrong_score`, `wrong_scores` or `wrong_verdict`, and is missing where there is none.
    """
    if lower_is_better not in ("true", "false"):
        raise ConfigError(f"lower_is_better must be 'true' or 'false', got {lower_is_better!r}")
    file = Path(path)
    if not file.is_file():
        raise InputError(f"there is no file {path}; expected JSON Lines with id and score")
    rows = _read(file)

    def score(batch: Cases) -> CaseScores:
        _check_ids(batch, rows, path)
        width = batch.captions.shape[1]
        values = [
            _values(rows.get(key, {}), width, "wrong_" if control else "", key)
            for key, control in zip(batch.ids, batch.control.tolist(), strict=True)
        ]
        return CaseScores(np.array(values, dtype=np.float64).reshape(len(batch), width))

    choices = f"file:{file.name}@{file_key(file)[:8]}"
    verdicts = bool(rows) and all("verdict" in row for row in rows.values())
    return Loaded(score, choices, lower_is_better == "true", verdicts)


def _read(path: Path) -> _Rows:
    rows: _Rows = {}
    for line_number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{path} line {line_number} is not valid JSON: {error}") from error
        if not isinstance(row, dict) or "id" not in row:
            raise InputError(f"{path} line {line_number}: expected an object with the field id")
        if str(row["id"]) in rows:
            raise InputError(f"{path}: the id {row['id']!r} occurs twice; expected every item once")
        rows[str(row["id"])] = row
    return rows


def _check_ids(batch: Cases, rows: _Rows, path: str) -> None:
    known = set(batch.ids)
    strangers = rows.keys() - known
    if strangers and (batch.whole or not known & rows.keys()):
        raise InputError(
            f"{path}: {len(strangers)} ids belong to no item, for example {min(strangers)!r}; "
            f"expected ids such as {batch.ids[0]!r}"
        )


def _values(row: dict[str, Any], width: int, prefix: str, key: str) -> Floats:
    if (verdict := row.get(f"{prefix}verdict")) is not None:
        if verdict not in _VERDICTS or width != 2:
            raise InputError(f"item {key}: expected a verdict a, b or tie on two captions, got {verdict!r}")
        return np.array(_VERDICTS[verdict])
    found = row.get(f"{prefix}scores", row.get(f"{prefix}score"))
    if found is None:
        return np.full(width, np.nan)
    values = np.atleast_1d(np.array(found, dtype=np.float64))  # null becomes NaN
    if values.shape != (width,):
        raise InputError(f"item {key}: expected {width} scores, got {values.size}")
    return values
