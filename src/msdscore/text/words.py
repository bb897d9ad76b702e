"""Words and marks of captions, with stems, stop words, negation and tokens; and words that are not judged.

Compounds are one word, as a reader sees them; `compounds=False` splits them at hyphens and decimal points, as
vocabularies and counts of words do. Marks are in the list too, so every token has exactly one owner and sums over words
are sums over tokens.

>>> [word.text for word in segment("A dog's 3.5-year-old toy, isn't it?")]
['A', "dog's", '3.5-year-old', 'toy', ',', "isn't", 'it', '?']

Each word has its stem and whether it is a content word, negated, and new:

>>> words = segment("A dog, no cats. Two dogs!", compounds=False)
>>> [(word.stem, word.negated, word.new) for word in words if word.content]
[('dog', False, True), ('cat', True, True), ('two', False, True), ('dog', False, False)]

With the character spans of an encoder's tokens, each word has the indices of its tokens:

>>> [(word.text, word.tokens) for word in segment("playing.", [(0, 4), (4, 7), (7, 8)])]
[('playing', (0, 1)), ('.', (2,))]

`phrases` groups content words. `content_tokens` is the rule by which `mini` was trained to ignore tokens.
"""

import re
import string
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from msdscore.text.normal import Span as Span
from msdscore.text.normal import clean, original_spans

# Ignored in the training of `mini`: words without visual content, and words about the image itself.
_LIST = """
a about above across after against all along also am among an and another any anyone anything apart appear appears are
aren't around as at away back be been before behind being below beside besides between both but by can can't could d
did do does doesn't doing don't done down during each every everyone few for from get gets getting go goes going gone
got had has have having he he's her here him his how i if image in inside into is isn't it it's its just let lets like
ll m made make makes making many may me might more most much must my near next no nor not of off on one one's ones
onto or other others our out outside over own per photo photograph picture put puts putting re s same scene see seem
seems seen sees several shall she she's should show showing shown shows so some somebody someone something such t take
taken takes taking than that that's the their theirs them then there there's these they this those through to together
too toward towards under up upon us various ve very via view was wasn't we were what when where which while whilst who
whom whose why will with within without would yes you your
"""
STOP_WORDS = frozenset(_LIST.split())
_NEGATIONS = frozenset({"no", "not", "without", "nobody", "none", "never", "nothing", "neither", "nor", "cannot"})
_NEGATED_WORDS = 3  # after a negation, up to the next of these marks
_BREAKS = frozenset(".,;:!?")
_BRIDGE = "of"
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white", "grey")
NUMBERS = ("two", "three", "four", "five", "six", "seven", "eight")

WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
# Equivalent to `_split_any` for ASCII captions, many times as fast.
_COMPOUNDS = re.compile(r"(\w+(?:(?:['-]|(?<=\d)[.,:](?=\d))\w+)*)|\S")
_SIMPLE = re.compile(r"([^\W_]+(?:'[^\W_]+)*)|\S")
# Between two letters or digits these belong to the word: don't, and in compounds black-and-white, 3.5.
_JOINERS = {"'": "'", "’": "'", "-": "-", "‐": "-", "‑": "-", ".": ".", ",": ".", ":": ".", "_": "_", "\u200d": "j"}
# Patterns of character classes (see `_class_of`). Marks and zero-width joiners belong to the character before them; a
# mark may be between a letter and a joiner of words.
_CLASS_COMPOUNDS, _CLASS_SIMPLE = (
    re.compile(rf"([{first}](?:m*j[mj]*|(?:[{first}m]|{joined})*)|[us][mj]*)|\S[mj]*")
    for first, joined in (
        ("ld_", r"(?<=[ldm_])['-](?=[ldm_])|(?<=d)\.(?=d)"),
        ("ld", "(?<=[ldm])'(?=[ldm])"),
    )
)
# Scripts written without spaces; each of their characters is a word.
_UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")

_Located = tuple[int, int, bool]  # start, end, whether it is a word


class Word(NamedTuple):
    """A word or a mark of a caption at characters `start` to `end`; a tuple for speed."""

    text: str
    start: int
    end: int
    stem: str  # in lower case and without the s of a plural; empty for a mark
    content: bool  # names something to see
    negated: bool  # within reach of "no", "without", "isn't"
    new: bool  # the first of its stem in the caption
    tokens: tuple[int, ...] = ()  # indices of its tokens

    @property
    def kind(self) -> str:
        """`word` or `mark`."""
        return "word" if self.stem else "mark"


