"""Remove from notebooks what no viewer shows: times of execution, and the PNG of outputs with HTML or a JPEG (90 % of
their size).

Run it as `python tools/slim_notebooks.py FILE…`; `make notebooks` runs it after executing the notebooks.
"""

import json
import sys
from pathlib import Path


def main(paths: list[str]) -> None:
    """Rewrite each notebook without redundant images and times."""
    for path in map(Path, paths):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        for cell in notebook["cells"]:
            cell["metadata"].pop("execution", None)
            for output in cell.get("outputs", ()):
                data = output.get("data", {})
                if "text/html" in data or "image/jpeg" in data:
                    data.pop("image/png", None)
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
