"""Checks for the files that a command writes, so that no user file is lost.

1. The name has a suffix that the command writes, and is not a folder; `-` is standard output.
2. Neither the file nor its side files are inputs or read together with one, and none is an image under another suffix,
   such as one that a row names; `--overwrite` does not change that.
3. An existing file with other content raises an error, except with `--overwrite`.
4. A side file, whose name the user did not choose, is replaced only if it contains our mark.

Runs over many rows also resume from the parts that they have written (see `runs`).
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msdscore.errors import ConfigError, RunError, shortened
from msdscore.io.files import is_image_name, write_bytes

MARK = "written by msdscore"  # in the first or the last bytes of a side file
_MARKED = 1024  # bytes at either end that are searched for the mark
RUN_NOTES = ".run.json"  # suffix of the run-metadata file, next to a run's output
MADE_BY = {"made_by": "msdscore"}  # the mark of such a file; files without it are never replaced or deleted
REMEDY = "choose another -o or pass --overwrite"
# First bytes of JPEG, PNG, GIF, WebP and TIFF.
_IMAGES = (b"\xff\xd8\xff", b"\x89PNG", b"GIF8", b"RIFF", b"II*\0", b"MM\0*")
_STANDARD_OUTPUT = frozenset(("-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"))
Source = str | Path | None


def is_standard_output(path: str | Path) -> bool:
    """Whether a name refers to standard output.

    >>> is_standard_output("-"), is_standard_output(Path("/dev/stdout")), is_standard_output("a.json")
    (True, True, False)
    """
    return str(path) in _STANDARD_OUTPUT


def check_target(
    path: Path, suffixes: Sequence[str], *, inputs: Iterable[Source] = (), side: Iterable[Path] = ()
) -> None:
    """Raise, before any work is done, if the command cannot or must not write this file.

    `inputs` are the files that it reads, as the command line names them; `side` are the files and folders that it
    writes next to `path`.
    """
    name = shortened(str(path))
    if is_standard_output(path):
        return
    if path.suffix.lower() not in suffixes:
        raise ConfigError(f"{name}: unknown kind of output; expected a name ending in {', '.join(suffixes)}")
    if path.is_dir():
        raise ConfigError(f"{name}: is a folder; expected the name of a file to write")
    for file in (path, *side):
        if not is_image_name(file) and _has_image(file):
            raise RunError(f"{shortened(str(file))}: is an image, which would be lost; choose another output")
    refuse_inputs([path, *side], inputs)


def _has_image(path: Path) -> bool:
    """Whether a file begins as images do."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(4).startswith(_IMAGES)
    except (OSError, ValueError):  # not readable, or not a valid file name
        return False


def check_folder(path: Path, names: Iterable[str] = (), *, inputs: Iterable[Source] = ()) -> None:
    """Raise if the command cannot write this folder, or one of the files `names` in it is an input."""
    name = shortened(str(path))
    if is_standard_output(path):
        raise ConfigError(f"{name}: this command writes several files; expected the name of a folder")
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{name}: is a file; expected the name of a folder")
    refuse_inputs([path / name for name in names], inputs)


def run_files(output: Path) -> list[Path]:
    """Return the paths of the run metadata and the folder of parts of an output."""
    return [output.with_name(output.name + RUN_NOTES), output.with_name(f"{output.name}.parts")]


def refuse_inputs(outputs: Iterable[Path], inputs: Iterable[Source]) -> None:
    """Raise `RunError` if an output would overwrite an input, also through links.

    For an output folder this includes every file in it. Missing files cannot be lost: if all outputs are new, the
    inputs are not checked.
    """
    files, folders = dict[tuple[int, int], Path](), list[Path]()
    for path in outputs:
        with suppress(OSError, ValueError):  # missing, or not a valid file name
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
    """Yield the file of an argument (FILE or NAME=FILE), and the files that are read with it."""
    if source is None or str(source) in ("", "-"):
        return
    path = file_in(source)
    yield path
    if is_image_name(path) or path.is_dir():
        return
    notes, scored = path.with_name(path.name + RUN_NOTES), None
    yield notes
    with suppress(OSError, ValueError, RunError):
        scored = load(notes).get("source")
    if isinstance(scored, str):  # the input of a scored file
        yield Path(scored)
    if path.suffix.lower() == ".tar":
        from msdscore.io.arrow import pa, pq

        table, metadata = path.with_suffix(".parquet"), None
        with suppress(OSError, ValueError, pa.ArrowException):
            metadata = pq.read_schema(table).metadata
        if b"msdscore" not in (metadata or {}):  # scores are not metadata of a tar
            yield table


def file_in(source: str | Path) -> Path:
    """Return the file of an argument, FILE or NAME=FILE."""
    path, (name, equals, file) = Path(source), str(source).partition("=")
    return Path(file) if equals and name and file and not path.exists() else path


def refuse_existing(paths: Iterable[Path]) -> None:
    """Raise `RunError` if a file exists; called before long work rather than at its end."""
    for path in paths:
        if path.exists():
            raise RunError(f"{shortened(str(path))}: exists; {REMEDY}")


