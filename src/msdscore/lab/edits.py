"""Rule-based caption edits: replaced words with their articles, a wrong colour or object, a typo, a negation.

The word lists here are for behavioural tests. Training (`align`) and COCO-CF use other lists, so that these tests do
not repeat what an encoder was trained on; all share the functions that insert words.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from random import Random

from msdscore.text.words import COLOURS, NUMBERS, Span, joined, segment, stem

ARTICLES = ("a", "an")
_KINDS = (
    ("dog", "cat", "horse", "cow", "sheep", "elephant", "bear", "zebra", "giraffe", "bird", "duck", "monkey"),
    ("car", "bus", "truck", "train", "bicycle", "motorcycle", "boat", "airplane", "tractor", "skateboard"),
    ("pizza", "sandwich", "cake", "banana", "apple", "salad", "donut", "soup"),
    ("chair", "sofa", "bed", "table", "bench", "lamp", "mirror", "clock", "television", "refrigerator"),
    ("ball", "frisbee", "umbrella", "kite", "guitar", "camera", "phone", "book", "bottle", "bag", "hat"),
    ("beach", "forest", "street", "kitchen", "bathroom", "office", "stadium", "desert", "church", "bridge"),
)
KIND_OF = {word: kind for kind in _KINDS for word in kind}
EMPTY = (
    "It is a wonderful picture and everything about it is very nice.",
    "The overall impression is pleasant and quite interesting.",
    "This is something that many of us have seen before.",
)
_NONSENSE = ("blorf", "snivet", "grupple", "vantish", "quorm")
_WORD = re.compile(r"[A-Za-z]+")
Known = Collection[str]  # words of all captions of the image, which are never used as wrong words
Edit = tuple[int, int, str]  # start and end of the replaced characters, and their replacement


def put_in(caption: str, edits: Sequence[Edit]) -> tuple[str, tuple[Span, ...]]:
    """Apply edits to a caption and return the spans of the new text; capital letters are preserved.

    >>> put_in("Dogs on a table.", [(0, 4, "cats"), (10, 15, "bed")])
    ('Cats on a bed.', ((0, 4), (10, 13)))
    """
    text, at, spans = "", 0, list[Span]()
    for start, end, word in edits:
        text += caption[at:start]
        new = word[:1].upper() + word[1:] if caption[start : start + 1].isupper() else word
        spans.append((len(text), len(text) + len(new.rstrip())))
        text, at = text + new, end
    return text + caption[at:], tuple(spans)


def with_articles(caption: str, edits: Sequence[Edit]) -> list[Edit]:
    """Extend edits to the article before them if its form changes.

    >>> put_in("An apple on a table.", with_articles("An apple on a table.", [(3, 8, "pizza")]))
    ('A pizza on a table.', ((0, 7),))
    """
    widened = []
    for start, end, word in edits:
        before = caption[:start].rstrip()
        last = before.rpartition(" ")[2]
        if last.lower() in ARTICLES and last.lower() != article(word):
            start, word = len(before) - len(last), f"{article(word)} {word}"
        widened.append((start, end, word))
    return widened


def article(word: str) -> str:
    """Return `a` or `an`, by the first sound of a word.

    >>> article("umbrella"), article("unicycle"), article("hour")
    ('an', 'a', 'an')
    """
    vowel = word[:1].lower() in "aeiou" and not word.lower().startswith(("uni", "use", "one", "eu"))
    return "an" if vowel or word.lower().startswith("hour") else "a"


def other_word(kind_of: Mapping[str, Sequence[str]], caption: str, known: Known, chance: Random) -> str | None:
    """Replace one word by another of its kind that no caption of the image mentions; None if there is none.

    >>> other_word({"red": ("red", "blue")}, "A red car", {"red", "car"}, Random(0))
    'A blue car'
    """
    matches = [match for match in _WORD.finditer(caption) if match.group().lower() in kind_of]
    for match in chance.sample(matches, len(matches)):
        free = [word for word in kind_of[match.group().lower()] if word not in known]
        if free:
            return put_in(caption, [(*match.span(), chance.choice(free))])[0]
    return None


other_colour = partial(other_word, dict.fromkeys(COLOURS, COLOURS))
other_number = partial(other_word, dict.fromkeys(NUMBERS, NUMBERS))
other_object = partial(other_word, KIND_OF)


def negated(caption: str, known: Known, chance: Random) -> str | None:
    """Replace "a", "an" or "the" before an object by "no".

    >>> negated("A man with a dog", set(), Random(0))
    'A man with no dog'
    """
    names = "|".join(KIND_OF)
    matches = list(re.finditer(rf"\b(?:a|an|the)(?= (?:\w+ )?(?:{names})\b)", caption, re.IGNORECASE))
    if not matches:
        return None
    match = chance.choice(matches)
    return caption[: match.start()] + ("No" if match.start() == 0 else "no") + caption[match.end() :]


def typo(caption: str, known: Known, chance: Random) -> str | None:
    """Swap two letters inside a content word of five or more letters."""
    words = [piece for piece in segment(caption) if piece.content and len(piece.text) >= 5 and piece.text.isalpha()]
    for piece in chance.sample(words, len(words)):
        at = piece.start + chance.randrange(1, len(piece.text) - 2)
        if caption[at] != caption[at + 1]:
            return caption[:at] + caption[at + 1] + caption[at] + caption[at + 2 :]
    return None


def nonsense(caption: str, known: Known, chance: Random) -> str | None:
    """Replace a content word by a meaningless one."""
    words = [piece for piece in segment(caption) if piece.content]
    if len(words) < 2:
        return None
    piece = chance.choice(words)
    return caption[: piece.start] + chance.choice(_NONSENSE) + caption[piece.end :]


def bare(caption: str, known: Known, chance: Random) -> str:
    """Convert to lower case and remove the full stop.

    >>> bare("A dog . ", set(), Random(0))
    'a dog'
    """
    return caption.strip().rstrip(".").rstrip().lower()


def prefixed(caption: str, known: Known, chance: Random) -> str:
    """Prefix the caption with "A photo of"."""
    return f"A photo of {caption[:1].lower()}{caption[1:]}"


def with_empty_words(caption: str, known: Known, chance: Random) -> str:
    """Append a sentence without visual content."""
    return joined([caption, chance.choice(EMPTY)])


def words_of(captions: Sequence[str]) -> frozenset[str]:
    """Return all words of the captions in lower case, unchanged and stemmed."""
    words = {word.lower() for text in captions for word in _WORD.findall(text)}
    return frozenset(words | set(map(stem, words)))
