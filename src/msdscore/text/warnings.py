"""Warnings about a caption: its language, its form, and letters or words that an encoder cannot read.

Every caption passes here, so the common case is cheap: a caption of known English words is not examined further, and
py3langid decides about the others (docs/trust.md has error rates and speed).
"""

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from msdscore.errors import require
from msdscore.text.form import FORM_WARNINGS, caption_model, tokens, trails_off, warnings_of
from msdscore.text.normal import clean, invisible, loose_marks
from msdscore.text.words import STOP_WORDS, Span, each_word, token_groups

NOT_ENGLISH = "not English"
NO_CONTENT = "only stop words"
NO_WORDS = "no words"
INVISIBLE = "invisible characters"
STRAY_MARKS = "stray marks"
LOOK_ALIKE = "look-alike letters"
APPENDED = "words appended"  # only for the guard: as a warning it would be wrong too often
# Warnings about texts that are optimised for the score.
GUARDED = FORM_WARNINGS | {INVISIBLE, STRAY_MARKS, LOOK_ALIKE}
ABOUT_ITSELF = "speaks of itself"

_SHOWN = 3  # unknown words that are listed
_PIECES = 4  # a word in at least so many pieces, of under two letters on average, is a row of letters to the encoder

_LATIN = re.compile(r"[^\W\d_]+")
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
# Languages of py3langid that are considered; dialects and small languages only add false alarms.
_LANGUAGES = """
af ar az be bg bn bs ca cs cy da de el en eo es et eu fa fi fr ga gl he hi hr hu hy id is it ja ka kk ko la lt lv mk ml
mr ms my ne nl no pa pl pt ro ru si sk sl sq sr sv sw ta te th tl tr uk ur uz vi zh
"""
_AT_MOST_ENGLISH = 0.08  # probability of English over which a caption is not warned about
_AT_LEAST_OTHER = {2: 0.5, 3: 0.15}  # of the other language, by the number of words; a single word is not enough

# First words of the names of letters that may look like Latin ones.
_ALIKE = frozenset(("CYRILLIC", "GREEK", "ARMENIAN", "CHEROKEE", "COPTIC", "LISU", "FULLWIDTH", "MATHEMATICAL"))
_SELF = re.compile(  # of a text in lower case
    r"\b(?:"
    r"as an? (?:ai|artificial intelligence|(?:large |visual |vision )*language model)\b"
    r"|i(?:['’]m| am) (?:an ai|a (?:large )?language model|sorry, (?:but )?i|unable to|not able to)\b"
    r"|i (?:cannot|can['’]t|can not|could not|couldn['’]t|do not|don['’]t) (?:actually )?"
    r"(?:see|view|access|process|describe|identify|provide|assist|help|determine|have the ability|have access)\b"
    r"|(?:here is|here['’]s) (?:a|an|the|your|one) (?:\w+ ){0,3}(?:caption|description)\b"
    r"|(?:sure|certainly|of course)[,!.]+ here\b"
    r"|you (?:have not|haven['’]t|did not|didn['’]t) (?:provide|upload)"
    r"|(?:please provide|no image (?:was|has been)) "
    r")"
)


def text_warnings(text: str, *, english: bool) -> tuple[str, ...]:
    """Return text-only warnings, for an encoder of English (`english`) or of any language.

    >>> text_warnings("Eine Katze schaut in die Kamera", english=True), text_warnings("the", english=True)
    (('not English',), ('only stop words',))
    >>> text_warnings("As an AI language model, I cannot see images.", english=True), text_warnings("!!!", english=True)
    (('speaks of itself',), ('no words',))
    """
    caption, cleaned = text, clean(text)
    text = caption if cleaned is None else cleaned.text
    lower = text.lower()
    words = tokens(lower)
    readable = _is_english(text, words) if english else _is_plain_english(words)
    warnings = [NOT_ENGLISH] if english and not readable else []
    content = _has_content(text)
    if not content and content is not None:
        warnings.append(NO_CONTENT)
    elif content is None and text.strip() and not any(unicodedata.category(sign)[0] in "LNS" for sign in text):
        warnings.append(NO_WORDS)
    warnings += () if cleaned is None else mark_warnings(caption)
    if not text.isascii() and _looks_alike(text):
        warnings.append(LOOK_ALIKE)
    if _SELF.search(lower):
        warnings.append(ABOUT_ITSELF)
        return tuple(warnings)
    return (*warnings, *warnings_of(words, english=readable))


