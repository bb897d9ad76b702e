"""WordPiece tokenizer of uncased BERT models, with character spans.

Written here because the library `tokenizers` installs a dozen packages for a hub that is not used; a test compares
ids and spans with that library.
"""

import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from msdscore.errors import WeightsError

_LONGEST = 100  # letters of a word; a longer one is unknown
_UNKNOWN = "[UNK]"
_CONTROL = ("Cc", "Cf", "Co", "Cs")
_IDEOGRAPHS = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip

Word = list[tuple[str, int]]  # normalised characters, each with its position in the text


class Encoding(NamedTuple):
    """Token ids of a text and their character spans."""

    ids: list[int]
    offsets: list[tuple[int, int]]


class WordPiece:
    """Tokenizer that cleans, lower-cases and splits a text, then matches the longest pieces of its vocabulary."""

    independent_words = True  # words between spaces are tokenised independently of each other

    def __init__(self, vocabulary: Sequence[str]) -> None:
        self._ids = {piece: number for number, piece in enumerate(vocabulary)}
        if _UNKNOWN not in self._ids:
            raise WeightsError(f"the vocabulary has no {_UNKNOWN}; install its package again")

    @classmethod
    def read(cls, path: Path) -> "WordPiece":
        """Read a vocabulary with one piece per line."""
        return cls(path.read_text(encoding="utf-8").rstrip("\n").split("\n"))

    def encode(self, text: str, *, add_special_tokens: bool = False) -> Encoding:
        """Tokenise a text; special tokens are never added, and their spelling is read as characters."""
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        for word in _words(text):
            for number, start, end in self._pieces(word):
                ids.append(number)
                offsets.append((word[start][1], word[end - 1][1] + 1))
        return Encoding(ids, offsets)

    def _pieces(self, word: Word) -> list[tuple[int, int, int]]:
        """Id, start and end of each piece of a word; one unknown token if it cannot be split."""
        letters, pieces, start = "".join(letter for letter, _ in word), list[tuple[int, int, int]](), 0
        while start < len(letters) <= _LONGEST:
            prefix = "##" if start else ""
            for end in range(len(letters), start, -1):
                number = self._ids.get(prefix + letters[start:end])
                if number is not None:
                    break
            else:
                break
            pieces.append((number, start, end))
            start = end
        return pieces if start == len(letters) else [(self._ids[_UNKNOWN], 0, len(letters))]


def _words(text: str) -> Iterator[Word]:
    """Words and punctuation marks of a text, normalised."""
    word: Word = []
    for position, character in enumerate(text):
        for letter in _normalised(character):
            if letter.isspace() or _is_punctuation(letter):
                if word:
                    yield word
                    word = []
                if not letter.isspace():
                    yield [(letter, position)]
            else:
                word.append((letter, position))
    if word:
        yield word


@lru_cache(maxsize=1 << 16)
def _normalised(character: str) -> str:
    """A character without accents and in lower case; a space for white space, nothing for control characters."""
    if character in "\t\n\r":
        return " "
    if character == "\ufffd" or unicodedata.category(character) in _CONTROL:
        return ""
    if character.isspace():
        return " "
    parts = unicodedata.normalize("NFD", character)
    plain = "".join(part.lower() for part in parts if unicodedata.category(part) != "Mn")
    is_ideograph = any(first <= ord(character) <= last for first, last in _IDEOGRAPHS)
    return f" {plain} " if is_ideograph else plain


@lru_cache(maxsize=1 << 16)
def _is_punctuation(letter: str) -> bool:
    return (letter.isascii() and letter.isprintable() and not letter.isalnum() and letter != " ") or (
        unicodedata.category(letter)[0] == "P"
    )
