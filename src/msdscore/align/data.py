"""Open training and validation data of any format."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from msdscore.align.pairs import Found, Pairs, collect
from msdscore.align.sources import (
    PictureStore,
    expand,
    is_coco,
    is_llava,
    read_coco,
    read_llava,
    read_rows,
    read_shards,
    read_table,
)
from msdscore.errors import InputError, unknown_name

FORMATS = ("llava", "coco", "rows", "table", "shards")


@dataclass(frozen=True, slots=True)
class DataSource:
    """Files of captioned pictures; `images` are folders, or Parquet files of pictures by `file_name`.

    `format` is told from the file where it is not given.
    """

    rows: tuple[str, ...]
    images: tuple[str, ...] = ()
    format: str | None = None

    def __post_init__(self) -> None:
        if not self.rows:
            raise InputError("expected at least one file of captioned pictures, got none")
        if self.format is not None and self.format not in FORMATS:
            raise unknown_name("data format", self.format, FORMATS)


def open_pairs(source: DataSource) -> Pairs:
    """All pairs of all files, indexed; no picture is opened.

    Raises:
        InputError: a file is missing or of no known format, or there is no pair.
    """
    return collect(_found(source), source=", ".join(source.rows))


def _found(source: DataSource) -> Iterator[Found]:
    places = [Path(place) for place in source.images]
    for rows in source.rows:
        paths = expand(rows)
        if not paths or not paths[0].exists():
            raise InputError(f"{rows}: no such file")
        kind = source.format or _kind(paths[0])
        if kind == "shards":
            yield from read_shards(paths)
            continue
        for path in paths:
            store = PictureStore(places, beside=path.parent)
            readers = {"llava": read_llava, "coco": read_coco, "rows": read_rows, "table": read_table}
            yield from readers[kind](path, store)


def _kind(path: Path) -> str:
    """The format of a file, by its ending and, for JSON, by how it begins."""
    ending = path.suffix.lower()
    if ending == ".tar":
        return "shards"
    if ending == ".parquet":
        return "table"
    if ending != ".json":
        return "rows"
    return "llava" if is_llava(path) else "coco" if is_coco(path) else "rows"
