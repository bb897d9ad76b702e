"""Report of a scored file: read it, choose rows, explain them, and write one self-contained page."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import escape
from PIL.Image import Image

from msdscore.core.evidence import verdict_ranges
from msdscore.errors import ConfigError, InputError, RowError
from msdscore.explain.explanation import Explanation
from msdscore.explain.html import data_uri, legend_html, whole_page, words_html
from msdscore.explain.look import remarks
from msdscore.explain.maps import maps_of, overlay, thumbnail
from msdscore.forms.base import Role
from msdscore.forms.registry import COLUMNS, lower_is_better
from msdscore.intervals import Interval, bootstrap_mean
from msdscore.io.images import open_image
from msdscore.io.targets import check_target, put
from msdscore.report.results import HOW, Floats, Results, read_results, rows_with_images, standings
from msdscore.rows.rules import Row

if TYPE_CHECKING:
    from msdscore.scorer import Scorer

THUMB_PIXELS = 220
REMEDY = "pass --images FOLDER, or --rows with the file or folder that was scored"
_MOST_OTHERS = 8  # other columns of the file that the table shows
NAMES = {"msd": "MSD", "soft_msd": "Soft-MSD"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """Contents of the page: images from the folder `images`, `show` cards per gallery, a title.

    `rows` is the file that was scored, if it contains the images: a scored file only has their names.
    """

    images: Path | None = None
    rows: Path | None = None
    show: int = 12
    title: str | None = None
    overwrite: bool = False  # replace an existing page with other contents


@dataclass(frozen=True, slots=True)
class ReportSummary:
    """Counts of the page."""

    rows: int
    failed: int
    explained: int
    unseen: tuple[str, ...] = ()  # why cards have no image, one message per card


def build(
    source: Path,
    output: Path,
    options: ReportOptions,
    *,
    scorer: "Scorer | None" = None,
    default: "Callable[[str], Scorer | None]" = lambda signature: None,
) -> ReportSummary:
    """Write the page of a scored file; with the scorer that computed it, words and regions are coloured.

    If none is passed, `default` is called with the signature of the file.
    """
    check_target(output, (".html", ".htm"), inputs=[source, options.rows])
    if options.images is not None and not options.images.is_dir():
        raise InputError(f"{options.images}: no such folder of images")
    results = read_results(source)
    if scorer is not None and results.signature not in ("", scorer.signature):
        raise ConfigError(
            f"the file was scored with {results.signature}, but the encoder passed has {scorer.signature}; "
            "pass the encoder and settings of the file, or none"
        )
    galleries = choose(results, options.show)
    wanted = sorted({row for *_, chosen in galleries for row in chosen})
    rows = rows_with_images(source, options.rows, options.images, wanted)
    if scorer is None and any(row.image is not None for row in rows.values()):
        scorer = default(results.signature)
    explained = {} if scorer is None else _explained(scorer, rows)
    shown, unseen = list[dict[str, Any]](), list[str]()
    for title, note, role, chosen in galleries:
        cards = [_card(results, number, rows.get(number), role, explained.get(number)) for number in chosen]
        shown.append({"title": title, "note": note, "cards": cards})
        unseen += [card["note"] for card in cards if not card["images"]]
    items = [item for item in explained.values() if isinstance(item, Explanation)]
    legend = legend_html(items) if items else ""
    put(output, report_page(results, shown, options.title or source.name, legend).encode(), overwrite=options.overwrite)
    return ReportSummary(len(results), sum(map(bool, results.errors)), len(items), tuple(unseen))


def choose(results: Results, count: int) -> list[tuple[str, str, Role | None, list[int]]]:
    """Return the galleries for the form that the file was scored with: title, note, map (if any) and rows of each."""
    galleries = []
    for title, column, note, role, per_image in results.form.galleries:
        if column not in results.numbers and column == "match":  # of an encoder without calibration
            column, note = "msd", "lowest msd"
        if column in results.numbers:  # a file of an earlier version may lack one
            galleries.append((title, note, role, worst(results, column, count, per_image=per_image)))
    return galleries


def worst(results: Results, name: str, count: int, *, per_image: bool = False) -> list[int]:
    """Return the rows with the worst value of a number, worst first; `per_image` takes one row per image."""
    values = results.numbers[name] if name in lower_is_better() else -results.numbers[name]
    order = np.argsort(-values, kind="stable")
    rows = [int(row) for row in order if not np.isnan(values[row])]
    if per_image:
        clusters, first = results.clusters, dict[str, int]()
        for row in rows:
            first.setdefault(clusters[row], row)
        rows = list(first.values())
    return rows[:count]


def _explained(scorer: "Scorer", rows: Mapping[int, Row]) -> dict[int, Explanation | RowError]:
    """Explain the rows that have an image and a caption, by number."""
    good = {number: row for number, row in rows.items() if row.error is None}
    pairs = {number: (row.image, row.caption) for number, row in good.items() if row.image is not None}
    images, captions = [image for image, _ in pairs.values()], [caption for _, caption in pairs.values()]
    return dict(zip(pairs, scorer.explain_batch(images, captions), strict=True)) if pairs else {}


def _card(
    results: Results, number: int, row: Row | None, role: Role | None, explained: Explanation | RowError | None
) -> dict[str, Any]:
    """Return the card of one row; content that cannot be shown is omitted with a note, never the row.

    `words` is escaped HTML; `images` are data URIs, as seen and as explained; `lines` say an explanation in words.
    """
    words, images, lines, shown, note = str(escape(results.captions[number])), list[Image](), list[str](), "", ""
    if isinstance(explained, Explanation):
        small = thumbnail(explained.image, THUMB_PIXELS)
        images = [small]
        if role is not None:
            images.append(overlay(small, explained.patches, maps_of([explained], [role])[0][role]))
        words = str(words_html(explained))
        lines = [line for line in (explained.score.headline, *remarks(explained)) if line]
    elif isinstance(explained, RowError):
        note = str(explained)
    else:
        shown, note = row_image(row)
        note += f"; {REMEDY}" if row is None or row.image is None else ""
    return {
        "row": number,
        "words": words,
        "images": [data_uri(image) for image in images] or [shown] * bool(shown),
        "lines": lines,
        "note": note,
        "explained": isinstance(explained, Explanation),
    }


def row_image(row: Row | None) -> tuple[str, str]:
    """Return the reduced image of a row as a data URI, or why it has none."""
    if row is None or row.image is None:
        return "", str((row.error if row else None) or "the file does not name its image")
    try:
        return data_uri(thumbnail(open_image(row.image), THUMB_PIXELS)), ""
    except RowError as error:
        return "", str(error)


def report_page(results: Results, galleries: Sequence[Mapping[str, Any]], title: str, legend: str) -> str:
    """Return the whole document; every text of the file is data or escaped."""
    labels = {name: NAMES.get(name, name) for name in results.metrics}
    values = {
        "title": title,
        "signature": results.signature or "unknown: the file has no signature",
        "plots": [
            (name, COLUMNS[name].meaning, "↓" if name in lower_is_better() else "↑")
            for name in dict.fromkeys(("similarity", *results.form.plotted, "invented"))
            if name in results.numbers
        ],
        "parts": results.form.plotted,
        "legend": legend,
        "data": {
            "rows": len(results),
            "numbers": {name: rounded(values) for name, values in results.numbers.items()},
            "texts": {"id": results.ids, "caption": results.captions, "error": results.errors}
            | ({} if results.systems is None else {"system": results.systems})
            | ({"verdict": results.verdicts} if "match" in results.numbers else {}),
            "others": dict(list(results.others.items())[:_MOST_OTHERS]),
            "names": labels,
            "parts": results.form.plotted,
            "means": {name: _mean(results, name) for name in results.metrics},
            "systems": {
                name: [
                    {"system": system, "captions": captions, "mean": _interval(mean)}
                    for system, captions, mean in standings(results, name)
                ]
                for name in results.metrics
            },
            "lower": sorted(lower_is_better()),
            "verdicts": verdict_ranges(results.verdict_at),
            "galleries": galleries,
        },
    }
    return whole_page("msdscore.report", "report.html", values, styles=["base.css", "report.css"], script="report.js")


def rounded(values: Floats) -> list[float | None]:
    """Round to five digits, more than a screen shows; a missing number is null.

    >>> rounded(np.array([0.123456789, np.nan]))
    [0.12346, None]
    """
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in values.tolist()]


def _mean(results: Results, name: str) -> list[float | None] | None:
    values = results.numbers[name]
    good = ~np.isnan(values)
    if not good.any():
        return None
    return _interval(bootstrap_mean(values[good], clusters=np.array(results.clusters)[good], how=HOW))


def _interval(interval: Interval) -> list[float | None]:
    """Return the value and the ends; an unknown end, as for a single image, is null."""
    return [end if np.isfinite(end) else None for end in (interval.value, interval.low, interval.high)]
