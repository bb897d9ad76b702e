"""Captioned images for training: LLaVA chats, COCO captions, rows of any table, WebDataset shards, as one index."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from msdscore.errors import InputError, unknown_name
from msdscore.io.inputs.columns import CAPTION_NAMES, IMAGE_NAMES
from msdscore.io.inputs.formats import open_records
from msdscore.io.parquet_images import StoredImage
from msdscore.io.stores import expand
from msdscore.io.tar import TarImage, read_samples

CAPTIONS = ("captions", *CAPTION_NAMES, "sentences")
NEGATIVES = ("negatives", "negative_caption", "negative_captions", "hard_negatives")
MACHINE = ("machine", "machine_captions")
OBJECTS, TIMES = "objects", "times"
FORMATS = ("llava", "coco", "rows", "table", "shards")
_REASONS = 5  # skipped rows whose error is stored

ImageRef: TypeAlias = Path | StoredImage | TarImage


@dataclass(frozen=True, slots=True)
class DataSource:
    """Files of captioned images; `images` are folders, or Parquet files of images by `file_name`.

    By default `format` is detected from the file.
    """

    rows: tuple[str, ...]
    images: tuple[str, ...] = ()
    format: str | None = None

    def __post_init__(self) -> None:
        if not self.rows:
            raise InputError("expected at least one file of captioned images, got none")
        if self.format is not None and self.format not in FORMATS:
            raise unknown_name("data format", self.format, FORMATS)


@dataclass(frozen=True, slots=True)
class TrainingPair:
    """One image with all its captions, and annotations if the data has them."""

    image: ImageRef
    captions: tuple[str, ...]
    negatives: tuple[str, ...] = ()  # hard ones, wrong on purpose
    machine: tuple[str, ...] = ()  # captions by a model: likely, not certain
    objects: tuple[str, ...] | None = None  # names of annotated classes; None: not annotated
    name: str = ""  # of the image, as in its row
    times: int = 1  # how often an epoch of resident training shows it


_Row = TrainingPair | str  # a pair, or why a row has none
_Find = Callable[[str], ImageRef]


@dataclass(frozen=True, slots=True)
class Pairs:
    """All pairs of an input; `blocks[i]` numbers the shard or row group of pair i."""

    items: tuple[TrainingPair, ...]
    blocks: npt.NDArray[np.int64]
    fingerprint: str
    skipped: int = 0
    reasons: tuple[str, ...] = ()  # of the first skipped rows

    def __len__(self) -> int:
        return len(self.items)

    def take(self, numbers: Sequence[int]) -> "Pairs":
        """Return the pairs with these indices, with a new fingerprint."""
        items = tuple(self.items[number] for number in numbers)
        blocks = self.blocks[np.array(numbers, dtype=np.int64)]
        return Pairs(items, blocks, _fingerprint(items), self.skipped, self.reasons)


def open_pairs(source: DataSource) -> Pairs:
    """Index all pairs of all files without opening an image.

    Raises:
        InputError: If a file is missing or of an unknown format, or there is no pair.
    """
    return collect(_read(source), source=", ".join(source.rows))


def collect(rows: Iterable[_Row], *, source: str) -> Pairs:
    """Merge rows of the same image into one pair, so that no caption is a negative of its image.

    Raises:
        InputError: If there is no pair.
    """
    merged: dict[ImageRef, TrainingPair] = {}
    reasons: list[str] = []
    skipped = 0
    for row in rows:
        if isinstance(row, str):
            skipped += 1
            reasons += [row] if skipped <= _REASONS else []
        else:
            merged[row.image] = _merge(merged[row.image], row) if row.image in merged else row
    if not merged:
        why = f"; first error: {reasons[0]}" if reasons else ""
        raise InputError(f"{source}: no image with a caption among {skipped} rows{why}")
    items = tuple(merged.values())
    numbers, blocks = dict[object, int](), list[int]()
    for image in merged:
        stored = (image.file, image.group) if isinstance(image, StoredImage) else image
        block = image.path if isinstance(image, TarImage) else stored
        blocks.append(numbers.setdefault(block, len(numbers)))
    return Pairs(items, np.array(blocks, dtype=np.int64), _fingerprint(items), skipped, tuple(reasons))


def image_content(image: ImageRef) -> Path | bytes:
    """Return the path of an image file, or the bytes of an image in a table or a shard.

    Raises:
        ImageError: If there are no bytes.
    """
    return image if isinstance(image, Path) else image.read()


def image_name(image: ImageRef) -> str:
    """Return a name of an image that does not depend on its folder."""
    if isinstance(image, StoredImage):
        return f"{image.file.name}:{image.row}"
    return f"{image.path.name}:{image.offset}" if isinstance(image, TarImage) else image.name


def _merge(first: TrainingPair, second: TrainingPair) -> TrainingPair:
    both: dict[str, Any] = {
        name: tuple(dict.fromkeys((*(getattr(first, name) or ()), *(getattr(second, name) or ()))))
        for name in ("captions", "negatives", "machine", "objects")
    }
    if first.objects is None and second.objects is None:
        both["objects"] = None
    return replace(first, **both, name=first.name or second.name, times=max(first.times, second.times))


def _fingerprint(items: Sequence[TrainingPair]) -> str:
    """Return a hash of names and captions in order, independent of folders."""
    digest = blake2b(digest_size=16)
    for item in items:
        name = item.name or image_name(item.image)
        for text in (name, *item.captions, *item.negatives, *item.machine, *(item.objects or ())):
            digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
    return digest.hexdigest()


def _read(source: DataSource) -> Iterator[_Row]:
    readers = {"llava": _read_llava, "coco": _read_coco, "rows": _read_rows, "table": _read_table}
    for rows in source.rows:
        paths = [Path(name) for name in expand(rows)]
        if not paths or not paths[0].exists():
            raise InputError(f"{rows}: no such file")
        kind = source.format or _detect(paths[0])
        for path in paths:
            if kind == "shards":
                yield from _read_shard(path)
            else:
                find = _image_finder([Path(name) for name in source.images], default=path.parent)
                yield from readers[kind](path, find)


def _detect(path: Path) -> str:
    """Return the format of a file, by its suffix and, for JSON, by its beginning."""
    ending = path.suffix.lower()
    if ending != ".json":
        return {".tar": "shards", ".parquet": "table"}.get(ending, "rows")
    with path.open(encoding="utf-8-sig") as file:
        head = file.read(1 << 16).lstrip()
    if head.startswith("[") and '"conversations"' in head:
        return "llava"
    return "coco" if head.startswith("{") and {"images", "annotations"} <= set(_document(path)) else "rows"


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid JSON ({error})") from error
    return document if isinstance(document, dict) else {}


def _image_finder(sources: Sequence[Path], *, default: Path) -> _Find:
    """Look images up by the name in a row: in Parquet files of images, in folders, and next to the rows."""
    folders = [path for path in sources if path.is_dir()] or [default]
    stored: dict[str, StoredImage] = {}
    for path in sources:
        if path.suffix == ".parquet":
            with pq.ParquetFile(path) as file:
                if not {"file_name", "image"} <= set(file.schema_arrow.names):
                    raise InputError(f"{path}: a table of images needs the columns file_name and image")
                names = file.read(columns=["file_name"])["file_name"].to_pylist()
            stored.update((name, StoredImage(str(name), path, row)) for row, name in enumerate(names))
        elif not path.is_dir():
            raise InputError(f"{path}: no such folder or Parquet file of images")

    def find(name: str) -> ImageRef:
        if name in stored:
            return stored[name]
        existing = (folder / name for folder in folders[:-1] if (folder / name).is_file())
        return next(existing, folders[-1] / name)

    return find


def _read_llava(path: Path, find: _Find) -> Iterator[_Row]:
    """`chat.json` of CC3M-595K: the first answer of each conversation is the caption."""
    with ExitStack() as stack:
        for record in open_records(path, format="json", until=stack).read():
            values = record.values
            turns = values.get("conversations")
            if record.error or not isinstance(values.get("image"), str) or not isinstance(turns, list):
                yield record.error or f"{path.name}: an entry without image or conversations"
                continue
            answers = [turn.get("value") for turn in turns if isinstance(turn, dict) and turn.get("from") == "gpt"]
            yield _pair(find(values["image"]), {"captions": list(map(str, answers[:1]))})


def _read_coco(path: Path, find: _Find) -> Iterator[_Row]:
    """COCO captions: `images` with file names, `annotations` with captions."""
    document = _document(path)
    captions: dict[Any, list[Any]] = defaultdict(list)
    for note in document["annotations"]:
        captions[note.get("image_id")].append(note.get("caption"))
    for image in document["images"]:
        name = image.get("file_name")
        if not isinstance(name, str):
            yield f"{path.name}: image {image.get('id')} has no file_name"
        else:
            yield _pair(find(name), {"captions": captions[image.get("id")]})


def _read_rows(path: Path, find: _Find) -> Iterator[_Row]:
    """JSON lines, a JSON list, CSV or TSV with an image's name and one or more captions per row."""
    with ExitStack() as stack:
        for record in open_records(path, format=None, until=stack).read():
            yield f"{path.name}: {record.error}" if record.error else _named_pair(record.values, find, path)


