"""Hard negatives of a caption by rule: another colour, number or size, two words swapped, a word from elsewhere."""

import re
from collections.abc import Callable, Sequence
from random import Random

from msdscore.encoders.content import is_content

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
# A line a class: words of one class can stand in for each other.
_CLASSES = """\
red blue green yellow black white brown orange pink purple gray golden
one two three four five six
large small big little tall short long huge tiny
young old new wet dry open closed empty full bright dark
man woman boy girl child baby
men women boys girls children people
dog cat horse cow sheep bird elephant zebra giraffe bear
car bus train truck motorcycle bicycle boat airplane
on under behind beside above below inside outside
left right
sitting standing walking running jumping lying sleeping eating
"""
_CLASS_OF = {word: tuple(line.split()) for line in _CLASSES.splitlines() for word in line.split()}
_TRIES = 8  # draws a negative before it is given up

Rule = Callable[[str, Sequence[str], Random], str | None]


def make_negatives(caption: str, others: Sequence[str], count: int, chance: Random) -> tuple[str, ...]:
    """Up to `count` different captions that say something else; `others` lends words of other captions.

    >>> make_negatives("a red car", [], 1, Random(0))
    ('a car red',)
    """
    found: dict[str, None] = {}
    for number in range(count):
        for attempt in range(_TRIES):
            rule = _RULES[(number + attempt) % len(_RULES)] if attempt else chance.choice(_RULES)
            changed = rule(caption, others, chance)
            if changed is not None and changed.casefold() != caption.casefold() and changed not in found:
                found[changed] = None
                break
    return tuple(found)


def other_of_class(caption: str, others: Sequence[str], chance: Random) -> str | None:
    """One word replaced by another of its class."""
    del others
    places = [match for match in _WORD.finditer(caption) if match.group().casefold() in _CLASS_OF]
    if not places:
        return None
    match = chance.choice(places)
    old = match.group().casefold()
    return _put(caption, match.span(), chance.choice([word for word in _CLASS_OF[old] if word != old]))


def swapped(caption: str, others: Sequence[str], chance: Random) -> str | None:
    """Two content words in each other's place."""
    del others
    places = _content(caption)
    if len(places) < 2:
        return None
    first, second = sorted(chance.sample(places, 2), key=lambda match: match.start())
    text = _put(caption, second.span(), first.group())
    return _put(text, first.span(), second.group())


def lent_word(caption: str, others: Sequence[str], chance: Random) -> str | None:
    """One content word replaced by a content word of another caption."""
    places = _content(caption)
    own = {match.group().casefold() for match in places}
    words = [match.group() for other in others for match in _content(other) if match.group().casefold() not in own]
    if not places or not words:
        return None
    return _put(caption, chance.choice(places).span(), chance.choice(words))


_RULES: tuple[Rule, ...] = (other_of_class, swapped, lent_word)


def _content(caption: str) -> list[re.Match[str]]:
    return [match for match in _WORD.finditer(caption) if is_content(match.group().casefold())]


def _put(text: str, span: tuple[int, int], word: str) -> str:
    return text[: span[0]] + word + text[span[1] :]
