"""The launching thread of a GPU: sections in order, few pending, errors to the caller, no cuDNN attention."""

import os
from concurrent.futures import ThreadPoolExecutor
from threading import Event, get_ident

import pytest
import torch
from torch.backends import cuda as backends
from torch.nn.attention import SDPBackend, sdpa_kernel

from msdscore.core.arrays import is_launching, launched
from msdscore_torch.gpu.device import fetching
from msdscore_torch.gpu.launching import IN_FLIGHT, Launcher, launcher, without_cudnn_attention

CPU, GPU = torch.device("cpu"), torch.device("cuda")
SECONDS = 20.0  # far more than each test needs


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


def test_sections_of_all_threads_run_in_one_thread_per_gpu():
    with ThreadPoolExecutor(4) as callers:
        first = list(callers.map(lambda _: launched(GPU, get_ident), range(8)))
        other = list(callers.map(lambda _: launched(torch.device("cuda:1"), get_ident), range(8)))
    assert len(set(first)) == len(set(other)) == len({*first, get_ident()}) - 1 == 1
    assert first[0] != other[0]
    assert launched(torch.device("cuda:0"), get_ident) == first[0]


def test_section_runs_in_the_calling_thread_on_a_cpu():
    assert launched(CPU, get_ident) == launched("cpu", get_ident) == get_ident()
    assert not launched(CPU, is_launching)


def test_only_the_section_runs_in_the_launching_thread():
    assert launcher(GPU).complete(lambda: (lambda inside: lambda: (inside, is_launching()))(is_launching())) == (
        True,
        False,
    )


@pytest.mark.parametrize("inner", [GPU, torch.device("cuda:1")])
def test_section_within_a_section_runs_at_once(inner):
    thread, nested = launched(GPU, lambda: (get_ident(), launched(inner, get_ident)))
    assert nested == thread


def test_sections_of_two_gpus_that_call_each_other_finish():
    one, two = torch.device("cuda:0"), torch.device("cuda:1")
    inside = [Event(), Event()]

    def meet(number, other):
        inside[number].set()
        assert inside[1 - number].wait(SECONDS)
        return launched(other, lambda: number)

    with ThreadPoolExecutor(2) as callers:
        found = [
            callers.submit(launched, one, lambda: meet(0, two)),
            callers.submit(launched, two, lambda: meet(1, one)),
        ]
        assert [future.result(SECONDS) for future in found] == [0, 1]


def test_error_of_a_section_is_raised_in_the_caller_and_the_thread_goes_on():
    def fail():
        raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        launched(GPU, fail)
    assert backends.cudnn_sdp_enabled()
    assert launched(GPU, lambda: 1) == 1


def test_thread_waits_for_the_section_before_the_last():
    done = [Event() for _ in range(4)]
    marks, started = iter(done), []
    thread = Launcher(GPU, mark=lambda: next(marks).wait)
    futures = [thread.submit(lambda number=number: started.append(number)) for number in range(4)]
    futures[IN_FLIGHT - 1].result(SECONDS)
    with pytest.raises(TimeoutError):
        futures[IN_FLIGHT].result(timeout=0.2)
    assert started == list(range(IN_FLIGHT))
    done[0].set()
    futures[IN_FLIGHT].result(SECONDS)
    assert not futures[IN_FLIGHT + 1].done()
    done[1].set()
    futures[IN_FLIGHT + 1].result(SECONDS)


def test_queued_section_can_be_cancelled():
    thread, release = Launcher(GPU), Event()
    running = thread.submit(lambda: release.wait(SECONDS))
    queued = thread.submit(lambda: 1)
    assert queued.cancel()
    release.set()
    assert running.result(SECONDS)


def test_sections_need_no_gradients():
    weight = torch.ones(1, requires_grad=True)
    assert not launched(GPU, lambda: weight * 2).requires_grad


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_process_has_a_thread_of_its_own():
    held, release = Event(), Event()
    busy = launcher(GPU).submit(lambda: held.set() or release.wait(SECONDS))
    assert held.wait(SECONDS)
    child = os.fork()
    if not child:
        os._exit(0 if launched(GPU, is_launching) and backends.cudnn_sdp_enabled() else 1)
    release.set()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert busy.result(SECONDS)


def test_cudnn_attention_is_disabled_until_the_last_thread_leaves():
    with ThreadPoolExecutor(1) as other, without_cudnn_attention():
        assert not backends.cudnn_sdp_enabled()
        assert backends.flash_sdp_enabled()
        inside, release = Event(), Event()

        def enter():
            with without_cudnn_attention():
                inside.set()
                return release.wait(SECONDS)

        entered = other.submit(enter)
        assert inside.wait(SECONDS)
        with without_cudnn_attention():
            assert not backends.cudnn_sdp_enabled()
        assert not backends.cudnn_sdp_enabled()
        release.set()
        assert entered.result(SECONDS)
        assert not backends.cudnn_sdp_enabled()
        assert not launched(GPU, backends.cudnn_sdp_enabled)
    assert backends.cudnn_sdp_enabled()


@pytest.mark.parametrize("alone", [SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH])
def test_only_enabled_attention_backend_is_not_disabled(alone):
    with sdpa_kernel(alone):
        before = backends.cudnn_sdp_enabled()
        assert launched(GPU, backends.cudnn_sdp_enabled) == before
        assert not launched(GPU, backends.flash_sdp_enabled)


def test_cpu_tensors_are_available_immediately():
    one, other = torch.tensor([1.0, 2.0]), torch.tensor([3])
    fetch = fetching(one, other)
    assert [tensor.tolist() for tensor in fetch()] == [[1.0, 2.0], [3]]
