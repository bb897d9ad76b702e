"""Work for a GPU begun by one thread at a time."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from threading import RLock

import torch
from torch.backends import cuda as backends

_lock = RLock()


@contextmanager
def launching(device: torch.device) -> Iterator[None]:
    """Within it no other thread of this process launches anything on a GPU; it may be entered again within itself.

    Threads that launch side by side take the interpreter from each other at every few kernels, and each of them ends
    later for it. Whoever waits for the device does so outside. On a CPU nothing is held.
    """
    with _lock if device.type == "cuda" else nullcontext(), _without_cudnn(device):
        yield


@contextmanager
def _without_cudnn(device: torch.device) -> Iterator[None]:
    """Attention by other kernels, where torch may choose them: every call of cuDNN's costs the host half a millisecond.

    The choice is one of the whole process, and safe to change for a while because of the lock.
    """
    others = backends.math_sdp_enabled() and (backends.flash_sdp_enabled() or backends.mem_efficient_sdp_enabled())
    if device.type != "cuda" or not others or not backends.cudnn_sdp_enabled():
        yield
        return
    backends.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        backends.enable_cudnn_sdp(True)
