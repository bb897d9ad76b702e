"""Streaming of batches: out-of-memory back-off, captions encoded once, overlap on a GPU."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import get_ident

import numpy as np
import pytest
import torch
from PIL import Image
from torch.backends import cuda as backends

from counting import CountingEncoder, results_of
from msdscore import Scorer
from msdscore.core.arrays import is_launching, launched
from msdscore.encoders.base import encode_in_batches
from msdscore.encoders.preprocessing import Preprocessing
from msdscore.encoders.registry import load_encoder
from msdscore.errors import ConfigError
from msdscore.forms import base
from msdscore.run.shards import ShardOptions
from msdscore.run.workers import plan_jobs, score_jobs
from msdscore.scoring.embedder import BATCH_SIZES, OBJECTS, VectorMemory
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.rows import Batch
from msdscore.scoring.spec import ScorerSpec
from msdscore_torch.feeding import processes as decoders
from msdscore_torch.feeding.images import batches_ahead
from tar_shards import write_tar
from tiny_clip import make_tiny_clip

COLOURS = ("red", "green", "blue", "white", "black", "yellow", "purple")


class Elsewhere(CountingEncoder):
    """The toy encoder, pretending to be on another device; `threads` are those that encode images."""

    def __init__(self, device="cuda", room=1000):
        super().__init__()
        self.device, self.room, self.threads = torch.device(device), room, set()

    def encode_images(self, images):
        self.threads.add(get_ident())
        if len(images) > self.room:
            raise torch.OutOfMemoryError("no room")
        return super().encode_images(images)


def batches(count, size=3):
    for first in range(count):
        names = [COLOURS[(first + number) % len(COLOURS)] for number in range(size)]
        images = [Image.new("RGB", (32, 32), name) for name in names]
        yield Batch(images, [f"a {name} square" for name in names], range(size))


def test_gpu_requests_overlap_with_identical_scores_in_order():
    plain, busy = Elsewhere("cpu"), Elsewhere()
    expected = list(results_of(Pipeline(plain), batches(12)))
    found = list(results_of(Pipeline(busy), batches(12)))
    for one, other in zip(expected, found, strict=True):
        assert [row.values["msd"] for row in other] == pytest.approx([row.values["msd"] for row in one], abs=1e-6)
    assert len(list(results_of(Pipeline(busy), batches(12)))) == 12  # another stream, in the same thread
    assert get_ident() not in busy.threads
    assert (len(busy.threads), plain.threads) == (1, {get_ident()})
    assert set(busy.captions) == {f"a {name} square" for name in COLOURS}
    assert len(busy.captions) < 36


def test_abandoned_stream_leaves_no_waiting_threads():
    taken = []

    def endless():
        for number in range(10_000):
            taken.append(number)
            yield next(batches(1))

    stream = results_of(Pipeline(Elsewhere()), endless())
    next(stream)
    stream.close()
    assert len(taken) < 10


def test_encoder_that_scores_on_a_gpu_does_not_wait_for_itself():
    class Nested(Elsewhere):
        def encode_images(self, images):
            assert len(list(results_of(Pipeline(inner), batches(6)))) == 6
            return super().encode_images(images)

    inner, stream = Elsewhere(), results_of(Pipeline(Nested()), batches(1))
    with ThreadPoolExecutor(1) as other:
        assert len(other.submit(list, stream).result(timeout=60)) == 1


class Watched(Elsewhere):
    """Encoder that records whether it runs in a launching thread without cuDNN attention, and rejects some captions."""

    def __init__(self):
        super().__init__()
        self.places = []

    def encode_images(self, images):
        self.places.append((is_launching(), backends.cudnn_sdp_enabled()))
        return super().encode_images(images)

    def encode_texts(self, texts):
        self.places.append((is_launching(), backends.cudnn_sdp_enabled()))
        if "a green square" in texts:
            raise ConfigError("refused")
        return super().encode_texts(texts)


def test_encoders_run_in_the_launching_thread_and_waiting_outside(monkeypatch):
    encoder, waited = Watched(), []
    fetching = base.fetching

    def watched(*tensors):
        wait = fetching(*tensors)
        return lambda: waited.append((is_launching(), backends.cudnn_sdp_enabled())) or wait()

    monkeypatch.setattr(base, "fetching", watched)
    pipeline = Pipeline(encoder)
    red, green = (pipeline.decode([Image.new("RGB", (32, 32), name)]) for name in COLOURS[:2])
    assert pipeline.score(red, ["a red square"], [0])
    assert (encoder.places, waited) == ([(True, False)] * 2, [(False, True)])
    with pytest.raises(ConfigError, match="refused"):
        pipeline.score(green, ["a green square"], [0])
    assert backends.cudnn_sdp_enabled()
    pipeline.embedder.texts(["a red square"]), pipeline.embedder.images(red)
    assert encoder.places[2:] == [(True, False)] * 4


def test_captions_are_encoded_once_while_the_image_of_a_single_score_is_decoded():
    encoder = Watched()
    score = Scorer(encoder).score(Image.new("RGB", (32, 32), "red"), "a red square")
    assert score.msd == Scorer("toy").score(Image.new("RGB", (32, 32), "red"), "a red square").msd
    assert encoder.captions == ["a red square"]


def test_failed_request_stops_only_its_stream_or_score():
    with pytest.raises(ConfigError, match="refused"):
        list(results_of(Pipeline(Watched()), batches(12)))
    with pytest.raises(ConfigError, match="refused"):
        Scorer(Watched()).score(Image.new("RGB", (32, 32), "red"), "a green square")
    assert len(list(results_of(Pipeline(Elsewhere()), batches(12)))) == 12


@pytest.mark.parametrize(
    ("edge", "images", "expected"), [(224, 256, 9), (224, 2048, 6), (512, 256, 7), (None, 256, 6), (384, 512, 6)]
)
def test_read_ahead_is_limited_by_shared_memory(edge, images, expected):
    assert batches_ahead(images, Preprocessing(edge, (edge, edge)) if edge else None) == expected


class ElsewhereSpec(ScorerSpec):
    """A scorer whose encoder pretends to be on another device."""

    def build(self):
        return Pipeline(Elsewhere(), batch_size=4, decoders=2)


@pytest.mark.slow
def test_overlapping_shards_have_identical_bytes(tmp_path):
    for number in range(4):
        write_tar(tmp_path / f"{number}.tar", 20, first=20 * number)
    found = []
    for at_once in (1, 2):
        jobs = plan_jobs([str(tmp_path / "*.tar")], str(tmp_path / f"{at_once}"))
        results = list(score_jobs(ElsewhereSpec(encoder="toy"), jobs, ShardOptions(), at_once=at_once))
        assert all(result.fresh and not result.failed for result in results)
        found.append([Path(job.output).read_bytes() for job in jobs])
    assert found[0] == found[1]


def test_batch_size_is_halved_permanently_on_out_of_memory():
    encoder = Elsewhere("cpu", room=3)
    pipeline = Pipeline(encoder)
    assert pipeline.batch_size == BATCH_SIZES[False]
    decoded = pipeline.decode([Image.new("RGB", (32, 32), name) for name in COLOURS])
    assert len(pipeline.embedder.images(decoded)) == 7
    assert encoder.images == [3, 3, 1]
    assert pipeline.batch_size == 3
    pipeline.embedder.images(decoded)
    assert encoder.images == [3, 3, 1] * 2


class Cramped(Elsewhere):
    """The toy encoder with memory for three items, counting batches that do not fit."""

    def __init__(self):
        super().__init__("cpu")
        self.failures = 0

    def check(self, items):
        if len(items) > 3:
            self.failures += 1
            raise torch.OutOfMemoryError("no room")

    def encode_images(self, images):
        self.check(images)
        return super().encode_images(images)

    def encode_texts(self, texts):
        self.check(texts)
        return super().encode_texts(texts)


def test_later_calls_start_with_the_batch_size_that_fitted():
    encoder = Cramped()
    scorer = Scorer(encoder)
    failures = []
    for call in range(3):
        images = [Image.new("RGB", (32, 32), (call, number, 0)) for number in range(40)]
        scores = scorer.score_batch(images, [f"square {call} {number}" for number in range(40)])
        assert scores.failed == 0
        failures.append(encoder.failures)
    assert failures[0] > 0
    assert failures == failures[:1] * 3
    # Other pipelines of the same scorer use it too.
    assert scorer.pipeline.remembering().batch_size == scorer.pipeline.batch_size <= 3


def test_derived_pipelines_leave_the_original_unchanged():
    pipeline = Pipeline(load_encoder("toy"))
    before = dict(vars(pipeline))
    derived = (pipeline.sharing(2), pipeline.remembering(), pipeline.remembering_texts())
    assert vars(pipeline) == before
    assert all(vars(other) != before and other.signature == pipeline.signature for other in derived)
    assert derived[0].streams == 2


def test_out_of_memory_for_one_item_is_raised():
    with pytest.raises(torch.OutOfMemoryError):
        encode_in_batches([1, 2], Elsewhere(room=0).encode_images, size=2)


def recall(memory, texts, encode):
    """Return the vectors of texts, which are their own keys."""
    return memory.recall(texts, texts, encode)


def test_text_cache_returns_identical_vectors_and_evicts_the_oldest():
    toy, asked = load_encoder("toy"), []

    def encode(texts):
        asked.append(list(texts))
        return toy.encode_texts(texts)

    first, second = ["a red square", "two"], ["a red square", "three blue circles on a line", "two"]
    one = toy.encode_texts(first)
    memory = VectorMemory(limit=2 * (one.nbytes + 2 * OBJECTS))
    recall(memory, first, encode)
    found, whole = recall(memory, second, encode), toy.encode_texts(second)
    assert asked == [first, second[1:2]]
    assert np.array_equal(found.mask, whole.mask)
    assert np.array_equal(found.points, whole.points)
    assert np.array_equal(found.pooled, whole.pooled)
    assert found.layout == whole.layout
    for number in range(5):
        recall(memory, [f"ball {number}"], encode)
    recall(memory, ["ball 4", "two"], encode)
    assert asked[-1] == ["two"]


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return load_encoder(str(make_tiny_clip(tmp_path_factory.mktemp("clip") / "tiny")), device="cpu")


@pytest.fixture
def file(tmp_path):
    Image.new("RGB", (32, 32), "red").save(tmp_path / "red.png")
    return tmp_path / "red.png"


def test_decoding_processes_equal_threads(clip, tmp_path, monkeypatch):
    files = [tmp_path / f"{name}.png" for name in COLOURS]
    for path in files:
        Image.new("RGB", (40, 32), path.stem).save(path)
    (tmp_path / "broken.jpg").write_bytes(b"not an image")
    sources = [*files, tmp_path / "broken.jpg", files[0].read_bytes()]
    captions = [f"the {number}" for number in range(len(sources))]
    asked = [Batch(sources, captions, range(len(sources))), Batch([Image.open(files[1])], ["in memory"], [0])]
    threads, processes = (
        [row for found in results_of(Pipeline(clip, decoders=count), asked) for row in found] for count in (0, 1)
    )
    assert list(map(repr, processes)) == list(map(repr, threads))
    assert "not an image" in str(processes[len(files)])
    monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("decoded in this process"))
    (found,) = results_of(Pipeline(clip, decoders=1), [Batch(files, captions[: len(files)], range(len(files)))])
    assert list(map(repr, found)) == list(map(repr, threads[: len(files)]))


def test_decoding_falls_back_to_threads(clip, file, monkeypatch):
    pipeline = Pipeline(clip, decoders=1)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    decoders.close_all()
    (found,) = results_of(pipeline, [Batch([file], ["a cat"], [0])])
    decoders.close_all()
    assert found == pipeline.score(pipeline.decode([file]), ["a cat"], [0])


def test_abandoned_stream_cancels_decoding(clip, file):
    pipeline = Pipeline(clip, decoders=1)
    stream = results_of(pipeline, (Batch([file] * 8, ["a cat"] * 8, range(8)) for _ in range(100)))
    first = next(stream)
    stream.close()
    assert next(results_of(pipeline, [Batch([file], ["a cat"], [0])])) == first[:1]


def test_overflow_is_raised_when_scores_are_read(tmp_path):
    encoder = load_encoder(str(make_tiny_clip(tmp_path / "clip")), device="cpu")
    prepared = encoder.prepare(Image.new("RGB", (32, 32), "red"))
    projection = encoder.model.visual_projection
    with torch.no_grad():
        projection.weight[0, 0] = torch.inf
    with pytest.raises(ConfigError, match="overflows in float32"):
        encoder.encode_images([prepared])
    gpu = torch.device("cuda")  # nothing waits in the launching thread
    assert launched(gpu, lambda: encoder.encode_images([prepared])).pooled.isnan().all()
    assert launched(gpu, lambda: encoder.encode_texts(["a cat"])).pooled.isfinite().all()
    with pytest.raises(ConfigError, match="overflows"):
        encoder.encode_images([prepared])
