"""Fused kernels against plain torch, on a GPU or with Triton's interpreter."""

import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch

from msdscore.core.divergence import diverge, fit_all
from msdscore.core.evidence import Bank
from msdscore.core.mixture import FitSettings, Mixture, fit
from msdscore_torch.gpu import fused
from point_sets import point_set, ragged, take
from triton_cases import needs_cuda, needs_interpreter, patch_numpy_scalars, run_interpreted


def on(side, device, dtype=None):
    return point_set(side.points.to(device, dtype), side.mask.to(device), side.keys.to(device))


def both(images, texts, image_of, text_of=None, *, components=(3, 2), bank=None, **options):
    image, text = (FitSettings(components=count, **options) for count in components)
    text_of = torch.arange(len(image_of)).to(image_of) if text_of is None else text_of
    return diverge(
        images,
        texts,
        image_of,
        text_of,
        image_fit=image,
        text_fit=text,
        background=(None, None) if bank is None else (bank.images, bank.texts),
    )


def dying():
    """Return points at two poles: one of three components has no mass at this kappa."""
    generator = torch.Generator().manual_seed(0)
    centre = torch.nn.functional.normalize(torch.randn(1, 64, generator=generator), dim=-1)
    spots = torch.cat([centre.expand(5, -1), -centre]) + 1e-3 * torch.randn(6, 64, generator=generator)
    side = torch.nn.functional.normalize(spots, dim=-1).unsqueeze(0)
    return point_set(side, torch.ones(1, 6, dtype=torch.bool), torch.zeros(1, dtype=torch.int64))


def check_divergences(device, sizes, components, init, dim=48, dtype=torch.float32, **options):
    """Compare ragged items with holes and NaN padding, and two captions for one image, with float64."""
    images = on(ragged(sizes, dim, seed=1, dtype=torch.float32, extra=3), "cpu", dtype)
    texts = on(ragged([12, 1, 17, 5], dim, seed=2, dtype=torch.float32), "cpu", dtype)
    images.mask[0, 1] = False
    images.points[~images.mask] = torch.nan
    owner = torch.tensor([1, 0, len(sizes) - 1, 1])
    options |= {"components": components, "init": init}
    exact = both(on(images, "cpu", torch.float64), on(texts, "cpu", torch.float64), owner, **options)
    with mock.patch.object(fused, "serves", return_value=True):
        result = both(on(images, device), on(texts, device), owner.to(device), **options)
    # Tolerance of float32 at kappa 20; typical differences are 1e-6.
    assert torch.allclose(result.coverage.cpu().double(), exact.coverage, atol=1e-4)
    assert torch.allclose(result.support.cpu().double(), exact.support, atol=1e-4)
    assert (result.coverage_terms.cpu()[~images.mask[owner]] == 0).all()


def check_calibrated(device, items, components, dtype=torch.float32, dim=48, **options):
    """Compare pairs of both sides in any order, with a bank larger than one chunk."""
    images, texts = ragged([33, 9, 20], dim, seed=1, dtype=torch.float32), ragged([12, 1, 17], dim, seed=2, dtype=dtype)
    images.points[~images.mask] = torch.nan
    image_of, text_of = torch.tensor([1, 0, 2, 1, 1]), torch.tensor([0, 0, 2, 1, 2])
    exact_bank = Bank(
        *(
            fit_all(ragged([10] * items, dim, seed=5 + side), FitSettings(components=components[side]))
            for side in (0, 1)
        )
    )
    bank = Bank(*(moved(side, device, torch.float16) for side in (exact_bank.images, exact_bank.texts)))
    exact_bank = Bank(*(moved(side, "cpu", torch.float64) for side in (bank.images, bank.texts)))
    wide = [on(side, "cpu", torch.float64) for side in (images, texts)]
    exact = both(*wide, image_of, text_of, components=components, bank=exact_bank, **options)
    with mock.patch.object(fused, "serves", return_value=True):
        there = [on(side, device) for side in (images, texts)]
        result = both(*there, image_of.to(device), text_of.to(device), components=components, bank=bank, **options)
    assert torch.allclose(result.coverage.cpu().double(), exact.coverage, atol=1e-4)
    assert torch.allclose(result.support.cpu().double(), exact.support, atol=1e-4)
    assert (result.coverage_terms.cpu()[~images.mask[image_of]] == 0).all()


def moved(mixture, device, dtype):
    return Mixture(mixture.means.to(device, dtype), mixture.log_weights.to(device, dtype), mixture.kappa)


def check_death(device, dtype=torch.float32):
    side, settings = on(dying(), "cpu", dtype), FitSettings(components=3, kappa=300.0, iterations=6)
    exact = fit(side.points.double(), side.mask, side.keys, settings)
    there = on(side, device)
    result = fused.fit(there.points, there.mask, there.keys, settings)
    assert torch.allclose(result.means.cpu().double(), exact.means, atol=1e-4)
    assert torch.allclose(result.log_weights.cpu().double(), exact.log_weights, atol=1e-4)


def check_no_iterations(device, dtype=torch.float32):
    side, settings = on(ragged([9, 4], 24, dtype=torch.float32), device, dtype), FitSettings(components=2, iterations=0)
    result = fused.fit(side.points, side.mask, side.keys, settings)
    exact = fit(side.points.double(), side.mask, side.keys, settings)
    assert torch.allclose(result.means.double(), exact.means, atol=1e-6)


