"""Hard negatives of a caption by rule: one word replaced by another of its class, or two words of a kind swapped."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from random import Random

from msdscore.align.word_classes import CLASS_OF, CLASSES, KINDS, MOVABLE

_LETTERS = re.compile(r"[A-Za-z]+")
_TRIES = 8  # draws a negative before it is given up
_DRAWS = 30  # words drawn before a place is given up

Weights = Mapping[str, float]


def stem(word: str) -> str:
    """A word without the s of a plural, so that one dog and two dogs are the same thing to see.

    >>> stem("dogs"), stem("grass"), stem("bus")
    ('dog', 'grass', 'bus')
    """
    return word[:-1] if len(word) > 3 and _is_plural(word) else word


def all_words(captions: Iterable[str]) -> frozenset[str]:
    """Words of a picture's captions, as they stand and stemmed: none of them makes a caption wrong."""
    found = {word for caption in captions for word in _LETTERS.findall(caption.lower())}
    return frozenset(found | set(map(stem, found)))


def class_weights(captions: Iterable[str]) -> dict[str, float]:
    """How often each word of a class is drawn: with the root of its frequency, so that negatives sound natural."""
    counts = Counter(word for caption in captions for word in _LETTERS.findall(caption.lower()) if word in CLASS_OF)
    return {word: count**0.5 + 1 for word, count in counts.items()}


@dataclass(frozen=True, slots=True)
class _Places:
    """A caption cut at its words, and which of them belong to a class, by kind."""

    parts: tuple[str, ...]  # what lies between words, word, what lies between words, …
    kinds: Mapping[str, tuple[int, ...]]

    def word(self, place: int) -> str:
        return self.parts[place].lower()

    def put(self, words: Mapping[int, str]) -> str:
        return "".join(words.get(place, part) for place, part in enumerate(self.parts))


def make_negatives(
    caption: str, banned: Collection[str], count: int, chance: Random, *, weights: Weights | None = None
) -> tuple[str, ...]:
    """Up to `count` different captions that say something else; no word of `banned` is put in.

    >>> make_negatives("a red car", {"blue"}, 1, Random(0))
    ('a red glove',)
    """
    places = _places(caption)
    options = _options(places)
    found: dict[str, None] = {}
    for _ in range(_TRIES * count if options else 0):
        changed = _changed(places, chance.choice(options), banned, chance, weights or {})
        if changed is not None and changed.casefold() != caption.casefold():
            found[changed] = None
        if len(found) == count:
            break
    return tuple(found)


def _places(caption: str) -> _Places:
    parts = tuple(re.split(r"([A-Za-z]+)", caption))
    kinds: dict[str, tuple[int, ...]] = {}
    for place in range(1, len(parts), 2):
        if (name := CLASS_OF.get(parts[place].lower())) is not None:
            kinds[KINDS[name]] = (*kinds.get(KINDS[name], ()), place)
    return _Places(parts, kinds)


def _options(places: _Places) -> list[str]:
    """The kinds of words that can be replaced, and `swap` where two can change places."""
    return [*sorted(places.kinds), *(["swap"] if _swappable(places) else [])]


def _swappable(places: _Places) -> list[str]:
    return [
        kind
        for kind in ("attribute", "object")
        if len({places.word(place) for place in places.kinds.get(kind, ())}) > 1
    ]


def _changed(places: _Places, option: str, banned: Collection[str], chance: Random, weights: Weights) -> str | None:
    if option == "swap":
        where = places.kinds[chance.choice(_swappable(places))]
        first = chance.choice(where)
        second = chance.choice([place for place in where if places.word(place) != places.word(first)])
        return places.put({first: places.word(second), second: places.word(first)})
    place = chance.choice(places.kinds[option])
    word = _other(places.word(place), banned, chance, weights)
    return None if word is None else places.put({place: word})


def _other(old: str, banned: Collection[str], chance: Random, weights: Weights) -> str | None:
    """Another word of the class; a noun keeps its number."""
    name = CLASS_OF[old]
    if name in MOVABLE and chance.random() < 0.5:
        name = chance.choice(MOVABLE)
    noun = KINDS[name] == "object"
    shares = [weights.get(word, 1.0) for word in CLASSES[name]]
    for _ in range(_DRAWS):
        word = chance.choices(CLASSES[name], shares)[0]
        if word != old and not {word, stem(word)} & set(banned) and not (noun and _is_plural(word) != _is_plural(old)):
            return word
    return None


def _is_plural(word: str) -> bool:
    return word.endswith("s") and not word.endswith("ss")
