"""Sphinx extension that renders links to files outside of docs/ (`../CITATION.cff`) as plain text.

The site does not contain these files; on a code host the links work. Broken links between pages remain build errors.
"""

import re
from typing import Any


def _read(app: Any, name: str, source: list[str]) -> None:
    depth = name.count("/")  # pages in a subfolder also use ../ for links to other pages
    if not name.startswith("notebooks/"):
        pattern = re.compile(r"\[([^\]]+)\]\(" + r"\.\./" * (depth + 1) + r"[^)]*\)")
        source[0] = pattern.sub(r"`\1`", source[0])


def setup(app: Any) -> dict[str, bool]:
    """Register the extension with Sphinx."""
    app.connect("source-read", _read)
    return {"parallel_read_safe": True}
