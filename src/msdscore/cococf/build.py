"""COCO-CF from annotated images: one easy and one hard counterfactual per image and source of captions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import islice
from math import ceil
from random import Random

from msdscore.cococf.balance import Balance, Reader, gram_reader
from msdscore.cococf.changes import MAKERS, SPLITS, Counterfactual, Split, plainly, subject
from msdscore.cococf.knowledge import (
    CaptionModel,
    Gram,
    ImageFacts,
    Knowledge,
    caption_model,
    count_collocations,
    count_grams,
    image_facts,
    learn,
)
from msdscore.cococf.sites import is_clean, read_caption
from msdscore.cococf.sources import AnnotatedImage
from msdscore.errors import ConfigError, InputError, unknown_name

PAIRS = 5000  # per split, as the paper has per captioner
# Quarters of the images, each with a language model of its captions: two choose pairs, one steers, one judges.
CHOOSING, CONTROL, JUDGE = (0, 1), 2, 3
_OPTIONS = 24  # possible changes that are weighed against each other
_SHORTEST, _LONGEST = 4, 120  # words of a caption to change


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildSettings:
    """What is built: how many pairs per split, from how many images, with which changes, and how additions look.

    `add` is `matched` (a false addition against a true one) or `plain` (against none, as SugarCrepe has it).
    """

    pairs: int = PAIRS
    pictures: int | None = None  # all
    seed: int = 0
    subsets: tuple[str, ...] = tuple(MAKERS)
    add: str = "matched"
    reader: str = ""  # a causal language model that must not tell the pairs apart; none: only models of the captions

    @property
    def most(self) -> int:
        """Pairs of one sort of change in one split, at most."""
        return ceil(self.pairs / len(self.subsets))

    def __post_init__(self) -> None:
        for name, value in (("pairs", self.pairs), ("pictures", self.pictures)):
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
        if not self.subsets:
            raise ConfigError("subsets must name at least one kind of change")
        if self.add not in ("matched", "plain"):
            raise unknown_name("kind of additions", self.add, ("matched", "plain"))
        for name in self.subsets:
            if name not in MAKERS:
                raise unknown_name("subset", name, MAKERS)


@dataclass(frozen=True, slots=True)
class CounterfactualPair:
    """One row of the benchmark."""

    image: AnnotatedImage
    source: str
    split: Split
    change: Counterfactual


@dataclass(frozen=True, slots=True)
class Built:
    """All pairs, the settings, and how many images were looked at."""

    pairs: tuple[CounterfactualPair, ...]
    settings: BuildSettings
    images: int

    def of(self, split: Split) -> list[CounterfactualPair]:
        """The pairs of one split."""
        return [pair for pair in self.pairs if pair.split == split]


def build(
    images: Sequence[AnnotatedImage],
    settings: BuildSettings,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Built:
    """Make the benchmark; the same images, settings and seed make the same pairs."""
    usable = [image for image in images if image.captions]
    if not any(image.objects is not None for image in usable):
        raise InputError("expected annotated objects for some images, got none; give --objects")
    # Not of the judge's captions, which would then like what is chosen.
    texts = (caption.text for image in usable if part_of(image) != JUDGE for caption in image.captions)
    knowledge = replace(learn(usable), collocations=count_collocations(texts))
    models = [model_of(usable, part) for part in (*CHOOSING, CONTROL)]
    chosen = Random(settings.seed).sample(usable, min(settings.pictures or len(usable), len(usable)))
    balances = {split: Balance() for split in SPLITS}
    pairs = list[CounterfactualPair]()
    for number, image in enumerate(chosen, start=1):
        if all(_wanted(balance, settings) == [] for balance in balances.values()):
            break
        pairs += _pairs_of(image, knowledge, models, balances, settings)
        progress(number, len(chosen))
    progress(len(chosen), len(chosen))
    pairs.sort(key=lambda pair: (pair.image.name, pair.source, pair.split))
    return Built(tuple(pairs), settings, number)


def _pairs_of(
    image: AnnotatedImage,
    knowledge: Knowledge,
    models: Sequence[CaptionModel],
    balances: dict[Split, Balance],
    settings: BuildSettings,
) -> list[CounterfactualPair]:
    readers = tuple(gram_reader(model, own_counts(image, part)) for part, model in enumerate(models))
    facts, pairs = image_facts(image, knowledge), list[CounterfactualPair]()
    for source in dict.fromkeys(caption.source for caption in image.captions):
        for split in SPLITS:
            chance = Random(f"{settings.seed}/{image.name}/{source}/{split}")
            unit = _Unit(image, source, facts, readers)
            pair = _pair(unit, split, knowledge, balances[split], settings, chance)
            pairs += [] if pair is None else [pair]
    return pairs


def _wanted(balance: Balance, settings: BuildSettings) -> list[str]:
    """Sorts of change that are not complete, the rarest first."""
    names = [name for name in settings.subsets if balance.counts[name] < settings.most]
    return sorted(names, key=lambda name: (balance.counts[name], name))


def model_of(images: Sequence[AnnotatedImage], part: int) -> CaptionModel:
    """A language model of the captions of a quarter of the images."""
    return caption_model(caption.text for image in images if part_of(image) == part for caption in image.captions)


def own_counts(image: AnnotatedImage, part: int) -> Mapping[Gram, int]:
    """What the model of a quarter knows from this image itself."""
    return count_grams(caption.text for caption in image.captions) if part_of(image) == part else {}


def part_of(image: AnnotatedImage) -> int:
    """The quarter that an image belongs to, by its name."""
    return blake2b(image.name.encode(), digest_size=2).digest()[0] % 4


@dataclass(frozen=True, slots=True)
class _Unit:
    image: AnnotatedImage
    source: str
    facts: ImageFacts
    readers: tuple[Reader, ...]


def _pair(
    unit: _Unit, split: Split, knowledge: Knowledge, balance: Balance, settings: BuildSettings, chance: Random
) -> CounterfactualPair | None:
    """The pair of the rarest sort so far that one of the unit's captions allows."""
    absent = list(unit.facts.absent)
    chance.shuffle(absent)
    facts = replace(unit.facts, absent=tuple(absent))
    texts = [caption.text for caption in unit.image.captions if caption.source == unit.source]
    chance.shuffle(texts)
    for subset in _wanted(balance, settings):
        options = list[Counterfactual]()
        for text in texts:
            words = read_caption(text)
            if len(options) >= _OPTIONS or not _SHORTEST <= len(words.words) <= _LONGEST or not is_clean(words):
                continue
            others = [caption.text for caption in unit.image.captions if caption.text != text]
            about = subject(text, facts, knowledge, others)
            changes = islice(MAKERS[subset](about, split), _OPTIONS)
            options += [
                plainly(change, text) if settings.add == "plain" and change.action == "add" else change
                for change in changes
                # What is added stands behind the caption, with words that captions hardly have.
                if subset == "add_obj" or knowledge.collocations.read_well(change.positive, change.negative)
            ]
        *choosing, control = unit.readers
        chosen = balance.choose(options, choosing, chance, control=control)
        if chosen is not None:
            return CounterfactualPair(unit.image, unit.source, split, chosen)
    return None


