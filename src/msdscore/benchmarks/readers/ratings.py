"""Benchmarks of single captions that people rated: Flickr8k, Composite, THumB, and captions with marked inventions."""

import csv
import io
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msdscore.benchmarks.base import Image, ItemSet, Note, Rated, Scale
from msdscore.benchmarks.readers.files import (
    coco_captions,
    field,
    find,
    find_optional,
    folder,
    locate,
    missing,
    rating,
    read_json,
    read_jsonl,
    read_tsv,
    tidy,
)
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
    raw = find_optional(root, "ExpertAnnotations.txt", "Flickr8k_text/ExpertAnnotations.txt")
    if raw is not None:
        return _expert_from_text(root, raw)
    packed = find_optional(root, "flickr8k.json", "flickr8k/flickr8k.json")
    if packed is None:
        raise missing(root, "ExpertAnnotations.txt", "flickr8k.json", get=_GET_FLICKR8K)
    return ItemSet(tuple(_flickr8k_json(root, packed, judges=EXPERTS)))


def read_flickr8k_crowd(root: Path) -> ItemSet[Rated]:
    """Crowd ratings (the share of yes votes) from the text files or the JSON form; own captions stay."""
    raw = find_optional(root, "CrowdFlowerAnnotations.txt", "Flickr8k_text/CrowdFlowerAnnotations.txt")
    if raw is not None:
        return _crowd_from_text(root, raw)
    packed = find_optional(root, "crowdflower_flickr8k.json", "flickr8k/crowdflower_flickr8k.json")
    if packed is None:
        raise missing(root, "CrowdFlowerAnnotations.txt", "crowdflower_flickr8k.json", get=_GET_FLICKR8K)
    return ItemSet(tuple(_flickr8k_json(root, packed, judges=1)))


def read_tokens(path: Path) -> tuple[dict[str, str], dict[str, list[str]]]:
    """A token file (`image.jpg#k⇥caption`): caption by id, and the captions of each image by its stem."""
    by_id: dict[str, str] = {}
    by_image: dict[str, list[str]] = defaultdict(list)
    for key, caption in read_tsv(path, 2):
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
    images, seen, own = folder(root, *_FLICKR8K_FOLDERS), Counter[str](), 0
    items = []
    for image, caption_id, *ratings in read_tsv(raw, 2 + EXPERTS):
        caption, references = _caption(by_id, caption_id, raw), by_image[stem(image)]
        if caption in references:
            own += 1
            continue
        key = f"{stem(image)}:{seen[stem(image)]}"
        seen[stem(image)] += 1
        judged = tuple(rating(given, where=f"{raw} {image}") for given in ratings)
        items.append(Rated(key, images / f"{stem(image)}.jpg", tidy(caption), judged, _tidied(references)))
    return ItemSet(tuple(items), (Note("pairs left out: the caption is one of the image's own", own),) if own else ())


def _crowd_from_text(root: Path, raw: Path) -> ItemSet[Rated]:
    by_id, by_image = _tokens(raw)
    images = folder(root, *_FLICKR8K_FOLDERS)
    rows = [
        (stem(image), _caption(by_id, key, raw), rating(yes, where=f"{raw} {image}"))
        for image, key, yes, _, _ in read_tsv(raw, 5)
    ]
    # A rated own caption leaves the references of all captions of its image, once for each rating.
    for image, caption, _ in rows:
        if caption in by_image[image]:
            by_image[image].remove(caption)
    seen: Counter[str] = Counter()
    items = []
    for image, caption, yes in rows:
        references = _tidied(by_image[image])
        items.append(Rated(f"{image}:{seen[image]}", images / f"{image}.jpg", tidy(caption), (yes,), references))
        seen[image] += 1
    return ItemSet(tuple(items))


