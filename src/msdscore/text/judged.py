"""Words that an explanation does not judge, with the reason: counts, positions, names, quoted text and misspellings.

A count or a position is hardly easier to tell from a wrong one than by chance (docs/trust.md has the AUC of each kind
of words), and a name or quoted text is not in the image as the encoder sees it. Such words keep their part of the
score, which is small, but have no p-value, no probability and no colour.

>>> from msdscore.text.words import segment
>>> words = segment("three dogs on the left of Fido, a sign reads \'STOP\'")
>>> {words[number].text: reason for number, reason in unjudged(words, {"dog", "sign", "three"}).items()}
{'three': 'counts are not judged', 'left': 'positions are not judged', 'Fido': 'names are not judged', \
'STOP': 'text in the image is not judged'}
"""

import string
from collections.abc import Container, Sequence

from msdscore.text.words import NUMBERS, Word, stem

_PERSON_LIST = """
adult adults baby babies boy boys bride child children couple couples dad daughter elderly family families father
female females gentleman gentlemen girl girls grandmother groom guy guys human humans husband kid kids ladies lady male
males man men mom mother people person persons son teen teenager teenagers toddler wife woman women young
"""
PERSONS = frozenset(map(stem, _PERSON_LIST.split()))  # one family: sex and age are not judged
_COUNT_LIST = """
couple double dozen dozens first half hundred hundreds million nine number pair pairs row rows second single ten third
thousand thousands triple twelve eleven
"""
_COUNTS = frozenset(map(stem, (*_COUNT_LIST.split(), *NUMBERS)))
_POSITION_LIST = """
background backward bottom center centre corner edge end far foreground forward front left middle opposite rear right
side top
"""
_POSITIONS = frozenset(map(stem, _POSITION_LIST.split()))
_QUOTES = {'"': '"', "“": "”", "'": "'", "‘": "’", "«": "»"}
_ENDS = frozenset(".!?:")
_SHORTEST = 4  # letters of a word that is checked for its spelling


def unjudged(words: Sequence[Word], known: Container[str]) -> dict[int, str]:
    """Return why content words are not judged, by position; `known` are the stems of words that can be."""
    reasons: dict[int, str] = {}
    closing, begins = "", True
    for number, word in enumerate(words):
        if word.kind == "mark":
            if closing:
                closing = "" if word.text == closing else closing
            elif (end := _QUOTES.get(word.text)) and any(other.text == end for other in words[number + 1 :]):
                closing = end
            begins = begins or word.text in _ENDS
            continue
        of = number + 1 < len(words) and words[number + 1].stem == "of"
        if closing:
            reasons[number] = "text in the image is not judged"
        elif word.text[0].isdigit() or (word.stem in _COUNTS and (of or word.stem != "couple")):
            reasons[number] = "counts are not judged"
        elif word.stem in _POSITIONS:
            reasons[number] = "positions are not judged"
        elif word.text[0].isupper() and not begins and word.stem not in known:
            reasons[number] = "names are not judged"
        elif hint := spelling(word, known):
            reasons[number] = f"not a word that this encoder knows; did you mean {hint}?"
        begins = False
    return {number: reason for number, reason in reasons.items() if words[number].content}


def spelling(word: Word, known: Container[str]) -> str:
    """Return the known word that a misspelt one probably is, else an empty text.

    Misspelt are words that the encoder splits into pieces and that are one letter, or two swapped ones, from a known
    word; a different ending is not a mistake.

    >>> from msdscore.text.words import segment
    >>> (word,) = segment("tabel", [(0, 3), (3, 5)])
    >>> spelling(word, {"table", "cable"}), spelling(word._replace(tokens=(0,)), {"table"})
    ('table', '')
    """
    text = word.stem
    if len(word.tokens) < 2 or len(text) < _SHORTEST or not text.isascii() or not text.isalpha() or text in known:
        return ""
    splits = [(text[:at], text[at:]) for at in range(len(text))]
    swapped = (head + tail[1] + tail[0] + tail[2:] for head, tail in splits if len(tail) > 1)
    dropped = (head + tail[1:] for head, tail in splits[:-1])
    replaced = (head + letter + tail[1:] for head, tail in splits[:-1] for letter in string.ascii_lowercase)
    inserted = (head + letter + tail for head, tail in splits for letter in string.ascii_lowercase)
    near = (other for others in (swapped, dropped, replaced, inserted) for other in others)
    return next((other for other in near if other in known), "")
