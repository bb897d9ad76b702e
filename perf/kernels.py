"""Fused GPU kernels: agreement with float64, batch invariance (identical bits), and time by stage.

python perf/kernels.py                       needs CUDA and Triton, no pytest
"""

import statistics

import torch

from msdscore.core.divergence import diverge, fit_all
from msdscore.core.embeddings import Embeddings
from msdscore.core.mixture import FitSettings, Mixture
from msdscore_torch.gpu import fused

# patches, components, start, dtype: every size class, and the most components
CHECKS = [
    (256, (3, 2), "spread", torch.float32),
    (256, (3, 2), "spread", torch.bfloat16),
    (256, (8, 8), "spread", torch.float16),
    (196, (5, 3), "sample", torch.float16),
    (196, (5, 3), "sample", torch.float32),
    (49, (8, 8), "spread", torch.bfloat16),
    (577, (3, 2), "spread", torch.float32),
]
# items of a background, components
BANKS = [(1, (3, 2)), (130, (8, 1)), (1000, (5, 3))]


def point_set(points, mask, keys):
    """Return one side of a comparison; pooled vectors are not used."""
    return Embeddings(points, mask, points[:, 0], keys=keys)


def side(count, points, *, seed=0, dtype=torch.float32, dim=768):
    """Return unit vectors around three centres per item."""
    generator = torch.Generator("cuda").manual_seed(seed)
    centres = torch.randn(count, 3, dim, device="cuda", generator=generator)
    noise = torch.randn(count, points, dim, device="cuda", generator=generator)
    vectors = centres[:, torch.arange(points, device="cuda") % 3] + 0.6 * noise
    mask = torch.ones(count, points, dtype=torch.bool, device="cuda")
    return point_set(torch.nn.functional.normalize(vectors, dim=-1).to(dtype), mask, torch.arange(count, device="cuda"))


def shortened(points, sizes):
    """Return the first points of every item, padded with NaN."""
    mask = torch.arange(points.mask.shape[1], device="cuda") < torch.tensor(sizes, device="cuda").unsqueeze(1)
    return point_set(points.points.masked_fill(~mask.unsqueeze(-1), torch.nan), mask, points.keys)


def check(patches, components, init, dtype):
    images = shortened(side(4, patches, dtype=dtype), [patches, patches - 7, 20, patches])
    texts = shortened(side(4, 60, seed=1, dtype=dtype), [12, 1, 17, 60])
    numbers = torch.arange(4, device="cuda")
    options = {
        "image_fit": FitSettings(components=components[0], init=init),
        "text_fit": FitSettings(components=components[1], init=init),
    }
    result = diverge(images, texts, numbers, numbers, **options)
    exact = diverge(
        *[point_set(item.points.double().cpu(), item.mask.cpu(), item.keys.cpu()) for item in (images, texts)],
        numbers.cpu(), numbers.cpu(), **options,
    )  # fmt: skip
    gaps = [(getattr(result, name).cpu() - getattr(exact, name)).abs().max().item() for name in ("coverage", "support")]
    third = slice(2, 3)
    single = diverge(
        *[point_set(item.points[third], item.mask[third], item.keys[third]) for item in (images, texts)],
        numbers[:1], numbers[:1], **options,
    )  # fmt: skip
    same = torch.equal(single.coverage_terms, result.coverage_terms[third])
    print(
        f"{patches:>5} patches, K={components}, {init}, {dtype}: off by {gaps[0]:.1e} {gaps[1]:.1e}, same bits {same}"
    )
    assert max(gaps) < 1e-4
    assert same


