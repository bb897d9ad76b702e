"""The commands bench, compare, table, benchmarks and metrics."""

import errno
import json
import os
import re
import sys
from pathlib import Path

import pytest
from PIL import Image

from bench_sets import encoded, make_expert, make_sugarcrepe, write_images, write_rows
from command_line import invoke
from msdscore.errors import InputError, MSDScoreError
from msdscore_lab.benchmarks.registry import benchmarks
from msdscore_lab.benchmarks.results.grids import Grid
from msdscore_lab.benchmarks.results.result import read_result
from msdscore_lab.benchmarks.results.tables import latex
from msdscore_lab.metrics.registry import list_metrics


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    root = tmp_path_factory.mktemp("cli")
    make_sugarcrepe(root / "data")
    make_expert(root / "data")
    arguments = ("--root", root / "data", "-o", root / "out", "-e", "toy", "-m", "cosine", "-m", "length")
    answer = invoke("bench", "sugarcrepe", "flickr8k-expert", *arguments, "--samples", 20)
    assert answer.exit_code == 0, answer.output
    return root, answer, arguments


def test_bench_prints_tables_and_writes_results(results):
    root, answer, _ = results
    assert "SugarCrepe, official (16 items, 8 images)" in answer.stdout
    assert "Flickr8k-Expert, official (24 items, 8 images)" in answer.stdout
    assert "cosine|enc:toy@1|v:" in answer.stdout
    assert {path.name for path in (root / "out").iterdir()} >= {"sugarcrepe.json", "flickr8k-expert.parquet"}


def test_bench_prints_the_headline_and_how_to_see_the_rest(results):
    _, answer, _ = results
    assert "accuracy mean " in answer.stdout
    assert "accuracy add_att" not in answer.stdout
    assert "3 more figures: msdscore table FILE.json --columns all" in answer.stdout


def test_percentile_intervals_are_narrower(results, tmp_path):
    _, _, arguments = results
    command = ("bench", "flickr8k-expert", *arguments, "--samples", 200, "--json")
    widths = []
    for more in ((), ("--percentile",)):
        (found,) = json.loads(invoke(*command, *more).stdout)
        interval = next(metric for metric in found["metrics"] if metric["label"] == "cosine")["figures"][0]["interval"]
        widths.append(interval["high"] - interval["low"])
    assert widths[1] < widths[0]


def test_latex_has_bold_best_values_and_signs_of_comparison():
    grid = Grid("t", ("metric", "p"), (("a", "<0.001"), ("b", "0.2")), best=frozenset({(0, 1)}))
    assert "a & \\textbf{$<$0.001} \\\\" in latex(grid)


def test_bench_reuses_existing_scores_and_prints_json(results):
    _, _, arguments = results
    answer = invoke("bench", "sugarcrepe", *arguments, "--samples", 20, "--protocol", "authors", "--json")
    found = json.loads(answer.stdout)
    assert [result["protocol"] for result in found] == ["authors"]
    invoke("bench", "sugarcrepe", *arguments, "--samples", 20)


def test_bench_accepts_the_parent_folder_of_benchmarks(results, tmp_path):
    make_sugarcrepe(tmp_path / "sugarcrepe")
    answer = invoke("bench", "sugarcrepe", "--root", tmp_path, "-o", tmp_path / "out", "-m", "shorter", "--samples", 5)
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
        answer = invoke(*command, "--samples", 5)
    assert isinstance(answer.exception, MSDScoreError)
    assert "No space left on device" in str(answer.exception)
    assert str(tmp_path / "out") in str(answer.exception)
    assert "\n" not in str(answer.exception)
    answer = invoke(*command, "--samples", 5)
    assert answer.exit_code == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"sugarcrepe.json", "sugarcrepe.parquet"}


