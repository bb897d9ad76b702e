"""Recorded functions on a GPU equal the functions."""

import pytest
import torch

from msdscore_torch.gpu.graphs import Recorded

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def work(x):
    return (x @ x.mT).softmax(dim=-1), x.float().sum(dim=1)


@needs_cuda
def test_recorded_function_equals_the_function_and_returns_new_tensors():
    recorded, generator = Recorded(work), torch.Generator("cuda").manual_seed(0)
    inputs = [torch.randn(1, 40, 30, device="cuda", generator=generator) for _ in range(3)]
    found = [recorded(x) for x in inputs]
    for x, outputs in zip(inputs, found, strict=True):
        for output, expected in zip(outputs, work(x), strict=True):
            torch.testing.assert_close(output, expected)


@needs_cuda
def test_other_shapes_and_dtypes_are_not_recorded():
    recorded = Recorded(work)
    for x in (
        torch.ones(1, 4, 8, device="cuda"),
        torch.ones(2, 3, 8, device="cuda"),
        torch.ones(1, 4, 8, device="cuda").half(),
    ):
        for output, expected in zip(recorded(x), work(x), strict=True):
            torch.testing.assert_close(output, expected)


@needs_cuda
def test_streams_do_not_disturb_each_other():
    recorded, other = Recorded(work), torch.cuda.Stream()
    for number in range(50):
        first, second = (torch.full((1, 256, 64), 0.01 * number + part, device="cuda") for part in (0.0, 1.0))
        torch.cuda.synchronize()
        one = recorded(first)
        with torch.cuda.stream(other):
            two = recorded(second)
        torch.cuda.synchronize()
        torch.testing.assert_close(one[1], work(first)[1])
        torch.testing.assert_close(two[1], work(second)[1])
