"""The commands bench, compare, table, benchmarks and metrics."""

import errno
import json
import os
import re
import sys
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from bench_sets import encoded, make_expert, make_sugarcrepe, write_images, write_rows
from msdscore.cli.app import app
from msdscore.errors import MSDScoreError
from msdscore.lab.benchmarks.registry import benchmarks
from msdscore.lab.metrics.registry import list_metrics


def call(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    root = tmp_path_factory.mktemp("cli")
    make_sugarcrepe(root / "data")
    make_expert(root / "data")
    arguments = ("--root", root / "data", "-o", root / "out", "-e", "toy", "-m", "cosine", "-m", "length")
    answer = call("bench", "sugarcrepe", "flickr8k-expert", *arguments, "--samples", 20)
    assert answer.exit_code == 0, answer.output
    return root, answer, arguments


def test_bench_prints_tables_and_writes_results(results):
    root, answer, _ = results
    assert "SugarCrepe, official (16 items, 8 images)" in answer.stdout
    assert "Flickr8k-Expert, official (24 items, 8 images)" in answer.stdout
    assert "cosine|enc:toy@1|v:" in answer.stdout
    assert {path.name for path in (root / "out").iterdir()} >= {"sugarcrepe.json", "flickr8k-expert.parquet"}


def test_bench_reuses_existing_scores_and_prints_json(results):
    _, _, arguments = results
    answer = call("bench", "sugarcrepe", *arguments, "--samples", 20, "--protocol", "authors", "--json")
    found = json.loads(answer.stdout)
    assert [result["protocol"] for result in found] == ["authors"]
    call("bench", "sugarcrepe", *arguments, "--samples", 20)


def test_bench_accepts_the_parent_folder_of_benchmarks(results, tmp_path):
    make_sugarcrepe(tmp_path / "sugarcrepe")
    answer = call("bench", "sugarcrepe", "--root", tmp_path, "-o", tmp_path / "out", "-m", "shorter", "--samples", 5)
    assert answer.exit_code == 0
    assert "shorter" in answer.stdout


@pytest.mark.parametrize("writes", range(6))
def test_full_disk_is_a_one_line_error_and_preserves_results(tmp_path, monkeypatch, writes):
    make_sugarcrepe(tmp_path / "data")
    command = ("bench", "sugarcrepe", "--root", tmp_path / "data", "-o", tmp_path / "out", "-m", "shorter")
    sync, left = os.fsync, iter(range(writes))

    def filling(descriptor):
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", filling)
        answer = call(*command, "--samples", 5)
    assert isinstance(answer.exception, MSDScoreError)
    assert "No space left on device" in str(answer.exception)
    assert str(tmp_path / "out") in str(answer.exception)
    assert "\n" not in str(answer.exception)
    answer = call(*command, "--samples", 5)
    assert answer.exit_code == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"sugarcrepe.json", "sugarcrepe.parquet"}


def test_user_errors_are_one_line_errors(tmp_path):
    answer = call("bench", "sugarcrepe", "--root", tmp_path, "-m", "length", "-o", tmp_path)
    assert isinstance(answer.exception, MSDScoreError)
    assert "github.com/RAIVNLab/sugar-crepe" in str(answer.exception)
    assert "\n" not in str(answer.exception)


def test_compare_and_table(results):
    root, _, _ = results
    file = root / "out" / "sugarcrepe.json"
    answer = call("compare", f"{file}:cosine", f"{file}:length", "--samples", 50)
    assert answer.exit_code == 0
    assert "accuracy/replace_att" in answer.stdout
    assert "McNemar" in answer.stdout
    found = json.loads(call("compare", f"{file}:cosine", f"{file}:length", "--samples", 50, "--json").stdout)
    assert found["items"] == 16
    printed = call("table", file, root / "out" / "flickr8k-expert.json", "-f", "markdown").stdout
    assert printed.count("| :--- |") == 2
    every = sorted((root / "out").glob("*.json"))  # as a shell expands out/*.json
    assert [path.name for path in every] == ["flickr8k-expert.json", "sugarcrepe-authors.json", "sugarcrepe.json"]
    assert call("table", *every, "-f", "markdown").stdout.count("| :--- |") == 3


