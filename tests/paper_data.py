"""Benchmarks of drawn scenes in the released formats of the real ones, for a dry run of the paper.

Captions of CapArena and DocENT have about 100 words, the others about eight.
"""

import json
import random
import shutil
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image, ImageDraw

from msdscore_lab.benchmarks.readers.battles import ASPECTS, HUMAN_ORDER

Size = tuple[int, int]
Element = TypeVar("Element")
_COLOURS = ("red", "green", "blue", "yellow", "purple", "orange", "white", "black")
_SHAPES = ("square", "ball", "box")
_SYSTEMS = tuple(name for name in HUMAN_ORDER if name != "human")[:3]  # model names of CapArena
_CAPTIONERS = ("llava", "qwen-vl")  # of COCO-CF
_SUBSETS = ("replace_obj", "replace_att", "replace_rel", "swap_obj", "swap_att", "add_obj", "add_att")
_DETAILS = (
    "the wall fills the whole image and is painted in one even colour.",
    "light comes from the left side and there are no shadows on the ground.",
    "nothing else can be seen near it, neither people nor animals.",
    "its edges are sharp and its surface looks smooth and clean.",
    "the image was taken from the front at a short distance.",
    "it covers about a third of the width and a third of the height.",
    "the rest of the scene is empty, which makes the object stand out.",
    "the colours are bright, and there is no text anywhere in the image.",
)
_MISTAKE = "a small dog sleeps next to it."


class Scene(NamedTuple):
    """A shape in front of a wall."""

    ground: str
    colour: str
    shape: str

    @property
    def caption(self) -> str:
        """One sentence about the scene."""
        return f"a {self.colour} {self.shape} before a {self.ground} wall"

    def paragraph(self, sentences: int) -> str:
        """Return the caption and further sentences."""
        return " ".join([f"{self.caption}.", *_DETAILS[:sentences]])


def words() -> list[str]:
    """Return all words of the captions, which tokenizers of random checkpoints know, so that lengths are realistic.

    >>> {"ball", "purple", "shadows"} <= set(words())
    True
    """
    scenes = [Scene(ground, ground, shape).caption for ground in _COLOURS for shape in _SHAPES]
    more = ("in the rain", "on a table", "number", *_DETAILS, _MISTAKE)
    return list(dict.fromkeys(word.strip(".,") for text in (*scenes, *more) for word in text.split()))


def write_benchmarks(folder: Path, *, images: int = 8, size: Size = (320, 240)) -> Path:
    """Write every benchmark of the paper in its released format, and the other inputs of its tables and figures.

    SugarCrepe has seven pairs per image, the others one item or a few. The folder appears complete or not at all.
    """
    complete, folder = folder, folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(folder, ignore_errors=True)
    draw = random.Random(0)
    scenes = [Scene(draw.choice(_COLOURS), draw.choice(_COLOURS), draw.choice(_SHAPES)) for _ in range(images)]
    drawn = [_jpeg(number, scene, size) for number, scene in enumerate(scenes)]
    _write_sugarcrepe(folder / "sugarcrepe", scenes, drawn)
    _write_flickr8k(
        folder / "flickr8k-expert", "ExpertAnnotations.txt", ("3\t3\t2", "2\t2\t1", "1\t1\t1"), scenes, drawn
    )
    _write_flickr8k(
        folder / "flickr8k-cf", "CrowdFlowerAnnotations.txt", ("1.0\t3\t0", "0.333\t1\t2", "0\t0\t3"), scenes, drawn
    )
    _write_composite(folder / "composite", scenes, drawn)
    _write_pascal(folder / "pascal50s", scenes, drawn)
    _write_caparena(folder / "caparena", scenes, drawn)
    _write_docent(folder / "docent", scenes, drawn)
    _write_coco_cf(folder / "coco-cf", scenes, drawn)
    _write_rsicd(folder / "rsicd", scenes, drawn)
    _write_rocov2(folder / "rocov2", scenes, drawn)
    _write_captions(folder, scenes, drawn)
    _write_chat(folder, scenes, drawn)
    folder.rename(complete)
    return complete


