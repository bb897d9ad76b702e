"""The example plugin: short, installable as it stands, and then an encoder like any other."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parent.parent / "examples" / "encoder-plugin"

USE = """
from PIL import Image
from msdscore.encoders.base import Encoder, prepare_and_encode
from msdscore.encoders.registry import find_row, load_encoder
from msdscore.scorer import Scorer

encoder = load_encoder("greyscale", device="cpu")
assert isinstance(encoder, Encoder) and find_row("greyscale").licence == "MIT"
picture = Image.new("RGB", (40, 30), "white")
seen, read = prepare_and_encode(encoder, [picture]), encoder.encode_texts(["white", "black", "nothing here"])
assert seen.layout[0].boxes[-1].tolist() == [30, 22.5, 40, 30]
assert read.layout[0].spans == ((0, 5),) and read.mask.sum(1).tolist() == [1, 1, 0]
white, black = (seen.pooled @ read.pooled[:2].T)[0].tolist()
scores = [Scorer(encoder=encoder).score(picture, text) for text in ("white", "black")]
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


def test_the_example_is_short():
    files = [EXAMPLE / "pyproject.toml", *EXAMPLE.rglob("*.py")]
    assert sum(len(path.read_text().splitlines()) for path in files) < 60


def test_the_installed_plugin_scores_pictures(installed):
    code = f"import sys; sys.path.insert(0, {str(installed)!r})\n{USE}"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == "greyscale@1,pool:mean,long:window,dtype:float32"
    assert done.stdout.split()[1:] == ["1.0", "0.0"]
