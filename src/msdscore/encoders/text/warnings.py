"""What a reader of a score should know about its caption: letters, languages and words that an encoder cannot read."""

import re
import unicodedata
from collections.abc import Sequence

from msdscore.encoders.text.windows import Span
from msdscore.encoders.text.words import STOP_WORDS, each_word, token_words

NOT_ENGLISH = "not English"
NO_CONTENT = "only stop words"
_SHOWN = 3  # unknown words that are named
_PIECES = 4  # a word in at least so many pieces, of under two letters on average, is a row of letters to the encoder

# Function words of other languages in Latin letters that are no English words.
_LIST = """
der das ein eine einen einem einer und ist sind mit auf im dem den des von zwei neben nicht sich wird
le la les un une de en et est dans sur avec du au aux qui deux sont près cette il elle
el los las una con por del que es dos sobre junto hay está
gli lo di che nel nella della sono su accanto due è
um uma dois em com da ao num numa ele ela
het een van op met naar aan zijn twee naast
och på av är två ett som med
jest dwa oraz przy
bir ve bu ile üzerinde
"""
_FOREIGN = frozenset(_LIST.split()) - STOP_WORDS
# English function words that other languages have too; the second half is not German.
_SHARED = frozenset(("am", "an", "in", "is", "so", "was"))
_AMBIGUOUS = _SHARED | {"a", "as", "by", "do", "has", "he", "i", "me", "no", "of", "on", "over"}
_LATIN = re.compile(r"[^\W\d_]+")


def text_warnings(text: str, *, english: bool) -> tuple[str, ...]:
    """What the text alone says, for an encoder that reads English, or any language.

    >>> text_warnings("ein Hund läuft am Strand", english=True), text_warnings("the", english=True)
    (('not English',), ('only stop words',))
    """
    found = []
    if english and _foreign(text):
        found.append(NOT_ENGLISH)
    if _shows_nothing(text):
        found.append(NO_CONTENT)
    return tuple(found)


def token_warnings(
    text: str,
    ids: Sequence[int],
    spans: Sequence[Span],
    *,
    unknown: int | None,
    spelled: Sequence[str] | None = None,
) -> tuple[str, ...]:
    """What the tokens say: words that the vocabulary does not hold; `spelled` is `spelled_out`, where it is known."""
    odd = spelled_out(text, spans, ids, unknown=unknown) if spelled is None or unknown in ids else spelled
    if not odd:
        return ()
    named = list(dict.fromkeys(odd))
    more = ", …" if len(named) > _SHOWN else ""
    return (f"unknown words: {', '.join(word[:20] for word in named[:_SHOWN])}{more}",)


def spelled_out(text: str, spans: Sequence[Span], ids: Sequence[int] = (), *, unknown: int | None = None) -> list[str]:
    """Words in order that fall into pieces so small that they mean nothing, or hold the token of unknown ones."""
    return [
        text[spans[word[0]][0] : spans[word[-1]][1]]
        for word in token_words(text, spans)
        if any(ids[number] == unknown for number in word if ids) or _falls_apart(text, spans, word)
    ]


def _falls_apart(text: str, spans: Sequence[Span], word: Sequence[int]) -> bool:
    """Whether a word of Latin letters falls into pieces so small that they mean nothing."""
    letters = text[spans[word[0]][0] : spans[word[-1]][1]]
    return len(word) >= _PIECES and len(letters) < 2 * len(word) and _is_latin(letters) and letters.isalpha()


def _shows_nothing(text: str) -> bool:
    """Whether a text has words, and all of them are stop words; most texts are known by their first two."""
    some = False
    for word in each_word(text):
        some = True
        if word not in STOP_WORDS:
            return False
    return some


def _foreign(text: str) -> bool:
    """Whether a text is hardly English: letters of another script, or function words of another language."""
    if not text.isascii():
        letters = [letter for letter in text if letter.isalpha()]
        strange = sum(not _is_latin(letter) for letter in letters)
        if 3 * strange > len(letters):
            return True
    # The case of ASCII letters changes no word's place.
    words = _LATIN.findall(text.lower()) if text.isascii() else [word.casefold() for word in _LATIN.findall(text)]
    if _FOREIGN.isdisjoint(words):
        return False
    foreign = [word for word in words if word in _FOREIGN]
    english = [word for word in words if word in STOP_WORDS]
    if len(foreign) >= 2 and len(foreign) > sum(word not in _AMBIGUOUS for word in english):
        return 3 * len(foreign) >= len(words)  # less is a name or a sign in an English sentence
    return bool(foreign) and all(word in _SHARED for word in english) and any(not word.isascii() for word in words)


def _is_latin(letters: str) -> bool:
    return all(letter.isascii() or unicodedata.name(letter, "").startswith("LATIN") for letter in letters)
