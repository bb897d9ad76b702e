"""VALSE: captions against foils in eleven pieces, each about one linguistic phenomenon."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msdscore.benchmarks.base import ItemSet, Note, Pair
from msdscore.benchmarks.readers.files import chosen, field, find, folder, read_json

PIECES = (
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
ENOUGH_VOTES = 2
GET = "https://github.com/Heidelberg-NLP/VALSE (folder data)"


def read(root: Path, *, pieces: str | Sequence[str] = PIECES) -> ItemSet[Pair]:
    """The valid pairs of the pieces: at least two of three annotators chose the caption and not the foil."""
    pairs, invalid = [], 0
    for piece in chosen("piece", pieces, PIECES):
        loose = piece.replace("-", "?")  # the authors' own scripts spell some with underscores
        path = find(root, f"{loose}.json", f"data/{loose}.json", get=GET)
        rows = read_json(path)
        valid = {key: row for key, row in rows.items() if _votes(row)[0] >= ENOUGH_VOTES}
        invalid += len(rows) - len(valid)
        pairs += [_pair(root, path, piece, key, row) for key, row in valid.items()]
    notes = (Note("pairs left out: annotators did not confirm the foil", invalid),) if invalid else ()
    return ItemSet(tuple(pairs), notes)


def _votes(row: dict[str, Any]) -> tuple[int, int]:
    votes = row.get("mturk") or {}
    return int(votes.get("caption", 0)), int(votes.get("foil", 0))


def _pair(root: Path, path: Path, piece: str, key: str, row: dict[str, Any]) -> Pair:
    where = f"{path} key {key}"
    caption, foil, image = (field(row, f, where=where) for f in ("caption", "foil", "image_file"))
    place = folder(root, f"images/{row.get('dataset', '')}", "images") / image
    return Pair(f"{piece}/{key}", place, _one(caption), _one(foil), subset=piece, votes=_votes(row))


def _one(text: str | list[str]) -> str:
    return text[0] if isinstance(text, list) else text
