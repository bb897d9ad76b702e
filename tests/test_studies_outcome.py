"""What all studies share: kept steps, charts, and commands that go on after a stop."""

import json

import pytest
from typer.testing import CliRunner

from coloured_pairs import write_pairs
from msdscore.cli.app import app
from msdscore.errors import RunError
from msdscore.stats.resample import bootstrap_mean
from msdscore.studies.charts import draw
from msdscore.studies.explanations import localisation
from msdscore.studies.kept import forget, kept_steps
from msdscore.studies.outcome import Chart, ChartLine, Outcome


def test_a_step_is_made_once_until_it_is_forgotten(tmp_path):
    output, calls = tmp_path / "s.json", []

    def ask(number):
        calls.append(number)
        return {"value": 0.1 + number, "none": float("nan")}

    with kept_steps(output, "x", {"seed": 1}) as steps:
        first = [steps(number, lambda number=number: ask(number)) for number in (0, 1)]
    with kept_steps(output, "x", {"seed": 1}) as steps:
        again = [steps(number, lambda number=number: ask(number)) for number in (0, 1, 2)]
    assert calls == [0, 1, 2]
    assert [one["value"] for one in again[:2]] == [one["value"] for one in first]
    with pytest.raises(RunError, match="belongs to a run with another seed"), kept_steps(output, "x", {"seed": 2}):
        pass
    with kept_steps(output, "x", {"seed": 2}, overwrite=True) as steps:
        steps(0, lambda: ask(0))
    assert calls == [0, 1, 2, 0]
    forget(output)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("x", [(1.0, 10.0), ("vmf", "gaussian")])
def test_charts_are_the_same_bytes_each_time(x):
    values = {place: bootstrap_mean([0.2, 0.4 + shift]) for shift, place in enumerate(x)}
    lines = (ChartLine.of("a", values), ChartLine("b", x, (1.0, 2.0)))
    chart = Chart(title="t", x_label="x", y_label="y", lines=lines, level=50.0, logarithmic=x[0] == 1.0)
    cloud = Chart(title="t", x_label="x", y_label="y", lines=(ChartLine("c", (1.0, 2.0), (3.0, 4.0)),), kind="points")
    assert draw([chart, cloud, chart]).startswith(b"\x89PNG")
    assert draw([chart], "svg") == draw([chart], "svg")


def test_numbers_that_are_none_are_null():
    assert json.dumps(Outcome("s", {"a": (float("nan"), 1)}, "").to_dict()) == '{"study": "s", "a": [null, 1]}'


def test_a_stopped_study_goes_on_where_it_was(tmp_path, monkeypatch):
    write_pairs(tmp_path, 18)
    command = ["study", "localisation", "--root", str(tmp_path), "-e", "toy", "-o", str(tmp_path / "out.json")]
    real, asked = localisation.rank_words, []

    def stopping(pipeline, one, stranger):
        asked.append(one.pair.id)
        if len(asked) == 17:
            raise KeyboardInterrupt
        return real(pipeline, one, stranger)

    monkeypatch.setattr(localisation, "rank_words", stopping)
    answer = CliRunner().invoke(app, command)
    assert answer.exit_code == 130
    assert "finished parts are kept" in answer.stderr
    answer = CliRunner().invoke(app, [*command, "--json"])
    assert answer.exit_code == 0, answer.output
    assert json.loads(answer.stdout) == json.loads((tmp_path / "out.json").read_text())
    assert len(asked) < 2 * len(set(asked))
    assert asked.count(asked[0]) == 1
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.glob("out*")) == ["out.json", "out.md", "out.png"]
    whole = CliRunner().invoke(app, [*command[:-2], "--json"])
    assert json.loads(whole.stdout) == json.loads(answer.stdout)
    again = CliRunner().invoke(app, command)
    assert "exists" in str(again.exception)
