"""The rows form of a benchmark: `NAME.jsonl` with its images in `NAME.images*.parquet`, in files, or in `images/`.

Every row has `image`: a `file_name` of the Parquet files, whose column `image` is {bytes, path}, or a path from the
rows' folder, or from `images/` there. Beside it

- pairs: `caption` and `negative_caption`, or two `captions` and the `label` (0 or 1) of the better one;
- ratings: `caption` and `expert` or `ratings` (a list), or `human` or `rating` (one number);
- battles: `caption_a`, `caption_b`, `system_a`, `system_b`, and `winner` (a, b, tie, or a system name), or the answers
  of DocENT;
- captions alone, from which pairs are drawn: `captions`, or `caption` in one row per caption.

Optional everywhere: `id` or `key`, `subset` or `category`, `references`.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from msdscore.benchmarks.base import Aspect, Battle, Image, ItemSet, Pair, Rated, Winner, image_key
from msdscore.benchmarks.readers.captioned import CaptionedImage, Negatives, draw_pairs
from msdscore.benchmarks.readers.files import chosen, field, find_all, rating, read_jsonl, tidy, unique
from msdscore.errors import InputError
from msdscore.io.parquet_images import StoredImage, stored_images

_WINNERS: dict[str, Winner] = {"a": "a", "b": "b", "1": "a", "2": "b", "tie": "tie", "equal": "tie"}
_TIES = ("skip", "bad")


def find_rows(root: Path, name: str) -> Path | None:
    """The rows file itself, or the one file under `root` whose name holds the benchmark's; None if there is none."""
    if root.is_file():
        return root if root.suffix == ".jsonl" else None
    word = re.escape(name.replace("-", "_"))
    inside = re.compile(rf"(?:^|[^a-z0-9]){word}(?:[^a-z0-9]|$)")
    files = [path for path in find_all(root, "*.jsonl") if inside.search(path.stem.lower().replace("-", "_"))]
    last = [path for path in files if path.stem.lower().replace("-", "_").endswith(name.replace("-", "_"))]
    files = last or files
    if len(files) > 1:
        names = ", ".join(path.name for path in files)
        raise InputError(f"{root} holds several rows files of {name} ({names}); name one of them as --root")
    return files[0] if files else None


@dataclass(frozen=True, slots=True)
class Line:
    """One row of a rows file: its fields, its image, its id, and how an error names it."""

    fields: dict[str, Any]
    image: Image
    id: str
    where: str

    def get(self, *names: str) -> Any:
        """The first of some fields that the row has, or an error."""
        return field(self.fields, *names, where=self.where)

    @property
    def subset(self) -> str:
        """The part of the benchmark that the row belongs to."""
        return str(self.fields.get("subset", self.fields.get("category", "")))

    @property
    def references(self) -> tuple[str, ...]:
        """Captions by people."""
        return tuple(tidy(text) for text in self.fields.get("references") or ())


def read_lines(path: Path) -> Iterator[Line]:
    """The rows of a file with their images; without `id` or `key`, the k-th row of an image is `image:k`."""
    stored = stored_images(find_all(path.parent, f"{path.stem}.images*.parquet"), "file_name")
    seen: Counter[str] = Counter()
    for number, row in enumerate(read_jsonl(path), start=1):
        where = f"{path} row {number}"
        name = str(field(row, "image", where=where))
        stem = Path(name).stem
        subset = str(row.get("subset", row.get("category", "")))
        key = str(row["id"]) if "id" in row else f"{subset}/{row['key']}" if "key" in row else f"{stem}:{seen[stem]}"
        seen[stem] += 1
        yield Line(row, _image(path, name, stored), key, where)


def read_pairs(path: Path, *, subsets: str | Sequence[str] = ()) -> ItemSet[Pair]:
    """Rows with a right and a wrong caption, or with two captions and which of them people prefer."""
    lines = list(read_lines(path))
    wanted = chosen("subset", subsets, {line.subset for line in lines})
    items = [_pair(line) for line in lines if not wanted or line.subset in wanted]
    unique((item.id for item in items), str(path))
    return ItemSet(tuple(items))


def read_ratings(path: Path) -> ItemSet[Rated]:
    """Rows with one caption and one or more ratings."""
    items = []
    for line in read_lines(path):
        given = line.get("expert", "ratings", "human", "rating")
        ratings = tuple(rating(value, where=line.where) for value in (given if isinstance(given, list) else [given]))
        items.append(Rated(line.id, line.image, tidy(line.get("caption")), ratings, line.references, line.subset))
    unique((item.id for item in items), str(path))
    return ItemSet(tuple(items))


def read_battles(path: Path) -> ItemSet[Battle]:
    """Rows with captions of two systems and people's choice."""
    items = [_battle(line) for line in read_lines(path)]
    unique((item.id for item in items), str(path))
    return ItemSet(tuple(items))


def read_captions(path: Path, *, seed: int = 0, negatives: Negatives = "easy") -> ItemSet[Pair]:
    """Rows with captions alone: one pair per image, drawn by `seed`."""
    return draw_pairs(captioned_images(path), seed, negatives)


def captioned_images(path: Path) -> list[CaptionedImage]:
    """Images with all their captions: rows with a list `captions`, or rows of one `caption` as `score` reads them."""
    entries: dict[str | int, CaptionedImage] = {}
    for number, line in enumerate(read_lines(path)):
        given = line.get("captions", "caption")
        several = isinstance(given, list)
        texts = tuple(tidy(text) for text in (given if several else [given]))
        key = number if several else image_key(line.image)
        first = entries.get(key, CaptionedImage(line.id, line.image, ()))
        entries[key] = replace(first, captions=(*first.captions, *texts))
    return list(entries.values())


def _image(path: Path, name: str, stored: dict[str, StoredImage]) -> Image:
    if row := stored.get(Path(name).name):
        return row
    beside = path.parent / name
    return beside if beside.is_file() else path.parent / "images" / name


def _pair(line: Line) -> Pair:
    if "captions" in line.fields:
        captions, label = line.get("captions"), line.get("label")
        if len(captions) != 2 or label not in (0, 1):
            raise InputError(f"{line.where}: expected 2 captions and a label 0 or 1, got label {label!r}")
        better, other = captions[label], captions[1 - label]
    else:
        better, other = line.get("caption"), line.get("negative_caption")
    return Pair(line.id, line.image, str(better), str(other), line.subset, line.references)


def _battle(line: Line) -> Battle:
    first, second = str(line.get("system_a", "source1", "model1")), str(line.get("system_b", "source2", "model2"))
    answers = {name: int(value) for name, value in (line.fields.get("aspects") or {}).items()}
    return Battle(
        id=line.id,
        image=line.image,
        caption_a=str(line.get("caption_a", "caption1", "model1_generation")),
        caption_b=str(line.get("caption_b", "caption2", "model2_generation")),
        winner=_winner(line, first, second),
        system_a=first,
        system_b=second,
        level=str(line.fields.get("level", line.fields.get("cluster", ""))),
        subset=line.subset,
        verdict=str(line.fields.get("winner", "")),
        aspects=tuple(Aspect(name, value) for name, value in answers.items()),
        references=line.references,
    )


def _winner(line: Line, first: str, second: str) -> Winner | None:
    said = line.fields.get("winner")
    if said is None:
        return None
    known: dict[str, Winner] = _WINNERS | dict.fromkeys(_TIES, "tie") | {first: "a", second: "b"}
    if str(said) not in known:
        raise InputError(f"{line.where}: expected winner to be a, b, tie, {first} or {second}, got {said!r}")
    return known[str(said)]
