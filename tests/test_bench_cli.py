"""The commands bench, compare, table, benchmarks and metrics."""

import errno
import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench_sets import encoded, make_expert, make_sugarcrepe, write_pictures, write_rows
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


def test_bench_again_counts_what_is_there_and_speaks_json(results):
    _, _, arguments = results
    answer = call("bench", "sugarcrepe", *arguments, "--samples", 20, "--protocol", "authors", "--json")
    found = json.loads(answer.stdout)
    assert [result["protocol"] for result in found] == ["authors"]
    call("bench", "sugarcrepe", *arguments, "--samples", 20)


def test_bench_takes_a_folder_of_folders(results, tmp_path):
    make_sugarcrepe(tmp_path / "sugarcrepe")
    answer = call("bench", "sugarcrepe", "--root", tmp_path, "-o", tmp_path / "out", "-m", "shorter", "--samples", 5)
    assert answer.exit_code == 0
    assert "shorter" in answer.stdout


@pytest.mark.parametrize("writes", range(6))
def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path, monkeypatch, writes):
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


def test_user_errors_are_one_line(tmp_path):
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
    every = sorted((root / "out").glob("*.json"))  # as a shell finds out/*.json
    assert [path.name for path in every] == ["flickr8k-expert.json", "sugarcrepe-authors.json", "sugarcrepe.json"]
    assert call("table", *every, "-f", "markdown").stdout.count("| :--- |") == 3


def test_long_captions_have_more_components_unless_a_preset_is_named(tmp_path):
    rows = [
        {"image": f"{c}.png", "caption_a": f"a {c} square", "caption_b": "a dog", "system_a": "A", "system_b": "B",
         "winner": w, "id": c, "level": "level 1"}
        for c, w in (("red", "a"), ("green", "tie"), ("blue", "b"))
    ]  # fmt: skip
    write_rows(tmp_path / "caparena.jsonl", rows)
    write_pictures(tmp_path / "caparena.images.parquet", {f"{c}.png": encoded(c) for c in ("red", "green", "blue")})
    common = ("bench", "caparena", "--root", tmp_path, "-e", "toy", "-m", "msd", "--samples", 5)
    answer = call(*common, "-o", tmp_path / "long")
    assert answer.exit_code == 0, answer.output
    assert "caparena: captions of a paragraph, so the preset is long" in answer.stderr
    assert "|k:5,3|" in (tmp_path / "long" / "caparena.json").read_text()
    assert call(*common, "-o", tmp_path / "short", "--preset", "short").exit_code == 0
    assert "|k:3,2|" in (tmp_path / "short" / "caparena.json").read_text()
    assert call(*common, "-o", tmp_path / "own", "--set", "components=4,2").exit_code == 0
    assert "|k:4,2|" in (tmp_path / "own" / "caparena.json").read_text()
    answer = call(*common, "-o", tmp_path / "long", "--protocol", "paper", "--json")
    names = [figure["name"] for figure in json.loads(answer.stdout)[0]["metrics"][0]["figures"]]
    assert {"agreement/all", "with human/agreement/all", "model/kendall"} <= set(names)


def test_a_study_counts_by_a_protocol_and_has_the_components_of_long_captions(tmp_path):
    rows = [
        {"image": f"{c}.png", "caption_a": f"a {c} square", "caption_b": "a dog", "system_a": "A", "system_b": "B",
         "winner": "a" if c == "red" else "tie", "id": c}
        for c in ("red", "green", "blue")
    ]  # fmt: skip
    write_rows(tmp_path / "caparena.jsonl", rows)
    write_pictures(tmp_path / "caparena.images.parquet", {f"{c}.png": encoded(c) for c in ("red", "green", "blue")})
    common = ("study", "kappa", "--root", tmp_path, "-e", "toy", "-b", "caparena", "--samples", 5, "--json")
    answer = call(*common, "--values", "20", "-m", "msd", "--protocol", "paper")
    assert answer.exit_code == 0, f"{answer.output} {answer.exception}"
    (table,) = json.loads(answer.stdout)["tables"]
    assert table["protocol"] == "paper"
    assert table["rows"][0]["agreement/all"]["value"] == pytest.approx(1 / 3)  # people's two ties are none of ours
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


def test_lists_name_everything():
    found = json.loads(call("benchmarks", "--json").stdout)
    assert [row["name"] for row in found] == [row.name for row in benchmarks()]
    assert all(row["licence"] and row["source"] and row["files"] for row in found)
    assert json.loads(call("benchmarks", "show", "docent", "--json").stdout)["kind"] == "battles"
    assert "protocols" in call("benchmarks", "show", "caparena").stdout
    assert [row["name"] for row in json.loads(call("metrics", "--json").stdout)] == [row.name for row in list_metrics()]
    assert "judge" in call("metrics").stdout
    assert json.loads(call("metrics", "clipscore", "--json").stdout)["needs"] == ["encoder"]
    assert "metric" in str(call("metrics", "nothing").exception)


def test_the_page_on_benchmarks_names_every_benchmark_and_metric():
    page = (Path(__file__).parent.parent / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    for row in benchmarks():
        assert f"| `{row.name}` |" in page, row.name
    for metric in list_metrics():
        assert f"`{metric.name}" in page, metric.name
