"""The test of equal doors: awkward rows give the same numbers, warnings and errors by every way into the scorer.

A door may be unable to express a row; `CANNOT` says which ones and why. `stream` is the door that the others are
compared with, and every case states what the rule is.
"""

import base64
import csv
import json
import math
import re
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from msdscore import Scorer, ScorerSpec, save_bank
from msdscore.encoders.registry import load_encoder
from msdscore.forms.evidence import Evidence
from msdscore.forms.registry import COLUMNS
from msdscore.run.shards import ShardOptions, score_shard
from msdscore.run.workers import plan_jobs, score_jobs
from msdscore.scoring.references import NO_REFERENCES
from msdscore.scoring.rows import MIXED
from msdscore_lab.bank.calibrate import calibrated_bank
from msdscore_lab.benchmarks.run.plan import BenchmarkPlan
from msdscore_lab.benchmarks.run.runner import run_benchmark
from msdscore_lab.harnesses.evaluate import MSDModule
from msdscore_torch.integrations.torchmetrics import MSDScore
from msdscore_torch.integrations.trl import MSDReward
from ray_cluster import local_cluster
from serving import client
from tar_shards import add

COLOURS = ("red", "green", "blue", "yellow", "black", "white")
PEOPLE = ["a red box", "something red on a wall"]
FAILED = "Failed to obtain answer via API."
ALONE = "no image: compared with the references only"


@dataclass(frozen=True)
class Case:
    """Rows, and the rule for each of their captions: a part of its error or warning, or None for neither."""

    name: str
    rows: Sequence[dict[str, Any]]
    errors: Sequence[str | None]
    warning: str | None = None  # of the first caption


def one(name: str, error: str | None = None, warning: str | None = None, **values: Any) -> Case:
    return Case(name, [{"image": "red.png", "caption": "a red square", **values}], [error], warning)


def many(name: str, *rows: dict[str, Any], errors: Sequence[str | None] = (), warning: str | None = None) -> Case:
    rows = tuple({"image": "red.png", "caption": "a red square"} | row for row in rows)
    return Case(name, rows, errors or [None] * len(rows), warning)


def listed(name: str, captions: Any, *errors: str | None, **values: Any) -> Case:
    return Case(name, [{"image": "red.png", "captions": captions, **values}], errors)


