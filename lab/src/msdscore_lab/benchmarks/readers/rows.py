"""The rows form of a benchmark: `NAME.jsonl` with its images in `NAME.images*.parquet`, in files, or in `images/`.

Every row has `image`: a `file_name` of the Parquet files, whose column `image` is {bytes, path}, or a path relative to
the folder of the rows file, or to its subfolder `images/`. Further fields:

- pairs: `caption` and `negative_caption`, or two `captions` and the `label` (0 or 1) of the better one;
- ratings: `caption` and `expert` or `ratings` (a list), or `human` or `rating` (one number);
- battles: `caption_a`, `caption_b`, `system_a`, `system_b`, and `winner` (a, b, tie, or a system name), or the answers
  of DocENT;
- captions only, from which pairs are drawn: `captions`, or `caption` in one row per caption.

Optional everywhere: `id` or `key`, `subset` or `category`, `references`.

RSICD and ROCOv2 also have only captions: an image's caption is compared with one of another image.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from msdscore.errors import InputError, unknown_name
from msdscore.rows.images import StoredImage, StoredImages, read_columns
from msdscore_lab.benchmarks.base import Battle, Image, ItemSet, ItemT, Pair, Rated, Winner, image_key
from msdscore_lab.benchmarks.readers import files
from msdscore_lab.benchmarks.readers.files import RawRow, all_tidy, numbered, rating, records, tidy

_GET_RSICD = "https://huggingface.co/datasets/arampacha/rsicd (folder data)"
_GET_ROCOV2 = "https://huggingface.co/datasets/eltorio/ROCOv2-radiology (folder data; non-commercial licence)"
_TRIES = 100
Negatives = Literal["easy", "hard"]
_WINNERS: dict[str, Winner] = {"a": "a", "b": "b", "1": "a", "2": "b"}
_WINNERS |= dict.fromkeys(("tie", "equal", "skip", "bad"), "tie")


def find_rows(root: Path, name: str) -> Path | None:
    """Return `root` if it is a rows file, or the file under it whose name contains the benchmark's; else None."""
    if root.is_file():
        return root if root.suffix == ".jsonl" else None
    escaped = re.escape(name.replace("-", "_"))
    pattern = re.compile(rf"(?:^|[^a-z0-9]){escaped}(?:[^a-z0-9]|$)")
    paths = [path for path in files.find_all(root, "*.jsonl") if pattern.search(path.stem.lower().replace("-", "_"))]
    exact = [path for path in paths if path.stem.lower().replace("-", "_").endswith(name.replace("-", "_"))]
    paths = exact or paths
    if len(paths) > 1:
        names = ", ".join(path.name for path in paths)
        raise InputError(f"{root} contains several rows files of {name} ({names}); pass one of them as --root")
    return paths[0] if paths else None


def read_items(path: Path) -> Iterator[tuple[RawRow, dict[str, Any]]]:
    """Yield the rows of a file, each with the fields common to all items: id, image, subset and references.

    Without `id` or `key`, the k-th row of an image is `image:k`.
    """
    find, seen = _finder(path), Counter[str]()
    for row in records(files.read_jsonl(path), path, first=1):
        fields, name = row.fields, str(row.get("image"))
        subset, default_key = str(fields.get("subset", fields.get("category", ""))), numbered(Path(name).stem, seen)
        key = str(fields["id"]) if "id" in fields else f"{subset}/{fields['key']}" if "key" in fields else default_key
        yield row, {"id": key, "image": find(name), "subset": subset, "references": all_tidy(fields.get("references"))}


def _finder(path: Path) -> Callable[[str], Image]:
    """Return a function from the name of an image in a rows file to the image."""
    stored = StoredImages(files.find_all(path.parent, f"{path.stem}.images*.parquet"), "file_name")

    def find(name: str) -> Image:
        relative, in_images = path.parent / name, path.parent / "images" / name
        if relative.is_file():
            return relative
        return in_images if in_images.is_file() else stored.find(name) or relative

    return find


