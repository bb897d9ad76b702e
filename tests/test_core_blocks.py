import threading
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from msdscore.core import schedule
from msdscore.core.mixture import FitSettings
from msdscore.core.schedule import fit_all
from point_sets import point_set


@given(sizes=st.lists(st.integers(1, 700), min_size=1, max_size=40), room=st.sampled_from([1, 50_000, 10_000_000]))
def test_blocks_contain_each_item_once_within_the_memory_limit(sizes, room):
    mask = torch.arange(700) < torch.tensor(sizes).unsqueeze(1)
    side = point_set(torch.zeros(*mask.shape, 1), mask, torch.zeros(len(sizes), dtype=torch.int64))
    with mock.patch.object(schedule, "BLOCK_BYTES", room):
        parts = list(schedule.blocks(side, schedule.widths(mask), components=1))
    assert sorted(torch.cat([part.items for part in parts]).tolist()) == list(range(len(sizes)))
    for part in parts:
        assert len(part.items) == 1 or len(part.items) * 48 * part.width <= room  # 48 bytes per point at least
        assert all(sizes[item] <= part.width for item in part.items.tolist())


@given(size=st.integers(1, 5000), extra=st.integers(0, 300))
def test_size_class_depends_only_on_the_item_and_has_little_padding(size, extra):
    mask = torch.zeros(1, size + extra, dtype=torch.bool)
    mask[0, :size] = True
    width = schedule.widths(mask).item()
    assert width == schedule.widths(mask[:, :size]).item()
    assert size <= width <= max(8 * -(-size // 8), 1.34 * size)


def test_cut_and_place_are_inverse():
    values = torch.arange(24.0).reshape(4, 6)
    block = schedule.Block(torch.tensor([2, 0]), width=8, whole=False)
    rows = schedule.cut(values, block)
    assert rows.shape == (2, 8)
    target = torch.zeros_like(values)
    schedule.put_rows(target, block.items, rows)
    assert torch.equal(target[[2, 0]], values[[2, 0]])
    assert torch.equal(target[[1, 3]], torch.zeros(2, 6))


def test_error_in_a_block_is_raised_and_threads_are_restored():
    before = torch.get_num_threads()

    def work(part):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        schedule.for_each(work, iter([schedule.Block(torch.tensor([0]), 64, True)]), torch.device("cpu"))
    assert torch.get_num_threads() == before
    seen = []
    thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert seen == [before]


@pytest.mark.parametrize("points", [36, 257])
def test_results_are_bitwise_independent_of_threads_and_batch(points):
    vectors = torch.nn.functional.normalize(torch.randn(5, points, 48, generator=torch.manual_seed(3)), dim=-1)
    side = point_set(vectors, torch.ones(5, points, dtype=torch.bool), torch.zeros(5, dtype=torch.int64))
    before, settings, fitted = torch.get_num_threads(), FitSettings(components=3), []
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            fitted.append(fit_all(side, settings).means)
            fitted.append(torch.cat([fit_all(take(side, item), settings).means for item in range(5)]))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(means, fitted[0]) for means in fitted)


def take(side, item):
    return point_set(side.points[item : item + 1], side.mask[item : item + 1], side.keys[item : item + 1])


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_grad_modes_of_the_caller_apply_in_threads(mode):
    vectors = torch.nn.functional.normalize(torch.randn(3, 40, 8, generator=torch.manual_seed(3)), dim=-1)
    with mode():
        side = point_set(vectors.clone(), torch.ones(3, 40, dtype=torch.bool), torch.zeros(3, dtype=torch.int64))
        assert fit_all(side, FitSettings(components=3)).means.isfinite().all()
        seen = []
        parts = iter([schedule.Block(torch.arange(3), 64, True)])
        schedule.for_each(lambda _: seen.append(torch.is_grad_enabled()), parts, torch.device("cpu"))
        assert set(seen) == {torch.is_grad_enabled()}