BLUE = {"caption": "a blue square"}
CASES = [
    one("a pair"),
    listed("a list of captions", ["a red square", "a blue square"], None, None),
    many("rows of one image", {}, BLUE),
    listed("a list with an empty caption", ["a red square", "", "a dog"], None, "is empty", None),
    listed("a list with a missing caption", ["a red square", None], None, "is empty"),
    listed("a list with a number", ["a red square", 7], None, "must be text, got int"),
    listed("an empty list of captions", [], "is empty"),
    listed("equal captions", ["a red square", "a red square"], None, None),
    one("an empty caption", "caption is empty", caption=""),
    one("a caption of spaces", "caption is empty", caption=" \n"),
    one("an invisible caption", "caption is empty", caption="\u200b\u2060"),
    one("a missing caption", "caption is empty", caption=None),
    one("a caption that is NaN", "caption is empty", caption=math.nan),
    one("a caption that is a number", "caption must be text, got int", caption=7),
    one("a failed answer", "did not answer", caption=FAILED),
    listed("a failed answer in a list", ["a red square", FAILED], None, "did not answer"),
    one("signs", "no words", caption="!?"),
    one("a foreign language", caption="ein rotes Quadrat vor einer weißen Wand"),
    one("a list of words", caption="red, square, wall, photo, image, colour"),
    one("a long caption", caption="a red square and " * 200 + "a wall"),
    one("look-alike letters", caption="а rеd square"),
    one("a 16-bit image", image="deep.png"),
    one("an animation", image="moving.gif"),
    one("a rotated image", image="rotated.jpg"),
    one("a transparent image", image="clear.png"),
    one("a missing file", "no such file", image="missing.png"),
    one("a broken image", "not an image", image="broken.png"),
    one("an empty image", "image is empty", image=None),
    one("an image named with nothing", "image is empty", image=""),
    one("an image that is NaN", "image is empty", image=math.nan),
    one("an address", "address", image="https://example.org/red.png"),
    one("bytes", image=("bytes", "red.png")),
    one("a cell of bytes", image=("cell", "red.png")),
    one("an array", image=("array", "red.png")),
    one("a Pillow image", image=("pillow", "red.png")),
    one("a number for an image", "must be a path", image=7),
    one("references", references=PEOPLE),
    listed("references of a list", ["a red square", "a dog"], None, None, references=PEOPLE),
    one("the caption among references", references=["A red square.", *PEOPLE], warning="the caption itself"),
    listed("the only reference as a caption", ["a red square", "a blue square"], None, None, references=["a red square"]),
    one("empty references among others", references=["a red box", "", None], warning="2 of 3 references ignored"),
    one("no references", references=[]),
    one("references that are missing", references=None),
    one("references that are NaN", references=math.nan),
    one("an empty reference", references=[""], warning="1 of 1 references ignored"),
    one("a missing reference", references=[None], warning="1 of 1 references ignored"),
    one("references that are a mapping", "references must be a list", references={"a": "b"}),
    one("references that are a number", "references must be a list", references=7),
    one("one reference as text", references="a red box"),
    one("references as JSON", references=json.dumps(PEOPLE)),
    one("references as Python prints them", references=str(["a red box", 'a "red" thing'])),
    one("references as a broken list", "begins like a list", references="['a red box', 'a"),
    one("references as an array", references=np.array(PEOPLE)),
    one("no image but references", warning=ALONE, image=None, references=PEOPLE),
    one("an image that is NaN beside references", warning=ALONE, image=math.nan, references=PEOPLE),
    one("neither image nor reference", "image is empty", image=None, references=[]),
    one("no image and an empty caption", "caption is empty", image=None, caption="", references=PEOPLE),
    one("no image, and the caption as its reference", "no reference", image=None, references=["a red square"]),
    many("a row without an image in a set", {"group": "a", "references": PEOPLE},
         {"group": "a", "references": PEOPLE, "image": None, **BLUE}, {"group": "a", "references": PEOPLE, **BLUE}),
    many("some rows with references", {"references": PEOPLE}, {"references": None, **BLUE}),
    many("a group", {"group": "a"}, {"group": "a", **BLUE}),
    many("a group without a name", {"group": ""}, {"group": "", "image": "blue.png", **BLUE}),
    many("groups that are missing", {"group": None}, {"group": None, "image": "blue.png", **BLUE}),
    many("groups that are NaN", {"group": math.nan}, {"group": math.nan, "image": "blue.png", **BLUE}),
    many("a group that is NA of pandas", {"group": pd.NA}, {"group": pd.NA, "image": "blue.png", **BLUE}),
    many("groups 0, '0' and 0.0", {"group": 0}, {"group": "0", **BLUE}, {"group": 0.0, "caption": "a dog"}),
    many("group 0", {"group": 0}, {"group": 0, **BLUE}),
    many("groups that are lists", {"group": ["a"]}, {"group": ["a"], **BLUE}),
    many("two groups of one image", {"group": "a"}, {"group": "b", **BLUE}),
    many("two images in a group", {"group": "a"}, {"group": "a", "image": "blue.png", **BLUE}, warning=MIXED),
    many("Group", {"Group": "a"}, {"Group": "a", "image": "blue.png", **BLUE}, warning=MIXED),
    Case("two lists of one image",
         [{"image": "red.png", "captions": ["a red square", "a dog"]},
          {"image": "red.png", "captions": ["a blue square", "a cat"]}], [None] * 4),
    Case("a list in a group", [{"image": "red.png", "captions": ["a red square", "a dog"], "group": "a"}], [None] * 2),
    Case("other names", [{"IMG": "red.png", "Text": "a red square", "References": PEOPLE}], [None]),
    Case("an id of the image", [{"image_id": 7, "caption": "a red square"}], [None]),
    Case("an unknown id of an image", [{"image_id": 8, "caption": "a red square"}], ["no image for id 8"]),
    one("an id that is a number", id=7.0),
]  # fmt: skip