def _jpeg(number: int, scene: Scene, size: Size) -> bytes:
    """Return a drawn scene as a JPEG; the position of the shape depends on its number."""
    width, height = size
    image = Image.new("RGB", size, scene.ground)
    pen, left, top = ImageDraw.Draw(image), number * 7 % (width // 2), number * 5 % (height // 2)
    outline = (left, top, left + width // 3, top + height // 3)
    (pen.ellipse if scene.shape == "ball" else pen.rectangle)(outline, fill=scene.colour)
    stream = BytesIO()
    image.save(stream, "JPEG", quality=90)
    return stream.getvalue()


def _write_sugarcrepe(folder: Path, scenes: Sequence[Scene], drawn: Sequence[bytes]) -> None:
    names = [f"{number:012d}.jpg" for number in range(len(scenes))]
    _write_images(folder / "val2017", names, drawn)
    for index, subset in enumerate(_SUBSETS):
        rows = {
            str(2 * number): {
                "filename": name,
                "caption": scene.caption,
                "negative_caption": f"{_other(scenes, number, index + 1).caption} on a table",
            }
            for number, (name, scene) in enumerate(zip(names, scenes, strict=True))
        }
        _write_json(folder / "data" / f"{subset}.json", rows)


def _write_flickr8k(
    folder: Path, file: str, ratings: Sequence[str], scenes: Sequence[Scene], drawn: Sequence[bytes]
) -> None:
    """Write captions and one of the two files of ratings; an image is rated with captions of the following ones."""
    names = [f"{number}_ab.jpg" for number in range(len(scenes))]
    _write_images(folder / "Flicker8k_Dataset", names, drawn)
    tokens = [
        f"{name}#{k}\t{scene.caption} number {number} {k} ."
        for number, (name, scene) in enumerate(zip(names, scenes, strict=True))
        for k in range(5)
    ]
    lines = [
        f"{name}\t{_other(names, number, step)}#{step}\t{rating}"
        for number, name in enumerate(names)
        for step, rating in enumerate(ratings, start=1)
    ]
    _write_lines(folder / "Flickr8k.token.txt", tokens)
    _write_lines(folder / file, lines)


def _write_composite(folder: Path, scenes: Sequence[Scene], drawn: Sequence[bytes]) -> None:
    """Write `composite.json`, each image in one of three sources."""
    folders = {"flickr8k": "Flicker8k_Dataset", "flickr30k": "flickr30k-images", "coco": "val2014"}
    names = [f"COCO_val2014_{number:012d}.jpg" for number in range(len(scenes))]
    sources: dict[str, list[dict[str, Any]]] = {source: [] for source in folders}
    for number, (name, scene) in enumerate(zip(names, scenes, strict=True)):
        source = list(folders)[number % len(folders)]
        _write_images(folder / folders[source], [name], [drawn[number]])
        captions = (scene.caption, f"{scene.caption} in the rain", _other(scenes, number).caption)
        sources[source] += [
            {"image": name, "caption": caption, "human": human}
            for caption, human in zip(captions, (5, 3, 1), strict=True)
        ]
    _write_json(folder / "composite.json", sources)


def _write_pascal(folder: Path, scenes: Sequence[Scene], drawn: Sequence[bytes]) -> None:
    names = [f"2008_{number:06d}.jpg" for number in range(len(scenes))]
    _write_images(folder / "JPEGImages", names, drawn)
    categories: dict[str, list[dict[str, Any]]] = {category: [] for category in ("HC", "HI", "HM", "MM")}
    for number, (name, scene) in enumerate(zip(names, scenes, strict=True)):
        captions = [f"{_other(scenes, number).caption} in the rain", scene.caption]
        row = {"image": name, "captions": captions, "label": 1, "references": [scene.caption] * 5}
        list(categories.values())[number % len(categories)].append(row)
    _write_json(folder / "pascal_50s.json", categories)


def _write_caparena(folder: Path, scenes: Sequence[Scene], drawn: Sequence[bytes]) -> None:
    """Write battles of three systems, in which mostly the one with the higher human rank wins."""
    names = [f"test_{number:05d}.jpg" for number in range(len(scenes))]
    _write_images(folder / "images", names, drawn)
    rows = []
    for number, (name, scene) in enumerate(zip(names, scenes, strict=True)):
        first, second = number % 3, (number + 1) % 3
        rows.append(
            {
                "img": name, "source1": _SYSTEMS[first], "source2": _SYSTEMS[second],
                "caption1": scene.paragraph(8 - first), "caption2": _wrong_paragraph(scenes, number, 8 - second),
                "ref": scene.paragraph(6), "winner": "equal" if number % 7 == 6 else _SYSTEMS[min(first, second)],
                "cluster": f"level {number % 4 + 1}", "in-400": number % 16 == 0,
            }
        )  # fmt: skip
    _write_json(folder / "caparena_annots_eval.json", rows)


def _write_docent(folder: Path, scenes: Sequence[Scene], drawn: Sequence[bytes]) -> None:
    """Write the coarse and the granular judgements and the images, each in Parquet files."""
    uuids = [f"work-{number:05d}" for number in range(len(scenes))]
    answers = ("1_much_better", "1_slightly_better", "equal", "2_slightly_better")
    coarse = [
        {
            "uuid": uuid, "model1": _SYSTEMS[number % 3], "model2": _SYSTEMS[(number + 1) % 3],
            "model1_generation": scene.paragraph(7), "model2_generation": _wrong_paragraph(scenes, number, 5),
            "reference": scene.paragraph(8),
            **{aspect: answers[(number + at) % 4] for at, aspect in enumerate(ASPECTS)},
        }
        for number, (uuid, scene) in enumerate(zip(uuids, scenes, strict=True))
    ]  # fmt: skip
    granular = []
    for uuid, scene in zip(uuids, scenes, strict=True):
        text = f"{scene.paragraph(5)} {_MISTAKE}"
        span = {"start": len(text) - len(_MISTAKE), "end": len(text)}
        granular.append({"uuid": uuid, "model": _SYSTEMS[0], "generation": text, "mistakes": json.dumps([span])})
    stored = [
        {"uuid": uuid, "image": {"bytes": content, "path": f"{uuid}.jpg"}}
        for uuid, content in zip(uuids, drawn, strict=True)
    ]
    for name, rows in (("docent-eval-coarse", coarse), ("docent-eval-granular", granular), ("docent", stored)):
        _write_parquet(folder / name / "data" / "test-00000-of-00001.parquet", rows)


def _write_coco_cf(folder: Path, scenes: Sequence[Scene], drawn: Sequence[bytes]) -> None:
    """Write both splits as `cococf build` does: hard pairs differ in one word, easy ones in the object."""
    names = [f"{number:012d}.jpg" for number in range(len(scenes))]
    _write_images(folder / "val2017", names, drawn)
    for split, subset in (("easy", "replace_obj"), ("hard", "replace_att")):
        rows = []
        for number, (name, scene) in enumerate(zip(names, scenes, strict=True)):
            changed = scene._replace(shape=_other(_SHAPES, _SHAPES.index(scene.shape)))
            if split == "hard":
                changed = scene._replace(colour=_other(_COLOURS, _COLOURS.index(scene.colour)))
            rows.append(
                {
                    "image_id": number, "image_path": name, "caption": scene.caption,
                    "negative_caption": changed.caption, "captioner": _CAPTIONERS[number % 2], "subset": subset,
                }
            )  # fmt: skip
        _write_json(folder / f"coco_cf_{split}.json", {"data": rows, "meta": {"gen_captions": list(_CAPTIONERS)}})


def _write_rsicd(folder: Path, scenes: Sequence[Scene], drawn: Sequence[bytes]) -> None:
    rows = [
        {
            "filename": f"rsicd_images/airport_{number}.jpg",
            "captions": [f"{scene.caption} number {number}", scene.caption],
            "image": {"bytes": content, "path": f"airport_{number}.jpg"},
        }
        for number, (scene, content) in enumerate(zip(scenes, drawn, strict=True))
    ]
    _write_parquet(folder / "data" / "test-00000-of-00001.parquet", rows)


def _write_rocov2(folder: Path, scenes: Sequence[Scene], drawn: Sequence[bytes]) -> None:
    rows = [
        {
            "image_id": f"ROCOv2_2023_test_{number:06d}",
            "caption": f"{scene.caption} number {number}",
            "image": {"bytes": content, "path": f"ROCOv2_2023_test_{number:06d}.jpg"},
        }
        for number, (scene, content) in enumerate(zip(scenes, drawn, strict=True))
    ]
    _write_parquet(folder / "data" / "test-00000-of-00001.parquet", rows)


def _write_captions(folder: Path, scenes: Sequence[Scene], drawn: Sequence[bytes]) -> None:
    """Write `captions.jsonl`, with captions of three lengths, and `captioners.jsonl`, with captions of two systems."""
    names = [f"scene_{number}.jpg" for number in range(len(scenes))]
    _write_images(folder / "images", names, drawn)
    captions, captioners = list[str](), list[str]()
    for number, (name, scene) in enumerate(zip(names, scenes, strict=True)):
        row = {"id": str(number), "image": f"images/{name}"}
        lengths = (scene.caption, scene.paragraph(3), f"{scene.paragraph(8)} {scene.paragraph(8)}")
        captions.append(json.dumps({**row, "caption": lengths[number % 3]}))
        for system, text in (("GPT-4o-mini", scene.caption), ("LLaVA-1.5-7B", f"{scene.caption} in the rain")):
            captioners.append(json.dumps({**row, "id": f"{number} {system}", "system": system, "caption": text}))
    _write_lines(folder / "captions.jsonl", captions)
    _write_lines(folder / "captioners.jsonl", captioners)


def _write_chat(folder: Path, scenes: Sequence[Scene], drawn: Sequence[bytes]) -> None:
    """Write captioned images in the format of CC3M-595K: `chat.json` and `images`."""
    names = [f"{number:09d}.jpg" for number in range(len(scenes))]
    _write_images(folder / "images", names, drawn)
    chats = [
        {"id": name, "image": name, "conversations": [
            {"from": "human", "value": "<image>\nDescribe the image."}, {"from": "gpt", "value": scene.caption}]}
        for name, scene in zip(names, scenes, strict=True)
    ]  # fmt: skip
    _write_json(folder / "chat.json", chats)


def _other(elements: Sequence[Element], index: int, step: int = 1) -> Element:
    """Return the element `step` places further, around the end."""
    return elements[(index + step) % len(elements)]


def _wrong_paragraph(scenes: Sequence[Scene], number: int, sentences: int) -> str:
    return f"{_other(scenes, number).paragraph(sentences)} {_MISTAKE}"


def _write_images(folder: Path, names: Sequence[str], drawn: Sequence[bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in zip(names, drawn, strict=True):
        (folder / name).write_bytes(content)


def _write_lines(path: Path, lines: Sequence[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def _write_parquet(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows)), path)
