"""Paired comparisons of two metrics: by hand, under the null hypothesis, and across result files."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats as scipy_stats

from bench_sets import make_expert, make_sugarcrepe, write_rows
from command_line import invoke
from msdscore.errors import ConfigError, InputError
from msdscore.scorer import Scorer
from msdscore_lab.benchmarks.base import Battle, Pair, Rated
from msdscore_lab.benchmarks.protocols.counting import Figure
from msdscore_lab.benchmarks.registry import load
from msdscore_lab.benchmarks.results.compare import compare_sides, open_side
from msdscore_lab.benchmarks.results.grids import comparison_grid, markdown, result_grids
from msdscore_lab.benchmarks.results.result import item_table, items_of, read_result, to_json
from msdscore_lab.benchmarks.results.tables import render, select_columns
from msdscore_lab.benchmarks.run.plan import BenchmarkPlan
from msdscore_lab.benchmarks.run.runner import run_benchmark


def compare(first, second):
    """Compare two sides, as RESULT.json:METRIC."""
    return compare_sides([(open_side(str(first)), open_side(str(second)))], samples=300)[0]


def bench(root, name, output, metrics, **more):
    plan = BenchmarkPlan(name=name, root=root, metrics=metrics, samples=20, **more)
    run_benchmark(plan, output, lambda: Scorer("toy", "short").pipeline)
    return output


@pytest.fixture(scope="module")
def crepe(tmp_path_factory):
    root = make_sugarcrepe(tmp_path_factory.mktemp("crepe"))
    return bench(root, "sugarcrepe", root / "crepe.json", ("cosine", "support", "length", "shorter"))


def test_differences_of_accuracies_by_hand(crepe):
    found = compare(f"{crepe}:cosine", f"{crepe}:length")
    assert (found.first, found.second) == ("cosine (toy@1)", "length")  # which uses no encoder
    by_name = {difference.name: difference for difference in found.differences}
    assert list(by_name) == ["accuracy/mean", "accuracy/replace_att", "accuracy/add_att", "accuracy/all"]
    part = by_name["accuracy/replace_att"]
    assert (part.first, part.second, part.n) == (1.0, 0.0, 8)  # length ties on one colour word against another
    assert part.p_value == 2 / 2**8  # two of all patterns of signs of eight images
    for difference in found.differences:
        assert (difference.interval.low > 0 or difference.interval.high < 0) == (difference.p_value < 0.05)
    assert found.items == 16


def test_p_value_is_missing_if_the_test_is_undefined(tmp_path):
    expert = bench(make_expert(tmp_path), "flickr8k-expert", tmp_path / "expert.json", ("constant", "length"))
    for label in ("constant", "length"):
        found = compare(f"{expert}:constant", f"{expert}:{label}")
        assert np.isnan([difference.p_value for difference in found.differences]).all()
        assert "nan" not in markdown(comparison_grid(found))


def test_labels_with_colons_and_paths_can_be_compared(tmp_path):
    root = make_sugarcrepe(tmp_path)
    rows = [{"id": item.id, "scores": [1, 0]} for item in load("sugarcrepe", root).items]
    write_rows(tmp_path / "given.jsonl", rows)
    label = f"file:{tmp_path / 'given.jsonl'}"
    result = bench(root, "sugarcrepe", tmp_path / "out.json", ("length", label))
    found = compare(f"{result}:{label}", f"{result}:length")
    assert found.differences[0].first == 1.0
    with pytest.raises(InputError, match="file:x: no such file"):
        open_side("nowhere.json:file:x")


def test_pairs_of_one_image_are_one_unit(crepe):
    found = compare(f"{crepe}:cosine", f"{crepe}:length")
    images = {item.image for item in items_of(open_side(f"{crepe}:cosine").table, "pairs")}
    assert found.differences[-1].interval.n == len(images) < found.differences[-1].n


def test_a_metric_does_not_differ_from_itself(crepe):
    found = compare(f"{crepe}:cosine", f"{crepe}:cosine")
    for difference in found.differences:
        assert difference.interval.low == difference.interval.high == 0
        assert difference.p_value == 1


def test_scores_are_negated_if_lower_is_better(crepe):
    straight = compare(f"{crepe}:support", f"{crepe}:cosine")
    figure = read_result(crepe).metric("support").figure("accuracy/all")
    assert straight.differences[-1].first == pytest.approx(figure.value)


def test_differences_of_correlations(tmp_path):
    root = make_expert(tmp_path)
    output = bench(root, "flickr8k-expert", tmp_path / "expert.json", ("cosine", "random", "length"))
    found = compare(f"{output}:cosine", f"{output}:random")
    first, second = found.differences
    assert (first.name, second.name) == ("tau_c", "tau_b")
    result = read_result(output)
    assert first.first == pytest.approx(result.metric("cosine").figure("tau_c").value)
    assert first.first - first.second == pytest.approx(first.interval.value)
    assert first.p_value < 0.05
    items, table = load("flickr8k-expert", root).items, open_side(f"{output}:cosine").table
    scores = np.repeat([row[0] for row in table.column("cosine").to_pylist()], 3)
    ratings = [rating for item in items for rating in item.ratings]
    assert second.first == pytest.approx(scipy_stats.kendalltau(scores, ratings).statistic)


def test_missing_scores_and_items_are_excluded_and_counted(tmp_path, crepe):
    root = make_sugarcrepe(tmp_path)
    items = load("sugarcrepe", root).items
    write_rows(tmp_path / "given.jsonl", [{"id": item.id, "scores": [1, 0]} for item in items[:9]])
    label = f"file:{tmp_path / 'given.jsonl'},partial=true"
    other = bench(root, "sugarcrepe", tmp_path / "other.json", (label,), limit=12)
    found = compare(other, f"{crepe}:cosine")
    assert found.not_in_both == 4
    assert found.items + found.missing == 12
    assert found.missing > 0
    notes = comparison_grid(found).notes
    assert f"{found.missing} items without a score on one side, left out" in notes
    assert "4 items that only one result has, left out" in notes


def test_incomparable_results_are_rejected(tmp_path, crepe):
    with pytest.raises(ConfigError, match="several metrics.*:cosine"):
        open_side(str(crepe))
    with pytest.raises(InputError, match="nowhere: no such file"):
        open_side("nowhere")
    expert = bench(make_expert(tmp_path), "flickr8k-expert", tmp_path / "expert.json", ("length",))
    with pytest.raises(InputError, match="sugarcrepe and flickr8k-expert"):
        compare(f"{crepe}:length", expert)
    counted = tmp_path / "authors.json"
    counted.write_text(json.dumps(json.loads(crepe.read_text()) | {"protocol": "authors"}))
    (tmp_path / "crepe.parquet").write_bytes(crepe.with_suffix(".parquet").read_bytes())
    with pytest.raises(InputError, match="got official and authors"):
        compare(f"{crepe}:length", f"{counted}:length")
    (tmp_path / "crepe.parquet").unlink()
    with pytest.raises(InputError, match="crepe.parquet: no such file"):
        open_side(f"{counted}:length")
    other = make_sugarcrepe(tmp_path / "changed")
    rows = [json.loads(line) for line in (other / "sugarcrepe.jsonl").read_text().splitlines()]
    write_rows(other / "sugarcrepe.jsonl", [row | {"caption": "another"} for row in rows])
    changed = bench(other, "sugarcrepe", tmp_path / "changed.json", ("length",))
    with pytest.raises(InputError, match="differ in captions"):
        compare(f"{crepe}:length", changed)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("length", None, "no column length"),
        ("captions", None, "no column captions"),
        ("length", "long", "length has no lists"),
        ("length", [1.0, 2.0, 3.0], "crepe.parquet: is damaged"),
        ("judged", "{", "'replace_att/0' .*is damaged"),
        ("judged", "[]", "'replace_att/0' .*is damaged"),
    ],
)
def test_damaged_scores_are_rejected(crepe, tmp_path, column, value, message):
    table = pq.read_table(crepe.with_suffix(".parquet"))
    others = table.column(column).to_pylist()[1:]
    table = table.drop_columns([column])
    if value is not None:
        table = table.append_column(column, pa.array([value, *([value] * 15 if value == "long" else others)]))
    (tmp_path / "crepe.json").write_bytes(crepe.read_bytes())
    pq.write_table(table, tmp_path / "crepe.parquet")
    with pytest.raises(InputError, match=message):
        compare(f"{tmp_path / 'crepe.json'}:length", f"{crepe}:length")


@pytest.mark.parametrize("change", [{"scores": None}, {"seed": "0"}])
def test_values_of_a_result_have_their_types(crepe, tmp_path, change):
    (tmp_path / "crepe.json").write_text(json.dumps(json.loads(crepe.read_text()) | change))
    with pytest.raises(InputError, match="is damaged"):
        open_side(f"{tmp_path / 'crepe.json'}:length")


def test_tables_in_every_format(crepe):
    grids = result_grids([read_result(crepe)])
    text = markdown(grids[0])
    assert (
        "| accuracy/mean | 95 % interval | wrong image | matched length | ties | missing | accuracy/replace_att |"
        in text
    )
    assert "- cosine: `cosine|enc:toy@1|" in text
    tex = render(grids, "latex")
    assert r"cosine & " in tex
    assert r"accuracy/replace\_att" in tex
    assert tex.count(r"\\") == 6
    assert "| length alone (shorter wins) | 50.0 |" in text
    with pytest.raises(LookupError, match="unknown format 'html'"):
        render(grids, "html")


def test_best_values_follow_the_direction_of_their_figure(crepe, tmp_path):
    result = read_result(crepe)
    first, second = (
        replace(metric, figures=(
            *metric.figures, Figure("place of Human", place, None, 4, scale=1, direction=-1),
            Figure("mean/Human", place, None, 4, scale=1, direction=0),
        ))
        for metric, place in zip(result.metrics[:2], (4.0, 1.0), strict=True)
    )  # fmt: skip
    ranked = replace(result, metrics=(first, second))
    grid = result_grids([ranked])[0]
    place, mean = grid.columns.index("place of Human ↓"), grid.columns.index("mean/Human")
    assert [cell for cell in sorted(grid.best) if cell[1] in (place, mean)] == [(1, place)]
    assert select_columns(grid, ["place of Human"]).rows[1] == (second.title, "1.00")
    (tmp_path / "ranked.json").write_text(to_json(ranked))
    assert read_result(tmp_path / "ranked.json").metrics[0].figures[-2].direction == -1


def test_a_table_has_the_headline_by_default(crepe):
    short, every = (invoke("table", crepe, *more).stdout.splitlines() for more in ((), ("--columns", "all")))
    head = "| metric | accuracy/mean | 95 % interval | wrong image | matched length | ties | missing |"
    assert head in short
    assert any(line.startswith(head) and "accuracy/replace_att" in line for line in every)
    assert any("more figures: msdscore table FILE.json --columns all" in line for line in short)


def test_table_columns_and_output_file(crepe, tmp_path):
    words = ["table", str(crepe), "-o", str(tmp_path / "t.tex"), "--columns", "accuracy/mean,interval,wrong image"]
    assert invoke(*words).exit_code == 0
    text = (tmp_path / "t.tex").read_text()
    assert r"metric & accuracy/mean & 95 \% interval & wrong image \\" in text
    assert "exists with other content" in str(invoke(*words[:-1], "interval").exception)
    wrong = invoke("table", str(crepe), "--columns", "accuracy")
    assert "unknown column 'accuracy'" in str(wrong.exception)


def test_protocols_have_separate_tables(crepe):

    result = read_result(crepe)
    assert len(result_grids([result, replace(result, protocol="authors"), replace(result, limit=5)])) == 3
    foreign = [replace(m, signature=m.signature.replace("enc:toy@1", "enc:other@2")) for m in result.metrics]
    both = result_grids([result, replace(result, encoder="other@2,dtype:float32", metrics=tuple(foreign))])
    assert len(both) == 1
    assert both[0].columns[1] == "encoder"
    encoders = {(row[0], row[1]) for row in both[0].rows}
    assert {("cosine", "toy@1"), ("cosine", "other@2"), ("length", "–")} <= encoders
    assert ("length", "toy@1") not in encoders
    changed = tuple(replace(m, signature=m.signature.replace("kappa:20", "kappa:9")) for m in result.metrics)
    grid = result_grids([result, replace(result, metrics=changed)])[0]
    assert grid.columns[1] == "settings"
    assert [row[1] for row in grid.rows if row[0] == "support"] == ["kappa:20", "kappa:9"]
    assert {row[1] for row in grid.rows if row[0] == "length"} == {"–"}


def test_items_survive_a_round_trip(tmp_path):
    from pathlib import Path

    battle = Battle(
        "b",
        Path("x/1.jpg"),
        "one",
        "two",
        "tie",
        "m",
        "n",
        "level 1",
        "in-400",
        "bad",
        {"overall_quality": -2},
    )
    pair = Pair("p", Path("2.jpg"), "yes", "no", "s", ("ref",), (40, 8))
    rated = Rated("r", Path("3.jpg"), "text", (1.0, 2.0), ("ref",), "coco")
    for item, kind in ((battle, "battles"), (pair, "pairs"), (rated, "rated")):
        (back,) = items_of(item_table([item]), kind)
        assert back.id == item.id
        assert back.captions == item.captions
        assert back.subset == item.subset
        assert back.image.name == item.image.name
    (back,) = items_of(item_table([battle]), "battles")
    assert (back.winner, back.system_a, back.level, back.aspects) == ("tie", "m", "level 1", battle.aspects)
    assert items_of(item_table([rated]), "rated")[0].ratings == (1.0, 2.0)
    assert items_of(item_table([pair]), "pairs")[0].votes == (40, 8)
