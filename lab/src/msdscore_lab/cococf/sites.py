"""Sites of a caption: words of a concept that can be replaced by another concept without breaking the grammar."""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise

from msdscore.text.words import STOP_WORDS
from msdscore_lab.cococf.vocabulary import SUPPORTS, Concept, vocabulary, word_set
from msdscore_lab.edits import ARTICLES, article

_WORD = re.compile(r"[A-Za-z]+(?:['’-][A-Za-z]+)*")
_CACHE_SIZE = 1024  # captions; all changes of one caption are generated together
DETERMINERS = word_set("a an the his her its their another one this that")
_PLURAL_DETERMINERS = word_set("the some several many these those two three four five six of with and different")
# Words that can follow a noun and are not part of it.
_WORDS_AFTER_NOUN = STOP_WORDS | word_set(
    "sits stands walks runs lies lays rides eats holds flies plays jumps looks sleeps hangs parked covered "
    "filled topped surrounded while atop alongside amongst beneath underneath"
)
_WORDS_AFTER_ACTION = (
    STOP_WORDS | word_set("together down up outside inside while alone along across atop alongside beneath")
) - (DETERMINERS | {"of", "to"})
_IRREGULAR_MANY = word_set("people men women children sheep")
# Synonyms of a class, which can be replaced like the class name.
_ALIASES = {
    "plane": "airplane", "planes": "airplane", "motorbike": "motorcycle", "sofa": "couch", "kitten": "cat",
    "puppy": "dog", "pony": "horse", "fridge": "refrigerator", "purse": "handbag", "doughnut": "donut",
    "doughnuts": "donut", "racket": "tennis racket", "phone": "cell phone", "hydrant": "fire hydrant", "tv": "tv",
    "television": "tv", "hotdog": "hot dog", "hotdogs": "hot dog", "lamb": "sheep", "sailboat": "boat",
}  # fmt: skip
# Words that change the meaning of the class after them, as in "toy car".
_MODIFIERS = word_set("teddy hot toy stuffed toilet paper wine computer remote tennis baseball clock")
_PERSONS = word_set("man woman boy girl men women boys girls person people child children lady guy kid kids")
PLACE = Concept("", "relation", "", "place", None)
_MAX_NAME_WORDS = 4


@dataclass(frozen=True, slots=True)
class Site:
    """The characters of one concept in a caption; `head` is the noun that an attribute or relation belongs to."""

    start: int
    end: int
    text: str
    concept: Concept  # `PLACE` for a spatial relation, whose `text` is its name
    many: bool = False
    head: str = ""
    opens: bool = False  # the first object of the caption, which must fit the caption's action


@dataclass(frozen=True, slots=True)
class CaptionWords:
    """The words of a caption with their positions."""

    caption: str
    words: tuple[str, ...]  # in lower case
    spans: tuple[tuple[int, int], ...]

    def word(self, index: int) -> str:
        """Return the word at an index, or an empty string if it is out of range."""
        return self.words[index] if 0 <= index < len(self.words) else ""

    def after(self, index: int) -> str:
        """Return the next word; empty at the end of the caption and before punctuation."""
        if index + 1 >= len(self.words):
            return ""
        between = self.caption[self.spans[index][1] : self.spans[index + 1][0]]
        return self.words[index + 1] if not between.strip() else ""


@lru_cache(_CACHE_SIZE)
def read_caption(caption: str) -> CaptionWords:
    """Split a caption into words.

    >>> read_caption("A dog's ball.").words
    ('a', "dog's", 'ball')
    """
    matches = list(_WORD.finditer(caption))
    return CaptionWords(
        caption, tuple(match.group().lower() for match in matches), tuple(match.span() for match in matches)
    )


def words_and_bigrams(texts: Collection[str]) -> frozenset[str]:
    """Return all words and pairs of adjacent words of captions, in lower case."""
    said: set[str] = set()
    for text in texts:
        words = read_caption(text).words
        parts = [part for word in words for part in (word, *word.replace("’", "'").split("'"), *word.split("-"))]
        said.update(parts, (f"{first} {second}" for first, second in pairwise(words)))
    return frozenset(said)


def _names(words: Sequence[str], known: Collection[str]) -> Iterator[tuple[int, int, str]]:
    """Yield (first word, last word, text) of the longest known name at each position, or of a single word."""
    index, starts = 0, _first_words()
    while index < len(words):
        name, size = words[index], 1
        if name in starts:
            longer = (" ".join(words[index : index + count]) for count in range(_MAX_NAME_WORDS, 1, -1))
            name = next((text for text in longer if text in known), name)
            size = name.count(" ") + 1
        yield index, index + size - 1, name
        index += size


@cache
def _first_words() -> frozenset[str]:
    names = (*_noun_forms(), *vocabulary().places, *vocabulary().scenes)
    return frozenset(name.split()[0] for name in names if " " in name)


