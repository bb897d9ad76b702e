"""Metrics that compare a caption with human references, through the package pycocoevalcap."""

import re
import shutil
import sys
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from msdscore.errors import MissingExtraError, require
from msdscore_lab.metrics.base import Cases, CaseScores, Loaded
from msdscore_lab.metrics.registry import choice

_EXTRA = "references"
_Texts = dict[int, list[str]]
_Measure = Callable[[_Texts, _Texts], Iterable[float]]  # of references and candidates
_WORD = re.compile(r"n't\b|'(?:s|m|d|ll|re|ve)\b|\w+(?=n't\b)|\w+(?:[-.]\w+)*|[$%&#@]", re.IGNORECASE)
_CORENLP = "stanford-corenlp-3.6.0.jar"


def _load(name: str, measure: Callable[[Any, _Texts, _Texts], Iterable[float]], tokenizer: str = "simple") -> Loaded:
    """Load a metric of the package; `measure` is called with its module, references and candidates."""
    choice("tokenizer", tokenizer, ("simple", "ptb"))
    package: Any = require(f"pycocoevalcap.{name}.{name}", extra=_EXTRA, of="msdscore-lab")
    if tokenizer == "ptb":
        require_java("tokenizer=ptb")
    return _loaded(partial(measure, package), tokenizer)


# BLEU-4, ROUGE-L and CIDEr of each caption; CIDEr's document frequencies are those of all references scored together.
load_bleu = partial(_load, "bleu", lambda package, gts, res: package.Bleu(4).compute_score(gts, res, verbose=0)[1][3])
load_rouge = partial(_load, "rouge", lambda package, gts, res: package.Rouge().compute_score(gts, res)[1])
load_cider = partial(_load, "cider", lambda package, gts, res: package.Cider().compute_score(gts, res)[1])


def load_meteor(tokenizer: str = "simple") -> Loaded:
    """METEOR 1.5 of each caption, by a Java program in the package."""
    require_java("meteor")
    return _load("meteor", _meteor, tokenizer)


def load_spice() -> Loaded:
    """SPICE of each caption, by a Java program with the Stanford models, which must be downloaded before."""
    require_java("spice")
    package: Any = require("pycocoevalcap.spice.spice", extra=_EXTRA, of="msdscore-lab")
    library = Path(package.__file__).parent / "lib"
    if not (library / _CORENLP).is_file():
        raise MissingExtraError(
            f"spice needs {_CORENLP} and its models in {library}; fetch them (about 350 MB) with: "
            "python -m pycocoevalcap.spice.get_stanford_models"
        )
    return _loaded(partial(_spice, package), "none")


def require_java(user: str) -> None:
    """Raise `MissingExtraError` if Java is not available."""
    if shutil.which("java") is None:
        raise MissingExtraError(
            f"{user} needs Java 8 or later on the PATH; install one, for example: apt install default-jre-headless"
        )


def words(text: str) -> str:
    """Return a caption in lower case, with split contractions and without punctuation, like the PTB tokenizer.

    >>> words("A dog's tail; it isn't long - 2.5 feet, maybe.")
    "a dog 's tail it is n't long 2.5 feet maybe"
    """
    return " ".join(_WORD.findall(text.lower()))


def _loaded(measure: _Measure, tokenizer: str) -> Loaded:
    return Loaded(partial(_score, measure=measure, tokenizer=tokenizer), f"tok:{tokenizer}")


def _score(batch: Cases, *, measure: _Measure, tokenizer: str) -> CaseScores:
    values = np.full(batch.captions.shape, np.nan)
    # True and control cases separately: the control must not change the document frequencies of the true figures.
    for control in (False, True):
        cases = [case for case in np.flatnonzero(batch.control == control).tolist() if batch.references[case]]
        if not cases:
            continue
        references = _tokenised({case: batch.references[case] for case in cases}, tokenizer)
        # One candidate per case at a time: CIDEr counts documents by case, and repeated references would change its
        # document frequencies.
        for candidate in range(batch.captions.shape[1]):
            candidates = _tokenised({case: [batch.candidates(case)[candidate]] for case in cases}, tokenizer)
            # The package prints progress to standard output, which is reserved for results.
            with redirect_stdout(sys.stderr):
                values[cases, candidate] = list(measure(references, candidates))
    return CaseScores(values)


def _tokenised(texts: dict[int, Iterable[str]], tokenizer: str) -> _Texts:
    spaced = {case: [" ".join(text.split()) for text in case_texts] for case, case_texts in texts.items()}
    if tokenizer == "simple":
        return {case: [words(text) for text in case_texts] for case, case_texts in spaced.items()}
    if tokenizer == "none":
        return spaced
    package: Any = require("pycocoevalcap.tokenizer.ptbtokenizer", extra=_EXTRA, of="msdscore-lab")
    wrapped = {case: [{"caption": text} for text in case_texts] for case, case_texts in spaced.items()}
    tokens: _Texts = package.PTBTokenizer().tokenize(wrapped)
    return tokens


def _meteor(package: Any, references: _Texts, candidates: _Texts) -> list[float]:
    scorer = package.Meteor()
    try:
        scores: list[float] = scorer.compute_score(references, candidates)[1]
    finally:
        process = scorer.meteor_p
        for stream in (process.stdin, process.stdout, process.stderr):
            stream.close()
        process.kill()
        process.wait()
    return scores


def _spice(package: Any, references: _Texts, candidates: _Texts) -> list[float]:
    scores = package.Spice().compute_score(references, candidates)[1]
    by_case = dict(zip(sorted(references), (score["All"]["f"] for score in scores), strict=True))
    return [by_case[case] for case in references]
