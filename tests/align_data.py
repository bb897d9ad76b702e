"""Eight images of coloured shapes with captions, and recipes small enough for a test."""

import json
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw
from torch.nn.functional import normalize

from msdscore.core.embeddings import masked_mean
from msdscore.encoders.base import Embeddings
from msdscore_lab.align.batches import SampleReader, TrainingBatch, make_batch
from msdscore_lab.align.recipe import Recipe
from msdscore_lab.align.run.train import Session
from msdscore_lab.pairs import DataSource, open_pairs
from msdscore_torch.aligned.towers import read_spec

COLOURS = ("red", "green", "blue", "yellow")
SHAPES = ("square", "circle")


def captions_of(colour: str, shape: str) -> list[str]:
    """Return two captions of one image."""
    return [f"a {colour} {shape}", f"the {shape} is {colour}"]


def draw(colour: str, shape: str) -> Image.Image:
    """Draw a shape on a grey background."""
    image = Image.new("RGB", (40, 32), "grey")
    pen = ImageDraw.Draw(image)
    if shape == "square":
        pen.rectangle((8, 6, 24, 22), fill=colour)
    else:
        pen.ellipse((16, 10, 36, 30), fill=colour)
    return image


def things() -> list[tuple[str, str, str]]:
    """Return file name, colour and shape of all eight images."""
    return [(f"{colour}-{shape}.png", colour, shape) for colour in COLOURS for shape in SHAPES]


def make_rows(folder: Path) -> Path:
    """Write images and `rows.jsonl` with lists of captions."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for name, colour, shape in things():
        draw(colour, shape).save(folder / name)
        lines.append(json.dumps({"image": name, "captions": captions_of(colour, shape)}))
    (folder / "rows.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / "rows.jsonl"


def source(rows: Path, **more: Any) -> DataSource:
    return DataSource((str(rows),), **more)


def recipe(**tables: Any) -> Recipe:
    """Return a recipe for the toy encoder, which needs no weights, updated with `tables`."""
    values: dict[str, Any] = {
        "name": "tiny",
        "image": {"source": "toy"},
        "text": {"source": "toy"},
        "heads": {"dim": 16},
        "train": {"steps": 6, "batch": 4, "lr": 0.02, "log_every": 1, "save_every": 1000},
    }
    for name, table in tables.items():
        values[name] = {**values.get(name, {}), **table} if isinstance(table, dict) else table
    return read_spec(Recipe, values)


def read_curves(run: Path) -> list[dict]:
    """All measurements of a run, in order."""
    return [json.loads(line) for line in (run / "curves.jsonl").read_text(encoding="utf-8").splitlines()]


def first_batch(session: Session, rows: DataSource) -> TrainingBatch:
    """Return the features of all eight images in the first epoch of a session."""
    reader = SampleReader(open_pairs(rows), session.recipe)
    return make_batch([reader.sample(item, 0) for item in range(8)], session.towers, chunk=3)


def projected(
    batch: int,
    points: int,
    dim: int = 5,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    requires_grad: bool = False,
) -> Embeddings:
    """Return aligned unit vectors of random items with one to `points` points each."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, points + 1, (batch,), generator=generator)
    mask = torch.arange(points) < lengths.unsqueeze(1)
    vectors = normalize(torch.randn(batch, points, dim, generator=generator, dtype=dtype), dim=-1)
    vectors = vectors.masked_fill(~mask.unsqueeze(-1), 0.0).requires_grad_(requires_grad)
    return Embeddings(vectors, mask, masked_mean(vectors, mask), layout=())
