"""Statistics of all captions and annotations: co-occurring classes, collocations, and a language model."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

from msdscore.text.words import STOP_WORDS
from msdscore_lab.cococf.sites import (
    DETERMINERS,
    attribute_sites,
    read_caption,
    relation_sites,
    words_and_bigrams,
    words_with_classes,
)
from msdscore_lab.cococf.sources import AnnotatedImage
from msdscore_lab.cococf.vocabulary import Concept, vocabulary

_WEIGHTS = (0.6, 0.3, 0.1)  # interpolation weights of trigrams, bigrams and unigrams
_BEGIN, _END = "<s>", "</s>"
Gram = tuple[str, ...]
TextReader = Callable[[str, str], float]  # from the name of an image and a caption to its log-probability in nats


def count_grams(texts: Iterable[str]) -> dict[Gram, int]:
    """Count unigrams, bigrams and trigrams, and their contexts, which have an empty last word."""
    counts: dict[Gram, int] = {}
    for text in texts:
        for first, second, third in _triples(text):
            for gram in ((third,), (second, third), (first, second, third), (second, ""), (first, second, "")):
                counts[gram] = counts.get(gram, 0) + 1
    return counts


def _triples(text: str) -> Iterator[tuple[str, str, str]]:
    words = (_BEGIN, _BEGIN, *read_caption(text).words, _END)
    return zip(words, words[1:], words[2:], strict=False)


def caption_model(captions: Mapping[str, Sequence[str]]) -> TextReader:
    """Learn a trigram model from the captions of images; captions of the scored image are excluded.

    >>> read = caption_model({"1.jpg": ["a dog runs", "a dog sits"], "2.jpg": ["a cat runs"]})
    >>> read("3.jpg", "a dog runs") > read("3.jpg", "dog a runs")
    True
    >>> read("3.jpg", "a dog runs") > read("1.jpg", "a dog runs")
    True
    """
    counts = count_grams(chain.from_iterable(captions.values()))
    single = [gram_count for gram, gram_count in counts.items() if len(gram) == 1]
    total, words = sum(single), len(single)
    counts_of = lru_cache(1)(lambda image: count_grams(captions.get(image, ())))  # an image is scored several times

    def log_probability(image: str, text: str) -> float:
        count, own_count, log_probabilities = counts.get, counts_of(image).get, list[float]()
        for trigram in _triples(text):
            unigram = trigram[2:]
            probability = _WEIGHTS[2] * (max(0, count(unigram, 0) - own_count(unigram, 0)) + 1) / (total + words + 1)
            for weight, gram in ((_WEIGHTS[0], trigram), (_WEIGHTS[1], trigram[1:])):
                context = (*gram[:-1], "")
                context_count = count(context, 0) - own_count(context, 0)
                if context_count > 0:
                    probability += weight * max(0, count(gram, 0) - own_count(gram, 0)) / context_count
            log_probabilities.append(math.log(probability))
        return sum(log_probabilities)

    return log_probability


_MINIMUM_COUNT = 10  # captions with a word, below which its collocations are not tested


def collocation_test(captions: Iterable[str]) -> Callable[[str, str], bool]:
    """Return a test of a true and a wrong caption: all new collocations of the wrong caption occur in `captions`.

    "Kneeling down street", for example, does not. Words that are too rare in the captions pass. Objects of rare classes
    count as their family.
    """
    texts = list(captions)
    names = Counter(name for text in texts for name in words_with_classes(text))
    rare = frozenset(name for name in vocabulary().objects if names[name] < _MINIMUM_COUNT)
    counts = Counter(gram for text in texts for gram in collocations(text, rare))

    def reads_well(positive: str, negative: str) -> bool:
        new = collocations(negative, rare) - collocations(positive, rare)
        unknown = {gram[0] for gram in new if len(gram) == 1 and counts[gram] < _MINIMUM_COUNT}
        return all(counts[gram] or not unknown.isdisjoint(gram) for gram in new)

    return reads_well


def collocations(text: str, rare: Collection[str] = ()) -> set[Gram]:
    """Return one to three consecutive words of a caption without articles and attributes, and attributes with nouns.

    Objects are classes, so that a puppy is a dog, and for `rare` classes their families. Numbers fit every noun.

    >>> sorted(gram for gram in collocations("A puppy on a large couch") if len(gram) > 1)
    [('dog', 'on'), ('dog', 'on', 'couch'), ('large', 'couch'), ('on', 'couch')]
    """
    grams, after = set[Gram](), Gram()
    for word in reversed(words_with_classes(text)):
        quality = vocabulary().qualities.get(word) if after and after[0] not in STOP_WORDS else None
        if word in DETERMINERS or (quality and quality.slot == "number"):
            continue
        gram = (f"[{vocabulary().objects[word].family}]" if word in rare else word, *after)
        grams |= {gram[:1], gram[:2]} if quality else {gram[:1], gram[:2], gram}
        after = after if quality else gram[:2]
    return grams


_COMPANION_SHARE = 0.1  # minimum share of a class's images that contain a companion
_USUAL_COUNT = 3  # minimum count of a word with a noun to be usual


@dataclass(frozen=True, slots=True)
class Knowledge:
    """Classes that often occur together (companions), and usual attributes and relations of each noun."""

    companions: Mapping[str, frozenset[str]]
    usual: Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """Concepts in the captions and annotations of an image, and absent ones."""

    objects: frozenset[str] | None
    absent: tuple[Concept, ...]  # objects in no annotation and no caption
    said: frozenset[str]
    families: frozenset[str]
    companions: frozenset[str]


def learn(images: Iterable[AnnotatedImage]) -> Knowledge:
    """Count co-occurrences in the annotations and captions of all images."""
    class_counts, pair_counts = Counter[str](), Counter[tuple[str, str]]()
    usual: dict[str, Counter[str]] = defaultdict(Counter)
    for image in images:
        classes = sorted(image.objects or ())
        class_counts.update(classes)
        pair_counts.update((first, second) for first in classes for second in classes if first != second)
        for caption in image.captions:
            words = read_caption(caption.text)
            for site in (*attribute_sites(words), *relation_sites(words)):
                if site.head:
                    usual[site.head][site.text] += 1
    companions: dict[str, set[str]] = defaultdict(set)
    for (first, second), count in pair_counts.items():
        if count >= _COMPANION_SHARE * class_counts[first]:
            companions[first].add(second)
    return Knowledge(
        {name: frozenset(names) for name, names in companions.items()},
        {head: frozenset(word for word, n in counts.items() if n >= _USUAL_COUNT) for head, counts in usual.items()},
    )


def image_facts(image: AnnotatedImage, knowledge: Knowledge) -> ImageFacts:
    """Collect the facts about one image."""
    objects, said = vocabulary().objects, words_and_bigrams([caption.text for caption in image.captions])
    mentioned = {name for name, words in vocabulary().shown_by.items() if words & said}
    present = (image.objects or frozenset()) | mentioned
    companions = frozenset(other for name in image.objects or () for other in knowledge.companions.get(name, ()))
    families = frozenset(objects[name].family for name in present if name in objects)
    absent = [] if image.objects is None else [concept for name, concept in objects.items() if name not in present]
    return ImageFacts(image.objects, tuple(absent), said, families, companions)
