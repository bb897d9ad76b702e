"""Texts by rule from captions and annotated objects: tags, short claims and paragraphs, some of them false.

A lexicon of the captions has their content words, nouns, and names of annotated classes.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt

from msdscore.errors import InputError
from msdscore.text.words import STOP_WORDS, stem
from msdscore_lab import edits
from msdscore_lab.edits import joined
from msdscore_lab.pairs import TrainingPair
from train_mini.negatives import CLASSES, KINDS

_LETTERS = re.compile(r"[a-z0-9]+")
_ARTICLES = ("a", "an", "the")
_NOUN_COUNT, _NOUN_SHARE = 15, 0.25  # least count and share of occurrences between an article and a stop word
# Nouns without a visible object.
_POSITIONS = frozenset({"top", "side", "front", "middle", "back", "end", "background", "way", "edge", "corner"})
_AMOUNTS = frozenset({"bunch", "group", "pair", "couple", "lot", "bit", "variety", "row", "piece", "set"})
NEIGHBOURS = 16  # similar images whose words are the likely false ones
_PLACES = (
    "in the background",
    "in the scene",
    "on the left side",
    "on the right side",
    "nearby",
    "in the foreground",
    "next to it",
    "in the image",
    "in the distance",
    "",
)
_OPENINGS = (
    "The image shows ",
    "The image features ",
    "The image depicts ",
    "In this picture, ",
    "This photo shows ",
    "In the image, ",
    "The scene shows ",
    "",
)
_JOINTS = (" with ", " and ", " next to ", " near ", " beside ")
_FRAMES = ("a photo of ", "there is ", "a picture of ", "a close up of ", "an image of ")
_QUALITIES = tuple(
    word for name, words in CLASSES.items() if KINDS[name] == "attribute" and name != "numbers" for word in words
)
CLASS_FRAMES = ("a {}", "there is a {}", "a photo of a {}", "{}", "the scene contains a {}.")
_TRIES = 40  # largest number of draws of a false noun


@dataclass(frozen=True, slots=True)
class Lexicon:
    """Stems of all content words with a number each, nouns as they are written, and classes of objects."""

    stems: tuple[str, ...]
    counts: tuple[int, ...]  # images whose captions contain each stem
    nouns: frozenset[str]
    classes: tuple[str, ...]  # names of annotated classes
    class_of: Mapping[str, int]  # the class that a stem names
    number: Mapping[str, int] = field(repr=False)  # of each stem


def words_of(text: str) -> list[str]:
    """Return all words of a text in lower case, in order.

    >>> words_of("A dog's T-shirt")
    ['a', 'dog', 's', 't', 'shirt']
    """
    return _LETTERS.findall(text.lower())


@lru_cache(1 << 16)
def own_stems(pair: TrainingPair) -> frozenset[str]:
    """Return the stems of the content words of all captions of an image."""
    return frozenset(stem(word) for text in pair.captions for word in words_of(text) if word not in STOP_WORDS)


def build_lexicon(pairs: Sequence[TrainingPair], *, classes: Sequence[Sequence[str]] = ()) -> Lexicon:
    """Build the lexicon of all captions; each of `classes` is a name and its synonyms.

    Without `classes`, the names of annotated objects are the classes.
    """
    named = [tuple(names) for names in classes] or [
        (name,) for name in sorted({name for pair in pairs for name in pair.objects or ()})
    ]
    counts = Counter(word for pair in pairs for word in own_stems(pair))
    other_stems = {stem(word) for names in named for name in names for word in words_of(name)}
    other_stems |= {stem(word) for pair in pairs for text in pair.machine for word in words_of(text)}
    stems = tuple(sorted(counts.keys() | (other_stems - STOP_WORDS)))
    class_of: dict[str, int] = {}
    for number, names in enumerate(named):
        for name in names:
            if " " not in name:
                class_of.setdefault(stem(name), number)
    return Lexicon(
        stems=stems,
        counts=tuple(counts[word] for word in stems),
        nouns=_nouns(pairs, [names[0] for names in named]),
        classes=tuple(names[0] for names in named),
        class_of=class_of,
        number={word: number for number, word in enumerate(stems)},
    )


def read_classes(path: Path) -> tuple[tuple[str, ...], ...]:
    """Read object classes from a text file: one line each, its name and its synonyms, separated by commas.

    Raises:
        InputError: there is no such file.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file of classes; expected lines such as 'bicycle, bike'")
    lines = [[name.strip().lower() for name in line.split(",")] for line in path.read_text("utf-8").splitlines()]
    return tuple(tuple(name for name in line if name) for line in lines if any(line))


