"""Where a caption can be changed: the words of one concept, in a place where another concept fits grammatically."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise

from msdscore.cococf.vocabulary import SUPPORTS, ChangeKind, Concept, vocabulary, word_set
from msdscore.text.edits import ARTICLES, article
from msdscore.text.words import STOP_WORDS

_WORD = re.compile(r"[A-Za-z]+(?:['’-][A-Za-z]+)*")
_KEPT = 1024  # captions whose sites are remembered: all changes of one caption are made together
DETERMINERS = word_set("a an the his her its their another one this that")
_BEFORE_MANY = word_set("the some several many these those two three four five six of with and different")
# Words that go on after a noun without belonging to it.
_AFTER = STOP_WORDS | word_set(
    "sits stands walks runs lies lays rides eats holds flies plays jumps looks sleeps hangs parked covered "
    "filled topped surrounded while atop alongside amongst beneath underneath"
)
_AFTER_ACTION = STOP_WORDS | word_set("together down up outside inside while alone along across atop alongside beneath")
_IRREGULAR_MANY = word_set("people men women children sheep")
# Other words for a class that can be replaced as they stand, one thing each.
_ALIASES = {
    "plane": "airplane", "planes": "airplane", "motorbike": "motorcycle", "sofa": "couch", "kitten": "cat",
    "puppy": "dog", "pony": "horse", "fridge": "refrigerator", "purse": "handbag", "doughnut": "donut",
    "doughnuts": "donut", "racket": "tennis racket", "phone": "cell phone", "hydrant": "fire hydrant", "tv": "tv",
    "television": "tv", "hotdog": "hot dog", "hotdogs": "hot dog", "lamb": "sheep", "sailboat": "boat",
}  # fmt: skip
# Words that make another thing of the class behind or before them.
_OTHER_THINGS = word_set("teddy hot toy stuffed toilet paper wine computer remote tennis baseball clock")
_PERSONS = word_set("man woman boy girl men women boys girls person people child children lady guy kid kids")
# Said of things as well as of people and animals.
_STILL = word_set("sitting standing laying lying resting hanging parked leaning sits stands lays lies")
_SYMMETRIC = frozenset(("and", "or", "with", "near", "beside", "next", "by", "together", "along", "while", "are"))
_DIRECTED = word_set(
    "on in under behind front top above below inside over riding holding wearing carrying pulling pushing "
    "chasing eating watching feeding kicking throwing hitting swinging driving walking petting"
)


@dataclass(frozen=True, slots=True)
class Site:
    """The characters of one concept in a caption; `head` is the noun that an attribute or relation belongs to."""

    start: int
    end: int
    text: str
    kind: ChangeKind
    concept: Concept | None  # None for a relation of place, whose `text` is its name
    many: bool = False
    head: str = ""
    opens: bool = False  # the first thing that the caption names: what it does must suit it


@dataclass(frozen=True, slots=True)
class CaptionWords:
    """The words of a caption with their places."""

    caption: str
    words: tuple[str, ...]  # in lower case
    spans: tuple[tuple[int, int], ...]

    def word(self, at: int) -> str:
        """A word, or nothing past the ends and across punctuation."""
        return self.words[at] if 0 <= at < len(self.words) else ""

    def after(self, at: int) -> str:
        """The word behind this one; nothing where the caption ends or a sign stands between."""
        if at + 1 >= len(self.words):
            return ""
        between = self.caption[self.spans[at][1] : self.spans[at + 1][0]]
        return self.words[at + 1] if not between.strip() else ""


@lru_cache(_KEPT)
def read_caption(caption: str) -> CaptionWords:
    """Cut a caption at its words.

    >>> read_caption("A dog's ball.").words
    ('a', "dog's", 'ball')
    """
    matches = list(_WORD.finditer(caption))
    return CaptionWords(
        caption, tuple(match.group().lower() for match in matches), tuple(match.span() for match in matches)
    )


def words_said(texts: Collection[str]) -> frozenset[str]:
    """Every word and every two neighbouring words of some captions, in lower case."""
    said: set[str] = set()
    for text in texts:
        words = read_caption(text).words
        parts = [part for word in words for part in (word, *word.replace("’", "'").split("'"), *word.split("-"))]
        said.update(parts, (f"{first} {second}" for first, second in pairwise(words)))
    return frozenset(said)


@lru_cache(_KEPT)
def object_sites(text: CaptionWords) -> list[Site]:
    """Things of COCO's classes that stand as nouns of their own, with their number."""
    sites: list[Site] = []
    forms, at = _noun_forms(), 0
    while at < len(text.words):
        two = f"{text.word(at)} {text.word(at + 1)}"
        length = 2 if two in forms else 1
        name = two if length == 2 else text.word(at)
        if name in forms and _stands_alone(text, at, at + length - 1, many=forms[name][1]):
            concept, many = forms[name]
            start, end = text.spans[at][0], text.spans[at + length - 1][1]
            sites.append(Site(start, end, name, "object", concept, many, opens=not sites))
        at += length
    return sites