def _flickr8k_json(root: Path, path: Path, *, judges: int) -> list[Rated]:
    images = folder(root, *_FLICKR8K_FOLDERS)
    items = []
    for name, entry in read_json(path).items():
        where = f"{path} key {name}"
        judged = field(entry, "human_judgement", where=where)
        if len(judged) % judges:
            raise InputError(f"{where}: expected {judges} ratings per caption, got {len(judged)} ratings in all")
        key = stem(str(entry.get("image_path") or name))
        references = _tidied(entry.get("ground_truth", ()))
        for k in range(len(judged) // judges):
            caption, ratings = _one_judged(judged[k * judges : (k + 1) * judges], where)
            items.append(Rated(f"{key}:{k}", images / f"{key}.jpg", caption, ratings, references))
    return items


def _one_judged(entries: list[dict[str, Any]], where: str) -> tuple[str, tuple[float, ...]]:
    captions = {tidy(field(entry, "caption", where=where)) for entry in entries}
    if len(captions) != 1:
        raise InputError(f"{where}: expected {len(entries)} ratings in a row for one caption, got {captions}")
    return captions.pop(), tuple(rating(field(entry, "rating", where=where), where=where) for entry in entries)


def _tokens(raw: Path) -> tuple[dict[str, str], dict[str, list[str]]]:
    return read_tokens(find(raw.parent, "Flickr8k.token.txt", get=_GET_FLICKR8K))


def _caption(by_id: dict[str, str], key: str, path: Path) -> str:
    if key not in by_id:
        raise InputError(f"{path}: the caption {key} is not in Flickr8k.token.txt beside it")
    return by_id[key]


def _tidied(captions: Iterable[str]) -> tuple[str, ...]:
    return tuple(tidy(caption) for caption in captions)


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
    packed = find_optional(root, "composite.json")
    counted = _composite_json(packed) if packed else _composite_exports(root)
    references, seen, items = _composite_references(root), Counter[str](), []
    for source, image, caption, human in counted[0]:
        key = f"{source}/{stem(image)}"
        name = image if Path(image).suffix else f"{image}.jpg"
        others = tuple(r for r in references.get(key, ()) if r != caption)
        source_path = folder(root, *_COMPOSITE_FOLDERS[source]) / Path(name).name
        items.append(Rated(f"{key}:{seen[key]}", source_path, caption, (human,), others, subset=source))
        seen[key] += 1
    return ItemSet(tuple(items), counted[1])


_CompositeRow = tuple[str, str, str, float]


def _composite_json(path: Path) -> tuple[list[_CompositeRow], tuple[Note, ...]]:
    rows = []
    for source, entries in read_json(path).items():
        if source not in _COMPOSITE_FILES:
            raise InputError(f"{path}: expected the sources {', '.join(_COMPOSITE_FILES)}, got {source!r}")
        for number, entry in enumerate(entries):
            where = f"{path} {source} row {number}"
            image, caption, human = (field(entry, f, where=where) for f in ("image", "caption", "human"))
            rows.append((source, str(image), tidy(caption), rating(human, where=where)))
    return rows, ()


def _composite_exports(root: Path) -> tuple[list[_CompositeRow], tuple[Note, ...]]:
    rows: list[_CompositeRow] = []
    unusable = 0
    for source, short in _COMPOSITE_FILES.items():
        path = find(root, f"{short}_correctness.csv", f"AMT_eval/{short}_correctness.csv", get=_GET_COMPOSITE)
        for record in csv.DictReader(io.StringIO(_text(path), newline=""), delimiter=";"):
            rated = _answers(record)
            # The exports end in rows without an image.
            image = str(record.get("Input.image_url") or "").rsplit("/", 1)[-1]
            unusable += not (rated and image)
            rows += [(source, image, caption, given) for caption, given in rated if image]
    notes = (Note("export rows left out: no image or no rating", unusable),) if unusable else ()
    return rows, notes


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
        path = find_optional(root, name, f"*/{name}")
        if path is not None:
            for image, captions in read_tokens(path)[1].items():
                references[f"{source}/{image}"] = tuple(tidy(caption) for caption in captions)
    for image_id, captions in coco_captions(root).items():
        references[f"coco/COCO_val2014_{image_id:012d}"] = tuple(captions)
    return references


_GET_THUMB = "https://github.com/jungokasai/THumB (mscoco/mscoco_THumB-1.0.jsonl)"
HUMAN = "Human"
_THUMB_FOLDERS = ("val2014", "coco/val2014", "images/val2014", "images")
_PENALTIES = (("Fl", "fluency"), ("Con", "conciseness"), ("Inc", "inclusive"))


def read_thumb(root: Path) -> ItemSet[Rated]:
    """The released file; references where `mscoco_references.json` lies beside it."""
    path = find(root, "mscoco_THumB-1.0.jsonl", "mscoco/mscoco_THumB-1.0.jsonl", get=_GET_THUMB)
    references = _thumb_references(find_optional(path.parent, "mscoco_references.json*"))
    items = []
    for number, row in enumerate(read_jsonl(path), start=1):
        where = f"{path} row {number}"
        image, segment = str(field(row, "image", where=where)), str(field(row, "seg_id", where=where))
        key = f"{segment}/{field(row, 'SYS', 'system', where=where)}"
        items.append(_thumb_rated(key, locate(root, image, *_THUMB_FOLDERS), row, where, references.get(segment, ())))
    return ItemSet(tuple(items))


def _thumb_references(path: Path | None) -> dict[str, tuple[str, ...]]:
    """References by `seg_id`. The released file is JSON Lines despite its name."""
    if path is None:
        return {}
    rows = [(f"{path} row {number}", row) for number, row in enumerate(read_jsonl(path), start=1)]
    return {
        str(field(row, "seg_id", where=where)): tuple(tidy(text) for text in field(row, "refs", where=where))
        for where, row in rows
    }


def read_thumb_rows(path: Path) -> ItemSet[Rated]:
    """The rows form, with `system`, `precision`, `recall`, penalties and `human`."""
    if path.name.startswith("mscoco_THumB"):  # the released file is JSON Lines too
        return read_thumb(path.parent)
    return ItemSet(
        tuple(_thumb_rated(line.id, line.image, line.fields, line.where, line.references) for line in read_lines(path))
    )


def _thumb_rated(key: str, image: Image, row: dict[str, Any], where: str, references: tuple[str, ...]) -> Rated:
    scales = (field(row, *names, where=where) for names in (("P", "precision"), ("R", "recall")))
    precision, recall = (rating(scale, where=where) for scale in scales)
    penalties = sum(rating(row.get(short, row.get(name, 0.0)), where=where) for short, name in _PENALTIES)
    total = rating(row.get("human_score", row.get("human", (precision + recall) / 2 + penalties)), where=where)
    return Rated(
        id=key,
        image=image,
        caption=tidy(field(row, "hyp", "caption", where=where)),
        ratings=(total,),
        references=references,
        system=str(field(row, "SYS", "system", where=where)),
        scales=(Scale("precision", precision), Scale("recall", recall)),
    )


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
    """HAT: captions of COCO images, rated 1 where no word is invented and 0 where one is."""
    return _rated_by_marks(read_hat_words(root))


def read_long(root: Path) -> ItemSet[Rated]:
    """Long captions of several systems, rated 1 where no named object is absent and 0 where one is."""
    return read_long_rows(_long_file(root))


def read_long_rows(path: Path) -> ItemSet[Rated]:
    """The same from a rows file with `hallucinated` and `objects`."""
    return ItemSet(tuple(
        Rated(line.id, line.image, tidy(line.get("caption")), (_INVENTS if line.get("hallucinated") else _CLEAN,),
              line.references, line.subset, str(line.fields.get("system", "")))
        for line in read_lines(path)
    ))  # fmt: skip


def read_hat_words(root: Path) -> list[MarkedCaption]:
    """HAT's captions with the words that people marked."""
    path = find(root, "hat-trainval.json", "data/hat-trainval.json", "*hat*.json", get=_GET_HAT)
    return [_marked(root, path, number, row) for number, row in enumerate(read_json(path, list))]


def read_long_words(root: Path) -> list[MarkedCaption]:
    """Long captions with the objects that they name, present and absent."""
    captions = []
    for line in read_lines(_long_file(root)):
        absent = tuple(map(str, line.get("hallucinated")))
        present = tuple(name for name in map(str, line.get("objects")) if name not in absent)
        captions.append(MarkedCaption(line.id, line.image, str(line.get("caption")), present=present, absent=absent))
    return captions


def _long_file(root: Path) -> Path:
    path = find_rows(root, "long")
    if path is None:
        raise missing(root, "long.jsonl", get=_GET_LONG)
    return path


def _marked(root: Path, path: Path, number: int, row: dict[str, Any]) -> MarkedCaption:
    where = f"{path} row {number}"
    words = tuple((str(word), bool(invented)) for word, invented in field(row, "grounding", where=where))
    image = locate(root, str(field(row, "image_path", where=where)), *_HAT_FOLDERS)
    key = str(row.get("sample_id", number))
    references = tuple(tidy(text) for text in row.get("references") or ())
    return MarkedCaption(
        f"{key}:{number}", image, str(field(row, "caption", where=where)), words, references=references
    )


def _rated_by_marks(captions: list[MarkedCaption]) -> ItemSet[Rated]:
    """Captions with a rating; those without a marked or unmarked word cannot be told and are left out."""
    items = tuple(
        Rated(
            marked.id,
            marked.image,
            tidy(marked.caption),
            (_INVENTS if any(invented for _, invented in marked.words) else _CLEAN,),
            marked.references,
        )
        for marked in captions
        if marked.words
    )
    bare = len(captions) - len(items)
    return ItemSet(items, (Note("captions left out: no word is marked", bare),) if bare else ())