def interpret():
    patch_numpy_scalars()
    few = {"iterations": 3}  # interpreted steps take 0.1 s each; a GPU runs all twenty
    check_divergences("cpu", [16, 33, 4], (3, 2), "spread", **few)
    check_divergences("cpu", [66, 5], (8, 5), "sample", **few)
    # The interpreter does not support bfloat16, so only float16 is tested.
    check_divergences("cpu", [130, 33, 4], (3, 2), "spread", dtype=torch.float16, **few)
    check_calibrated("cpu", 23, (3, 2), **few)
    check_calibrated("cpu", 5, (8, 1), **few)
    check_death("cpu")
    check_death("cpu", torch.float16)
    check_no_iterations("cpu")
    check_no_iterations("cpu", torch.float16)


@needs_interpreter
def test_interpreted_kernels_agree_with_torch():
    run_interpreted("test_core_fused")


# Compiling a kernel takes seconds, so not all combinations of size, dtype and initialisation are tested. Texts of 1 to
# 17 tokens cover the two smallest size classes in every case.
@needs_cuda
@pytest.mark.parametrize(
    ("sizes", "components", "init", "dtype"),
    [
        ([16, 9, 3], (3, 2), "spread", torch.float32),
        ([16, 9, 3], (3, 2), "sample", torch.bfloat16),
        ([49, 64, 20], (5, 3), "sample", torch.float32),
        ([49, 64, 20], (5, 3), "spread", torch.float16),
        ([256, 196, 70, 5], (3, 2), "spread", torch.float32),
        ([256, 196, 70, 5], (3, 2), "spread", torch.bfloat16),
        ([256, 196, 70, 5], (3, 2), "sample", torch.float16),
        ([577, 300], (8, 8), "sample", torch.float32),
        ([577, 300], (8, 8), "spread", torch.bfloat16),
    ],
)
def test_cuda_agrees_with_float64(sizes, components, init, dtype):
    check_divergences("cuda", sizes, components, init, dim=256, dtype=dtype)


@needs_cuda
@pytest.mark.parametrize(("items", "components"), [(1, (3, 2)), (130, (8, 1)), (1000, (5, 3))])
def test_cuda_calibration_agrees_with_float64(items, components):
    check_calibrated("cuda", items, components, dim=256)


@needs_cuda
def test_cuda_restarts_dead_components_and_supports_zero_iterations():
    for dtype in (torch.float32, torch.float16):
        check_death("cuda", dtype)
        check_no_iterations("cuda", dtype)


@needs_cuda
@pytest.mark.parametrize(
    ("dtype", "calibrated"), [(torch.float32, True), (torch.float16, False), (torch.bfloat16, True)]
)
def test_cuda_items_are_bitwise_independent_of_batch_and_run(dtype, calibrated):
    images = on(ragged([256, 40, 9, 200, 1030], 96, dtype=torch.float32), "cuda", dtype)
    texts = on(ragged([12, 16, 17, 70, 1], 96, seed=1, dtype=torch.float32), "cuda", dtype)
    owner = torch.arange(5, device="cuda")
    background = (fit_all(on(ragged([20] * 70, 96, seed=7), "cuda", dtype), FitSettings(components=k)) for k in (3, 2))
    bank = Bank(*background) if calibrated else None
    together = both(images, texts, owner, bank=bank)
    again = both(images, texts, owner, bank=bank)
    assert torch.equal(together.coverage_terms, again.coverage_terms)
    assert torch.equal(together.support_terms, again.support_terms)
    for i in range(5):
        width = int(images.mask[i].sum())
        cropped = point_set(images.points[[i], :width], images.mask[[i], :width], images.keys[[i]])
        alone = both(cropped, take(texts, [i]), owner[:1], bank=bank)
        assert torch.equal(alone.coverage_terms[0], together.coverage_terms[i, :width])
        assert torch.equal(alone.support_terms[0], together.support_terms[i])
        assert torch.equal(alone.coverage[0], together.coverage[i])
        assert torch.equal(alone.support[0], together.support[i])


@needs_cuda
def test_kernels_are_enabled_on_this_device():
    assert fused.serves(torch.zeros(1, 4, 8, device="cuda"), 3)


def test_unsupported_inputs_fall_back_to_torch():
    points = torch.zeros(1, 4, 8)
    assert not fused.serves(points, 3)
    # Pretend that the CPU is supported, to test the other conditions.
    with mock.patch.object(fused, "usable", return_value=True):
        assert fused.serves(points, 8)
        assert fused.serves(points.bfloat16(), 3)
        assert not fused.serves(points, 9)
        assert not fused.serves(points.double(), 3)
        assert not fused.serves(points.requires_grad_(), 3)
        with torch.no_grad():
            assert fused.serves(points, 3)


def test_importing_and_using_the_core_on_a_cpu_does_not_import_triton():
    # In a separate process, because other tests may have loaded the kernels.
    script = (
        "import sys; from point_sets import point_set, ragged; from msdscore.core.divergence import fit_all; "
        "from msdscore.core.mixture import FitSettings; fit_all(ragged([5], 8), FitSettings(components=2)); "
        "sys.exit('msdscore_torch.gpu.kernels' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("reason", "line"),
    [
        ("Triton is not installed", r"not used on cuda:0, so scoring there is slower: Triton is not installed"),
        ("their results differ", r"slower: their results differ"),
    ],
)
def test_warns_once_if_kernels_are_not_used_on_a_gpu(monkeypatch, reason, line):
    monkeypatch.setattr(fused, "obstacle", lambda device, agrees, shared: reason)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    fused.usable.cache_clear()
    device = torch.device("cuda", 0)
    with pytest.warns(RuntimeWarning, match=line) as seen:
        assert [fused.usable(device) for _ in range(3)] == [False] * 3
    assert len(seen) == 1
    fused.usable.cache_clear()


def test_a_cpu_gives_no_warning(recwarn):
    fused.usable.cache_clear()
    assert not fused.serves(torch.zeros(1, 4, 8), 3)
    assert not recwarn.list
