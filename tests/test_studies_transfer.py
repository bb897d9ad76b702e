"""Studies of several encoders, other domains, and reconstruction, with tiny models."""

import json

import pytest

from align_data import make_rows
from bench_sets import make_sugarcrepe
from command_line import output_of
from msdscore.errors import ConfigError
from msdscore.scoring.spec import ScorerSpec
from msdscore_lab.align.recipe import Recipe, load_recipe
from msdscore_lab.pairs import DataSource
from msdscore_lab.studies.ablations.transfer import train_both
from msdscore_lab.studies.context import Study
from tiny_clip import make_tiny_clip
from tiny_lm import make_tiny_llama


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return make_sugarcrepe(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "clip"
    make_tiny_clip(folder)
    return folder


def test_backbones_reports_the_gain_of_each_encoder(root, clip, tmp_path):
    text = output_of(
        "study", "backbones", "--root", root, "-e", "toy", "--also", clip, "--samples", 20, "-o", tmp_path / "b.json"
    )
    assert "soft-msd − cosine" in text
    rows = json.loads((tmp_path / "b.json").read_text())["tables"][0]["rows"]
    assert [row["encoder"] for row in rows] == ["toy", "clip"]  # not the path, which is wider than the figure
    assert rows[0]["cosine"]["value"] > rows[1]["cosine"]["value"]
    gains = {name.removesuffix(" − cosine") for name in rows[0] if name.endswith(" − cosine")}
    assert gains == {"coverage", "support", "bi-kl", "msd", "soft-msd", "rank-agg"}
    for row in rows:
        assert row["msd − cosine"]["value"] == pytest.approx(row["msd"]["value"] - row["cosine"]["value"])
        assert 0 < row["msd − cosine, p"] <= 1


def test_reconstruction_study_trains_two_aligners(root, clip, tmp_path):
    make_tiny_llama(tmp_path / "llama")
    rows = make_rows(tmp_path / "data")
    changes = [f"image.source={clip}", f"text.source={clip}", f"lm.source={tmp_path / 'llama'}", "heads.dim=16",
               "train.steps=3", "train.batch=4", "train.log_every=1", "train.save_every=100"]  # fmt: skip
    words = [word for change in changes for word in ("--recipe-set", change)]
    command = ("reconstruction", "--root", root, "--data", rows, *words, "--samples", 20, "--no-control",
               "--device", "cpu", "--limit", 8, "-o", tmp_path / "r.json")  # fmt: skip
    output_of("study", *command)
    found = json.loads((tmp_path / "r.json").read_text())["tables"][0]
    assert [row["encoder"] for row in found["rows"]] == ["plain", "with reconstruction", "without reconstruction"]
    assert len({row["signature"] for row in found["rows"]}) == 3
    assert {report["step"] for report in found["training"].values()} == {3}
    curves = {
        name: (tmp_path / "r.runs" / "training" / f"{name}-reconstruction" / "curves.jsonl").read_text()
        for name in ("with", "without")
    }
    assert "reconstruction" in curves["with"]
    assert "reconstruction" not in curves["without"]


def test_recipe_without_reconstruction_is_rejected(clip, tmp_path):
    changes = [f"image.source={clip}", f"text.source={clip}", "loss.reconstruction=0.0"]
    recipe = load_recipe(Recipe, "paper", changes=changes)
    with pytest.raises(ConfigError, match="no reconstruction"):
        train_both(Study(root=tmp_path, spec=ScorerSpec(device="cpu")), recipe, DataSource(("x.jsonl",)), tmp_path)
