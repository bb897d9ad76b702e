"""Readers of benchmarks with a right and a wrong caption: SugarCrepe, COCO-CF and Pascal-50S."""

from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from msdscore.errors import ConfigError, InputError
from msdscore.rows.images import StoredImages
from msdscore_lab.benchmarks.base import ItemSet, Pair
from msdscore_lab.benchmarks.readers import files
from msdscore_lab.benchmarks.readers.files import RawRow, numbered, records

SUGARCREPE_SUBSETS = ("replace_obj", "replace_att", "replace_rel", "swap_obj", "swap_att", "add_obj", "add_att")
_GET_SUGARCREPE = "https://github.com/RAIVNLab/sugar-crepe (folder data)"


def read_sugarcrepe(root: Path, *, subsets: str | Sequence[str] = SUGARCREPE_SUBSETS) -> ItemSet[Pair]:
    """Read SugarCrepe, COCO captions against minimally changed ones: the released `SUBSET.json` files.

    The keys of the files, which have gaps, are the ids.
    """
    images = files.folder(root, "val2017", "images/val2017", "coco/images/val2017", "data/coco/images/val2017")
    pairs = []
    for name in files.select_names("subset", subsets, SUGARCREPE_SUBSETS):
        path = files.find(root, f"{name}.json", f"data/{name}.json", get=_GET_SUGARCREPE)
        for row in records(files.read_json(path), path):
            image, right, wrong = images / row.get("filename"), row.get("caption"), row.get("negative_caption")
            pairs.append(Pair(f"{name}/{row.key}", image, right, wrong, subset=name))
    return ItemSet(tuple(pairs))


COCO_CF_SPLITS = ("easy", "hard")
_COCO_CF_PARTS = {"split": "", "change": "subset", "captioner": "captioner"}
_GET_COCO_CF = "the MSD-Score authors: the file is not released"


def read_coco_cf(
    root: Path, *, splits: str | Sequence[str] = COCO_CF_SPLITS, images: str = "", by: str = "split"
) -> ItemSet[Pair]:
    """Read COCO-CF, generated captions against counterfactual edits: a list of rows, or {"data": rows, "meta": …}.

    Rows with a failed generation, a caption that begins with "ERROR:", are excluded and counted. `images` is another
    folder of the images, or of Parquet files with images (`*.images*.parquet`). With `by=change` subsets are the kinds
    of change (`easy/replace_obj`), with `by=captioner` the sources of the captions.
    """
    pairs, failed, subset_field = [], 0, _COCO_CF_PARTS[files.select_names("grouping", by, _COCO_CF_PARTS)[0]]
    image_folder = Path(images) if images else files.folder(root, "val2017", "images/val2017", "data/images/val2017")
    stored = StoredImages(files.find_all(image_folder, "*.images*.parquet") if images else (), "file_name")
    for split in files.select_names("split", splits, COCO_CF_SPLITS):
        name = f"coco_cf_{split}.json"
        file = files.find(root, name, f"coco_cf/{name}", f"data/coco_cf/{name}", get=_GET_COCO_CF)
        content = files.read_json(file, (list, dict))
        rows = RawRow("", content, str(file)).get("data") if isinstance(content, dict) else content
        seen: Counter[str] = Counter()
        for row in records(rows, file):
            positive, negative = row.get("caption"), row.get("negative_caption", "neg_caption")
            path = Path(row.get("image_path"))
            key = f"{split}/{numbered(str(row.fields.get('image_id', path.stem)), seen)}"
            if any(str(text).startswith("ERROR:") for text in (positive, negative)):
                failed += 1
                continue
            subset = f"{split}/{row.get(subset_field)}" if subset_field else split
            image = stored.find(path.name) or (path if path.is_file() else image_folder / path.name)
            pairs.append(Pair(key, image, positive, negative, subset=subset))
    return ItemSet(tuple(pairs), {"failed generations left out": failed})


