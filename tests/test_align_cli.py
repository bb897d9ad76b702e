"""The aligner commands in sequence, on a tiny checkpoint."""

import json

from align_data import make_rows, recipe
from command_line import invoke, output_of
from msdscore_lab.align.recipe import Recipe, dump_recipe, load_recipe


def test_train_eval_export_and_score(tmp_path):
    rows = make_rows(tmp_path / "data")
    toml = tmp_path / "recipe.toml"
    toml.write_text(dump_recipe(recipe()), encoding="utf-8")
    run, encoder = tmp_path / "run", tmp_path / "encoder"
    options = ("--recipe", toml, "--data", rows, "-o", run, "--set", "train.steps=3", "--device", "cpu")
    report = json.loads(output_of("align", "train", *options, "--json"))
    assert report["step"] == 3
    judged = json.loads(output_of("align", "eval", run, "--data", rows, "--device", "cpu", "--json"))
    assert judged["step"] == 3
    table = output_of("align", "eval", run, "--data", rows, "--device", "cpu").splitlines()
    assert table[0].split()[-3:] == ["R@1", "R@5", "R@10"]
    assert table[1].split()[-3:] == [f"{value:.1f}" for value in judged["image_to_text"]]
    assert table[2].split()[-3:] == [f"{value:.1f}" for value in judged["text_to_image"]]
    assert "load it with --encoder" in output_of("align", "export", run, encoder)
    image = next((tmp_path / "data").rglob("*.png"))
    scores = json.loads(output_of("score", image, "a red square", "-e", encoder, "--json"))
    assert "enc:encoder@" in scores["signature"]


def test_a_recipe_without_reconstruction_needs_the_language_model(tmp_path):
    rows, toml = make_rows(tmp_path / "data"), tmp_path / "recipe.toml"
    with_language = recipe(loss={"reconstruction": 1.0}, lm={"source": str(tmp_path / "missing")}, train={"steps": 1})
    toml.write_text(dump_recipe(with_language), encoding="utf-8")
    run = tmp_path / "run"
    output_of(
        "align",
        "train",
        "--recipe",
        toml,
        "--data",
        rows,
        "-o",
        run,
        "--device",
        "cpu",
        "--set",
        "loss.reconstruction=0.0",
    )
    assert load_recipe(Recipe, run / "config.toml").loss.reconstruction == 0.0


def test_output_must_be_a_folder(tmp_path):
    (tmp_path / "file").write_text("mine")
    for output, message in (
        ("-", "this command writes several files"),
        (tmp_path / "file", "file: is a file; expected"),
    ):
        command = ["align", "train", "--recipe", "paper", "--data", "x.jsonl", "-o", str(output)]
        assert message in str(invoke(*command).exception)
    assert (tmp_path / "file").read_text() == "mine"


def test_unknown_recipe_is_rejected(tmp_path):
    result = invoke("align", "train", "--recipe", "papr", "--data", "x.jsonl", "-o", str(tmp_path))
    assert "unknown recipe 'papr'. Did you mean 'paper'" in str(result.exception)
