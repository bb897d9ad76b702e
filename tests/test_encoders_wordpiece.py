"""The WordPiece tokenizer of `mini` equals that of the library tokenizers."""

import random

import pytest

from msdscore.encoders.tokens import WordPiece
from msdscore.errors import WeightsError
from msdscore_torch.aligned.minilm import VOCABULARY_FILE, base_file, read_tokenizer

pytest.importorskip("msdscore_mini", reason="needs the weights of mini")

# Characters that the library's older Unicode tables know too.
BLOCKS = [
    (0x00, 0x17F), (0x180, 0x24F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x4FF), (0x531, 0x58A), (0x591, 0x5F4), (0x600, 0x61C), (0x61E, 0x6FF),
    (0x900, 0x97F), (0xE01, 0xE5B), (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1E00, 0x1FFE), (0x2000, 0x206F), (0x20A0, 0x20BE),
    (0x2190, 0x23FA), (0x2600, 0x27BF), (0x3000, 0x30FF), (0x4E00, 0x9FD5), (0xAC00, 0xD7A3), (0xF900, 0xFAD9), (0xFE00, 0xFE0F),
    (0xFF01, 0xFFEE), (0xE000, 0xE010), (0x1F1E6, 0x1F1FF), (0x1F300, 0x1F64F), (0x1F680, 0x1F6D0), (0x1F900, 0x1FAFF),
    (0x20000, 0x20100), (0x2F800, 0x2FA1D),
]  # fmt: skip
WORDS = [
    "a",
    "dog",
    "runs",
    "don't",
    "Café",
    "naïve",
    "STRASSE",
    "ﬁancé",
    "İstanbul",
    "O'Neill's",
    "3.5cm",
    "e.g.",
    "[CLS]",
    "[UNK]",
    "##ing",
    "x-ray",
    "snake_case",
    "supercalifragilistic",
]
TEXTS = [
    "", " ", "\t\n\r", "\x00\ufffd", "a\x0bb\x1cc\x85d", "e\u0301a\u0323\u0307", "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽", "كَلْبٌ على الشاطئ", "כֶּלֶב בַּחוֹף", "犬が走るdog犬",
    "한국어 강아지", "ß ẞ ΣΑΣ ǅ", "x" * 100, "y" * 101, "a" * 99 + "\u0301" * 5, "\u2028a\u00a0b\u3000c\u200bd\ufeffe", "¿qué?…“dog”—x",
]  # fmt: skip


@pytest.fixture(scope="module")
def library():
    tokenizers = pytest.importorskip("tokenizers")
    from tokenizers import models, normalizers, pre_tokenizers

    pieces = base_file(VOCABULARY_FILE).read_text(encoding="utf-8").split("\n")[:-1]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    result = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    result.normalizer, result.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    return result


def drawn_texts(count):
    draw = random.Random(0)
    for _ in range(count):
        parts = []
        for _ in range(draw.randint(1, 12)):
            first, last = draw.choice(BLOCKS)
            kind = draw.random()
            parts.append(draw.choice(WORDS) if kind < 0.4 else chr(draw.randint(first, last)) * draw.choice((1, 1, 2)))
            parts.append(draw.choice(("", " ", " ", ", ")))
        yield "".join(parts)


def test_ids_and_spans_equal_those_of_the_library(library):
    own = read_tokenizer()
    for text in (*TEXTS, *drawn_texts(10_000)):
        expected = library.encode(text, add_special_tokens=False)
        assert (own.encode(text).ids, own.encode(text).offsets) == (expected.ids, expected.offsets), ascii(text)


def test_vocabulary_without_an_unknown_token_is_rejected():
    with pytest.raises(WeightsError, match="UNK"):
        WordPiece(["a", "dog"])
