"""Captioned pictures in any format: LLaVA chats, COCO captions, rows of any table, WebDataset shards."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from msdscore.align.data.pairs import Found, Pairs, Picture, Skip, TrainingPair, checked, collect
from msdscore.errors import InputError, unknown_name
from msdscore.io.inputs.columns import CAPTION_NAMES, IMAGE_NAMES
from msdscore.io.inputs.formats import open_records
from msdscore.io.inputs.shards import expand
from msdscore.io.parquet_images import StoredImage
from msdscore.io.tar import read_samples

CAPTIONS = ("captions", *CAPTION_NAMES, "sentences")
NEGATIVES = ("negatives", "negative_caption", "negative_captions", "hard_negatives")
MACHINE = ("machine", "machine_captions")
OBJECTS = ("objects",)
TIMES = "times"
_TEXT_ENDINGS = ("txt", "caption")
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
        paths = [Path(name) for name in expand(rows)]
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


class PictureStore:
    """Finds pictures by the name that a row gives: in tables of pictures, in folders, beside the rows."""

    def __init__(self, places: Sequence[Path], *, beside: Path) -> None:
        self._folders = [path for path in places if path.is_dir()] or [beside]
        self._stored: dict[str, StoredImage] = {}
        for path in places:
            if path.suffix == ".parquet":
                self._stored.update(_picture_table(path))
            elif not path.is_dir():
                raise InputError(f"{path}: no such folder or Parquet file of pictures")

    def find(self, name: str) -> Picture:
        """The picture of this name; a file is not opened before it is needed."""
        if name in self._stored:
            return self._stored[name]
        for folder in self._folders[:-1]:
            if (folder / name).is_file():
                return folder / name
        return self._folders[-1] / name


def read_llava(path: Path, store: PictureStore) -> Iterator[Found]:
    """`chat.json` of CC3M-595K: the first answer of each conversation is the caption."""
    with ExitStack() as stack:
        for record in open_records(path, format="json", until=stack).read():
            values = record.values
            turns = values.get("conversations")
            if record.error or not isinstance(values.get("image"), str) or not isinstance(turns, list):
                yield Skip(record.error or f"{path.name}: an entry without image or conversations")
                continue
            answers = [turn.get("value") for turn in turns if isinstance(turn, dict) and turn.get("from") == "gpt"]
            yield checked(TrainingPair(store.find(values["image"]), tuple(map(str, answers[:1]))))


def read_coco(path: Path, store: PictureStore) -> Iterator[Found]:
    """COCO captions: `images` with file names, `annotations` with captions."""
    document = _document(path)
    captions: dict[Any, list[Any]] = defaultdict(list)
    for note in document["annotations"]:
        captions[note.get("image_id")].append(note.get("caption"))
    for image in document["images"]:
        name = image.get("file_name")
        if not isinstance(name, str):
            yield Skip(f"{path.name}: image {image.get('id')} has no file_name")
        else:
            yield checked(TrainingPair(store.find(name), tuple(captions[image.get("id")])))


def read_rows(path: Path, store: PictureStore) -> Iterator[Found]:
    """JSON lines, a JSON list, CSV or TSV with a picture's name and one or more captions a row."""
    with ExitStack() as stack:
        for record in open_records(path, format=None, until=stack).read():
            if record.error:
                yield Skip(f"{path.name}: {record.error}")
                continue
            yield _row(record.values, store, path.name)


def read_table(path: Path, store: PictureStore) -> Iterator[Found]:
    """Parquet with pictures inside, or with their names; pictures are not read here."""
    with pq.ParquetFile(path) as file:
        names = file.schema_arrow.names
        image = next((name for name in IMAGE_NAMES if name in names), None)
        inside = image is not None and not pa.types.is_string(file.schema_arrow.field(image).type)
        known = (*CAPTIONS, *NEGATIVES, *MACHINE, *OBJECTS, TIMES)
        wanted = [name for name in names if name in known or (name == image and not inside)]
        groups = (file.read_row_group(group, columns=wanted) for group in range(file.metadata.num_row_groups))
        for row, values in enumerate(values for group in groups for values in group.to_pylist()):
            stored = StoredImage(f"row {row}", path, row, str(image)) if inside else None
            yield _row(values, store, path.name, stored=stored)


def read_shards(paths: Sequence[Path]) -> Iterator[Found]:
    """WebDataset shards: files of one key before the first dot make one pair."""
    for path in paths:
        for sample in read_samples(path, (*_TEXT_ENDINGS, "json")):
            captions = [caption for ending, text in sample.texts for caption in _shard_captions(text, ending)]
            if sample.error is not None:
                yield Skip(sample.error)
            elif sample.picture is None:
                yield Skip(f"{path.name}: {sample.key} has no picture")
            else:
                yield checked(TrainingPair(sample.picture, tuple(captions)))


def is_llava(path: Path) -> bool:
    """Whether the first entry of a JSON document is a conversation."""
    with path.open(encoding="utf-8-sig") as file:
        head = file.read(1 << 16)
    return head.lstrip().startswith("[") and '"conversations"' in head


def is_coco(path: Path) -> bool:
    """Whether a JSON document is an object with images and annotations."""
    with path.open(encoding="utf-8-sig") as file:
        head = file.read(64)
    return head.lstrip().startswith("{") and {"images", "annotations"} <= set(_document(path))


def _document(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid JSON ({error})") from error
    return found if isinstance(found, dict) else {}


def _row(values: Mapping[str, Any], store: PictureStore, source: str, *, stored: StoredImage | None = None) -> Found:
    name = next((values[name] for name in IMAGE_NAMES if isinstance(values.get(name), str)), None)
    if stored is None and not name:
        return Skip(f"{source}: a row without a picture; expected one of {', '.join(IMAGE_NAMES)}")
    captions, negatives, machine = (
        tuple(_list(next((values[name] for name in names if name in values), None)))
        for names in (CAPTIONS, NEGATIVES, MACHINE)
    )
    picture = stored or store.find(str(name))
    return checked(
        TrainingPair(picture, captions, negatives, machine, _objects(values), str(name or ""), _times(values))
    )


def _times(values: Mapping[str, Any]) -> int:
    """How often an epoch shows the picture; once where the row does not say."""
    found = values.get(TIMES)
    return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else 1


def _objects(values: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Names of annotated objects; what is no list of names (boxes, for one) counts as not annotated."""
    found = next((values[name] for name in OBJECTS if name in values), None)
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        return None
    return tuple(dict.fromkeys(name.strip().lower() for name in found if name.strip()))


def _list(value: Any) -> list[Any]:
    """Captions as a list; COCO-like sentences are objects with a `raw` text."""
    items = value if isinstance(value, list) else [] if value is None else [value]
    return [item.get("raw") if isinstance(item, dict) else item for item in items]


def _picture_table(path: Path) -> dict[str, StoredImage]:
    with pq.ParquetFile(path) as file:
        if not {"file_name", "image"} <= set(file.schema_arrow.names):
            raise InputError(f"{path}: a table of pictures needs the columns file_name and image")
        names = file.read(columns=["file_name"])["file_name"].to_pylist()
    return {name: StoredImage(str(name), path, row) for row, name in enumerate(names)}


def _shard_captions(text: str, ending: str) -> list[Any]:
    if ending != "json":
        return [text]
    try:
        values = json.loads(text)
    except ValueError:
        return []
    return _list(next((values[name] for name in CAPTIONS if name in values), None)) if isinstance(values, dict) else []
