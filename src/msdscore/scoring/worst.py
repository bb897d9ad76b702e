"""The words of a caption that its picture supports least, from the terms of the score itself."""

from collections.abc import Sequence

from torch import Tensor

from msdscore.encoders.text.pieces import Span, names_something, owners_of, places
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
        _worst(caption, tokens.spans, held[0][pair], None if held[1] is None else held[1][pair], count)
        for pair, (caption, tokens) in enumerate(zip(captions, measured.tokens, strict=True))
    ]


def _lists(values: Tensor, measured: Measurement) -> list[list[float]]:
    """One number per token of every pair; real tokens come first in their row."""
    return [row[: len(tokens.spans)] for row, tokens in zip(values.tolist(), measured.tokens, strict=True)]


def _worst(
    caption: str, spans: Sequence[Span], gaps: Sequence[float], weights: Sequence[float] | None, count: int
) -> tuple[str, ...]:
    pieces = places(caption)
    if not pieces:
        return ()
    held = _held(spans, pieces)
    ranked = sorted(
        [
            (-gaps[own[0]] if len(own) == 1 else -sum([gaps[token] for token in own]) / len(own), number)
            for number, own in held.items()
        ]
    )
    found: list[str] = []
    for _, number in ranked:
        start, end, kind = pieces[number]
        judged = weights is None or sum([weights[token] for token in held[number]]) >= NOT_JUDGED
        if judged and kind == "word" and names_something(caption[start:end]):
            found.append(caption[start:end])
            if len(found) == count:
                break
    return tuple(found)


def _held(spans: Sequence[Span], pieces: Sequence[tuple[int, int, str]]) -> dict[int, list[int]]:
    """The tokens of every piece that has some, as `owners_of` tells; nearly always each lies within one, in order."""
    held: dict[int, list[int]] = {}
    number, (begin, stop, _) = 0, pieces[0]
    for token, (start, end) in enumerate(spans):
        while start >= stop and number + 1 < len(pieces):
            number += 1
            begin, stop, _ = pieces[number]
        if begin <= start < end <= stop:
            held.setdefault(number, []).append(token)
        else:
            return _held_by_any(spans, pieces)
    return held


def _held_by_any(spans: Sequence[Span], pieces: Sequence[tuple[int, int, str]]) -> dict[int, list[int]]:
    held: dict[int, list[int]] = {}
    for token, number in enumerate(owners_of([one[0] for one in pieces], [one[1] for one in pieces], spans)):
        held.setdefault(number, []).append(token)
    return held
