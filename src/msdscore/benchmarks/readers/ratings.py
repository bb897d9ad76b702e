"""Benchmarks of single captions that people rated: Flickr8k, Composite, THumB, and captions with marked inventions."""

import csv
import io
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msdscore.benchmarks.base import Image, ItemSet, Note, Rated, Scale, noted
from msdscore.benchmarks.readers import files
from msdscore.benchmarks.readers.files import Record, all_tidy, rating, records, tidy
from msdscore.benchmarks.readers.rows import find_rows, read_lines
from msdscore.errors import InputError

EXPERTS = 3
_GET_FLICKR8K = "Flickr8k_text.zip of the Flickr8k release, or flickr8k/ as made by jmhessel/clipscore"
_FLICKR8K_FOLDERS = ("Flicker8k_Dataset", "Flickr8k_Dataset", "Images", "images")


def read_flickr8k_expert(root: Path) -> ItemSet[Rated]:
    """Expert ratings from the text files or the JSON form.

    A caption that is one of the image's own is left out, the rule of the SPICE paper. Ratings of one
    caption stay apart: the official figure counts each of the three.
    """
    return _flickr8k(root, "ExpertAnnotations.txt", _expert_from_text, "flickr8k.json", judges=EXPERTS)


def read_flickr8k_crowd(root: Path) -> ItemSet[Rated]:
    """Crowd ratings (the share of yes votes) from the text files or the JSON form; own captions stay."""
    return _flickr8k(root, "CrowdFlowerAnnotations.txt", _crowd_from_text, "crowdflower_flickr8k.json", judges=1)


def _flickr8k(
    root: Path, raw: str, from_text: Callable[[Path, Path], ItemSet[Rated]], packed: str, *, judges: int
) -> ItemSet[Rated]:
    if path := files.find_optional(root, raw, f"Flickr8k_text/{raw}"):
        return from_text(root, path)
    if path := files.find_optional(root, packed, f"flickr8k/{packed}"):
        return ItemSet(tuple(_flickr8k_json(root, path, judges=judges)))
    raise files.missing(root, raw, packed, get=_GET_FLICKR8K)


def read_tokens(path: Path) -> tuple[dict[str, str], dict[str, list[str]]]:
    """A token file (`image.jpg#k⇥caption`): caption by id, and the captions of each image by its stem."""
    by_id: dict[str, str] = {}
    by_image: dict[str, list[str]] = defaultdict(list)
    for key, caption in files.read_tsv(path, 2):
        by_id[key] = caption
        by_image[stem(key)].append(caption)
    return by_id, by_image


def stem(name: str) -> str:
    """An image's name without folder, caption number and suffix: lists have `.jpg`, or not, or `.jpg.1`.

    >>> stem("Flicker8k_Dataset/12_ab.jpg.1#0")
    '12_ab'
    """
    return name.rsplit("/", 1)[-1].split("#")[0].split(".")[0]


def _expert_from_text(root: Path, raw: Path) -> ItemSet[Rated]:
    by_id, by_image = _tokens(raw)
    images, seen, own = files.folder(root, *_FLICKR8K_FOLDERS), Counter[str](), 0
    items = []
    for image, caption_id, *ratings in files.read_tsv(raw, 2 + EXPERTS):
        caption, references = _caption(by_id, caption_id, raw), by_image[stem(image)]
        if caption in references:
            own += 1
            continue
        key = f"{stem(image)}:{seen[stem(image)]}"
        seen[stem(image)] += 1
        judged = tuple(rating(given, where=f"{raw} {image}") for given in ratings)
        items.append(Rated(key, images / f"{stem(image)}.jpg", tidy(caption), judged, all_tidy(references)))
    return ItemSet(tuple(items), noted({"pairs left out: the caption is one of the image's own": own}))


