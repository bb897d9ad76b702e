"""Readers of benchmarks with rated captions: Flickr8k, Composite, THumB, and captions with marked hallucinations."""

import csv
import io
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

from msdscore.errors import InputError
from msdscore_lab.benchmarks.base import Image, ItemSet, Rated
from msdscore_lab.benchmarks.readers import files
from msdscore_lab.benchmarks.readers.files import RawRow, all_tidy, numbered, rating, records, tidy
from msdscore_lab.benchmarks.readers.rows import find_rows, read_items

_GET_FLICKR8K = "Flickr8k_text.zip of the Flickr8k release, or flickr8k/ as created by jmhessel/clipscore"
_FLICKR8K_FOLDERS = ("Flicker8k_Dataset", "Flickr8k_Dataset", "Images", "images")
_Judged = tuple[str, str, tuple[float, ...], tuple[str, ...]]  # image, caption, its ratings, references


def read_flickr8k_expert(root: Path) -> ItemSet[Rated]:
    """Read expert ratings from the text files or the JSON form.

    Captions written for the image are excluded, the rule of the SPICE paper. The three ratings of a caption are not
    averaged: the official figure counts each of them.
    """
    return _flickr8k(root, "ExpertAnnotations.txt", "flickr8k.json", judges=3)


def read_flickr8k_crowd(root: Path) -> ItemSet[Rated]:
    """Read crowd ratings, the share of yes votes, including those of captions that were written for the image."""
    return _flickr8k(root, "CrowdFlowerAnnotations.txt", "crowdflower_flickr8k.json", judges=1)


def _flickr8k(root: Path, raw: str, packed: str, *, judges: int) -> ItemSet[Rated]:
    excluded = 0
    if path := files.find_optional(root, raw, f"Flickr8k_text/{raw}"):
        rows, excluded = _flickr8k_text(path, judges=judges)
    elif path := files.find_optional(root, packed, f"flickr8k/{packed}"):
        rows = _flickr8k_json(path, judges=judges)
    else:
        raise files.missing_error(root, raw, packed, get=_GET_FLICKR8K)
    images, seen = files.folder(root, *_FLICKR8K_FOLDERS), Counter[str]()
    items = [
        Rated(numbered(image, seen), images / f"{image}.jpg", caption, ratings, references)
        for image, caption, ratings, references in rows
    ]
    return ItemSet(tuple(items), {"pairs left out: the caption is one of the image's own": excluded})


def _flickr8k_text(path: Path, *, judges: int) -> tuple[list[_Judged], int]:
    """Return the rows of an annotation file next to `Flickr8k.token.txt`, and the number of excluded rows."""
    by_id, by_image = _read_tokens(files.find(path.parent, "Flickr8k.token.txt", get=_GET_FLICKR8K))
    rows = []
    for name, key, *cells in files.read_tsv(path, 5):
        if key not in by_id:
            raise InputError(f"{path}: the caption {key} is not in Flickr8k.token.txt next to it")
        ratings = tuple(rating(cell, where=f"{path} {name}") for cell in cells[:judges])
        rows.append((_stem(name), by_id[key], ratings))
    included = rows
    if judges > 1:
        included = [row for row in rows if row[1] not in by_image[row[0]]]
    else:
        # A rated caption that was written for its image is removed from the references, once per rating.
        for image, caption, _ in rows:
            if caption in by_image[image]:
                by_image[image].remove(caption)
    judged = [(image, tidy(caption), ratings, all_tidy(by_image[image])) for image, caption, ratings in included]
    return judged, len(rows) - len(included)


def _flickr8k_json(path: Path, *, judges: int) -> list[_Judged]:
    rows = []
    for row in records(files.read_json(path), path):
        judgements = [RawRow("", judgement, row.where) for judgement in row.get("human_judgement")]
        if len(judgements) % judges:
            raise InputError(
                f"{row.where}: expected {judges} ratings per caption, got {len(judgements)} ratings in all"
            )
        image, references = _stem(str(row.fields.get("image_path") or row.key)), row.fields.get("ground_truth")
        for start in range(0, len(judgements), judges):
            caption_judgements = judgements[start : start + judges]
            captions = {tidy(judgement.get("caption")) for judgement in caption_judgements}
            if len(captions) != 1:
                raise InputError(f"{row.where}: expected {judges} consecutive ratings of one caption, got {captions}")
            ratings = tuple(rating(judgement.get("rating"), where=row.where) for judgement in caption_judgements)
            rows.append((image, captions.pop(), ratings, all_tidy(references)))
    return rows


