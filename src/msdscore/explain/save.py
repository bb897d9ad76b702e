"""Explanations written to a file, in the form that its name asks for."""

import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msdscore.errors import ConfigError, RunError, require
from msdscore.explain.terms import Explanation, Explanations
from msdscore.explain.typeset import any_letters
from msdscore.io.atomic import write_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 300


def save(explanations: Explanations, path: Path) -> None:
    """Write a figure (.png, .svg, .pdf), a page (.html) or the numbers (.json), in one step."""
    check_name(path)
    _put(_WRITERS[path.suffix.lower()](explanations), path)


def check_name(path: Path) -> None:
    """Refuse a name whose ending says nothing, before any work is done."""
    if path.suffix.lower() not in _WRITERS:
        raise ConfigError(f"{path}: unknown kind of explanation; expected a name ending in {', '.join(_WRITERS)}")


def png(explanations: Explanations) -> bytes:
    """The figure as a PNG."""
    from msdscore.explain.draw import figure

    return rendered(figure(explanations), "png")


def rendered(figure: "Figure", kind: str) -> bytes:
    """A Matplotlib figure as bytes of a kind of file; no date goes in, so equal inputs give equal bytes."""
    place = BytesIO()
    quiet = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    rc_context: Any = require("matplotlib", extra="figures").rc_context
    # Names inside an SVG are drawn at random unless salted.
    with any_letters(), rc_context({"svg.hashsalt": "msdscore"}):
        figure.savefig(place, format=kind, dpi=DPI, metadata=quiet[kind])
    return place.getvalue()


def to_json(explanations: Explanations) -> bytes:
    """The numbers, one object a caption."""
    items = [item.to_dict() for item in explanations]
    return json.dumps({"explanations": items}, ensure_ascii=False, indent=1, allow_nan=False).encode() + b"\n"


def _figure(kind: str) -> Callable[[Explanations], bytes]:
    def write(explanations: Explanations) -> bytes:
        from msdscore.explain.draw import figure

        return rendered(figure(explanations), kind)

    return write


def _page(explanations: Explanations) -> bytes:
    from msdscore.explain.page import page

    return page(explanations).encode()


_WRITERS: dict[str, Callable[[Explanations], bytes]] = {
    ".png": _figure("png"),
    ".svg": _figure("svg"),
    ".pdf": _figure("pdf"),
    ".html": _page,
    ".json": to_json,
}


def save_words(explanation: Explanation, path: Path) -> None:
    """Write the figure of where each word looks."""
    from msdscore.explain.draw import word_figure

    check_words_name(path)
    content = rendered(word_figure(explanation), path.suffix.lower().removeprefix("."))
    _put(content, path)


def check_words_name(path: Path) -> None:
    """Refuse a name that is not a figure's."""
    if path.suffix.lower() not in _FIGURES:
        raise ConfigError(f"{path}: unknown kind of figure; expected a name ending in {', '.join(_FIGURES)}")


_FIGURES = (".png", ".svg", ".pdf")


def _put(content: bytes, path: Path) -> None:
    try:
        write_bytes(path, content, folder=path.parent)
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error.strerror or error}); choose another name") from error
