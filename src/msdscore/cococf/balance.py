"""The choice among possible changes that leaves a reader of the text alone without a hint.

For each split and sort of change it keeps three sums near zero: how often each word was put in rather than taken out,
how often the wrong caption is the longer one, and how often a language model likes it less (by little, more or much:
another model would see a few strong preferences behind many weak ones). A change that would push a
sum out of its bounds is not made, as SugarCrepe leaves out pairs that a text model tells apart.

Models that choose know a hint only with their own errors: pairs that they find even still lean towards the true caption
for a model with other errors. So a further model, the control, reads each pair only after it was chosen, and where it
finds the true caption too often, the zero point moves from which the others' preferences are counted. A judge that took
no part then stands where the control stands.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from msdscore.cococf.changes import Counterfactual
from msdscore.cococf.knowledge import CaptionModel, Gram

_SLACK, _SHARE = 3, 0.02  # a sum may be off by so many pairs, or by this share of all
_STEPS = (0.7, 1.5, 3.0)  # nats between the preferences that are counted apart
_STEER = 0.3  # nats that the zero point moves for each pair by which the control finds the true captions too often
_WORD_SHARE = 0.1  # and that of a word by this share of the pairs that have it


class SumName(NamedTuple):
    """A sum over the pairs of one sort of change: of lengths, or of one reader's preferences."""

    subset: str
    reader: int | None = None  # None: of lengths
    strength: int | None = None  # None: of any strength


SumSteps = dict[SumName, int]


Reader = Callable[[str], float]  # from a caption, without its image, to its log-probability in nats


def gram_reader(model: CaptionModel, own: Mapping[Gram, int]) -> Reader:
    """A language model of captions that must not know some counts: those of the image that is read."""
    return lambda text: model.log_probability(text, own)


def _hints(reader: Reader, options: Sequence[Counterfactual]) -> list[float]:
    """For each option, how many nats more a reader gives the true caption."""
    known = {text: reader(text) for text in {option.positive for option in options}}
    return [known[option.positive] - reader(option.negative) for option in options]


@dataclass(slots=True)
class Balance:
    """Running sums over the pairs chosen so far; `choose` adds to them.

    A `strict` one also bounds each reader's preferences of all strengths together; small sets then run out of pairs.
    """

    strict: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    _words: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    _seen: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    _sums: Counter[SumName] = field(default_factory=Counter)
    _control: Counter[str] = field(default_factory=Counter)

    def choose(
        self,
        options: Sequence[Counterfactual],
        readers: Sequence[Reader],
        chance: Random,
        *,
        control: Reader | None = None,
    ) -> Counterfactual | None:
        """The option that leaves the sums smallest; None where all would push one out of its bounds.

        Every reader's preferences are kept in balance, so that what one of them has wrong by chance does not matter.
        """
        hints = zip(*(_hints(reader, options) for reader in readers), strict=True)
        steps = [self._steps(option, hint) for option, hint in zip(options, hints, strict=True)]
        weighed = [
            (self._cost(option, step), chance.random(), option, step)
            for option, step in zip(options, steps, strict=True)
            if self._is_within(option, step)
        ]
        if not weighed:
            return None
        _, _, best, step = min(weighed, key=lambda entry: entry[:2])
        subset = best.subset
        self.counts[subset] += 1
        self._words[subset].update(best.inserted)
        self._words[subset].subtract(best.removed)
        self._seen[subset].update((*best.inserted, *best.removed))
        self._sums.update(step)
        if control is not None:
            self._control[subset] += sign(_hints(control, [best])[0])
        return best

    def _is_within(self, change: Counterfactual, steps: SumSteps) -> bool:
        subset = change.subset
        bound = max(_SLACK, _SHARE * self.counts[subset])
        if any(abs(self._sums[name] + step) > max(bound, abs(self._sums[name])) for name, step in steps.items()):
            return False
        words, seen = self._words[subset], self._seen[subset]
        moves = [(word, 1) for word in change.inserted] + [(word, -1) for word in change.removed]
        return change.action == "swap" or all(
            abs(words[word] + move) <= max(_SLACK, _WORD_SHARE * seen[word], abs(words[word]) - 1)
            for word, move in moves
        )

    def _cost(self, change: Counterfactual, steps: SumSteps) -> float:
        """By how much the sum of squares grows."""
        words = self._words[change.subset]
        grown = sum(2 * words[word] + 1 for word in change.inserted) - sum(
            2 * words[word] - 1 for word in change.removed
        )
        return grown + sum(step * (2 * self._sums[name] + step) for name, step in steps.items())

    def _steps(self, change: Counterfactual, hints: Sequence[float]) -> SumSteps:
        """What a pair adds to which sum: of lengths, and of each reader's preferences by their strength."""
        steps: SumSteps = {SumName(change.subset): sign(len(change.negative) - len(change.positive))}
        zero = -_STEER * self._control[change.subset]
        for reader, hint in enumerate(hints):
            strength = sum(abs(hint - zero) > step for step in _STEPS)
            steps[SumName(change.subset, reader, strength)] = sign(hint - zero)
            if self.strict:
                steps[SumName(change.subset, reader)] = sign(hint - zero)
        return steps


def sign(value: float) -> int:
    """1, 0 or −1.

    >>> sign(-0.5), sign(0), sign(3)
    (-1, 0, 1)
    """
    return (value > 0) - (value < 0)