def _nouns(pairs: Sequence[TrainingPair], classes: Iterable[str]) -> frozenset[str]:
    """Return words that are often between an article and a stop word, words of the object classes, and class names."""
    total, between = Counter[str](), Counter[str]()
    for pair in pairs:
        for text in pair.captions:
            words = words_of(text)
            total.update(words)
            for before, word, after in zip(words, words[1:], [*words[2:], ""], strict=False):
                if before in _ARTICLES and (not after or after in STOP_WORDS):
                    between[word] += 1
    nouns = {
        word
        for word, count in between.items()
        if count >= _NOUN_COUNT and count > _NOUN_SHARE * total[word] and len(word) > 2 and not word.endswith("ing")
    }
    listed = {word for name, words in CLASSES.items() if KINDS[name] == "object" for word in words}
    return frozenset((nouns - STOP_WORDS) | listed | set(classes)) - _POSITIONS - _AMOUNTS


def similar_images(
    pairs: Sequence[TrainingPair], lexicon: Lexicon, *, count: int = NEIGHBOURS
) -> npt.NDArray[np.int64]:
    """Return the images with the most similar captions for each image, by TF-IDF cosine; [images, count]."""
    sparse: Any = import_module("scipy.sparse")
    total = len(pairs)
    rarity = np.log(total / (1 + np.array(lexicon.counts, dtype=np.float32)))
    cells = [(row, lexicon.number[word]) for row, pair in enumerate(pairs) for word in sorted(own_stems(pair))]
    rows, columns = np.array(cells, dtype=np.int64).reshape(-1, 2).T
    table = sparse.csr_matrix((rarity[columns].clip(0), (rows, columns)), shape=(total, len(lexicon.stems)))
    lengths = np.sqrt(np.asarray(table.multiply(table).sum(axis=1)).ravel())
    table = (sparse.diags(1 / np.maximum(lengths, 1e-6)) @ table).tocsr()
    other, nearest, few = table.T.tocsr(), [], min(count, total - 1)
    for start in range(0, total, 512):
        alike = (table[start : start + 512] @ other).toarray()
        alike[np.arange(len(alike)), np.arange(start, start + len(alike))] = -1
        top = np.argpartition(-alike, few - 1, axis=1)[:, :few]
        order = np.argsort(-np.take_along_axis(alike, top, axis=1), axis=1, kind="stable")
        nearest.append(np.take_along_axis(top, order, axis=1))
    return np.concatenate(nearest)


