"""Tables, figures and pages of the paper: `python -m msdscore_lab.paper run|page|evidence --help`."""

import sys

from msdscore_lab.paper import evidence, page, run

_PROGRAMS = {"run": run.main, "page": page.main, "evidence": evidence.main}


def main() -> int:
    """Run the program that the first argument names."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in _PROGRAMS:
        sys.stderr.write(f"usage: python -m msdscore_lab.paper {{{','.join(_PROGRAMS)}}} …\n")
        return 2
    return _PROGRAMS[name](sys.argv[2:]) or 0


if __name__ == "__main__":
    sys.exit(main())
