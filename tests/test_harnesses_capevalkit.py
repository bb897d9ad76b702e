"""capevalkit: the callable, the runner, the manifest, and capevalkit if it is installed."""

import json
import shlex
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from msdscore import ConfigError, RunError, Scorer
from msdscore_lab.harnesses import capevalkit as capevalkit_module
from msdscore_lab.harnesses.capevalkit import caption_metric, install, main

COLOURS = ("red", "blue")
CAPTIONS = {"a": "a red square", "b": "a red circle", "c": "a blue square"}


@pytest.fixture
def folder(tmp_path):
    for colour in COLOURS:
        Image.new("RGB", (64, 64), colour).save(tmp_path / f"{colour}.png")
    return tmp_path


@pytest.fixture
def samples(folder):
    images = {"a": "red", "b": "red", "c": "blue"}
    return [
        SimpleNamespace(id=one, image=str(folder / f"{images[one]}.png"), prediction=text)
        for one, text in CAPTIONS.items()
    ]


def expected(samples, name="msd"):
    return {one.id: getattr(Scorer("toy").score(one.image, one.prediction), name) for one in samples}


def write(folder, samples, key="caption"):
    rows = [json.dumps({"id": one.id, key: one.prediction, "image": one.image}) for one in samples]
    (folder / "p.jsonl").write_text("\n".join(rows))
    return ["--predictions", str(folder / "p.jsonl"), "--output", str(folder / "out" / "s.json"), "--encoder", "toy"]


def test_callable_returns_a_score_per_sample(samples):
    assert caption_metric("toy")(samples) == expected(samples)
    assert caption_metric("toy", by="similarity")(samples) == expected(samples, "similarity")


def test_references_give_ref_msd(folder, samples):
    people = ["a red thing", "a box"]
    for one in samples:
        one.references = people
    scores = {one.id: Scorer("toy").score(one.image, one.prediction, people).ref_msd for one in samples}
    assert caption_metric("toy", by="ref_msd")(samples) == pytest.approx(scores)
    lines = [json.dumps({"id": one.id, "references": people}) for one in samples]
    (folder / "r.jsonl").write_text("\n".join(lines))
    assert main([*write(folder, samples), "--references", str(folder / "r.jsonl")]) == 0
    result = json.loads((folder / "out" / "s.json").read_text())
    assert {key: own["Ref-MSD"] for key, own in result["per_item"].items()} == pytest.approx(scores)


def test_callable_raises_for_captions_without_score(samples):
    samples[1].prediction = None
    with pytest.raises(RunError, match="1 of 3 .*first: b: caption is empty"):
        caption_metric("toy")(samples)
    with pytest.raises(ConfigError, match="got 'cider'"):
        caption_metric("toy", by="cider")(samples[:1])


@pytest.mark.parametrize("key", ["caption", "prediction"])
def test_runner_writes_the_format_of_capevalkit(folder, samples, key, monkeypatch):
    monkeypatch.setenv("CAPEVALKIT_PROGRESS_FILE", str(folder / "progress"))
    assert main(write(folder, samples, key)) == 0
    found = json.loads((folder / "out" / "s.json").read_text())
    assert {one: scores["MSD"] for one, scores in found["per_item"].items()} == expected(samples)
    assert found["MSD"] == pytest.approx(sum(expected(samples).values()) / 3)
    assert found["signature"] == Scorer("toy").signature
    assert sum(map(int, (folder / "progress").read_text().split())) == 3


def test_a_missing_file_of_references_is_a_one_line_error(folder, samples, capsys):
    assert main([*write(folder, samples), "--references", "none.jsonl"]) == 2
    assert "none.jsonl: no such file" in capsys.readouterr().err


def test_runner_reports_errors(folder, samples, capsys):
    samples[2].image = str(folder / "missing.png")
    assert main(write(folder, samples)) == 2
    assert "missing.png: no such file" in capsys.readouterr().err
    samples[0].prediction = ""
    assert main(write(folder, samples)) == 2
    assert "1 of 3 predictions cannot be scored (first: a: caption is empty)" in capsys.readouterr().err


def test_images_by_id_from_a_folder(folder):
    (folder / "p.jsonl").write_text('{"id": "red", "caption": "a red square"}\n')
    options = ["--predictions", str(folder / "p.jsonl"), "--output", str(folder / "s.json"), "--encoder", "toy"]
    assert main([*options, "--image-dir", str(folder)]) == 0
    assert list(json.loads((folder / "s.json").read_text())["per_item"]) == ["red"]


