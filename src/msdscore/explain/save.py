"""Explanations written to a file, in the form that its name asks for."""

import json
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msdscore.errors import require
from msdscore.explain.document import document
from msdscore.explain.terms import Attribution
from msdscore.explain.typeset import any_letters
from msdscore.io.outputs.targets import MARK, check_target, put

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 300


def save(items: Sequence[Attribution], path: Path) -> None:
    """Write a figure (.png, .svg, .pdf), a page (.html) or the numbers (.json), in one step."""
    check_target(path, known_kinds())
    put(path, encoded(items, path.suffix), overwrite=True)


def encoded(items: Sequence[Attribution], kind: str) -> bytes:
    """The bytes of a file of a kind: png, svg, pdf, html or json, by name or suffix."""
    return _WRITERS[f".{kind.lower().removeprefix('.')}"](items)


def known_kinds() -> tuple[str, ...]:
    """The suffixes of files that explanations can be written to.

    >>> known_kinds()
    ('.png', '.svg', '.pdf', '.html', '.json')
    """
    return tuple(_WRITERS)


def png(items: Sequence[Attribution]) -> bytes:
    """The figure as a PNG."""
    from msdscore.explain.draw import figure

    return rendered(figure(items), "png")


def rendered(figure: "Figure", kind: str) -> bytes:
    """A Matplotlib figure as bytes of a kind of file; no date goes in, so equal inputs give equal bytes."""
    place = BytesIO()
    quiet = {"png": {"Software": MARK}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    rc_context: Any = require("matplotlib", extra="figures").rc_context
    # Names inside an SVG are drawn at random unless salted.
    with any_letters(), rc_context({"svg.hashsalt": "msdscore"}):
        figure.savefig(place, format=kind, dpi=DPI, metadata=quiet[kind])
    return place.getvalue()


def to_json(items: Sequence[Attribution]) -> bytes:
    """The numbers, one object per caption."""
    return (
        json.dumps(
            {"explanations": [document(item) for item in items]}, ensure_ascii=False, indent=1, allow_nan=False
        ).encode()
        + b"\n"
    )


def _figure(kind: str) -> Callable[[Sequence[Attribution]], bytes]:
    def write(items: Sequence[Attribution]) -> bytes:
        from msdscore.explain.draw import figure

        return rendered(figure(items), kind)

    return write


def _page(items: Sequence[Attribution]) -> bytes:
    from msdscore.explain.page import page

    return page(items).encode()


_WRITERS: dict[str, Callable[[Sequence[Attribution]], bytes]] = {
    ".png": _figure("png"),
    ".svg": _figure("svg"),
    ".pdf": _figure("pdf"),
    ".html": _page,
    ".json": to_json,
}


FIGURES = (".png", ".svg", ".pdf")


def words_content(explanation: Attribution, suffix: str) -> bytes:
    """The figure of where each word looks, as a file with one of the suffixes of `FIGURES`."""
    from msdscore.explain.draw import word_figure

    return rendered(word_figure(explanation), suffix.lower().removeprefix("."))
