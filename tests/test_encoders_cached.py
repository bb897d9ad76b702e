"""The one embedding cache: the wrapped encoder's own vectors, each item once, in memory and on disk, whatever happens."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from msdscore import load_encoder
from msdscore.encoders.base import Encoder, encode_pictures, prepare_all
from msdscore.encoders.cached import CachedEncoder, picture_key
from msdscore.errors import CaptionError, RunError
from msdscore.scoring.pipeline import Pipeline
from test_scoring import picture

TEXTS = ["a red square", "a blue ball on the left", "", "a red square", "élan \ud83d \N{DOG}"]


class Counting:
    """The toy encoder, counting what goes through it."""

    def __init__(self):
        self._toy = load_encoder("toy")
        self.seen, self.read = [], []

    name = property(lambda self: self._toy.name)
    signature = "toy@counted"
    device = property(lambda self: self._toy.device)
    bank, recommended = None, {"kappa": 7.0}

    def prepare(self, image):
        return self._toy.prepare(image)

    def encode_images(self, images):
        self.seen.append(len(images))
        return self._toy.encode_images(images)

    def encode_texts(self, texts):
        self.read += texts
        if "refused" in texts:
            raise CaptionError("the encoder refuses it")
        return self._toy.encode_texts(texts)


def same(ours, theirs):
    assert torch.equal(ours.points, theirs.points)
    assert torch.equal(ours.mask, theirs.mask)
    assert torch.equal(ours.pooled, theirs.pooled)
    for one, other in zip(ours.layout, theirs.layout, strict=True):
        if hasattr(one, "boxes"):
            assert (one.size, one.grid, one.warnings) == (other.size, other.grid, other.warnings)
            assert torch.equal(one.boxes, other.boxes)
        else:
            assert one == other


@pytest.mark.parametrize("on_disk", [False, True])
def test_vectors_are_the_encoders_own_and_each_item_is_made_once(tmp_path, on_disk):
    wrapped = Counting()
    cached = CachedEncoder(wrapped, folder=tmp_path if on_disk else None)
    assert isinstance(cached, Encoder)
    pictures = [picture(1), picture(2, (30, 20)), picture(1)]
    for _ in range(2):
        same(encode_pictures(cached, pictures), encode_pictures(load_encoder("toy"), pictures))
        same(cached.encode_texts(TEXTS), load_encoder("toy").encode_texts(TEXTS))
    assert (wrapped.seen, wrapped.read) == ([2], list(dict.fromkeys(TEXTS)))
    assert (cached.signature, cached.bank, cached.recommended) == (wrapped.signature, None, {"kappa": 7.0})


def test_another_run_finds_what_is_on_disk_and_another_encoder_does_not(tmp_path):
    first, second = Counting(), Counting()
    expected = CachedEncoder(first, folder=tmp_path).encode_texts(TEXTS)
    same(CachedEncoder(second, folder=tmp_path).encode_texts(TEXTS), expected)
    assert second.read == []
    other = Counting()
    other.signature = "toy@other"
    CachedEncoder(other, folder=tmp_path).encode_texts(TEXTS[:1])
    assert other.read == TEXTS[:1]


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-3], lambda data: data[:-1] + bytes([data[-1] ^ 1]), lambda _: b""]
)
def test_a_damaged_file_is_made_again(tmp_path, damage):
    CachedEncoder(Counting(), folder=tmp_path).encode_texts(TEXTS[:1])
    (file,) = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "signature.txt"]
    file.write_bytes(damage(file.read_bytes()))
    again = Counting()
    same(CachedEncoder(again, folder=tmp_path).encode_texts(TEXTS[:1]), load_encoder("toy").encode_texts(TEXTS[:1]))
    assert again.read == TEXTS[:1]
    last = Counting()
    CachedEncoder(last, folder=tmp_path).encode_texts(TEXTS[:1])
    assert last.read == []


def test_writers_side_by_side_leave_whole_files(tmp_path):
    texts = [f"a red ball number {number}" for number in range(40)]
    encoders = [CachedEncoder(Counting(), folder=tmp_path) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda encoder: encoder.encode_texts(texts), encoders))
    for one in found:
        same(one, load_encoder("toy").encode_texts(texts))
    last = Counting()
    CachedEncoder(last, folder=tmp_path).encode_texts(texts)
    assert last.read == []
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_killed_writer_leaves_nothing_that_is_read(tmp_path):
    """The process dies in the middle of its items; the rest is made by the next one."""
    code = (
        "import os, sys; from pathlib import Path; from msdscore import load_encoder; from msdscore.encoders import cached\n"
        "replace, calls = os.replace, []\n"
        "def dying(*names):\n"
        "    calls.append(names)\n"
        "    os._exit(9) if len(calls) == 4 else replace(*names)\n"
        "cached.os.replace = dying\n"
        "cached.CachedEncoder(load_encoder('toy'), folder=Path(sys.argv[1])).encode_texts([f'ball {n}' for n in range(9)])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=os.environ, check=False, timeout=120)
    assert done.returncode == 9
    encoder = CachedEncoder(load_encoder("toy"), folder=tmp_path)
    texts = [f"ball {n}" for n in range(9)]
    same(encoder.encode_texts(texts), load_encoder("toy").encode_texts(texts))


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"file: vectors cannot be kept here \(.*\)"):
        CachedEncoder(Counting(), folder=tmp_path / "file")


def test_memory_is_bounded_and_what_was_used_last_stays():
    wrapped = Counting()
    one = load_encoder("toy").encode_texts(["ball 1"])
    size = one.points.nbytes + one.mask.nbytes + one.pooled.nbytes
    cached = CachedEncoder(wrapped, memory=4 * size)
    for text in ("ball 1", "ball 2", "ball 1", "ball 3", "ball 1", "ball 2"):
        cached.encode_texts([text])
    assert wrapped.read == ["ball 1", "ball 2", "ball 3", "ball 2"]


def test_refusals_pass_through_and_are_not_kept():
    cached = CachedEncoder(Counting())
    for _ in range(2):
        with pytest.raises(CaptionError, match="the encoder refuses it"):
            cached.encode_texts(["a ball", "refused"])
    assert len(cached.encode_texts(["a ball"])) == 1


def test_equal_pixels_of_pictures_of_other_sizes_are_two_items():
    encoder = load_encoder("toy")
    small, large = prepare_all(encoder, [picture(1, (48, 48)), picture(1, (48, 48)).resize((96, 96), 0)])
    assert torch.equal(small.pixels, large.pixels)
    assert picture_key(small) != picture_key(large)


def test_a_pipeline_of_one_run_embeds_every_distinct_item_once():
    wrapped = Counting()
    pipeline = Pipeline(wrapped).remembering()
    decoded = pipeline.decode([picture(1), picture(2), picture(1)])
    first = pipeline.score(decoded, ["a red ball", "a blue ball", "a red ball"], [0, 1, 2])
    second = pipeline.score(decoded[:1], ["a red ball"], [0])
    assert (wrapped.seen, sorted(wrapped.read)) == ([2], ["a blue ball", "a red ball"])
    assert first[0] == first[2] == second[0]
    assert pipeline.remembering() is pipeline


def test_a_stream_of_pictures_does_not_push_out_the_texts():
    wrapped = Counting()
    one = encode_pictures(load_encoder("toy"), [picture(0)])
    cached = CachedEncoder(wrapped, memory=4 * (one.points.nbytes + one.mask.nbytes + one.pooled.nbytes))
    cached.encode_texts(["ball 1"])
    for number in range(9):
        encode_pictures(cached, [picture(number)])
    cached.encode_texts(["ball 1"])
    assert wrapped.read == ["ball 1"]
