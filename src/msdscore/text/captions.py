"""The form of a caption, and its language.

Lists of words, shuffled words and repetitions, which true words can hide from any score, are found by a trigram model
of English captions over 64 symbols: frequent function words by name, other words by class (`tools/caption_model.py`
builds it). docs/trust.md has detection and false-alarm rates, and speed. A caption of words that the model knows is
English; py3langid decides about the others.
"""

import gzip
import json
import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from math import log2
from pathlib import Path
from typing import Any, NamedTuple

from msdscore.text.normal import clean

LIST = "list of words"
SHUFFLED = "shuffled words"
REPEATED = "repeated"
FORM_WARNINGS = frozenset((LIST, SHUFFLED, REPEATED))

CAPTION_MODEL = Path(__file__).with_name("captions.gz")
SURPRISE_UNIT, MOST_SURPRISE = 0.5, 16.0  # bits of surprise: the step and the end of the scale
BOUNDARY, COMMA = 0, 1  # symbols for the end of a sentence and for punctuation inside it
ENDINGS = ("ing", "ed", "s", "ly", "digit", "")  # classes of words outside the list

_TOKENS = re.compile(r"[^\W_]+(?:['’][^\W_]+)?|[.!?;,:]")
_STOPS, _COMMAS = frozenset(".!?;"), frozenset(",:")
_SHORTEST = 4  # words; shorter captions are not judged
# Limits in bits of evidence: for the order of a whole caption, and for a sentence in a window of some symbols.
_ORDER, _WINDOW, _LISTED = -10.5, 6, -13.0
_LEAST, _MOST = -7.0, 8.0  # limits of the evidence of one symbol: one odd word must not decide
_ENDS = ((4, -4.0), (5, -3.5))  # number of last symbols, and the minimum evidence for a sentence there
_SILENT = 0.25  # minimum share of function words for shuffled words rather than a list
_IN_A_LIST = 0.9  # share of content words in a list
_ANDS, _ITEMS, _ITEM = 3, 8, 3  # "and" in a row of items, items in a row, words of an item
_DISTINCT, _REPEATABLE = 2 / 3, 6  # share of different trigrams of words; least words
_VARIED = 0.8  # share of distinct words above which a text is not repetitive
_BREAK_LIST = """
in on of with is to at are that down up while near by through has over for there from out around as into who which
behind under off across inside along above beside against onto between after toward next have be being
"""
_BREAKS = frozenset(_BREAK_LIST.split())  # words that end an enumeration


class TrigramModel(NamedTuple):
    """Trigram model of English captions; evidence is in bits."""

    symbols: dict[str, int]  # of each word and mark
    trigrams: bytes  # surprise of each symbol after two others, in units
    # Of each symbol, by its surprise: evidence against words in any order, and against a list of words.
    gains: list[list[tuple[float, float]]]
    content: list[bool]  # whether a symbol is a content word
    size: int


@lru_cache(maxsize=1)
def caption_model() -> TrigramModel:
    """Load the packaged model, on first use (some milliseconds)."""
    head, _, trigrams = gzip.decompress(CAPTION_MODEL.read_bytes()).partition(b"\n")
    raw = json.loads(head)
    content = [bool(flag) for flag in raw["content"]]
    single = [2.0 ** -(SURPRISE_UNIT * surprise) for surprise in raw["single"]]
    of_content = sum(share for share, is_content in zip(single, content, strict=True) if is_content)
    scale = {True: _IN_A_LIST / of_content, False: (1 - _IN_A_LIST) / (sum(single) - of_content)}
    levels = [SURPRISE_UNIT * level for level in range(1 + int(MOST_SURPRISE / SURPRISE_UNIT))]
    bits = [(-log2(share), -log2(share * scale[is_content])) for share, is_content in zip(single, content, strict=True)]
    gains = [
        [(_clipped(any_order - level), _clipped(in_list - level)) for level in levels] for any_order, in_list in bits
    ]
    symbols = {word: number for number, words in enumerate(raw["words"]) for word in words.split()}
    return TrigramModel(symbols, trigrams, gains, content, len(single))


def _clipped(gain: float) -> float:
    return min(max(gain, _LEAST), _MOST)


def form_warnings(words: Sequence[str], *, english: bool) -> tuple[str, ...]:
    """Return warnings about the form of a text by its `tokens`; with `english=False` its words are not judged.

    >>> form_warnings(tokens("a dog runs on the beach with a ball in its mouth"), english=True)
    ()
    >>> form_warnings(tokens("dog beach ball sand ocean running brown wave"), english=True)
    ('list of words',)
    >>> form_warnings(tokens("the with dog beach on runs a ball a"), english=True)
    ('shuffled words',)
    >>> form_warnings(tokens("a photo of a dog and a beach and a ball and a wave"), english=True)
    ('list of words',)
    >>> form_warnings(tokens("a dog runs. " * 3), english=True)
    ('repeated',)
    """
    warnings = []
    if english and len(words) >= _SHORTEST:
        encoded = symbols_of(words)
        listed, ordered = _evidence(encoded)
        if _enumerates(words):
            warnings.append(LIST)
        elif listed < _LISTED or ordered < _ORDER:
            content = caption_model().content
            silent = sum(not content[symbol] for symbol in encoded if symbol > COMMA)
            warnings.append(SHUFFLED if ordered < _ORDER and silent >= _SILENT * len(encoded) else LIST)
    if len(words) >= _REPEATABLE and _repeats(words):
        warnings.append(REPEATED)
    return tuple(warnings)


