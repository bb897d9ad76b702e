"""Pascal-50S: which of two captions 48 people found closer to the image's, in four categories."""

from pathlib import Path
from typing import Any

import numpy as np

from msdscore.benchmarks.base import ItemSet, Note, Pair
from msdscore.benchmarks.readers.files import field, find, find_optional, folder, locate, read_json
from msdscore.errors import InputError, require

CATEGORIES = {1: "HC", 2: "HI", 3: "HM", 4: "MM"}
VOTES = 48
REFERENCES = 5
DRAWS = 5  # of five references out of 48, averaged
_YEARS = ("VOC2010", "VOC2012", "VOC2008", "VOC2007")
_FOLDERS = (
    "JPEGImages", *(f"{where}{year}/JPEGImages" for where in ("", "VOCdevkit/") for year in _YEARS), "images"
)  # fmt: skip
GET = "https://vrama91.github.io/cider (pyCIDErConsensus), or pascal_50s.json of FLEUR"


def read(root: Path, *, seed: int = 0) -> ItemSet[Pair]:
    """The pairs of `pascal_50s.json`, or of `pair_pascal.mat` with the votes of `consensus_pascal.mat`.

    From the .mat files the majority of the votes decides; a draw is broken by `seed`, and so are the five
    references that reference-based metrics may see. The JSON form has both frozen.
    """
    packed = find_optional(root, "pascal_50s.json", "pascal50s.json")
    if packed is not None:
        return ItemSet(tuple(_from_json(root, packed)))
    return _from_mat(root, folder(root, *_FOLDERS), seed)


def _from_json(root: Path, path: Path) -> list[Pair]:
    pairs = []
    for category, entries in read_json(path).items():
        for number, entry in enumerate(entries):
            where = f"{path} {category} row {number}"
            captions, label = field(entry, "captions", where=where), field(entry, "label", where=where)
            if len(captions) != 2 or label not in (0, 1):
                raise InputError(f"{where}: expected 2 captions and a label 0 or 1, got label {label!r}")
            image = locate(root, str(field(entry, "image", where=where)), *_FOLDERS)
            identity, references = f"{category}/{number}", tuple(entry.get("references", ()))
            best, other = captions[label], captions[1 - label]
            pairs.append(Pair(identity, image, best, other, subset=category, references=references))
    return pairs


def _from_mat(root: Path, images: Path, seed: int) -> ItemSet[Pair]:
    pairs_path = find(root, "pair_pascal.mat", "pyCIDErConsensus/pair_pascal.mat", get=GET)
    votes_path = find(root, "consensus_pascal.mat", "pyCIDErConsensus/consensus_pascal.mat", get=GET)
    scipy_io: Any = require("scipy.io", extra="stats")
    found, triplets = scipy_io.loadmat(pairs_path), scipy_io.loadmat(votes_path)["triplets"][0]
    inputs, categories = found["new_input"][0], found["category"].ravel()
    if len(triplets) != VOTES * len(inputs):
        raise InputError(f"{votes_path}: expected {VOTES} votes for each of {len(inputs)} pairs")
    rng = np.random.default_rng(seed)
    pairs = [
        _pair(i, inputs[i], triplets[VOTES * i : VOTES * (i + 1)], CATEGORIES[int(categories[i])], images, rng)
        for i in range(len(inputs))
    ]
    drawn = sum(pair.votes[0] == pair.votes[1] for pair in pairs)
    notes = (Note("pairs whose votes are a draw, decided by seed", drawn),) if drawn else ()
    return ItemSet(tuple(pairs), notes, draws=DRAWS)


def _pair(number: int, entry: Any, votes: Any, category: str, images: Path, rng: np.random.Generator) -> Pair:
    image, first, second = (_text(cell) for cell in list(entry)[:3])
    chosen = [_text(row[1]) if int(_scalar(row[3])) == 1 else _text(row[2]) for row in votes]
    counts = (chosen.count(first), VOTES - chosen.count(first))
    if not {*chosen} <= {first, second}:
        raise InputError(f"pair {number}: the votes are for other captions than {first!r} and {second!r}")
    coin, drawn = rng.integers(2), rng.choice(VOTES, REFERENCES, replace=False)
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
