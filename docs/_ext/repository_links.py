"""Links from pages to files of the repository outside docs/ (`../CITATION.cff`), which the site does not have.

They stay links on a code host and become plain text here, so that a broken link between pages is an error of the build.
"""

import re
from typing import Any


def _read(app: Any, name: str, source: list[str]) -> None:
    inside = name.count("/")  # pages in a folder reach their neighbours through ../ as well
    if not name.startswith("notebooks/"):
        pattern = re.compile(r"\[([^\]]+)\]\(" + r"\.\./" * (inside + 1) + r"[^)]*\)")
        source[0] = pattern.sub(r"`\1`", source[0])


def setup(app: Any) -> dict[str, bool]:
    """Hook into Sphinx."""
    app.connect("source-read", _read)
    return {"parallel_read_safe": True}