def refuse_foreign(paths: Iterable[Path]) -> None:
    """Raise `RunError` if a side file exists without our mark."""
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
    """Write a file atomically; raise if it exists with other content, except with `overwrite`."""
    put_all({path: content}, overwrite=overwrite)


def put_all(
    contents: Mapping[Path, bytes], *, side: Mapping[Path, bytes] | None = None, overwrite: bool = False
) -> None:
    """Write several files, or none if one of them must not be written. `side` files contain our mark."""
    everything = {**contents, **(side or {})}
    written = {path: content for path, content in everything.items() if not is_standard_output(path)}
    try:
        if not overwrite:
            for path, content in written.items():
                if path.exists() and is_run_notes(run_files(path)[0]):
                    raise RunError(f"{path}: is the output of a finished run; {REMEDY}")
                if path.exists() and (path.stat().st_size != len(content) or path.read_bytes() != content):
                    raise RunError(f"{path}: exists with other content; {REMEDY}")
        refuse_foreign(side or ())
        for path, content in written.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, content, folder=path.parent)
            # The metadata of a run whose output was replaced; a file of that name from elsewhere is not deleted.
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
    with suppress(RunError):
        return read_notes(path) is not None
    return False


def is_same_file(path: Path, source: Source) -> bool:
    """Whether two names are the same file, also through links; missing files are compared by name."""
    if source is None or str(source) == "-":
        return False
    try:
        return path.samefile(source) if path.exists() else path.resolve() == Path(source).resolve()
    except (OSError, ValueError):  # the input is missing, or not a valid file name
        return False


def dump(value: Mapping[str, Any]) -> bytes:
    """Serialise a manifest."""
    return json_bytes(value, indent=2) + b"\n"


def json_bytes(value: Any, **options: Any) -> bytes:
    r"""Encode JSON in UTF-8; surrogates, as in file names that are not UTF-8, are escaped.

    >>> json_bytes("é"), json_bytes("\udce9")
    (b'"\xc3\xa9"', b'"\\udce9"')
    """
    try:
        return json.dumps(value, ensure_ascii=False, **options).encode()
    except UnicodeEncodeError:
        return json.dumps(value, **options).encode()


def load(path: Path) -> dict[str, Any]:
    """Load a stored manifest or sidecar."""
    return parsed(path, path.read_bytes())


def parsed(path: Path | str, data: bytes) -> dict[str, Any]:
    """Parse the content of a stored manifest or sidecar."""
    try:
        content = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path}: is damaged ({error}); {REMEDY}") from error
    if not isinstance(content, dict):
        raise RunError(f"{path}: is damaged (not an object); {REMEDY}")
    return content


def read_notes(path: Path) -> dict[str, Any] | None:
    """Read the run metadata in a file; None if the file does not exist.

    Raises:
        RunError: the file cannot be read, or was not written by a run and must not be replaced.
    """
    if not path.exists():
        return None
    try:
        notes = load(path)
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror or error}); choose another -o") from error
    except RunError:
        notes = {}
    if notes.items() >= MADE_BY.items():
        return notes
    raise RunError(f"{path}: was not written by msdscore; move it away or choose another -o")


def check_manifest(owner: Path | str, old: Any, manifest: Mapping[str, Any]) -> None:
    """Raise `RunError` with the first difference between two manifests."""
    new = json.loads(dump(manifest))
    if old != new:
        key, before, now = next(_differences(old, new, ""))
        if key == "input":
            raise RunError(f"{owner}: its input was changed or touched after it was scored; {REMEDY}")
        raise RunError(f"{owner}: belongs to a run with another {key} ({before}, now {now}); {REMEDY}")


def _differences(old: Any, new: Any, key: str) -> Iterator[tuple[str, str, str]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in {**old, **new}:
            yield from _differences(old.get(name), new.get(name), f"{key}.{name}" if key else name)
    elif isinstance(old, str) and isinstance(new, str) and old != new and "|" in old and "|" in new:
        before, now = ("|".join(part for part in text.split("|") if part not in other.split("|"))
                       for text, other in ((old, new), (new, old)))  # fmt: skip
        yield key, before or "less", now or "less"
    elif old != new:
        short = (json.dumps(value, ensure_ascii=False) if value is not None else "nothing" for value in (old, new))
        before, now = (text if len(text) <= 60 else f"{text[:57]}..." for text in short)
        yield key or "manifest", before, now


@dataclass(frozen=True, slots=True)
class Summary:
    """Row counts of a finished run; `failed` rows have an `error`, `reasons` are the first of these errors.

    `warned` rows have a warning, `warnings` are the first of these.
    """

    rows: int
    failed: int
    reasons: tuple[str, ...] = ()
    warned: int = 0
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, notes: Mapping[str, Any]) -> "Summary":
        """Build the summary from the run metadata."""
        reasons, warnings = (tuple(notes.get(name, ())) for name in ("reasons", "warnings"))
        return cls(notes["rows"], notes["failed"], reasons, notes.get("warned", 0), warnings)
