"""The example plugin is short and installable, and its encoder is loaded by name."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from msdscore import ConfigError, RunError, Scorer, UnknownNameError, load_encoder
from msdscore.core.embeddings import unit
from msdscore.encoders.base import TokenLayout
from msdscore.encoders.fingerprint import encoder_signature
from msdscore.testing import check_encoder, find_faults

EXAMPLE = Path(__file__).parent.parent / "examples" / "encoder-plugin"

USE = """
from PIL import Image
from msdscore.encoders.base import Encoder, prepare_and_encode
from msdscore.encoders.registry import find_row, load_encoder
from msdscore.scorer import Scorer

encoder = load_encoder("greyscale", device="cpu")
assert isinstance(encoder, Encoder) and find_row("greyscale").licence == "MIT"
image = Image.new("RGB", (40, 30), "white")
seen, read = prepare_and_encode(encoder, [image]), encoder.encode_texts(["white", "black", "nothing here"])
assert seen.layout[0].boxes[-1].tolist() == [30, 22.5, 40, 30]
assert read.layout[0].spans == ((0, 5),) and read.mask.sum(1).tolist() == [1, 1, 0]
white, black = (seen.pooled @ read.pooled[:2].T)[0].tolist()
scores = [Scorer(encoder=encoder).score(image, text) for text in ("white", "black")]
assert scores[0].msd > scores[1].msd
print(encoder.signature, round(white, 4), round(abs(black), 4))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    target = tmp_path_factory.mktemp("plugin")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    install += ["--disable-pip-version-check", "--target", str(target), str(EXAMPLE)]
    subprocess.run(install, check=True, capture_output=True, text=True)
    return target


def test_example_is_short():
    files = [EXAMPLE / "pyproject.toml", *EXAMPLE.rglob("*.py")]
    assert sum(len(path.read_text().splitlines()) for path in files) < 60


def test_the_installed_plugin_scores_images(installed):
    code = f"import sys; sys.path.insert(0, {str(installed)!r})\n{USE}"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == "greyscale@1,long:window,dtype:float32"
    assert done.stdout.split()[1:] == ["1.0", "0.0"]


