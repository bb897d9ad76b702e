"""Cached features: round trip, sharing between seeds, and concurrent runs."""

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from filelock import FileLock
from hypothesis import given, settings
from hypothesis import strategies as st

from align_data import draw, make_rows, recipe, source
from msdscore.errors import ConfigError
from msdscore_lab.align.data.samples import make_view
from msdscore_lab.align.features import MatrixStore, MatrixWriter
from msdscore_lab.align.recipe import SampleSpec
from msdscore_lab.align.repeatable import deterministic_kernels
from msdscore_lab.align.run.parts import TrainOptions
from msdscore_lab.align.run.train import train

CPU = TrainOptions(device="cpu", workers=2)
VIEWS = {"views": 3, "contrast": 0.2}


def written(path, matrices, dtype="float32"):
    writer = MatrixWriter(path, dtype)
    for matrix in matrices:
        writer.extend(matrix.unsqueeze(0), torch.ones(1, len(matrix), dtype=torch.bool))
    writer.close()
    return MatrixStore(path, dtype)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.data())
def test_matrices_are_read_padded_in_any_order(tmp_path_factory, heights, data):
    matrices = [torch.randn(height, 3) for height in heights]
    store = written(tmp_path_factory.mktemp("store") / "some", matrices)
    numbers = data.draw(st.lists(st.integers(0, len(heights) - 1), min_size=1, max_size=8))
    batch, mask = store.take(numbers)
    assert len(store.ends) == len(heights) + 1
    assert batch.shape == (len(numbers), max(heights[n] for n in numbers), 3)
    for row, number in enumerate(numbers):
        assert torch.equal(batch[row][mask[row]], matrices[number])
        assert not batch[row][~mask[row]].any()


def test_writing_a_batch_equals_writing_its_items(tmp_path):
    vectors = torch.randn(4, 5, 2)
    mask = torch.arange(5) < torch.tensor([[5], [0], [2], [4]])
    writer = MatrixWriter(tmp_path / "batch", "float16")
    writer.extend(vectors, mask)
    writer.close()
    written(tmp_path / "single", [row[real] for row, real in zip(vectors, mask, strict=True)], "float16")
    for suffix in (".bin", ".npy"):
        kept = [(tmp_path / name).with_suffix(suffix).read_bytes() for name in ("batch", "single")]
        assert kept[0] == kept[1]


def test_values_beyond_the_dtype_are_rejected(tmp_path):
    writer = MatrixWriter(tmp_path / "large", "float16")
    with pytest.raises(ConfigError, match="overflow torch.float16"):
        writer.extend(torch.full((1, 1, 2), 1e6), torch.ones(1, 1, dtype=torch.bool))
    writer.close()


def test_seeds_share_a_cache_and_train_different_weights(tmp_path):
    rows, seen = source(make_rows(tmp_path / "data")), []
    options = replace(CPU, cache=str(tmp_path / "cache"), cache_dtype="float32", on_event=seen.append)
    for seed in (0, 1):
        train(replace(recipe(train={"batch": 8}, sample=VIEWS), seed=seed), rows, tmp_path / str(seed), options=options)
    assert len([path for path in (tmp_path / "cache").iterdir() if path.is_dir()]) == 1
    assert sum(event.kind == "cache" for event in seen) == 1
    kept = [next((tmp_path / str(seed)).glob("checkpoints/*/weights.safetensors")).read_bytes() for seed in (0, 1)]
    assert kept[0] != kept[1]


def test_run_waits_for_features_of_a_concurrent_run(tmp_path):
    rows, small = source(make_rows(tmp_path / "data")), recipe(train={"batch": 8})
    options = replace(CPU, cache=str(tmp_path / "cache"), cache_dtype="float32")
    train(small, rows, tmp_path / "first", options=options)
    (lock,) = (tmp_path / "cache").glob("*.lock")
    second = threading.Thread(target=train, args=(small, rows, tmp_path / "second"), kwargs={"options": options})
    with FileLock(lock):
        second.start()
        second.join(timeout=1.0)
        assert second.is_alive()
        assert not (tmp_path / "second" / "checkpoints").exists()
    second.join(timeout=60)
    assert (tmp_path / "second" / "report.json").is_file()


def test_brightness_and_contrast_change_mean_and_spread():
    image = draw("red", "square")
    before = np.asarray(image, float)
    for view in range(1, 20):
        lit = np.asarray(make_view(image, SampleSpec(views=20, crop=1.0, brightness=0.2), (), item=0, view=view), float)
        # The crop may remove the border, so the grey background is compared instead of the mean.
        shift = lit[0, 0] - before[0, 0]
        assert np.ptp(shift) == 0
        assert abs(shift[0]) <= 0.2 * before.mean() + 1


def test_cpu_does_not_select_deterministic_kernels():
    with deterministic_kernels(torch.device("cpu")):
        assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu_runs_are_bitwise_reproducible(tmp_path):
    rows, small = source(make_rows(tmp_path / "data")), recipe(train={"batch": 8}, sample=VIEWS)
    for name in ("one", "two"):
        train(small, rows, tmp_path / name, options=replace(CPU, device="cuda", cache=str(tmp_path / "cache")))
    kept = [next((tmp_path / name).glob("checkpoints/*/weights.safetensors")).read_bytes() for name in ("one", "two")]
    assert kept[0] == kept[1]