@dataclass(frozen=True, slots=True)
class PhraseMaker:
    """Write texts about an image; plausible false words for image i are drawn from the images `similar[i]`."""

    pairs: Sequence[TrainingPair]
    lexicon: Lexicon
    similar: npt.NDArray[np.int64]

    def short(self, item: int, chance: Random) -> str:
        """Return tags, a claim such as "a photo of a dog", or a caption with one more object, true or false."""
        caption = chance.choice(self.pairs[item].captions)
        if chance.random() < 0.5:
            things = self._things(item, chance, 1, false=0.5)
            end = chance.choice(["", "."])
            return _bare(caption) + chance.choice(_JOINTS) + _article(things[0]) + end if things else caption
        things = self._things(item, chance, chance.choice([1, 1, 1, 2, 2, 3]), false=0.4)
        return _claim(things, chance) if things else caption

    def long(self, item: int, chance: Random) -> str:
        """Return a paragraph of some captions and sentences about more objects, about half of them absent."""
        captions = self._sampled(item, chance, chance.choice([1, 2, 2, 3, 3, 4]))
        parts = [_opened(captions[0], chance), *captions[1:]]
        for _ in range(chance.choice([0, 1, 1, 2])):
            index = chance.randrange(1, len(parts) + 1)
            if chance.random() < 0.2:
                parts.insert(index, chance.choice(self._other(item, chance).captions))
            else:
                parts.insert(index, _also(self._things(item, chance, chance.choice([1, 1, 2, 3]), false=0.5), chance))
        return joined(parts)

    def joined(self, item: int, chance: Random) -> str:
        """Return two or three captions as one true text."""
        captions = self._sampled(item, chance, chance.choice([2, 2, 3]))
        if chance.random() < 0.3:
            captions[0] = _opened(captions[0], chance)
        return joined(captions)

    def with_addition(self, caption: str, item: int, banned: Collection[str], chance: Random) -> str | None:
        """Return the caption with one false attribute or object added; None if nothing fits."""
        if chance.random() < 0.5:
            changed = self._qualified(caption, banned, chance)
            if changed is not None:
                return changed
        thing = self._false(item, chance)
        return None if thing is None else _bare(caption) + chance.choice(_JOINTS) + _article(thing) + "."

    def _sampled(self, item: int, chance: Random, count: int) -> list[str]:
        captions = self.pairs[item].captions
        return chance.sample(captions, min(len(captions), count))

    def _other(self, item: int, chance: Random) -> TrainingPair:
        return self.pairs[int(chance.choice(self.similar[item]))]

    def _qualified(self, caption: str, banned: Collection[str], chance: Random) -> str | None:
        parts = re.split(r"([A-Za-z]+)", caption)
        indices = [
            index
            for index in range(1, len(parts), 2)
            if parts[index].lower() in self.lexicon.nouns and (index < 3 or parts[index - 2].lower() not in _QUALITIES)
        ]
        word = chance.choice(_QUALITIES)
        if not indices or word in banned:
            return None
        index = chance.choice(indices)
        parts[index] = f"{word} {parts[index]}"
        return "".join(parts)

    def _things(self, item: int, chance: Random, count: int, *, false: float) -> list[str]:
        """Return different nouns, each of them false with this probability."""
        true, things = self._true(item), list[str]()
        for _ in range(count):
            thing = self._false(item, chance) if chance.random() < false or not true else None
            thing = thing or (chance.choice(true) if true else None)
            if thing and thing not in things:
                things.append(thing)
        return things

    def _true(self, item: int) -> list[str]:
        """Return annotated objects and nouns of at least two captions; else nouns of any caption."""
        pair = self.pairs[item]
        words_of_captions = [frozenset(words_of(text)) for text in pair.captions]
        nouns = sorted({word for words in words_of_captions for word in words if word in self.lexicon.nouns})
        sure = [word for word in nouns if sum(word in words for words in words_of_captions) > 1]
        return [*sure, *(pair.objects or ())] or nouns

    def _false(self, item: int, chance: Random) -> str | None:
        """Return a noun of a similar image, or a class name, that this image does not show."""
        pair = self.pairs[item]
        own, shown = own_stems(pair), frozenset(pair.objects or ())
        for _ in range(_TRIES):
            pool = list(self.lexicon.classes)
            if chance.random() < 0.5 or not pool:
                other = self._other(item, chance)
                nouns = [word for word in words_of(chance.choice(other.captions)) if word in self.lexicon.nouns]
                pool = [*nouns, *(other.objects or ())]
            if not pool:
                continue
            thing = chance.choice(pool)
            number = self.lexicon.class_of.get(stem(thing))
            named = thing if number is None else self.lexicon.classes[number]
            if not ({stem(word) for word in words_of(thing)} & own or {thing, named} & shown):
                return thing
        return None


def _claim(things: Sequence[str], chance: Random) -> str:
    listed = " and ".join(map(_article, things))
    forms = [
        (0.35, f"the scene contains {' and '.join(things)}."),
        (0.5, ", ".join(things)),
        (0.65, f"{listed.capitalize()}."),
        (0.8, chance.choice(_FRAMES) + listed),
        (1.0, " ".join(things)),
    ]
    drawn = chance.random()
    return next(text for bound, text in forms if drawn < bound)


def _also(things: Sequence[str], chance: Random) -> str:
    """Return a sentence that claims these objects."""
    if not things:
        return ""
    listed = " and ".join(map(_article, things))
    if len(things) > 2:
        listed = ", ".join(map(_article, things[:-1])) + ", and " + _article(things[-1])
    location = chance.choice(_PLACES)
    suffix = f" {location}" if location else ""
    return chance.choice(
        [
            f"There is also {listed}{suffix}.",
            f"There are {listed} visible{suffix}.",
            f"{listed[0].upper()}{listed[1:]} can be seen{suffix}.",
            f"Additionally, there is {listed}{suffix}.",
            f"In the background, there is {listed}.",
            f"The scene also includes {listed}.",
        ]
    )


def _opened(caption: str, chance: Random) -> str:
    return chance.choice(_OPENINGS) + caption[:1].lower() + caption[1:]


def _bare(caption: str) -> str:
    return caption.strip().rstrip(" .")


def _article(noun: str) -> str:
    """Return a noun with its article; plurals have none.

    >>> _article("dog"), _article("apple"), _article("dogs")
    ('a dog', 'an apple', 'dogs')
    """
    plural = noun.endswith("s") and not noun.endswith("ss")
    return noun if plural else f"{edits.article(noun)} {noun}"
