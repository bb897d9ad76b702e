"""Removal of invisible characters from captions, with offsets into the original caption.

Invisible characters change tokens and words, and so a score, without a visible change. They are removed before
tokenisation: default-ignorable code points of Unicode and control characters. Accents become one
character with their letter (NFC); marks on an ASCII character that form no such character are dropped. Joiners and
selectors are preserved if a script or an emoji needs them.

>>> clean("a d\\u200bog")
Clean(text='a dog', starts=(0, 1, 2, 4, 5, 6))
"""

import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

Span = tuple[int, int]

# Default-ignorable code points (Unicode 16, DerivedCoreProperties) and controls other than white space.
_IGNORABLE = (
    "\u0000-\u0008\u000e-\u001b\u007f-\u0084\u0086-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_ODD = re.compile(f"[{_IGNORABLE}]")
_SELECTORS, _JOINERS = frozenset("\ufe0e\ufe0f"), frozenset("\u200c\u200d")
_KEYCAP, _KEYS = "\u20e3", frozenset("#*0123456789")
# The flag of a region: a black flag, up to six tags, and the tag that ends them.
_BLACK_FLAG, _TAGS = "\U0001f3f4", range(0xE0020, 0xE0080)
_FLAG = re.compile(_BLACK_FLAG + "[\U000e0020-\U000e007f]{0,6}\U000e007f(?![\U000e0020-\U000e007f])")
_JAMO = range(0x1160, 0x1200)  # vowels and finals of Hangul, which join the letter before them


class Clean(NamedTuple):
    """A caption without invisible characters; `starts[i]` is the offset of character i in the original caption.

    The last entry is the end of the caption. Removed characters belong to the character before them.
    """

    text: str
    starts: tuple[int, ...]


def clean(caption: str) -> Clean | None:
    """Remove invisible characters; None if there are none and the caption is composed (NFC)."""
    if caption.isascii() and caption.isprintable():
        return None
    if not _ODD.search(caption) and unicodedata.is_normalized("NFC", caption) and not _has_loose_marks(caption):
        return None
    offsets = [at for at, sign in enumerate(caption) if not _ODD.match(sign) or _belongs(caption, at)]
    visible = [caption[at] for at in offsets]
    text, starts, first = "", list[int](), 0
    while first < len(visible):
        end = first + 1
        while end < len(visible) and (unicodedata.category(visible[end])[0] == "M" or ord(visible[end]) in _JAMO):
            end += 1
        composed = unicodedata.normalize("NFC", "".join(visible[first:end]))
        if composed[0].isascii() and composed[0] not in _KEYS:
            composed = composed[0]  # marks that do not combine with an ASCII character are dropped
        text += composed
        # If composition shortens the text, the first new character covers the removed ones.
        starts += [offsets[first], *offsets[end - len(composed) + 1 : end]][: len(composed)]
        first = end
    return None if text == caption else Clean(text, (*starts, len(caption)))


def invisible(caption: str) -> bool:
    """Whether a caption has invisible characters that no script and no emoji needs."""
    return not (caption.isascii() and caption.isprintable()) and any(
        not _belongs(caption, match.start()) for match in _ODD.finditer(caption)
    )


def loose_marks(caption: str) -> bool:
    """Whether combining marks are on characters that have them in no language.

    >>> loose_marks("a cafe\\u0301"), loose_marks("a d\\u0301o\\u0301g\\u0338")
    (False, True)
    """
    return not caption.isascii() and _has_loose_marks(unicodedata.normalize("NFC", _ODD.sub("", caption)))


def _has_loose_marks(text: str) -> bool:
    return any(unicodedata.combining(mark) and base.isascii() for base, mark in zip(" " + text, text, strict=False))


def _belongs(caption: str, at: int) -> bool:
    """Whether the ignorable character at an offset is part of an emoji, or joins letters of a script that needs it."""
    character, before, after = caption[at], caption[at - 1 : at], caption[at + 1 : at + 2]
    if character in _SELECTORS and after == _KEYCAP:
        return before in _KEYS
    if not before or before.isascii():
        return False
    if character in _SELECTORS:
        return unicodedata.category(before) in ("So", "Sm", "Po")
    if character in _JOINERS:
        latin = unicodedata.name(before, "").startswith("LATIN")
        return bool(after) and not after.isascii() and not _ODD.match(after) and not latin
    flag = _FLAG.match(caption, max(caption.rfind(_BLACK_FLAG, 0, at), 0)) if ord(character) in _TAGS else None
    return flag is not None and at < flag.end()


def original_spans(cleaned: Clean, spans: Sequence[Span]) -> tuple[Span, ...]:
    """Map spans of the clean text to spans of the original caption."""
    return tuple((cleaned.starts[start], cleaned.starts[end]) for start, end in spans)
