"""Reproducibility: stateless random draws, independent generators, and deterministic GPU kernels."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from random import Random

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel


def draw(seed: int, *purpose: int | str) -> int:
    """Return a 63-bit integer for this seed and purpose.

    >>> draw(0, "caption", 3, 7) == draw(0, "caption", 3, 7) != draw(1, "caption", 3, 7)
    True
    """
    text = "/".join(map(str, (seed, *purpose)))
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big") >> 1


def stream(seed: int, *purpose: int | str) -> Random:
    """Return an independent generator for this seed and purpose."""
    return Random(draw(seed, *purpose))


def epoch_order(blocks: npt.NDArray[np.int64], *, seed: int, epoch: int, window: int) -> npt.NDArray[np.int64]:
    """Return all item indices in the order of one epoch.

    Blocks (shards, row groups) come in a random order, and the items of `window` neighbouring blocks are shuffled
    together: adjacent images are read at about the same time. If every item is a separate block, this is a full
    shuffle.

    >>> sorted(epoch_order(np.array([0, 0, 1, 1]), seed=0, epoch=0, window=1).tolist())
    [0, 1, 2, 3]
    """
    rng = np.random.default_rng([seed, epoch])
    distinct, block_of_item = np.unique(blocks, return_inverse=True)
    if len(distinct) == len(blocks):
        return rng.permutation(len(blocks))
    windows = rng.permutation(len(distinct))[block_of_item] // window
    return np.lexsort((rng.permutation(len(blocks)), windows))


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Make dropout depend only on the seed, without changing other generators."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


@contextmanager
def deterministic_kernels(device: torch.device) -> Iterator[None]:
    """Use deterministic GPU kernels, which sum in a fixed order; those of a CPU always do.

    An operation without a deterministic kernel runs with a warning. Attention only uses the flash and math kernels.
    """
    if device.type != "cuda":
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it at the first matrix product
    previous = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
            yield
    finally:
        torch.use_deterministic_algorithms(previous[0], warn_only=previous[1])
