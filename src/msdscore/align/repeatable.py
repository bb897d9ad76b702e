"""What makes two runs with one seed the same run: generators of their own, and sums in a fixed order."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Dropout that depends on the seed alone, and leaves the generators of everyone else as they were."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


@contextmanager
def ordered_sums(device: torch.device) -> Iterator[None]:
    """Ask a GPU for kernels that add up in a fixed order; those of a CPU do so anyway.

    A kernel that has no such form runs as it is, and warns.
    """
    if device.type != "cuda":
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when the first product is made
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
