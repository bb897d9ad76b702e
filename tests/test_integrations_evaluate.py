"""The Hugging Face evaluate module, used directly and loaded by its path, offline."""

import pytest
from PIL import Image

from msdscore import Scorer

pytest.importorskip("evaluate", reason="evaluate is not installed (extra evaluate)")
import evaluate

from msdscore_lab.harnesses import evaluate as ours

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of evaluate and datasets


@pytest.fixture
def pairs(tmp_path):
    for colour in ("red", "blue"):
        Image.new("RGB", (64, 64), colour).save(tmp_path / f"{colour}.png")
    images = [str(tmp_path / name) for name in ("red.png", "blue.png", "missing.png")]
    return {"predictions": ["a red square", "a red square", "a dog"], "images": images}


@pytest.mark.parametrize("load", [False, True], ids=["class", "evaluate.load"])
def test_compute(pairs, load, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_EVALUATE_OFFLINE", "1")
    place = str(tmp_path / "cache")
    metric = evaluate.load(ours.__file__, cache_dir=place) if load else ours.MSDModule(cache_dir=place)
    found = metric.compute(**pairs, scorer="toy")
    expected = [Scorer("toy").score(image, "a red square").msd for image in pairs["images"][:2]]
    assert found["scores"] == [*expected, None]
    assert found["msd"] == pytest.approx(sum(expected) / 2)
    assert "no such file" in found["errors"][2]
    assert found["signature"] == Scorer("toy").signature
