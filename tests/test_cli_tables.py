"""Tables and progress output of the command line, and --quiet."""

import json

import pytest

from bench_sets import make_sugarcrepe
from coloured_pairs import two_coloured
from command_line import completed, invoke
from msdscore.cli import progress
from msdscore.cli.progress import log_lines
from msdscore.errors import shortened
from msdscore_lab.benchmarks.results.grids import Grid
from msdscore_lab.cli import grids

COLUMNS = ("metric", *(f"figure number {number}" for number in range(8)))
ROWS = (("soft-msd", *(f"{number}.5 [1.0, 9.0]" for number in range(8))), ("msd", *["1.0"] * 8))


@pytest.fixture
def terminal(monkeypatch):
    """Return a function that sets the width of the terminal that standard output seems to be."""
    for name, value in {"FORCE_COLOR": "1", "TERM": "dumb", "LINES": "40"}.items():
        monkeypatch.setenv(name, value)
    return lambda width: monkeypatch.setenv("COLUMNS", str(width))


@pytest.mark.parametrize("width", [60, 80, 200])
def test_narrow_terminal_splits_tables_without_wrapping_numbers(terminal, capsys, width):
    terminal(width)
    grids.grid_table(Grid("a title", COLUMNS, ROWS, ("a note " * 30,)))
    text = capsys.readouterr().out
    lines = text.splitlines()
    for number in range(8):
        (line,) = [line for line in lines if f"{number}.5 [1.0, 9.0]" in line]
        assert line.startswith("soft-msd")
    assert sum(line.startswith("metric") for line in lines) == {200: 1, 80: 2, 60: 3}[width]
    assert "…" not in text


def test_pipe_gets_unwrapped_lines():
    result = invoke("encoders")
    assert result.exit_code == 0
    rows = result.output.strip().splitlines()
    from msdscore import list_encoders

    assert len(rows) == len(list_encoders()) + 1


def test_quiet_prints_only_results_and_errors(tmp_path):
    two_coloured("green", "red").save(tmp_path / "p.png")
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"image": "p.png", "caption": "green"}\n')
    score = ["score", str(rows), "-o", str(tmp_path / "out.parquet"), "-e", "toy"]
    assert invoke(*score).exit_code == 0
    report = ["report", str(tmp_path / "out.parquet"), "-o", str(tmp_path / "r.html")]
    assert "1 rows, 0 failed" in invoke(*report).stderr
    assert invoke("--quiet", *report).stderr == ""


def test_study_accepts_the_data_options_of_bench(tmp_path):
    make_sugarcrepe(tmp_path)
    answer = invoke("study", "words", "--marks", "changed", "--root", str(tmp_path), "-e", "toy")
    assert answer.exit_code == 0, answer.output
    assert "| replace_att |" in answer.output


def test_progress_is_logged_every_30_seconds_without_a_terminal(capsys):
    seconds = iter([0.0, 5.0, 20.0, 36.0, 50.0, 66.0])
    show = log_lines("scoring", lambda: next(seconds))
    for done in (1000, 1100, 1310, 1400, 1610):  # 1000 rows were finished before
        show(done, 11_000)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "scoring: 1,310 of 11,000, 10.0 per second, 16 min left",
        "scoring: 1,610 of 11,000, 10.0 per second, 16 min left",
    ]


def test_progress_bar_without_a_terminal_logs_unless_quiet(capsys, monkeypatch):
    monkeypatch.setattr(progress, "LOG_EVERY", 0.0)
    with progress.bar("rows") as show:
        show(0, 4)
        show(2, 4)
    assert capsys.readouterr().err.startswith("rows: 2 of 4, ")
    progress.be_quiet(True)
    try:
        with progress.bar("rows") as show:
            show(0, 4)
            show(2, 4)
    finally:
        progress.be_quiet(False)
    assert capsys.readouterr().err == ""


def test_names_in_a_narrow_table_are_not_wrapped_and_other_columns_are(terminal, capsys):
    terminal(44)
    row = {"name": "a-very-long-name-of-30-letters", "some_text": "several words in a column", "size": 12_000_000}
    progress.rows_table([row], ("name", "some_text", "size"))
    lines = capsys.readouterr().out.splitlines()
    assert any(row["name"] in line for line in lines)
    assert len(lines) > 2
    assert any("12 M" in line for line in lines)


def test_fields_without_a_value_are_left_out(capsys):
    progress.fields_table({"name": "x", "none": None, "flag": False, "items": ["a", "b"], "parameters": 999_999})
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert printed == [["name", "x"], ["flag", "False"], ["items", "a,", "b"], ["parameters", "999999"]]


def test_a_study_prints_json_for_a_dash(tmp_path):
    make_sugarcrepe(tmp_path)
    answer = completed("study", "words", "--marks", "changed", "--root", str(tmp_path), "-e", "toy", "-o", "-")
    assert json.loads(answer.stdout)["tables"]


def test_more_failed_rows_than_are_listed_are_counted(capsys):
    progress.tell_reasons(["a: broken", "b: broken"], 5, "the column error has all")
    assert capsys.readouterr().err.splitlines() == [
        "  a: broken",
        "  b: broken",
        "  and 3 more; the column error has all",
    ]
    progress.tell_reasons(["a: broken"], 1, "the column error has all")
    assert capsys.readouterr().err.splitlines() == ["  a: broken"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (99, "99 s"),
        (100, "2 min"),
        (5900, "98 min"),
        (6000, "1 h 40 min"),
        (170_000, "47 h 13 min"),
        (172_800, "2 d 0 h"),
    ],
)
def test_durations_have_two_units_at_most(seconds, text):
    assert progress.duration(seconds) == text


def test_names_of_messages_have_at_most_120_characters():
    assert shortened("x" * 120) == "x" * 120
    text = shortened("a" * 100 + "b" * 100)
    assert len(text) == 120
    assert text.startswith("aaa")
    assert text.endswith("bbb")
    assert " … " in text