@lru_cache(_CACHE_SIZE)
def object_sites(text: CaptionWords, *, loose: bool = False) -> list[Site]:
    """Return COCO objects that are not part of a compound noun, singular or plural.

    With `loose`, a noun may stand before an object ("a city bus"), and anything may follow it.
    """
    sites, forms = list[Site](), _noun_forms()
    for first, last, name in _names(text.words, forms):
        if name not in forms or text.word(first - 1) in _MODIFIERS:
            continue
        (concept, many), before, after = forms[name], text.word(first - 1), text.after(last)
        is_determined = (
            before in DETERMINERS or before in vocabulary().qualities or (many and before in _PLURAL_DETERMINERS)
        )
        ends = not after or after in _WORDS_AFTER_NOUN or after.endswith(("ing", "ed"))
        if loose or (ends and (is_determined or (many and first == 0))):
            sites.append(Site(text.spans[first][0], text.spans[last][1], name, concept, many, opens=not sites))
    return sites


@lru_cache(_CACHE_SIZE)
def scene_sites(text: CaptionWords) -> list[Site]:
    """Return scenes and things that are not annotated, at the end of their noun phrase.

    >>> [site.text for site in scene_sites(read_caption("a living room with a mirror frame"))]
    ['living room']
    """
    scenes = vocabulary().scenes
    return [
        Site(text.spans[first][0], text.spans[last][1], name, scenes[name])
        for first, last, name in _names(text.words, scenes)
        if name in scenes and (not text.after(last) or text.after(last) in _WORDS_AFTER_NOUN)
    ]


@lru_cache(_CACHE_SIZE)
def words_with_classes(caption: str) -> tuple[str, ...]:
    """Return the words of a caption in order; names of COCO's classes are replaced by the class."""
    forms = _noun_forms()
    names = (name for _, _, name in _names(read_caption(caption).words, forms))
    return tuple(forms[name][0].name if name in forms else name for name in names)


@lru_cache(_CACHE_SIZE)
def attribute_sites(text: CaptionWords) -> list[Site]:
    """Return attributes directly before their noun."""
    qualities, sites = vocabulary().qualities, []
    for index, word in enumerate(text.words):
        head = text.after(index)
        is_listed = "and" in (text.word(index - 1), text.word(index + 1))
        if word in qualities and _is_head(head) and not is_listed and _fits_noun(qualities[word], head):
            start, end = text.spans[index]
            sites.append(Site(start, end, word, qualities[word], _is_many(head), head))
    return sites


def is_clean(text: CaptionWords) -> bool:
    """Return whether a caption has no repeated words and no wrong articles, so that the change is its only fault."""
    steps = pairwise(text.words)
    return not any(first == second or (first in ARTICLES and first != article(second)) for first, second in steps)


@lru_cache(_CACHE_SIZE)
def relation_sites(text: CaptionWords) -> list[Site]:
    """Return actions of people and animals, and spatial relations."""
    sites = []
    for index, word in enumerate(text.words):
        action = vocabulary().actions.get(word)
        if action is None or _animate_words().isdisjoint(text.words[max(0, index - 4) : index]):
            continue
        after = text.after(index)
        if after in DETERMINERS if action.slot == "handling" else not after or after in _WORDS_AFTER_ACTION:
            start, end = text.spans[index]
            sites.append(Site(start, end, word, action, head=_noun_after(text, index + 1)))
    for first, last, name in _names(text.words, vocabulary().places):
        if name not in vocabulary().places:
            continue
        head, after = _noun_after(text, last + 1), text.after(last)
        if name in ("on the left", "on the right"):
            fits = after in ("", "and", "of")
        else:
            fits = after in DETERMINERS and (head in SUPPORTS or name not in ("on", "under", "beneath"))
        if fits:
            sites.append(Site(text.spans[first][0], text.spans[last][1], name, PLACE, head=head))
    return sites


def _is_head(word: str) -> bool:
    is_other = word in STOP_WORDS or word in vocabulary().qualities or word.endswith(("ing", "ed", "ly"))
    return len(word) > 2 and "-" not in word and "'" not in word and not is_other


def _fits_noun(quality: Concept, head: str) -> bool:
    """Return whether an attribute fits a noun: some are used only for people, or never for people."""
    person = head in _PERSONS
    if quality.slot == "number":
        return _is_many(head)
    if quality.slot == "age":
        return person or head in vocabulary().objects
    return not (person and quality.slot in ("size", "material", "lid", "state"))


def _is_many(head: str) -> bool:
    return head in _IRREGULAR_MANY or (head.endswith("s") and not head.endswith(("ss", "us", "is")))


def _noun_after(text: CaptionWords, index: int) -> str:
    """Return the noun of the determiner at an index, with at most two words between."""
    if text.word(index) not in DETERMINERS:
        return ""
    for step in range(1, 4):
        word, after = text.word(index + step), text.after(index + step)
        if _is_head(word) and (not after or after in _WORDS_AFTER_NOUN or after.endswith("ing")):
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
def _animate_words() -> frozenset[str]:
    shown = vocabulary().shown_by
    return _PERSONS | frozenset(
        word for name, concept in vocabulary().objects.items() if concept.animate for word in shown[name]
    )
