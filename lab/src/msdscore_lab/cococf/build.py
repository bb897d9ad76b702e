"""COCO-CF from annotated images: at most one easy and one hard counterfactual per image and source of captions.

Changes are selected so that the true caption cannot be recognised from the text. For each split and type of change,
three sums are balanced near zero: how often each word was inserted rather than removed, how often the wrong caption is
the longer one, and how often a language model finds it less likely (weakly, moderately or strongly, since a few strong
preferences can hide among many weak ones). A change that would move a sum out of its bounds is rejected, as SugarCrepe
removes pairs that a text model separates.

The models that select pairs have errors: pairs that they find balanced still favour the true caption for a model with
other errors. Therefore another model, the control, reads each pair only after it was selected. If the control prefers
the true caption too often, the zero point of the other models' preferences is shifted. A fourth model, the judge, takes
no part in the selection and measures the result.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from itertools import islice, product
from math import ceil
from random import Random
from typing import Any

from msdscore.errors import ConfigError, InputError, unknown_name
from msdscore_lab.cococf.changes import MAKERS, SPLITS, Counterfactual, Split, Subject
from msdscore_lab.cococf.knowledge import (
    ImageFacts,
    Knowledge,
    TextReader,
    caption_model,
    collocation_test,
    image_facts,
    learn,
)
from msdscore_lab.cococf.sites import is_clean, read_caption
from msdscore_lab.cococf.sources import AnnotatedImage

PAIRS = 5000  # per split over all sources of captions; with `per_source` of each source, as in the paper
# Quarters of the images, each with a language model of its captions: two select pairs, one is the control, one judges.
CHOOSING, CONTROL, JUDGE = (0, 1), 2, 3
_MAX_OPTIONS = 60  # candidate changes per caption and type
_SHORTEST, _LONGEST = 4, 120  # words of a caption to change
_SLACK, _SHARE = 3, 0.02  # bounds of a sum: number of pairs, or share of all pairs
_WORD_SHARE = 0.1  # bound of a word's sum: share of the pairs that have it
_STEPS = (0.7, 1.5, 3.0)  # thresholds in nats between strengths of preference, which are counted separately
_CORRECTION = 0.3  # shift of the zero point in nats per excess pair of the control

Balances = dict[tuple[Split, str], "Balance"]  # by split and, with `per_source`, source
Reader = Callable[[str], float]  # from a caption, without its image, to its log-probability in nats
# Contributions of a pair to the sums of a subset: lengths, a reader's preferences, and its preferences of one strength.
Steps = dict[tuple[str | int, ...], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildSettings:
    """Settings of a build: pairs per split, images and changes. `paper()` follows the paper's description."""

    pairs: int = PAIRS
    per_source: bool = False  # `pairs` is the number for each source of captions
    images: int | None = None  # None: all
    seed: int = 0
    subsets: tuple[str, ...] = tuple(MAKERS)
    loose: bool = False  # if no change that reads well keeps the text balanced, also any other that does

    @classmethod
    def paper(cls, **changes: Any) -> "BuildSettings":
        """One change for every image, captioner and split, if possible: 5,000 images, captions as generated.

        >>> BuildSettings.paper(seed=1).per_source
        True
        """
        defaults: dict[str, Any] = {"per_source": True, "images": PAIRS, "loose": True}
        return cls(**defaults | changes)

    @property
    def max_per_subset(self) -> int:
        """Maximum number of pairs of one type of change in one split (and source, with `per_source`)."""
        return self.pairs if self.loose else ceil(self.pairs / len(self.subsets))

    def __post_init__(self) -> None:
        for name, value in (("pairs", self.pairs), ("images", self.images)):
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
        if not self.subsets:
            raise ConfigError("subsets must name at least one kind of change")
        for name in self.subsets:
            if name not in MAKERS:
                raise unknown_name("subset", name, MAKERS)


