r"""FLEUR: a vision-language model grades a caption from 0.0 to 1.0, and its digit probabilities smooth the grade.

With p the probabilities at the first decimal and q at the second, the score is
:math:`\sum_d 0.1\,d\,p_d + \sum_d 0.01\,d\,q_d`; for an answer of 1.0 it is :math:`0.9\,p_0 + p_1` at the
leading digit.
"""

import re
from collections.abc import Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch

from msdscore.errors import ConfigError
from msdscore.intervals import Floats
from msdscore_lab.metrics.base import Cases, CaseScores, Loaded
from msdscore_lab.metrics.vlm.model import LocalModel, load_local
from msdscore_lab.metrics.vlm.prompts import fill_prompt, read_prompt

PROMPT = (
    "Grade how well a caption describes this picture with one real number from 0.0 to 1.0.\n"
    "0.0 means that the caption has nothing to do with the picture; 1.0 means that it describes the picture "
    "correctly and clearly.\n\nCaption: {caption}\n\nAnswer with the number only. Grade:"
)
_MAX_TOKENS = 16
_SPACES = "▁Ġ "  # representations of a space before a word in tokenizers
_NUMBER = re.compile(r"\d+(?:\.(\d)(\d)?)?")


def load_fleur(source: str, device: str = "auto", dtype: str = "auto", prompt: str = "", revision: str = "") -> Loaded:
    """Load the metric with a local model; `prompt` is a text file with {caption}, or `SCRIPT.py:NAME`."""
    template = read_prompt(prompt, "caption") if prompt else PROMPT
    model = load_local(source, device=device, dtype=dtype, revision=revision or None)
    score = partial(_score, model=model, template=template, digits=digit_tokens(model.vocabulary))
    digest = blake2b(template.encode(), digest_size=4).hexdigest()
    return Loaded(score, f"model:{model.signature}|prompt:{Path(prompt).name if prompt else 'own'}@{digest}")


def _score(batch: Cases, *, model: LocalModel, template: str, digits: torch.Tensor) -> CaseScores:
    """Grade every caption of a readable image, each pair of image and caption once."""
    values = np.full(batch.captions.shape, np.nan)
    grades: dict[tuple[int, int], float] = {}
    for case, candidate in np.ndindex(*batch.captions.shape):
        image = batch.image(case)
        key = int(batch.owner[case]), int(batch.captions[case, candidate])
        if image is not None and key not in grades:
            question = fill_prompt(template, {"caption": batch.texts[key[1]]})
            pieces, probabilities = model.answer_greedily(image, question, most_tokens=_MAX_TOKENS)
            grades[key] = smooth(pieces, digit_probabilities(probabilities, digits))
        values[case, candidate] = grades.get(key, np.nan)
    return CaseScores(values)


def digit_tokens(vocabulary: dict[str, int]) -> torch.Tensor:
    """Return a matrix (vocabulary, 10) that sums the probabilities of the tokens of each digit."""
    matrix = torch.zeros(max(vocabulary.values()) + 1, 10, dtype=torch.float64)
    for token, token_id in vocabulary.items():
        text = token.strip(_SPACES)
        if len(text) == 1 and text in "0123456789":
            matrix[token_id, int(text)] = 1.0
    if not matrix.sum(dim=0).bool().all():
        raise ConfigError("fleur needs a tokenizer with a token for every digit; choose another model")
    return matrix


def digit_probabilities(probabilities: torch.Tensor, digits: torch.Tensor) -> Floats:
    """Return the probabilities of the ten digits at each step.

    A model may have more outputs than its tokenizer has tokens (padding), or a tokenizer more than the model.
    """
    width = min(probabilities.shape[1], len(digits))
    summed: Floats = (probabilities[:, :width] @ digits[:width].to(probabilities)).cpu().numpy()
    return summed


def smooth(pieces: Sequence[str], digits: Floats) -> float:
    """Return the smoothed grade from the answer's tokens and digit probabilities; NaN without a grade in [0, 1].

    >>> sure = np.eye(10)
    >>> smooth(["0", ".", "7"], np.stack([sure[0], sure[0], 0.5 * sure[7] + 0.5 * sure[8]]))
    0.75
    """
    letters = [(letter, step) for step, piece in enumerate(pieces) for letter in piece.strip(_SPACES)]
    text, steps = "".join(letter for letter, _ in letters), [step for _, step in letters]
    match = _NUMBER.search(text)
    if match is None or not 0 <= float(match.group()) <= 1:
        return float("nan")
    starts = [match.start(), match.start(1), match.start(2)]
    # A digit that shares its token with others has no separate probabilities.
    if any(start >= 0 and len(pieces[steps[start]].strip(_SPACES)) != 1 for start in starts):
        return float("nan")
    lead, first, second = (digits[steps[start]] if start >= 0 else np.zeros(10) for start in starts)
    if float(match.group()) == 1 or match.group(1) is None:
        zero_weight = 0.9 if text[starts[0]] == "1" else 0.0
        return float(zero_weight * lead[0] + lead[1])
    tenths = np.arange(10)
    return float(tenths @ first * 0.1 + tenths @ second * 0.01)