_POOL = 1.5  # pairs that are made for each one that is wanted
_WORSE = 8.0  # nats by which a wrong caption may read worse than the true one; with more it reads badly


def pool_settings(settings: BuildSettings) -> BuildSettings:
    """Settings of the larger set that a reader's pairs are taken from."""
    return replace(settings, pairs=round(_POOL * settings.pairs)) if settings.reader else settings


def refine(pool: Built, known: Mapping[str, float], images: Sequence[AnnotatedImage], settings: BuildSettings) -> Built:
    """The pairs of a pool that leave a reader, whose log-likelihoods are known, without a hint."""
    control = model_of(images, CONTROL)
    balances = {split: Balance(strict=True) for split in SPLITS}
    chance, kept = Random(settings.seed), list[CounterfactualPair]()
    for pair in chance.sample(pool.pairs, len(pool.pairs)):
        balance = balances[pair.split]
        if known[pair.change.positive] - known[pair.change.negative] > _WORSE:
            continue
        if balance.counts[pair.change.subset] < settings.most:
            grams = gram_reader(control, own_counts(pair.image, CONTROL))
            kept += [pair] if balance.choose([pair.change], (known.__getitem__, grams), chance) else []
    kept.sort(key=lambda pair: (pair.image.name, pair.source, pair.split))
    return Built(tuple(kept), settings, pool.images)
