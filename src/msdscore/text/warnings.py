"""What a reader of a score should know about its caption: language, letters and words that an encoder cannot read.

Every caption passes here, so the common case is cheap: a caption with one of the words that English alone has is not
looked at any further, and py3langid is asked about the others (docs/trust.md has its errors and its speed).
"""

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from msdscore.errors import require
from msdscore.text.words import STOP_WORDS, Span, each_word, token_groups

NOT_ENGLISH = "not English"
NO_CONTENT = "only stop words"
NO_WORDS = "no words"
INVISIBLE = "invisible characters"
ABOUT_ITSELF = "speaks of itself"

_SHOWN = 3  # unknown words that are named
_PIECES = 4  # a word in at least so many pieces, of under two letters on average, is a row of letters to the encoder

_LATIN = re.compile(r"[^\W\d_]+")
# Words of English captions that the other languages below do not have, or hardly.
_ENGLISH_LIST = """
the with and of is are from near their his its this that while has there into through behind between front together
sitting standing walking holding riding playing wearing looking running jumping eating woman women girl girls boy boys
child children people dogs horse horses grass trees white blue green black brown yellow two three young small field
beach street snow shirt road building tree house bird square kitchen bathroom bedroom food boat sheep cow bear flying
swimming laying lying driving talking smiling waiting parked covered filled
"""
_ENGLISH = frozenset(_ENGLISH_LIST.split())
_ENGLISH_PAIRS = (" on a ", " in a ", " on an ", " in an ")
# Languages of py3langid that captions are told from; dialects and small languages bring false alarms alone.
_LANGUAGES = """
af ar az be bg bn bs ca cs da de el en es et eu fa fi fr gl he hi hr hu hy id is it ja ka kk ko lt lv mk ml mr ms my ne
nl no pa pl pt ro ru si sk sl sq sr sv sw ta te th tl tr uk ur uz vi zh
"""
_AT_MOST_ENGLISH = 0.08  # probability of English over which a caption is not warned about
_AT_LEAST_OTHER = {2: 0.5, 3: 0.15}  # of the other language, by the number of words; one word alone says too little

# Without the joiners of emoji and of scripts that need them, which are looked for between Latin letters alone.
_HIDDEN = re.compile(
    "[\u00ad\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]"
    "|(?<=[A-Za-z ])[\u200c\u200d]|[\u200c\u200d](?=[A-Za-z ])"
)
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
    """Warnings from the text alone, for an encoder of English (`english`), or of any language.

    >>> text_warnings("Eine Katze schaut in die Kamera", english=True), text_warnings("the", english=True)
    (('not English',), ('only stop words',))
    >>> text_warnings("As an AI language model, I cannot see images.", english=True), text_warnings("!!!", english=True)
    (('speaks of itself',), ('no words',))
    """
    lower = text.lower()
    warnings = []
    if english and not _is_english(text, lower):
        warnings.append(NOT_ENGLISH)
    content = _has_content(text)
    if not content and content is not None:
        warnings.append(NO_CONTENT)
    elif content is None and text.strip() and not any(unicodedata.category(sign)[0] in "LNS" for sign in text):
        warnings.append(NO_WORDS)
    if not text.isascii() and _HIDDEN.search(text):
        warnings.append(INVISIBLE)
    if _SELF.search(lower):
        warnings.append(ABOUT_ITSELF)
    return tuple(warnings)


def token_warnings(
    text: str,
    ids: Sequence[int],
    spans: Sequence[Span],
    *,
    unknown: int | None,
    spelled: Sequence[str] | None = None,
) -> tuple[str, ...]:
    """Warnings from the tokens: words outside the vocabulary; `spelled` is `spelled_out`, where it is known."""
    odd = spelled_out(text, spans, ids, unknown=unknown) if spelled is None or unknown in ids else spelled
    if not odd:
        return ()
    named = list(dict.fromkeys(odd))
    more = ", …" if len(named) > _SHOWN else ""
    return (f"unknown words: {', '.join(word[:20] for word in named[:_SHOWN])}{more}",)


def spelled_out(text: str, spans: Sequence[Span], ids: Sequence[int] = (), *, unknown: int | None = None) -> list[str]:
    """Words in order that hold the unknown token, or Latin ones in tokens so small that they mean nothing."""
    odd = []
    for group in token_groups(text, spans):
        word = text[spans[group[0]][0] : spans[group[-1]][1]]
        small = len(group) >= _PIECES and len(word) < 2 * len(group) and word.isalpha() and _is_latin(word)
        if small or any(ids[number] == unknown for number in group if ids):
            odd.append(word)
    return odd


def _has_content(text: str) -> bool | None:
    """Whether one of its words is no stop word; None where it has no words. Most texts are known by their second."""
    content = None
    for word in each_word(text):
        if word not in STOP_WORDS:
            return True
        content = False
    return content


def _is_english(text: str, lower: str) -> bool:
    """Whether a text may be English; in doubt, as for single words, it is."""
    if not text.isascii():
        letters = [letter for letter in text if letter.isalpha()]
        if 3 * sum(not _is_latin(letter) for letter in letters) > len(letters):
            return False
    if not _ENGLISH.isdisjoint(lower.split()) or any(pair in lower for pair in _ENGLISH_PAIRS):
        return True
    words = _LATIN.findall(lower)
    if not _ENGLISH.isdisjoint(words) or len(set(words)) < 2:
        return True
    scores = dict(_identifier().rank(text[:1000]))
    language, probability = max(scores.items(), key=lambda pair: pair[1])
    certain = probability >= _AT_LEAST_OTHER[min(len(words), 3)]
    return language == "en" or not certain or scores["en"] >= _AT_MOST_ENGLISH


@lru_cache(maxsize=1)
def _identifier() -> Any:
    """The language identifier, loaded when the first caption needs it (under a second)."""
    langid = require("py3langid.langid", extra="mini")
    identifier = langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)
    identifier.set_languages(_LANGUAGES.split())
    return identifier


def _is_latin(letters: str) -> bool:
    return all(letter.isascii() or unicodedata.name(letter, "").startswith("LATIN") for letter in letters)
