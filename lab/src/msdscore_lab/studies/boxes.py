"""Comparison of the maps of words and captions with annotated boxes.

Every word that names an annotated object, and every caption, has two figures: whether the maximum of its map is in a
box (the pointing game), and the share of the map's mass in the boxes. Baselines are a uniform map and one that prefers
the centre.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from msdscore.errors import InputError
from msdscore.explain.projections import PROJECTIONS, SURE, MapTerms, centre, region, sharpened, terms_of
from msdscore.forms.base import Unit
from msdscore.intervals import Floats, bootstrap_mean
from msdscore.scoring.pipeline import Pipeline
from msdscore.text.words import stem
from msdscore_lab.benchmarks.base import image_source
from msdscore_lab.benchmarks.readers.rows import CaptionedImage, captioned_images
from msdscore_lab.studies.context import Study, every_nth
from msdscore_lab.studies.table import Column, Row, Table, per_cent
from msdscore_lab.studies.words import read_synonyms

Box = tuple[float, float, float, float]  # centre and size, relative to the image
Boxes = Mapping[str, Sequence[Box]]  # by class
MapFigures = tuple[str, str, str, float, float]  # image, level, map, pointing game, share of the mass
LEVELS = ("word", "caption")
CLASSES = "coco_classes.txt"  # one class per line, in the order of class indices
_STEPS = 8  # samples per patch and axis, to measure the covered share


def boxes(study: Study, *, synonyms: Path | None = None) -> list[Table]:
    """Pointing game and share of mass in boxes, of the maps of words and of captions.

    The root is a file of captioned images, NAME.jsonl; NAME.objects.jsonl has the boxes, and `coco_classes.txt` next to
    it the classes. `synonyms` is a file with other names of each class, one line per class.
    """
    boxed, classes = read_boxed(study.root)
    names = {stem(name): name for name in classes}  # class by stem of the word
    for first, others in (read_synonyms(synonyms) if synonyms else {}).items():
        names |= {stem(other): first for other in others}
    selected = every_nth(boxed, study.limit)
    pipeline = study.pipeline()
    rows = study.rows(
        "boxes", selected, lambda batch: [row for entry in batch for row in _measure(pipeline, *entry, names)], pipeline
    )
    if not rows:
        raise InputError(f"expected captions that name an annotated object, got none in {len(selected)} images")
    return [_table(level, rows, pipeline.signature) for level in LEVELS]


def read_boxed(path: Path) -> tuple[list[tuple[CaptionedImage, Boxes]], list[str]]:
    """Read captioned images with the boxes of their objects, and all classes; images without boxes are ignored."""
    objects, classes = path.with_suffix(".objects.jsonl"), path.with_name(CLASSES)
    for file in (objects, classes):
        if not file.is_file():
            raise InputError(f"{file}: expected the boxes of {path.name} and their classes, found no such file")
    class_names = [line.strip() for line in classes.read_text(encoding="utf-8").splitlines() if line.strip()]
    boxes_of: dict[str, dict[str, list[Box]]] = {}
    for line in objects.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        for class_index, *box in row["objects"]:
            boxes_of.setdefault(row["image"], {}).setdefault(class_names[int(class_index)], []).append((*box,))
    entries = ((entry, Path(str(getattr(entry.image, "name", entry.image))).name) for entry in captioned_images(path))
    return [(entry, boxes_of[name]) for entry, name in entries if name in boxes_of], class_names


def _measure(pipeline: Pipeline, entry: CaptionedImage, boxed: Boxes, names: Mapping[str, str]) -> list[MapFigures]:
    """Return the figures of the maps of an image's captions, and of their words that name an annotated object."""
    captions = entry.captions
    images = pipeline.embedder.images(pipeline.decode([image_source(entry.image)])).require()
    texts = pipeline.embedder.texts(captions).require()
    measured = pipeline.measure(images, texts, [0] * len(captions), range(len(captions)))
    rows, columns = measured.patches[0].grid
    results: list[MapFigures] = []
    for caption, terms in enumerate(terms_of(pipeline.form, images, texts, measured)):
        unit_of_class: dict[str, Unit] = {}
        for unit in pipeline.form.units(measured, caption):
            label = names.get(stem(unit.text.casefold()))
            if label is not None and unit.judged and unit.tokens and label in boxed:
                unit_of_class.setdefault(label, unit)
        covers = [coverage_of(boxed[label], rows, columns) for label in unit_of_class]
        levels: list[tuple[str, Mapping[str, Floats], Floats]] = [
            ("word", word_maps(terms, unit, (rows, columns)), cover)
            for unit, cover in zip(unit_of_class.values(), covers, strict=True)
        ]
        if covers:
            caption_maps = {name: project(terms)[0] for name, project in PROJECTIONS.items()}
            levels.append(("caption", caption_maps, np.max(covers, axis=0)))
        for level, maps, cover in levels:
            baselines = {"even": np.ones(rows * columns), "centre": centre(rows, columns)}
            results += [
                (entry.id, level, name, *figures(values, cover)) for name, values in {**maps, **baselines}.items()
            ]
    return results


