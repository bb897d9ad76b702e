"""What a whole set of annotated pictures teaches: which classes come together, which words go with which nouns."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from msdscore.cococf.sites import attribute_sites, read_caption, relation_sites, words_said
from msdscore.cococf.sources import AnnotatedPicture
from msdscore.cococf.vocabulary import Concept, vocabulary

_TOGETHER = 0.1  # share of a class's pictures that a companion is in
_OFTEN = 3  # times that a word was said of a noun before it counts as usual


@dataclass(frozen=True, slots=True)
class Knowledge:
    """Companions of every class, and the words that are usual for a noun."""

    companions: Mapping[str, frozenset[str]]
    usual: Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class PictureFacts:
    """A picture's captions and annotations as sets: what cannot be called absent."""

    objects: frozenset[str] | None
    absent: tuple[Concept, ...]  # objects that no annotation and no word of any caption says to be there
    said: frozenset[str]
    families: frozenset[str]
    companions: frozenset[str]

    def unsaid(self, concept: Concept) -> bool:
        """Whether no caption has this word or one that means nearly the same."""
        return not ({concept.name} | concept.near) & self.said


def learn(pictures: Iterable[AnnotatedPicture]) -> Knowledge:
    """Count what comes together in the annotations and captions of all pictures."""
    single, both = Counter[str](), Counter[tuple[str, str]]()
    usual: dict[str, Counter[str]] = defaultdict(Counter)
    for picture in pictures:
        shown = sorted(picture.objects or ())
        single.update(shown)
        both.update((one, two) for one in shown for two in shown if one != two)
        for caption in picture.captions:
            words = read_caption(caption.text)
            for site in (*attribute_sites(words), *relation_sites(words)):
                if site.head:
                    usual[site.head][site.text] += 1
    companions: dict[str, set[str]] = defaultdict(set)
    for (one, two), count in both.items():
        if count >= _TOGETHER * single[one]:
            companions[one].add(two)
    return Knowledge(
        {name: frozenset(found) for name, found in companions.items()},
        {head: frozenset(word for word, n in counts.items() if n >= _OFTEN) for head, counts in usual.items()},
    )


def picture_facts(picture: AnnotatedPicture, knowledge: Knowledge) -> PictureFacts:
    """What is known of one picture."""
    objects, said = vocabulary().objects, words_said([caption.text for caption in picture.captions])
    named = {name for name, words in vocabulary().shown_by.items() if words & said}
    shown = (picture.objects or frozenset()) | named
    companions = frozenset(other for name in picture.objects or () for other in knowledge.companions.get(name, ()))
    families = frozenset(objects[name].family for name in shown if name in objects)
    absent = [] if picture.objects is None else [one for name, one in objects.items() if name not in shown]
    return PictureFacts(picture.objects, tuple(absent), said, families, companions)
