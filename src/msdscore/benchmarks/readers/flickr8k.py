"""Flickr8k-Expert and Flickr8k-CF: captions of Flickr8k images rated by three experts, or by a crowd."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msdscore.benchmarks.base import ItemSet, Note, Rated
from msdscore.benchmarks.readers.files import field, find, find_optional, folder, missing, read_json, read_tsv, tidy
from msdscore.errors import InputError

EXPERTS = 3
GET = "Flickr8k_text.zip of the Flickr8k release, or flickr8k/ as made by jmhessel/clipscore"
_FOLDERS = ("Flicker8k_Dataset", "Flickr8k_Dataset", "Images", "images")


def read_expert(root: Path) -> ItemSet[Rated]:
    """Expert ratings from the text files or the JSON form.

    A caption that is one of the image's own is left out, the rule of the SPICE paper. Ratings of one
    caption stay apart: the official figure counts each of the three.
    """
    raw = find_optional(root, "ExpertAnnotations.txt", "Flickr8k_text/ExpertAnnotations.txt")
    if raw is not None:
        return _expert_from_text(root, raw)
    packed = find_optional(root, "flickr8k.json", "flickr8k/flickr8k.json")
    if packed is None:
        raise missing(root, "ExpertAnnotations.txt", "flickr8k.json", get=GET)
    return ItemSet(tuple(_from_json(root, packed, judges=EXPERTS)))


def read_crowdflower(root: Path) -> ItemSet[Rated]:
    """Crowd ratings (the share of yes votes) from the text files or the JSON form; own captions stay."""
    raw = find_optional(root, "CrowdFlowerAnnotations.txt", "Flickr8k_text/CrowdFlowerAnnotations.txt")
    if raw is not None:
        return _crowd_from_text(root, raw)
    packed = find_optional(root, "crowdflower_flickr8k.json", "flickr8k/crowdflower_flickr8k.json")
    if packed is None:
        raise missing(root, "CrowdFlowerAnnotations.txt", "crowdflower_flickr8k.json", get=GET)
    return ItemSet(tuple(_from_json(root, packed, judges=1)))


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
    images, seen, own = folder(root, *_FOLDERS), Counter[str](), 0
    items = []
    for image, caption_id, *ratings in read_tsv(raw, 2 + EXPERTS):
        caption, references = _caption(by_id, caption_id, raw), by_image[stem(image)]
        if caption in references:
            own += 1
            continue
        key = f"{stem(image)}:{seen[stem(image)]}"
        seen[stem(image)] += 1
        judged = tuple(float(rating) for rating in ratings)
        items.append(Rated(key, images / f"{stem(image)}.jpg", tidy(caption), judged, _tidied(references)))
    return ItemSet(tuple(items), (Note("pairs left out: the caption is one of the picture's own", own),) if own else ())


def _crowd_from_text(root: Path, raw: Path) -> ItemSet[Rated]:
    by_id, by_image = _tokens(raw)
    images = folder(root, *_FOLDERS)
    rows = [(stem(image), _caption(by_id, key, raw), float(yes)) for image, key, yes, _, _ in read_tsv(raw, 5)]
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


def _from_json(root: Path, path: Path, *, judges: int) -> list[Rated]:
    images = folder(root, *_FOLDERS)
    items = []
    for name, entry in read_json(path).items():
        where = f"{path} key {name}"
        judged = field(entry, "human_judgement", where=where)
        if len(judged) % judges:
            raise InputError(f"{where}: expected {judges} ratings per caption, got {len(judged)} ratings in all")
        key = stem(str(entry.get("image_path") or name))
        references = _tidied(entry.get("ground_truth", ()))
        for k in range(len(judged) // judges):
            caption, ratings = _judged(judged[k * judges : (k + 1) * judges], where)
            items.append(Rated(f"{key}:{k}", images / f"{key}.jpg", caption, ratings, references))
    return items


def _judged(entries: list[dict[str, Any]], where: str) -> tuple[str, tuple[float, ...]]:
    captions = {tidy(field(entry, "caption", where=where)) for entry in entries}
    if len(captions) != 1:
        raise InputError(f"{where}: expected {len(entries)} ratings in a row for one caption, got {captions}")
    return captions.pop(), tuple(float(field(entry, "rating", where=where)) for entry in entries)


def _tokens(raw: Path) -> tuple[dict[str, str], dict[str, list[str]]]:
    return read_tokens(find(raw.parent, "Flickr8k.token.txt", get=GET))


def _caption(by_id: dict[str, str], key: str, path: Path) -> str:
    if key not in by_id:
        raise InputError(f"{path}: the caption {key} is not in Flickr8k.token.txt beside it")
    return by_id[key]


def _tidied(captions: Iterable[str]) -> tuple[str, ...]:
    return tuple(tidy(caption) for caption in captions)
