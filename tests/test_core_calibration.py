from unittest import mock

import pytest
import torch

import reference
from msdscore.core import embeddings, mixture
from msdscore.core.divergence import diverge, fit_all, total
from msdscore.core.evidence import Bank
from msdscore.core.mixture import FitSettings, Mixture, expected_log_density, log_density
from point_sets import point_set, ragged, take

IMAGE, TEXT = FitSettings(components=3), FitSettings(components=2)


def calibrated(images, texts, owner, bank):
    return diverge(
        images,
        texts,
        owner,
        torch.arange(len(owner)),
        image_fit=IMAGE,
        text_fit=TEXT,
        background=(None, None) if bank is None else (bank.images, bank.texts),
    )


@pytest.fixture
def sides():
    return ragged([9, 14, 6], 12, seed=1), ragged([5, 8, 3], 12, seed=2), torch.arange(3)


@pytest.fixture
def bank():
    return Bank(fit_all(ragged([10] * 7, 12, seed=5), IMAGE), fit_all(ragged([6] * 4, 12, seed=6), TEXT))


def test_expected_log_density_is_the_plain_mean(sides, bank):
    _, texts, _ = sides
    result = expected_log_density(bank.images, texts.points)
    for row in range(3):
        tokens = texts.points[row][texts.mask[row]].numpy()
        one_by_one = [
            reference.log_density(tokens, (bank.images.means[b].numpy(), bank.images.log_weights[b].exp().numpy()))
            for b in range(7)
        ]
        assert result[row][texts.mask[row]].numpy() == pytest.approx(sum(one_by_one) / 7, abs=1e-10)


def test_calibrated_terms_are_plain_terms_minus_their_mean_over_the_bank(sides, bank):
    images, texts, owner = sides
    plain, result = calibrated(images, texts, owner, None), calibrated(images, texts, owner, bank)
    text_mixtures, image_mixtures = fit_all(texts, TEXT), fit_all(images, IMAGE)
    sizes = texts.mask.sum(dim=1, keepdim=True)
    mean = (log_density(text_mixtures, texts.points) - expected_log_density(bank.images, texts.points)) / sizes
    expected = torch.where(texts.mask, plain.support_terms - mean, 0.0)
    assert torch.allclose(result.support_terms, expected, atol=1e-12)
    patches = images.mask.sum(dim=1, keepdim=True)
    mean = (log_density(image_mixtures, images.points) - expected_log_density(bank.texts, images.points)) / patches
    assert torch.allclose(result.coverage_terms, torch.where(images.mask, plain.coverage_terms - mean, 0.0), atol=1e-12)
    assert torch.equal(result.support, total(result.support_terms))


def test_a_bank_without_captions_leaves_coverage_unchanged(sides, bank):
    images, texts, owner = sides
    plain = calibrated(images, texts, owner, None)
    result = calibrated(images, texts, owner, Bank(bank.images))
    assert torch.equal(result.coverage_terms, plain.coverage_terms)
    assert not torch.equal(result.support_terms, plain.support_terms)


def test_calibrated_terms_are_bitwise_independent_of_the_batch(sides, bank):
    images, texts, owner = sides
    narrow = Bank(Mixture(bank.images.means.float(), bank.images.log_weights.float(), 20.0))
    images, texts = (point_set(s.points.float(), s.mask, s.keys) for s in (images, texts))
    together = calibrated(images, texts, owner, narrow)
    for row in range(3):
        alone = calibrated(take(images, [row]), take(texts, [row]), torch.tensor([0]), narrow)
        assert torch.equal(alone.support_terms[0], together.support_terms[row])
        assert torch.equal(alone.support[0], together.support[row])


def test_large_bank_is_processed_in_chunks(sides, bank):
    _, texts, _ = sides
    whole = expected_log_density(bank.images, texts.points)
    with mock.patch.object(mixture, "ITEMS", 3):
        assert torch.allclose(expected_log_density(bank.images, texts.points), whole, atol=1e-12)


def test_half_precision_bank_is_upcast(sides, bank):
    _, texts, _ = sides
    half = Mixture(bank.images.means.half(), bank.images.log_weights.half(), 20.0)
    wide = Mixture(half.means.double(), half.log_weights.double(), 20.0)
    assert torch.equal(expected_log_density(half, texts.points), expected_log_density(wide, texts.points))


def test_block_size_accounts_for_the_bank(bank):
    """With a large bank, the products with the background use most of the memory of a block."""
    images = ragged([9], 12, seed=1)
    many = Bank(Mixture(bank.images.means.repeat(40, 1, 1), bank.images.log_weights.repeat(40, 1), 20.0), None)
    sizes = []

    def watched(background, solid):
        numbers = 3 * min(len(background), mixture.ITEMS) * background.means.shape[1]
        logits = len(solid) * solid.shape[1] * numbers * solid.element_size()
        sizes.append((len(solid), logits))
        return expected_log_density(background, solid)

    with (
        mock.patch.object(embeddings, "BLOCK_BYTES", 1 << 17),
        mock.patch("msdscore.core.divergence.expected_log_density", watched),
    ):
        calibrated(images, ragged([8] * 12, 12, seed=2), torch.zeros(12, dtype=torch.int64), many)
    assert len(sizes) > 1
    assert all(count == 1 or taken <= 1 << 17 for count, taken in sizes)