def check_bank(items, components):
    """Compare calibrated terms with a bank in half precision, for both sides, with float64."""
    images, texts = shortened(side(4, 64), [64, 9, 20, 33]), shortened(side(4, 17, seed=1), [12, 1, 17, 5])
    numbers = torch.arange(4, device="cuda")
    settings = [FitSettings(components=count) for count in components]
    fitted = [fit_all(side(items, 20, seed=5 + number), fit) for number, fit in enumerate(settings)]
    half = [Mixture(fit.means.half(), fit.log_weights.half(), fit.kappa) for fit in fitted]
    wide = [Mixture(fit.means.double().cpu(), fit.log_weights.double().cpu(), fit.kappa) for fit in half]
    options = {"image_fit": settings[0], "text_fit": settings[1]}
    result = diverge(images, texts, numbers, numbers, **options, background=half)
    exact = diverge(
        *[point_set(item.points.double().cpu(), item.mask.cpu(), item.keys.cpu()) for item in (images, texts)],
        numbers.cpu(), numbers.cpu(), **options, background=wide,
    )  # fmt: skip
    gaps = [(getattr(result, name).cpu() - getattr(exact, name)).abs().max().item() for name in ("coverage", "support")]
    third = slice(2, 3)
    single = diverge(
        *[point_set(item.points[third], item.mask[third], item.keys[third]) for item in (images, texts)],
        numbers[:1], numbers[:1], **options, background=half,
    )  # fmt: skip
    same = all(torch.equal(getattr(single, name), getattr(result, name)[third]) for name in ("coverage", "support"))
    print(f"{items:>5} background items, K={components}: off by {gaps[0]:.1e} {gaps[1]:.1e}, same bits {same}")
    assert max(gaps) < 1e-4
    assert same


def microseconds(work, pairs, repeats=7):
    work()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / pairs)
    return statistics.median(times)


def main():
    assert fused.serves(torch.zeros(1, 4, 8, device="cuda"), 3), "the kernels do not support this device"
    for row in CHECKS:
        check(*row)
    for items, components in BANKS:
        check_bank(items, components)
    for dtype in (torch.float32, torch.bfloat16):
        print(dtype)
        for stage, time in (stages_of(dtype) | divergence_times(dtype)).items():
            print(f"  {stage:<34} {time:6.3f} µs per pair")


def stages_of(dtype):
    """Measure device time by stage, for 2048 pairs of 256 patches and 12 tokens."""
    images, texts = side(2048, 256, dtype=dtype), side(2048, 12, seed=1, dtype=dtype)
    numbers, stages = torch.arange(2048, device="cuda"), {}
    mixtures = {}
    for name, points, count in (("images", images, 3), ("texts", texts, 2)):
        for steps in (0, 20):
            settings = FitSettings(components=count, iterations=steps)
            stages[f"fit {name}, {steps} iterations"] = microseconds(
                lambda p=points, s=settings: fused.fit(p.points, p.mask, p.keys, s), 2048
            )
        mixtures[name] = fused.fit(points.points, points.mask, points.keys, FitSettings(components=count))
    for name, points, own, other in (("coverage", images, "images", "texts"), ("support", texts, "texts", "images")):
        stages[f"terms of {name}"] = microseconds(
            lambda p=points, a=own, b=other: fused.terms(
                p.points, p.mask, mixtures[a], mixtures[b], source=numbers, target=numbers
            ),
            2048,
        )
    for items in (128, 1024):
        bank = fit_all(side(items, 64, seed=9), FitSettings(components=3))
        bank = Mixture(bank.means.half(), bank.log_weights.half(), bank.kappa)
        stages[f"background of {items}, texts"] = microseconds(
            lambda b=bank: fused.expected(texts.points, texts.mask, b), 2048
        )
    return stages


def divergence_times(dtype):
    """Measure device time of both divergences, with every vector read once from memory."""
    stages = {}
    for tokens, components in ((12, (3, 2)), (180, (5, 3))):
        images, texts = side(2048, 256, dtype=dtype), side(2048, tokens, seed=1, dtype=dtype)
        image, text = (FitSettings(components=count) for count in components)
        stages[f"diverge, 256 x {tokens}"] = microseconds(
            lambda i=images, t=texts, a=image, b=text: diverge(i, t, i.keys, t.keys, image_fit=a, text_fit=b), 2048
        )
    return stages


if __name__ == "__main__":
    main()