def word_maps(terms: MapTerms, unit: Unit, grid: tuple[int, int]) -> dict[str, Floats]:
    """Return the maps of one word: its region, affinity, and patches that raise the density at its tokens.

    Explanations show the region, of words with a p-value of at least `SURE`, which are measured separately too.
    """
    tokens = list(unit.tokens)
    sharp = sharpened(terms.affinity[tokens], 4).mean(axis=0)
    shown = region(sharp, grid, np.ones(sharp.size, dtype=bool))
    is_sure = unit.p_value is None or unit.p_value >= SURE
    sure = {"region, if shown": shown, "centre, if shown": centre(*grid)} if is_sure else {}
    return {
        "region": shown,
        **sure,
        "affinity": terms.affinity[tokens].mean(axis=0),
        "influence": -terms.removal[tokens].mean(axis=0),
    }


def coverage_of(boxes: Sequence[Box], rows: int, columns: int) -> Floats:
    """Return the share of every patch that is covered by boxes, in row-major order.

    >>> coverage_of([(0.25, 0.5, 0.5, 1.0)], 2, 2).tolist()
    [1.0, 0.0, 1.0, 0.0]
    """
    ys, xs = ((np.arange(count * _STEPS) + 0.5) / (count * _STEPS) for count in (rows, columns))
    inside = np.zeros((len(ys), len(xs)), dtype=bool)
    for x, y, width, height in boxes:
        inside |= (np.abs(xs[None, :] - x) <= width / 2) & (np.abs(ys[:, None] - y) <= height / 2)
    shares: Floats = inside.reshape(rows, _STEPS, columns, _STEPS).mean(axis=(1, 3)).ravel()
    return shares


def figures(values: Floats, cover: Floats) -> tuple[float, float]:
    """Return the pointing game (share of the maxima in boxes) and the share of the positive mass in boxes.

    >>> figures(np.array([3.0, 1.0, -9.0]), np.array([1.0, 0.0, 0.5]))
    (1.0, 0.75)
    """
    mass = np.maximum(values, 0)
    highest = values == values.max()
    total = float(mass.sum())
    return float((cover[highest] >= 0.5).mean()), float(mass @ cover) / total if total > 0 else float(cover.mean())


def _table(level: str, results: Sequence[MapFigures], signature: str) -> Table:
    level_results = [row for row in results if row[1] == level]
    rows: list[Row] = []
    for name in dict.fromkeys(row[2] for row in level_results):
        map_results = [row for row in level_results if row[2] == name]
        images, _, _, hits, shares = zip(*map_results, strict=True)
        means = {"pointing": bootstrap_mean(hits, clusters=images), "mass": bootstrap_mean(shares, clusters=images)}
        rows.append({"map": name, "n": len(map_results), **means})
    columns = [Column("map"), Column("n"), per_cent("pointing", "highest patch in a box"),
               per_cent("mass", "mass in the boxes")]  # fmt: skip
    subject = "words that name an annotated object" if level == "word" else "captions, boxes of all objects they name"
    return Table(name=f"{level}s", title=f"Maps against boxes: {subject}, per cent; higher is better", columns=columns,
                 rows=rows, signature=signature)  # fmt: skip
