"""Caption the images of a folder or a file, in resumable parts."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pyarrow as pa

from msdscore.errors import InputError, RowError, RunError
from msdscore.io.files import is_image_name, size_and_time, source_key, text_key
from msdscore.io.images import from_cell, open_image
from msdscore.io.runs import discard, finished_run, open_run
from msdscore.io.tables import check_output
from msdscore.rows.formats import open_records
from msdscore.rows.rules import IMAGE_NAMES, first_of, listed
from msdscore.version import __version__
from msdscore_lab.captioners.writers import CaptioningSettings, CaptionWriter

_SCHEMA = pa.schema([("image", pa.string()), ("caption", pa.string()), ("system", pa.string()), ("error", pa.string())])
_EMPTY = "the captioner returned no text"


@dataclass(frozen=True, slots=True)
class NamedImage:
    """An image to describe and its name in the output; a row that cannot be read has an error as its source."""

    name: str
    source: Path | bytes | RowError


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptionRun:
    """Identity of a run: the name of the captioner in the output, and its model and endpoint."""

    system: str
    identity: str
    source: Path | None = None  # folder of images, or file of rows with images
    part: int = 8  # images per part, the resume granularity
    overwrite: bool = False


@dataclass(frozen=True, slots=True)
class CaptionedFile:
    """Outcome of a run; `earlier` is the number of captions from an interrupted run."""

    rows: int
    failed: int
    earlier: int
    reasons: tuple[str, ...]


def list_images(source: Path, *, limit: int | None = None) -> list[NamedImage]:
    """Return the images of a folder, or those in the rows of a file (paths or bytes), without duplicates."""
    images = _images_in_rows(source)
    if source.is_dir():
        paths = (path for path in sorted(source.rglob("*")) if path.is_file() and is_image_name(path))
        images = (NamedImage(path.relative_to(source).as_posix(), path) for path in paths)
    distinct = list({image.name: image for image in images}.values())
    if not distinct:
        raise InputError(f"{source}: expected images, found none")
    return distinct[:limit]


def caption_images(
    images: Sequence[NamedImage],
    load: Callable[[], CaptionWriter],
    output: Path,
    settings: CaptioningSettings,
    about: CaptionRun,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> CaptionedFile:
    """Write captions of images as rows of `image`, `caption`, `system` and `error`; resume an interrupted run.

    The model is loaded only if captions are missing. Model, prompt and decoding are stored in the run metadata.
    """
    check_output(output, inputs=[about.source, *(image.source for image in images if isinstance(image.source, Path))])
    if about.overwrite:
        discard(output)
    state = _state(images)
    manifest = {
        "captioner": about.identity,
        "system": about.system,
        "settings": asdict(settings),
        "image files": state,
        "part": about.part,
        "version": __version__,
    }
    if done := finished_run(output, manifest):
        return CaptionedFile(done.rows, done.failed, done.rows, done.reasons)
    parts, described = [images[start : start + about.part] for start in range(0, len(images), about.part)], 0
    writer: CaptionWriter | None = None
    with open_run(output, manifest) as run:
        for part_index, key, batch in run.missing(("", part) for part in parts):
            writer = writer or load()
            run.write(part_index, _table(batch, writer, settings, about.system, first=part_index == 0), key=key)
            described += len(batch)
            progress(part_index * about.part + len(batch), len(images))
        written = run.finish(
            rows=len(images),
            metadata={"msdscore.captioner": about.identity},
            notes={"prompt": writer.prompt, "model": writer.identity} if writer else {},
            check=partial(_check_unchanged, output, images, state),
        )
    return CaptionedFile(written.rows, written.failed, len(images) - described, written.reasons)


def _check_unchanged(output: Path, images: Sequence[NamedImage], state: str) -> None:
    if _state(images) != state:
        raise RunError(f"{output}: images changed during the run; run again with --overwrite")


def _state(images: Sequence[NamedImage]) -> str:
    """Return a hash of the names, sizes and times of images."""
    with ThreadPoolExecutor(8) as pool:
        states = "\n".join(pool.map(_state_of, images))
    return blake2b(states.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _state_of(image: NamedImage) -> str:
    source = image.source
    if isinstance(source, RowError):
        return f"{image.name}\0{source}"
    return f"{image.name}\0{size_and_time(source) if isinstance(source, Path) else source_key(source)}"


def _table(
    batch: Sequence[NamedImage], writer: CaptionWriter, settings: CaptioningSettings, system: str, *, first: bool
) -> pa.Table:
    texts: dict[int, str | RowError] = {}
    opened: dict[int, Any] = {}
    for index, image in enumerate(batch):
        try:
            if isinstance(image.source, RowError):
                raise image.source
            opened[index] = open_image(image.source)
        except RowError as error:
            texts[index] = error
    seeds = [text_key(f"{settings.seed}/{batch[index].name}") % 2**32 for index in opened]
    written = dict(zip(opened, writer.write(list(opened.values()), seeds) if opened else [], strict=True))
    rejected = [text for text in written.values() if isinstance(text, RowError)]
    if first and len(rejected) == len(opened) > 1:
        raise RunError(str(rejected[0]))  # all images failed, so the request itself is wrong
    texts |= written
    rows = [_row(image.name, texts[index], system) for index, image in enumerate(batch)]
    return pa.Table.from_pylist(rows, schema=_SCHEMA)


def _row(image: str, text: str | RowError, system: str) -> dict[str, str | None]:
    """Return the row of an image, with a caption or an error."""
    caption = "" if isinstance(text, RowError) else " ".join(text.split())
    error = str(text) if isinstance(text, RowError) else ""
    return {
        "image": image, "caption": caption or None, "system": system, "error": None if caption else error or _EMPTY,
    }  # fmt: skip


def _images_in_rows(path: Path) -> Iterator[NamedImage]:
    with ExitStack() as stack:
        for row_index, record in enumerate(open_records(path, format=None, until=stack).read()):
            values = record.values
            column = first_of(values, IMAGE_NAMES)
            if record.error is not None:
                yield NamedImage(f"row {row_index}", RowError(record.error))
                continue
            if column is None:
                raise InputError(f"{path} row {row_index}: no image; expected one of {listed(IMAGE_NAMES)}")
            content = values[column]
            image = from_cell(content)
            if not image or not isinstance(image, bytes | str):
                yield NamedImage(f"row {row_index}", RowError("no image; expected a path or bytes"))
            elif isinstance(image, bytes):
                name = values.get("file_name") or (content.get("path") if isinstance(content, dict) else None)
                yield NamedImage(str(name or row_index), image)
            else:
                yield NamedImage(str(image), path.parent / str(image))
