"""Read annotated images with captions: COCO files or rows."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from msdscore.errors import InputError
from msdscore_lab.benchmarks.readers.files import RawRow, read_json, read_jsonl, records, tidy

PEOPLE = "people"  # the source of captions without a captioner
_MACHINE = "machine"
_ERROR = "ERROR:"


@dataclass(frozen=True, slots=True)
class SourcedCaption:
    """A caption and its captioner."""

    text: str
    source: str


@dataclass(frozen=True, slots=True)
class AnnotatedImage:
    """An image with all its captions and the classes of objects in it; None if it is not annotated."""

    name: str  # file name
    captions: tuple[SourcedCaption, ...]
    objects: frozenset[str] | None = None


def image_number(name: str) -> int | str:
    """Return the COCO image id in a file name, or the name without suffix."""
    digits = Path(name).stem.rpartition("_")[2]
    return int(digits) if digits.isdigit() else Path(name).stem


def read_sources(
    captions: Sequence[str | Path], *, objects: Path | None = None, classes: Path | None = None
) -> list[AnnotatedImage]:
    """Read images of caption files, joined with annotations by the image's name; sorted by name.

    A caption file is COCO's (`captions_*.json`), rows (`.jsonl` with `captions`, `caption`, `machine` or `objects`), or
    a map from file names to captions; NAME=FILE names the captioner. `objects` is `instances_*.json`, or rows
    with `objects` (names, or boxes that begin with a class index). Class indices are lines of `classes`, by default
    COCO's 80 classes in their order.
    """
    images: dict[str, AnnotatedImage] = {}
    for entry in map(str, captions):
        source, equals, path = entry.partition("=")
        has_name = bool(equals) and not Path(entry).exists()
        for image in _read_captions(source if has_name else "", Path(path if has_name else entry)):
            images[image.name] = _merge(images[image.name], image) if image.name in images else image
    if objects is not None:
        objects_by_stem = read_objects(objects, classes)
        images = {
            name: replace(captioned, objects=objects_by_stem.get(Path(name).stem, captioned.objects))
            for name, captioned in images.items()
        }
    if not images:
        raise InputError("expected captions of images, got none; pass caption files")
    return [images[name] for name in sorted(images)]


def read_objects(path: Path, classes: Path | None = None) -> dict[str, frozenset[str]]:
    """Return the names of the classes in each image, by the stem of its file name."""
    names = _class_names(classes)
    if path.suffix == ".json":
        return _instances(read_json(path), path)
    return {
        Path(str(row.fields["image"])).stem: shown
        for row in records(read_jsonl(path), path, first=1)
        if (shown := _row_objects(row, names)) is not None
    }


def _read_captions(source: str, path: Path) -> Iterable[AnnotatedImage]:
    if not path.is_file():
        raise InputError(f"{path}: no such file of captions")
    if path.suffix == ".jsonl":
        return (_row(row, source) for row in records(read_jsonl(path), path, first=1))
    content = read_json(path, (dict, list))
    if isinstance(content, list):
        return (_row(row, source) for row in records(content, path))
    if "annotations" in content and "images" in content:
        texts: dict[int, list[SourcedCaption]] = defaultdict(list)
        for entry in content["annotations"]:
            texts[entry["image_id"]].append(SourcedCaption(tidy(entry["caption"]), source or PEOPLE))
        return [AnnotatedImage(str(entry["file_name"]), tuple(texts[entry["id"]])) for entry in content["images"]]
    return (
        AnnotatedImage(str(name), (SourcedCaption(tidy(text), source or path.stem),))
        for name, text in content.items()
        if not str(text).startswith(_ERROR) and tidy(text)
    )


def _row(record: RawRow, source: str) -> AnnotatedImage:
    """Read one row; captions marked as `hallucinated` are ignored."""
    row, name = record.fields, Path(str(record.get("image", "image_path", "file_name"))).name
    texts = [SourcedCaption(tidy(text), source or PEOPLE) for text in row.get("captions") or ()]
    texts += [SourcedCaption(tidy(text), source or _MACHINE) for text in row.get(_MACHINE) or ()]
    single = row.get("caption")
    if single and not str(single).startswith(_ERROR) and not row.get("error") and not row.get("hallucinated"):
        texts.append(SourcedCaption(tidy(single), source or str(row.get("system") or PEOPLE)))
    return AnnotatedImage(name, tuple(texts), _row_objects(record, _class_names(None)))


def _row_objects(row: RawRow, names: Sequence[str]) -> frozenset[str] | None:
    objects = row.fields.get("objects")
    if objects is None:
        return None
    if all(isinstance(entry, str) for entry in objects):
        return frozenset(objects)
    try:
        indices = [int(entry[0]) for entry in objects]
    except (TypeError, ValueError, IndexError, KeyError) as error:
        raise InputError(f"{row.where}: expected objects as names, or as [class, x, y, width, height]") from error
    if max(indices, default=0) >= len(names):
        raise InputError(f"{row.where}: a class index exceeds the {len(names)} class names; pass them as --classes")
    return frozenset(names[index] for index in indices)


def _instances(content: Mapping[str, Any], path: Path) -> dict[str, frozenset[str]]:
    try:
        names = {entry["id"]: str(entry["name"]) for entry in content["categories"]}
        files = {entry["id"]: Path(entry["file_name"]).stem for entry in content["images"]}
        objects_by_stem: dict[str, set[str]] = {key: set() for key in files.values()}
        for entry in content["annotations"]:
            objects_by_stem[files[entry["image_id"]]].add(names[entry["category_id"]])
    except (KeyError, TypeError) as error:
        raise InputError(f"{path}: expected COCO's instances with images, annotations and categories") from error
    return {key: frozenset(class_names) for key, class_names in objects_by_stem.items()}


def _class_names(path: Path | None) -> tuple[str, ...]:
    from msdscore_lab.cococf.vocabulary import vocabulary

    if path is None:
        return tuple(vocabulary().objects)
    if not path.is_file():
        raise InputError(f"{path}: no such file of class names, one line each")
    return tuple(line.strip() for line in path.read_text("utf-8").splitlines() if line.strip())


def _merge(first: AnnotatedImage, second: AnnotatedImage) -> AnnotatedImage:
    objects = second.objects if first.objects is None else first.objects | (second.objects or frozenset())
    return AnnotatedImage(first.name, tuple(dict.fromkeys((*first.captions, *second.captions))), objects)
