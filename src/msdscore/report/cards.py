"""Worst captions and most forgotten regions, each with its picture, and coloured words where there is an encoder."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from markupsafe import escape
from PIL.Image import Image

from msdscore.encoders.base import PatchLayout
from msdscore.errors import ConfigError, InputError, RowError
from msdscore.explain.explanation import Explanation
from msdscore.explain.overlay import map_of, map_scale, overlay, thumbnail, word_scale
from msdscore.explain.snippet import data_uri, words_html
from msdscore.io.images import open_image
from msdscore.io.inputs.rows import Row, open_rows
from msdscore.report.reading import Results, run_facts

if TYPE_CHECKING:
    from msdscore.scorer import Scorer

Emphasis = Literal["penalty", "omission"]
THUMB_PIXELS = 220
REMEDY = "give --images FOLDER, or --rows with the file that was scored"


@dataclass(frozen=True, slots=True)
class Card:
    """One row to look at: `words` is HTML, made safe here; `pictures` are data URIs, as seen and as explained."""

    row: int
    words: str
    pictures: tuple[str, ...]
    explained: bool
    note: str


def worst(results: Results, name: str, count: int) -> list[int]:
    """Rows with the lowest score, or the highest coverage divergence, worst first."""
    values = results.numbers[name] if name == "coverage" else -results.numbers[name]
    order = np.argsort(-np.nan_to_num(values, nan=-np.inf), kind="stable")
    return [int(row) for row in order[:count] if not np.isnan(values[row])]


def most_forgotten(results: Results, count: int) -> list[int]:
    """Rows whose pictures are described least, one per picture."""
    seen: set[str] = set()
    chosen: list[int] = []
    for row in worst(results, "coverage", len(results)):
        if len(chosen) == count:
            break
        if results.pictures[row] not in seen:
            chosen.append(row)
            seen.add(results.pictures[row] or f"\0{row}")
    return chosen


def rows_with_pictures(scored: Path, given: Path | None, images: Path | None, wanted: Sequence[int]) -> dict[int, Row]:
    """The rows with their pictures; empty where no file names any.

    They are read from the file `given`, else from the one that was scored if it is still the same (it knows pictures
    that came as bytes, and paths beside it), else from the scores themselves.
    """
    needed, run = set(wanted), run_facts(scored)
    places = [given] if given else [scored] if images else [run.source, scored]
    for place in filter(None, places):
        try:
            with open_rows(place, images=images, columns=run.columns) as source:
                if place == run.source and source.fingerprint != run.fingerprint:
                    continue
                return {row.index: row for row in source.read() if row.index in needed} if needed else {}
        except InputError:  # a file whose rows name no picture
            continue
    return {}


def require_same(scorer: "Scorer", results: Results) -> None:
    """Refuse to explain scores with another encoder or other settings than made them."""
    if results.signature and scorer.signature != results.signature:
        raise ConfigError(
            f"the file was scored with {results.signature}, but the encoder and settings given are {scorer.signature}; "
            "give the same ones, or none"
        )


def card(results: Results, number: int, row: Row | None, view: Emphasis, scorer: "Scorer | None") -> Card:
    """The card of one row; what cannot be shown is left out with a note, never the row."""
    plain = str(escape(results.captions[number]))
    if row is None or row.image is None:
        reason = (row.error if row is not None else None) or "the file does not name its picture"
        return Card(number, plain, (), False, f"{reason}; {REMEDY}")
    try:
        if scorer is not None and row.caption:
            return _explained(scorer.explain(row.image, row.caption), number, view)
        return Card(number, plain, (data_uri(thumbnail(open_image(row.image), THUMB_PIXELS)),), False, "")
    except RowError as error:
        return Card(number, plain, (), False, str(error))


def _explained(item: Explanation, number: int, view: Emphasis) -> Card:
    small = thumbnail(item.picture, THUMB_PIXELS)
    tinted = overlay(small, map_of(item, view), item.patches, view, map_scale([item], view))
    # Beside the map the picture itself, or the part of it that the caption forgot most.
    beside = [small, tinted] if view == "penalty" else [tinted, thumbnail(_forgotten(item), THUMB_PIXELS)]
    return Card(number, str(words_html(item, word_scale([item]))), tuple(map(data_uri, beside)), True, "")


def _forgotten(item: Explanation) -> Image:
    """The patch with the highest coverage term and its neighbours, cut from the picture in colour."""
    layout: PatchLayout = item.patches
    left, top, right, bottom = layout.boxes[int(np.argmax(item.coverage_terms))].tolist()
    wide, high = max(right - left, 1.0), max(bottom - top, 1.0)
    box = (left - wide, top - high, right + wide, bottom + high)
    width, height = item.picture.size
    cut = (max(0, int(box[0])), max(0, int(box[1])), min(width, round(box[2])), min(height, round(box[3])))
    return item.picture.crop(cut)