def segment(caption: str, spans: Sequence[Span] = (), *, compounds: bool = True) -> tuple[Word, ...]:
    """Split a caption into words and marks in order, each with its tokens; white space belongs to none.

    A token belongs to the word that it shares most characters with, else to the nearest one. Invisible characters
    inside a word do not change it; spans refer to the original caption.
    """
    cleaned = clean(caption)
    plain = caption if cleaned is None else cleaned.text
    found = _split(plain, compounds=compounds)
    located = found
    if cleaned is not None:
        original = original_spans(cleaned, [part[:2] for part in found])
        located = [(*span, part[2]) for span, part in zip(original, found, strict=True)]
    owned = _owned(spans, located) if spans and located else {}
    words, seen, reach = [], set(), 0
    for number, (start, end, is_word) in enumerate(located):
        text, tokens = caption[start:end], tuple(owned.get(number, ()))
        if not is_word:
            reach = 0 if text in _BREAKS else reach
            words.append(Word(text, start, end, "", content=False, negated=False, new=False, tokens=tokens))
            continue
        base, content, denies = _meaning(plain[slice(*found[number][:2])])
        words.append(Word(text, start, end, base, content, reach > 0, base not in seen, tokens))
        seen.add(base)
        reach = _NEGATED_WORDS if denies else max(reach - 1, 0)
    return tuple(words)


@lru_cache(maxsize=1 << 15)
def _meaning(text: str) -> tuple[str, bool, bool]:
    """Return the stem of a word, whether it is a content word, and whether it negates the following words."""
    word = text.casefold().replace("’", "'")
    if not word.isascii():
        # Accents must not hide a word: "dóg" is judged as "dog".
        bare = "".join(sign for sign in unicodedata.normalize("NFD", word) if not unicodedata.combining(sign))
        word = bare if bare.isascii() else word
    denies = word in _NEGATIONS or word.endswith("n't")
    return stem(word), word not in STOP_WORDS and not denies, denies


def phrases(words: Sequence[Word]) -> tuple[tuple[int, ...], ...]:
    """Return the word indices of every phrase: adjacent content words, joined over "of".

    >>> words = segment("a large cup of milk on the table, outdoors")
    >>> [" ".join(words[number].text for number in phrase) for phrase in phrases(words)]
    ['large cup of milk', 'table', 'outdoors']
    """
    groups: list[tuple[int, ...]] = []
    current: list[int] = []
    for number, word in enumerate(words):
        follows = number + 1 < len(words) and words[number + 1].content
        if word.content or (current and follows and word.stem == _BRIDGE):
            current.append(number)
        elif current:
            groups.append(tuple(current))
            current = []
    return (*groups, tuple(current)) if current else tuple(groups)


def best_owner(span: Span, starts: Sequence[int], ends: Sequence[int], among: range) -> int:
    """Return the word that shares most characters with a span, else the nearest; the first of equals."""
    start, end = span

    def fit(number: int) -> tuple[int, int]:
        shared = min(end, ends[number]) - max(start, starts[number])
        return max(shared, 0), -max(starts[number] - end, start - ends[number], 0)

    return max(among, key=fit)


def _owned(spans: Sequence[Span], located: Sequence[_Located]) -> dict[int, list[int]]:
    """Return tokens by the index of their word; nearly always each is within one word, in order."""
    owned: dict[int, list[int]] = {}
    number, (begin, stop, _) = 0, located[0]
    for token, (start, end) in enumerate(spans):
        while start >= stop and number + 1 < len(located):
            number += 1
            begin, stop, _ = located[number]
        if not begin <= start < end <= stop:
            break
        owned.setdefault(number, []).append(token)
    else:
        return owned
    starts, ends = [part[0] for part in located], [part[1] for part in located]
    owned = {}
    for token, (start, end) in enumerate(spans):
        first, last = bisect_right(ends, start), bisect_left(starts, end)
        if last == first + 1 and start < end:
            number = first  # the only one that shares characters with it
        else:
            near = range(max(first - 1, 0), min(max(last, first + 1), len(starts)))
            number = best_owner((start, end), starts, ends, near)
        owned.setdefault(number, []).append(token)
    return owned


def stem(word: str) -> str:
    """Remove the plural s of a lower-case word, so that "dog" and "dogs" have the same stem.

    >>> stem("dogs"), stem("grass"), stem("bus")
    ('dog', 'grass', 'bus')
    """
    return word[:-1] if len(word) > 3 and is_plural(word) else word


def is_plural(word: str) -> bool:
    """Whether a word ends in a plural s."""
    return word.endswith("s") and not word.endswith("ss")


def each_word(caption: str) -> Iterator[str]:
    """Iterate over the words of a caption in lower case, split at hyphens.

    >>> list(each_word("The sky-blue kayak."))
    ['the', 'sky', 'blue', 'kayak']
    """
    return (match.group().casefold() for match in WORD.finditer(caption))


def content_words(caption: str) -> frozenset[str]:
    """Return the content words of a caption.

    >>> sorted(content_words("The dog is on a beach."))
    ['beach', 'dog']
    """
    return frozenset(each_word(caption)) - STOP_WORDS


def token_groups(caption: str, spans: Sequence[Span]) -> list[list[int]]:
    """Group token indices into runs whose spans touch with letters or digits on both sides."""
    groups: list[list[int]] = []
    for number, (start, _) in enumerate(spans):
        touches = number > 0 and spans[number - 1][1] >= start > 0
        if touches and caption[start - 1].isalnum() and caption[start : start + 1].isalnum():
            groups[-1].append(number)
        else:
            groups.append([number])
    return groups


