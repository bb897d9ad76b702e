"""BibTeX entries of the software, the paper and the encoder of a result."""

import re
from importlib.resources import files
from pathlib import Path

from msdscore.encoders.registry import built_in
from msdscore.errors import InputError
from msdscore.report.results import run_facts, signature_of
from msdscore.version import __version__

PAPER = "kan2026msdscore"
_ENCODER = re.compile(r"\benc:([^@|,\s\"]+)")
_LARGEST = 64 << 20  # bytes of a JSON result that is searched for signatures
_SOFTWARE = """@software{{msdscore,
  title = {{msdscore: judging image captions without references}},
  author = {{{{The msdscore developers}}}},
  version = {{{version}}},
  year = {{2026}},
  note = {{{note}}}
}}"""


def bibtex(result: Path | None = None) -> str:
    """Return the entries to cite for a result file: software, paper, and each encoder in its signatures.

    Without a file, the entries of the software and the paper.

    Raises:
        InputError: the file has no signature.
    """
    signatures = [] if result is None else signatures_in(result)
    names = dict.fromkeys(name for signature in signatures for name in _ENCODER.findall(signature))
    rows = {key: row for row in built_in() for key in (row.name, row.source) if key}
    keys = [PAPER, *(key for name in names if name in rows for key in rows[name].citations)]
    note = "; ".join(signatures).replace("_", r"\_") or "MSD-E, the default score, is defined by this software"
    entries = _entries()
    return "\n\n".join(
        [_SOFTWARE.format(version=__version__, note=note), *(entries[key] for key in dict.fromkeys(keys))]
    )


def signatures_in(result: Path) -> list[str]:
    """Return the signatures of a scored file or of a JSON result of `bench`, `study` or `rank-captioners`."""
    if not result.is_file():
        raise InputError(f"{result}: no such file; expected an output of msdscore score, bench or study")
    known = signature_of(result) or run_facts(result).signature
    if known:
        return [known]
    text = ""
    if result.suffix.lower() == ".json" and result.stat().st_size <= _LARGEST:
        text = result.read_text(encoding="utf-8", errors="replace")
    found = [signature for signature in re.findall(r"\"([^\"\s]*\|enc:[^\"]*)\"", text) if _ENCODER.search(signature)]
    if not found:
        raise InputError(f"{result}: has no signature; expected an output of msdscore score, bench or study")
    return list(dict.fromkeys(found))


def _entries() -> dict[str, str]:
    """Return the entries of `citations.bib` by key."""
    text = files("msdscore.report").joinpath("assets/citations.bib").read_text("utf-8")
    return {match[1]: match[0].strip() for match in re.finditer(r"^@\w+\{([^,]+),.*?^\}", text, re.S | re.M)}
