"""The words of a caption that its picture supports least, from the terms of the score itself."""

from collections.abc import Sequence

from torch import Tensor

from msdscore.encoders.base import TokenLayout
from msdscore.encoders.text.pieces import names_something, owners_of, places
from msdscore.scoring.measurement import Measurement
from msdscore.scoring.words import NOT_JUDGED


def worst_words(measured: Measurement, captions: Sequence[str], *, count: int) -> list[tuple[str, ...]]:
    """For every pair at most `count` words that name something to see, the least supported first.

    They are the words that an explanation ranks first. `captions` are those of the pairs.
    """
    # Without calibration a token's gap is its term times the number of tokens, which changes no order.
    gaps = measured.divergence.support_terms if measured.log_odds is None else -measured.log_odds
    held = _lists(gaps, measured), None if measured.weights is None else _lists(measured.weights, measured)
    return [
        _worst(caption, tokens, held[0][pair], None if held[1] is None else held[1][pair])[:count]
        for pair, (caption, tokens) in enumerate(zip(captions, measured.tokens, strict=True))
    ]


def _lists(values: Tensor, measured: Measurement) -> list[list[float]]:
    """One number per token of every pair; real tokens come first in their row."""
    return [row[: len(tokens.spans)] for row, tokens in zip(values.tolist(), measured.tokens, strict=True)]


def _worst(
    caption: str, tokens: TokenLayout, gaps: Sequence[float], weights: Sequence[float] | None
) -> tuple[str, ...]:
    pieces = list(places(caption))
    if not pieces:
        return ()
    held: dict[int, list[int]] = {}
    for token, number in enumerate(owners_of([one[0] for one in pieces], [one[1] for one in pieces], tokens.spans)):
        held.setdefault(number, []).append(token)
    found = []
    for number, own in held.items():
        start, end, kind = pieces[number]
        judged = weights is None or sum([weights[token] for token in own]) >= NOT_JUDGED
        if judged and kind == "word" and names_something(caption[start:end]):
            found.append((-sum([gaps[token] for token in own]) / len(own), start, end))
    return tuple([caption[start:end] for _, start, end in sorted(found)])