@dataclass(slots=True)
class Balance:
    """Running sums over the pairs selected so far; `choose` updates them."""

    counts: Counter[str] = field(default_factory=Counter)
    _words: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    _seen: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    _sums: Counter[tuple[str | int, ...]] = field(default_factory=Counter)
    _control: Counter[str] = field(default_factory=Counter)

    def choose(
        self,
        options: Sequence[Counterfactual],
        readers: Sequence[Reader],
        rng: Random,
        *,
        control: Reader | None = None,
    ) -> Counterfactual | None:
        """Select the option with the smallest sums; return None if all would move a sum out of its bounds.

        The preferences of every reader are balanced, so that random errors of one reader do not matter.
        """
        positive_scores = {
            text: [reader(text) for reader in readers] for text in {option.positive for option in options}
        }
        candidates = []
        for option in options:
            negative_scores = (reader(option.negative) for reader in readers)
            steps = self._steps(
                option,
                [
                    positive - negative
                    for positive, negative in zip(positive_scores[option.positive], negative_scores, strict=True)
                ],
            )
            if self._is_within(option, steps):
                words = self._words[option.subset]
                # The increase of the sum of squares.
                cost = sum(2 * words[word] + 1 for word in option.inserted)
                cost -= sum(2 * words[word] - 1 for word in option.removed)
                cost += sum(step * (2 * self._sums[name] + step) for name, step in steps.items())
                candidates.append((cost, rng.random(), option, steps))
        if not candidates:
            return None
        _, _, best, steps = min(candidates, key=lambda entry: entry[:2])
        subset = best.subset
        self.counts[subset] += 1
        self._words[subset].update(best.inserted)
        self._words[subset].subtract(best.removed)
        self._seen[subset].update((*best.inserted, *best.removed))
        self._sums.update(steps)
        if control is not None:
            self._control[subset] += sign(control(best.positive) - control(best.negative))
        return best

    def _is_within(self, change: Counterfactual, steps: Steps) -> bool:
        subset = change.subset
        bound = max(_SLACK, _SHARE * self.counts[subset])
        if any(abs(self._sums[name] + step) > max(bound, abs(self._sums[name])) for name, step in steps.items()):
            return False
        words, seen = self._words[subset], self._seen[subset]
        moves = [(word, 1) for word in change.inserted] + [(word, -1) for word in change.removed]
        return all(
            abs(words[word] + move) <= max(_SLACK, _WORD_SHARE * seen[word], abs(words[word]) - 1)
            for word, move in moves
        )

    def _steps(self, change: Counterfactual, hints: Sequence[float]) -> Steps:
        """Return the contributions of a change; `hints` are the readers' preferences for the true caption in nats."""
        steps: Steps = {(change.subset,): sign(len(change.negative) - len(change.positive))}
        zero = -_CORRECTION * self._control[change.subset]
        for reader, hint in enumerate(hints):
            strength = sum(abs(hint - zero) > step for step in _STEPS)
            steps[change.subset, reader, strength] = sign(hint - zero)
        return steps


def sign(value: float) -> int:
    """Return 1, 0 or −1.

    >>> sign(-0.5), sign(0), sign(3)
    (-1, 0, 1)
    """
    return (value > 0) - (value < 0)


def build(
    images: Sequence[AnnotatedImage],
    settings: BuildSettings,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Counterfactual]:
    """Build the benchmark; the same images, settings and seed produce the same pairs."""
    usable = [image for image in images if image.captions]
    if not any(image.objects is not None for image in usable):
        raise InputError("expected annotated objects for some images, got none; pass --objects")
    # Without the judge's captions, otherwise the judge would favour the selected pairs.
    texts = (caption.text for image in usable if part_of(image) != JUDGE for caption in image.captions)
    knowledge, reads_well = learn(usable), collocation_test(texts)
    models = [quarter_model(usable, part) for part in (*CHOOSING, CONTROL)]
    selected = Random(settings.seed).sample(usable, min(settings.images or len(usable), len(usable)))
    balances: Balances = defaultdict(Balance)
    sources = sorted({caption.source for image in selected for caption in image.captions})
    keys = [(split, source if settings.per_source else "") for split in SPLITS for source in sources]
    pairs = list[Counterfactual]()
    for index, image in enumerate(selected, start=1):
        if not any(_wanted(balances[key], settings) for key in keys):
            break
        pairs += _pairs_of(image, knowledge, reads_well, models, balances, settings)
        progress(index, len(selected))
    progress(len(selected), len(selected))
    if not pairs:
        raise InputError(f"none of {len(selected)} images has a caption that can be changed; pass more images")
    return sorted(pairs, key=lambda pair: (pair.image, pair.source, pair.split))