def _crowd_from_text(root: Path, raw: Path) -> ItemSet[Rated]:
    by_id, by_image = _tokens(raw)
    images = files.folder(root, *_FLICKR8K_FOLDERS)
    rows = [
        (stem(image), _caption(by_id, key, raw), rating(yes, where=f"{raw} {image}"))
        for image, key, yes, _, _ in files.read_tsv(raw, 5)
    ]
    # A rated own caption leaves the references of all captions of its image, once for each rating.
    for image, caption, _ in rows:
        if caption in by_image[image]:
            by_image[image].remove(caption)
    seen: Counter[str] = Counter()
    items = []
    for image, caption, yes in rows:
        references = all_tidy(by_image[image])
        items.append(Rated(f"{image}:{seen[image]}", images / f"{image}.jpg", tidy(caption), (yes,), references))
        seen[image] += 1
    return ItemSet(tuple(items))


def _flickr8k_json(root: Path, path: Path, *, judges: int) -> list[Rated]:
    images = files.folder(root, *_FLICKR8K_FOLDERS)
    items = []
    for row in records(files.read_json(path), path):
        judged = [Record("", judgement, row.where) for judgement in row.get("human_judgement")]
        if len(judged) % judges:
            raise InputError(f"{row.where}: expected {judges} ratings per caption, got {len(judged)} ratings in all")
        key = stem(str(row.fields.get("image_path") or row.key))
        references = all_tidy(row.fields.get("ground_truth"))
        for k in range(len(judged) // judges):
            mine = judged[k * judges : (k + 1) * judges]
            captions = {tidy(judgement.get("caption")) for judgement in mine}
            if len(captions) != 1:
                raise InputError(f"{row.where}: expected {judges} ratings in a row for one caption, got {captions}")
            ratings = tuple(rating(judgement.get("rating"), where=row.where) for judgement in mine)
            items.append(Rated(f"{key}:{k}", images / f"{key}.jpg", captions.pop(), ratings, references))
    return items


def _tokens(raw: Path) -> tuple[dict[str, str], dict[str, list[str]]]:
    return read_tokens(files.find(raw.parent, "Flickr8k.token.txt", get=_GET_FLICKR8K))


def _caption(by_id: dict[str, str], key: str, path: Path) -> str:
    if key not in by_id:
        raise InputError(f"{path}: the caption {key} is not in Flickr8k.token.txt beside it")
    return by_id[key]


_GET_COMPOSITE = "https://imagesdg.wordpress.com (AMT exports of Composite), or composite.json of FLEUR"
_COMPOSITE_FILES = {"flickr8k": "8k", "flickr30k": "30k", "coco": "coco"}
_COMPOSITE_FOLDERS = {
    "flickr8k": ("Flicker8k_Dataset", "Flickr8k_Dataset", "flickr8k"),
    "flickr30k": ("flickr30k-images", "flickr30k_images", "flickr30k"),
    "coco": ("val2014", "coco/val2014"),
}
_MOST_TEXTS = 4


def read_composite(root: Path) -> ItemSet[Rated]:
    """The ratings of `composite.json`, or of the three `…_correctness.csv` exports (separator ;).

    References are read where their files lie beside it; the rated caption itself is never among them.
    """
    packed = files.find_optional(root, "composite.json")
    counted = _composite_json(packed) if packed else _composite_exports(root)
    references, seen, items = _composite_references(root), Counter[str](), []
    for source, image, caption, human in counted[0]:
        key = f"{source}/{stem(image)}"
        name = image if Path(image).suffix else f"{image}.jpg"
        others = tuple(r for r in references.get(key, ()) if r != caption)
        source_path = files.folder(root, *_COMPOSITE_FOLDERS[source]) / Path(name).name
        items.append(Rated(f"{key}:{seen[key]}", source_path, caption, (human,), others, subset=source))
        seen[key] += 1
    return ItemSet(tuple(items), counted[1])


_CompositeRow = tuple[str, str, str, float]


def _composite_json(path: Path) -> tuple[list[_CompositeRow], tuple[Note, ...]]:
    rows = []
    for source, entries in files.read_json(path).items():
        if source not in _COMPOSITE_FILES:
            raise InputError(f"{path}: expected the sources {', '.join(_COMPOSITE_FILES)}, got {source!r}")
        for row in records(entries, f"{path} {source}"):
            human = rating(row.get("human"), where=row.where)
            rows.append((source, str(row.get("image")), tidy(row.get("caption")), human))
    return rows, ()


def _composite_exports(root: Path) -> tuple[list[_CompositeRow], tuple[Note, ...]]:
    rows: list[_CompositeRow] = []
    unusable = 0
    for source, short in _COMPOSITE_FILES.items():
        path = files.find(root, f"{short}_correctness.csv", f"AMT_eval/{short}_correctness.csv", get=_GET_COMPOSITE)
        for record in csv.DictReader(io.StringIO(_text(path), newline=""), delimiter=";"):
            rated = _answers(record)
            # The exports end in rows without an image.
            image = str(record.get("Input.image_url") or "").rsplit("/", 1)[-1]
            unusable += not (rated and image)
            rows += [(source, image, caption, given) for caption, given in rated if image]
    return rows, noted({"export rows left out: no image or no rating": unusable})


def _answers(record: Mapping[str, Any]) -> list[tuple[str, float]]:
    rated = []
    for k in range(1, _MOST_TEXTS + 1):
        caption, answer = record.get(f"Input.text{k}"), str(record.get(f"Answer.Q{k}Answer") or "").strip()
        if caption and answer.replace(".", "", 1).isdigit():
            rated.append((tidy(caption), float(answer)))
    return rated


def _text(path: Path) -> str:
    data = path.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("cp1252", errors="replace")  # the encoding of spreadsheet exports


def _composite_references(root: Path) -> dict[str, tuple[str, ...]]:
    references: dict[str, tuple[str, ...]] = {}
    for source, name in (("flickr8k", "Flickr8k.token.txt"), ("flickr30k", "results_20130124.token")):
        path = files.find_optional(root, name, f"*/{name}")
        if path is not None:
            for image, captions in read_tokens(path)[1].items():
                references[f"{source}/{image}"] = all_tidy(captions)
    for image_id, captions in files.coco_captions(root).items():
        references[f"coco/COCO_val2014_{image_id:012d}"] = tuple(captions)
    return references


_GET_THUMB = "https://github.com/jungokasai/THumB (mscoco/mscoco_THumB-1.0.jsonl)"
HUMAN = "Human"
_THUMB_FOLDERS = ("val2014", "coco/val2014", "images/val2014", "images")
_PENALTIES = (("Fl", "fluency"), ("Con", "conciseness"), ("Inc", "inclusive"))


def read_thumb(root: Path) -> ItemSet[Rated]:
    """The released file; references where `mscoco_references.json` lies beside it."""
    path = files.find(root, "mscoco_THumB-1.0.jsonl", "mscoco/mscoco_THumB-1.0.jsonl", get=_GET_THUMB)
    references = _thumb_references(files.find_optional(path.parent, "mscoco_references.json*"))
    items = []
    for row in records(files.read_jsonl(path), path, first=1):
        segment, image = str(row.get("seg_id")), files.locate(root, str(row.get("image")), *_THUMB_FOLDERS)
        key = f"{segment}/{row.get('SYS', 'system')}"
        items.append(_thumb_rated(key, image, row, references.get(segment, ())))
    return ItemSet(tuple(items))


def _thumb_references(path: Path | None) -> dict[str, tuple[str, ...]]:
    """References by `seg_id`. The released file is JSON Lines despite its name."""
    rows = () if path is None else records(files.read_jsonl(path), path, first=1)
    return {str(row.get("seg_id")): all_tidy(row.get("refs")) for row in rows}


def read_thumb_rows(path: Path) -> ItemSet[Rated]:
    """The rows form, with `system`, `precision`, `recall`, penalties and `human`."""
    if path.name.startswith("mscoco_THumB"):  # the released file is JSON Lines too
        return read_thumb(path.parent)
    return ItemSet(tuple(_thumb_rated(line.key, line.image, line, line.references) for line in read_lines(path)))


def _thumb_rated(key: str, image: Image, row: Record, references: tuple[str, ...]) -> Rated:
    fields, scales = row.fields, (row.get("P", "precision"), row.get("R", "recall"))
    precision, recall = (rating(scale, where=row.where) for scale in scales)
    penalties = sum(rating(fields.get(short, fields.get(name, 0.0)), where=row.where) for short, name in _PENALTIES)
    total = fields.get("human_score", fields.get("human", (precision + recall) / 2 + penalties))
    named = (Scale("precision", precision), Scale("recall", recall))
    caption, system = tidy(row.get("hyp", "caption")), str(row.get("SYS", "system"))
    return Rated(key, image, caption, (rating(total, where=row.where),), references, system=system, scales=named)


_GET_HAT = "https://github.com/DavidMChan/aloha (data/hat-trainval.json)"
_GET_LONG = "your captioner and CHAIR (https://github.com/LisaAnne/Hallucination)"
_CLEAN, _INVENTS = 1.0, 0.0
_HAT_FOLDERS = ("val2014", "train2014", "coco/val2014", "coco/train2014", "images")


@dataclass(frozen=True, slots=True)
class MarkedCaption:
    """A caption whose inventions are known: words split at spaces (HAT), or object classes by name (CHAIR).

    `words` holds (word, invented); `present` and `absent` are object classes that the caption names.
    """

    id: str
    image: Image
    caption: str
    words: tuple[tuple[str, bool], ...] = ()
    present: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    references: tuple[str, ...] = ()


def read_hat(root: Path) -> ItemSet[Rated]:
    """HAT: captions of COCO images, rated 1 where no word is invented and 0 where one is; none without marks."""
    captions = read_hat_words(root)
    items = []
    for marked in captions:
        if marked.words:
            human = _INVENTS if any(invented for _, invented in marked.words) else _CLEAN
            items.append(Rated(marked.id, marked.image, tidy(marked.caption), (human,), marked.references))
    return ItemSet(tuple(items), noted({"captions left out: no word is marked": len(captions) - len(items)}))


def read_long(root: Path) -> ItemSet[Rated]:
    """Long captions of several systems, rated 1 where no named object is absent and 0 where one is."""
    return read_long_rows(_long_file(root))


def read_long_rows(path: Path) -> ItemSet[Rated]:
    """The same from a rows file with `hallucinated` and `objects`."""
    return ItemSet(tuple(
        Rated(line.key, line.image, tidy(line.get("caption")), (_INVENTS if line.get("hallucinated") else _CLEAN,),
              line.references, line.subset, str(line.fields.get("system", "")))
        for line in read_lines(path)
    ))  # fmt: skip


def read_hat_words(root: Path) -> list[MarkedCaption]:
    """HAT's captions with the words that people marked."""
    path = files.find(root, "hat-trainval.json", "data/hat-trainval.json", "*hat*.json", get=_GET_HAT)
    captions = []
    for row in records(files.read_json(path, list), path):
        words = tuple((str(word), bool(invented)) for word, invented in row.get("grounding"))
        image, key = files.locate(root, str(row.get("image_path")), *_HAT_FOLDERS), row.fields.get("sample_id", row.key)
        references = all_tidy(row.fields.get("references"))
        captions.append(MarkedCaption(f"{key}:{row.key}", image, str(row.get("caption")), words, references=references))
    return captions


def read_long_words(root: Path) -> list[MarkedCaption]:
    """Long captions with the objects that they name, present and absent."""
    captions = []
    for line in read_lines(_long_file(root)):
        absent = tuple(map(str, line.get("hallucinated")))
        present = tuple(name for name in map(str, line.get("objects")) if name not in absent)
        captions.append(MarkedCaption(line.key, line.image, str(line.get("caption")), present=present, absent=absent))
    return captions


def _long_file(root: Path) -> Path:
    path = find_rows(root, "long")
    if path is None:
        raise files.missing(root, "long.jsonl", get=_GET_LONG)
    return path
