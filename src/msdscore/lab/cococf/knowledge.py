"""Statistics of all captions and annotations: co-occurring classes, collocations, and a language model."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

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
TextReader = Callable[[str, str], float]  # from the name of an image and a caption to its log-probability in nats


def count_grams(texts: Iterable[str]) -> dict[Gram, int]:
    """Count every one, two and three consecutive words, and with an empty last word the contexts."""
    counts: dict[Gram, int] = {}
    for text in texts:
        for one, two, three in _triples(text):
            for gram in ((three,), (two, three), (one, two, three), (two, ""), (one, two, "")):
                counts[gram] = counts.get(gram, 0) + 1
    return counts


def _triples(text: str) -> Iterator[tuple[str, str, str]]:
    words = (_BEGIN, _BEGIN, *read_caption(text).words, _END)
    return zip(words, words[1:], words[2:], strict=False)


def caption_model(captions: Mapping[str, Sequence[str]]) -> TextReader:
    """Learn a trigram model from the captions of images; captions of the image that is read are excluded.

    >>> read = caption_model({"1.jpg": ["a dog runs", "a dog sits"], "2.jpg": ["a cat runs"]})
    >>> read("3.jpg", "a dog runs") > read("3.jpg", "dog a runs")
    True
    >>> read("3.jpg", "a dog runs") > read("1.jpg", "a dog runs")
    True
    """
    counts = count_grams(chain.from_iterable(captions.values()))
    single = [count for gram, count in counts.items() if len(gram) == 1]
    total, words = sum(single), len(single)
    counts_of = lru_cache(1)(lambda image: count_grams(captions.get(image, ())))  # an image is read several times

    def log_probability(image: str, text: str) -> float:
        known, own, steps = counts.get, counts_of(image).get, list[float]()
        for three in _triples(text):
            one = three[2:]
            mixed = _SHARES[2] * (max(0, known(one, 0) - own(one, 0)) + 1) / (total + words + 1)
            for share, gram in ((_SHARES[0], three), (_SHARES[1], three[1:])):
                context = (*gram[:-1], "")
                before = known(context, 0) - own(context, 0)
                if before > 0:
                    mixed += share * max(0, known(gram, 0) - own(gram, 0)) / before
            steps.append(math.log(mixed))
        return sum(steps)

    return log_probability


_KNOWN = 10  # captions that must have a word before it can be said to be unusual somewhere


def collocation_test(captions: Iterable[str]) -> Callable[[str, str], bool]:
    """Return a test of a true and a wrong caption: captions have the collocations that the change makes.

    "Kneeling down street" is in none. A word that the captions hardly have cannot be judged and passes. Objects of rare
    classes count as their family.
    """
    texts = list(captions)
    names = Counter(name for text in texts for name in things_and_words(text))
    rare = frozenset(name for name in vocabulary().objects if names[name] < _KNOWN)
    counts = Counter(gram for text in texts for gram in collocations(text, rare))

    def reads_well(positive: str, negative: str) -> bool:
        new = collocations(negative, rare) - collocations(positive, rare)
        unknown = {gram[0] for gram in new if len(gram) == 1 and counts[gram] < _KNOWN}
        return all(counts[gram] or not unknown.isdisjoint(gram) for gram in new)

    return reads_well


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
    """Companions of every class, and usual words of a noun."""

    companions: Mapping[str, frozenset[str]]
    usual: Mapping[str, frozenset[str]]


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
