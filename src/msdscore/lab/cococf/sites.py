"""Sites of a caption that can be changed: words of a concept that can be replaced grammatically by another concept."""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise

from msdscore.lab.cococf.vocabulary import SUPPORTS, Concept, vocabulary, word_set
from msdscore.lab.edits import ARTICLES, article
from msdscore.text.words import STOP_WORDS

_WORD = re.compile(r"[A-Za-z]+(?:['’-][A-Za-z]+)*")
_CACHED = 1024  # captions whose sites are cached: all changes of one caption are generated together
DETERMINERS = word_set("a an the his her its their another one this that")
_BEFORE_MANY = word_set("the some several many these those two three four five six of with and different")
# Words that can follow a noun and are not part of it.
_AFTER = STOP_WORDS | word_set(
    "sits stands walks runs lies lays rides eats holds flies plays jumps looks sleeps hangs parked covered "
    "filled topped surrounded while atop alongside amongst beneath underneath"
)
_AFTER_ACTION = (
    STOP_WORDS | word_set("together down up outside inside while alone along across atop alongside beneath")
) - (DETERMINERS | {"of", "to"})
_IRREGULAR_MANY = word_set("people men women children sheep")
# Synonyms of a class that can be replaced directly, one object each.
_ALIASES = {
    "plane": "airplane", "planes": "airplane", "motorbike": "motorcycle", "sofa": "couch", "kitten": "cat",
    "puppy": "dog", "pony": "horse", "fridge": "refrigerator", "purse": "handbag", "doughnut": "donut",
    "doughnuts": "donut", "racket": "tennis racket", "phone": "cell phone", "hydrant": "fire hydrant", "tv": "tv",
    "television": "tv", "hotdog": "hot dog", "hotdogs": "hot dog", "lamb": "sheep", "sailboat": "boat",
}  # fmt: skip
# Words that change the meaning of the class next to them.
_OTHER_THINGS = word_set("teddy hot toy stuffed toilet paper wine computer remote tennis baseball clock")
_PERSONS = word_set("man woman boy girl men women boys girls person people child children lady guy kid kids")
# Used for objects as well as for people and animals.
_STILL = word_set("sitting standing laying lying resting hanging parked leaning sits stands lays lies")
_SYMMETRIC = frozenset(("and", "or", "with", "near", "beside", "next", "by", "together", "along", "while", "are"))
_DIRECTED = word_set(
    "on in under behind front top above below inside over riding holding wearing carrying pulling pushing "
    "chasing eating watching feeding kicking throwing hitting swinging driving walking petting"
)
PLACE = Concept("", "relation", "", "place", None)
_LONGEST = 4  # words of a name that consists of several


@dataclass(frozen=True, slots=True)
class Site:
    """The characters of one concept in a caption; `head` is the noun that an attribute or relation belongs to."""

    start: int
    end: int
    text: str
    concept: Concept  # `PLACE` for a spatial relation, whose `text` is its name
    many: bool = False
    head: str = ""
    opens: bool = False  # the first object of the caption: its action must suit it


@dataclass(frozen=True, slots=True)
class CaptionWords:
    """The words of a caption with their positions."""

    caption: str
    words: tuple[str, ...]  # in lower case
    spans: tuple[tuple[int, int], ...]

    def word(self, at: int) -> str:
        """Return a word, or an empty string beyond the ends."""
        return self.words[at] if 0 <= at < len(self.words) else ""

    def after(self, at: int) -> str:
        """Return the next word; empty at the end of the caption and before punctuation."""
        if at + 1 >= len(self.words):
            return ""
        between = self.caption[self.spans[at][1] : self.spans[at + 1][0]]
        return self.words[at + 1] if not between.strip() else ""


@lru_cache(_CACHED)
def read_caption(caption: str) -> CaptionWords:
    """Split a caption into words.

    >>> read_caption("A dog's ball.").words
    ('a', "dog's", 'ball')
    """
    matches = list(_WORD.finditer(caption))
    return CaptionWords(
        caption, tuple(match.group().lower() for match in matches), tuple(match.span() for match in matches)
    )


def words_said(texts: Collection[str]) -> frozenset[str]:
    """Return all words and pairs of adjacent words of some captions, in lower case."""
    said: set[str] = set()
    for text in texts:
        words = read_caption(text).words
        parts = [part for word in words for part in (word, *word.replace("’", "'").split("'"), *word.split("-"))]
        said.update(parts, (f"{first} {second}" for first, second in pairwise(words)))
    return frozenset(said)


def _names(words: Sequence[str], known: Collection[str]) -> Iterator[tuple[int, int, str]]:
    """Yield first and last word and text of the longest known name at each position, and of all other words."""
    at, starts = 0, _first_words()
    while at < len(words):
        name, size = words[at], 1
        if name in starts:
            longer = (" ".join(words[at : at + count]) for count in range(_LONGEST, 1, -1))
            name = next((text for text in longer if text in known), name)
            size = name.count(" ") + 1
        yield at, at + size - 1, name
        at += size


