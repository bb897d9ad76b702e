"""Fits and terms on a GPU in a handful of launches, if Triton can compile for it.

The arithmetic is that of `mixture` and `divergence` in float32, up to rounding. Nothing synchronises with the host,
memory use does not grow with the batch, and an item's bits depend only on that item.
"""

import math
import warnings
from collections.abc import Callable
from functools import cache
from subprocess import SubprocessError

import torch
from torch import Tensor

from msdscore.core import mixture
from msdscore.core.arrays import Float, Int
from msdscore.core.embeddings import TINY, Mask, PerPoint, Points, unit
from msdscore.core.mixture import (
    DEAD_MASS,
    NEAR_TIE,
    FitSettings,
    Keys,
    Mixture,
    expected_log_density,
    log_density,
    sample,
)

# Items with more points are fitted through their vectors: beyond this a Gram matrix costs more than it saves.
MOST_POINTS = 1024
# Two mixtures share the sixteen columns of one product.
MOST_COMPONENTS = 8
# Ampere is the first generation whose matrix units take float32 in three passes. Smaller cards have less shared memory
# per block.
CAPABILITY = (8, 0)
SHARED_BYTES = 160 << 10
# Maximum difference of log densities from plain torch for the kernels to be used (they are within 4e-5 of float64).
AGREEMENT = 1e-3
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


TERMS_TILE, TERMS_DEPTH = 64, 64
# Points, and components of background items, that one product of `expected` compares.
EXPECTED_TILE, EXPECTED_COLUMNS = 16, 64


def serves(points: Points, *mixtures: int | Mixture) -> bool:
    """Whether the fused kernels support this device, dtype and these mixtures (by size or kind), without gradients."""
    tensors = [points, *(item.means for item in mixtures if isinstance(item, Mixture))]
    sizes = (item if isinstance(item, int) else item.means.shape[1] for item in mixtures)
    return (
        all(tensor.dtype in DTYPES for tensor in tensors)
        and max(sizes) <= MOST_COMPONENTS
        and not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors))
        and usable(points.device)
    )


@cache
def usable(device: torch.device) -> bool:
    """Whether these kernels work on a device; if they should but do not, warn once."""
    return works(device, _agrees, shared=SHARED_BYTES)


def works(device: torch.device, agrees: Callable[[torch.device], bool], *, shared: int) -> bool:
    """Whether kernels work on a device; if they should but do not, warn.

    `agrees` compares them with plain torch; they need `shared` bytes of shared memory per block.
    """
    if device.type != "cuda" or torch.version.hip or torch.cuda.get_device_capability(device) < CAPABILITY:
        return False
    found = obstacle(device, agrees, shared)
    if found is not None:
        message = f"the fused kernels are not used on {device}, so scoring there is slower: {found}"
        warnings.warn(message, RuntimeWarning, stacklevel=1)
    return found is None


def obstacle(device: torch.device, agrees: Callable[[torch.device], bool], shared: int) -> str | None:
    """Why kernels cannot be used on a device, or None if they compile and agree with torch."""
    try:
        from triton.errors import TritonError
        from triton.runtime import driver
    except ImportError:
        return "Triton is not installed; install it with: pip install triton"
    try:
        # Creating the driver compiles its bindings, which needs a C compiler and Python's headers.
        room = driver.active.utils.get_device_properties(device.index or 0)["max_shared_mem"]
        if room < shared:
            return f"a block has {room >> 10} KiB of shared memory, and {shared >> 10} are needed"
        with on_device(device):
            return None if agrees(device) else "their results differ from plain torch there"
    except (TritonError, OSError, RuntimeError, SubprocessError) as error:
        lines = str(error).strip().splitlines() or [""]
        return f"Triton cannot compile for it ({type(error).__name__}: {lines[0][:200]})"


