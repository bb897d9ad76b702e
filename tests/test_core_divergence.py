from functools import cache
from unittest import mock

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import reference
from msdscore.core import divergence, embeddings
from msdscore.core.divergence import diverge, fit_all, total
from msdscore.core.mixture import FitSettings
from point_sets import point_set, ragged, take, terms
from test_core_mixture import seeds_of

IMAGE, TEXT = FitSettings(components=3), FitSettings(components=2)


def both(images, texts, image_of, text_of=None, **options):
    return diverge(
        images, texts, image_of, torch.arange(len(image_of)).to(image_of) if text_of is None else text_of,
        image_fit=FitSettings(components=3, **options), text_fit=FitSettings(components=2, **options),
    )  # fmt: skip


ragged_sets = st.lists(st.lists(st.integers(1, 10), min_size=1, max_size=4), min_size=1, max_size=4)


@given(captions=ragged_sets, seed=st.integers(0, 30), init=st.sampled_from(["spread", "sample"]))
@settings(max_examples=25)
def test_agrees_with_the_reference_on_ragged_sets(captions, seed, init):
    images = ragged([5 + 3 * i for i in range(len(captions))], 12, seed=seed)
    texts = ragged([size for one in captions for size in one], 12, seed=seed + 1, extra=1)
    owner = torch.repeat_interleave(torch.arange(len(captions)), torch.tensor([len(one) for one in captions]))
    result = both(images, texts, owner, init=init)
    patch_seeds, token_seeds = seeds_of(images, 6, init), seeds_of(texts, 4, init)
    for caption, image in enumerate(owner.tolist()):
        patches = images.points[image][images.mask[image]].numpy()
        tokens = texts.points[caption][texts.mask[caption]].numpy()
        expected = reference.divergences(patches, tokens, patch_seeds[image].tolist(), token_seeds[caption].tolist())
        assert (result.coverage[caption].item(), result.support[caption].item()) == pytest.approx(expected, abs=1e-9)


def test_divergence_of_a_mixture_from_itself_is_exactly_zero():
    side = ragged([9, 4], 10)
    mixture = fit_all(side, IMAGE)
    assert torch.equal(
        terms(side.points, side.mask, own=mixture, other=mixture), torch.zeros(2, 9, dtype=torch.float64)
    )


