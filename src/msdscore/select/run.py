"""A selection from start to end: what to keep, written in one step, with a survey where one is asked for."""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msdscore.errors import InputError, RunError, shortened
from msdscore.io import stores
from msdscore.io.outputs.targets import is_standard_output
from msdscore.select.outputs import (
    Progress,
    check_name,
    selection_mark,
    suffix_of,
    write_keys,
    write_rows,
    write_tars,
    write_uids,
)
from msdscore.select.rule import Rule, Table, choose
from msdscore.select.scores import open_scores
from msdscore.select.survey import Survey, survey


@dataclass(frozen=True, slots=True)
class Selected:
    """What was kept: of `rows` rows `valid` had a number and were within the bounds.

    `threshold` is the number of the last row kept; `duplicates` are uids or keys that came twice and were written once.
    """

    output: str
    files: int
    rows: int
    valid: int
    kept: int
    threshold: float | None
    duplicates: int
    signature: str
    survey: Survey | None = None


def select(
    scores: Sequence[str],
    rule: Rule,
    output: str,
    *,
    overwrite: bool = False,
    show: int = 0,
    progress: Progress = lambda done, total: None,
) -> Selected:
    """Keep what a rule says: uids (.npy), keys (.txt) or rows (.parquet) into a file, samples into a folder of tars.

    Scores and output may be paths or addresses (s3://…). With `show`, a survey with so many rows of each kind is made.

    Raises:
        InputError: the scores cannot be read, or keys do not tell their rows apart.
        RunError: the output holds something else or cannot be written.
    """
    try:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="msdscore-")))
            files = open_scores(scores, folder)
            if not files:
                raise InputError("expected at least one file of scores")
            check_name(output, files, overwrite=overwrite)
            table = Table(files, folder)
            stack.callback(table.close)
            choice = choose(table, rule)
            duplicates = _write(table, rule, output, overwrite=overwrite, progress=progress)
            looked = survey(table, choice, show) if show else None
    except OSError as error:
        raise RunError(
            f"{shortened(output)}: cannot be written ({error.strerror or error}); check the disk, or choose another -o"
        ) from error
    signature = next((file.signature for file in files if file.signature), "")
    return Selected(
        output, len(files), choice.rows, choice.valid, choice.kept, choice.threshold, duplicates, signature, looked
    )


def _write(table: Table, rule: Rule, output: str, *, overwrite: bool, progress: Progress) -> int:
    """Write the selection; how many names came twice."""
    suffix = suffix_of(output)
    if not suffix:
        mark = selection_mark(table.files, _plain(rule))
        write_tars(table, output, mark, overwrite=overwrite, progress=progress)
        return 0
    if is_standard_output(output):
        keys = BytesIO()
        duplicates = write_keys(table, keys, progress)
        sys.stdout.write(keys.getvalue().decode())
        return duplicates
    with stores.writing(output) as file:
        if suffix == ".npy":
            return write_uids(table, file)
        if suffix == ".txt":
            return write_keys(table, file, progress)
        write_rows(table, file, progress)
    return 0


def _plain(rule: Rule) -> dict[str, Any]:
    keep = rule.keep
    return asdict(rule) | {"keep": None if keep is None else str(keep.count if keep.share is None else keep.share)}