def test_long_captions_use_more_components_unless_a_preset_is_passed(tmp_path):
    rows = [
        {"image": f"{c}.png", "caption_a": f"a {c} square", "caption_b": "a dog", "system_a": "A", "system_b": "B",
         "winner": w, "id": c, "level": "level 1"}
        for c, w in (("red", "a"), ("green", "tie"), ("blue", "b"))
    ]  # fmt: skip
    write_rows(tmp_path / "caparena.jsonl", rows)
    write_images(tmp_path / "caparena.images.parquet", {f"{c}.png": encoded(c) for c in ("red", "green", "blue")})
    common = ("bench", "caparena", "--root", tmp_path, "-e", "toy", "-m", "msd", "--samples", 5)
    answer = call(*common, "-o", tmp_path / "long")
    assert answer.exit_code == 0, answer.output
    assert "caparena: captions of a paragraph, so components are (5, 3)" in answer.stderr
    assert "|k:5,3|" in (tmp_path / "long" / "caparena.json").read_text()
    assert call(*common, "-o", tmp_path / "short", "--preset", "short").exit_code == 0
    assert "|k:3,2|" in (tmp_path / "short" / "caparena.json").read_text()
    assert call(*common, "-o", tmp_path / "own", "--set", "components=4,2").exit_code == 0
    assert "|k:4,2|" in (tmp_path / "own" / "caparena.json").read_text()
    answer = call(*common, "-o", tmp_path / "long", "--protocol", "paper", "--json")
    names = [figure["name"] for figure in json.loads(answer.stdout)[0]["metrics"][0]["figures"]]
    assert {"agreement/all", "with human/agreement/all", "model/kendall"} <= set(names)


def test_study_uses_the_protocol_and_the_components_of_long_captions(tmp_path):
    rows = [
        {"image": f"{c}.png", "caption_a": f"a {c} square", "caption_b": "a dog", "system_a": "A", "system_b": "B",
         "winner": "a" if c == "red" else "tie", "id": c}
        for c in ("red", "green", "blue")
    ]  # fmt: skip
    write_rows(tmp_path / "caparena.jsonl", rows)
    write_images(tmp_path / "caparena.images.parquet", {f"{c}.png": encoded(c) for c in ("red", "green", "blue")})
    common = ("study", "kappa", "--root", tmp_path, "-e", "toy", "-b", "caparena", "--samples", 5, "--json")
    answer = call(*common, "--values", "20", "-m", "msd", "--protocol", "paper")
    assert answer.exit_code == 0, f"{answer.output} {answer.exception}"
    assert answer.stderr.count("caparena: captions of a paragraph, so components are (5, 3)") == 1
    (table,) = json.loads(answer.stdout)["tables"]
    assert table["protocol"] == "paper"
    assert table["rows"][0]["agreement/all"]["value"] == pytest.approx(
        1 / 3
    )  # the two human ties are not ties of the metric
    assert "|k:5,3|" in table["rows"][0]["signature"]
    assert "Did you mean 'paper'" in str(call(*common, "--protocol", "papers").exception)


