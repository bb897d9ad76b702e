"""The one rule for files that a command writes: nothing of the user's is lost.

1. The name ends in something that the command writes, and is no folder; `-` is standard output.
2. Neither the file nor what is written beside it is an input or read with one; `--overwrite` does not change that.
3. A file that is there already and holds something else is refused, except with `--overwrite`.
4. A side file, whose name the user has not given, is replaced only where it carries our mark.

Runs over many rows keep a fifth: what they have written for the same work, they go on with (see `outputs.run`).
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from msdscore.errors import ConfigError, MSDScoreError, RunError, shortened
from msdscore.io.atomic import write_bytes
from msdscore.io.inputs.formats import is_known
from msdscore.io.inputs.rows import image_tables, open_rows
from msdscore.io.stores import is_address
from msdscore.io.tar import is_image_name

MARK = "written by msdscore"  # in the first or the last bytes of a side file
_MARKED = 1024  # bytes at either end in which the mark stands
RUN_NOTES = ".run.json"  # suffix of the run-metadata file, which lies beside a run's output
MADE_BY = {"made_by": "msdscore"}  # the mark of such a file; one without it is never replaced or deleted
_RENAMED = {"pictures": "images"}  # names of manifests that were written by earlier versions
REMEDY = "choose another -o or pass --overwrite"
_STANDARD_OUTPUT = frozenset(("-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"))
Source = str | Path | None


def is_standard_output(path: str | Path) -> bool:
    """Whether a name stands for standard output.

    >>> is_standard_output("-"), is_standard_output(Path("/dev/stdout")), is_standard_output("a.json")
    (True, True, False)
    """
    return str(path) in _STANDARD_OUTPUT


def check_target(
    path: Path, suffixes: Sequence[str], *, inputs: Iterable[Source] = (), side: Iterable[Path] = ()
) -> None:
    """Refuse, before any work is done, a name that the command cannot or must not write.

    `inputs` are the files that it reads, as the command line names them; `side` are the files and folders that it
    writes beside `path`.
    """
    name = shortened(str(path))
    if is_standard_output(path):
        return
    if path.suffix.lower() not in suffixes:
        raise ConfigError(f"{name}: unknown kind of output; expected a name ending in {', '.join(suffixes)}")
    if path.is_dir():
        raise ConfigError(f"{name}: is a folder; expected the name of a file to write")
    refuse_inputs([path, *side], inputs)


def check_folder(path: Path, names: Iterable[str] = (), *, inputs: Iterable[Source] = ()) -> None:
    """Refuse a folder that the command cannot write, or in which one of the files `names` is an input."""
    name = shortened(str(path))
    if is_standard_output(path):
        raise ConfigError(f"{name}: this command writes several files; expected the name of a folder")
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{name}: is a file; expected the name of a folder")
    refuse_inputs([path / one for one in names], inputs)


def run_files(output: Path) -> list[Path]:
    """What a run writes beside its output: the run metadata, and the folder of its parts."""
    return [output.with_name(output.name + RUN_NOTES), output.with_name(f"{output.name}.parts")]


def refuse_inputs(outputs: Iterable[Path], inputs: Iterable[Source]) -> None:
    """Refuse outputs under which the command would lose what it reads, by whatever links.

    An output that is a folder loses everything in it. Files that are not there cannot be lost, so that nothing is
    asked of the inputs of a command whose outputs are all new.
    """
    files, folders = dict[tuple[int, int], Path](), list[Path]()
    for path in outputs:
        with suppress(OSError, ValueError):  # not there, or no name of a file at all
            status = path.stat()
            files[status.st_dev, status.st_ino] = path
            folders += [path.resolve()] if path.is_dir() else []
    if not files:
        return
    for source in inputs:
        for read in _read_with(source):
            with suppress(OSError, ValueError):
                status = read.stat()
                lost = files.get((status.st_dev, status.st_ino))
                if folders and lost is None:
                    whole = read.resolve()
                    lost = next((folder for folder in folders if whole.is_relative_to(folder)), None)
                if lost is not None:
                    name = shortened(str(lost))
                    raise RunError(f"{name}: is an input of this command, which would be lost; choose another output")


def _read_with(source: Source) -> Iterator[Path]:
    """The file that an argument names (as FILE or NAME=FILE), and the files that are read with it."""
    if source is None or str(source) in ("", "-"):
        return
    path = _named(source)
    yield path
    if is_image_name(path) or path.is_dir():
        return
    yield path.with_name(path.name + RUN_NOTES)
    yield from image_tables(str(path))
    if path.suffix.lower() == ".tar":
        table, metadata = path.with_suffix(".parquet"), None
        with suppress(OSError, ValueError, pa.ArrowException):
            metadata = pq.read_schema(table).metadata
        if b"msdscore" not in (metadata or {}):  # scores are nothing that a tar is read with
            yield table


def _named(source: str | Path) -> Path:
    path, (name, equals, file) = Path(source), str(source).partition("=")
    return Path(file) if equals and name and file and not path.exists() else path


def with_images(files: Iterable[Source], images: Path | None = None) -> Iterator[Source]:
    """Files of rows, then the images that their rows name, and those of the input of a scored file."""
    for source in files:
        yield source
        if source is None or is_address(str(source)) or not is_known(_named(source)):
            continue
        path, origin = _named(source), None
        with suppress(MSDScoreError, OSError):
            noted = load(run_files(path)[0]).get("source")
            origin = Path(noted) if isinstance(noted, str) and noted != "-" and Path(noted).is_file() else None
        yield origin
        for file in filter(None, (path, origin)):
            with suppress(MSDScoreError, OSError), open_rows(file, images=images) as rows:
                yield from (row.source for row in rows.read() if isinstance(row.source, str))


def refuse_existing(paths: Iterable[Path]) -> None:
    """Refuse files that are there, for work that takes too long to find out at its end."""
    for path in paths:
        if path.exists():
            raise RunError(f"{shortened(str(path))}: exists; {REMEDY}")


def refuse_foreign(paths: Iterable[Path]) -> None:
    """Refuse side files that are there without our mark: nobody has asked to replace them."""
    for path in paths:
        ends = b""
        with suppress(OSError), path.open("rb") as file:
            ends = file.read(_MARKED)
            file.seek(max(0, path.stat().st_size - _MARKED))
            ends += b"\0" + file.read(_MARKED)
        if path.exists() and MARK.encode() not in ends:
            name = shortened(str(path))
            raise RunError(f"{name}: exists and was not written by msdscore; move it away, or choose another -o")


def put(path: Path, content: bytes, *, overwrite: bool = False) -> None:
    """Write a file in one step; one that holds something else stays as it is, except with `overwrite`."""
    put_all({path: content}, overwrite=overwrite)


def put_all(
    contents: Mapping[Path, bytes], *, side: Mapping[Path, bytes] | None = None, overwrite: bool = False
) -> None:
    """Write several files; if one of them must not be written, none is. `side` files carry our mark."""
    everything = {**contents, **(side or {})}
    written = {path: content for path, content in everything.items() if not is_standard_output(path)}
    try:
        if not overwrite:
            for path, content in written.items():
                if path.exists() and is_run_notes(run_files(path)[0]):
                    raise RunError(f"{path}: holds a finished run; {REMEDY}")
                if path.exists() and (path.stat().st_size != len(content) or path.read_bytes() != content):
                    raise RunError(f"{path}: exists and holds something else; {REMEDY}")
        refuse_foreign(side or ())
        for path, content in written.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, content, folder=path.parent)
            # The metadata of a run whose output was replaced; a file of that name that no run has written stays.
            notes = run_files(path)[0]
            if is_run_notes(notes):
                notes.unlink(missing_ok=True)
    except OSError as error:
        name = shortened(str(path))
        raise RunError(f"{name}: cannot be written ({error.strerror or error}); choose another name") from error
    for path in everything.keys() - written.keys():
        sys.stdout.buffer.write(everything[path])


def is_run_notes(path: Path) -> bool:
    """Whether a file is the metadata of a run."""
    try:
        head = path.read_bytes()[:_MARKED].lstrip()
    except OSError:
        return False
    return head.startswith(b"{") and b'"manifest"' in head


def is_same_file(path: Path, source: Source) -> bool:
    """Whether two names are one file, by whatever links; a file that is not there yet is compared by its name."""
    if source is None or str(source) == "-":
        return False
    try:
        return path.samefile(source) if path.exists() else path.resolve() == Path(source).resolve()
    except (OSError, ValueError):  # the input is not there, or is no name of a file at all
        return False


def dump(value: Mapping[str, Any]) -> bytes:
    """The manifest as it is stored."""
    return json_bytes(value, indent=2) + b"\n"


def json_bytes(value: Any, **options: Any) -> bytes:
    r"""JSON in UTF-8; text that UTF-8 cannot hold, as in file names that are not UTF-8, is escaped.

    >>> json_bytes("é"), json_bytes("\udce9")
    (b'"\xc3\xa9"', b'"\\udce9"')
    """
    try:
        return json.dumps(value, ensure_ascii=False, **options).encode()
    except UnicodeEncodeError:
        return json.dumps(value, **options).encode()


def load(path: Path) -> dict[str, Any]:
    """A stored manifest or sidecar."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path}: is damaged ({error}); {REMEDY}") from error
    if not isinstance(content, dict):
        raise RunError(f"{path}: is damaged (not an object); {REMEDY}")
    return content


