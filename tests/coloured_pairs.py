"""Coloured images with captions: of one colour, and of two colours as a benchmark of rows."""

import json
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

COLOURS = {
    "red": (220, 30, 30),
    "green": (40, 150, 50),
    "blue": (40, 80, 210),
    "yellow": (250, 220, 40),
    "purple": (130, 40, 150),
    "white": (255, 255, 255),
}


PLAIN = ("red", "green", "blue", "yellow", "black", "white")


def coloured(count: int = 60) -> tuple[list[Image.Image], list[tuple[str, str]]]:
    """Return images of one colour with two captions each."""
    names = [PLAIN[number % len(PLAIN)] for number in range(count)]
    captions = [(f"a {name} square number {at % 7}", f"{name} paint on a wall") for at, name in enumerate(names)]
    return [Image.new("RGB", (32, 32), name) for name in names], captions


def write_coloured(folder: Path, count: int) -> Path:
    """Write images of one colour and `rows.jsonl` with their captions."""
    lines = []
    for number, (image, captions) in enumerate(zip(*coloured(count), strict=True)):
        image.save(folder / f"{number}.png")
        lines.append(json.dumps({"image": str(folder / f"{number}.png"), "captions": captions}))
    path = folder / "rows.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def two_coloured(left: str, right: str, size: tuple[int, int] = (96, 64)) -> Image.Image:
    """Return an image whose left and right half have one colour each."""
    image = Image.new("RGB", size, COLOURS[left])
    ImageDraw.Draw(image).rectangle((size[0] // 2, 0, *size), fill=COLOURS[right])
    return image


def write_pairs(folder: Path, count: int, seed: int = 0) -> Path:
    """Write `sugarcrepe.jsonl` and its images in `images/`; wrong captions change one colour."""
    rng = np.random.default_rng(seed)
    (folder / "images").mkdir(parents=True)
    rows = []
    for number in range(count):
        left, right, wrong = (str(name) for name in rng.permutation(list(COLOURS))[:3])
        two_coloured(left, right).save(folder / "images" / f"{number}.png")
        rows.append(
            {
                "image": f"{number}.png",
                "caption": f"{left} on the left and {right} on the right",
                "negative_caption": f"{left} on the left and {wrong} on the right",
                "subset": "replace_att" if number % 2 else "replace_obj",
                "key": number,
            }
        )
    path = folder / "sugarcrepe.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n", encoding="utf-8")
    return path
