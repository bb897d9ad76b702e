"""JSON lines scored without PyArrow: all rows are in memory, and an interrupted run starts again.

The output and the record of the run are those of `run.rows`, which resumes.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from msdscore.forms import references
from msdscore.forms.registry import COLUMNS
from msdscore.forms.registry import added as added_columns
from msdscore.io.files import replacing
from msdscore.io.runs import Summary, finished_run, record_run
from msdscore.io.tables import json_line, write_json
from msdscore.rows.files import RowSource
from msdscore.rows.rules import Row
from msdscore.run.parts import PART_BATCHES, WORST, Plan
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.results import Scores, known
from msdscore.scoring.rows import finish, score_rows

_REASONS = 3  # errors and warnings that a summary lists


class ScoredRows(NamedTuple):
    """The rows of an input in order, their scores, and the fingerprint of their image files."""

    rows: Sequence[Row]
    scores: Scores
    images: str


def score_in_memory(
    pipeline: Pipeline, source: RowSource, *, worst: int, progress: Callable[[int, int], None]
) -> ScoredRows:
    """Score all rows, those of one image together."""
    plan = Plan(source.read(), part_rows=PART_BATCHES * pipeline.batch_size)
    rows, parts, done = list[Row](), list[Scores](), 0

    def planned() -> Any:
        for part in plan:
            rows.extend(part.rows)
            yield from part.rows

    for scores in score_rows(pipeline, planned(), worst=worst):
        parts.append(scores)
        done += len(scores)
        progress(done, max(plan.count, source.total or 0))
    order = np.argsort([row.index for row in rows], kind="stable")
    scores = finish(Scores.join(parts), pipeline.form)
    return ScoredRows([rows[at] for at in order.tolist()], scores[order] if len(rows) else scores, plan.images)


def write_scored(
    scored: ScoredRows,
    objects: Sequence[Mapping[str, Any]],
    output: Path,
    *,
    manifest: Mapping[str, Any],
    notes: Mapping[str, Any],
    names: Sequence[str],
    check: Callable[[], None],
) -> Summary:
    """Write one JSON object per row, its input columns before the named ones, and the record of the run."""
    finished_run(output, manifest)  # raises if the output belongs to another run
    scores = scored.scores
    added = ({name: _value(scores, name, row) for name in names} for row in range(len(scores)))
    lines = (json_line({**columns, **values}) for columns, values in zip(objects, added, strict=True))
    with replacing(output) as file:
        write_json(lines, file, output.suffix)
        check()
    counts = _counts(scores)
    record_run(output, manifest, counts, notes)
    return Summary.of(counts)


def names_of(scores: Scores, pipeline: Pipeline, *, worst: int) -> list[str]:
    """Return the columns that are added to the rows, in the order of files."""
    counts = scores.columns.get(references.NAMES[0])
    has_references = counts is not None and bool((~np.isnan(counts) & ~_failed(scores)).any())
    names = list(added_columns(pipeline.form, references=has_references))
    if worst:
        names.insert(names.index("warnings"), WORST)
    return names


def _failed(scores: Scores) -> Any:
    return np.array([error is not None for error in scores.errors], dtype=bool)


def _value(scores: Scores, name: str, row: int) -> Any:
    """Return the value of a column as it is in files; None if it is missing."""
    if name == "error":
        return scores.errors[row]
    if name == "warnings":
        return list(scores.warnings[row])
    if scores.errors[row] is not None:
        return None
    if name == WORST:
        return list(scores.worst[row])
    if COLUMNS[name].kind in ("text", "list"):
        found = getattr(scores, name)(row)
        return list(found) if isinstance(found, tuple) else found
    return known(scores.columns[name][row].item()) if name in scores.columns else None


def _counts(scores: Scores) -> dict[str, Any]:
    """Return the numbers of failed rows and of rows with warnings, and the first of these."""
    errors = [f"row {row}: {error}" for row, error in enumerate(scores.errors) if error is not None]
    warned = [f"row {row}: {'; '.join(texts)}" for row, texts in enumerate(scores.warnings) if texts]
    return {
        "rows": len(scores), "failed": len(errors), "reasons": errors[:_REASONS], "warned": len(warned),
        "warnings": warned[:_REASONS],
    }  # fmt: skip
