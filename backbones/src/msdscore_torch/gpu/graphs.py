"""CUDA graphs: a function of one tensor as a single launch, if launching takes the host longer than computing."""

from collections.abc import Callable
from threading import Lock

import torch
from torch import Tensor

Outputs = tuple[Tensor, ...]


class Recorded:
    """A function of a tensor on a GPU, recorded for the shape and dtype of its first call; others run it as it is.

    The function must launch the same kernels whatever the values are, and never wait for the device. Recording and
    replaying use buffers that all threads share, so one thread at a time does it.
    """

    def __init__(self, function: Callable[[Tensor], Outputs]) -> None:
        self._function, self._lock = function, Lock()
        self._recording: tuple[torch.cuda.CUDAGraph, Tensor, Outputs, torch.cuda.Event] | None = None

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Outputs:
        """Return the function's outputs, as new tensors."""
        with self._lock, torch.cuda.device(x.device):
            if self._recording is None:
                self._recording = _record(self._function, x)
            graph, buffer, outputs, copied = self._recording
            if (buffer.shape, buffer.dtype) != (x.shape, x.dtype):
                return self._function(x)
            copied.wait()  # a call of another thread may use another stream
            buffer.copy_(x)
            graph.replay()
            copies = tuple(output.clone() for output in outputs)
            copied.record()
            return copies


def _record(
    function: Callable[[Tensor], Outputs], x: Tensor
) -> tuple[torch.cuda.CUDAGraph, Tensor, Outputs, torch.cuda.Event]:
    """Return the graph, the buffer that it reads, its outputs, and an event after their latest copies."""
    buffer, current, side = x.clone(), torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(current)
    with torch.cuda.stream(side):  # libraries allocate memory, and kernels are compiled, at their first calls
        for _ in range(2):
            function(buffer)
    current.wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may send images to the device
        outputs = function(buffer)
    return graph, buffer, outputs, torch.cuda.Event()