def _read_table(path: Path, find: _Find) -> Iterator[_Row]:
    """Parquet with images inside, or with their names; images are not read here."""
    with pq.ParquetFile(path) as file:
        names = file.schema_arrow.names
        image = next((name for name in IMAGE_NAMES if name in names), None)
        inside = image is not None and not pa.types.is_string(file.schema_arrow.field(image).type)
        known = (*CAPTIONS, *NEGATIVES, *MACHINE, OBJECTS, TIMES)
        columns = [name for name in names if name in known or (name == image and not inside)]
        groups = (file.read_row_group(group, columns=columns) for group in range(file.metadata.num_row_groups))
        for row, values in enumerate(values for group in groups for values in group.to_pylist()):
            if inside:
                yield _pair(StoredImage(f"row {row}", path, row, str(image)), values)
            else:
                yield _named_pair(values, find, path)


def _read_shard(path: Path) -> Iterator[_Row]:
    """A WebDataset shard: files with the same key before the first dot are one pair."""
    for sample in read_samples(path, ("txt", "caption", "json")):
        if sample.error is not None or sample.image is None:
            yield sample.error or f"{path.name}: {sample.key} has no image"
            continue
        captions: list[Any] = []
        for ending, text in sample.texts:
            values: Any = text
            with suppress(ValueError):  # a damaged document has no caption
                values = json.loads(text) if ending == "json" else {"captions": text}
            captions += _listed(values, CAPTIONS) if isinstance(values, dict) else []
        yield _pair(sample.image, {"captions": captions})


