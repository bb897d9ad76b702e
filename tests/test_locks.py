"""No lock is held while calling out: threads that meet in either order both finish."""

from concurrent.futures import Future
from functools import partial
from threading import Event, Lock, Thread
from time import sleep

import numpy as np
import pytest
import torch
from PIL import Image

import msdscore
from msdscore.core.arrays import launched
from msdscore.encoders.registry import load_encoder
from msdscore.scoring.embedder import OBJECTS, Recent, VectorMemory
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.references import compare_texts
from msdscore_torch.integrations.shared import shared_scorer
from test_scoring_stream import recall

GPU = torch.device("cuda")
SECONDS = 20.0  # far more than each test needs


def both(first, second):
    """Results of two functions in two threads; fails instead of waiting forever."""

    def start(function):
        future = Future()

        def run():
            try:
                future.set_result(function())
            except BaseException as error:  # noqa: BLE001, it is raised by the test
                future.set_exception(error)

        Thread(target=run, daemon=True).start()  # unlike a pool's, it does not block the end of the tests
        return future

    return [future.result(timeout=SECONDS) for future in [start(first), start(second)]]


def test_recent_values_are_computed_once_and_evicted_by_their_last_use():
    computed, recent = [], Recent(limit=2)

    def compute(key):
        computed.append(key)
        return key

    for key in ("a", "b", "a", "c", "a", "b"):
        assert recent.get(key, partial(compute, key)) == key
    assert computed == ["a", "b", "c", "b"]
    assert Recent[str, int](limit=0).get("a", lambda: 1) == 1  # evicted at once


def test_recent_values_are_unlocked_while_one_is_computed():
    recent, first, second = Recent(limit=2), Event(), Event()

    def compute(mine, other):
        mine.set()
        assert other.wait(SECONDS)
        return "computed"

    assert both(
        lambda: recent.get("a", lambda: compute(first, second)), lambda: recent.get("a", lambda: compute(second, first))
    ) == ["computed", "computed"]


@pytest.mark.parametrize("known", [(), ("a red square",)])
def test_memory_is_unlocked_while_encoding(known):
    toy, memory = load_encoder("toy"), VectorMemory()
    if known:
        recall(memory, known, toy.encode_texts)
    is_encoding, is_launching = Event(), Event()

    def encode(texts):
        is_encoding.set()
        assert is_launching.wait(SECONDS)
        return launched(GPU, lambda: toy.encode_texts(texts))

    def memory_first():
        return recall(memory, [*known, "two"], encode)

    def launch_first():
        assert is_encoding.wait(SECONDS)
        return launched(GPU, lambda: is_launching.set() or recall(memory, [*known, "three"], toy.encode_texts))

    first, second = both(memory_first, launch_first)
    assert np.array_equal(first.points, toy.encode_texts([*known, "two"]).points)
    assert np.array_equal(second.points, toy.encode_texts([*known, "three"]).points)


def test_text_in_two_batches_is_evicted_without_error():
    toy = load_encoder("toy")
    size = toy.encode_texts(["one"]).nbytes + OBJECTS
    memory = VectorMemory(limit=3 * size)

    def encode_slowly(texts):
        recall(memory, ["one", "two"], toy.encode_texts)  # another thread encodes the same text meanwhile
        return toy.encode_texts(texts)

    both(lambda: recall(memory, ["one"], encode_slowly), lambda: None)
    recall(memory, ["two"], toy.encode_texts)  # uses the older batch, so that the newer one is evicted first
    for number in range(6):
        found = recall(memory, [f"ball {number}", "one"], toy.encode_texts)
        assert np.array_equal(found.pooled, toy.encode_texts([f"ball {number}", "one"]).pooled)


class OnGpu:
    """The toy encoder as if on a GPU; `waits` is called in its lock, before it launches, with the texts."""

    def __init__(self, waits):
        self.toy, self.lock, self.waits = load_encoder("toy"), Lock(), waits
        self.device = GPU

    def __getattr__(self, name):
        return getattr(self.toy, name)

    def encode_images(self, images):
        with self.lock:
            return launched(GPU, lambda: self.toy.encode_images(images))

    def encode_texts(self, texts):
        with self.lock:
            self.waits(texts)
            return launched(GPU, lambda: self.toy.encode_texts(texts))


@pytest.mark.parametrize("first", ["references", "score"])
def test_references_and_scores_of_two_threads_meet(first):
    is_inside = Event()
    special = {"references": "a red box", "score": "a red thing"}

    def waits(texts):
        if special[first] in texts and not is_inside.is_set():
            is_inside.set()
            sleep(0.3)  # the other thread goes as far as it can

    pipeline = Pipeline(OnGpu(waits)).remembering_texts()
    red = pipeline.decode([Image.new("RGB", (32, 32), "red")])

    def compare():
        if first != "references":
            assert is_inside.wait(SECONDS)
        return compare_texts(pipeline.embedder, ["a red square"], [["a red box", "something"]])

    def score():
        if first != "score":
            assert is_inside.wait(SECONDS)
        return pipeline.score(red, ["a red thing"], [0])

    (compared,), (scored,) = both(compare, score)
    assert compared.values is not None
    assert scored.values["msd"] is not None


def test_scorer_is_loaded_once_by_several_threads(monkeypatch):
    loaded = []
    load = msdscore.Scorer.from_spec

    def slowly(spec):
        loaded.append(spec)
        sleep(0.1)
        return load(spec)

    monkeypatch.setattr(msdscore.Scorer, "from_spec", slowly)
    spec = msdscore.ScorerSpec(encoder="toy", batch_size=7)
    one, other = both(lambda: shared_scorer(spec), lambda: shared_scorer(spec))
    assert one is other
    assert len(loaded) == 1


def test_encoder_may_load_another_scorer_while_it_is_loaded(monkeypatch):
    load = msdscore.Scorer.from_spec

    def wrapping(spec):
        if dict(spec.options).get("outer"):
            return shared_scorer(msdscore.ScorerSpec(encoder="toy", batch_size=9))
        return load(spec)

    monkeypatch.setattr(msdscore.Scorer, "from_spec", wrapping)
    outer = msdscore.ScorerSpec(encoder="toy", options={"outer": True})
    one, other = both(lambda: shared_scorer(outer), lambda: shared_scorer(outer))
    assert one is other


def test_failed_load_is_tried_again():
    spec = msdscore.ScorerSpec(encoder="toy", bank="missing.safetensors")
    for _ in range(2):
        with pytest.raises(msdscore.MSDScoreError, match="missing"):
            shared_scorer(spec)
