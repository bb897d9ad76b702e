"""Overview tables: best values; comparisons with a baseline; item listings."""

import json
from functools import partial

import pytest

from bench_sets import make_expert, make_sugarcrepe
from command_line import invoke
from msdscore.errors import ConfigError, InputError
from msdscore_lab.benchmarks.results.grids import overview
from msdscore_lab.benchmarks.results.result import read_result

call = partial(invoke, catch_exceptions=False)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    root = tmp_path_factory.mktemp("overview")
    make_sugarcrepe(root / "data")
    make_expert(root / "data")
    metrics = [word for name in ("cosine", "msd", "random", "constant") for word in ("-m", name)]
    call(
        "bench",
        "sugarcrepe",
        "flickr8k-expert",
        "--root",
        root / "data",
        "-o",
        root,
        "-e",
        "toy",
        *metrics,
        "--samples",
        50,
    )
    return [root / "sugarcrepe.json", root / "flickr8k-expert.json"]


def test_overview_has_a_column_per_benchmark_and_the_best_in_bold(files):
    grid = overview(list(map(read_result, files)))
    assert grid.columns == ("metric", "SugarCrepe accuracy/mean", "Flickr8k-Expert tau_c")
    rows = {row[0]: row[1:] for row in grid.rows}
    assert list(rows) == ["cosine", "MSD", "random", "constant", "length alone (better direction)"]
    assert rows["constant"] == ("0.0", "–")
    best = {(grid.rows[row][0], column) for row, column in grid.best}
    assert ("cosine", 1) in best
    assert not {("random", 1), ("length alone (better direction)", 1)} & best
    text = call("table", *files, "--overview").stdout
    assert "| cosine | **100.0** | " in text
    assert r"cosine & \textbf{100.0} &" in call("table", *files, "--overview", "-f", "latex").stdout


def test_two_values_for_one_cell_are_rejected(files, tmp_path):
    crepe = read_result(files[0])
    call(
        "bench",
        "sugarcrepe",
        "--root",
        files[0].parent / "data",
        "-o",
        tmp_path,
        "-m",
        "random",
        "--seed",
        1,
        "--samples",
        5,
    )
    other = read_result(tmp_path / "sugarcrepe.json")
    assert overview([crepe, other])  # the same values with another seed of the control
    call(
        "bench", "sugarcrepe", "--root", files[0].parent / "data", "-o", tmp_path / "few", "-m", "random", "--limit", 5
    )
    few = read_result(tmp_path / "few" / "sugarcrepe.json")
    with pytest.raises(InputError, match="two results of sugarcrepe"):
        overview([crepe, few])


def test_other_settings_are_separate_rows(files, tmp_path):
    data = files[0].parent / "data"
    call(
        "bench",
        "sugarcrepe",
        "--root",
        data,
        "-o",
        tmp_path,
        "-e",
        "toy",
        "-m",
        "msd",
        "--set",
        "kappa=9.5",
        "--samples",
        5,
    )
    both = [read_result(path) for path in (files[0], tmp_path / "sugarcrepe.json")]
    labels = [row[0] for row in overview(both).rows]
    assert "MSD (kappa:20)" in labels
    assert "MSD (kappa:9.5)" in labels
    assert "cosine" in labels


def test_comparison_with_a_baseline_is_corrected_for_all_metrics(files):
    found = json.loads(call("compare", files[0], "--against", "cosine", "--samples", 300, "--json").stdout)
    p_values = {one["metric"]: one["differences"][0]["p_value"] for one in found}
    assert set(p_values) == {"msd", "random", "constant"}
    assert p_values["msd"] == 1.0
    one = json.loads(call("compare", f"{files[0]}:constant", f"{files[0]}:cosine", "--samples", 300, "--json").stdout)
    assert one["differences"][0]["p_value"] <= p_values["constant"] < 0.05
    text = call("compare", files[0], "--against", "cosine").stdout
    assert "SugarCrepe, official: metrics against cosine" in text
    assert "200,000 draws" in " ".join(text.split())
    for arguments in ((files[0],), (files[0], files[0], "--against", "msd")):
        with pytest.raises(ConfigError, match="--against METRIC"):
            call("compare", *arguments)


def test_items_are_listed_in_the_order_of_a_score_file(files, tmp_path):
    root = files[0].parent / "data"
    rows = [json.loads(line) for line in call("benchmarks", "items", "sugarcrepe", "--root", root).stdout.splitlines()]
    assert len(rows) == 16
    assert rows[0] == {"id": "replace_att/0", "image": "red.png", "captions": ["a red square", "a green square"]}
    scored = [{"id": row["id"], "scores": [-index for index, _ in enumerate(row["captions"])]} for row in rows]
    (tmp_path / "scores.jsonl").write_text("".join(json.dumps(row) + "\n" for row in scored))
    label = f"file:{tmp_path / 'scores.jsonl'}"
    call("bench", "sugarcrepe", "--root", root, "-o", tmp_path, "-m", label, "--samples", 5, "--no-control")
    result = read_result(tmp_path / "sugarcrepe.json")
    assert result.metrics[0].figures[0].value == 1.0
    assert result.made.date
    shown = call("benchmarks", "show", "docent").stdout
    assert "counting" in shown
    assert "three-way agreement" in shown