def read_pairs(path: Path, *, subsets: str | Sequence[str] = ()) -> ItemSet[Pair]:
    """Read rows with a right and a wrong caption, or with two captions and the index of the preferred one."""
    rows = list(read_items(path))
    wanted = files.select_names("subset", subsets, {item["subset"] for _, item in rows})
    pairs = []
    for row, item in rows:
        if not wanted or item["subset"] in wanted:
            caption_fields = (files.caption(row.get(name), row.where) for name in ("caption", "negative_caption"))
            better, other = files.chosen_first(row) if "captions" in row.fields else caption_fields
            pairs.append(Pair(positive=better, negative=other, **item))
    return _unique(pairs, path)


def read_ratings(path: Path) -> ItemSet[Rated]:
    """Read rows with one caption and one or more ratings."""
    items = []
    for row, item in read_items(path):
        field = row.get("expert", "ratings", "human", "rating")
        ratings = tuple(rating(value, where=row.where) for value in (field if isinstance(field, list) else [field]))
        items.append(Rated(caption=tidy(row.get("caption")), ratings=ratings, **item))
    return _unique(items, path)


def read_battles(path: Path) -> ItemSet[Battle]:
    """Read rows with captions of two systems and the human choice."""
    battles = []
    for row, item in read_items(path):
        fields = row.fields
        first, second = str(row.get("system_a", "source1", "model1")), str(row.get("system_b", "source2", "model2"))
        winners: dict[str, Winner] = {**_WINNERS, first: "a", second: "b"}
        winner = fields.get("winner")
        if winner is not None and str(winner) not in winners:
            raise InputError(f"{row.where}: expected winner to be a, b, tie, {first} or {second}, got {winner!r}")
        try:
            answers = {name: int(value) for name, value in (fields.get("aspects") or {}).items()}
        except (AttributeError, TypeError, ValueError) as error:
            raise InputError(f"{row.where}: expected aspects with whole numbers ({error})") from error
        battles.append(Battle(
            caption_a=files.caption(row.get("caption_a", "caption1", "model1_generation"), row.where),
            caption_b=files.caption(row.get("caption_b", "caption2", "model2_generation"), row.where),
            winner=None if winner is None else winners[str(winner)], system_a=first, system_b=second, aspects=answers,
            level=str(fields.get("level", fields.get("cluster", ""))), verdict=str(fields.get("winner", "")), **item,
        ))  # fmt: skip
    return _unique(battles, path)


def need_rows(root: Path) -> ItemSet[Pair]:
    """Raise `InputError`: the generic benchmarks have no released files."""
    raise files.missing_error(root, "FILE.jsonl of rows", get="your data: --root FILE.jsonl")


def _unique(items: Sequence[ItemT], path: Path) -> ItemSet[ItemT]:
    """Raise `InputError` if two items have the same id, on which scores are joined."""
    for key, count in Counter(item.id for item in items).items():
        if count > 1:
            raise InputError(f"{path}: the id {key!r} occurs twice; expected every item once")
    return ItemSet(tuple(items))


@dataclass(frozen=True, slots=True)
class CaptionedImage:
    """An image with all its captions."""

    id: str
    image: Image
    captions: tuple[str, ...]


def read_captions(path: Path, *, seed: int = 0, negatives: Negatives = "easy") -> ItemSet[Pair]:
    """Read rows with captions only: one pair per image, drawn by `seed`."""
    return draw_pairs(captioned_images(path), seed, negatives)


def captioned_images(path: Path) -> list[CaptionedImage]:
    """Read images with all their captions: rows with a list `captions`, or with one `caption` each, as for `score`."""
    entries: dict[str | int, CaptionedImage] = {}
    for row_index, (row, item) in enumerate(read_items(path)):
        captions = row.get("captions", "caption")
        is_list = isinstance(captions, list)
        texts = all_tidy(captions if is_list else [captions])
        key = row_index if is_list else image_key(item["image"])
        first = entries.get(key, CaptionedImage(item["id"], item["image"], ()))
        entries[key] = replace(first, captions=(*first.captions, *texts))
    return list(entries.values())


