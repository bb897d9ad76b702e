"""Layers of a network replayed as CUDA graphs: the host launches a layer by one call in place of some twenty.

Kernels and results are the same, bit for bit. There is one graph per layer rather than one per network because work on
other streams, such as decoding, gets its turn between graphs.
"""

from collections import Counter
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

EAGER = 3  # calls with inputs of one shape before they are recorded
SHAPES = 8  # that are recorded per layer; each keeps the layer's result in the memory of the GPU


def graph_layers(network: nn.Module) -> None:
    """Replay the layers of a network on a GPU, in place: the modules of its longest list."""
    lists = [list(module) for module in network.modules() if isinstance(module, nn.ModuleList)]
    layers = max(lists, key=len, default=[])
    pool = torch.cuda.graph_pool_handle()
    for layer in layers:
        replayed = Replayed(layer.forward, pool, copies=layer is layers[-1])
        layer.forward = replayed


class Replayed:
    """One layer: called as it is at first, then recorded once per shape and replayed.

    Callers take turns (`core.device.launching`) and use one stream. A result holds until the next call, which is long
    enough for the next layer; with `copies` it holds for good.
    """

    def __init__(self, forward: Callable[..., Any], pool: Any, *, copies: bool) -> None:
        self._forward, self._pool, self._copies = forward, pool, copies
        self._calls: Counter[Hashable] = Counter()
        self._graphs: dict[Hashable, tuple[torch.cuda.CUDAGraph, Tensor, Any]] = {}

    def __call__(self, states: Tensor, *more: Any, **named: Any) -> Any:
        """The layer's result for states of the layer before."""
        key = _key(states, more, named)
        if key is None:
            return self._forward(states, *more, **named)
        if key not in self._graphs:
            self._calls[key] += 1
            if self._calls[key] <= EAGER or len(self._graphs) == SHAPES:
                return self._forward(states, *more, **named)
            self._graphs[key] = self._record(states, more, named)
        graph, given, result = self._graphs[key]
        # The layer before gives its result in the same memory every time: nothing is copied then.
        if given.data_ptr() != states.data_ptr():
            given.copy_(states)
        graph.replay()
        return tree_map_only(Tensor, Tensor.clone, result) if self._copies else result

    def _record(self, states: Tensor, more: Any, named: Any) -> tuple[torch.cuda.CUDAGraph, Tensor, Any]:
        current, aside = torch.cuda.current_stream(states.device), torch.cuda.Stream(states.device)
        aside.wait_stream(current)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(aside):
            self._forward(states, *more, **named)  # libraries make their room now, not while recording
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                result = self._forward(states, *more, **named)
            except torch.OutOfMemoryError:
                with suppress(RuntimeError):  # what was recorded is of no use
                    graph.capture_end()
                raise
            graph.capture_end()
        current.wait_stream(aside)
        return graph, states, result


def _key(states: Tensor, more: Any, named: dict[str, Any]) -> Hashable | None:
    """What a recording depends on; None where there can be none: gradients, or further tensors."""
    others = (*more, *(value for _, value in sorted(named.items())))
    plain = all(value is None or isinstance(value, bool | int | float | str) for value in others)
    if torch.is_grad_enabled() or not plain or states.device.type != "cuda":
        return None
    return (states.shape, states.stride(), states.dtype, *others, *sorted(named))