@lru_cache(_KEPT)
def things_and_words(caption: str) -> tuple[str, ...]:
    """The words of a caption in order, those of COCO's classes by the name of the class."""
    words, forms, names, at = read_caption(caption).words, _noun_forms(), list[str](), 0
    while at < len(words):
        length = 2 if " ".join(words[at : at + 2]) in forms else 1
        name = " ".join(words[at : at + length])
        names.append(forms[name][0].name if name in forms else name)
        at += length
    return tuple(names)


@lru_cache(_KEPT)
def attribute_sites(text: CaptionWords) -> list[Site]:
    """Qualities right before the noun that they belong to."""
    known, sites = vocabulary().qualities, []
    for at, word in enumerate(text.words):
        head = text.after(at)
        beside = {text.word(at - 1), text.word(at + 1)}
        if word in known and _is_head(head) and "and" not in beside and _suits(known[word], head):
            start, end = text.spans[at]
            sites.append(Site(start, end, word, "attribute", known[word], _is_many(head), head))
    return sites


def is_clean(text: CaptionWords) -> bool:
    """Whether a caption is free of doubled words and wrong articles: what is changed should be the only fault."""
    steps = pairwise(text.words)
    return not any(first == second or (first in ARTICLES and first != article(second)) for first, second in steps)


def bare_heads(text: CaptionWords) -> list[tuple[int, str]]:
    """Nouns right behind an article or a possessive, where a quality could be put in: their places and themselves."""
    return [
        (text.spans[at][0], word)
        for at, word in enumerate(text.words)
        if at and text.words[at - 1] in DETERMINERS and text.after(at - 1) == word and _is_head(word)
    ]


@lru_cache(_KEPT)
def relation_sites(text: CaptionWords) -> list[Site]:
    """What a person or an animal does, and where things are."""
    return [*_actions(text), *_places(text)]


def directed(text: CaptionWords, first: Site, second: Site) -> bool:
    """Whether the words between two things say something that is false when the two change places."""
    between = text.caption[first.end : second.start]
    words = set(read_caption(between).words)
    acts = any(word.endswith("ing") for word in words - _STILL)
    if acts and (first.concept and first.concept.animate) != (second.concept and second.concept.animate):
        return False
    return not set(",.;") & set(between) and bool(words & _DIRECTED) and not words & _SYMMETRIC


def _stands_alone(text: CaptionWords, first: int, last: int, *, many: bool) -> bool:
    before, after = text.word(first - 1), text.after(last)
    if before in _OTHER_THINGS:
        return False
    goes_on = not after or after in _AFTER or after.endswith(("ing", "ed"))
    return (before in _usable_before(many) or (many and first == 0)) and goes_on


def _is_head(word: str) -> bool:
    odd = word in STOP_WORDS or word in vocabulary().qualities or word.endswith(("ing", "ed", "ly"))
    return len(word) > 2 and "-" not in word and "'" not in word and not odd