def test_user_errors_are_one_line_errors(tmp_path):
    answer = invoke("bench", "sugarcrepe", "--root", tmp_path, "-m", "length", "-o", tmp_path)
    assert isinstance(answer.exception, MSDScoreError)
    assert "github.com/RAIVNLab/sugar-crepe" in str(answer.exception)
    assert "\n" not in str(answer.exception)


def test_compare_and_table(results):
    root, _, _ = results
    file = root / "out" / "sugarcrepe.json"
    answer = invoke("compare", f"{file}:cosine", f"{file}:length", "--samples", 50)
    assert answer.exit_code == 0
    assert "accuracy/replace_att" in answer.stdout
    assert "50 draws of signs per image" in " ".join(answer.stdout.split())
    found = json.loads(invoke("compare", f"{file}:cosine", f"{file}:length", "--samples", 50, "--json").stdout)
    assert found["items"] == 16
    printed = invoke("table", file, root / "out" / "flickr8k-expert.json", "-f", "markdown").stdout
    assert printed.count("| :--- |") == 2
    every = sorted((root / "out").glob("*.json"))  # as a shell expands out/*.json
    assert [path.name for path in every] == ["flickr8k-expert.json", "sugarcrepe-authors.json", "sugarcrepe.json"]
    assert invoke("table", *every, "-f", "markdown").stdout.count("| :--- |") == 3


def test_long_captions_use_more_components_unless_a_form_is_passed(tmp_path):
    rows = [
        {"image": f"{c}.png", "caption_a": f"a {c} square", "caption_b": "a dog", "system_a": "A", "system_b": "B",
         "winner": w, "id": c, "level": "level 1"}
        for c, w in (("red", "a"), ("green", "tie"), ("blue", "b"))
    ]  # fmt: skip
    write_rows(tmp_path / "caparena.jsonl", rows)
    write_images(tmp_path / "caparena.images.parquet", {f"{c}.png": encoded(c) for c in ("red", "green", "blue")})
    common = ("bench", "caparena", "--root", tmp_path, "-e", "toy", "-m", "msd", "--samples", 5)
    answer = invoke(*common, "-o", tmp_path / "long")
    assert answer.exit_code == 0, answer.output
    assert "caparena: captions of a paragraph, so components are (5, 3)" in answer.stderr
    assert "|k:5,3|" in (tmp_path / "long" / "caparena.json").read_text()
    assert invoke(*common, "-o", tmp_path / "short", "--form", "short").exit_code == 0
    assert "|k:3,2|" in (tmp_path / "short" / "caparena.json").read_text()
    assert invoke(*common, "-o", tmp_path / "own", "--set", "components=4,2").exit_code == 0
    assert "|k:4,2|" in (tmp_path / "own" / "caparena.json").read_text()
    answer = invoke(*common, "-o", tmp_path / "long", "--protocol", "paper", "--json")
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
    common = ("study", "sweep", "kappa", "--root", tmp_path, "-e", "toy", "-b", "caparena", "--samples", 5, "--json")
    answer = invoke(*common, "--values", "20", "-m", "msd", "--protocol", "paper")
    assert answer.exit_code == 0, f"{answer.output} {answer.exception}"
    assert answer.stderr.count("caparena: captions of a paragraph, so components are (5, 3)") == 1
    (table,) = json.loads(answer.stdout)["tables"]
    assert table["protocol"] == "paper"
    assert table["rows"][0]["agreement/all"]["value"] == pytest.approx(
        1 / 3
    )  # the two human ties are not ties of the metric
    assert "|k:5,3|" in table["rows"][0]["signature"]
    assert "Did you mean 'paper'" in str(invoke(*common, "--protocol", "papers").exception)


