"""The one rule for files that a command writes: nothing of the user's is lost without `--overwrite`.

1. The name ends in something that the command writes, and is no folder.
2. The file is none of the inputs; `--overwrite` does not change that.
3. A file that is there already and holds something else is refused, except with `--overwrite`.

Runs over many rows keep a fourth: what they have written for the same work, they go on with (see `outputs.run`).
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from msdscore.errors import ConfigError, RunError, shortened
from msdscore.io.atomic import write_bytes
from msdscore.io.outputs.manifest import REMEDY, RUN_NOTES


def check_target(path: Path, suffixes: Sequence[str], *, inputs: Iterable[str | Path | None] = ()) -> None:
    """Refuse, before any work is done, a name that the command cannot or must not write.

    `inputs` are the files that it reads; what is no file, such as `-` or None, is passed over.
    """
    name = shortened(str(path))
    if path.suffix.lower() not in suffixes:
        raise ConfigError(f"{name}: unknown kind of output; expected a name ending in {', '.join(suffixes)}")
    if path.is_dir():
        raise ConfigError(f"{name}: is a folder; expected the name of a file to write")
    refuse_inputs(path, inputs)


def refuse_inputs(path: Path, inputs: Iterable[str | Path | None]) -> None:
    """Refuse a name under which the command would lose what it reads."""
    if any(is_same_file(path, source) for source in inputs):
        name = shortened(str(path))
        raise RunError(f"{name}: is an input of this command, which would be lost; choose another output")


def refuse_existing(paths: Iterable[Path]) -> None:
    """Refuse files that are there, for work that takes too long to find out at its end."""
    for path in paths:
        if path.exists():
            raise RunError(f"{shortened(str(path))}: exists; {REMEDY}")


def put(path: Path, content: bytes, *, overwrite: bool = False) -> None:
    """Write a file in one step; one that holds something else stays as it is, except with `overwrite`."""
    put_all({path: content}, overwrite=overwrite)


def put_all(contents: dict[Path, bytes], *, overwrite: bool = False) -> None:
    """Write several files; if one of them must not be written, none is."""
    try:
        if not overwrite:
            for path, content in contents.items():
                _refuse_other(path, content)
        for path, content in contents.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, content, folder=path.parent)
            _notes(path).unlink(missing_ok=True)
    except OSError as error:
        name = shortened(str(path))
        raise RunError(f"{name}: cannot be written ({error.strerror or error}); choose another name") from error


def _refuse_other(path: Path, content: bytes) -> None:
    if _notes(path).exists() and path.exists():
        raise RunError(f"{path}: holds a finished run; {REMEDY}")
    if path.exists() and (path.stat().st_size != len(content) or path.read_bytes() != content):
        raise RunError(f"{path}: exists and holds something else; {REMEDY}")


def _notes(path: Path) -> Path:
    return path.with_name(path.name + RUN_NOTES)


def is_same_file(path: Path, source: str | Path | None) -> bool:
    """Whether two names are one file, by whatever links; a file that is not there yet is compared by its name."""
    if source is None or str(source) == "-":
        return False
    try:
        return path.samefile(source) if path.exists() else path.resolve() == Path(source).resolve()
    except (OSError, ValueError):  # the input is not there, or is no name of a file at all
        return False
