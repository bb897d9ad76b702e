"""The mathematics on every array library: NumPy, read-only NumPy, torch, and the strict reference of the standard."""

import array_api_compat
import array_api_strict
import numpy as np
import pytest
import torch

from msdscore.core import arrays
from msdscore.core.divergence import by_item, diverge, fit_all, log_ratio, total
from msdscore.core.embeddings import Embeddings, join, masked_mean, split, take, unit
from msdscore.core.evidence import information_terms, penalty_terms, precision_terms, word_evidence
from msdscore.core.mixture import DirectSpace, FitSettings, GramSpace, expected_log_density, fit
from msdscore_lab.bank.calibrate import log_density_spread


def read_only(values):
    frozen = values.copy()
    frozen.flags.writeable = False
    return frozen


LIBRARIES = {
    "numpy": np.copy,
    "read-only": read_only,
    "torch": lambda values: torch.from_numpy(values.copy()),
    "strict": array_api_strict.asarray,
}


@pytest.fixture(params=LIBRARIES)
def xp(request):
    """Return a function that converts a NumPy array to an array of the library."""
    with array_api_strict.ArrayAPIStrictFlags(data_dependent_shapes=False):
        yield LIBRARIES[request.param]


def points(sizes, dim=24, *, seed=0, dtype=np.float64):
    """Return clustered unit vectors with garbage in the padding, and their mask."""
    generator = np.random.default_rng(seed)
    mask = np.arange(max(sizes)) < np.array(sizes)[:, None]
    centres = generator.normal(size=(len(sizes), 3, dim))
    values = centres[:, np.arange(max(sizes)) % 3] + 0.6 * generator.normal(size=(*mask.shape, dim))
    values /= np.linalg.norm(values, axis=-1, keepdims=True)
    return np.where(mask[..., None], values, 9.0).astype(dtype), mask


def embeddings(xp, sizes, *, seed=0, dtype=np.float64):
    values, mask = points(sizes, seed=seed, dtype=dtype)
    keys = np.random.default_rng(seed).integers(0, 2**62, len(sizes))
    return Embeddings(xp(values), xp(mask), xp(values[:, 0]), keys=xp(keys))


def same(found, expected, tolerance=1e-10):
    np.testing.assert_allclose(
        arrays.to_numpy(found),
        expected if isinstance(expected, list) else arrays.to_numpy(expected),
        rtol=0,
        atol=tolerance,
    )


PAIRS = np.array([0, 2, 2, 1, 0, 2] + [1] * 9), np.array([4, 1, 0, 3, 2, 2] + [0] * 9)


@pytest.mark.parametrize("init", ["spread", "sample"])
@pytest.mark.parametrize("space", [GramSpace, DirectSpace])
def test_fits_agree(xp, init, space):
    (values, mask), settings = points([5, 1, 9]), FitSettings(components=3, init=init, seed=4)
    keys = np.array([3, 2**61, 7])
    expected = fit(values, mask, keys, settings, space=space)
    found = fit(xp(values), xp(mask), xp(keys), settings, space=space)
    assert type(found.means) is type(xp(values))
    same(found.means, expected.means)
    same(found.log_weights, expected.log_weights)


@pytest.mark.parametrize("calibrated", [False, True])
def test_divergences_agree_and_are_of_the_library(xp, calibrated):
    fits = {"image_fit": FitSettings(components=3), "text_fit": FitSettings(components=2)}

    def measure(library):
        images, texts = embeddings(library, [40, 33, 9]), embeddings(library, [3, 7, 1, 5, 12], seed=1)
        background = (None, None)
        if calibrated:
            background = fit_all(embeddings(library, [8] * 5, seed=2), fits["image_fit"]), None
        return diverge(images, texts, *map(library, PAIRS), **fits, background=background)

    found, expected = measure(xp), measure(np.copy)
    assert type(found.coverage_terms) is type(xp(np.zeros(1)))
    for name in ("coverage_terms", "support_terms", "coverage", "support"):
        same(getattr(found, name), getattr(expected, name))


def test_both_ways_of_log_ratios_agree(xp):
    """Points copied for each pair, and points read in place, have the same ratios."""
    side, others = embeddings(xp, [40, 33, 9]), embeddings(xp, [3, 7, 1, 5, 12], seed=1)
    mixtures, background = (fit_all(batch, FitSettings(components=2)) for batch in (others, side))
    pairs = dict(zip(("item_of", "mixture_of"), map(xp, PAIRS), strict=True))
    copied = log_ratio(side, mixtures, **pairs, background=background)
    same(log_ratio(side, mixtures, **pairs, background=background, compare=by_item), copied)
    own = log_ratio(side, background, item_of=pairs["item_of"], mixture_of=pairs["item_of"], own=background)
    same(own, np.zeros(own.shape))