def test_compare_with_one_image_prints_valid_json(tmp_path):
    make_expert(tmp_path)
    words = ("--root", tmp_path, "-o", tmp_path / "out", "-e", "toy", "-m", "cosine", "-m", "length", "--samples", 9)
    assert invoke("bench", "flickr8k-expert", *words, "--limit", 1, "--no-control").exit_code == 0
    file = tmp_path / "out" / "flickr8k-expert.json"
    for command in ((f"{file}:cosine", f"{file}:length"), (file, "--against", "length")):
        answer = invoke("compare", *command, "--samples", 9, "--json")
        assert answer.exit_code == 0, answer.output
        assert "null" in answer.stdout
        json.loads(answer.stdout, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_listings_contain_all_entries():
    found = json.loads(invoke("benchmarks", "--json").stdout)
    assert [row["name"] for row in found] == [row.name for row in benchmarks()]
    assert all(row["licence"] and row["source"] and row["files"] for row in found)
    assert json.loads(invoke("benchmarks", "show", "docent", "--json").stdout)["kind"] == "battles"
    assert "protocols" in invoke("benchmarks", "show", "caparena").stdout
    assert [row["name"] for row in json.loads(invoke("metrics", "--json").stdout)] == [
        row.name for row in list_metrics()
    ]
    assert "judge" in invoke("metrics").stdout
    assert json.loads(invoke("metrics", "clipscore", "--json").stdout)["needs"] == ["encoder", "published"]
    assert "metric" in str(invoke("metrics", "nothing").exception)


def test_benchmarks_page_lists_all_benchmarks_and_metrics():
    page = (Path(__file__).parent.parent / "docs" / "lab" / "benchmarks.md").read_text(encoding="utf-8")
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
    answer = invoke("bench", kind, *arguments, "-o", tmp_path / "out")
    assert answer.exit_code == 0, answer.output
    result = tmp_path / "out" / f"{kind}.json"
    compared = json.loads(invoke("compare", f"{result}:cosine", f"{result}:length", "--json").stdout)
    assert compared["differences"][0]["first"] > compared["differences"][0]["second"]
    assert not any(difference["name"].endswith("/") for difference in compared["differences"])


def test_a_benchmark_and_a_metric_are_imported_from_a_module(tmp_path, monkeypatch):
    own_rows(tmp_path)
    monkeypatch.chdir(tmp_path)
    module = """
from msdscore_lab.benchmarks.base import Benchmark

COLOURS = Benchmark(
    name="colours", kind="pairs", reader="msdscore_lab.benchmarks.readers.rows:need_rows",
    rows="msdscore_lab.benchmarks.readers.rows:read_pairs",
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
    answer = invoke(*arguments, "-o", "out", "--samples", 20)
    assert answer.exit_code == 0, answer.output
    result = json.loads(Path("out/colour_lab.COLOURS.json").read_text())
    brevity = result["metrics"][0]
    assert brevity["figures"][0]["value"] == 1.0  # wrong captions have one more word
    assert "colour_lab:brevity|code:" in brevity["signature"]
    compared = invoke("compare", "out/colour_lab.COLOURS.json:cosine", "out/colour_lab.COLOURS.json:colour_lab:brevity")
    assert compared.exit_code == 0, compared.output
    wrong = invoke(
        "bench", "pairs", "--root", "my-pairs.jsonl", "-e", "toy", "-m", "no_such_module:words", "-o", "other"
    )
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
    wrong = invoke("bench", "pairs", "--root", "my-pairs.jsonl", "-m", metric, "-o", "out", "--no-control")
    assert isinstance(wrong.exception, MSDScoreError)
    assert re.search(message, str(wrong.exception)), wrong.exception


def test_results_without_metrics_and_negative_seeds_are_rejected(tmp_path):
    make_sugarcrepe(tmp_path / "data")
    bench = ["bench", "sugarcrepe", "--root", str(tmp_path / "data"), "-e", "toy", "-m", "msd", "-o", str(tmp_path)]
    assert invoke(*bench, "--samples", "5").exit_code == 0
    path = tmp_path / "sugarcrepe.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"metrics": []}))
    with pytest.raises(InputError, match=r"crepe\.json: has no metrics"):
        read_result(path)
    assert invoke(*bench, "--seed", "-1").exit_code == 2