MINE = """
from msdscore import load_encoder

def make(device="auto", shade=0):
    encoder = load_encoder("toy", device=device)
    encoder.signature = f"mine@{shade}"
    return encoder

ready = make()
THREE = 3
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Write a user module to the working folder, which is not on the path of the installed command."""
    (tmp_path / "mine_of_a_user.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    yield "mine_of_a_user"
    sys.modules.pop("mine_of_a_user", None)


def test_encoder_is_imported_from_a_module_in_the_working_folder(mine):
    assert load_encoder(f"{mine}:make", shade=3).signature == "mine@3"
    assert Scorer(f"{mine}:ready").signature.startswith("msd|enc:mine@0,own:")
    assert Scorer(f"{mine}:make").spec.record() is None  # its code may change
    with pytest.raises(UnknownNameError, match=":make 'shad'.*'shade'"):
        load_encoder(f"{mine}:make", shad=3)
    with pytest.raises(ConfigError, match=":THREE: .*got int"):
        load_encoder(f"{mine}:THREE")
    with pytest.raises(ConfigError, match=":nothing' cannot be imported"):
        load_encoder(f"{mine}:nothing")
    with pytest.raises(ConfigError, match="use mine_of_a_user:make in"):
        load_encoder(f"{mine}.py:make")
    Path("fails.py").write_text("\nmake = 1 / 0")
    with pytest.raises(ConfigError, match="ZeroDivision.*fails.py, line 2"):
        load_encoder("fails:make")
    with pytest.raises(UnknownNameError, match="'no_such_module:make'"):
        load_encoder("no_such_module:make")
    Path("needs_more.py").write_text("import a_library_that_is_not_there")
    with pytest.raises(ConfigError, match="a_library_that_is_not_there"):
        load_encoder("needs_more:make")


WITH_WEIGHTS = """
from dataclasses import replace
import numpy as np
from msdscore import load_encoder
from helper_of_a_user import unit

class Turned:
    name, signature, device, bank, recommended = "turned", "turned@1", "cpu", None, None

    def __init__(self, inner):
        self.weights, self.inner = inner, load_encoder("toy")
        self.prepare, self.encode_images = self.inner.prepare, self.inner.encode_images

    def encode_texts(self, texts):
        batch = self.inner.encode_texts(texts)
        return replace(batch, points=unit(batch.points @ self.weights), pooled=unit(batch.pooled @ self.weights))

def load():
    return Turned(np.load("weights.npy"))

def built_in_class():
    encoder = load_encoder("toy")
    encoder.weights = np.load("weights.npy")
    return encoder

def with_file():
    encoder = load_encoder("toy")
    encoder.path = "weights.npy"
    return encoder
"""
HELPER = """
import numpy as np
def unit(v):
    return (v / np.maximum(np.linalg.norm(v, axis=-1, keepdims=True), 1e-12)).astype(np.float32)
"""
SCORE = [sys.executable, "-m", "msdscore", "score", "rows.jsonl", "-o", "scores.parquet", "--encoder"]


@pytest.mark.parametrize("loader", ["load", "built_in_class", "with_file"])
def test_other_weights_or_code_of_an_own_encoder_are_never_taken_for_finished_work(tmp_path, loader):
    dim = load_encoder("toy").encode_texts(["ball"]).pooled.shape[1]
    weights = np.eye(dim, dtype=np.float32)
    np.save(tmp_path / "weights.npy", weights)
    Image.new("RGB", (64, 64), "red").save(tmp_path / "red.png")
    (tmp_path / "rows.jsonl").write_text('{"image": "red.png", "caption": "a red square"}')
    (tmp_path / "turned_of_a_user.py").write_text(WITH_WEIGHTS)
    (tmp_path / "helper_of_a_user.py").write_text(HELPER)

    def score():
        command = [*SCORE, f"turned_of_a_user:{loader}"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    assert score()[0] == 0
    assert "already finished" in score()[1]
    weights[0, 1] = 1e-3
    np.save(tmp_path / "weights.npy", weights)
    code, message = score()
    assert code == 2
    assert "another encoder" in message
    weights[0, 1] = 0
    np.save(tmp_path / "weights.npy", weights)
    assert "already finished" in score()[1]
    (tmp_path / "helper_of_a_user.py").write_text(HELPER.replace("1e-12", "1e-9"))
    assert score()[0] == 2


def test_own_encoder_that_is_trained_between_two_runs_has_another_signature(tmp_path):
    class Own(Broken):
        name = signature = "own"

    encoder = Own(weights=np.zeros(3))
    Image.new("RGB", (64, 64), "red").save(tmp_path / "red.png")
    (tmp_path / "rows.jsonl").write_text('{"image": "red.png", "caption": "a red square"}')
    scorer = Scorer(encoder=encoder)
    scorer.score_file(tmp_path / "rows.jsonl", tmp_path / "scores.parquet")
    scorer.score_file(tmp_path / "rows.jsonl", tmp_path / "scores.parquet")
    before = scorer.signature
    encoder.weights[1] = 1
    with pytest.raises(RunError, match="another encoder"):
        scorer.score_file(tmp_path / "rows.jsonl", tmp_path / "scores.parquet")
    assert scorer.signature != before


def test_signature_of_an_own_encoder_ignores_where_it_is_and_what_it_counted(tmp_path):
    class Own(Broken):
        name = signature = "own"

    weights = torch.nn.Linear(3, 2)
    first, second = Own(net=weights, device="cpu", calls=0), Own(net=weights, device="elsewhere", calls=7)
    assert encoder_signature(first) == encoder_signature(second)
    half = Own(net=torch.nn.Linear(3, 2).bfloat16(), mark=torch.tensor(1.0))
    assert encoder_signature(half) not in (encoder_signature(first), "own")


def test_built_in_encoders_pass_check_encoder():
    for name in ("toy", "mini"):
        check_encoder(load_encoder(name))


class Broken:
    """The toy encoder with modified outputs."""

    def __init__(self, images=lambda batch: batch, texts=lambda batch: batch, **members):
        self.inner, self.images, self.texts = load_encoder("toy"), images, texts
        vars(self).update(members)

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def encode_images(self, images):
        return self.images(self.inner.encode_images(images))

    def encode_texts(self, texts):
        return self.texts(self.inner.encode_texts(texts))


def cropped(batch):
    return replace(batch, layout=tuple(replace(item, boxes=item.boxes[1:]) for item in batch.layout))


def in_network_pixels(batch):
    return replace(batch, layout=tuple(replace(item, boxes=item.boxes * 9) for item in batch.layout))


def turned(batch):
    return replace(batch, layout=tuple(replace(item, boxes=item.boxes[::-1]) for item in batch.layout))


@pytest.mark.parametrize(
    ("encoder", "sentence"),
    [
        (Broken(images=lambda b: replace(b, points=2 * b.points)), "encode_images: points must have length 1, got 2.000"),
        (Broken(texts=lambda b: replace(b, pooled=b.pooled / 3)), "encode_texts: pooled vectors must have length 1"),
        (Broken(texts=lambda b: replace(b, points=b.points + (~b.mask)[..., None])), "encode_texts: padded points"),
        (Broken(images=lambda b: replace(b, mask=~b.mask)), "encode_images: image 0 has no real point"),
        (Broken(images=lambda b: replace(b, points=b.points.astype(np.float64))), "must be float32, got float64"),
        (Broken(images=lambda b: replace(b, points=b.points * np.nan)), "encode_images: points and pooled must be finite"),
        (Broken(images=lambda b: replace(b, layout=())), "encode_images: layout must have one entry per item, got 0"),
        (Broken(images=cropped), "encode_images: boxes of a grid"),
        (Broken(images=in_network_pixels), "encode_images: boxes must be pixels of the original image"),
        (Broken(images=turned), "encode_images: boxes must be in rows"),
        (Broken(texts=lambda b: replace(b, layout=tuple(TokenLayout(()) for _ in b.layout))), "expected one span per real point"),
        (
            Broken(images=lambda b: replace(b, pooled=unit(b.pooled + b.pooled.mean(axis=0)))),
            "encode_images: vectors depend on the batch",
        ),
        (Broken(signature="two words"), "signature must not contain spaces"),
        (Broken(texts=lambda b: replace(b, points=np.pad(b.points, ((0, 0), (0, 0), (0, 1))))), "points of images have"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_check_encoder_reports_each_violation(encoder, sentence):
    faults = list(find_faults(encoder))
    assert any(sentence in fault for fault in faults), faults
    assert all("\n" not in fault for fault in faults)
    with pytest.raises(AssertionError, match=re.escape(sentence)):
        check_encoder(encoder)


def test_unreadable_captions_are_reported():
    silent = Broken(texts=lambda b: replace(b, points=0 * b.points, pooled=0 * b.pooled, mask=b.mask & False))
    (fault,) = [fault for fault in find_faults(silent) if "span" not in fault]
    assert fault.startswith(
        "encode_texts: caption 'a red square next to a blue circle' has no real point; pass captions="
    )


def test_missing_members_are_listed():
    assert list(find_faults(object())) == [
        "the encoder has no name, signature, device, bank, recommended, prepare, encode_images, encode_texts"
    ]
