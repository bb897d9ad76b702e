"""Rule-based hard negatives: one word of a caption replaced by another of its class, or two words of a kind swapped."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from random import Random

from msdscore.text.words import is_plural, stem
from msdscore_lab.edits import apply_edits

# The first word of a line names the class and its kind: object, attribute or relation.
_LISTS = """\
people:object man woman boy girl child baby toddler lady guy person men women boys girls children people kids couple \
family skier snowboarder surfer skateboarder biker climber hiker
animals:object dog cat horse cow sheep elephant giraffe zebra bear bird puppy duck goat monkey kitten dogs cats \
horses cows elephants giraffes zebras bears birds
vehicles:object car bus train truck motorcycle bicycle bike boat airplane plane van scooter canoe kayak cars buses \
trains trucks motorcycles bicycles bikes boats sled skateboard surfboard snowboard wagon jet tractor
things:object ball frisbee umbrella bench chair table bed couch laptop computer phone book clock vase cup bottle bowl \
plate knife fork spoon pizza cake sandwich banana apple orange broccoli carrot donut toilet sink refrigerator oven \
microwave keyboard mouse television tv backpack purse suitcase kite bat racket glove helmet stick toy rope hat guitar \
camera sign flag tree rock statue fence pole hydrant lamp mirror pillow blanket basket box bag flower flowers balloon \
trash ladder tent swing slide fountain window door desk cabinet shelf stove teddy candle wine beer coffee salad soup \
bread cheese meat rice
places:object beach street field park kitchen bathroom bedroom pool lake river ocean forest mountain hill road \
sidewalk yard desert snow grass sand water city room restaurant store station court track garden bridge cliff \
pond playground stage trail parking airport stadium
clothes:object shirt jacket dress hat coat sweater suit shorts pants jeans skirt helmet cap vest scarf glasses \
sunglasses uniform swimsuit hoodie boots shoes gloves tie costume
colours:attribute red blue green yellow black white brown orange pink purple gray grey tan golden silver
looks:attribute large small big little tall short long young old wooden metal plastic stone glass brick wet dry open \
closed empty full striped plain bright dark clean dirty round square shiny colorful sandy snowy grassy rocky muddy \
paved crowded fluffy bald bearded smiling crying happy sad sleepy broken new ripe hot cold
numbers:attribute one two three four five six several
doing:relation running sitting standing walking jumping playing riding sleeping eating swimming climbing holding \
carrying throwing catching chasing flying skiing surfing skateboarding lying laying leaning dancing reading drinking \
talking kicking pushing pulling driving looking smiling crawling fishing cooking cutting digging grazing kneeling \
rolling posing
does:relation runs sits stands walks jumps plays rides sleeps eats swims climbs holds carries throws catches chases \
flies leans dances reads drinks talks kicks pushes pulls drives looks smiles leaps
where:relation on under above below beside behind near inside outside over through across around along into against \
between atop
"""
_ROWS = [line.split() for line in _LISTS.splitlines()]
CLASSES = {head.partition(":")[0]: tuple(words) for head, *words in _ROWS}
KINDS = dict(head.split(":") for head, *_ in _ROWS)
# A word in two classes belongs to the first.
CLASS_OF = {word: name for name in reversed(CLASSES) for word in CLASSES[name]}

# Classes of movable objects, whose words can replace each other.
MOVABLE = ("animals", "vehicles", "things")

_WORD = re.compile(r"[A-Za-z]+")
_TRIES = 8  # draws per negative before it is skipped
_DRAWS = 30  # words drawn before a position is skipped

Weights = Mapping[str, float]
_Matches = Mapping[str, Sequence[re.Match[str]]]  # words of a caption that belong to a class, by kind


def class_weights(captions: Iterable[str]) -> dict[str, float]:
    """Return sampling weights of class words: square roots of their counts, so that negatives sound natural."""
    counts = Counter(word for caption in captions for word in _WORD.findall(caption.lower()) if word in CLASS_OF)
    return {word: count**0.5 + 1 for word, count in counts.items()}


def make_negatives(
    caption: str, banned: Collection[str], count: int, rng: Random, *, weights: Weights | None = None
) -> tuple[str, ...]:
    """Return up to `count` different captions with another meaning; no word of `banned` is inserted.

    >>> make_negatives("a red car", {"blue"}, 1, Random(0))
    ('a red glove',)
    """
    matches: dict[str, list[re.Match[str]]] = {}
    for match in _WORD.finditer(caption):
        if (name := CLASS_OF.get(match.group().lower())) is not None:
            matches.setdefault(KINDS[name], []).append(match)
    options = [*sorted(matches), *(["swap"] if _swappable(matches) else [])]
    negatives: dict[str, None] = {}
    for _ in range(_TRIES * count if options else 0):
        edits = _draw_edits(matches, rng.choice(options), banned, rng, weights or {})
        negative = apply_edits(caption, edits)[0]
        if negative.casefold() != caption.casefold():
            negatives[negative] = None
        if len(negatives) == count:
            break
    return tuple(negatives)


def _draw_edits(
    matches: _Matches, option: str, banned: Collection[str], rng: Random, weights: Weights
) -> list[tuple[int, int, str]]:
    """Swap two words of a kind, or replace one word by another of its class; return no edits if no word fits."""
    if option == "swap":
        kind = matches[rng.choice(_swappable(matches))]
        first = rng.choice(kind)
        second = rng.choice([match for match in kind if match.group().lower() != first.group().lower()])
        return sorted([(*first.span(), second.group().lower()), (*second.span(), first.group().lower())])
    match = rng.choice(matches[option])
    word = _draw_word(match.group().lower(), banned, rng, weights)
    return [] if word is None else [(*match.span(), word)]


def _swappable(matches: _Matches) -> list[str]:
    """Return the kinds with at least two different words."""
    return [
        kind for kind in ("attribute", "object") if len({match.group().lower() for match in matches.get(kind, ())}) > 1
    ]


def _draw_word(old: str, banned: Collection[str], rng: Random, weights: Weights) -> str | None:
    """Draw another word of the class; nouns keep their grammatical number."""
    name = CLASS_OF[old]
    if name in MOVABLE and rng.random() < 0.5:
        name = rng.choice(MOVABLE)
    is_noun = KINDS[name] == "object"
    word_weights = [weights.get(word, 1.0) for word in CLASSES[name]]
    for _ in range(_DRAWS):
        word = rng.choices(CLASSES[name], word_weights)[0]
        if word != old and not {word, stem(word)} & set(banned) and not (is_noun and is_plural(word) != is_plural(old)):
            return word
    return None