def token_contents(caption: str, spans: Sequence[Span]) -> list[str]:
    """Return the content word of each token in lower case, split at apostrophes too; empty if there is none.

    >>> token_contents("a Dog on grass", [(0, 1), (2, 5), (6, 8), (9, 12), (12, 14)])
    ['', 'dog', '', 'grass', 'grass']
    """
    contents = [""] * len(spans)
    for group in token_groups(caption, spans):
        spelled = caption[spans[group[0]][0] : spans[group[-1]][1]].lower()
        if spelled not in STOP_WORDS and any(character.isalnum() for character in spelled):
            for number in group:
                contents[number] = spelled
    return contents


def content_tokens(caption: str, spans: Sequence[Span]) -> tuple[int, ...]:
    """Return the indices of content-word tokens; all tokens if the caption has only stop words.

    >>> content_tokens("a dog on grass", [(0, 1), (2, 5), (6, 8), (9, 12), (12, 14)])
    (1, 3, 4)
    """
    chosen = tuple(number for number, content in enumerate(token_contents(caption, spans)) if content)
    return chosen or tuple(range(len(spans)))


def _split(text: str, *, compounds: bool) -> list[_Located]:
    """Return the words and marks of a text; an ASCII text is split by regular expressions, for speed."""
    if not text.isascii():
        return list(_split_any(text, compounds=compounds))
    pattern = _COMPOUNDS if compounds else _SIMPLE
    located: list[_Located] = []
    at = 0
    for part in text.split(" "):
        end = at + len(part)
        if part.isalnum():
            located.append((at, end, True))
        elif part:
            located += [(*match.span(), bool(match.lastindex)) for match in pattern.finditer(text, at, end)]
        at = end + 1
    return located


def _split_any(text: str, *, compounds: bool) -> Iterator[_Located]:
    """The same for a text in any script, by the classes of its characters."""
    pattern = _CLASS_COMPOUNDS if compounds else _CLASS_SIMPLE
    for match in pattern.finditer("".join(map(_class_of, text))):
        yield *match.span(), bool(match.lastindex)


@lru_cache(maxsize=1 << 12)
def _class_of(character: str) -> str:
    """The class of a character: l letter, d digit, u character of an unspaced script, m combining mark, s symbol.

    Joiners of words are represented by an ASCII one, white space by a space, and everything else by x.
    """
    category = unicodedata.category(character)
    if character.isalnum():
        unspaced = ord(character) > 0x0E00 and unicodedata.name(character, "").startswith(_UNSPACED)
        return "u" if unspaced else "d" if character.isdigit() else "l"
    if category[0] == "M":
        return "m"
    # Symbols such as emoji can be shown in an image; punctuation cannot.
    other = " " if character.isspace() else "s" if category == "So" else "x"
    return _JOINERS.get(character, other)


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
_SENTENCE_ENDS = frozenset(".!?:")
_SHORTEST = 4  # letters of a word that is checked for its spelling


def unjudged(words: Sequence[Word], known: Container[str]) -> dict[int, str]:
    """Return why content words are not judged, by position; `known` are the stems of words that can be.

    Counts, positions, names, quoted text and misspelt words are part of the score, but have no p-value, no probability
    and no colour. Right counts and positions are hardly distinguished from wrong ones (docs/trust.md has the AUC of
    each kind of words), and names and quoted text are not in the image as the encoder sees it.

    >>> words = segment("three dogs on the left of Fido, a sign reads \'STOP\'")
    >>> {words[number].text: reason for number, reason in unjudged(words, {"dog", "sign", "three"}).items()}
    {'three': 'counts are not judged', 'left': 'positions are not judged', 'Fido': 'names are not judged', \
'STOP': 'text in the image is not judged'}
    """
    reasons: dict[int, str] = {}
    closing, begins = "", True
    for number, word in enumerate(words):
        if not word.stem:  # a mark
            if closing:
                closing = "" if word.text == closing else closing
            elif (end := _QUOTES.get(word.text)) and any(other.text == end for other in words[number + 1 :]):
                closing = end
            begins = begins or word.text in _SENTENCE_ENDS
            continue
        first, begins = begins, False
        if not word.content:
            continue
        of = number + 1 < len(words) and words[number + 1].stem == "of"
        if closing:
            reasons[number] = "text in the image is not judged"
        elif word.text[0].isdigit() or (word.stem in _COUNTS and (of or word.stem != "couple")):
            reasons[number] = "counts are not judged"
        elif word.stem in _POSITIONS:
            reasons[number] = "positions are not judged"
        elif not first and word.text[0].isupper() and word.stem not in known:
            reasons[number] = "names are not judged"
        elif len(word.tokens) > 1 and (hint := spelling(word, known)):  # words of one token are known
            reasons[number] = f"not a word that this encoder knows; did you mean {hint}?"
    return reasons


def spelling(word: Word, known: Container[str]) -> str:
    """Return the known word that a misspelt one probably is, else an empty text.

    Misspelt are words that the encoder splits into pieces and that are one letter, or two swapped ones, from a known
    word; a different ending is not a mistake.

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
