"""The embedding cache: identical vectors, each item encoded once, in memory and on disk, also after crashes."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from functools import partial

import numpy as np
import pytest
import torch

from counting import CountingEncoder
from msdscore import load_encoder
from msdscore.core.arrays import is_launching
from msdscore.encoders.base import Encoder, capabilities, prepare_all, prepare_and_encode
from msdscore.encoders.cached import CachedEncoder, CacheSettings, remove_oldest
from msdscore.encoders.fingerprint import encoder_signature
from msdscore.encoders.preprocessing import Preprocessing, prepare_image, prepared_key
from msdscore.errors import CaptionError, ConfigError, RunError
from msdscore.io.images import ImageLimits
from msdscore.scoring.embedder import OBJECTS
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.spec import ScorerSpec
from test_scoring import make_image

TEXTS = ["a red square", "a blue ball on the left", "", "a red square", "élan \ud83d \N{DOG}"]


def kept(folder, **how):
    return CacheSettings(folder=str(folder), **how)


def files(folder):
    """Return the cached items in a folder."""
    return [path for path in folder.rglob("*") if path.is_file() and len(path.name) == 38]


def same(ours, theirs):
    assert np.array_equal(ours.points, theirs.points)
    assert np.array_equal(ours.mask, theirs.mask)
    assert np.array_equal(ours.pooled, theirs.pooled)
    for one, other in zip(ours.layout, theirs.layout, strict=True):
        if hasattr(one, "boxes"):
            assert (one.size, one.grid, one.warnings) == (other.size, other.grid, other.warnings)
            assert np.array_equal(one.boxes, other.boxes)
        else:
            assert one == other


def test_vectors_equal_the_encoder_and_items_are_encoded_once(tmp_path):
    wrapped = CountingEncoder()
    cached = CachedEncoder(wrapped, kept(tmp_path))
    assert isinstance(cached, Encoder)
    images = [make_image(1), make_image(2, (30, 20)), make_image(1)]
    for _ in range(2):
        same(prepare_and_encode(cached, images), prepare_and_encode(load_encoder("toy"), images))
        same(cached.encode_texts(TEXTS), load_encoder("toy").encode_texts(TEXTS))
    assert (wrapped.images, wrapped.captions) == ([2], list(dict.fromkeys(TEXTS)))
    assert (cached.signature, cached.bank, cached.recommended) == (
        encoder_signature(wrapped),
        None,
        wrapped.recommended,
    )


def test_tokens_without_a_vector_are_counted_from_the_disk_too(tmp_path):
    pytest.importorskip("msdscore_mini", reason="needs the weights of mini")
    texts = ["a red square", "a blue ball on the left"]
    expected = load_encoder("mini", device="cpu").encode_texts(texts)
    for _ in range(2):  # written, then read
        cached = CachedEncoder(load_encoder("mini", device="cpu"), kept(tmp_path))
        same(cached.encode_texts(texts), expected)
        assert cached.encode_texts(texts).token_counts.tolist() == [3, 6]
    assert expected.lengths.tolist() == [2, 3]


def test_disk_cache_is_shared_by_runs_but_not_by_encoders(tmp_path):
    first, second = CountingEncoder(), CountingEncoder()
    expected = CachedEncoder(first, kept(tmp_path)).encode_texts(TEXTS)
    same(CachedEncoder(second, kept(tmp_path)).encode_texts(TEXTS), expected)
    assert second.captions == []
    other = CountingEncoder()
    other.signature = "toy@other"
    CachedEncoder(other, kept(tmp_path)).encode_texts(TEXTS[:1])
    assert other.captions == TEXTS[:1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("msdscore.encoders.cached.__version__", "9.9")
        CachedEncoder(second, kept(tmp_path)).encode_texts(TEXTS[:1])
    assert second.captions == TEXTS[:1]


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-3], lambda data: data[:-1] + bytes([data[-1] ^ 1]), lambda _: b""]
)
def test_damaged_file_is_encoded_again(tmp_path, damage):
    CachedEncoder(CountingEncoder(), kept(tmp_path)).encode_texts(TEXTS[:1])
    (file,) = files(tmp_path)
    file.write_bytes(damage(file.read_bytes()))
    again = CountingEncoder()
    same(CachedEncoder(again, kept(tmp_path)).encode_texts(TEXTS[:1]), load_encoder("toy").encode_texts(TEXTS[:1]))
    assert again.captions == TEXTS[:1]
    last = CountingEncoder()
    CachedEncoder(last, kept(tmp_path)).encode_texts(TEXTS[:1])
    assert last.captions == []


def test_concurrent_writers_leave_valid_files(tmp_path):
    texts = [f"a red ball number {number}" for number in range(40)]
    encoders = [CachedEncoder(CountingEncoder(), kept(tmp_path)) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda encoder: encoder.encode_texts(texts), encoders))
    for one in found:
        same(one, load_encoder("toy").encode_texts(texts))
    last = CountingEncoder()
    CachedEncoder(last, kept(tmp_path)).encode_texts(texts)
    assert last.captions == []
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.slow
def test_killed_writer_leaves_no_partial_items(tmp_path):
    """The process dies between items; the next one encodes the rest."""
    code = (
        "import os, signal, sys; from pathlib import Path; from msdscore import load_encoder; from msdscore.encoders import cached\n"
        "replace, calls = os.replace, []\n"
        "def dying(*names):\n"
        "    calls.append(names)\n"
        "    signal.raise_signal(signal.SIGKILL) if len(calls) == 4 else replace(*names)\n"
        "cached.os.replace = dying\n"
        "cached.CachedEncoder(load_encoder('toy'), cached.CacheSettings(folder=sys.argv[1])).encode_texts([f'ball {n}' for n in range(9)])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=os.environ, check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL
    encoder = CachedEncoder(load_encoder("toy"), kept(tmp_path))
    texts = [f"ball {n}" for n in range(9)]
    same(encoder.encode_texts(texts), load_encoder("toy").encode_texts(texts))


def test_a_folder_that_cannot_be_written_is_a_one_line_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="file: cannot store"):
        CachedEncoder(CountingEncoder(), kept(tmp_path / "file"))


class Able(CountingEncoder):
    """An encoder with every capability."""

    preprocessing = Preprocessing(resize=(32, 32), crop=None)
    precision, marks_overflow, sendable_prepare = torch.bfloat16, True, partial(prepare_image, steps=preprocessing)

    def encode_sentences(self, texts):
        return np.ones((len(texts), 2))

    def as_published(self):
        return load_encoder("toy")


@pytest.mark.parametrize("wrapped", [CountingEncoder(), Able()], ids=["none", "all"])
def test_a_cache_keeps_each_capability(tmp_path, wrapped):
    plain = capabilities(wrapped)
    able = type(wrapped) is Able
    values = [getattr(plain, field.name) for field in fields(plain)]
    assert [value not in (None, False, "float32") for value in values] == [*[able] * 6, False, False]
    kept_ones = capabilities(CachedEncoder(wrapped, kept(tmp_path)))
    assert kept_ones.cache is not None
    assert kept_ones.as_published is not None
    assert replace(kept_ones, cache=None, as_published=plain.as_published) == plain


def test_errors_pass_through_and_are_not_cached(tmp_path):
    cached = CachedEncoder(CountingEncoder(), kept(tmp_path))
    for _ in range(2):
        with pytest.raises(CaptionError, match="rejected by the encoder"):
            cached.encode_texts(["a ball", "refused"])
    assert len(cached.encode_texts(["a ball"])) == 1


def test_vectors_that_overflow_on_a_gpu_are_an_error_and_not_cached(tmp_path):
    class Marking(CountingEncoder):
        """An encoder that marks vectors in the launching thread, in which it must not wait for the device."""

        device, marks_overflow = torch.device("cuda"), True

        def encode_texts(self, texts):
            vectors = super().encode_texts(texts)
            assert is_launching()
            return (
                replace(vectors, pooled=np.full_like(vectors.pooled, np.nan)) if "a huge square" in texts else vectors
            )

    encoder = Marking()
    cached = CachedEncoder(encoder, CacheSettings(folder=str(tmp_path)))
    for _ in range(2):
        with pytest.raises(ConfigError, match="overflows"):
            Pipeline(cached).embedder.texts(["a huge square"])
    assert len(Pipeline(cached).embedder.texts(["a red square"])) == 1
    assert encoder.captions == ["a huge square"] * 2 + ["a red square"]
    with pytest.raises(ConfigError, match="overflows"):
        Pipeline(encoder).embedder.texts(["a huge square"])


def test_equal_pixels_of_images_of_other_sizes_are_two_items():
    encoder = load_encoder("toy")
    small, large = prepare_all(encoder.prepare, [make_image(1, (48, 48)), make_image(1, (48, 48)).resize((96, 96), 0)])
    assert np.array_equal(small.pixels, large.pixels)
    assert prepared_key(small) != prepared_key(large)


def test_pipeline_embeds_each_distinct_item_once():
    wrapped = CountingEncoder()
    pipeline = Pipeline(wrapped).remembering()
    decoded = pipeline.decode([make_image(1), make_image(2), make_image(1)])
    first = pipeline.score(decoded, ["a red ball", "a blue ball", "a red ball"], [0, 1, 2])
    second = pipeline.score(decoded[:1], ["a red ball"], [0])
    assert (wrapped.images, sorted(wrapped.captions)) == ([2], ["a blue ball", "a red ball"])
    assert first[0] == first[2] == second[0]
    assert pipeline.remembering() is pipeline


def test_images_do_not_evict_texts():
    wrapped = CountingEncoder()
    pipeline = Pipeline(wrapped).remembering(limit=4 * (prepare_and_encode(wrapped, [make_image(0)]).nbytes + OBJECTS))
    for number in range(9):
        pipeline.score(pipeline.decode([make_image(number)]), ["ball 1"], [0])
    assert wrapped.captions == ["ball 1"]
    pipeline.score(pipeline.decode([make_image(8), make_image(0)]), ["ball 1", "ball 1"], [0, 1])
    assert wrapped.images[1:] == [1] * 9 + [1]  # the last image was known, the first was evicted


def used(path, seconds):
    """Set the last use of a file to this many seconds ago."""
    os.utime(path, (path.stat().st_mtime - seconds,) * 2)


def test_disk_cache_evicts_least_recently_used_and_no_other_files(tmp_path):
    (tmp_path / "mine").mkdir()
    for name in ("mine/notes.txt", "notes.txt"):
        (tmp_path / name).write_bytes(b"x" * 9000)
        used(tmp_path / name, 9999)
    wrapped = CountingEncoder()
    CachedEncoder(wrapped, kept(tmp_path)).encode_texts(["ball 1"])
    (one,) = files(tmp_path)
    size = one.stat().st_size
    used(one, 500)
    abandoned = one.with_name(".0.tmp")
    abandoned.write_bytes(b"")
    used(abandoned, 9999)
    CachedEncoder(wrapped, kept(tmp_path)).encode_texts([f"ball {n}" for n in range(2, 6)])
    assert sum(path.stat().st_size for path in files(tmp_path)) == 5 * size
    for path in set(files(tmp_path)) - {one}:
        used(path, 900)
    again = CachedEncoder(wrapped, kept(tmp_path, limit=5 * size))
    again.encode_texts(["ball 1"])
    again.encode_texts(["ball 6"])
    assert 3 * size <= sum(path.stat().st_size for path in files(tmp_path)) <= 5 * size
    wrapped.captions.clear()
    CachedEncoder(wrapped, kept(tmp_path)).encode_texts(["ball 1", "ball 6"])
    assert wrapped.captions == []
    assert (tmp_path / "notes.txt").exists()
    assert (tmp_path / "mine/notes.txt").exists()
    assert not abandoned.exists()


def test_disk_cache_stays_within_its_limit(tmp_path):
    wrapped = CountingEncoder()
    CachedEncoder(wrapped, kept(tmp_path)).encode_texts(["ball 0"])
    limit = 40 * files(tmp_path)[0].stat().st_size
    cached = CachedEncoder(wrapped, kept(tmp_path, limit=limit))
    for number in range(200):
        cached.encode_texts([f"ball {number}"])
        assert sum(path.stat().st_size for path in files(tmp_path)) <= 1.1 * limit
    with pytest.raises(ConfigError, match="at least 1 byte, got 0"):
        kept(tmp_path, limit=0)


def test_disk_cache_of_exactly_its_limit_evicts_nothing(tmp_path):
    CachedEncoder(CountingEncoder(), kept(tmp_path)).encode_texts(["ball 1", "ball 2"])
    total = sum(path.stat().st_size for path in files(tmp_path))
    assert remove_oldest(tmp_path, total) == total
    assert len(files(tmp_path)) == 2
    assert remove_oldest(tmp_path, total - 1) == total // 2
    assert len(files(tmp_path)) == 1


def test_cached_file_is_not_decoded(tmp_path):
    make_image(1).save(tmp_path / "one.png")
    make_image(2).save(tmp_path / "two.png")
    sources = [tmp_path / "one.png", (tmp_path / "two.png").read_bytes()]
    pipelines = [Pipeline(CachedEncoder(CountingEncoder(), kept(tmp_path / "cache"))) for _ in range(2)]
    plain = Pipeline(CountingEncoder())
    expected = plain.score(plain.decode(sources), ["a ball", "a square"], [0, 1])
    assert pipelines[0].score(pipelines[0].decode(sources), ["a ball", "a square"], [0, 1]) == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("msdscore.scoring.decoder.open_image", None)
        decoded = pipelines[1].decode(sources)
    for path in files(tmp_path / "cache"):
        path.unlink()  # removed between decoding and encoding: encoded again
    assert pipelines[1].score(decoded, ["a ball", "a square"], [0, 1]) == expected


def test_files_are_identified_by_content(tmp_path):
    path = tmp_path / "one.png"
    pipeline = Pipeline(CachedEncoder(CountingEncoder(), kept(tmp_path / "cache")))
    path.write_bytes(b"nothing")
    for source in (path, tmp_path / "none.png", b"nothing", tmp_path):
        (ours,), (usual,) = pipeline.decode([source]), Pipeline(load_encoder("toy")).decode([source])
        assert str(ours) == str(usual)
    for number in (1, 2):
        make_image(number).save(path)
        same(
            pipeline.embedder.images(pipeline.decode([path])).vectors,
            prepare_and_encode(load_encoder("toy"), [make_image(number)]),
        )
    small = Pipeline(pipeline.encoder, limits=ImageLimits(max_pixels=9))
    assert "max_pixels" in str(small.decode([path])[0])


def test_other_forms_use_the_same_vectors(tmp_path):
    make_image(1).save(tmp_path / "one.png")
    for form, there in (("short", 0), ("paper", 1), ("long", 1)):  # starts of the paper's mixtures are drawn by pixels
        pipeline = ScorerSpec(encoder="toy", form=form, cache=kept(tmp_path / "cache")).build()
        pipeline.score(pipeline.decode([tmp_path / "one.png"], keep=form == "long"), ["a ball"], [0])
        assert pipeline.cache_use.images - pipeline.cache_use.images_made == there


@pytest.mark.slow
def test_two_processes_write_one_cache(tmp_path):
    code = (
        "import sys; from msdscore import load_encoder; from msdscore.encoders.cached import *\n"
        "cached = CachedEncoder(load_encoder('toy'), CacheSettings(folder=sys.argv[1], limit=60_000))\n"
        "for n in range(120): cached.encode_texts([f'ball {n % 40}'])"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    running = [subprocess.Popen(command, env=os.environ) for _ in range(2)]
    assert [one.wait(timeout=120) for one in running] == [0, 0]
    assert 0 < sum(path.stat().st_size for path in files(tmp_path)) < 80_000
    texts = [f"ball {n}" for n in range(40)]
    same(
        CachedEncoder(CountingEncoder(), kept(tmp_path)).encode_texts(texts),
        load_encoder("toy").encode_texts(texts),
    )


def test_swapped_files_are_encoded_again(tmp_path):
    CachedEncoder(CountingEncoder(), kept(tmp_path)).encode_texts(TEXTS[:2])
    first, second = files(tmp_path)
    contents = first.read_bytes(), second.read_bytes()
    first.write_bytes(contents[1])
    second.write_bytes(contents[0])
    again = CountingEncoder()
    vectors = CachedEncoder(again, kept(tmp_path)).encode_texts(TEXTS[:2])
    same(vectors, load_encoder("toy").encode_texts(TEXTS[:2]))
    assert again.captions == TEXTS[:2]
