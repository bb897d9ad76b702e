"""Common parts of studies: cached results, rendering of tables, and resumed commands."""

import json
from dataclasses import replace

import pytest

from coloured_pairs import write_pairs
from command_line import invoke
from msdscore.errors import RunError
from msdscore.intervals import bootstrap_mean
from msdscore.scorer import Scorer
from msdscore_lab.studies import changed
from msdscore_lab.studies.context import Study, discard_intermediate
from msdscore_lab.studies.registry import STUDIES, load_study
from msdscore_lab.studies.table import Column, Plot, Table, per_cent, to_figure, to_json, to_markdown


def test_registry_rows_resolve():
    for name in STUDIES:
        assert callable(load_study(name)), name


def test_result_is_cached_until_it_is_forgotten(tmp_path):
    pipeline, calls = Scorer("toy", "short").pipeline, []

    def measure(number, batch):
        calls.append(number)
        return {"value": 0.1 + number, "none": float("nan")}

    study = Study(root=tmp_path / "data", output=tmp_path / "s.json", seed=1)
    first = list(study.run("x", ["a", "b"], measure, pipeline))
    again = list(study.run("x", ["a", "b", "c"], measure, pipeline))
    assert calls == [0, 1, 2]
    assert [answer["value"] for answer in again[:2]] == [answer["value"] for answer in first]
    with pytest.raises(RunError, match="another seed"):
        list(replace(study, seed=2).run("x", ["a"], measure, pipeline))
    list(replace(study, seed=2, overwrite=True).run("x", ["a"], measure, pipeline))
    assert calls == [0, 1, 2, 0]
    discard_intermediate(tmp_path / "s.json")
    assert not list(tmp_path.iterdir())


ROWS = [
    {"name": name, "at": 10.0**number, "share": bootstrap_mean([0.2, 0.4 + number]), "p": 0.0004, "set": "a"}
    for number, name in enumerate(("vmf", "gaussian"))
]


@pytest.mark.parametrize("x", ["name", "at", ""])
@pytest.mark.parametrize("points", [False, True])
def test_figures_are_reproducible(x, points):
    plot = Plot(x=x, y=["share", "p"], series="set", panel=["name"] if x else [], level=50.0, points=points and bool(x))
    table = Table(name="t", columns=[per_cent("share")], rows=ROWS, plots=[plot, replace(plot, series="")])
    assert to_figure([table]).startswith(b"\x89PNG")
    assert to_figure([table], "svg") == to_figure([table], "svg")


def test_intervals_are_bands_for_few_lines_and_bars_for_many():
    few = Plot(x="at", y=["share"], logarithmic=True, diagonal=True)
    many = replace(few, y=["share", "share", "share"])
    drawn = [to_figure([Table(name="t", rows=ROWS, plots=[plot])], "svg") for plot in (few, many)]
    assert drawn[0] != drawn[1]
    assert to_figure([Table(name="t", rows=ROWS)]) is None


def test_columns_select_printed_values_and_json_has_all():
    columns = [Column("name", "mixture"), per_cent("share"), Column("p", "", "p"), Column("gone")]
    table = Table(name="t", title="T", columns=columns, rows=ROWS, notes=["n"], signature="s", facts={"k": (1, 2)})
    text = to_markdown([table, Table(name="hidden", rows=ROWS)])
    assert text.count("**T**") == 1
    assert "| mixture | share | p | gone |" in text
    assert "| vmf | 30.0 [20.0, 40.0] | <0.001 | – |" in text
    assert text.endswith("- n\n- `s`\n")
    values = to_json("study", [table])["tables"][0]
    assert values["k"] == [1, 2]
    assert values["rows"][0]["share"]["value"] == pytest.approx(0.3)
    assert values["rows"][0]["set"] == "a"
    row = to_json("study", [Table(name="t", rows=[{"a": float("nan")}])])["tables"][0]["rows"]
    assert json.dumps(row) == '[{"a": null}]'


def test_interrupted_study_resumes(tmp_path, monkeypatch):
    write_pairs(tmp_path, 18)
    command = ["study", "words", "--marks", "changed", "--root", str(tmp_path), "-e", "toy"]
    command += ["-o", str(tmp_path / "out.json")]
    real, measured = changed.measure_readable, []

    def stopping(pipeline, images, texts, pairs):
        measured.append(len(images))
        if len(measured) == 2:
            raise KeyboardInterrupt
        return real(pipeline, images, texts, pairs)

    monkeypatch.setattr(changed, "measure_readable", stopping)
    answer = invoke(*command)
    assert answer.exit_code == 130
    assert "finished parts are saved" in answer.stderr
    answer = invoke(*command, "--json")
    assert answer.exit_code == 0, answer.output
    assert json.loads(answer.stdout) == json.loads((tmp_path / "out.json").read_text())
    assert measured == [16, 2, 2]  # the first batch is not measured again
    assert sorted(path.name for path in tmp_path.glob("out*")) == ["out.json", "out.md"]
    whole = invoke(*command[:-2], "--json")
    assert json.loads(whole.stdout) == json.loads(answer.stdout)
    again = invoke(*command)
    assert "exists" in str(again.exception)
