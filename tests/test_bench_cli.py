"""The commands bench, compare, table, benchmarks and metrics; and the evidence page."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench_sets import COLOURS, encoded, make_expert, make_sugarcrepe, write_pictures, write_rows
from msdscore.benchmarks.registry import benchmarks
from msdscore.cli.app import app
from msdscore.errors import MSDScoreError
from msdscore.metrics.registry import list_metrics
from msdscore.studies import evidence


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
    assert "SugarCrepe, official (16 items, 8 pictures)" in answer.stdout
    assert "Flickr8k-Expert, official (24 items, 8 pictures)" in answer.stdout
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


def test_the_evidence_page_keeps_what_people_wrote(tmp_path):
    make_sugarcrepe(tmp_path / "data")
    make_expert(tmp_path / "data")
    page = tmp_path / "evidence.md"
    page.write_text(f"# Evidence\n\nOur words.\n\n{evidence.BEGIN}\nold\n{evidence.END}\n\nMore words.\n")
    evidence.main(["--data", str(tmp_path / "data"), "-o", str(page), "--encoder", "toy", "--samples", "20"])
    text = page.read_text()
    assert text.startswith("# Evidence\n\nOur words.\n\n<!-- generated: begin -->")
    assert text.endswith("<!-- generated: end -->\n\nMore words.\n")
    assert "old" not in text
    assert "`python -m msdscore.studies.evidence --data DATA --encoder toy --samples 20`" in text
    assert str(tmp_path) not in text
    for heading in ("## SugarCrepe", "## Flickr8k-Expert", "Paired tests against cosine", "with the wrong one"):
        assert heading in text
    assert "- msd against cosine: " in text
    assert "## Behaviour" not in text


def test_the_evidence_page_holds_words_and_behaviour_where_there_is_data(tmp_path):
    rows = [
        {"image": f"{c}.png", "caption": f"a {c} square and a {o} square", "hallucinated": [o], "objects": [c],
         "captions": [f"a {c} square", f"the square is {c}"]}
        for c, o in zip(COLOURS, COLOURS[1:] + COLOURS[:1], strict=True)
    ]  # fmt: skip
    write_rows(tmp_path / "long.jsonl", rows)
    write_pictures(tmp_path / "long.images.parquet", {f"{colour}.png": encoded(colour) for colour in COLOURS})
    page = tmp_path / "evidence.md"
    arguments = ["--data", tmp_path, "-o", page, "-e", "toy", "--samples", 20, "--captions", tmp_path / "long.jsonl"]
    evidence.main(list(map(str, arguments)))
    text = page.read_text()
    assert "## Words that long captions invent" in text
    assert "| AUC within captions | 8 |" in text
    assert "| wrong colour | first higher | 8 |" in text
    assert "--captions CAPTIONS" in text
    with pytest.raises(MSDScoreError, match="expected one of sugarcrepe, .* found none"):
        evidence.main(["--data", str(page.parent / "out"), "-o", str(page), "-e", "toy"])


def test_the_page_on_benchmarks_names_every_benchmark_and_metric():
    page = (Path(__file__).parent.parent / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    for row in benchmarks():
        assert f"| `{row.name}` |" in page, row.name
    for metric in list_metrics():
        assert f"`{metric.name}" in page, metric.name


def test_the_evidence_page_stands_under_the_papers_settings_too(tmp_path):
    make_sugarcrepe(tmp_path / "data")
    make_expert(tmp_path / "data")
    page = tmp_path / "evidence.md"
    arguments = ["--data", tmp_path / "data", "-o", page, "--encoder", "toy", "--samples", 5, "--preset", "long"]
    evidence.main(list(map(str, arguments)))
    text = page.read_text()
    assert "## SugarCrepe, long" in text
    assert "## SugarCrepe, the paper's settings" in text
    assert "|k:5,3|" in text
    assert "|k:3,2|" in text
    assert "--preset long" in text