# What a door cannot express, and why; the names are those of `features`.
ARGUMENTS = {
    "group": "the set is the call",
    "lists": "a set is an image",
    "columns": "there are arguments, not columns",
}
PAIRS = {**ARGUMENTS, "candidates": "every pair is scored separately"}
VALUES = {"object": "cells are plain values", "mixed": "a column has one type"}
JSON_VALUES = {"object": "JSON has no objects", "bytes": "JSON has no bytes", "NaN": "JSON has no NaN"}
FILES = {"no image": "an image is required", "odd image": "an image is a file", "object": "an image is a file"}
ANNOTATED = {"list": "one caption each", "no image": "an image is required", "odd image": "an image is a file"}
CANNOT: dict[str, dict[str, str]] = {
    "score": PAIRS,
    "rank": {**ARGUMENTS, "empty": "at least one caption is needed", "images": "there is one image", "references per row": "references are those of the image"},
    "score_batch": {**ARGUMENTS, "empty": "at least one caption is needed", "references per row": "references are those of the image"},
    "stream": {"id of image": "there is no folder"},
    "pandas": {},
    "Arrow": VALUES,
    "polars": VALUES,
    "JSON lines": JSON_VALUES,
    "CSV": {**VALUES, **dict.fromkeys(("bytes", "list", "not text", "NaN", "odd image", "values as references"), "cells are text")},
    "Parquet": VALUES,
    "shard": VALUES,
    "COCO": {**JSON_VALUES, **ANNOTATED, "columns": "COCO has its own names"},
    "tar": {**JSON_VALUES, **FILES, "unreadable": "images are inside", "images": "one image per sample",
            "group": "one image per sample", "candidates": "one caption per sample", "columns": "as in img2dataset"},
    "HTTP": {**ARGUMENTS, "empty": "at least one caption is needed", **FILES, "not text": "captions are text", "unreadable": "the client reads the file",
             "odd references": "references are a list of texts", "references per row": "as for rank"},
    "TRL": {**PAIRS, "not text": "completions are text"},
    "torchmetrics": {**PAIRS, "not text": "captions are text", "empty name": "a text is a caption"},
    "evaluate": {**PAIRS, **FILES, "bytes": "images are paths", "not text": "captions are text"},
    "bench": {**PAIRS, **FILES, "bytes": "images are files", "address": "images are files", "not text": "checked before a run",
              "odd references": "checked before a run"},
}  # fmt: skip
Rows = list[dict[str, Any]]
Door = Callable[["World", Rows], Rows]
DOORS: dict[str, Door] = {}


def features(rows: Sequence[dict[str, Any]]) -> set[str]:
    """Return what is special about rows, by the names of `CANNOT`."""
    found, columns = set[str](), {name for row in rows for name in row}
    captions = [row.get("captions", row.get("caption", "")) for row in rows]
    images = [row.get("image", "") for row in rows]
    lists = [row["references"] for row in rows if "references" in row]
    values = {name: {type(row[name]) for row in rows if row.get(name) is not None} for name in columns}
    parts = [text for caption in captions for text in (caption if isinstance(caption, list) else [caption])]
    kinds = [image[0] for image in images if isinstance(image, tuple)]
    listed = [text for texts in lists if isinstance(texts, list) for text in texts]
    odd = [texts for texts in lists if not isinstance(texts, list | str | np.ndarray)]
    checks = {
        "candidates": len(rows) > 1 or len(parts) != 1 or "captions" in columns,
        "list": "captions" in columns,
        "empty": not parts,
        "lists": "captions" in columns and len(rows) > 1,
        "group": columns & {"group", "Group"},
        "columns": columns - {"image", "caption", "captions", "references", "group"},
        "id of image": "image_id" in columns,
        "images": len(set(map(str, images))) > 1,
        "references per row": len({str(texts) for texts in lists}) > 1,
        "not text": any(not isinstance(text, str) for text in parts),
        "object": {"array", "pillow"} & set(kinds) or any(isinstance(v, np.ndarray) for v in lists),
        "bytes": {"bytes", "cell"} & set(kinds),
        "NaN": any(isinstance(value, float) and value != value for row in rows for value in row.values()),
        "mixed": any(len(kinds) > 1 for kinds in values.values()) or len({type(t) for t in parts} - {type(None)}) > 1,
        "no image": any(image is None or image == "" or image != image for image in images) and "image" in columns,
        "empty name": "" in images and "image" in columns,
        "address": "https://example.org/red.png" in images,
        "odd image": any(isinstance(image, int) for image in images),
        "unreadable": {"missing.png", "broken.png", "https://example.org/red.png"} & set(map(str, images)),
        "values as references": any(texts is not None and texts == texts for texts in odd),
        "odd references": any(not isinstance(t, list) for t in lists) or any(not isinstance(t, str) for t in listed),
    }
    found |= {name for name, is_so in checks.items() if is_so}
    return found | ({"object"} if any(value is pd.NA for row in rows for value in row.values()) else set())