@torch.no_grad()
def _agrees(device: torch.device) -> bool:
    """Whether a small fit and its terms match plain torch: compilers and drivers change, scores must not."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(2, 3, 80, generator=generator)[:, torch.arange(200) % 3]
    exact = unit(centres + torch.randn(2, 200, 80, generator=generator)).to(device)
    mask = (torch.arange(200) < torch.tensor([[200], [11]])).to(device)
    items, settings = torch.arange(2, device=device), FitSettings(components=3, iterations=5)
    gaps: list[PerPoint] = []
    for points in (exact, exact.half()):
        ours, plain = fit(points, mask, items, settings), mixture.fit(points, mask, items, settings)
        fused, own, other = (log_density(fitted, points) for fitted in (ours, plain, plain.take(items.flip(0))))
        ratio = log_ratio(points, mask, plain, source=items, target=items.flip(0), own=plain)
        mean = expected(points, mask, plain) - expected_log_density(plain, points.float())
        gaps += (fused - own, ratio - other + own, mean)
    return all(bool((gap[mask].abs() < AGREEMENT).all()) for gap in gaps)


def fit(points: Points, mask: Mask, keys: Keys, settings: FitSettings) -> Mixture:
    """`mixture.fit` for items of at most `MOST_POINTS` points."""
    from msdscore_torch.gpu.kernels import HALF_SHAPES, SHAPES, fit_kernel

    batch, width, dim = points.shape
    points, there = _rows(points), mask.contiguous().view(torch.uint8)
    # The kernel computes farthest-first starts.
    seeds = keys.new_empty((batch, 0))
    if settings.init == "sample":
        seeds = sample(mask, keys, seed=settings.seed, components=settings.components)
    means = points.new_empty((batch, settings.components, dim), dtype=torch.float32)
    log_weights = points.new_empty((batch, settings.components), dtype=torch.float32)
    cuda = points.device.type == "cuda"
    processors = torch.cuda.get_device_properties(points.device).multi_processor_count if cuda else 1
    shapes = SHAPES if points.dtype == torch.float32 else HALF_SHAPES
    for lower, shape in zip((-1, *(shape.most_points for shape in shapes)), shapes, strict=False):
        # An item may be shorter than the width: a launch selects its items, and the host need not know.
        if lower >= width:
            break
        # Each program has memory for one Gram matrix and one set of shares.
        programs = max(1, min(batch, shape.programs * processors))
        edge = min(shape.most_points, -(-width // shape.tile) * shape.tile)
        gram = points.new_empty((programs, 2, edge, edge), dtype=torch.float16)
        shares = points.new_empty((programs, 2 * MOST_COMPONENTS, shape.most_points), dtype=torch.float16)
        with on_device(points.device):
            fit_kernel[(programs,)](
                points, there, seeds, means, log_weights, gram, shares,
                batch, width, dim, points.stride(1), points.stride(0), edge,
                settings.components, settings.iterations, settings.kappa, -math.log(settings.components),
                SEEDED=settings.init == "sample", NEAR_TIE=NEAR_TIE, DEAD_MASS=DEAD_MASS, TINY=TINY,
                RESIDENT=shape.resident, LOWER=lower, BLOCK=shape.most_points, TILE=shape.tile, STRIP=shape.strip,
                DEPTH=shape.depth, num_warps=shape.warps, num_stages=shape.stages,
            )  # fmt: skip
    return Mixture(means, log_weights, settings.kappa)


def log_ratio(
    points: Points,
    mask: Mask,
    mixtures: Mixture,
    *,
    source: Int[Tensor, " pairs"],
    target: Int[Tensor, " pairs"],
    own: Mixture | None = None,
    expected: PerPoint | None = None,
) -> Float[Tensor, "pairs points"]:
    """Log density of the points of item `source` under mixture `target`, minus a reference, for every pair.

    The reference is `expected`, or else the log density under the own mixture of the item.
    """
    from msdscore_torch.gpu.kernels import log_ratio_kernel

    points, (_, width, dim) = _rows(points), points.shape
    result = points.new_empty((len(source), width), dtype=torch.float32)
    given = result if expected is None else expected.contiguous()
    own = mixtures if own is None else own  # not read if the reference is given
    with on_device(points.device):
        log_ratio_kernel[(len(source), -(-width // TERMS_TILE))](
            points, mask.contiguous().view(torch.uint8),
            source, own.means.contiguous(), own.log_weights.contiguous(),
            target, mixtures.means.contiguous(), mixtures.log_weights.contiguous(), given, result,
            width, dim, points.stride(1), points.stride(0),
            own.means.shape[1], mixtures.means.shape[1], own.kappa, mixtures.kappa,
            GIVEN=expected is not None, TILE=TERMS_TILE, DEPTH=TERMS_DEPTH,
        )  # fmt: skip
    return result


def expected(points: Points, mask: Mask, background: Mixture) -> PerPoint:
    """`mixture.expected_log_density` of the real points, zero for padding; the background may be half precision."""
    from msdscore_torch.gpu.kernels import expected_kernel

    points, (items, width, dim) = _rows(points), points.shape
    result = points.new_empty((items, width), dtype=torch.float32)
    components = background.means.shape[1]
    room = max(2, 1 << (components - 1).bit_length())
    with on_device(points.device):
        expected_kernel[(items, -(-width // EXPECTED_TILE))](
            points, mask.contiguous().view(torch.uint8),
            background.means.contiguous(), background.log_weights.contiguous(), result,
            len(background), width, dim, points.stride(1), points.stride(0), components, background.kappa,
            TILE=EXPECTED_TILE, DEPTH=TERMS_DEPTH, ROOM=room, GROUP=EXPECTED_COLUMNS // room,
        )  # fmt: skip
    return result


def _rows(points: Points) -> Points:
    """Points with contiguous coordinates."""
    return points if points.stride(2) == 1 else points.contiguous()


def on_device(device: torch.device) -> torch.cuda.device:
    """Context for launches on the device of the tensors."""
    return torch.cuda.device(device if device.type == "cuda" else -1)
