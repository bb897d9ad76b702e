"""The words that tokens belong to: how well each can be judged, whether it is new in its caption, or denied."""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from msdscore.core.evidence import TokenWeights, WordCalibration
from msdscore.core.transfer import sent
from msdscore.encoders.base import TokenLayout
from msdscore.encoders.text.words import is_content, stem

NOT_JUDGED = 0.1  # a word of less weight is shown as not judged
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_DENIALS = frozenset({"no", "not", "without", "nobody", "none", "never", "nothing", "neither", "nor", "cannot"})
_REACH = 3  # words after a denial that it denies
_BREAK = re.compile(r"[.,;:!?]")


@dataclass(frozen=True, slots=True)
class Mention:
    """One word at one place of a caption: whether it names something to see, is denied, or was said before."""

    stem: str
    content: bool
    denied: bool
    new: bool


def mentions(caption: str, layout: TokenLayout) -> list[tuple[int, Mention]]:
    """For each token the number of its word in the caption, and what that word is; −1 for a token outside of words.

    >>> found = mentions("A dog, no cats. A dog!", TokenLayout(((2, 5), (10, 14), (18, 21))))
    >>> [(word.stem, word.denied, word.new) for _, word in found]
    [('dog', False, True), ('cat', True, True), ('dog', False, False)]
    """
    places = list(_WORD.finditer(caption))
    starts = [place.start() for place in places]
    words = _read(caption, places)
    found = []
    for begin, end in layout.spans:
        # A token's span may open with the space before its word.
        first = begin + len(caption[begin:end]) - len(caption[begin:end].lstrip())
        number = bisect_right(starts, first) - 1
        inside = number >= 0 and first < places[number].end()
        found.append((number, words[number]) if inside else (-1, _OUTSIDE))
    return found


def token_weights(
    captions: Sequence[str],
    layouts: Sequence[TokenLayout],
    calibration: WordCalibration,
    *,
    width: int,
    device: torch.device,
) -> TokenWeights:
    """Weights, first mentions, pieces and spreads of the tokens of every caption, padded to `width`.

    Words that name nothing to see, and words that the caption denies, weigh nothing; pieces of a word share its weight.
    """
    shape = len(captions), width
    weights, new = torch.zeros(shape), torch.zeros(shape, dtype=torch.bool)
    pieces, spreads = torch.ones(shape), torch.ones(shape)
    for row, (caption, layout) in enumerate(zip(captions, layouts, strict=True)):
        found = mentions(caption, layout)
        count = Counter(number for number, _ in found)
        size = len(found)
        pieces[row, :size] = torch.tensor([float(count[number]) for number, _ in found])
        weights[row, :size] = torch.tensor([_weight(word, calibration) for _, word in found]) / pieces[row, :size]
        new[row, :size] = torch.tensor([word.new for _, word in found], dtype=torch.bool)
        spreads[row, :size] = torch.tensor([_spread(word, calibration) for _, word in found])
    return TokenWeights(*(sent(one, device) for one in (weights, new, pieces, spreads)))


def _weight(word: Mention, calibration: WordCalibration) -> float:
    if word.denied or not word.content:
        return 0.0
    return calibration.weights.get(word.stem, calibration.other)


def _spread(word: Mention, calibration: WordCalibration) -> float:
    return calibration.spreads.get(word.stem, calibration.other_spread)


def _read(caption: str, places: Sequence[re.Match[str]]) -> list[Mention]:
    seen: set[str] = set()
    found, denial, reach = [], 0, 0
    for place in places:
        word = place.group().casefold()
        if reach and _BREAK.search(caption, denial, place.start()):
            reach = 0
        base, denies = stem(word), word in _DENIALS or word.endswith(("n't", "n’t"))
        found.append(Mention(base, is_content(word) and not denies, reach > 0, base not in seen))
        seen.add(base)
        reach = max(reach - 1, 0)
        if denies:
            denial, reach = place.end(), _REACH
    return found


_OUTSIDE = Mention("", content=False, denied=False, new=False)