@dataclass(frozen=True)
class World:
    """A folder for files, with images, and the scorer."""

    folder: Path
    spec: ScorerSpec
    scorer: Scorer

    @property
    def images(self) -> Path:
        """The folder of images with ids."""
        return self.folder / "ids"

    def new(self, name: str) -> Path:
        """Return the path of a new file."""
        path = self.folder / f"{len(list(self.folder.iterdir()))}-{name}"
        path.touch()
        path.unlink()
        path.with_suffix(".taken").touch()
        return path

    def resolved(self, rows: Sequence[dict[str, Any]]) -> Rows:
        """Return rows with their images."""
        return [{n: self.image(v) if n in ("image", "IMG") else v for n, v in row.items()} for row in rows]

    def image(self, given: Any) -> Any:
        if isinstance(given, str):
            return str(self.folder / given) if given and "://" not in given else given
        if not isinstance(given, tuple):
            return given
        kind, name = given
        content = (self.folder / name).read_bytes()
        picture = Image.open(BytesIO(content))
        return {"bytes": content, "cell": {"bytes": content, "path": None}, "array": np.asarray(picture),
                "pillow": picture}[kind]  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("doors")
    (folder / "ids").mkdir()
    red = Image.new("RGB", (48, 32), "red")
    red.paste("white", (0, 0, 12, 12))
    for name, image in {
        "red.png": red,
        "ids/000000000007.png": red,
        "blue.png": Image.new("RGB", (48, 32), "blue"),
    }.items():
        image.save(folder / name)
    Image.fromarray(np.full((32, 48), 40_000, dtype=np.uint16)).save(folder / "deep.png")
    red.save(folder / "moving.gif", save_all=True, append_images=[Image.new("RGB", red.size, "blue")])
    exif = Image.Exif()
    exif[0x0112] = 6
    red.save(folder / "rotated.jpg", exif=exif)
    red.convert("RGBA").save(folder / "clear.png")
    (folder / "broken.png").write_bytes(b"no image")
    pairs = [(Image.new("RGB", (32, 32), name), (f"a {name} square number {n}", f"{name} paint"))
             for n in range(10) for name in COLOURS]  # fmt: skip
    encoder, form = load_encoder("toy"), Evidence(components=2)
    save_bank(calibrated_bank(encoder, form, *zip(*pairs, strict=True), background=20), folder / "bank.safetensors")
    spec = ScorerSpec(encoder="toy", form=form, bank=str(folder / "bank.safetensors"))
    return World(folder, spec, Scorer.from_spec(spec))


def door(name: str) -> Callable[[Door], Door]:
    """Register a door: a function of a world and rows that returns the columns that it reports for every caption."""

    def register(function: Door) -> Door:
        DOORS[name] = function
        return function

    return register


def captions_of(row: dict[str, Any]) -> list[Any]:
    return row["captions"] if "captions" in row else [row["caption"]]


@door("score")
def _score(world: World, rows: Rows) -> Rows:
    return [world.scorer.score(r["image"], r["caption"], r.get("references"), errors="row").to_dict() for r in rows]


@door("rank")
def _rank(world: World, rows: Rows) -> Rows:
    captions = [caption for row in rows for caption in captions_of(row)]
    return world.scorer.rank(rows[0]["image"], captions, rows[0].get("references"), errors="row").rows()


@door("score_batch")
def _score_batch(world: World, rows: Rows) -> Rows:
    images = {str(row["image"]): row for row in rows}
    captions = [(caption, list(images).index(str(row["image"]))) for row in rows for caption in captions_of(row)]
    references = [row.get("references") for row in images.values()] if "references" in rows[0] else None
    texts, owner = zip(*captions, strict=True)
    found = world.scorer.score_batch([r["image"] for r in images.values()], texts, owner=owner, references=references)
    return found.rows()


@door("stream")
def _stream(world: World, rows: Rows) -> Rows:
    return [score.to_dict() for score in world.scorer.stream(rows)]


@door("pandas")
def _pandas(world: World, rows: Rows) -> Rows:
    frame = world.scorer.score_table(pd.DataFrame(rows), images=_ids(world, rows))
    return frame.to_dict("records")


@door("Arrow")
def _arrow(world: World, rows: Rows) -> Rows:
    return world.scorer.score_table(pa.Table.from_pylist(rows), images=_ids(world, rows)).to_pylist()