def requested(images: Sequence[AnnotatedImage], settings: BuildSettings) -> int:
    """Return the number of pairs of both splits that the settings ask for: at most one per image, source and split."""
    selected = min(settings.images or len(images), len(images))
    sources = Counter(source for image in images for source in {caption.source for caption in image.captions})
    counts = [min(selected, count) for count in sources.values()]
    if settings.per_source:
        return len(SPLITS) * sum(min(settings.pairs, count) for count in counts)
    return len(SPLITS) * min(settings.pairs, sum(counts))


def _pairs_of(
    image: AnnotatedImage,
    knowledge: Knowledge,
    reads_well: Callable[[str, str], bool],
    models: Sequence[TextReader],
    balances: Balances,
    settings: BuildSettings,
) -> Iterator[Counterfactual]:
    """Yield a pair for each source and split, of the rarest type so far that one of the image's captions allows."""
    *choosing, control = (partial(model, image.name) for model in models)
    facts, sources = image_facts(image, knowledge), dict.fromkeys(caption.source for caption in image.captions)
    for source, split in product(sources, SPLITS):
        rng = Random(f"{settings.seed}/{image.name}/{source}/{split}")
        balance = balances[split, source if settings.per_source else ""]
        subjects = _subjects(image, source, facts, knowledge, settings, rng)
        for subset, natural in _attempts(balance, settings):
            candidates = subjects if natural else [replace(subject, loose=True) for subject in subjects]
            options = _options(candidates, subset, split, reads_well if natural else None)
            if (best := balance.choose(options, choosing, rng, control=control)) is not None:
                yield replace(best, image=image.name, source=source, split=split)
                break


def _subjects(
    image: AnnotatedImage, source: str, facts: ImageFacts, knowledge: Knowledge, settings: BuildSettings, rng: Random
) -> list[Subject]:
    """Return the captions of a source that can be changed, in random order, as are the absent objects."""
    absent, texts = list(facts.absent), [other.text for other in image.captions if other.source == source]
    rng.shuffle(absent)
    rng.shuffle(texts)
    shuffled = replace(facts, absent=tuple(absent))
    return [
        Subject(words, shuffled, knowledge)
        for words in map(read_caption, texts)
        if settings.loose or (_SHORTEST <= len(words.words) <= _LONGEST and is_clean(words))
    ]


def _attempts(balance: Balance, settings: BuildSettings) -> list[tuple[str, bool]]:
    """Return the types of change to try, and whether the result must read well, until one succeeds."""
    wanted = _wanted(balance, settings)
    return [(name, natural) for natural in ((True, False) if settings.loose else (True,)) for name in wanted]


def _wanted(balance: Balance, settings: BuildSettings) -> list[str]:
    """Return the types of change that are not complete, the rarest first."""
    names = [name for name in settings.subsets if balance.counts[name] < settings.max_per_subset]
    return sorted(names, key=lambda name: (balance.counts[name], name))


def _options(
    subjects: Sequence[Subject], subset: str, split: Split, reads_well: Callable[[str, str], bool] | None
) -> list[Counterfactual]:
    """Return changes of the captions; with `reads_well`, those whose wrong caption reads well."""
    options = list[Counterfactual]()
    for subject in subjects:
        if len(options) >= _MAX_OPTIONS:
            break
        changes = islice(MAKERS[subset](subject, split), _MAX_OPTIONS)
        options += [change for change in changes if not reads_well or reads_well(change.positive, change.negative)]
    return options


def quarter_model(images: Sequence[AnnotatedImage], part: int) -> TextReader:
    """Return a language model of the captions of a quarter of the images."""
    quarter = (image for image in images if part_of(image) == part)
    return caption_model({image.name: [caption.text for caption in image.captions] for image in quarter})


def part_of(image: AnnotatedImage) -> int:
    """Return the quarter of an image, by its name."""
    return blake2b(image.name.encode(), digest_size=2).digest()[0] % 4
