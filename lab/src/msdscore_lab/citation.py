"""BibTeX entries of the software, the paper and the encoder of a result, and sentences that cite them."""

import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np

from msdscore.encoders.registry import built_in
from msdscore.errors import InputError
from msdscore.forms.registry import facts_of, score_name
from msdscore.intervals import bootstrap_mean
from msdscore.report.results import read_results, signature_of
from msdscore.run.folder import file_facts
from msdscore.version import __version__
from msdscore_lab.stats.differences import draws_for

PAPER_KEY = "kan2026msdscore"
_ENCODER = re.compile(r"\benc:([^@|,\s\"]+)")
_ESCAPED = {letter: f"\\{letter}" for letter in "_%&#$"} | {
    "|": r"\textbar\allowbreak{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}", "{": r"\textbraceleft{}", "}": r"\textbraceright{}",
}  # fmt: skip
_LARGEST = 64 << 20  # bytes of a JSON result that is searched for signatures
# `misc`: styles of BibTeX do not know `software`.
_SOFTWARE = """@misc{{msdscore,
  title = {{msdscore: judging image captions without references}},
  author = {{{{The msdscore developers}}}},
  version = {{{version}}},
  year = {{2026}},
  note = {{{note}}}
}}"""


def bibtex(signatures: Sequence[str] = ()) -> str:
    """Return the entries to cite: software, paper, and each encoder in the signatures of a result."""
    encoders = [name for signature in signatures for name in _ENCODER.findall(signature)]
    keys = [PAPER_KEY, *(key for name in encoders for key in _citations(name))]
    note = "; ".join(map(_tex, signatures)) or "MSD-E, the default score, is defined by this software"
    entries = _entries()
    return "\n\n".join(
        [_SOFTWARE.format(version=__version__, note=note), *(entries[key] for key in dict.fromkeys(keys))]
    )


def sentence(signatures: Sequence[str]) -> str:
    r"""Return a sentence in LaTeX on the first score among the signatures; empty if there is none.

    >>> print(sentence(["msd|enc:mine@1|pool:mean|v:0.2.0"])[:64])
    We report MSD-Score~\cite{kan2026msdscore} with the encoder mine
    """
    signature = next((text for text in signatures if "msd" in text.partition("|")[0]), "")
    if not signature:
        return ""
    facts, name = facts_of(signature), score_name(signature)
    score = f"MSD-Score~\\cite{{{PAPER_KEY}}}"
    if name != "MSD":
        score = f"{name}, which the software msdscore~\\cite{{msdscore}} defines and which extends {score},"
    elif facts.get("pool") != "mean" or not facts.get("init", "sample").startswith("sample"):  # not as published
        score = f"a variant of {score}"
    if "ref" in facts:
        score = f"Ref-{score}" if name != "MSD" else f"{score} with references (Ref-MSD)"
    encoder, _, weights = facts["enc"].partition(",")[0].partition("@")
    cited = ",".join(_citations(encoder))
    model = (
        _tex(encoder) + (f" (weights {_tex(weights)})" if weights else "") + (f"~\\cite{{{cited}}}" if cited else "")
    )
    references = f" and {facts['nrefs']} references per image" if "nrefs" in facts else ""
    software = f"msdscore {facts.get('v', __version__)}~\\cite{{msdscore}}"
    return (
        f"We report {score} with the encoder {model}{references}, computed by {software}; "
        f"signature: \\texttt{{{_tex(signature)}}}."
    )


def means(result: str) -> str:
    """Return a sentence with mean, interval and numbers of captions and images of each captioner of a scored file.

    Empty for a signature, or another file.
    """
    path = Path(result)
    try:
        scored = read_results(path) if path.exists() else None
    except InputError:
        return ""
    if scored is None:
        return ""
    values = scored.numbers["ref_msd" if "ref_msd" in scored.numbers else "msd"]
    systems, clusters, parts = scored.systems or ("",) * len(scored), np.array(scored.clusters), []
    for name in dict.fromkeys(systems):
        chosen = ~np.isnan(values) & (np.array(systems) == name)
        if chosen.any():
            how = draws_for(clusters[chosen], seed=0)
            mean = bootstrap_mean(values[chosen], clusters=clusters[chosen], how=how)
            interval = f", 95\\% interval [{mean.low:.3f}, {mean.high:.3f}]" if mean.low == mean.low else ""
            size = f"n = {int(chosen.sum()):,} captions of {mean.n:,} images"
            parts.append(f"{_tex(name)}{': ' if name else ''}{mean.value:.3f} ({size}{interval})")
    return f"Mean: {'; '.join(parts)}." if parts else ""


def signatures_in(result: str) -> list[str]:
    """Return a signature itself, or those of a scored file or of a result of `bench`, `study` or `rank-captioners`.

    Raises:
        InputError: the file does not exist or has no signature.
    """
    if _ENCODER.search(result):
        return [result]
    path = Path(result)
    if not path.is_file():
        raise InputError(
            f"{result}: no such file; expected an output of msdscore score, bench or study, or a signature"
        )
    text = signature_of(path, signed=True) or file_facts(path).signed
    signatures = text.split()  # scores of a benchmark have one per metric
    if not text and path.suffix.lower() == ".json" and path.stat().st_size <= _LARGEST:
        content = path.read_text(encoding="utf-8", errors="replace")
        signatures = re.findall(r"\"([^\"\s]*\|enc:[^\"]*)\"", content)
    signatures = [signature for signature in signatures if _ENCODER.search(signature)]
    if not signatures:
        raise InputError(f"{result}: has no signature; expected an output of msdscore score, bench or study")
    return list(dict.fromkeys(signatures))


def _citations(encoder: str) -> tuple[str, ...]:
    """Return the keys of the entries of an encoder by its name or its name on the hub."""
    return next((row.citations for row in built_in() if encoder in (row.name, row.source)), ())


def _tex(text: str) -> str:
    r"""Escape text for LaTeX and BibTeX; long signatures may be broken at their bars.

    >>> print(_tex("a_b|50%"))
    a\_b\textbar\allowbreak{}50\%
    """
    return "".join(_ESCAPED.get(letter, letter) for letter in text)


def _entries() -> dict[str, str]:
    """Return the entries of `citations.bib` by key."""
    text = files("msdscore_lab").joinpath("citations.bib").read_text("utf-8")
    return {match[1]: match[0].strip() for match in re.finditer(r"^@\w+\{([^,]+),.*?^\}", text, re.S | re.M)}
