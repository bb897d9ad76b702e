"""Metrics without a model: scores of another program, caption length, chance, and ties."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from msdscore.errors import ConfigError, InputError
from msdscore.io.hashing import file_key
from msdscore.metrics.base import Cases, CaseScores, Floats, Loaded

_VERDICTS = {"a": (1.0, 0.0), "b": (0.0, 1.0), "tie": (0.5, 0.5)}
_Row = dict[str, Any]


def load_file(path: str, lower_is_better: str = "false", partial: str = "false") -> Loaded:
    """Scores of a JSON Lines file: one row per item, or one row per image and caption.

    Rows per item have `id` with `score`, `scores` (one per caption) or `verdict` ("a", "b" or "tie"; a file of verdicts
    is a judge that calls its own ties); their wrong-image control is taken from `wrong_score`, `wrong_scores` or
    `wrong_verdict`. Rows per image and caption have `image`, `caption` and `score`; the control is there where they
    cover the wrong images too. Items without scores are refused, unless `partial` is true.
    """
    flags = {"lower_is_better": lower_is_better, "partial": partial}
    for name, value in flags.items():
        if value not in ("true", "false"):
            raise ConfigError(f"{name} must be 'true' or 'false', got {value!r}")
    file = Path(path)
    if not file.is_file():
        raise InputError(f"there is no file {path}; expected JSON Lines with id and score")
    given = _read(file)

    def score(cases: Cases) -> CaseScores:
        _check_ids(cases, given, path)
        values = np.array([_values(cases, given, case) for case in range(len(cases))], dtype=np.float64)
        if partial == "false":
            _check_complete(cases, given, path)
        return CaseScores(values.reshape(cases.captions.shape))

    choices = f"file:{file.name}@{file_key(file)[:8]}"
    verdicts = bool(given.by_id) and all("verdict" in row for row in given.by_id.values())
    return Loaded(score, choices, lower_is_better == "true", verdicts)


@dataclass(frozen=True, slots=True)
class _Given:
    """The rows of a file: by item id, or a list of (image, caption, row), found by the end of the image's path."""

    by_id: dict[str, _Row]
    pairs: list[tuple[PurePosixPath, str, _Row]]
    _by_tail: dict[int, dict[tuple[str, str], _Row]] = field(default_factory=dict)

    def of_pair(self, name: str, caption: str) -> _Row | None:
        """The row of an image by as much of its path as `name` has, and of a caption."""
        depth = len(PurePosixPath(name).parts)
        if depth not in self._by_tail:
            self._by_tail[depth] = {("/".join(p.parts[-depth:]), text): row for p, text, row in self.pairs}
        return self._by_tail[depth].get((name, _tidy(caption)))


def _read(path: Path) -> _Given:
    given = _Given({}, [])
    for number, row in _rows(path):
        where = f"{path} line {number}"
        if not isinstance(row, dict) or not ("id" in row or {"image", "caption"} <= row.keys()):
            raise InputError(f"{where}: expected an object with the field id, or with image and caption")
        if "id" not in row:
            given.pairs.append((PurePosixPath(str(row["image"])), _tidy(str(row["caption"])), row))
            continue
        if str(row["id"]) in given.by_id:
            raise InputError(f"{path}: the id {row['id']!r} occurs twice; expected every item once")
        given.by_id[str(row["id"])] = row
    if given.by_id and given.pairs:
        raise InputError(f"{path}: some rows have an id and some do not; expected one form for all of them")
    _check_repeats(path, given)
    return given


def _rows(path: Path) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path} line {number} is not valid JSON: {error}") from error


def _check_repeats(path: Path, given: _Given) -> None:
    """The same image and caption may come again, with the same score."""
    seen: dict[tuple[str, str], Any] = {}
    for image, caption, row in given.pairs:
        if seen.setdefault((str(image), caption), row.get("score")) != row.get("score"):
            raise InputError(f"{path}: {image} with {caption[:40]!r} has two different scores; expected one")


def _check_ids(cases: Cases, given: _Given, path: str) -> None:
    known = set(cases.ids)
    strangers = given.by_id.keys() - known
    if strangers and (cases.whole or not known & given.by_id.keys()):
        raise InputError(
            f"{path}: {len(strangers)} ids belong to no item, for example {min(strangers)!r}; "
            f"expected ids such as {cases.ids[0]!r}"
        )


def _check_complete(cases: Cases, given: _Given, path: str) -> None:
    own = [case for case in range(len(cases)) if not cases.control[case]]
    lacking = [case for case in own if not _has_row(cases, given, case)]
    if lacking:
        raise InputError(
            f"{path}: has scores for {len(own) - len(lacking)} of {len(own)} items, and none for "
            f"{cases.ids[lacking[0]]!r}; add them, or ask for file:{path},partial=true"
        )


def _has_row(cases: Cases, given: _Given, case: int) -> bool:
    if given.by_id:
        return cases.ids[case] in given.by_id
    return all(given.of_pair(cases.image_name(case), text) is not None for text in cases.candidates(case))


def _values(cases: Cases, given: _Given, case: int) -> Floats:
    width = cases.captions.shape[1]
    if given.by_id:
        return _of_item(given.by_id.get(cases.ids[case], {}), width, bool(cases.control[case]), cases.ids[case])
    name = cases.image_name(case)
    rows = [given.of_pair(name, text) for text in cases.candidates(case)]
    return np.array([_number((row or {}).get("score"), f"{name}") for row in rows])


def _of_item(row: _Row, width: int, control: bool, key: str) -> Floats:
    prefix = "wrong_" if control else ""
    if (verdict := row.get(f"{prefix}verdict")) is not None:
        if verdict not in _VERDICTS or width != 2:
            raise InputError(f"item {key}: expected a verdict a, b or tie on two captions, got {verdict!r}")
        return np.array(_VERDICTS[verdict])
    given = row.get(f"{prefix}scores", row.get(f"{prefix}score"))
    if given is None:
        return np.full(width, np.nan)
    listed = given if isinstance(given, list) else [given]
    if len(listed) != width:
        raise InputError(f"item {key}: expected {width} scores, got {len(listed)}")
    return np.array([_number(value, f"item {key}") for value in listed])


def _number(value: Any, where: str) -> float:
    """A score; null means that none could be made."""
    if value is None:
        return float("nan")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{where}: expected a number as score, got {value!r}")
    return float(value)


def _tidy(text: str) -> str:
    return " ".join(text.split())


def load_length() -> Loaded:
    """More words, higher score."""
    return Loaded(lambda batch: CaseScores(batch.by_text([len(text.split()) for text in batch.texts])))


def load_shorter() -> Loaded:
    """Fewer words, higher score."""
    return Loaded(lambda batch: CaseScores(batch.by_text([-len(text.split()) for text in batch.texts])))


def load_constant() -> Loaded:
    """Zero for every caption."""
    return Loaded(lambda batch: CaseScores(np.zeros(batch.captions.shape)))


def load_random(seed: str = "0") -> Loaded:
    """A number in [0, 1) from the seed, the item's id and the place of the caption, in any order of work."""
    if not seed.isdigit():
        raise ConfigError(f"seed must be a whole number, got {seed!r}")

    def score(batch: Cases) -> CaseScores:
        width = batch.captions.shape[1]
        return CaseScores(np.array([[_draw(seed, key, at) for at in range(width)] for key in batch.ids]))

    return Loaded(score, f"seed:{seed}")


def _draw(seed: str, key: str, at: int) -> float:
    digest = blake2b(f"{seed}\n{at}\n{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
