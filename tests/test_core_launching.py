"""Serialised kernel launches: one thread at a time, without cuDNN attention, released after errors."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
import torch
from torch.backends import cuda as backends
from torch.nn.attention import SDPBackend, sdpa_kernel

from msdscore_torch.gpu.device import IN_FLIGHT, fetching, in_flight, launching

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(autouse=True)
def flags():
    """Restore the attention backends, which are a setting of the whole process."""
    kinds = ("cudnn", "flash", "mem_efficient", "math")
    before = [getattr(backends, f"{kind}_sdp_enabled")() for kind in kinds]
    yield
    after = [getattr(backends, f"{kind}_sdp_enabled")() for kind in kinds]
    for kind, value in zip(kinds, before, strict=True):
        getattr(backends, f"enable_{kind}_sdp")(value)
    assert after == before


@pytest.fixture
def other():
    """Another thread."""
    with ThreadPoolExecutor(1) as made:
        yield made


def enter():
    with launching(GPU):
        return True


def test_one_thread_launches_at_a_time(other):
    with launching(GPU):
        asked = other.submit(enter)
        with pytest.raises(TimeoutError):
            asked.result(timeout=0.2)
    assert asked.result(timeout=60)


def test_cpu_is_not_locked(other):
    with launching(CPU):
        assert backends.cudnn_sdp_enabled()
        assert other.submit(enter).result(timeout=60)


def test_cudnn_attention_is_disabled_until_the_outermost_block_ends():
    with launching(GPU):
        assert not backends.cudnn_sdp_enabled()
        assert backends.flash_sdp_enabled()
        with launching(GPU):
            assert not backends.cudnn_sdp_enabled()
        assert not backends.cudnn_sdp_enabled()
    assert backends.cudnn_sdp_enabled()


def test_lock_is_released_after_an_error(other):
    with pytest.raises(ValueError, match="refused"), launching(GPU), launching(GPU):
        raise ValueError("refused")
    assert backends.cudnn_sdp_enabled()
    assert other.submit(enter).result(timeout=60)


@pytest.mark.parametrize("alone", [SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH])
def test_only_enabled_attention_backend_is_not_disabled(alone):
    with sdpa_kernel(alone):
        before = backends.cudnn_sdp_enabled()
        with launching(GPU):
            assert backends.cudnn_sdp_enabled() == before
            assert not backends.flash_sdp_enabled()


def test_cpu_tensors_are_available_immediately():
    one, other = torch.tensor([1.0, 2.0]), torch.tensor([3])
    fetch = fetching(one, other)
    assert [tensor.tolist() for tensor in fetch()] == [[1.0, 2.0], [3]]


def test_batches_in_flight_are_limited_per_gpu_and_unlimited_on_cpu(other):
    def enter(device):
        with in_flight(torch.device(device)):
            return True

    with ExitStack() as stack:
        for _ in range(IN_FLIGHT):
            stack.enter_context(in_flight(torch.device("cuda:0")))
            stack.enter_context(in_flight(CPU))
        assert other.submit(enter, "cuda:1").result(timeout=30)
        assert other.submit(enter, "cpu").result(timeout=30)
        waiting = other.submit(enter, "cuda:0")
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.2)
    assert waiting.result(timeout=30)
