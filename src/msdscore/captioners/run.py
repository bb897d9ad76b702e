"""Captions of a folder or a file of pictures, written in parts that survive any crash."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pyarrow as pa

from msdscore.captioners.writers import CaptioningSettings, CaptionWriter
from msdscore.errors import InputError, RowError, RunError
from msdscore.io.hashing import text_key
from msdscore.io.images import open_image
from msdscore.io.inputs.columns import IMAGE_NAMES, first_of, listed
from msdscore.io.inputs.formats import open_records
from msdscore.io.inputs.picture_folder import is_picture
from msdscore.io.outputs.files import check_output
from msdscore.io.outputs.run import discard, finished, open_run
from msdscore.version import __version__

_SCHEMA = pa.schema([("image", pa.string()), ("caption", pa.string()), ("system", pa.string()), ("error", pa.string())])
_SAID_NOTHING = "the captioner said nothing"


@dataclass(frozen=True, slots=True)
class NamedPicture:
    """A picture to describe, and what the output calls it; a row that cannot be read has an error in its place."""

    name: str
    source: Path | bytes | RowError


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptionRun:
    """What a run is called: the name of the captioner in the output, and which model it is and where."""

    system: str
    identity: str
    source: Path | None = None  # the folder or the file of rows that names the pictures
    part: int = 8  # pictures that a crash can cost at most
    overwrite: bool = False


@dataclass(frozen=True, slots=True)
class CaptionedFile:
    """What a run has written; `earlier` captions come from a run that was stopped."""

    rows: int
    failed: int
    earlier: int
    reasons: tuple[str, ...]


def list_pictures(source: Path, *, limit: int | None = None) -> list[NamedPicture]:
    """The pictures of a folder by name, or those that the rows of a file hold or name, each once."""
    found = _in_folder(source) if source.is_dir() else _in_rows(source)
    kept = list({one.name: one for one in found}.values())
    if not kept:
        raise InputError(f"{source}: expected pictures, found none")
    return kept if limit is None else kept[:limit]


def caption_pictures(
    pictures: Sequence[NamedPicture],
    load: Callable[[], CaptionWriter],
    output: Path,
    settings: CaptioningSettings,
    about: CaptionRun,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> CaptionedFile:
    """Describe pictures into rows of `image`, `caption`, `system` and `error`; go on where an earlier run stopped.

    The model is loaded only if there is something to do. Model, prompt and decoding are kept in the run metadata.
    """
    check_output(output, inputs=[about.source, *(one.source for one in pictures if isinstance(one.source, Path))])
    if about.overwrite:
        discard(output)
    system, part = about.system, about.part
    manifest = {
        "captioner": about.identity,
        "system": system,
        "settings": asdict(settings),
        "pictures": blake2b("\n".join(one.name for one in pictures).encode(), digest_size=8).hexdigest(),
        "part": part,
        "version": __version__,
    }
    if done := finished(output, manifest):
        return CaptionedFile(done.rows, done.failed, done.rows, done.reasons)
    with open_run(output, manifest) as run:
        there, writer = set(run.done()), None
        earlier = 0
        for number, start in enumerate(range(0, len(pictures), part)):
            some = pictures[start : start + part]
            if number in there:
                earlier += len(some)
            else:
                first, writer = writer is None and not earlier, writer or load()
                run.write(number, _table(some, writer, settings, system, first=first))
            progress(start + len(some), len(pictures))
        notes = {"prompt": writer.prompt, "model": writer.identity} if writer else {}
        made = run.finish(rows=len(pictures), metadata={"msdscore.captioner": about.identity}, notes=notes)
    return CaptionedFile(made.rows, made.failed, earlier, made.reasons)


def _table(
    some: Sequence[NamedPicture], writer: CaptionWriter, settings: CaptioningSettings, system: str, *, first: bool
) -> pa.Table:
    opened, errors = dict[int, Any](), dict[int, str]()
    for place, one in enumerate(some):
        try:
            opened[place] = _open(one)
        except RowError as error:
            errors[place] = str(error)
    seeds = [text_key(f"{settings.seed}/{some[place].name}") % 2**32 for place in opened]
    written = writer.write(list(opened.values()), seeds) if opened else []
    refused = {place: str(text) for place, text in zip(opened, written, strict=True) if isinstance(text, RowError)}
    if first and len(refused) == len(opened) > 1:
        raise RunError(next(iter(refused.values())))  # all of them: the question is wrong, not the pictures
    errors |= refused
    captions = {
        place: " ".join(text.split()) for place, text in zip(opened, written, strict=True) if isinstance(text, str)
    }
    rows = [
        {
            "image": one.name,
            "caption": captions.get(place) or None,
            "system": system,
            "error": None if captions.get(place) else errors.get(place, _SAID_NOTHING),
        }
        for place, one in enumerate(some)
    ]
    return pa.Table.from_pylist(rows, schema=_SCHEMA)


def _open(picture: NamedPicture) -> Any:
    if isinstance(picture.source, RowError):
        raise picture.source
    return open_image(picture.source)


def _in_folder(folder: Path) -> Iterator[NamedPicture]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and is_picture(path):
            yield NamedPicture(path.relative_to(folder).as_posix(), path)


def _in_rows(path: Path) -> Iterator[NamedPicture]:
    with ExitStack() as until:
        for number, record in enumerate(open_records(path, format=None, until=until).read()):
            values = record.values
            column = first_of(values, IMAGE_NAMES)
            if record.error is not None:
                yield NamedPicture(f"row {number}", RowError(record.error))
                continue
            if column is None:
                raise InputError(f"{path} row {number}: no picture; expected one of {listed(IMAGE_NAMES)}")
            content = values[column]
            given = content.get("bytes") or content.get("path") if isinstance(content, dict) else content
            if not given or not isinstance(given, bytes | str):
                yield NamedPicture(f"row {number}", RowError("no picture; expected a path or bytes"))
            elif isinstance(given, bytes):
                name = values.get("file_name") or (content.get("path") if isinstance(content, dict) else None)
                yield NamedPicture(str(name or number), given)
            else:
                yield NamedPicture(str(given), path.parent / str(given))
