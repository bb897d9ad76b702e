"""Rule-based caption edits: replaced words with their articles, a wrong colour or object, a typo, a negation.

The word lists here are for behavioural tests. Training (`align`) and COCO-CF use other lists, so that these tests do
not repeat what an encoder was trained on; all use the same functions to apply edits.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from random import Random

from msdscore.text.words import COLOURS, NUMBERS, Span, segment, stem

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
Known = Collection[str]  # words of all captions of the image, which are never inserted
Edit = tuple[int, int, str]  # start and end of the replaced characters, and their replacement


def apply_edits(caption: str, edits: Sequence[Edit]) -> tuple[str, tuple[Span, ...]]:
    """Apply edits to a caption and return the spans of the new text; capital letters are preserved.

    >>> apply_edits("Dogs on a table.", [(0, 4, "cats"), (10, 15, "bed")])
    ('Cats on a bed.', ((0, 4), (10, 13)))
    """
    text, position, spans = "", 0, list[Span]()
    for start, end, word in edits:
        text += caption[position:start]
        replacement = word[:1].upper() + word[1:] if caption[start : start + 1].isupper() else word
        spans.append((len(text), len(text) + len(replacement.rstrip())))
        text, position = text + replacement, end
    return text + caption[position:], tuple(spans)


def with_articles(caption: str, edits: Sequence[Edit]) -> list[Edit]:
    """Extend edits to the article before them if its form changes.

    >>> apply_edits("An apple on a table.", with_articles("An apple on a table.", [(3, 8, "pizza")]))
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


def other_word(kind_of: Mapping[str, Sequence[str]], caption: str, known: Known, rng: Random) -> str | None:
    """Replace one word by another of its kind that no caption of the image mentions; return None if not possible.

    >>> other_word({"red": ("red", "blue")}, "A red car", {"red", "car"}, Random(0))
    'A blue car'
    """
    matches = [match for match in _WORD.finditer(caption) if match.group().lower() in kind_of]
    for match in rng.sample(matches, len(matches)):
        candidates = [word for word in kind_of[match.group().lower()] if word not in known]
        if candidates:
            return apply_edits(caption, [(*match.span(), rng.choice(candidates))])[0]
    return None


other_colour = partial(other_word, dict.fromkeys(COLOURS, COLOURS))
other_number = partial(other_word, dict.fromkeys(NUMBERS, NUMBERS))
other_object = partial(other_word, KIND_OF)


def negated(caption: str, known: Known, rng: Random) -> str | None:
    """Replace "a", "an" or "the" before an object by "no".

    >>> negated("A man with a dog", set(), Random(0))
    'A man with no dog'
    """
    names = "|".join(KIND_OF)
    matches = list(re.finditer(rf"\b(?:a|an|the)(?= (?:\w+ )?(?:{names})\b)", caption, re.IGNORECASE))
    if not matches:
        return None
    match = rng.choice(matches)
    return caption[: match.start()] + ("No" if match.start() == 0 else "no") + caption[match.end() :]


def typo(caption: str, known: Known, rng: Random) -> str | None:
    """Swap two letters inside a content word of five or more letters."""
    words = [word for word in segment(caption) if word.content and len(word.text) >= 5 and word.text.isalpha()]
    for word in rng.sample(words, len(words)):
        index = word.start + rng.randrange(1, len(word.text) - 2)
        if caption[index] != caption[index + 1]:
            return caption[:index] + caption[index + 1] + caption[index] + caption[index + 2 :]
    return None


def nonsense(caption: str, known: Known, rng: Random) -> str | None:
    """Replace a content word by a meaningless one."""
    words = [word for word in segment(caption) if word.content]
    if len(words) < 2:
        return None
    word = rng.choice(words)
    return caption[: word.start] + rng.choice(_NONSENSE) + caption[word.end :]


def bare(caption: str, known: Known, rng: Random) -> str:
    """Convert to lower case and remove the full stop.

    >>> bare("A dog . ", set(), Random(0))
    'a dog'
    """
    return caption.strip().rstrip(".").rstrip().lower()


def prefixed(caption: str, known: Known, rng: Random) -> str:
    """Prefix the caption with "A photo of"."""
    return f"A photo of {caption[:1].lower()}{caption[1:]}"


def with_empty_words(caption: str, known: Known, rng: Random) -> str:
    """Append a sentence without visual content."""
    return joined([caption, rng.choice(EMPTY)])


def words_of(captions: Sequence[str]) -> frozenset[str]:
    """Return all words of the captions in lower case, unchanged and stemmed."""
    words = {word.lower() for text in captions for word in _WORD.findall(text)}
    return frozenset(words | set(map(stem, words)))


def joined(captions: Sequence[str]) -> str:
    """Join captions as sentences of one text.

    >>> joined(["A dog runs", "the sea ."])
    'A dog runs. The sea.'
    """
    tidy = [text.strip().rstrip(".").rstrip() for text in captions]
    return " ".join(f"{text[:1].upper()}{text[1:]}." for text in tidy if text)
