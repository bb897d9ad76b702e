"""Statistics of all captions and annotations: co-occurring classes, collocations, and a language model."""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from msdscore.lab.cococf.sites import (
    DETERMINERS,
    attribute_sites,
    read_caption,
    relation_sites,
    things_and_words,
    words_said,
)
from msdscore.lab.cococf.sources import AnnotatedImage
from msdscore.lab.cococf.vocabulary import Concept, vocabulary
from msdscore.text.words import STOP_WORDS

_SHARES = (0.6, 0.3, 0.1)  # of three words, two and one
_BEGIN, _END = "<s>", "</s>"
Gram = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CaptionModel:
    """Counts of one, two and three consecutive words."""

    counts: Mapping[Gram, int]
    total: int
    words: int

    def log_probability(self, text: str, own: Mapping[Gram, int]) -> float:
        """Return the log-probability of a caption; counts of its image (`own`) are excluded."""
        words = [_BEGIN, _BEGIN, *read_caption(text).words, _END]
        return sum(self._step(tuple(words[at - 2 : at + 1]), own) for at in range(2, len(words)))

    def _step(self, three: Gram, own: Mapping[Gram, int]) -> float:
        known, left_out = self.counts.get, own.get
        one = three[2:]
        mixed = _SHARES[2] * (max(0, known(one, 0) - left_out(one, 0)) + 1) / (self.total + self.words + 1)
        for share, gram in ((_SHARES[0], three), (_SHARES[1], three[1:])):
            context = (*gram[:-1], "")
            before = known(context, 0) - left_out(context, 0)
            if before > 0:
                mixed += share * max(0, known(gram, 0) - left_out(gram, 0)) / before
        return math.log(mixed)


def count_grams(texts: Iterable[str]) -> dict[Gram, int]:
    """Count every one, two and three consecutive words, and with an empty last word the contexts."""
    counts: dict[Gram, int] = {}
    for text in texts:
        words = [_BEGIN, _BEGIN, *read_caption(text).words, _END]
        for at in range(2, len(words)):
            one, two, three = words[at - 2 : at + 1]
            for gram in ((three,), (two, three), (one, two, three), (two, ""), (one, two, "")):
                counts[gram] = counts.get(gram, 0) + 1
    return counts


def caption_model(texts: Iterable[str]) -> CaptionModel:
    """Learn from captions.

    >>> model = caption_model(["a dog runs", "a dog sits", "a cat runs"])
    >>> model.log_probability("a dog runs", {}) > model.log_probability("dog a runs", {})
    True
    """
    counts = count_grams(texts)
    single = {gram: count for gram, count in counts.items() if len(gram) == 1}
    return CaptionModel(counts, sum(single.values()), len(single))


_KNOWN = 10  # captions that must have a word before it can be said to be unusual somewhere


@dataclass(frozen=True, slots=True)
class Collocations:
    """Numbers of captions with each word and each collocation; objects of `rare` classes count as their family."""

    counts: Mapping[Gram, int] = field(default_factory=dict)
    rare: Collection[str] = ()

    def read_well(self, positive: str, negative: str) -> bool:
        """Return whether captions have the collocations of a change: "kneeling down street" is in none.

        A word that the captions hardly have cannot be judged and passes.
        """
        new = collocations(negative, self.rare) - collocations(positive, self.rare)
        unknown = {gram[0] for gram in new if len(gram) == 1 and self.counts.get(gram, 0) < _KNOWN}
        return all(self.counts.get(gram) or not unknown.isdisjoint(gram) for gram in new)


def count_collocations(captions: Iterable[str]) -> Collocations:
    """Learn collocations."""
    texts = list(captions)
    names = Counter(name for text in texts for name in things_and_words(text))
    rare = frozenset(name for name in vocabulary().objects if names[name] < _KNOWN)
    return Collocations(Counter(gram for text in texts for gram in collocations(text, rare)), rare)


def collocations(text: str, rare: Collection[str] = ()) -> set[Gram]:
    """Return one to three consecutive words of a caption without articles and attributes, and attributes with nouns.

    Objects are classes, so that a puppy is a dog, and for `rare` classes their families. Numbers fit every noun.

    >>> sorted(gram for gram in collocations("A puppy on a large couch") if len(gram) > 1)
    [('dog', 'on'), ('dog', 'on', 'couch'), ('large', 'couch'), ('on', 'couch')]
    """
    grams, after = set[Gram](), Gram()
    for word in reversed(things_and_words(text)):
        quality = vocabulary().qualities.get(word) if after and after[0] not in STOP_WORDS else None
        if word in DETERMINERS or (quality and quality.slot == "number"):
            continue
        gram = (f"[{vocabulary().objects[word].family}]" if word in rare else word, *after)
        grams |= {gram[:1], gram[:2]} if quality else {gram[:1], gram[:2], gram}
        after = after if quality else gram[:2]
    return grams


_TOGETHER = 0.1  # share of a class's images that a companion is in
_OFTEN = 3  # times that a word was said of a noun before it counts as usual


@dataclass(frozen=True, slots=True)
class Knowledge:
    """Companions of every class, usual words of a noun, and collocations in captions."""

    companions: Mapping[str, frozenset[str]]
    usual: Mapping[str, frozenset[str]]
    collocations: Collocations = field(default_factory=Collocations)


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """An image's captions and annotations as sets: concepts that cannot be called absent."""

    objects: frozenset[str] | None
    absent: tuple[Concept, ...]  # objects that no annotation and no caption mentions
    said: frozenset[str]
    families: frozenset[str]
    companions: frozenset[str]


def learn(images: Iterable[AnnotatedImage]) -> Knowledge:
    """Count co-occurrences in the annotations and captions of all images."""
    single, both = Counter[str](), Counter[tuple[str, str]]()
    usual: dict[str, Counter[str]] = defaultdict(Counter)
    for image in images:
        shown = sorted(image.objects or ())
        single.update(shown)
        both.update((one, two) for one in shown for two in shown if one != two)
        for caption in image.captions:
            words = read_caption(caption.text)
            for site in (*attribute_sites(words), *relation_sites(words)):
                if site.head:
                    usual[site.head][site.text] += 1
    companions: dict[str, set[str]] = defaultdict(set)
    for (one, two), count in both.items():
        if count >= _TOGETHER * single[one]:
            companions[one].add(two)
    return Knowledge(
        {name: frozenset(names) for name, names in companions.items()},
        {head: frozenset(word for word, n in counts.items() if n >= _OFTEN) for head, counts in usual.items()},
    )


def image_facts(image: AnnotatedImage, knowledge: Knowledge) -> ImageFacts:
    """Return the facts about one image."""
    objects, said = vocabulary().objects, words_said([caption.text for caption in image.captions])
    named = {name for name, words in vocabulary().shown_by.items() if words & said}
    shown = (image.objects or frozenset()) | named
    companions = frozenset(other for name in image.objects or () for other in knowledge.companions.get(name, ()))
    families = frozenset(objects[name].family for name in shown if name in objects)
    absent = [] if image.objects is None else [concept for name, concept in objects.items() if name not in shown]
    return ImageFacts(image.objects, tuple(absent), said, families, companions)