def read_notes(path: Path) -> dict[str, Any] | None:
    """The run metadata in a file; None where there is none.

    Raises:
        RunError: the file is not one that a run has written, and must not be replaced.
    """
    if not path.exists():
        return None
    try:
        notes = load(path)
    except (RunError, OSError):
        notes = {}
    # Runs of earlier versions wrote no mark; what they wrote is known by its form.
    if notes.items() >= MADE_BY.items() or (isinstance(notes.get("manifest"), dict) and "bytes" in notes):
        return notes
    raise RunError(f"{path}: was not written by msdscore; move it away or choose another -o")


def compare(owner: Path, old: Any, manifest: Mapping[str, Any]) -> None:
    """Refuse to go on where something differs, and name the first thing that does."""
    new = json.loads(dump(manifest))
    if isinstance(old, dict):
        old = {_RENAMED.get(name, name): value for name, value in old.items()}
    if old != new:
        key, before, now = next(_differences(old, new, ""))
        raise RunError(f"{owner}: belongs to a run with another {key} ({before}, now {now}); {REMEDY}")


def _differences(old: Any, new: Any, key: str) -> Iterator[tuple[str, str, str]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in {**old, **new}:
            yield from _differences(old.get(name), new.get(name), f"{key}.{name}" if key else name)
    elif old != new:
        short = (json.dumps(value, ensure_ascii=False) if value is not None else "nothing" for value in (old, new))
        before, now = (text if len(text) <= 60 else f"{text[:57]}..." for text in short)
        yield key or "manifest", before, now
