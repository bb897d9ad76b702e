"""Resumable runs that write finished parts and merge them into one output."""

import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self, TypeVar

from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

from msdscore.errors import RunError
from msdscore.io.arrow import pa, pq
from msdscore.io.files import TEMPORARY, file_key, is_address, replacing, write_bytes
from msdscore.io.tables import JsonRows, check_output, conform, joined_texts, unified, write_tables
from msdscore.io.targets import MADE_BY, REMEDY, Summary, check_manifest, dump, load, read_notes, run_files

T = TypeVar("T")
LOCK = "lock"
OWNED = "made-by-msdscore"  # marker file; a folder without it is never emptied
REASONS = 3  # errors of failed rows that a summary lists
_KEY = "msdscore.key"  # of a part, in its schema metadata
_PART = re.compile(r"part-(\d+)\.parquet")
_FOLDER_FILES = re.compile(rf"{_PART.pattern}|manifest\.json")  # the files in the folder of a run


class Run:
    """An open run, whose parts are in a folder, by default next to the output, until `finish` writes the output.

    Only one process at a time can open it. Use `with`, or call `close`. Parts of another manifest raise `RunError`, or
    are deleted with `replace`.
    """

    def __init__(
        self, output: Path, manifest: Mapping[str, Any], *, folder: Path | None = None, replace: bool = False
    ) -> None:
        self.output, self.manifest = output, manifest
        self._sidecar, parts = run_files(output)
        self._folder = folder or parts
        self._lock = take_folder(self._folder)
        self.close = self._lock.release
        try:
            self._write_manifest(replace)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _write_manifest(self, replace: bool) -> None:
        noted = self._folder / "manifest.json"
        if noted.exists():
            try:
                check_manifest(self._folder, load(noted), self.manifest)
                return
            except RunError:
                if not replace:
                    raise
        # Parts without a manifest are left over from an interrupted removal; their run is unknown.
        for path in _parts(self._folder).values():
            path.unlink()
        write_bytes(noted, dump(self.manifest), folder=self._folder)

    def keys(self) -> dict[int, str]:
        """Return the keys of the complete parts by part number, in order; empty for parts written without one.

        A part whose number of rows was changed is not complete.
        """
        keys: dict[int, str] = {}
        for number, path in _parts(self._folder).items():
            with suppress(pa.ArrowException, OSError):  # an incomplete one
                content = _metadata(path)
                key, _, rows = (content.metadata or {}).get(_KEY.encode(), b"").decode().partition(" ")
                if not rows or int(rows) == content.num_rows:
                    keys[number] = key
        return keys

    def drop(self, number: int) -> None:
        """Delete a part that no longer belongs to the run."""
        self._part(number).unlink(missing_ok=True)

    def missing(self, parts: Iterable[tuple[str, T]]) -> Iterator[tuple[int, str, T]]:
        """Yield number, key and value of each part that is not written with this key; then delete later parts.

        The key identifies the data that a part is computed from.
        """
        written, count = self.keys(), 0
        for number, (key, part) in enumerate(parts):
            count = number + 1
            if written.get(number) != key:
                yield number, key, part
        for number in written:
            if number >= count:
                self.drop(number)

    def write(self, number: int, table: pa.Table, *, key: str | None = None) -> None:
        """Write one part atomically; `key` identifies the data that it was computed from."""
        marked = table if key is None else table.replace_schema_metadata({_KEY: f"{key} {len(table)}"})
        try:
            with replacing(self._part(number)) as file:
                pq.write_table(marked, file, compression="zstd", write_page_checksum=True)
        except OSError as error:
            raise self._failure(error, f"{self._folder}: cannot write part {number}") from error

    def _failure(self, error: OSError, what: str) -> RunError:
        if not self._folder.is_dir():
            return RunError(f"{self._folder}: was deleted during the run, with its finished parts; run again")
        return RunError(f"{what} ({error.strerror or error}); finished parts are kept")

    def _part(self, number: int) -> Path:
        assert self._lock.is_locked, "the run is closed"
        return self._folder / f"part-{number:06d}.parquet"

    def tables(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Iterate over the finished parts in order, cast to one schema."""
        paths = [self._part(number) for number in self.keys()]
        schema = unified([_metadata(path).schema.to_arrow_schema() for path in paths])
        wanted = schema if columns is None else pa.schema([schema.field(name) for name in columns])
        for path in paths:
            try:
                with path.open("rb") as opened, pq.ParquetFile(opened, page_checksum_verification=True) as file:
                    present = set(file.schema_arrow.names)
                    part = file.read(columns=[name for name in wanted.names if name in present])
            except (pa.ArrowException, OSError) as error:
                raise RunError(f"{path}: is damaged; delete it and run again") from error
            yield conform(part, wanted)

    def _check_complete(self, rows: int | None) -> None:
        if not self._folder.is_dir():
            raise self._failure(FileNotFoundError(), "")
        numbers = list(self.keys())
        if not numbers or numbers != list(range(len(numbers))):
            missing = next(number for number in range(len(numbers) + 1) if number not in numbers)
            raise RunError(f"{self.output}: part {missing} is missing; run again to compute it")
        count = 0 if rows is None else sum(_metadata(self._part(number)).num_rows for number in numbers)
        if rows is not None and count != rows:
            raise RunError(f"{self.output}: the parts have {count} rows, expected {rows}; {REMEDY}")

    def finish(
        self,
        tables: Iterable[pa.Table | JsonRows] | None = None,
        *,
        rows: int | None = None,
        metadata: Mapping[str, str] | None = None,
        notes: Mapping[str, Any] | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> Summary:
        """Stream tables into the output, write the run metadata next to it, remove the folder, and close.

        `tables` are the rows of the output, by default the parts in order. `rows` is the number of rows expected in
        the parts. `metadata` goes into the schema of a Parquet output, `notes` into the run metadata. `check` is called
        after all tables are written and before the output is renamed; it raises if the input has changed.
        """
        self._check_complete(rows)
        output, folder = self.output, self._folder
        counts: dict[str, Any] = {"rows": 0, "failed": 0, "reasons": [], "warned": 0, "warnings": []}
        try:
            with replacing(output, folder=folder) as file:
                counted = _counted(self.tables() if tables is None else tables, counts)
                write_tables(counted, file, output.suffix, metadata=metadata)
                check()
                file.flush()
                # Neither the output of a finished run nor one that a crash at the end left behind.
                if output.exists() and run_notes(output) is None and file_key(output) != file_key(Path(file.name)):
                    raise RunError(f"{output}: appeared or changed during the run; finished parts are kept, {REMEDY}")
            # Size and checksum show later whether the output was changed.
            state = {"bytes": output.stat().st_size, "checksum": file_key(output)}
            record = {**MADE_BY, "manifest": self.manifest, **counts, **(notes or {}), **state}
            write_bytes(self._sidecar, dump(record), folder=folder)
        except OSError as error:
            raise self._failure(error, f"{output}: cannot be written") from error
        self.remove()
        return Summary.of(counts)

    def remove(self) -> None:
        """Remove the folder of parts, and close."""
        remove_owned(self._folder, self._lock)


def open_run(output: Path, manifest: Mapping[str, Any], *, again: bool = False) -> Run:
    """Start or resume a run; `manifest` contains everything that must be the same to resume.

    With `again` a finished run may be opened to update its output, which is replaced at the end.

    Raises `RunError` if the output or its parts belong to another run, or another process is using them.
    """
    check_output(output)
    folder = run_files(output)[1]
    if not folder.exists() and finished_run(output, manifest) and not again:
        raise RunError(f"{output}: already finished; {REMEDY}")
    try:
        return Run(output, manifest)
    except OSError as error:
        raise RunError(f"{output}: cannot be written ({error.strerror or error}); choose another -o") from error


@contextmanager
def open_parts(output: str, manifest: Mapping[str, Any], *, again: bool = False) -> Iterator[Run]:
    """Start or resume a run whose output has its metadata inside; with `again` it is not resumed.

    Parts of another manifest are deleted. The parts are in a hidden folder next to the output, where readers of Parquet
    datasets do not look. If that is impossible, because the output is remote or another process is using the folder,
    they are in a temporary folder and lost after an interruption.
    """
    path, run = Path(output), None
    with ExitStack() as stack:
        if not is_address(output):
            with suppress(RunError, OSError):
                run = Run(path, manifest, folder=hidden_parts(path), replace=True)
        if run is None:
            temporary = Path(stack.enter_context(TemporaryDirectory()))
            run = Run(path, manifest, folder=temporary / "parts", replace=True)
        with run:
            for number in run.keys() if again else ():
                run.drop(number)
            yield run


def finished_run(output: Path, manifest: Mapping[str, Any]) -> Summary | None:
    """Return the summary if the output is the finished run of this manifest; None if there is work to do.

    Raises `RunError` if the output exists and belongs to another run.
    """
    sidecar, folder = run_files(output)
    record = read_notes(sidecar)
    if not output.exists() or record is None:
        # After a crash between writing output and sidecar, the folder of parts still exists and the run resumes.
        if output.exists() and not folder.exists():
            raise RunError(f"{output}: exists, but was not written by a known run; {REMEDY}")
        return None
    check_manifest(output, record.get("manifest"), manifest)
    if not _is_unchanged(output, record):
        raise RunError(f"{output}: was changed after the run that wrote it; {REMEDY}")
    drop_parts(folder)
    return Summary.of(record)


def run_notes(output: Path) -> dict[str, Any] | None:
    """Return the run metadata of an output that is unchanged since its run; None if there is no such run."""
    record = read_notes(run_files(output)[0])
    return record if record is not None and output.exists() and _is_unchanged(output, record) else None


def discard(output: Path) -> None:
    """Remove an output with its sidecar and parts, unless another process is using it."""
    sidecar, folder = run_files(output)
    read_notes(sidecar)  # raises if no run has written it
    if folder.exists():
        remove_owned(folder, take_folder(folder))
    # The sidecar is removed last: without an output it has no effect.
    output.unlink(missing_ok=True)
    sidecar.unlink(missing_ok=True)


def hidden_parts(output: Path) -> Path:
    """Return the folder of parts of `open_parts`."""
    return output.with_name(f".{output.name}.parts")


def drop_parts(folder: Path) -> None:
    """Remove the parts of a finished run, which a crash at the very end leaves behind."""
    with suppress(RunError):  # another process may be using them
        if folder.exists():
            remove_owned(folder, take_folder(folder))


def _is_unchanged(output: Path, record: Mapping[str, Any]) -> bool:
    if record.get("bytes") != output.stat().st_size:
        return False
    return "checksum" not in record or record["checksum"] == file_key(output)


def _counted(tables: Iterable[pa.Table | JsonRows], counts: dict[str, Any]) -> Iterator[pa.Table | JsonRows]:
    """Yield the tables while counting rows, those with an error and those with warnings."""
    for table in tables:
        added = table.added if isinstance(table, JsonRows) else table
        for name, count, first in (("error", "failed", "reasons"), ("warnings", "warned", "warnings")):
            if name not in added.column_names:
                continue
            column = added.column(name)
            if pa.types.is_list(column.type):
                column = joined_texts(column)
            counts[count] += added.num_rows - column.null_count
            if column.null_count < added.num_rows and len(counts[first]) < REASONS:
                reasons = [f"row {counts['rows'] + row}: {text}" for row, text in enumerate(column.to_pylist()) if text]
                counts[first] += reasons[: REASONS - len(counts[first])]
        counts["rows"] += added.num_rows
        yield table


def _metadata(path: Path) -> pq.FileMetaData:
    with path.open("rb") as file:  # PyArrow opens no name that is not UTF-8
        return pq.read_metadata(file)


def _parts(folder: Path) -> dict[int, Path]:
    """Return the files of parts by number, in order."""
    found = ((_PART.fullmatch(path.name), path) for path in folder.glob("part-*.parquet"))
    return dict(sorted((int(name[1]), path) for name, path in found if name))


def take_folder(folder: Path) -> BaseFileLock:
    """Lock a folder, created if missing, and remove temporary files of killed writers from it.

    Raises:
        RunError: the folder exists without the marker file, or another process is using it.
    """
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise RunError(f"{folder}: expected a folder of finished parts, got a link or a file; choose another -o")
    present: set[str] = set()
    with suppress(FileNotFoundError):
        present = {path.name for path in folder.iterdir()}
    if OWNED not in present and not present <= {LOCK}:
        raise RunError(f"{folder}: was not created by msdscore (it has no {OWNED}); move it away or choose another -o")
    lock = take_lock(folder / LOCK)
    (folder / OWNED).touch()
    for path in folder.glob(f".*{TEMPORARY}"):
        path.unlink(missing_ok=True)
    return lock


def take_lock(path: Path) -> BaseFileLock:
    """Lock a folder through its lock file, until `release` is called.

    The system releases the lock when the process ends, however it ends. If the file system has no such locks, the file
    itself is the lock, with a record of its owner: after a kill, the next process on the same machine removes it.
    """
    warnings.filterwarnings("ignore", "flock not supported", UserWarning)
    # Not bound to a thread: any thread may close a run and release its folder.
    lock: BaseFileLock = FileLock(path, timeout=0, thread_local=False)
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        is_new = not path.exists()
        try:
            lock.acquire()
        except Timeout as error:
            owner = "another process"
            with suppress(OSError):
                owner = f"process {' of '.join(path.read_text(encoding='ascii').split()[:2]) or 'unknown'}"
            raise RunError(f"{path.parent}: {owner} is using it; wait for it or choose another -o") from error
        except FileNotFoundError:  # the last owner has just removed the folder
            continue
        except OSError as error:
            if is_new:
                with suppress(OSError):
                    path.unlink()
                    path.parent.rmdir()
            raise RunError(
                f"{path}: cannot be locked ({error.strerror}); choose another -o, on a local disk"
            ) from error
        if not isinstance(lock, SoftFileLock):  # whose record of its owner must stay
            with suppress(OSError):  # Windows does not allow writing to a locked file; the message names no process
                path.write_text(str(os.getpid()), encoding="ascii")
        return lock


def remove_owned(folder: Path, lock: BaseFileLock) -> None:
    """Remove the files of a run from its locked folder, then the folder unless other files remain in it."""
    for path in folder.iterdir():
        if _FOLDER_FILES.fullmatch(path.name) and not path.is_dir():
            path.unlink()
    # The marker is removed before the lock, so that another process never sees an unlocked folder without a marker.
    (folder / OWNED).unlink(missing_ok=True)
    if os.name == "nt":  # Windows cannot delete the lock file while it is open
        lock.release()
    (folder / LOCK).unlink(missing_ok=True)
    lock.release()
    with suppress(OSError):
        folder.rmdir()