def test_float32_agrees_with_float64(xp):
    images, texts = ([40, 33, 9], [3, 7, 1, 5, 12])
    settings = FitSettings(components=3)

    def measure(dtype):
        sides = embeddings(xp, images, dtype=dtype), embeddings(xp, texts, seed=1, dtype=dtype)
        return diverge(*sides, *map(xp, PAIRS), image_fit=settings, text_fit=settings)

    single, double = measure(np.float32), measure(np.float64)
    # Log densities are up to 20, of which float32 keeps seven digits.
    same(single.coverage, double.coverage, 1e-4)
    same(single.support, double.support, 1e-4)


def test_densities_of_a_background_agree(xp):
    values, settings = points([6, 4])[0], FitSettings(components=2)
    background = fit_all(embeddings(xp, [8] * 130, seed=2), settings)
    expected = fit_all(embeddings(np.copy, [8] * 130, seed=2), settings)
    same(expected_log_density(background, xp(values)), expected_log_density(expected, values))
    same(log_density_spread(background, xp(values)), log_density_spread(expected, values))


def test_vectors_agree(xp):
    values, mask = points([4, 2, 3])
    same(unit(xp(3 * values)), unit(3 * values))
    same(masked_mean(xp(values), xp(mask)), masked_mean(values, mask))
    same(total(xp(values[..., 0])), values[..., 0].sum(axis=1))
    batch = embeddings(xp, [4, 2, 3])
    again = take(join(split(batch)[::-1]), [2, 1, 0])
    same(again.points[1, :2, :], batch.points[1, :2, :])
    same(again.mask, batch.mask)
    assert arrays.to_numpy(batch.lengths).tolist() == [4, 2, 3]


def test_terms_of_words_agree(xp):
    generator = np.random.default_rng(0)
    margin, odds, settled, weights = (generator.normal(size=(3, 5)) for _ in range(4))
    weights = np.abs(weights)
    weights[1] = 0.0  # a caption without judged words
    same(precision_terms(xp(margin), xp(weights)), precision_terms(margin, weights))
    same(information_terms(xp(margin), xp(weights), spread=2.0), information_terms(margin, weights, spread=2.0))
    same(penalty_terms(xp(odds), xp(settled), xp(weights)), penalty_terms(odds, settled, weights))
    words = np.array([[[0, 1, -1], [4, -1, -1]]] * 3)
    same(word_evidence(xp(margin), xp(words)), np.stack([margin[:, :2].mean(axis=1), margin[:, 4]], axis=1))


def test_functions_that_the_standard_lacks(xp):
    values = np.array([[1.0, -np.inf, 3.0, 0.5], [700.0, 800.0, -800.0, 0.0]])
    same(arrays.logsumexp(xp(values), axis=1), [np.log(np.exp(values[0]).sum()), 800.0])
    same(arrays.to_numpy(arrays.softmax(xp(values), axis=1)).sum(axis=1), np.ones(2))
    same(arrays.sigmoid(xp(np.array([-800.0, 0.0, 2.0]))), [0.0, 0.5, 1 / (1 + np.exp(-2))])
    same(arrays.gather(xp(values), xp(np.array([[3, 0], [1, 1]]))), [[0.5, 1.0], [800.0, 800.0]])
    owner = np.array([0, 0, 1, 2])
    sums = arrays.segment_means(xp(np.array([[1.0, 2.0, 4.0, 8.0]])), owner)
    same(sums, [[1.5, 4.0, 8.0]])
    same(arrays.at_least(xp(np.array([-1.0, 2.0])), 0), [0.0, 2.0])
    same(arrays.masked(xp(np.array([1.0, np.nan])), xp(np.array([True, False])), 0.0), [1.0, 0.0])


def test_arrays_move_between_host_and_library(xp):
    values = np.arange(6.0).reshape(2, 3)
    there = arrays.from_numpy(values, like=xp(np.zeros(1)))
    assert type(there) is type(xp(values))
    assert np.array_equal(arrays.to_numpy(there), values)
    assert np.array_equal(arrays.fetching(there)()[0], values)
    assert arrays.to_numpy(arrays.integers([3, 1], like=there)).tolist() == [3, 1]


def test_the_library_of_torch_and_strict_arrays_is_that_of_the_standard(xp):
    array = xp(np.zeros(2))
    expected = np if isinstance(array, np.ndarray) else array_api_compat.array_namespace(array)
    assert arrays.namespace(array) is arrays.namespace(array, array) is expected
    if isinstance(array, torch.Tensor):
        with pytest.raises(TypeError):
            arrays.namespace(array, array_api_strict.asarray([1.0]))
