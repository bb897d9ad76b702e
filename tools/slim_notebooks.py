"""Remove the PNG of outputs that also have HTML or a JPEG: 90 % of a notebook's size, which no viewer shows.

Run it as `python tools/slim_notebooks.py FILE…`; `make notebooks` runs it after executing the notebooks.
"""

import json
import sys
from pathlib import Path


def main(paths: list[str]) -> None:
    """Rewrite each notebook without redundant images."""
    for path in map(Path, paths):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        for cell in notebook["cells"]:
            for output in cell.get("outputs", ()):
                data = output.get("data", {})
                if "text/html" in data or "image/jpeg" in data:
                    data.pop("image/png", None)
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
