"""capevalkit: the callable, and capevalkit if it is installed."""

import json
from types import SimpleNamespace

import pytest
from PIL import Image

from msdscore import ConfigError, RunError, Scorer
from msdscore_lab.harnesses.capevalkit import caption_metric

CAPTIONS = {"a": ("a red square", "red"), "b": ("a red circle", "red"), "c": ("a blue square", "blue")}


@pytest.fixture
def samples(tmp_path):
    for colour in ("red", "blue"):
        Image.new("RGB", (64, 64), colour).save(tmp_path / f"{colour}.png")
    return [
        SimpleNamespace(id=key, image=str(tmp_path / f"{colour}.png"), prediction=text)
        for key, (text, colour) in CAPTIONS.items()
    ]


@pytest.mark.parametrize("by", ["msd", "similarity"])
def test_callable_returns_a_score_per_sample(samples, by):
    known = {one.id: getattr(Scorer("toy").score(one.image, one.prediction), by) for one in samples}
    assert caption_metric("toy", by=by)(samples) == known


def test_samples_of_one_image_have_their_own_references(samples):
    samples[0].references, samples[1].references = ["a red thing"], ["two boxes on a table"]
    known = {one.id: Scorer("toy").score(one.image, one.prediction, one.references).ref_msd for one in samples[:2]}
    assert caption_metric("toy", by="ref_msd")(samples[:2]) == pytest.approx(known)


def test_callable_raises_for_captions_without_score(samples):
    samples[1].prediction = None
    with pytest.raises(RunError, match="1 of 3 .*first: b: caption is empty"):
        caption_metric("toy")(samples)
    with pytest.raises(ConfigError, match="got 'cider'"):
        caption_metric("toy", by="cider")(samples[:1])
    samples[1].id = "a"
    with pytest.raises(RunError, match="first: a"):
        caption_metric("toy")(samples)


def test_with_capevalkit(tmp_path, samples):
    pytest.importorskip("capevalkit", reason="capevalkit is not installed (it pins datasets below 4)")
    from capevalkit.api import evaluate_metric

    images = tmp_path / "data" / "composite" / "images"
    images.mkdir(parents=True)
    (tmp_path / "red.png").rename(images / "red.png")
    rows = [f"red.png,{text},\"['x']\",{number}" for number, (text, _) in enumerate(CAPTIONS.values())]
    (images.parent / "en_test_composite_da2.csv").write_text("\n".join(["imgid,mt,refs,score", *rows]))
    result = evaluate_metric(
        benchmark="composite", metric=caption_metric("toy"), metric_name="MSD", data_root=str(tmp_path / "data")
    )
    assert "tau" in json.dumps(result).lower()