def _suits(quality: Concept, head: str) -> bool:
    """Some qualities are said of people alone, or never of them."""
    person = head in _PERSONS
    if quality.slot == "number":
        return _is_many(head)
    if quality.slot == "age":
        return person or head in vocabulary().objects
    return not (person and quality.slot in ("size", "material", "lid", "state"))


def _is_many(head: str) -> bool:
    return head in _IRREGULAR_MANY or (head.endswith("s") and not head.endswith(("ss", "us", "is")))


def _actions(text: CaptionWords) -> list[Site]:
    known, sites = vocabulary().actions, []
    for at, word in enumerate(text.words):
        concept = known.get(word)
        if concept is None or not _of_someone(text.words[max(0, at - 4) : at]):
            continue
        after = text.after(at)
        fits = after in DETERMINERS if concept.slot == "handling" else not after or after in _AFTER_ACTION
        if fits and after not in ("of", "to") and (concept.slot == "handling" or after not in DETERMINERS):
            start, end = text.spans[at]
            sites.append(Site(start, end, word, "relation", concept, head=_noun_behind(text, at + 1)))
    return sites


def _of_someone(words: Sequence[str]) -> bool:
    return any(word in _animate_words() for word in words)


def _places(text: CaptionWords) -> list[Site]:
    sites, at = list[Site](), 0
    while at < len(text.words):
        name = _place_at(text.words, at)
        length = name.count(" ") + 1
        if not name:
            at += 1
            continue
        head = _noun_behind(text, at + length)
        side = name in ("on the left", "on the right")
        after = text.after(at + length - 1)
        if (side and after in ("", "and", "of")) or (
            not side and after in DETERMINERS and (head in SUPPORTS or name not in ("on", "under", "beneath"))
        ):
            start, end = text.spans[at][0], text.spans[at + length - 1][1]
            sites.append(Site(start, end, name, "relation", None, head=head))
        at += length
    return sites


def _place_at(words: tuple[str, ...], at: int) -> str:
    """The longest relation of place that begins with a word; empty where none does."""
    for relation in _first_words().get(words[at], ()):
        if words[at : at + len(relation)] == relation:
            return " ".join(relation)
    return ""


def _noun_behind(text: CaptionWords, at: int) -> str:
    """The noun that a determiner at `place` belongs to, with at most two words between."""
    if text.word(at) not in DETERMINERS:
        return ""
    for step in range(1, 4):
        word, after = text.word(at + step), text.after(at + step)
        if _is_head(word) and (not after or after in _AFTER or after.endswith("ing")):
            return word
    return ""


@cache
def _noun_forms() -> dict[str, tuple[Concept, bool]]:
    objects, forms = vocabulary().objects, dict[str, tuple[Concept, bool]]()
    for concept in objects.values():
        for form, many in ((concept.plural, True), (concept.singular, False)):
            if form is not None:
                forms[form] = concept, many
    forms |= {word: (objects[name], word.endswith("s")) for word, name in _ALIASES.items()}
    return forms | {word: (objects["person"], word.endswith(("en", "s"))) for word in vocabulary().people}


@cache
def _first_words() -> dict[str, list[tuple[str, ...]]]:
    relations: dict[str, list[tuple[str, ...]]] = {}
    for name in sorted(vocabulary().places, key=lambda name_of: -len(name_of.split())):
        relations.setdefault(name.split()[0], []).append(tuple(name.split()))
    return relations


@cache
def _usable_before(many: bool) -> frozenset[str]:
    return DETERMINERS | vocabulary().qualities.keys() | (_BEFORE_MANY if many else frozenset())


@cache
def _animate_words() -> frozenset[str]:
    shown = vocabulary().shown_by
    return _PERSONS | frozenset(
        word for name, concept in vocabulary().objects.items() if concept.animate for word in shown[name]
    )
