"""The paper by one program: `python -m msdscore_lab.paper --help`; `fill PAGE` fills a page of the documentation."""

import sys

from msdscore_lab.paper import run, sections


def main() -> int:
    """Run the plan, or fill a page."""
    if sys.argv[1:2] == ["fill"]:
        sections.main(sys.argv[2:])
        return 0
    return run.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
