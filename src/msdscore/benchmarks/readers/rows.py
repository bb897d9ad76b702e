"""The rows form of a benchmark: `NAME.jsonl` beside its pictures in `NAME.images*.parquet`.

A pair row has image, caption, negative_caption, subset and key; a rating row has image, caption, caption_id
and expert (a list of ratings). `image` is a `file_name` of the Parquet files, whose column `image` is
{bytes, path}.
"""

from collections import Counter
from pathlib import Path

from msdscore.benchmarks.base import Image, Pair, Rated, Reading
from msdscore.benchmarks.readers.files import field, find_all, read_jsonl, tidy, unique
from msdscore.io.parquet_images import StoredImage, stored_images


def find_rows(root: Path, name: str) -> Path | None:
    """The rows file itself, or the only file under `root` whose name holds the benchmark's, or None."""
    if root.is_file():
        return root if root.suffix == ".jsonl" else None
    found = find_all(root, f"*{name}*.jsonl")
    return found[0] if len(found) == 1 else None


def read_pairs(path: Path) -> Reading[Pair]:
    """Rows with a right and a wrong caption."""
    stored = _stored(path)
    items = []
    for number, row in enumerate(read_jsonl(path), start=1):
        where = f"{path} row {number}"
        name, positive, negative = (str(field(row, f, where=where)) for f in ("image", "caption", "negative_caption"))
        subset = str(row.get("subset", ""))
        key = f"{subset}/{row.get('key', number)}"
        items.append(Pair(key, _image(path, name, stored), positive, negative, subset=subset))
    unique((item.id for item in items), str(path))
    return Reading(tuple(items))


def read_ratings(path: Path) -> Reading[Rated]:
    """Rows with one caption and several ratings; the k-th caption of a picture has the id `picture:k`."""
    stored = _stored(path)
    seen: Counter[str] = Counter()
    items = []
    for number, row in enumerate(read_jsonl(path), start=1):
        where = f"{path} row {number}"
        name, caption, ratings = (field(row, f, where=where) for f in ("image", "caption", "expert"))
        stem = Path(name).stem
        judged = tuple(float(rating) for rating in ratings)
        items.append(Rated(f"{stem}:{seen[stem]}", _image(path, name, stored), tidy(caption), judged))
        seen[stem] += 1
    return Reading(tuple(items))


def _stored(path: Path) -> dict[str, StoredImage]:
    return stored_images(find_all(path.parent, f"{path.stem}.images*.parquet"), "file_name")


def _image(path: Path, name: str, stored: dict[str, StoredImage]) -> Image:
    return stored.get(Path(name).name) or path.parent / "images" / name