def test_the_manifest(tmp_path, capsys):
    assert main(["install", "--root", str(tmp_path), "--requirement", "msdscore @ file:///x"]) == 0
    place = tmp_path / "metrics" / "msdscore" / "metric.toml"
    assert capsys.readouterr().out.strip() == str(place)
    manifest = tomllib.loads(place.read_text())
    project = tomllib.loads((tmp_path / manifest["repository"]["uv_project"] / "pyproject.toml").read_text())
    assert project["project"]["dependencies"] == ["msdscore @ file:///x"]
    assert manifest["checks"]["smoke"] == [*manifest["runner"]["command"], "--help"]
    assert manifest["runner"]["command"] == ["python", "-m", main.__module__]
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    assert "--predictions" in capsys.readouterr().out


def test_runner_reads_the_command_line_and_requires_both_files(folder, samples, monkeypatch, capsys):
    options = write(folder, samples)
    monkeypatch.setattr(sys, "argv", ["capevalkit.py", *options])
    assert main() == 0
    assert set(json.loads((folder / "out" / "s.json").read_text())["per_item"]) == set(CAPTIONS)
    for name in ("--predictions", "--output"):
        at = options.index(name)
        with pytest.raises(SystemExit, match="2"):
            main([*options[:at], *options[at + 2 :]])
        assert f"the following arguments are required: {name}" in capsys.readouterr().err


DOCUMENTED = next(
    line
    for line in (Path(__file__).parents[1] / "docs" / "lab" / "harnesses.md").read_text().splitlines()
    if line.startswith("capevalkit score")
)


def test_documented_command_has_a_valid_metric_name():
    words = shlex.split(DOCUMENTED)
    assert words[:4] == ["capevalkit", "score", "--metric", "msdscore"]
    assert {"--predictions", "--output"} <= set(words)
    assert " ".join(words[:4]) in capevalkit_module.__doc__


def test_with_capevalkit(folder, samples, monkeypatch):
    pytest.importorskip("capevalkit", reason="capevalkit is not installed (it pins datasets below 4)")
    monkeypatch.setenv("CAPEVALKIT_RUNTIME_ROOT", str(folder / "runtime"))
    monkeypatch.setenv("CAPEVALKIT_HOME", str(folder / "home"))
    import capevalkit.infrastructure.execution.uv_subprocess_metric_runner as runner
    from capevalkit.api import evaluate_captions, evaluate_metric, load_manifests

    install()
    assert "msdscore" in load_manifests()
    # Without uv, which would install msdscore from the registry.
    monkeypatch.setattr(runner, "build_uv_command", lambda name, args, **_: [sys.executable, *args[1:]])
    pairs = [{"id": one.id, "caption": one.prediction, "image": one.image} for one in samples]
    found = evaluate_captions(
        metrics=["msdscore"],
        pairs=pairs,
        output_dir=folder / "results",
        extra_args_by_metric={"msdscore": ["--encoder", "toy"]},
        quiet=True,
    )
    assert {one: scores["MSD"] for one, scores in found["msdscore"]["per_item"].items()} == expected(samples)
    from capevalkit.interfaces.cli import main as command

    monkeypatch.chdir(folder)
    (folder / "predictions.jsonl").write_text("\n".join(json.dumps(pair) for pair in pairs))
    assert command([*shlex.split(DOCUMENTED)[1:], "--", "--encoder", "toy"]) == 0
    scored = json.loads((folder / "scores.json").read_text())["per_item"]
    assert {one: scores["MSD"] for one, scores in scored.items()} == expected(samples)
    data = folder / "data" / "composite"
    data.mkdir(parents=True)
    (folder / "red.png").rename(data / "red.png")
    lines = [
        "imgid,mt,refs,score",
        *(f"red.png,{text},\"['x']\",{number}" for number, text in enumerate(CAPTIONS.values())),
    ]
    (data / "en_test_composite_da2.csv").write_text("\n".join(lines))
    (data / "images").mkdir()
    (data / "red.png").rename(data / "images" / "red.png")
    result = evaluate_metric(
        benchmark="composite", metric=caption_metric("toy"), metric_name="MSD", data_root=str(folder / "data")
    )
    assert "tau" in json.dumps(result).lower()


def test_samples_of_one_image_have_their_own_references(samples):
    samples[0].references, samples[1].references = ["a red thing"], ["two boxes on a table"]
    expected = {one.id: Scorer("toy").score(one.image, one.prediction, one.references).ref_msd for one in samples[:2]}
    assert caption_metric("toy", by="ref_msd")(samples[:2]) == pytest.approx(expected)


def test_two_samples_with_one_id_raise(folder, samples, capsys):
    samples[1].id = "a"
    with pytest.raises(RunError, match="first: a"):
        caption_metric("toy")(samples)
    assert main(write(folder, samples)) == 2
    assert "first: a" in capsys.readouterr().err