@door("polars")
def _polars(world: World, rows: Rows) -> Rows:
    return world.scorer.score_table(pl.DataFrame(rows), images=_ids(world, rows)).to_pylist()


def _ids(world: World, rows: Rows) -> Path | None:
    return world.images if "image_id" in rows[0] else None


def _scored(world: World, path: Path, rows: Rows) -> Rows:
    output = path.with_name(f"{path.name}.scores.parquet")
    world.scorer.score_file(path, output, images=_ids(world, rows))
    return pq.read_table(output).to_pylist()


@door("JSON lines")
def _json_lines(world: World, rows: Rows) -> Rows:
    return _scored(world, write_lines(world.new("rows.jsonl"), rows), rows)


def write_lines(path: Path, rows: Rows) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@door("CSV")
def _csv(world: World, rows: Rows) -> Rows:
    path = world.new("rows.csv")
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, dict.fromkeys(name for row in rows for name in row))
        writer.writeheader()
        writer.writerows(rows)
    return _scored(world, path, rows)


@door("Parquet")
def _parquet(world: World, rows: Rows) -> Rows:
    path = world.new("rows.parquet")
    pq.write_table(pa.Table.from_pylist(rows), path)
    return _scored(world, path, rows)


@door("shard")
def _shard(world: World, rows: Rows) -> Rows:
    path = world.new("shard.parquet")
    pq.write_table(pa.Table.from_pylist(rows), path)
    output = path.with_suffix(".scores.parquet")
    score_shard(world.scorer.pipeline, path, output, shard_options(world, rows))
    return pq.read_table(output).to_pylist()


def shard_options(world: World, rows: Rows) -> ShardOptions:
    return ShardOptions(images=None if (ids := _ids(world, rows)) is None else str(ids))


@door("COCO")
def _coco(world: World, rows: Rows) -> Rows:
    path, names = world.new("captions.json"), list(dict.fromkeys(row["image"] for row in rows))
    images = [{"id": number, "file_name": name} for number, name in enumerate(names)]
    annotations = [
        {"image_id": names.index(row["image"])} | {n: v for n, v in row.items() if n != "image"} for row in rows
    ]
    path.write_text(json.dumps({"images": images, "annotations": annotations}), encoding="utf-8")
    return _scored(world, path, rows)


@door("tar")
def _tar(world: World, rows: Rows) -> Rows:
    path = world.new("shard.tar")
    with tarfile.open(path, "w") as shard:
        for number, row in enumerate(rows):
            image = Path(row.pop("image"))
            add(shard, f"{number:04d}{image.suffix}", image.read_bytes())
            add(shard, f"{number:04d}.json", json.dumps(row).encode())
    return _scored(world, path, rows)


@door("HTTP")
def _http(world: World, rows: Rows) -> Rows:
    items = []
    for row in rows:
        image = row["image"]["bytes"] if isinstance(row["image"], dict) else row["image"]
        content = image if isinstance(image, bytes) else Path(image).read_bytes()
        item = {"image": base64.b64encode(content).decode(), "captions": captions_of(row)}
        item |= {"references": row["references"]} if "references" in row else {}
        same = [other for other in items if other["image"] == item["image"]]
        if same:
            same[0]["captions"] += item["captions"]
        else:
            items.append(item)
    with client(world.scorer.pipeline) as calls:
        answer = calls.post("/v1/rank", json={"items": items})
    assert answer.status_code == 200, answer.text
    return [score for item in answer.json()["items"] for score in item["scores"]]


@door("TRL")
def _trl(world: World, rows: Rows) -> Rows:
    log: dict[str, Any] = {}
    columns = {"image": [row["image"] for row in rows]}
    columns |= {"references": [row["references"] for row in rows]} if "references" in rows[0] else {}
    completions = [row["caption"] for row in rows]
    reward = MSDReward(world.scorer, guard=0, caption_of=str)
    rewards = reward(None, completions, log_extra=log.__setitem__, **columns)
    name = "ref_msd" if "references" in columns else "msd"
    reasons = [None if reason in (NO_REFERENCES, "") else reason for reason in log["not_judged"]]
    return [{name: value, "error": reason} for value, reason in zip(rewards, reasons, strict=True)]


