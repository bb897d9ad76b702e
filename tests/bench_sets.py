"""Small benchmarks as rows, with images that the toy encoder can distinguish."""

import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

COLOURS = ("red", "green", "blue", "yellow", "purple", "orange", "white", "black")


def encoded(colour: str, size: int = 24) -> bytes:
    """Return a PNG of one colour."""
    buffer = io.BytesIO()
    Image.new("RGB", (size, size), colour).save(buffer, "PNG")
    return buffer.getvalue()


def write_images(path: Path, images: dict[str, bytes]) -> None:
    cells = [{"bytes": data, "path": name} for name, data in images.items()]
    pq.write_table(pa.table({"file_name": list(images), "image": cells}), path, row_group_size=3)


def write_rows(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def make_sugarcrepe(folder: Path, *, broken: bool = False) -> Path:
    """Write two subsets over eight colours: the wrong caption names the next colour, or an absent object."""
    folder.mkdir(parents=True, exist_ok=True)
    images = {f"{colour}.png": encoded(colour) for colour in COLOURS}
    rows = []
    for place, colour in enumerate(COLOURS):
        other = COLOURS[(place + 1) % len(COLOURS)]
        right = f"a {colour} square"
        rows += [
            {"subset": "replace_att", "key": str(place), "image": f"{colour}.png", "caption": right,
             "negative_caption": f"a {other} square"},
            {"subset": "add_att", "key": str(place), "image": f"{colour}.png", "caption": right,
             "negative_caption": f"a {colour} square and a {other} ball"},
        ]  # fmt: skip
    if broken:
        images["red.png"] = b"not an image"
        rows[2]["negative_caption"] = "..."
    write_images(folder / "sugarcrepe.images.parquet", images)
    write_rows(folder / "sugarcrepe.jsonl", rows)
    return folder


def make_expert(folder: Path) -> Path:
    """Write three captions per image, rated 4, 2 and 1."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for place, colour in enumerate(COLOURS):
        captions = (f"a {colour} square", f"a {colour} dog", f"a {COLOURS[(place + 3) % 8]} dog")
        rows += [
            {"image": f"{colour}.png", "caption": caption, "caption_id": f"{place}#{k}", "expert": ratings}
            for k, (caption, ratings) in enumerate(zip(captions, ([4, 4, 3], [2, 3, 2], [1, 1, 1]), strict=True))
        ]
    write_images(folder / "flickr8k_expert.images.parquet", {f"{c}.png": encoded(c) for c in COLOURS})
    write_rows(folder / "flickr8k_expert.jsonl", rows)
    return folder
