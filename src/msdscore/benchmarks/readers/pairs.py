"""Benchmarks of two captions of which one is right: SugarCrepe, COCO-CF, VALSE, FOIL and Pascal-50S."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from msdscore.benchmarks.base import Image, ItemSet, Note, Pair, image_key
from msdscore.benchmarks.readers.files import (
    chosen,
    coco_captions,
    field,
    find,
    find_all,
    find_optional,
    folder,
    locate,
    read_json,
    tidy,
)
from msdscore.errors import InputError, require
from msdscore.io.parquet_images import stored_images

SUGARCREPE_SUBSETS = (
    "replace_obj",
    "replace_att",
    "replace_rel",
    "swap_obj",
    "swap_att",
    "add_obj",
    "add_att",
)
_GET_SUGARCREPE = "https://github.com/RAIVNLab/sugar-crepe (folder data)"


def read_sugarcrepe(root: Path, *, subsets: str | Sequence[str] = SUGARCREPE_SUBSETS) -> ItemSet[Pair]:
    """SugarCrepe, COCO captions against minimally changed ones: the released `SUBSET.json` files.

    Keys have gaps and become ids.
    """
    images = folder(root, "val2017", "images/val2017", "coco/images/val2017", "data/coco/images/val2017")
    pairs = []
    for name in chosen("subset", subsets, SUGARCREPE_SUBSETS):
        path = find(root, f"{name}.json", f"data/{name}.json", get=_GET_SUGARCREPE)
        for key, row in read_json(path).items():
            file, right, wrong = (
                field(row, column, where=f"{path} key {key}") for column in ("filename", "caption", "negative_caption")
            )
            pairs.append(Pair(f"{name}/{key}", images / file, right, wrong, subset=name))
    return ItemSet(tuple(pairs))


COCO_CF_SPLITS = ("easy", "hard")
_COCO_CF_PARTS = {"split": "", "change": "subset", "captioner": "captioner"}
_GET_COCO_CF = "the MSD-Score authors: the file is not released"


def read_coco_cf(
    root: Path, *, splits: str | Sequence[str] = COCO_CF_SPLITS, images: str = "", by: str = "split"
) -> ItemSet[Pair]:
    """COCO-CF, generated captions against counterfactual edits: a list of rows, or {"data": rows, "meta": …}.

    A caption that begins with "ERROR:" is a failed generation, and its row is left out and counted. `images` is another
    folder of the images, or of Parquet files that hold them (`*.images*.parquet`). With `by=change` the parts are the
    changes that the rows record (`easy/replace_obj`), with `by=captioner` the sources of the captions.
    """
    pairs, failed, part = [], 0, _COCO_CF_PARTS[chosen("way to part", by, _COCO_CF_PARTS)[0]]
    find_image = _image_finder(root, images)
    for split in chosen("split", splits, COCO_CF_SPLITS):
        name = f"coco_cf_{split}.json"
        path = find(root, name, f"coco_cf/{name}", f"data/coco_cf/{name}", get=_GET_COCO_CF)
        content = read_json(path, (list, dict))
        rows = field(content, "data", where=str(path)) if isinstance(content, dict) else content
        kept = _coco_cf_split(path, split, rows, find_image, part)
        failed += len(rows) - len(kept)
        pairs += kept
    notes = (Note("failed generations left out", failed),) if failed else ()
    return ItemSet(tuple(pairs), notes)


def _image_finder(root: Path, images: str) -> Callable[[Path], Image]:
    """A function from the name of an image to where it lies."""
    home = Path(images) if images else folder(root, "val2017", "images/val2017", "data/images/val2017")
    stored = stored_images(find_all(home, "*.images*.parquet"), "file_name") if images else {}
    return lambda image: stored.get(image.name) or (image if image.is_file() else home / image.name)


def _coco_cf_split(
    path: Path, split: str, rows: list[dict[str, Any]], find_image: Callable[[Path], Image], part: str
) -> list[Pair]:
    seen: Counter[str] = Counter()
    pairs = []
    for number, row in enumerate(rows):
        where = f"{path} row {number}"
        positive = field(row, "caption", where=where)
        negative = field(row, "negative_caption", "neg_caption", where=where)
        image = Path(field(row, "image_path", where=where))
        key = str(row.get("image_id", image.stem))
        if not any(str(text).startswith("ERROR:") for text in (positive, negative)):
            subset = f"{split}/{field(row, part, where=where)}" if part else split
            pairs.append(Pair(f"{split}/{key}:{seen[key]}", find_image(image), positive, negative, subset=subset))
        seen[key] += 1
    return pairs


VALSE_PIECES = (
    "existence",
    "plurals",
    "counting-hard",
    "counting-small-quant",
    "counting-adversarial",
    "relations",
    "action-replacement",
    "actant-swap",
    "coreference-standard",
    "coreference-hard",
    "foil-it",
)
_ENOUGH_VOTES = 2
_GET_VALSE = "https://github.com/Heidelberg-NLP/VALSE (folder data)"


def read_valse(root: Path, *, pieces: str | Sequence[str] = VALSE_PIECES) -> ItemSet[Pair]:
    """VALSE, foils by linguistic phenomenon: pairs whose caption, not foil, two of three annotators chose."""
    pairs, invalid = [], 0
    for piece in chosen("piece", pieces, VALSE_PIECES):
        loose = piece.replace("-", "?")  # the authors' own scripts spell some with underscores
        path = find(root, f"{loose}.json", f"data/{loose}.json", get=_GET_VALSE)
        for key, row in read_json(path).items():
            votes = row.get("mturk") or {}
            counts = int(votes.get("caption", 0)), int(votes.get("foil", 0))
            if counts[0] < _ENOUGH_VOTES:
                invalid += 1
                continue
            fields = [field(row, name, where=f"{path} key {key}") for name in ("caption", "foil", "image_file")]
            caption, foil, image = (value[0] if isinstance(value, list) else value for value in fields)
            source = folder(root, f"images/{row.get('dataset', '')}", "images") / image
            pairs.append(Pair(f"{piece}/{key}", source, caption, foil, subset=piece, votes=counts))
    notes = (Note("pairs left out: annotators did not confirm the foil", invalid),) if invalid else ()
    return ItemSet(tuple(pairs), notes)


_GET_FOIL = "https://foilunitn.github.io (foilv1.0_test_2017.json)"


def read_foil(root: Path, *, sample: Literal["all", "one-per-image"] = "all", seed: int = 0) -> ItemSet[Pair]:
    """FOIL, COCO captions with one wrong word: each original with all its foils, or one pair per image by `seed`.

    The latter is CLIPScore's way. Annotations that share an `id` belong together: one original, one or more foils.
    References are the image's other COCO captions, where `captions_val2014.json` lies under `root`.
    """
    path = find(root, "foilv1.0_test_2017.json", "foil/foilv1.0_test_2017.json", get=_GET_FOIL)
    content = read_json(path)
    names = {row["id"]: row["file_name"] for row in content.get("images", ())}
    groups: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in field(content, "annotations", where=str(path)):
        groups[field(row, "id", where=str(path))].append(row)
    images, references = folder(root, "val2014", "coco/val2014", "images/val2014"), coco_captions(root)
    pairs, incomplete = list[Pair](), 0
    for group in groups.values():
        originals = [row for row in group if not row["foil"]]
        if len(originals) != 1 or len(group) == 1:
            incomplete += 1
            continue
        number, positive = int(originals[0]["image_id"]), tidy(originals[0]["caption"])
        image = images / names.get(number, f"COCO_val2014_{number:012d}.jpg")
        others = tuple(text for text in references.get(number, ()) if text != positive)
        foils = [tidy(row["caption"]) for row in group if row["foil"]]
        pairs += [
            Pair(f"{originals[0]['id']}/{k}", image, positive, foil, references=others) for k, foil in enumerate(foils)
        ]
    notes = (Note("captions left out: not one original with a foil", incomplete),) if incomplete else ()
    return ItemSet(tuple(pairs if sample == "all" else _one_per_image(pairs, seed)), notes)


def _one_per_image(pairs: list[Pair], seed: int) -> list[Pair]:
    by_image: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        by_image[image_key(pair.image)].append(pair)
    rng = np.random.default_rng(seed)
    return [group[rng.integers(len(group))] for group in by_image.values()]


_CATEGORIES = {1: "HC", 2: "HI", 3: "HM", 4: "MM"}
_VOTES = 48
_REFERENCES = 5
_DRAWS = 5  # of five references out of 48, averaged
_YEARS = ("VOC2010", "VOC2012", "VOC2008", "VOC2007")
_PASCAL_FOLDERS = (
    "JPEGImages", *(f"{where}{year}/JPEGImages" for where in ("", "VOCdevkit/") for year in _YEARS), "images"
)  # fmt: skip
_GET_PASCAL = "https://vrama91.github.io/cider (pyCIDErConsensus), or pascal_50s.json of FLEUR"


def read_pascal50s(root: Path, *, seed: int = 0) -> ItemSet[Pair]:
    """Pascal-50S, the caption that more of 48 people found closer: `pascal_50s.json`, or the .mat files.

    From `pair_pascal.mat` and the votes of `consensus_pascal.mat` the majority decides; a draw is broken by `seed`, and
    so are the five references that reference-based metrics may see. The JSON form has both frozen.
    """
    packed = find_optional(root, "pascal_50s.json", "pascal50s.json")
    if packed is None:
        return _pascal_from_mat(root, seed)
    pairs = []
    for category, entries in read_json(packed).items():
        for number, entry in enumerate(entries):
            where = f"{packed} {category} row {number}"
            captions, label = field(entry, "captions", where=where), field(entry, "label", where=where)
            if len(captions) != 2 or label not in (0, 1):
                raise InputError(f"{where}: expected 2 captions and a label 0 or 1, got label {label!r}")
            image = locate(root, str(field(entry, "image", where=where)), *_PASCAL_FOLDERS)
            references = tuple(entry.get("references", ()))
            best, other = captions[label], captions[1 - label]
            pairs.append(Pair(f"{category}/{number}", image, best, other, subset=category, references=references))
    return ItemSet(tuple(pairs))


def _pascal_from_mat(root: Path, seed: int) -> ItemSet[Pair]:
    pairs_path = find(root, "pair_pascal.mat", "pyCIDErConsensus/pair_pascal.mat", get=_GET_PASCAL)
    votes_path = find(root, "consensus_pascal.mat", "pyCIDErConsensus/consensus_pascal.mat", get=_GET_PASCAL)
    scipy_io: Any = require("scipy.io", extra="stats")
    content, triplets = scipy_io.loadmat(pairs_path), scipy_io.loadmat(votes_path)["triplets"][0]
    inputs, categories = content["new_input"][0], content["category"].ravel()
    if len(triplets) != _VOTES * len(inputs):
        raise InputError(f"{votes_path}: expected {_VOTES} votes for each of {len(inputs)} pairs")
    rng, images = np.random.default_rng(seed), folder(root, *_PASCAL_FOLDERS)
    pairs = [
        _voted_pair(i, inputs[i], triplets[_VOTES * i : _VOTES * (i + 1)], _CATEGORIES[int(categories[i])], images, rng)
        for i in range(len(inputs))
    ]
    drawn = sum(pair.votes[0] == pair.votes[1] for pair in pairs)
    notes = (Note("pairs whose votes are a draw, decided by seed", drawn),) if drawn else ()
    return ItemSet(tuple(pairs), notes, draws=_DRAWS)


def _voted_pair(number: int, entry: Any, votes: Any, category: str, images: Path, rng: np.random.Generator) -> Pair:
    image, first, second = (_text(cell) for cell in list(entry)[:3])
    preferred = [_text(row[1]) if int(_scalar(row[3])) == 1 else _text(row[2]) for row in votes]
    counts = (preferred.count(first), _VOTES - preferred.count(first))
    if not {*preferred} <= {first, second}:
        raise InputError(f"pair {number}: the votes are for other captions than {first!r} and {second!r}")
    coin, drawn = rng.integers(2), rng.choice(_VOTES, _REFERENCES, replace=False)
    swap = counts[1] > counts[0] or (counts[0] == counts[1] and coin == 1)
    best, other = (second, first) if swap else (first, second)
    references = tuple(_text(votes[k][0]) for k in sorted(drawn))
    ordered = counts[::-1] if swap else counts
    return Pair(f"{category}/{number}", images / image, best, other, category, references, ordered)


def _scalar(cell: Any) -> Any:
    """The single value of MATLAB's nested one-by-one arrays."""
    while isinstance(cell, np.ndarray):
        cell = cell.ravel()[0]
    return cell


def _text(cell: Any) -> str:
    return str(_scalar(cell)).strip()