@door("torchmetrics")
def _torchmetrics(world: World, rows: Rows) -> Rows:
    metric = MSDScore(world.scorer, return_rows=True)
    images = [Path(row["image"]) if isinstance(row["image"], str) and row["image"] else row["image"] for row in rows]
    references = [row["references"] for row in rows] if "references" in rows[0] else None
    metric.update(images, [row["caption"] for row in rows], references)
    columns = {name: np.atleast_1d(values).tolist() for name, values in metric.compute().items()}
    return [{name: values[number] for name, values in columns.items()} for number in range(len(rows))]


@door("evaluate")
def _evaluate(world: World, rows: Rows) -> Rows:
    references = [row["references"] for row in rows] if "references" in rows[0] else None
    metric = MSDModule(cache_dir=str(world.folder / "evaluate"), experiment_id=world.new("e").name)
    images, captions = [row["image"] for row in rows], [row["caption"] for row in rows]
    found = metric.compute(predictions=captions, images=images, references=references, scorer=world.scorer)
    columns = {"msd": found["scores"], "error": found["errors"]}
    columns |= {"ref_msd": found["ref_scores"]} if "ref_scores" in found else {}
    return [{name: values[number] for name, values in columns.items()} for number in range(len(rows))]


@door("bench")
def _bench(world: World, rows: Rows) -> Rows:
    path = write_lines(world.new("ratings.jsonl"), [row | {"rating": 1} for row in rows])
    names = {"msd": "msd"} | ({"ref_msd": "ref-msd"} if any(row.get("references") for row in rows) else {})
    plan = BenchmarkPlan(name="rated", root=path, metrics=tuple(names.values()), samples=20, control=False)
    run_benchmark(plan, path.with_suffix(".json"), lambda: world.scorer.pipeline)
    scores = pq.read_table(path.with_suffix(".parquet")).to_pylist()
    return [{name: row[metric][0] for name, metric in names.items()} | {"error": row["error"]} for row in scores]


EVERYTHING = ("score", "rank", "score_batch", "stream", "pandas", "Arrow", "polars", "JSON lines", "CSV", "Parquet",
              "shard", "COCO", "tar", "HTTP")  # fmt: skip


def plain(row: dict[str, Any], folder: Path, *, whole: bool) -> dict[str, Any]:
    """Return numbers, warnings and error of a row; the paths and columns in errors are those of the input."""
    numbers = {
        name: value
        for name, value in row.items()
        if name in COLUMNS and name not in ("warnings", "error", "verdict", "word_notes")
    }
    found: dict[str, Any] = {"numbers": {n: None if v is None or v != v else v for n, v in numbers.items()}}
    if whole:
        found |= {
            "verdict": row["verdict"] if isinstance(row["verdict"], str) else None,
            "word_notes": None if row["word_notes"] is None else list(row["word_notes"]),
            "warnings": list(row["warnings"]),
        }
        found["numbers"] = {name: value for name, value in found["numbers"].items() if value is not None}
        found["caption"] = row.get("caption", row.get("Text"))
    if "error" in row:
        error = row["error"] if isinstance(row["error"], str) else None
        error = error and re.sub(rf"{re.escape(str(folder))}/\S*?([^/]+\.\w+): ", "", error)
        error = error and re.sub(
            r"^(captions\[\d+\]|captions|file_name) ", lambda m: {"f": "image "}.get(m[0][0], "caption "), error
        )
        found["error"] = error
    return found


def able(case: Case) -> list[str]:
    """Return the doors that can express a case."""
    names = sorted(DOORS, key=lambda name: name != "stream")  # the one that others are compared with
    return [name for name in names if not features(case.rows) & CANNOT[name].keys()]


def cases() -> Iterator[Any]:
    for case in CASES:
        for name in able(case):
            known = KNOWN.get(name, ())
            marks = [pytest.mark.xfail(strict=True)] if case.name in known else []
            yield pytest.param(case, name, id=f"{name}-{case.name}", marks=marks)


def outcome(world: World, case: Case, name: str) -> Rows:
    return [plain(row, world.folder, whole=name in EVERYTHING) for row in DOORS[name](world, world.resolved(case.rows))]


# Disagreements that are not repaired yet, by door.
KNOWN: dict[str, set[str]] = {}


