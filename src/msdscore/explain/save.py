"""Explanations written to a file, in the form that its name asks for."""

import json
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msdscore.errors import require
from msdscore.explain.document import document
from msdscore.explain.figure import figure, word_figure
from msdscore.explain.html import page
from msdscore.explain.terms import Attribution
from msdscore.explain.typeset import any_letters
from msdscore.io.outputs.targets import MARK, check_target, put

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 300
FIGURES = (".png", ".svg", ".pdf")


def save(items: Sequence[Attribution], path: Path) -> None:
    """Write a figure (.png, .svg, .pdf), a page (.html) or the numbers (.json), in one step."""
    check_target(path, known_kinds())
    put(path, encoded(items, path.suffix), overwrite=True)


def encoded(items: Sequence[Attribution], kind: str) -> bytes:
    """The bytes of a file of a kind: png, svg, pdf, html or json, by name or suffix."""
    kind = kind.lower().removeprefix(".")
    if kind == "html":
        return page(items).encode()
    return to_json(items) if kind == "json" else rendered(figure(items), kind)


def words_content(explanation: Attribution, suffix: str) -> bytes:
    """The figure of where each word looks, as a file with one of the suffixes of `FIGURES`."""
    return rendered(word_figure(explanation), suffix.lower().removeprefix("."))


def known_kinds() -> tuple[str, ...]:
    """The suffixes of files that explanations can be written to.

    >>> known_kinds()
    ('.png', '.svg', '.pdf', '.html', '.json')
    """
    return (*FIGURES, ".html", ".json")


def to_json(items: Sequence[Attribution]) -> bytes:
    """The numbers, one object per caption."""
    explanations = {"explanations": [document(item) for item in items]}
    return (json.dumps(explanations, ensure_ascii=False, indent=1, allow_nan=False) + "\n").encode()


def rendered(drawn: "Figure", kind: str) -> bytes:
    """A Matplotlib figure as bytes of a kind of file; no date goes in, so equal inputs give equal bytes."""
    buffer = BytesIO()
    quiet = {"png": {"Software": MARK}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    rc_context: Any = require("matplotlib", extra="figures").rc_context
    # Names inside an SVG are drawn at random unless salted.
    with any_letters(), rc_context({"svg.hashsalt": "msdscore"}):
        drawn.savefig(buffer, format=kind, dpi=DPI, metadata=quiet[kind])
    return buffer.getvalue()