def _read_tokens(path: Path) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Read a token file (`image.jpg#k⇥caption`): captions by id, and the captions of each image by its stem."""
    by_id: dict[str, str] = {}
    by_image: dict[str, list[str]] = defaultdict(list)
    for key, caption in files.read_tsv(path, 2):
        by_id[key] = caption
        by_image[_stem(key)].append(caption)
    return by_id, by_image


def _stem(name: str) -> str:
    """Return an image's name without folder, caption number and suffix: lists may have `.jpg` or `.jpg.1`.

    >>> _stem("Flicker8k_Dataset/12_ab.jpg.1#0")
    '12_ab'
    """
    return name.rsplit("/", 1)[-1].split("#")[0].split(".")[0]


_GET_COMPOSITE = "https://imagesdg.wordpress.com (AMT exports of Composite), or composite.json of FLEUR"
_COMPOSITE_FILES = {"flickr8k": "8k", "flickr30k": "30k", "coco": "coco"}
_COMPOSITE_FOLDERS = {
    "flickr8k": ("Flicker8k_Dataset", "Flickr8k_Dataset", "flickr8k"),
    "flickr30k": ("flickr30k-images", "flickr30k_images", "flickr30k"),
    "coco": ("val2014", "coco/val2014"),
}
_MAX_CAPTIONS = 4


def read_composite(root: Path) -> ItemSet[Rated]:
    """Read the ratings of `composite.json`, or of the three `…_correctness.csv` exports (separator ;).

    References are read from files next to it, if they exist; they never contain the rated caption.
    """
    packed = files.find_optional(root, "composite.json")
    rows, unusable = (_composite_json(packed), 0) if packed else _composite_exports(root)
    references = {f"coco/COCO_val2014_{image_id:012d}": texts for image_id, texts in files.coco_captions(root).items()}
    for source, name in (("flickr8k", "Flickr8k.token.txt"), ("flickr30k", "results_20130124.token")):
        if path := files.find_optional(root, name, f"*/{name}"):
            references |= {
                f"{source}/{image}": list(map(tidy, texts)) for image, texts in _read_tokens(path)[1].items()
            }
    seen, items = Counter[str](), []
    for source, image, caption, human in rows:
        key = f"{source}/{_stem(image)}"
        name = Path(image if Path(image).suffix else f"{image}.jpg").name
        others = tuple(text for text in references.get(key, ()) if text != caption)
        path = files.folder(root, *_COMPOSITE_FOLDERS[source]) / name
        items.append(Rated(numbered(key, seen), path, caption, (human,), others, subset=source))
    return ItemSet(tuple(items), {"export rows left out: no image or no rating": unusable})


_CompositeRow = tuple[str, str, str, float]  # source, image, caption, rating


def _composite_json(path: Path) -> list[_CompositeRow]:
    rows = []
    for source, entries in files.read_json(path).items():
        if source not in _COMPOSITE_FILES:
            raise InputError(f"{path}: expected the sources {', '.join(_COMPOSITE_FILES)}, got {source!r}")
        for row in records(entries, f"{path} {source}"):
            human = rating(row.get("human"), where=row.where)
            rows.append((source, str(row.get("image")), tidy(row.get("caption")), human))
    return rows


def _composite_exports(root: Path) -> tuple[list[_CompositeRow], int]:
    rows: list[_CompositeRow] = []
    unusable = 0
    for source, short in _COMPOSITE_FILES.items():
        path = files.find(root, f"{short}_correctness.csv", f"AMT_eval/{short}_correctness.csv", get=_GET_COMPOSITE)
        try:
            text = path.read_bytes().decode("utf-8-sig")
        except UnicodeDecodeError:
            text = path.read_bytes().decode("cp1252", errors="replace")  # the encoding of spreadsheet exports
        for record in csv.DictReader(io.StringIO(text, newline=""), delimiter=";"):
            # The exports end in rows without an image.
            image = str(record.get("Input.image_url") or "").rsplit("/", 1)[-1]
            cells = [
                (record.get(f"Input.text{k}"), record.get(f"Answer.Q{k}Answer")) for k in range(1, _MAX_CAPTIONS + 1)
            ]
            answers = [(tidy(caption), str(answer or "").strip()) for caption, answer in cells if caption]
            rated = [(caption, float(value)) for caption, value in answers if value.replace(".", "", 1).isdigit()]
            unusable += not (rated and image)
            rows += [(source, image, caption, value) for caption, value in rated if image]
    return rows, unusable


_GET_THUMB = "https://github.com/jungokasai/THumB (mscoco/mscoco_THumB-1.0.jsonl)"
HUMAN = "Human"
_THUMB_FOLDERS = ("val2014", "coco/val2014", "images/val2014", "images")
_PENALTIES = (("Fl", "fluency"), ("Con", "conciseness"), ("Inc", "inclusive"))


def read_thumb(root: Path) -> ItemSet[Rated]:
    """Read the released file, with references if `mscoco_references.json` is next to it."""
    path = files.find(root, "mscoco_THumB-1.0.jsonl", "mscoco/mscoco_THumB-1.0.jsonl", get=_GET_THUMB)
    references_path = files.find_optional(path.parent, "mscoco_references.json*")  # JSON Lines despite the suffix
    listed = records(files.read_jsonl(references_path), references_path, first=1) if references_path else ()
    references = {str(row.get("seg_id")): all_tidy(row.get("refs")) for row in listed}
    items = []
    for row in records(files.read_jsonl(path), path, first=1):
        segment, image = str(row.get("seg_id")), files.locate(root, str(row.get("image")), *_THUMB_FOLDERS)
        key = f"{segment}/{row.get('SYS', 'system')}"
        items.append(_thumb_rated(key, image, row, references.get(segment, ())))
    return ItemSet(tuple(items))


def read_thumb_rows(path: Path) -> ItemSet[Rated]:
    """Read the rows form, with `system`, `precision`, `recall`, penalties and `human`."""
    if path.name.startswith("mscoco_THumB"):  # the released file is JSON Lines too
        return read_thumb(path.parent)
    rows = read_items(path)
    return ItemSet(tuple(_thumb_rated(item["id"], item["image"], row, item["references"]) for row, item in rows))


def _thumb_rated(key: str, image: Image, row: RawRow, references: tuple[str, ...]) -> Rated:
    fields, scales = row.fields, (row.get("P", "precision"), row.get("R", "recall"))
    precision, recall = (rating(scale, where=row.where) for scale in scales)
    penalties = sum(rating(fields.get(short, fields.get(name, 0.0)), where=row.where) for short, name in _PENALTIES)
    total = fields.get("human_score", fields.get("human", (precision + recall) / 2 + penalties))
    scale_ratings = {"precision": precision, "recall": recall}
    caption, system = tidy(row.get("hyp", "caption")), str(row.get("SYS", "system"))
    return Rated(
        key, image, caption, (rating(total, where=row.where),), references, system=system, scales=scale_ratings
    )


_GET_LONG = "your captioner and CHAIR (https://github.com/LisaAnne/Hallucination)"
_CLEAN, _HALLUCINATED = 1.0, 0.0


@dataclass(frozen=True, slots=True)
class MarkedCaption:
    """A caption with marked hallucinations: object classes (CHAIR) or spans (DocENT).

    `present` and `absent` are object classes that the caption names; `spans` are the character spans of its mistakes,
    None if the data has no spans.
    """

    id: str
    image: Image
    caption: str
    present: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    spans: tuple[tuple[int, int], ...] | None = None


def read_long(root: Path) -> ItemSet[Rated]:
    """Read long captions of several systems, rated 0 if a named object is absent, else 1: a file of rows."""
    items = []
    for row, item in read_items(_long_file(root)):
        ratings, system = (_HALLUCINATED if row.get("hallucinated") else _CLEAN,), str(row.fields.get("system", ""))
        items.append(Rated(caption=tidy(row.get("caption")), ratings=ratings, system=system, **item))
    return ItemSet(tuple(items))


def read_long_words(root: Path) -> list[MarkedCaption]:
    """Read long captions with the objects that they name, present and absent."""
    captions = []
    for row, item in read_items(_long_file(root)):
        absent = tuple(map(str, row.get("hallucinated")))
        present = tuple(name for name in map(str, row.get("objects")) if name not in absent)
        caption = str(row.get("caption"))
        captions.append(MarkedCaption(item["id"], item["image"], caption, present=present, absent=absent))
    return captions


def _long_file(root: Path) -> Path:
    path = find_rows(root, "long")
    if path is None:
        raise files.missing_error(root, "long.jsonl", get=_GET_LONG)
    return path