def _named_pair(values: Mapping[str, Any], find: _Find, source: Path) -> _Row:
    name = next((values[name] for name in IMAGE_NAMES if isinstance(values.get(name), str)), None)
    if not name:
        return f"{source.name}: a row without an image; expected one of {', '.join(IMAGE_NAMES)}"
    return _pair(find(name), values, name)


def _pair(image: ImageRef, values: Mapping[str, Any], name: str = "") -> _Row:
    """Return the pair of a row without blank texts, or why it has no caption."""
    captions, negatives, machine = (
        tuple(text.strip() for text in _listed(values, names) if isinstance(text, str) and text.strip())
        for names in (CAPTIONS, NEGATIVES, MACHINE)
    )
    if not captions:
        return f"{image_name(image)}: no caption"
    times, objects = values.get(TIMES), values.get(OBJECTS)
    if not isinstance(times, int) or isinstance(times, bool) or times < 1:
        times = 1
    # Anything but a list of names (boxes, for one) counts as not annotated.
    annotated = isinstance(objects, list) and all(isinstance(each, str) for each in objects)
    classes = (each.strip().lower() for each in objects or () if each.strip()) if annotated else ()
    known = tuple(dict.fromkeys(classes)) if annotated else None
    return TrainingPair(image, captions, negatives, machine, known, name, times)


def _listed(values: Mapping[str, Any], names: Sequence[str]) -> list[Any]:
    """Return the first of these columns as a list of texts; COCO-like sentences are objects with a `raw` text."""
    value = next((values[name] for name in names if name in values), None)
    items = value if isinstance(value, list) else [] if value is None else [value]
    return [item.get("raw") if isinstance(item, dict) else item for item in items]
