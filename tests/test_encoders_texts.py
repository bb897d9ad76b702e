"""Tokenisation: spans in the original caption, and tokens of windows in order."""

import gc
from weakref import ref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import BPE, Unigram
from tokenizers.normalizers import Replace
from tokenizers.pre_tokenizers import ByteLevel, Metaspace, Whitespace

from msdscore.encoders import tokens
from msdscore.encoders.tokens import TextSettings, Tokens, join_windows, pack, tokenise
from msdscore_torch.aligned.minilm import read_tokenizer
from msdscore_torch.checkpoints import load_tokenizer
from msdscore_torch.hub import find_checkpoint
from msdscore_torch.tokenizers import cuts_at_spaces, literal_backend, tokenise_all, unpack_tokens
from tiny_clip import make_tiny_clip, vocabulary

SETTINGS = TextSettings(context=8, prefix=(100,), suffix=(101,), pad=101)


@pytest.fixture(scope="module")
def backend(tmp_path_factory):
    return literal_backend(
        load_tokenizer(find_checkpoint(str(make_tiny_clip(tmp_path_factory.mktemp("clip"))))).backend_tokenizer
    )


@pytest.fixture(scope="module")
def mini_backend():
    return read_tokenizer()


def words(text):
    spans, at = [], 0
    for word in text.split():
        start = text.index(word, at)
        at = start + len(word)
        spans.append((start, at))
    return Tokens(text, tuple(range(len(spans))), tuple(spans))


UNICODE = [
    "a dog",
    "  Two   dogs\t",
    "👩‍👩‍👧‍👦 family",
    "🇫🇷🇩🇪",
    "كلب يجري على الشاطئ",
    "e\u0301te\u0301 cafe\u0301",
    "İstanbul ŞİŞLİ",
    "ﬁne ﬂoor",
    "한국어 \u1112\u1161\u11ab",
    "犬が走る。",
    "zero\u200bwidth \u202ertl\u202c",
    "<|startoftext|>x<|endoftext|>",
    "half \ud83d pair",
]


def check_spans(text, tokens):
    assert len(tokens.ids) == len(tokens.spans)
    for start, end in tokens.spans:
        assert 0 <= start < end <= len(text)
        assert text[start:end].strip(" \t\r\n")
    starts = [start for start, _ in tokens.spans]
    assert starts == sorted(starts)


@pytest.mark.parametrize("text", UNICODE)
def test_spans_refer_to_the_original_caption(backend, text):
    tokens = tokenise(backend, text)
    check_spans(text, tokens)
    seen = {i for start, end in tokens.spans for i in range(start, end)}
    assert {i for i, letter in enumerate(text) if not letter.isspace()} <= seen


@settings(max_examples=50, deadline=None)
@given(text=st.text(max_size=40))
def test_spans_of_any_text_are_inside_the_text(backend, text):
    check_spans(text, tokenise(backend, text))


def test_a_word_has_its_own_span(backend):
    text = "the  Dog, cat"
    assert [text[slice(*span)] for span in tokenise(backend, text).spans] == ["the", "Dog", ",", "cat"]


def test_special_tokens_in_captions_are_text(backend):
    tokens = tokenise(backend, "a <|endoftext|> b <|startoftext|>")
    special = {vocabulary()["<|startoftext|>"], vocabulary()["<|endoftext|>"]}
    assert not special & set(tokens.ids)


WRITTEN = st.one_of(
    st.text(max_size=40),
    st.text(st.characters(max_codepoint=127), max_size=40),
    st.lists(
        st.sampled_from(["dog", "Dog's", "3.5-year-old,", "xqzvb", "  ", "\n", "<|endoftext|>", "isn't", "\x1c"])
    ).map(" ".join),
)


def same_tokens(whole, again):
    assert (again.ids, again.spans) == (whole.ids, whole.spans)
    for unknown in (None, *whole.ids[:1]):
        settings = TextSettings(context=8, prefix=(), suffix=(), pad=0, unknown=unknown)
        assert pack([again], settings).layout == pack([whole], settings).layout


@settings(max_examples=120, deadline=None)
@given(text=WRITTEN)
def test_cached_words_give_the_tokens_of_the_caption(backend, text):
    assert cuts_at_spaces(backend)
    same_tokens(tokenise(backend, text), *tokenise_all(backend, [text]))


