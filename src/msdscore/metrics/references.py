"""Metrics that compare a caption with human references, through the package pycocoevalcap."""

import re
import shutil
import sys
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

from msdscore.errors import ConfigError, MissingExtraError, require
from msdscore.metrics.base import Cases, CaseScores, Floats, Loaded

_EXTRA = "references"
_Texts = dict[int, list[str]]
_Measure = Callable[[_Texts, _Texts], Iterable[float]]
_WORD = re.compile(r"n't\b|'(?:s|m|d|ll|re|ve)\b|\w+(?=n't\b)|\w+(?:[-.]\w+)*|[$%&#@]", re.IGNORECASE)
_CORENLP = "stanford-corenlp-3.6.0.jar"


def load_bleu(tokenizer: str = "simple") -> Loaded:
    """BLEU-4 of each caption."""
    package: Any = require("pycocoevalcap.bleu.bleu", extra=_EXTRA)
    return _loaded(lambda gts, res: package.Bleu(4).compute_score(gts, res, verbose=0)[1][3], tokenizer)


def load_rouge(tokenizer: str = "simple") -> Loaded:
    """ROUGE-L of each caption."""
    package: Any = require("pycocoevalcap.rouge.rouge", extra=_EXTRA)
    return _loaded(lambda gts, res: package.Rouge().compute_score(gts, res)[1], tokenizer)


def load_cider(tokenizer: str = "simple") -> Loaded:
    """CIDEr of each caption; document frequencies are those of all references that are scored together."""
    package: Any = require("pycocoevalcap.cider.cider", extra=_EXTRA)
    return _loaded(lambda gts, res: package.Cider().compute_score(gts, res)[1], tokenizer)


def load_meteor(tokenizer: str = "simple") -> Loaded:
    """METEOR 1.5 of each caption; a Java program that comes with the package does it."""
    require_java("meteor")
    package: Any = require("pycocoevalcap.meteor.meteor", extra=_EXTRA)
    return _loaded(lambda gts, res: _meteor(package, gts, res), tokenizer)


def load_spice() -> Loaded:
    """SPICE of each caption; a Java program and the Stanford models, which the package would fetch unasked, do it."""
    require_java("spice")
    package: Any = require("pycocoevalcap.spice.spice", extra=_EXTRA)
    library = Path(package.__file__).parent / "lib"
    if not (library / _CORENLP).is_file():
        raise MissingExtraError(
            f"spice needs {_CORENLP} and its models in {library}; fetch them (about 350 MB) with: "
            "python -m pycocoevalcap.spice.get_stanford_models"
        )
    return _loaded(lambda gts, res: _spice(package, gts, res), "none")


def require_java(what: str) -> None:
    """Refuse in one line what cannot run without Java."""
    if shutil.which("java") is None:
        raise MissingExtraError(
            f"{what} needs Java 8 or later on the PATH; install one, for example: apt install default-jre-headless"
        )


def words(text: str) -> str:
    """A caption in lower-case words, contractions apart and punctuation dropped, as the PTB tokenizer has them.

    >>> words("A dog's tail; it isn't long - 2.5 feet, maybe.")
    "a dog 's tail it is n't long 2.5 feet maybe"
    """
    return " ".join(_WORD.findall(text.lower()))


def _loaded(measure: _Measure, tokenizer: str) -> Loaded:
    known: dict[str, Callable[[_Texts], _Texts]] = {"simple": _simple, "ptb": _ptb, "none": lambda texts: texts}
    if tokenizer not in known:
        raise ConfigError(f"tokenizer must be 'simple' or 'ptb', got {tokenizer!r}")
    if tokenizer == "ptb":
        require_java("tokenizer=ptb")

    def score(batch: Cases) -> CaseScores:
        values = np.full(batch.captions.shape, np.nan)
        # True and control cases apart: the control must not change the document frequencies of the true figures.
        for control in (False, True):
            cases = [c for c in np.flatnonzero(batch.control == control).tolist() if batch.references[c]]
            if cases:
                values[cases] = _measured(batch, cases, measure, known[tokenizer])
        return CaseScores(values)

    return Loaded(score, f"tok:{tokenizer}")


def _measured(batch: Cases, cases: list[int], measure: _Measure, tokenize: Callable[[_Texts], _Texts]) -> Floats:
    """Scores of some cases, one column of candidates at a time: CIDEr counts its documents by case.

    References that came once per candidate would count words of no reference as rarer than they are.
    """
    references = tokenize({case: [" ".join(text.split()) for text in batch.references[case]] for case in cases})
    columns = []
    for at in range(batch.captions.shape[1]):
        candidates = tokenize({case: [" ".join(batch.candidates(case)[at].split())] for case in cases})
        # The package tells its progress on standard output, which is for results.
        with redirect_stdout(sys.stderr):
            columns.append(np.array(list(measure(references, candidates)), dtype=np.float64))
    return np.stack(columns, axis=1)


def _simple(texts: _Texts) -> _Texts:
    return {case: [words(text) for text in several] for case, several in texts.items()}


def _ptb(texts: _Texts) -> _Texts:
    package: Any = require("pycocoevalcap.tokenizer.ptbtokenizer", extra=_EXTRA)
    wrapped = {case: [{"caption": text} for text in several] for case, several in texts.items()}
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