@given(
    sizes=st.lists(st.integers(1, 40), min_size=2, max_size=6),
    seed=st.integers(0, 20),
    room=st.sampled_from([1, 3000, 1 << 26]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    init=st.sampled_from(["spread", "sample"]),
)
@settings(max_examples=15)
def test_items_are_bitwise_independent_of_the_batch(sizes, seed, room, dtype, init):
    """Batch, order, padding and block size change no bit on one device and dtype."""
    patches = [7 + size for size in sizes]
    images, texts = ragged(patches, 16, seed=seed, dtype=dtype), ragged(sizes, 16, seed=seed + 1, dtype=dtype)
    alone = [both(take(images, [i]), take(texts, [i]), torch.tensor([0]), init=init) for i in range(len(sizes))]
    order = torch.randperm(len(sizes), generator=torch.Generator().manual_seed(seed))
    with mock.patch.object(embeddings, "BLOCK_BYTES", room):
        together = both(images, take(texts, order), order, init=init)
    for position, item in enumerate(order.tolist()):
        width, length = patches[item], sizes[item]
        single = alone[item]
        assert torch.equal(together.coverage_terms[position, :width], single.coverage_terms[0, :width])
        assert torch.equal(together.support_terms[position, :length], single.support_terms[0, :length])
        assert torch.equal(together.coverage[position], single.coverage[0])
        assert torch.equal(together.support[position], single.support[0])


def several_sides(dtype):
    return ragged([49, 7, 20, 9], 16, dtype=dtype), ragged([3, 12, 5, 30, 1], 16, seed=1, dtype=dtype)


@cache
def of_one_pair(image, text, dtype):
    images, texts = several_sides(dtype)
    return both(take(images, [image]), take(texts, [text]), torch.tensor([0]))


@given(
    rows=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=30),
    room=st.sampled_from([1, 3000, 1 << 26]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
@settings(max_examples=15)
@example(rows=[(image, text) for image in range(4) for text in range(5)], room=3000, dtype=torch.float32)
def test_shared_captions_equal_separate_pairs_bitwise(rows, room, dtype):
    images, texts = several_sides(dtype)
    image_of, text_of = torch.tensor(rows).T
    with mock.patch.object(embeddings, "BLOCK_BYTES", room):
        together = both(images, texts, image_of, text_of)
    for pair, (image, text) in enumerate(rows):
        alone = of_one_pair(image, text, dtype)
        assert torch.equal(together.coverage_terms[pair], alone.coverage_terms[0])
        assert torch.equal(together.support_terms[pair], alone.support_terms[0])
        assert torch.equal(together.coverage[pair], alone.coverage[0])
        assert torch.equal(together.support[pair], alone.support[0])


def test_each_item_is_fitted_once():
    images, texts = ragged([9, 6], 12), ragged([5, 3, 4], 12, seed=1)
    image_of, text_of = torch.cartesian_prod(torch.arange(2), torch.arange(3)).T
    with mock.patch.object(divergence, "fit", wraps=divergence.fit) as fitted:
        result = both(images, texts, image_of.contiguous(), text_of.contiguous())
    assert sum(len(call.args[0]) for call in fitted.call_args_list) == 2 + 3
    assert (len(result.image_mixtures), len(result.text_mixtures), len(result.coverage)) == (2, 3, 6)


def test_no_pairs_give_no_terms():
    nothing = torch.zeros(0, dtype=torch.int64)
    result = both(ragged([9, 6], 12), ragged([5, 3, 4], 12, seed=1), nothing)
    assert result.coverage_terms.shape == (0, 9)
    assert result.support_terms.shape == (0, 5)
    assert result.coverage.shape == result.support.shape == (0,)


@given(size=st.integers(0, 70), extra=st.integers(0, 70), company=st.integers(1, 9), seed=st.integers(0, 99))
def test_sum_of_terms_is_independent_of_padding_and_batch(size, extra, company, seed):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.zeros(company, size + extra)
    rows[:, :size] = torch.randn(company, size, generator=generator)
    together = total(rows)
    assert torch.allclose(together, rows.sum(dim=1), atol=1e-4)
    for row in range(company):
        assert torch.equal(total(rows[row : row + 1, :size]), together[row : row + 1])


def test_garbage_in_the_padding_changes_nothing():
    clean, dirty = ragged([5, 9], 8, garbage=0.0), ragged([5, 9], 8, garbage=100.0)
    points = torch.where(clean.mask.unsqueeze(-1), clean.points, dirty.points)
    texts = ragged([4, 6], 8, seed=3)
    owner = torch.arange(2)
    expected = both(clean, texts, owner)
    result = both(point_set(points, clean.mask, clean.keys), texts, owner)
    assert torch.equal(result.coverage_terms, expected.coverage_terms)
    assert torch.equal(result.support_terms, expected.support_terms)


def test_terms_of_padding_are_zero_and_holes_in_a_mask_are_padding():
    images, texts = ragged([6, 9], 8), ragged([5, 3], 8, seed=1)
    texts.mask[0, 2] = False
    result = both(images, texts, torch.arange(2))
    assert result.support_terms[0, 2] == 0
    assert (result.support_terms[~texts.mask] == 0).all()
    assert (result.coverage_terms[~images.mask] == 0).all()


def test_memory_is_linear_in_the_number_of_patches():
    from msdscore.core.mixture import gram_is_cheaper

    assert not gram_is_cheaper(4096, 1024, 5, 20)
    images, texts = ragged([4096], 32, dtype=torch.float32), ragged([12], 32, seed=1, dtype=torch.float32)
    result = both(images, texts, torch.tensor([0]))
    assert torch.isfinite(result.coverage).all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_is_close_to_the_cpu():
    images, texts = (
        ragged([49] * 8, 256, dtype=torch.float32),
        ragged([12] * 8, 256, seed=1, dtype=torch.float32),
    )
    owner = torch.arange(8)
    first, second = (point_set(s.points.cuda(), s.mask.cuda(), s.keys.cuda()) for s in (images, texts))
    cpu, cuda = both(images, texts, owner), both(first, second, owner.cuda())
    assert torch.allclose(cuda.coverage.cpu(), cpu.coverage, atol=1e-4)
    assert torch.allclose(cuda.support.cpu(), cpu.support, atol=1e-4)
