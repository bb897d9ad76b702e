"""The words of captioned pictures: which can be seen, which are nouns, which name an annotated class of objects."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from msdscore.align.data.negatives import CLASSES, KINDS
from msdscore.align.data.pairs import TrainingPair
from msdscore.encoders.text.words import STOP_WORDS, stem
from msdscore.errors import InputError

_LETTERS = re.compile(r"[a-z0-9]+")
_ARTICLES = ("a", "an", "the")
_NOUN_COUNT, _NOUN_SHARE = 15, 0.25  # how often a word must stand between an article and a stop word
# Nouns that name nothing to see.
_PLACES = frozenset({"top", "side", "front", "middle", "back", "end", "background", "way", "edge", "corner"})
_AMOUNTS = frozenset({"bunch", "group", "pair", "couple", "lot", "bit", "variety", "row", "piece", "set"})


@dataclass(frozen=True, slots=True)
class Lexicon:
    """Stems of all content words with a number each, nouns as they are written, and classes of objects."""

    stems: tuple[str, ...]
    counts: tuple[int, ...]  # pictures whose captions hold each stem
    nouns: frozenset[str]
    classes: tuple[str, ...]  # names of annotated classes
    class_of: Mapping[str, int]  # the class that a stem names
    number: Mapping[str, int] = field(repr=False)  # of each stem


def words_of(text: str) -> list[str]:
    """All words of a text in lower case, in order.

    >>> words_of("A dog's T-shirt")
    ['a', 'dog', 's', 't', 'shirt']
    """
    return _LETTERS.findall(text.lower())


@lru_cache(1 << 16)
def own_stems(pair: TrainingPair) -> frozenset[str]:
    """Stems of the content words of all captions of a picture."""
    return frozenset(stem(word) for text in pair.captions for word in words_of(text) if word not in STOP_WORDS)


def build_lexicon(pairs: Sequence[TrainingPair], *, classes: Sequence[Sequence[str]] = ()) -> Lexicon:
    """The words of all captions; each of `classes` is a name and its synonyms.

    Without `classes` every annotated object is a class of its own name.
    """
    named = [tuple(names) for names in classes] or [(name,) for name in _annotated(pairs)]
    counts = Counter(word for pair in pairs for word in own_stems(pair))
    beside = {stem(word) for names in named for name in names for word in words_of(name)}
    beside |= {stem(word) for pair in pairs for text in pair.machine for word in words_of(text)}
    stems = tuple(sorted(counts.keys() | (beside - STOP_WORDS)))
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
    """Classes of objects from a text file: one line each, its name first, then its synonyms, with commas between.

    Raises:
        InputError: there is no such file.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file of classes; expected lines such as 'bicycle, bike'")
    lines = [[name.strip().lower() for name in line.split(",")] for line in path.read_text("utf-8").splitlines()]
    return tuple(tuple(name for name in line if name) for line in lines if any(line))


def _annotated(pairs: Sequence[TrainingPair]) -> list[str]:
    return sorted({name for pair in pairs for name in pair.objects or ()})


def _nouns(pairs: Sequence[TrainingPair], classes: Iterable[str]) -> frozenset[str]:
    """Words that often stand between an article and a stop word, words of the object classes, names of classes."""
    total, between = Counter[str](), Counter[str]()
    for pair in pairs:
        for text in pair.captions:
            words = words_of(text)
            total.update(words)
            for before, word, after in zip(words, words[1:], [*words[2:], ""], strict=False):
                if before in _ARTICLES and (not after or after in STOP_WORDS):
                    between[word] += 1
    found = {
        word
        for word, count in between.items()
        if count >= _NOUN_COUNT and count > _NOUN_SHARE * total[word] and len(word) > 2 and not word.endswith("ing")
    }
    listed = {word for name, words in CLASSES.items() if KINDS[name] == "object" for word in words}
    return frozenset((found - STOP_WORDS) | listed | set(classes)) - _PLACES - _AMOUNTS
