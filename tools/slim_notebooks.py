"""Remove the PNG of outputs that have HTML or a JPEG too: nine tenths of a notebook's size, which no viewer shows.

Run it as `python tools/slim_notebooks.py FILE…`; `make notebooks` does, after it has executed them.
"""

import sys
from pathlib import Path

import nbformat


def main(paths: list[str]) -> None:
    """Rewrite each notebook without redundant images."""
    for path in map(Path, paths):
        notebook = nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)
        for cell in notebook.cells:
            for output in cell.get("outputs", ()):
                data = output.get("data", {})
                if "text/html" in data or "image/jpeg" in data:
                    data.pop("image/png", None)
        path.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
