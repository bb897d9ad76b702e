import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from msdscore.core import embeddings
from msdscore.core.divergence import fit_all
from msdscore.core.mixture import FitSettings
from point_sets import point_set


@given(sizes=st.lists(st.integers(1, 700), min_size=1, max_size=40), room=st.sampled_from([1, 50_000, 10_000_000]))
def test_blocks_contain_each_item_once_within_the_memory_limit(sizes, room):
    mask = np.arange(700) < np.array(sizes)[:, None]
    parts = list(embeddings.blocks(embeddings.widths(mask), lambda width: 48 * width, room))
    assert sorted(np.concatenate([part.items for part in parts]).tolist()) == list(range(len(sizes)))
    for part in parts:
        assert len(part.items) == 1 or len(part.items) * 48 * part.width <= room
        assert all(sizes[item] <= part.width for item in part.items.tolist())


@given(size=st.integers(1, 5000), extra=st.integers(0, 300))
def test_size_class_depends_only_on_the_item_and_has_little_padding(size, extra):
    mask = torch.zeros(1, size + extra, dtype=torch.bool)
    mask[0, :size] = True
    width = embeddings.widths(mask).item()
    assert width == embeddings.widths(mask[:, :size]).item()
    assert size <= width <= max(8 * -(-size // 8), 1.34 * size)


@pytest.mark.parametrize("room", [1, 16, 1 << 20])
def test_rows_of_blocks_are_in_the_order_of_their_items(room):
    values = torch.arange(24.0).reshape(4, 6)
    mask = torch.tensor([6, 2, 3, 6])[:, None] > torch.arange(6)

    def double(block):
        assert block.cut(values).shape == (len(block.items), block.width)
        return block.items, (2 * block.rows(values), block.rows(mask))

    rows, masks = embeddings.map_blocks(double, embeddings.widths(mask), lambda width: 4 * width, like=values)
    assert torch.equal(rows, 2 * values)
    assert torch.equal(masks, mask)


def test_error_in_a_block_is_raised_and_threads_are_restored():
    before = torch.get_num_threads()

    def work(part):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        embeddings.map_blocks(work, np.array([64]), lambda width: width, like=torch.zeros(1))
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

        def work(block):
            seen.append(torch.is_grad_enabled())
            return block.items, (vectors[block.items],)

        embeddings.map_blocks(work, np.full(3, 64), lambda width: width, like=vectors)
        assert set(seen) == {torch.is_grad_enabled()}
