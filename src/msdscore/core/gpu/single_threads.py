"""Parallel computations of torch on a CPU, each in one thread."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from threading import Barrier
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")

count = torch.get_num_threads


def map_each(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Apply a function to every item, `count` items at a time, each with one thread of torch.

    >>> map_each(lambda number: number + torch.get_num_threads(), [1, 2])
    [2, 3]
    """
    if count() == 1:
        return [function(item) for item in items]
    pool, inference, gradients = _single_threads(count()), torch.is_inference_mode_enabled(), torch.is_grad_enabled()

    def as_here(item: Item) -> Result:
        with torch.inference_mode(inference), torch.set_grad_enabled(gradients):  # modes are thread-local
            return function(item)

    waiting = [pool.submit(as_here, item) for item in items]
    wait(waiting)  # none may continue after an error of another
    return [done.result() for done in waiting]


@cache
def _single_threads(count: int) -> ThreadPoolExecutor:
    """Threads whose libraries use no further threads; cached, since a new torch thread copies the last number set."""
    pool, met = ThreadPoolExecutor(count, "msdscore-core"), Barrier(count)

    def begin() -> None:
        met.wait()
        torch.get_num_threads()  # a thread reads the process-wide number on its first call, so call before setting
        torch.set_num_threads(1)

    wait([pool.submit(begin) for _ in range(count)])
    torch.set_num_threads(count)
    return pool


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_single_threads.cache_clear)  # a child has none of its parent's threads