def read_rsicd(root: Path, *, split: str = "test", seed: int = 0, negatives: Negatives = "easy") -> ItemSet[Pair]:
    """RSICD, remote sensing: one pair per image of a split (train, valid or test), drawn by `seed`."""
    return draw_pairs(_read_split(root, split, "filename", "captions", get=_GET_RSICD), seed, negatives)


def read_rocov2(root: Path, *, split: str = "test", seed: int = 0) -> ItemSet[Pair]:
    """ROCOv2, radiology: one pair per image of a split (train, validation or test), drawn by `seed`."""
    return draw_pairs(_read_split(root, split, "image_id", "caption", get=_GET_ROCOV2), seed)


def _read_split(root: Path, split: str, names: str, captions: str, *, get: str) -> list[CaptionedImage]:
    """Read the images of a split in Parquet files, with the columns of names and of captions (one, or a list)."""
    patterns = (f"data/{split}-*.parquet", f"{split}-*.parquet", f"**/{split}/*.parquet")
    paths = files.find_all(root, *patterns)
    if not paths:
        raise files.missing_error(root, *patterns[:2], get=get)
    entries = []
    for file in paths:
        table = read_columns(file, (names, captions))
        for row, (name, content) in enumerate(zip(table[names], table[captions], strict=True)):
            texts = all_tidy([content] if isinstance(content, str) else [text for text in content or () if text])
            image = StoredImage(Path(str(name)).name, file, row)
            entries.append(CaptionedImage(Path(str(name)).stem, image, tuple(filter(None, texts))))
    return entries


def draw_pairs(entries: Sequence[CaptionedImage], seed: int, negatives: Negatives = "easy") -> ItemSet[Pair]:
    """Return one pair per image: its first caption, and a different caption of another image.

    Hard negatives come from images of the same scene class, the file name up to its last underscore
    (`airport_12.jpg`); the only image of a class is excluded and counted.

    >>> sea, sky = (CaptionedImage(n, Path(n), (f"the {n}",)) for n in ("sea", "sky"))
    >>> [(pair.positive, pair.negative) for pair in draw_pairs([sea, sky], seed=0).items]
    [('the sea', 'the sky'), ('the sky', 'the sea')]
    """
    if negatives not in get_args(Negatives):
        raise unknown_name("kind of negatives", negatives, get_args(Negatives))
    usable = [entry for entry in entries if entry.captions]
    others: dict[str, list[CaptionedImage]] = defaultdict(list)
    scenes = [Path(entry.image.name).stem.rpartition("_")[0] if negatives == "hard" else "" for entry in usable]
    for entry, scene in zip(usable, scenes, strict=True):
        others[scene].append(entry)
    rng = np.random.default_rng(seed)
    pairs = []
    for entry, scene in zip(usable, scenes, strict=True):
        negative = _draw_negative(others[scene], entry, rng)
        if negative is not None:
            first, *rest = entry.captions
            pairs.append(Pair(entry.id, entry.image, first, negative, references=tuple(rest)))
        elif negatives == "easy":
            raise InputError(
                f"no caption of another image for {entry.id} in {_TRIES} draws; "
                "expected several images with different captions"
            )
    notes = {
        "images left out: no caption": len(entries) - len(usable),
        "images left out: no other caption in their scene class": len(usable) - len(pairs),
    }
    return ItemSet(tuple(pairs), notes)


def _draw_negative(pool: Sequence[CaptionedImage], entry: CaptionedImage, rng: np.random.Generator) -> str | None:
    own_captions = {caption.lower() for caption in entry.captions}
    for _ in range(_TRIES):
        other = pool[int(rng.integers(len(pool)))]
        caption = other.captions[int(rng.integers(len(other.captions)))]
        if other.id != entry.id and caption.lower() not in own_captions:
            return caption
    return None