@cache
def _first_words() -> frozenset[str]:
    return frozenset(name.split()[0] for name in (*_noun_forms(), *vocabulary().places) if " " in name)


@lru_cache(_CACHED)
def object_sites(text: CaptionWords) -> list[Site]:
    """Return objects of COCO's classes that are separate nouns, singular or plural."""
    sites, forms = list[Site](), _noun_forms()
    for first, last, name in _names(text.words, forms):
        if name not in forms or text.word(first - 1) in _OTHER_THINGS:
            continue
        (concept, many), before, after = forms[name], text.word(first - 1), text.after(last)
        follows = before in DETERMINERS or before in vocabulary().qualities or (many and before in _BEFORE_MANY)
        goes_on = not after or after in _AFTER or after.endswith(("ing", "ed"))
        if goes_on and (follows or (many and first == 0)):
            sites.append(Site(text.spans[first][0], text.spans[last][1], name, concept, many, opens=not sites))
    return sites


@lru_cache(_CACHED)
def things_and_words(caption: str) -> tuple[str, ...]:
    """Return the words of a caption in order; names of COCO's classes are replaced by the class."""
    forms = _noun_forms()
    names = (name for _, _, name in _names(read_caption(caption).words, forms))
    return tuple(forms[name][0].name if name in forms else name for name in names)


@lru_cache(_CACHED)
def attribute_sites(text: CaptionWords) -> list[Site]:
    """Return attributes directly before their noun."""
    known, sites = vocabulary().qualities, []
    for at, word in enumerate(text.words):
        head = text.after(at)
        is_listed = "and" in (text.word(at - 1), text.word(at + 1))
        if word in known and _is_head(head) and not is_listed and _suits(known[word], head):
            start, end = text.spans[at]
            sites.append(Site(start, end, word, known[word], _is_many(head), head))
    return sites


def is_clean(text: CaptionWords) -> bool:
    """Return whether a caption has no repeated words and wrong articles: the change should be the only fault."""
    steps = pairwise(text.words)
    return not any(first == second or (first in ARTICLES and first != article(second)) for first, second in steps)


def bare_heads(text: CaptionWords) -> list[tuple[int, str]]:
    """Return positions and nouns directly after an article or a possessive, before which an attribute can be added."""
    return [
        (text.spans[at][0], word)
        for at, word in enumerate(text.words)
        if at and text.words[at - 1] in DETERMINERS and text.after(at - 1) == word and _is_head(word)
    ]


@lru_cache(_CACHED)
def relation_sites(text: CaptionWords) -> list[Site]:
    """Return actions of people and animals, and spatial relations."""
    sites = []
    for at, word in enumerate(text.words):
        action = vocabulary().actions.get(word)
        if action is None or _animate_words().isdisjoint(text.words[max(0, at - 4) : at]):
            continue
        after = text.after(at)
        if after in DETERMINERS if action.slot == "handling" else not after or after in _AFTER_ACTION:
            start, end = text.spans[at]
            sites.append(Site(start, end, word, action, head=_noun_behind(text, at + 1)))
    for first, last, name in _names(text.words, vocabulary().places):
        if name not in vocabulary().places:
            continue
        head, after = _noun_behind(text, last + 1), text.after(last)
        if name in ("on the left", "on the right"):
            fits = after in ("", "and", "of")
        else:
            fits = after in DETERMINERS and (head in SUPPORTS or name not in ("on", "under", "beneath"))
        if fits:
            sites.append(Site(text.spans[first][0], text.spans[last][1], name, PLACE, head=head))
    return sites


def directed(text: CaptionWords, first: Site, second: Site) -> bool:
    """Return whether the words between two objects are false if the two are swapped."""
    between = text.caption[first.end : second.start]
    words = set(read_caption(between).words)
    acts = any(word.endswith("ing") for word in words - _STILL)
    if acts and first.concept.animate != second.concept.animate:
        return False
    return not set(",.;") & set(between) and bool(words & _DIRECTED) and not words & _SYMMETRIC


def _is_head(word: str) -> bool:
    odd = word in STOP_WORDS or word in vocabulary().qualities or word.endswith(("ing", "ed", "ly"))
    return len(word) > 2 and "-" not in word and "'" not in word and not odd


def _suits(quality: Concept, head: str) -> bool:
    """Return whether an attribute suits a noun: some are only used for people, or never."""
    person = head in _PERSONS
    if quality.slot == "number":
        return _is_many(head)
    if quality.slot == "age":
        return person or head in vocabulary().objects
    return not (person and quality.slot in ("size", "material", "lid", "state"))


def _is_many(head: str) -> bool:
    return head in _IRREGULAR_MANY or (head.endswith("s") and not head.endswith(("ss", "us", "is")))


def _noun_behind(text: CaptionWords, at: int) -> str:
    """Return the noun of a determiner, with at most two words between."""
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
def _animate_words() -> frozenset[str]:
    shown = vocabulary().shown_by
    return _PERSONS | frozenset(
        word for name, concept in vocabulary().objects.items() if concept.animate for word in shown[name]
    )
