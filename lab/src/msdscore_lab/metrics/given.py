"""Metrics without a model: scores of another program, caption length, chance, and ties."""

import functools
import json
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from msdscore.errors import ConfigError, InputError
from msdscore.io.files import file_key
from msdscore_lab.metrics.base import Cases, CaseScores, Loaded
from msdscore_lab.metrics.registry import choice

_VERDICTS = {"a": (1.0, 0.0), "b": (0.0, 1.0), "tie": (0.5, 0.5)}
_Row = dict[str, Any]
_Pair = tuple[PurePosixPath, str, _Row]  # image, caption, row


def load_file(path: str, lower_is_better: str = "false", partial: str = "false") -> Loaded:
    """Scores of a JSON Lines file: one row per item, or one row per image and caption.

    Rows per item have `id` with `score`, `scores` (one per caption) or `verdict` ("a", "b" or "tie"; a file of verdicts
    is a judge that decides ties itself); their wrong-image control is taken from `wrong_score`, `wrong_scores` or
    `wrong_verdict`. Rows per image and caption have `image`, `caption` and `score`; the control is available if they
    cover the wrong images too. Items without scores are an error, unless `partial` is true.
    """
    choice("lower_is_better", lower_is_better, ("true", "false"))
    choice("partial", partial, ("true", "false"))
    file = Path(path)
    if not file.is_file():
        raise InputError(f"{path}: no such file; expected JSON Lines with id and score")
    by_id, pairs = _read(file)
    score = functools.partial(_score_file, path=path, by_id=by_id, pairs=pairs, is_partial=partial == "true")
    verdicts = bool(by_id) and all("verdict" in row for row in by_id.values())
    return Loaded(score, f"file:{file.name}@{file_key(file)[:8]}", lower_is_better == "true", verdicts)


def _score_file(
    cases: Cases, *, path: str, by_id: dict[str, _Row], pairs: Sequence[_Pair], is_partial: bool
) -> CaseScores:
    rows = _rows_by_id(cases, by_id, path) if by_id else _rows_by_pair(cases, pairs)
    width = cases.captions.shape[1]
    values = [
        _item_scores(case_rows[0] or {}, width, bool(cases.control[case]), cases.ids[case])
        if by_id
        else [_number((row or {}).get("score"), cases.image_name(case)) for row in case_rows]
        for case, case_rows in enumerate(rows)
    ]
    true_cases = np.flatnonzero(~cases.control).tolist()
    without = [case for case in true_cases if None in rows[case]]
    if without and not is_partial:
        raise InputError(
            f"{path}: has scores for {len(true_cases) - len(without)} of {len(true_cases)} items, and none for "
            f"{cases.ids[without[0]]!r}; add them, or use file:{path},partial=true"
        )
    return CaseScores(np.array(values, dtype=np.float64).reshape(cases.captions.shape))


def _rows_by_id(cases: Cases, by_id: dict[str, _Row], path: str) -> list[list[_Row | None]]:
    """Return the row of each case."""
    unknown = by_id.keys() - set(cases.ids)
    if unknown and (cases.whole or len(unknown) == len(by_id)):
        raise InputError(
            f"{path}: {len(unknown)} ids are not in the benchmark, for example {min(unknown)!r}; "
            f"expected ids such as {cases.ids[0]!r}"
        )
    return [[by_id.get(key)] for key in cases.ids]


def _rows_by_pair(cases: Cases, pairs: Sequence[_Pair]) -> list[list[_Row | None]]:
    """Return the row of each candidate of each case, by the end of the image's path and the caption."""
    names = [cases.image_name(case) for case in range(len(cases))]
    depths = [len(PurePosixPath(name).parts) for name in names]
    by_path_end = {
        depth: {("/".join(image.parts[-depth:]), caption): row for image, caption, row in pairs}
        for depth in set(depths)
    }
    return [
        [by_path_end[depth].get((name, _tidy(caption))) for caption in cases.candidates(case)]
        for case, (name, depth) in enumerate(zip(names, depths, strict=True))
    ]


def _read(path: Path) -> tuple[dict[str, _Row], list[_Pair]]:
    """Read the rows of a file: by item id, or a list of image, caption and row."""
    by_id: dict[str, _Row] = {}
    pairs: list[_Pair] = []
    for line_number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path} line {line_number} is not valid JSON: {error}") from error
        if not isinstance(row, dict) or not ("id" in row or {"image", "caption"} <= row.keys()):
            raise InputError(
                f"{path} line {line_number}: expected an object with the field id, or with image and caption"
            )
        if "id" not in row:
            pairs.append((PurePosixPath(str(row["image"])), _tidy(str(row["caption"])), row))
        elif by_id.setdefault(str(row["id"]), row) is not row:
            raise InputError(f"{path}: the id {row['id']!r} occurs twice; expected every item once")
    if by_id and pairs:
        raise InputError(f"{path}: some rows have an id and some do not; expected one form for all rows")
    scores: dict[tuple[str, str], Any] = {}  # an image and caption may be repeated with the same score
    for image, caption, row in pairs:
        if scores.setdefault((str(image), caption), row.get("score")) != row.get("score"):
            raise InputError(f"{path}: {image} with {caption[:40]!r} has two different scores; expected one")
    return by_id, pairs


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


def _tidy(text: str) -> str:
    return " ".join(text.split())


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