def guarded_warnings(text: str) -> tuple[str, ...]:
    """Return warnings about texts that are optimised for the score, independent of the encoder.

    >>> guarded_warnings("dog beach ball sand ocean wave sky"), guarded_warnings("the")
    (('list of words',), ())
    >>> guarded_warnings("a dog runs on the beach ball wave sky")
    ('words appended',)
    """
    warnings = tuple(warning for warning in text_warnings(text, english=False) if warning in GUARDED)
    if warnings:
        return warnings
    words = tokens(text.lower())
    return (APPENDED,) if _is_plain_english(words) and trails_off(words) else ()


def mark_warnings(text: str) -> tuple[str, ...]:
    """Return warnings about characters that are removed before tokenisation.

    >>> mark_warnings("a d\\ufe0fog"), mark_warnings("a do\\u0338g"), mark_warnings("a café ❤️")
    (('invisible characters',), ('stray marks',), ())
    """
    hidden = (INVISIBLE,) if invisible(text) else ()
    return (*hidden, STRAY_MARKS) if loose_marks(text) else hidden


def _looks_alike(text: str) -> bool:
    """Whether a word mixes Latin letters with look-alikes of another script."""
    for word in _LATIN.findall(text):
        if not word.isascii() and "μ" not in word:  # a unit
            scripts = {unicodedata.name(letter, "").partition(" ")[0] for letter in word}
            if "LATIN" in scripts and not scripts.isdisjoint(_ALIKE):
                return True
    return False


def token_warnings(
    text: str, ids: Sequence[int], spans: Sequence[Span], *, unknown: int | None, spelled: Sequence[str] | None = None
) -> tuple[str, ...]:
    """Return warnings about words outside the vocabulary; `spelled` is the result of `spelled_out`, if known."""
    odd = spelled_out(text, spans, ids, unknown=unknown) if spelled is None or unknown in ids else spelled
    if not odd:
        return ()
    named = list(dict.fromkeys(odd))
    more = ", …" if len(named) > _SHOWN else ""
    return (f"unknown words: {', '.join(word[:20] for word in named[:_SHOWN])}{more}",)


def spelled_out(text: str, spans: Sequence[Span], ids: Sequence[int] = (), *, unknown: int | None = None) -> list[str]:
    """Return the words with the unknown token, or Latin words that are split into single letters."""
    odd = []
    for group in token_groups(text, spans):
        word = text[spans[group[0]][0] : spans[group[-1]][1]]
        small = len(group) >= _PIECES and len(word) < 2 * len(group) and word.isalpha() and _is_latin(word)
        if small or any(ids[number] == unknown for number in group if ids):
            odd.append(word)
    return odd


def _has_content(text: str) -> bool | None:
    """Whether a text has a word that is not a stop word; None if it has no words."""
    content = None
    for word in each_word(text):
        if word not in STOP_WORDS:
            return True
        content = False
    return content


def _is_english(text: str, words: Sequence[str]) -> bool:
    """Whether a text of these words and marks may be English; True in doubt, as for single words."""
    if not text.isascii():
        letters = [letter for letter in text if letter.isalpha()]
        if 3 * sum(not _is_latin(letter) for letter in letters) > len(letters):
            return False
    if _is_plain_english(words):
        return True
    words = [word for word in words if word[0].isalpha()]
    if len(set(words) - _SHARED) < 2:
        return True
    scores = dict(_identifier().rank(text[:1000]))
    language, probability = max(scores.items(), key=lambda pair: pair[1])
    certain = probability >= _AT_LEAST_OTHER[min(len(words), 3)]
    return language == "en" or not certain or scores["en"] >= _AT_MOST_ENGLISH


def _is_plain_english(words: Sequence[str]) -> bool:
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


@lru_cache(maxsize=1)
def _identifier() -> Any:
    """Load the language identifier, on first use (under a second)."""
    langid = require("py3langid.langid", extra="mini")
    identifier = langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)
    identifier.set_languages(_LANGUAGES.split())
    return identifier


def _is_latin(letters: str) -> bool:
    return all(letter.isascii() or unicodedata.name(letter, "").startswith("LATIN") for letter in letters)