@settings(max_examples=120, deadline=None)
@given(text=WRITTEN)
def test_cached_words_of_mini_give_the_tokens_of_the_caption(mini_backend, text):
    same_tokens(tokenise(mini_backend, text), *tokens.tokenise_all(mini_backend, [text], {}))


def made(cutter, model=None, normalizer=None):
    made = Tokenizer(model or BPE())
    made.pre_tokenizer, made.normalizer, made.encode_special_tokens = cutter, normalizer, True
    return made


def test_words_are_cached_only_for_tokenizers_that_split_at_spaces():
    assert cuts_at_spaces(made(Whitespace()))
    assert not cuts_at_spaces(made(None))
    assert not cuts_at_spaces(made(Metaspace()))
    assert not cuts_at_spaces(made(ByteLevel(add_prefix_space=False)))
    assert not cuts_at_spaces(made(Whitespace(), Unigram()))
    assert not cuts_at_spaces(made(Whitespace(), BPE(dropout=0.1)))
    assert not cuts_at_spaces(made(Whitespace(), normalizer=Replace("a b", "c")))
    assert not cuts_at_spaces(object())
    added = made(Whitespace())
    added.add_tokens(["hot dog"])
    assert not cuts_at_spaces(added)


def test_word_cache_is_bounded():
    backend, known = made(Whitespace()), dict.fromkeys(map(str, range(tokens.MOST_WORDS - 1)), ((), (), ()))
    tokens.tokenise_all(backend, ["a", "x" * 99], known)
    assert (len(known), "a" in known, "x" * 99 in known) == (tokens.MOST_WORDS, True, False)
    tokens.tokenise_all(backend, ["b"], known)
    assert list(known) == ["b"]


def test_word_cache_does_not_keep_the_tokenizer_alive():
    backend = made(Whitespace())
    tokenise_all(backend, ["a"])
    gone = ref(backend)
    del backend
    gc.collect()
    assert gone() is None


@settings(deadline=None)
@given(st.lists(st.lists(st.sampled_from(["dog", "cat.", "ran"]), max_size=30).map(" ".join), min_size=1, max_size=5))
def test_tokens_are_in_caption_order(texts):
    captions = [words(text) for text in texts]
    batch = pack(captions, SETTINGS)
    assert batch.ids.shape[1] <= SETTINGS.context
    tensors = torch.from_numpy(batch.ids).unsqueeze(-1).float()
    back = unpack_tokens(batch.ids[..., None], batch)[..., 0]
    assert unpack_tokens(tensors, batch).squeeze(-1).tolist() == back.tolist()
    for caption, ids, mask, layout in zip(captions, back, batch.mask, batch.layout, strict=True):
        assert ids[mask].tolist() == list(caption.ids)
        assert layout.spans == caption.spans
        assert layout.cut == 0


def test_padding_is_masked_and_follows_the_end():
    batch = pack([words("a b c"), words("a")], SETTINGS)
    assert batch.ids.tolist() == [[100, 0, 1, 2, 101], [100, 0, 101, 101, 101]]
    assert batch.attention.sum(1).tolist() == [5, 3]
    assert batch.mask.tolist() == [[True, True, True], [True, False, False]]


def test_a_text_without_tokens_has_one_window_and_an_empty_mask():
    batch = pack([words(""), words("a")], SETTINGS)
    assert batch.mask.tolist() == [[False], [True]]
    assert batch.layout[0].windows == 1
    assert batch.ids[0].tolist() == [100, 101, 101]
    assert join_windows(torch.eye(2), batch.windows).tolist() == [[1, 0], [0, 1]]


def test_pooled_vectors_are_weighted_by_the_tokens_of_each_window():
    batch = pack([words("a b c d. e f"), words("x")], TextSettings(context=6, prefix=(100,), suffix=(101,), pad=0))
    assert batch.layout[0].windows == 2
    pooled = torch.tensor([[5.0, 0.0], [0.0, 0.1], [0.0, -3.0]])
    expected = torch.tensor([4.0, 2.0]) / 20**0.5
    torch.testing.assert_close(join_windows(pooled, batch.windows)[0], expected)
    assert join_windows(pooled, batch.windows)[1].tolist() == [0, -1]


def test_truncated_tokens_are_counted():
    settings = TextSettings(context=5, prefix=(100,), suffix=(101,), pad=101, long_text="cut")
    batch = pack([words("a b c d e"), words("a")], settings)
    assert [(item.windows, item.cut) for item in batch.layout] == [(1, 2), (1, 0)]
    assert batch.layout[0].spans == ((0, 1), (2, 3), (4, 5))
