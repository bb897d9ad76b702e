"""Warnings about a caption: its language, its form, and letters or words that an encoder cannot read.

Every image-text score can be raised by true words that do not form a sentence, and by letters that no reader sees.
"""

import re
import unicodedata
from collections.abc import Sequence

from msdscore.text.captions import (
    ENGLISH,
    FORM_WARNINGS,
    form_warnings,
    is_latin,
    is_plain_english,
    language_of,
    tokens,
    trails_off,
)
from msdscore.text.normal import clean, invisible, loose_marks
from msdscore.text.words import STOP_WORDS, WORD, Span, content_words, each_word, token_groups

NOT_ENGLISH = "not English"
NO_CONTENT = "only stop words"
NO_WORDS = "no words"
INVISIBLE = "invisible characters"
STRAY_MARKS = "stray marks"
LOOK_ALIKE = "look-alike letters"
BRIEF = "few content words"  # only for the guard
APPENDED = "words appended"  # only for the guard: as a warning it would be wrong too often
# Warnings about texts that are optimised for the score.
GUARDED = FORM_WARNINGS | {INVISIBLE, STRAY_MARKS, LOOK_ALIKE, APPENDED, BRIEF}
GUARD = 1.0  # subtracted from the reward of such a text
BOILERPLATE = "assistant boilerplate"
FEWEST, BREVITY = 5, 0.1  # content words, and the share of the guard that is subtracted for every one that is missing
UNFAMILIAR = "unlike the images that this encoder knows"
NOTHING_JUDGED = "no judged word"  # every word is a stop word, negated, or of a kind that is not judged
WITHHOLDING = FORM_WARNINGS | {UNFAMILIAR, NOTHING_JUDGED}  # warnings of captions and images that get no verdict

_SHOWN = 3  # unknown words that are listed
_PIECES = 4  # a word that is split into at least 4 subwords of under two letters on average is unknown to the encoder

_LETTERS = re.compile(r"[^\W\d_]+")
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
    (('assistant boilerplate',), ('no words',))
    """
    caption, cleaned = text, clean(text)
    text = caption if cleaned is None else cleaned.text
    lower = text.lower()
    words = tokens(lower)
    readable = language_of(text) in (ENGLISH, None) if english else is_plain_english(words)
    warnings = [NOT_ENGLISH] if english and not readable else []
    if all(word in STOP_WORDS for word in each_word(text)):
        if WORD.search(text):
            warnings.append(NO_CONTENT)
        elif text.strip() and not any(unicodedata.category(sign)[0] in "LNS" for sign in text):
            warnings.append(NO_WORDS)
    warnings += () if cleaned is None else mark_warnings(caption)
    # Words that mix Latin letters with look-alikes of another script; "μ" is a unit.
    for word in () if text.isascii() else _LETTERS.findall(text):
        scripts = set() if "μ" in word else {unicodedata.name(letter, "").partition(" ")[0] for letter in word}
        if "LATIN" in scripts and not scripts.isdisjoint(_ALIKE):
            warnings.append(LOOK_ALIKE)
            break
    if _SELF.search(lower):
        warnings.append(BOILERPLATE)
        return tuple(warnings)
    return (*warnings, *form_warnings(words, english=readable))


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
    return (APPENDED,) if is_plain_english(words) and trails_off(words) else ()


def guard_reward(
    reward: float | None, text: str, guard: float, warnings: Sequence[str] = ()
) -> tuple[float | None, tuple[str, ...]]:
    """Subtract `guard` from the reward of a text with `guarded_warnings`, and return these too.

    A text of few content words loses a part of it, since "a dog" must not beat a detailed true caption. There is no
    reward for a text that the encoder cannot read, by the `warnings` of its score.

    >>> guard_reward(0.5, "dog beach ball sand ocean wave sky", GUARD), guard_reward(0.5, "the dog", GUARD)
    ((-0.5, ('list of words',)), (0.09999999999999998, ('few content words',)))
    >>> guard_reward(0.5, "a black dog runs along a sandy beach", GUARD)
    (0.5, ())
    >>> guard_reward(0.5, "ein Hund am Strand", GUARD, [NOT_ENGLISH])
    (None, ())
    """
    if reward is None or NOT_ENGLISH in warnings:
        return None, ()
    found = guarded_warnings(text)
    missing = 0 if found else FEWEST - len(content_words(text))
    if missing > 0:
        return reward - BREVITY * missing * guard, (BRIEF,)
    return reward - guard if found else reward, found


def withheld(warnings: Sequence[str]) -> tuple[str, ...]:
    """Return those of the warnings of a score that withhold its verdict.

    >>> withheld(["repeated", "unknown words: xyz"])
    ('repeated',)
    """
    return tuple(warning for warning in warnings if warning in WITHHOLDING)


def mark_warnings(text: str) -> tuple[str, ...]:
    """Return warnings about characters that are removed before tokenisation.

    >>> mark_warnings("a d\\ufe0fog"), mark_warnings("a do\\u0338g"), mark_warnings("a café ❤️")
    (('invisible characters',), ('stray marks',), ())
    """
    hidden = (INVISIBLE,) if invisible(text) else ()
    return (*hidden, STRAY_MARKS) if loose_marks(text) else hidden


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
        small = len(group) >= _PIECES and len(word) < 2 * len(group) and word.isalpha() and is_latin(word)
        if small or any(ids[number] == unknown for number in group if ids):
            odd.append(word)
    return odd
