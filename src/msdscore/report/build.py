"""The report of a scored file: read, pick, explain, and write one page."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from msdscore.errors import InputError
from msdscore.io.outputs.targets import check_target, put
from msdscore.report.cards import card, most_forgotten, require_same, rows_with_pictures, worst
from msdscore.report.html import Gallery, page
from msdscore.report.reading import read_results

if TYPE_CHECKING:
    from msdscore.scorer import Scorer


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What the page should show: pictures from `images`, `show` cards per gallery, a title.

    `rows` is the file that was scored, where it holds the pictures themselves: a scored file keeps their names alone.
    """

    images: Path | None = None
    rows: Path | None = None
    show: int = 24
    title: str | None = None
    overwrite: bool = False  # replace a page that is there and holds something else


@dataclass(frozen=True, slots=True)
class ReportSummary:
    """What went into the page."""

    rows: int
    failed: int
    explained: int
    unseen: tuple[str, ...] = ()  # why cards have no picture, one reason per card


def build(source: Path, output: Path, wishes: Wishes, *, scorer: "Scorer | None" = None) -> ReportSummary:
    """Write the page of a scored file; with the scorer that made it, words and regions are coloured."""
    check_target(output, (".html", ".htm"), inputs=[source, wishes.rows])
    if wishes.images is not None and not wishes.images.is_dir():
        raise InputError(f"{wishes.images}: no such folder of pictures")
    results = read_results(source)
    if scorer is not None:
        require_same(scorer, results)
    low, forgotten = worst(results, "msd", wishes.show), most_forgotten(results, wishes.show)
    rows = rows_with_pictures(source, wishes.rows, wishes.images, [*low, *forgotten])
    galleries = (
        Gallery("Worst captions", tuple(card(results, n, rows.get(n), "penalty", scorer) for n in low)),
        Gallery("Most forgotten", tuple(card(results, n, rows.get(n), "omission", scorer) for n in forgotten)),
    )
    text = page(results, galleries, wishes.title or source.name)
    put(output, text.encode(), overwrite=wishes.overwrite)
    cards = [one for gallery in galleries for one in gallery.cards]
    unseen = tuple(one.note for one in cards if not one.pictures)
    return ReportSummary(len(results), sum(map(bool, results.errors)), sum(one.explained for one in cards), unseen)