def tokens(lower: str) -> list[str]:
    """Split a lower-case text into words and marks; compounds are split at hyphens."""
    return _TOKENS.findall(lower)


def symbols_of(words: Sequence[str], symbols: dict[str, int] | None = None, size: int = 0) -> list[int]:
    """Encode words and marks as symbols; only the first of several marks counts, and a boundary ends the text.

    Uses the packaged model, unless another list of words and its number of symbols is passed.
    """
    if symbols is None:
        symbols, size = caption_model().symbols, caption_model().size
    encoded: list[int] = []
    for word in words:
        symbol = symbols.get(word)
        if symbol is None:
            # Words outside the list have the symbol of their ending, at the end of all symbols.
            ending = "digit" if word[0].isdigit() else next(ending for ending in ENDINGS if word.endswith(ending))
            other = size - len(ENDINGS) + ENDINGS.index(ending)
            symbol = BOUNDARY if word in _STOPS else COMMA if word in _COMMAS else other
        if symbol > COMMA or (encoded and encoded[-1] > COMMA):
            encoded.append(symbol)
    while encoded and encoded[-1] <= COMMA:
        encoded.pop()
    return [*encoded, BOUNDARY]


def trails_off(words: Sequence[str]) -> bool:
    """Whether a text ends in words that do not belong to its sentence.

    Only for the guard: one or two of a hundred captions end like this.

    >>> trails_off(tokens("a dog runs on the beach ball wave sky")), trails_off(tokens("a dog runs on the beach"))
    (True, False)
    """
    _, trigrams, gains, _, size = caption_model()
    encoded = [BOUNDARY, BOUNDARY, *symbols_of(words)]
    listed = [
        gains[symbol][trigrams[(before * size + last) * size + symbol]][1]
        for before, last, symbol in zip(encoded, encoded[1:], encoded[2:], strict=False)
    ]
    return any(len(listed) > count and sum(listed[-count:]) < least for count, least in _ENDS)


def _evidence(encoded: Sequence[int]) -> tuple[float, float]:
    """Return evidence in bits against a list of words (minimum over windows) and against shuffled words (total)."""
    _, trigrams, gains, _, size = caption_model()
    before = last = BOUNDARY
    total = window = least = 0.0
    recent = [0.0] * _WINDOW
    for number, symbol in enumerate(encoded):
        ordered, listed = gains[symbol][trigrams[(before * size + last) * size + symbol]]
        total += ordered
        window += listed - recent[number % _WINDOW]
        recent[number % _WINDOW] = listed
        if window < least:
            least = window
        before, last = (BOUNDARY, BOUNDARY) if symbol == BOUNDARY else (last, symbol)
    return least, total


def _enumerates(words: Sequence[str]) -> bool:
    """Whether a text strings items together: "a dog and a cat and a bird and a tree", or many with commas."""
    if words.count("and") + words.count("or") < _ANDS and words.count(",") < _ITEMS - 2:
        return False
    items = ands = gap = 0
    for word in [*words, "."]:
        is_and = word in ("and", "or")
        if not is_and and word != ",":
            if word not in _BREAKS and word not in _STOPS:
                gap += 1
                continue
            items = items + 1 if 0 < gap <= _ITEM else items
            if min(ands, items - 1) >= _ANDS or items >= _ITEMS:
                return True
            items = ands = gap = 0
        elif gap:
            items, ands = (items + 1, ands + is_and) if gap <= _ITEM else (0, int(is_and))
            gap = 0
    return False


def _repeats(words: Sequence[str]) -> bool:
    """Whether a third of the word trigrams are repeated."""
    if len(set(words)) > _VARIED * len(words):
        return False
    spoken = [word for word in words if word[0].isalnum()]
    trigrams = set(zip(spoken, spoken[1:], spoken[2:], strict=False))
    return len(spoken) >= _REPEATABLE and len(trigrams) <= _DISTINCT * (len(spoken) - 2)


