"""A selection from start to end: what to keep, written in one reading, with a survey where one is asked for."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msdscore.errors import ConfigError, InputError, RunError, shortened
from msdscore.io.outputs.targets import check_target, refuse_existing
from msdscore.selection.choose import Choice, Progress, Rule, by_cosine, choose
from msdscore.selection.outputs import KeyFile, RowFile, Sink, UidFile
from msdscore.selection.scores import ScoreFile, ScoreRows, read_scores
from msdscore.selection.survey import COSINE, Survey, Surveyor
from msdscore.selection.tars import TarFolder, selection_mark
from msdscore.selection.top import Mask

SUFFIXES = (".npy", ".txt", ".parquet")


@dataclass(frozen=True, slots=True)
class Selected:
    """What was kept: of `rows` rows `valid` had a number and were within the bounds.

    `threshold` is the number of the last row kept; `duplicates` are uids that came twice and were written once.
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
    files: Sequence[ScoreFile],
    rule: Rule,
    output: Path,
    *,
    overwrite: bool = False,
    show: int = 0,
    progress: Progress = lambda done, total: None,
) -> Selected:
    """Keep what a rule says: uids (.npy), keys (.txt) or rows (.parquet) into a file, samples into a folder of tars.

    With `show`, a survey with so many rows of each kind is made on the way.
    """
    if not files:
        raise InputError("expected at least one file of scores")
    check_output_name(output, files, overwrite=overwrite)
    output.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        place = Path(stack.enter_context(TemporaryDirectory(prefix="msdscore-")))
        choice = choose(files, rule, _folder(place, "rule"), progress=progress)
        sink = _sink(files, choice, output, stack, overwrite=overwrite)
        surveyor = _surveyor(files, choice, _folder(place, "cosine"), show, progress) if show else None
        _write(files, choice, sink, surveyor, progress)
    return Selected(
        str(output), len(files), choice.rows, choice.valid, choice.kept, choice.threshold, sink.duplicates,
        next((file.signature for file in files if file.signature), ""),
        None if surveyor is None else surveyor.survey.finish(),
    )  # fmt: skip


def check_output_name(output: Path, files: Sequence[ScoreFile], *, overwrite: bool) -> None:
    """Refuse before any work what cannot or must not be written."""
    if not output.suffix:
        if output.is_file():
            raise RunError(f"{shortened(str(output))}: is a file; expected the name of a folder for tars")
        return
    if output.suffix.lower() not in SUFFIXES:
        raise ConfigError(
            f"{shortened(str(output))}: unknown kind of output; expected a name ending in {', '.join(SUFFIXES)}, or a "
            "folder for tars"
        )
    check_target(output, SUFFIXES, inputs=[file.name for file in files])
    refuse_existing([] if overwrite else [output])


@dataclass(frozen=True, slots=True)
class _Surveying:
    """A surveyor with the choice that plain cosine makes."""

    survey: Surveyor
    cosine: Choice | None


def _surveyor(files: Sequence[ScoreFile], choice: Choice, folder: Path, show: int, progress: Progress) -> _Surveying:
    comparable = choice.rule.by != COSINE and all(COSINE in file.schema.names for file in files)
    cosine = choose(files, by_cosine(choice.rule, choice.kept), folder, progress=progress) if comparable else None
    return _Surveying(Surveyor(files, choice, cosine, show=show), cosine)


def _sink(files: Sequence[ScoreFile], choice: Choice, output: Path, until: ExitStack, *, overwrite: bool) -> Sink:
    suffix = output.suffix.lower()
    if not suffix:
        mark = selection_mark(list(files), _plain(choice.rule))
        return TarFolder(output, list(files), mark, overwrite=overwrite)
    if suffix == ".npy":
        return UidFile(output, rows=choice.kept, until=until)
    return KeyFile(output, until=until) if suffix == ".txt" else RowFile(output, files[0], until=until)


def _write(
    files: Sequence[ScoreFile], choice: Choice, sink: Sink, surveying: _Surveying | None, progress: Progress
) -> None:
    cosine = None if surveying is None else surveying.cosine
    needs = [sink.columns(file) for file in files]
    names = None if None in needs else {name for some in needs for name in some or ()}
    if names is not None:
        names |= {*choice.rule.columns, *(surveying.survey.names if surveying else ()), *([COSINE] if cosine else ())}
    reading = read_scores(files, None if names is None else sorted(names))
    for rows, kept, by_similarity in _marked(choice, cosine, reading):
        sink.add(rows, kept)
        if surveying is not None:
            surveying.survey.add(rows, kept, by_similarity)
        progress(rows.start + len(rows), choice.rows)
    sink.close()


def _marked(
    choice: Choice, cosine: Choice | None, reading: Iterator[ScoreRows]
) -> Iterator[tuple[ScoreRows, Mask, Mask | None]]:
    """Every batch with the rows that are kept, and those that cosine would keep."""
    own, other = choice.keeper(), None if cosine is None else cosine.keeper()
    for rows in reading:
        yield rows, own(rows), None if other is None else other(rows)


def _folder(place: Path, name: str) -> Path:
    (place / name).mkdir()
    return place / name


def _plain(rule: Rule) -> dict[str, Any]:
    keep = rule.keep
    return asdict(rule) | {"keep": None if keep is None else str(keep.count if keep.share is None else keep.share)}