_CATEGORIES = {1: "HC", 2: "HI", 3: "HM", 4: "MM"}
_VOTES = 48
_REFERENCES = 5
_DRAWS = 5  # random draws of the references, averaged
_YEARS = ("VOC2010", "VOC2012", "VOC2008", "VOC2007")
_PASCAL_FOLDERS = (
    "JPEGImages", *(f"{where}{year}/JPEGImages" for where in ("", "VOCdevkit/") for year in _YEARS), "images"
)  # fmt: skip
_GET_PASCAL = "https://vrama91.github.io/cider (pyCIDErConsensus), or pascal_50s.json of FLEUR"


def read_pascal50s(root: Path, *, seed: int = 0, references: int = _REFERENCES) -> ItemSet[Pair]:
    """Read Pascal-50S, the caption that most of 48 people preferred: `pascal_50s.json`, or the .mat files.

    With `pair_pascal.mat` and the votes of `consensus_pascal.mat`, `seed` breaks ties of the majority and draws the
    `references` (5, up to 48) of reference-based metrics. In the JSON form both are fixed.
    """
    if not 1 <= int(references) <= _VOTES:
        raise ConfigError(f"expected 1 to {_VOTES} references, got {references}")
    packed = files.find_optional(root, "pascal_50s.json", "pascal50s.json")
    if packed is None:
        return _pascal_from_mat(root, seed, int(references))
    pairs = []
    for category, entries in files.read_json(packed).items():
        for row in records(entries, f"{packed} {category}"):
            image = files.locate(root, str(row.get("image")), *_PASCAL_FOLDERS)
            row_references = tuple(row.fields.get("references", ()))
            pairs.append(Pair(f"{category}/{row.key}", image, *files.chosen_first(row), category, row_references))
    return ItemSet(tuple(pairs))


def _pascal_from_mat(root: Path, seed: int, count: int) -> ItemSet[Pair]:
    pairs_path = files.find(root, "pair_pascal.mat", "pyCIDErConsensus/pair_pascal.mat", get=_GET_PASCAL)
    votes_path = files.find(root, "consensus_pascal.mat", "pyCIDErConsensus/consensus_pascal.mat", get=_GET_PASCAL)
    scipy_io: Any = import_module("scipy.io")
    content, triplets = scipy_io.loadmat(pairs_path), scipy_io.loadmat(votes_path)["triplets"][0]
    inputs, categories = content["new_input"][0], content["category"].ravel()
    if len(triplets) != _VOTES * len(inputs):
        raise InputError(f"{votes_path}: expected {_VOTES} votes for each of {len(inputs)} pairs")
    rng, images = np.random.default_rng(seed), files.folder(root, *_PASCAL_FOLDERS)
    pairs, draws = [], 0
    for index, entry in enumerate(inputs):
        category = _CATEGORIES[int(categories[index])]
        image, first, second = (_text(cell) for cell in list(entry)[:3])
        votes = triplets[_VOTES * index : _VOTES * (index + 1)]
        preferred = [_text(row[1]) if float(_text(row[3])) == 1 else _text(row[2]) for row in votes]
        if not {*preferred} <= {first, second}:
            raise InputError(f"pair {index}: the votes are for other captions than {first!r} and {second!r}")
        counts = (preferred.count(first), _VOTES - preferred.count(first))
        coin, reference_rows = rng.integers(2), rng.choice(_VOTES, count, replace=False)
        draws += counts[0] == counts[1]
        if counts[1] > counts[0] or (counts[0] == counts[1] and coin == 1):
            first, second, counts = second, first, counts[::-1]
        references = tuple(_text(votes[vote][0]) for vote in sorted(reference_rows))
        pairs.append(Pair(f"{category}/{index}", images / image, first, second, category, references, counts))
    notes = {"pairs whose votes are a draw, decided by seed": draws}
    return ItemSet(tuple(pairs), notes, draws=_DRAWS if count < _VOTES else 1)


def _text(cell: Any) -> str:
    """Return the single value of MATLAB's nested one-by-one arrays as text."""
    while isinstance(cell, np.ndarray):
        cell = cell.ravel()[0]
    return str(cell).strip()