ENGLISH = "en"
_FEW = 3  # words, of which half are enough
# Function words of English that no other language here has, and of other languages that English does not have.
_ENGLISH_LIST = """
the with and from near their his its this that while there into through behind between wearing standing sitting holding
walking looking playing riding which where who it's isn't doesn't
"""
_ENGLISH = frozenset(_ENGLISH_LIST.split())
_FOREIGN_LIST = """
aan achter ada ag al amb ang ao att au auch auf aux av avec ay az bei bij bir bu cha che chez com con cu cua cum da
dalawang dan dans dari das dau de del della dels dem dengan der des det deux devant dhá di din doi dona dos două du
dua duas due dues duo durch dva dvě dwa dwie ed een egy ei ein eine einem einen einer ekor el elle els em en entre er
es est este está están et ett ez foar für gli gyda hai har heeft het hij hogy hulle hän ihr iki ikke ikkje il ile im
ini inte isang ist itu için ja je jest joka kaksi katika ke kun kwa két la las le les leur lo los lui maar med met mga
mit mot na naar nad neben nel nem nens ng nguoi ni nicht nie niet nog oan och od oer og olan oleh oli onder ook op os
pada pe pela pelo pentru por pour przez på při que qui se sebuah sedang sein sekä seorang ses seu si sind się sobre
som sono sont sous staat su sua sul sulla sunt sur sus sy são són til tren trong två twa twee uit um uma un una und
une uno unter untuk ut va ve vir viro von voor vor wa wawili wij wordt ya yang yn yr za ze zij zijn zit zum zur zwei
är és în üzerinde și
"""
_FOREIGN = frozenset(_FOREIGN_LIST.split())
# English words that are words of other languages too, and are not evidence for either.
_SHARED_LIST = """
a an and are as at bat barn boot die do for has hat her i in is it man me men no of on or over plant see so to under
van was war
"""
_SHARED = frozenset(_SHARED_LIST.split())
# Shared words that occur together in no other language.
_ARTICLES, _PREPOSITIONS = frozenset(("a", "an")), frozenset(("of", "on", "at"))
_MOSTLY = 0.6  # share of English words from which a text without words of other languages is English
# Languages that a text in Latin letters may have; dialects and small languages only add false alarms.
_LANGUAGE_LIST = """
af ar az be bg bn bs ca cs cy da de el en eo es et eu fa fi fr ga gl he hi hr hu hy id is it ja ka kk ko la lt lv mk ml
mr ms my ne nl no pa pl pt ro ru si sk sl sq sr sv sw ta te th tl tr uk ur uz vi zh
"""
_LANGUAGES = frozenset(_LANGUAGE_LIST.split())
_AT_MOST_ENGLISH = 0.08  # probability of English over which a caption is not warned about
_AT_LEAST_OTHER = {2: 0.5, 3: 0.15}  # of the other language, by the number of words; a single word is not enough


def caption_language(caption: str) -> str | None:
    """Return the language of a caption by its ISO 639-1 code; None if it is too short, or in doubt.

    >>> caption_language("a cat looks at the camera"), caption_language("Eine Katze schaut in die Kamera")
    ('en', 'de')
    >>> caption_language("IMG_2033"), caption_language("猫がカメラを見ている"), caption_language("!!!")
    (None, 'ja', None)
    """
    cleaned = clean(caption)
    return language_of(caption if cleaned is None else cleaned.text)


@lru_cache(maxsize=1 << 14)  # warnings and tables need that of the same captions
def language_of(text: str) -> str | None:
    """Return the language of a cleaned text; see `caption_language`."""
    words = tokens(text.lower())
    if not text.isascii():
        letters = [letter for letter in text if letter.isalpha()]
        if 3 * sum(not is_latin(letter) for letter in letters) > len(letters):
            return next(language for language, _ in _ranked(text) if language != ENGLISH)
    if is_plain_english(words):
        return ENGLISH
    words = [word for word in words if word[0].isalpha()]
    if len(set(words) - _SHARED) < 2:
        return None
    shares = {language: share for language, share in _ranked(text) if language in _LANGUAGES}
    language, total = next(iter(shares)), sum(shares.values())
    if language == ENGLISH:
        return ENGLISH
    is_certain = shares[language] >= _AT_LEAST_OTHER[min(len(words), 3)] * total
    return language if is_certain and shares[ENGLISH] < _AT_MOST_ENGLISH * total else None


def is_plain_english(words: Sequence[str]) -> bool:
    """Whether words are clearly English: most are frequent in captions, hardly any is of another language."""
    telling = [word for word in words if word not in _SHARED and word[0].isalpha()]
    known = caption_model().symbols
    foreign = 0 if _FOREIGN.isdisjoint(telling) else sum(map(_FOREIGN.__contains__, telling))
    familiar = len([word for word in telling if word in known and word not in _FOREIGN])
    if not foreign and familiar and familiar >= (_MOSTLY if len(words) > _FEW else 0.5) * len(telling):
        return True
    if familiar <= foreign:
        return bool(familiar) and familiar == foreign and words[0] == "the"
    if familiar >= len(telling) / 2 and familiar > 2 * foreign and not _ENGLISH.isdisjoint(words):
        return True
    return not _ARTICLES.isdisjoint(words) and not _PREPOSITIONS.isdisjoint(words)


def is_latin(letters: str) -> bool:
    """Whether all letters are Latin."""
    return all(letter.isascii() or unicodedata.name(letter, "").startswith("LATIN") for letter in letters)


def _ranked(text: str) -> list[tuple[str, float]]:
    """Return all languages with their probabilities, the most likely one first."""
    return [(language, float(share)) for language, share in _identifier().rank(text[:1000])]


@lru_cache(maxsize=1)
def _identifier() -> Any:
    """Load the language identifier, on first use (under a second)."""
    from py3langid import langid

    return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)