def test_compare_with_one_image_prints_valid_json(tmp_path):
    make_expert(tmp_path)
    words = ("--root", tmp_path, "-o", tmp_path / "out", "-e", "toy", "-m", "cosine", "-m", "length", "--samples", 9)
    assert call("bench", "flickr8k-expert", *words, "--limit", 1, "--no-control").exit_code == 0
    file = tmp_path / "out" / "flickr8k-expert.json"
    for command in ((f"{file}:cosine", f"{file}:length"), (file, "--against", "length")):
        answer = call("compare", *command, "--samples", 9, "--json")
        assert answer.exit_code == 0, answer.output
        assert "null" in answer.stdout
        json.loads(answer.stdout, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_listings_contain_all_entries():
    found = json.loads(call("benchmarks", "--json").stdout)
    assert [row["name"] for row in found] == [row.name for row in benchmarks()]
    assert all(row["licence"] and row["source"] and row["files"] for row in found)
    assert json.loads(call("benchmarks", "show", "docent", "--json").stdout)["kind"] == "battles"
    assert "protocols" in call("benchmarks", "show", "caparena").stdout
    assert [row["name"] for row in json.loads(call("metrics", "--json").stdout)] == [row.name for row in list_metrics()]
    assert "judge" in call("metrics").stdout
    assert json.loads(call("metrics", "clipscore", "--json").stdout)["needs"] == ["encoder"]
    assert "metric" in str(call("metrics", "nothing").exception)


def test_benchmarks_page_lists_all_benchmarks_and_metrics():
    page = (Path(__file__).parent.parent / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    for row in benchmarks():
        assert re.search(rf"^\| .*`{row.name}`", page, re.MULTILINE), row.name
    for metric in list_metrics():
        assert f"`{metric.name}" in page, metric.name


def own_rows(folder):
    """Write rows of custom benchmarks of every kind, on six colours."""
    colours, rows = ("red", "blue", "green", "white", "black", "yellow"), {"pairs": [], "rated": [], "battles": []}
    for number, colour in enumerate(colours):
        Image.new("RGB", (64, 64), colour).save(folder / f"{colour}.png")
        image, right, wrong = f"{colour}.png", f"a {colour} square", f"a big {colours[number - 1]} square"
        rows["pairs"].append({"image": image, "caption": right, "negative_caption": wrong})
        rows["rated"] += [
            {"image": image, "caption": right, "rating": 5},
            {"image": image, "caption": wrong, "rating": number},
        ]
        systems = {"system_a": "xy"[number % 2], "system_b": "z"}
        rows["battles"].append({"image": image, "caption_a": right, "caption_b": wrong, "winner": "a", **systems})
    for kind, lines in rows.items():
        (folder / f"my-{kind}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize("kind", ["pairs", "rated", "battles"])
def test_custom_rows_are_benchmarked_and_compared(kind, tmp_path):
    own_rows(tmp_path)
    arguments = ("--root", tmp_path / f"my-{kind}.jsonl", "-e", "toy", "-m", "cosine", "-m", "length", "--samples", 20)
    answer = call("bench", kind, *arguments, "-o", tmp_path / "out")
    assert answer.exit_code == 0, answer.output
    result = tmp_path / "out" / f"{kind}.json"
    compared = json.loads(call("compare", f"{result}:cosine", f"{result}:length", "--json").stdout)
    assert compared["differences"][0]["first"] > compared["differences"][0]["second"]
    assert not any(difference["name"].endswith("/") for difference in compared["differences"])


def test_a_benchmark_and_a_metric_are_imported_from_a_module(tmp_path, monkeypatch):
    own_rows(tmp_path)
    monkeypatch.chdir(tmp_path)
    module = """
from msdscore.lab.benchmarks.base import Benchmark

COLOURS = Benchmark(
    name="colours", kind="pairs", reader="msdscore.lab.benchmarks.readers.rows:need_rows",
    rows="msdscore.lab.benchmarks.readers.rows:read_pairs",
)

def brevity(image, caption):
    "Minus the number of words."
    return -len(caption.split())
"""
    Path("colour_lab.py").write_text(module)
    arguments = (
        "bench",
        "colour_lab:COLOURS",
        "--root",
        "my-pairs.jsonl",
        "-e",
        "toy",
        "-m",
        "colour_lab:brevity",
        "-m",
        "cosine",
    )
    answer = call(*arguments, "-o", "out", "--samples", 20)
    assert answer.exit_code == 0, answer.output
    result = json.loads(Path("out/colour_lab.COLOURS.json").read_text())
    brevity = result["metrics"][0]
    assert brevity["figures"][0]["value"] == 1.0  # wrong captions have one more word
    assert "colour_lab:brevity|code:" in brevity["signature"]
    compared = call("compare", "out/colour_lab.COLOURS.json:cosine", "out/colour_lab.COLOURS.json:colour_lab:brevity")
    assert compared.exit_code == 0, compared.output
    wrong = call("bench", "pairs", "--root", "my-pairs.jsonl", "-e", "toy", "-m", "no_such_module:words", "-o", "other")
    assert isinstance(wrong.exception, MSDScoreError)
    assert "no module 'no_such_module' in this folder" in str(wrong.exception)
    assert "unknown metric 'no_such_module'" in str(wrong.exception)


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("own_metric:raises", r"metric own_metric:raises failed on item blue:0, caption 'a blue square': "
                              r"ValueError: no blue, please \(own_metric.py, line 3\)"),
        ("own_metric:words", "metric own_metric:words failed on item .*: ValueError: could not convert string to float"),
        ("own_metric.py:words", "expected module:attribute, got a file name; use own_metric:words in the folder '.'"),
        ("sub/own_metric.py", "expected module:attribute, got a file name; use own_metric:NAME in the folder 'sub'"),
    ],
)  # fmt: skip
def test_a_metric_that_fails_is_one_line_with_metric_and_item(metric, message, tmp_path, monkeypatch):
    own_rows(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_metric", raising=False)
    Path("own_metric.py").write_text(
        "def raises(image, caption):\n    if 'a blue' in caption:\n        raise ValueError('no blue, please')\n"
        "    return 1\n\ndef words(image, caption):\n    return 'many'\n"
    )
    wrong = call("bench", "pairs", "--root", "my-pairs.jsonl", "-m", metric, "-o", "out", "--no-control")
    assert isinstance(wrong.exception, MSDScoreError)
    assert re.search(message, str(wrong.exception)), wrong.exception


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_bench_plot_writes_a_figure(results, kind, tmp_path):
    _, _, arguments = results
    answer = call(
        "bench", "sugarcrepe", "flickr8k-expert", *arguments, "--samples", 20, "--plot", tmp_path / f"f.{kind}"
    )
    assert answer.exit_code == 0, answer.output
    content = (tmp_path / f"f.{kind}").read_bytes()
    assert content.startswith(b"\x89PNG" if kind == "png" else b"<?xml")
    wrong = call("bench", "sugarcrepe", *arguments, "--plot", tmp_path / "f.txt")
    assert "f.txt" in str(wrong.exception)
