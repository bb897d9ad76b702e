"""The language of a caption: English, another one by its ISO 639-1 code, or unknown.

The common case is cheap: a caption of known English words is not examined further. py3langid decides about the others.
"""

import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from msdscore.text.captions import caption_model, tokens
from msdscore.text.normal import clean

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