def check(case: Case, name: str, found: Rows, expected: Rows) -> None:
    """Assert that a door gives what another one gave, and that it is what the case says."""
    assert len(found) == len(expected) == len(case.errors)
    for row, rule, other in zip(found, case.errors, expected, strict=True):
        if "error" in row:
            assert (row["error"] is None) == (rule is None), row["error"]
            assert rule is None or rule in row["error"], row["error"]
        # A row with an error has the caption of its input, whatever that is.
        for key in row.keys() - ({"numbers"} if rule is None else {"numbers", "caption"}):
            assert row[key] == other[key], (key, row[key], other[key])
        if name in EVERYTHING:
            assert row["numbers"].keys() == other["numbers"].keys()
        known = {number: other["numbers"].get(number) for number in row["numbers"]}
        assert row["numbers"] == pytest.approx(known, abs=1e-6, nan_ok=True)
    if case.warning and name in EVERYTHING:
        assert any(case.warning in text for text in found[0]["warnings"])


@pytest.fixture(scope="module")
def expected(world: World) -> Callable[[Case], Rows]:
    """Return what the first door gives for a case, computed once."""
    known: dict[str, Rows] = {}

    def of(case: Case) -> Rows:
        if case.name not in known:
            known[case.name] = outcome(world, case, able(case)[0])
        return known[case.name]

    return of


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("case", "name"), list(cases()))
def test_every_door_gives_the_same_answer(
    world: World, expected: Callable[[Case], Rows], case: Case, name: str
) -> None:
    check(case, name, outcome(world, case, name), expected(case))


def test_the_table_of_doors_is_complete() -> None:
    assert CANNOT.keys() == DOORS.keys()
    seen = {name for case in CASES for name in features(case.rows)}
    assert {name for table in CANNOT.values() for name in table} <= seen
    assert all(len(able(case)) >= 2 for case in CASES)


def test_the_caption_that_equals_its_only_reference_can_be_the_best(world: World) -> None:
    captions, image = ["a red square", "a blue bicycle on a road"], world.folder / "red.png"
    scores = world.scorer.rank(image, captions, references=["a red square"])
    assert scores.best == world.scorer.rank(image, captions).best == "a red square"


def test_pairs_are_explained_with_and_without_references(world: World) -> None:
    images, captions = [world.folder / "red.png"] * 3, ["a red square", "a red wall", FAILED]
    found = world.scorer.explain_batch(images, captions, references=[[], ["a wall"], None])
    assert [getattr(each, "caption", None) for each in found] == [*captions[:2], None]


@pytest.mark.parametrize("suffix", ["parquet", "jsonl", "csv"])
def test_files_have_both_halves_of_a_headline(world: World, suffix: str) -> None:
    captions, output = (
        ["a red square", "a red dog", "red, square, wall, photo, image, colour", ""],
        world.new("rows.jsonl"),
    )
    write_lines(output, [{"image": str(world.folder / "red.png"), "caption": caption} for caption in captions])
    scored = output.with_suffix(f".scored.{suffix}")
    world.scorer.score_file(output, scored)
    rows = {"parquet": pd.read_parquet, "csv": pd.read_csv}.get(suffix, partial(pd.read_json, lines=True))(scored)
    scores = world.scorer.rank(world.folder / "red.png", captions, errors="row")
    for row, score in zip(rows.to_dict("records"), scores, strict=True):
        verdict, notes = row["verdict"], row["word_notes"]
        verdict = verdict if isinstance(verdict, str) else None
        notes = notes.split("; ") if isinstance(notes, str) else [] if notes is None or notes != notes else list(notes)
        assert (verdict, notes) == (score.verdict, list(score.word_notes))
        if verdict:
            assert score.headline == " · ".join([f"{verdict} ({100 * row['match']:.0f} %)", *notes])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_ray_gives_what_this_process_gives(world: World) -> None:
    pytest.importorskip("ray", reason="Ray is not installed (extra ray)")
    from msdscore.run.ray_data import RayOptions, score_on_ray

    sources = world.folder / "shards"
    sources.mkdir()
    ours = [case for case in CASES if "shard" in able(case) and "id of image" not in features(case.rows)]
    for number, case in enumerate(ours):
        pq.write_table(pa.Table.from_pylist(world.resolved(case.rows)), sources / f"{number:05d}.parquet")
    jobs = [plan_jobs([f"{sources}/*.parquet"], str(world.folder / name)) for name in ("alone", "ray")]
    list(score_jobs(world.spec, jobs[0], ShardOptions()))
    with local_cluster():
        found = list(score_on_ray(world.spec, jobs[1], ShardOptions(), RayOptions(cpus=0.5)))
    assert len(found) == len(ours)
    for alone, on_ray in zip(*jobs, strict=True):
        assert Path(alone.output).read_bytes() == Path(on_ray.output).read_bytes()
