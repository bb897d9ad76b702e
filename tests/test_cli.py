import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import pyarrow.parquet as pq
import pytest
import typer
from PIL import Image
from typer.main import get_command
from typer.testing import CliRunner

from command_line import completed, invoke, msdscore, refused
from msdscore.cli.app import app
from msdscore.cli.options import flattened
from msdscore.encoders.registry import built_in
from msdscore.errors import MissingExtraError, MSDScoreError, install_line
from msdscore.report.results import read_results
from msdscore_lab.citation import bibtex
from tiny_clip import make_tiny_clip


@pytest.fixture
def red(tmp_path):
    Image.new("RGB", (40, 40), "red").save(tmp_path / "red.png")
    return tmp_path / "red.png"


def test_help_does_not_import_heavy_libraries():
    code = (
        "import sys\nsys.argv = ['msdscore', '--help']\nfrom msdscore.cli.app import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = [m for m in ('torch', 'transformers', 'PIL', 'pyarrow', 'numpy', 'scipy', 'matplotlib') if m in sys.modules]\n"
        "print('heavy:', heavy)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "heavy: []" in answer.stdout


def test_laboratory_has_its_own_heading_in_help():
    text = invoke("--help").stdout
    metric, laboratory = text.split("Commands of msdscore-lab")
    assert len(re.findall(r"^│ [a-z]", metric.partition("Commands")[2], re.M)) == 8
    assert "cococf" in laboratory
    assert "cococf" not in metric


@pytest.mark.parametrize(("command", "needed"), [("bench", "msdscore-lab"), ("serve", "msdscore[serve]")])
def test_commands_of_a_missing_distribution_name_what_to_install(command, needed, monkeypatch):
    monkeypatch.setattr("msdscore.cli.app.entry_points", lambda **wanted: ())
    program = get_command(app)
    assert command not in program.list_commands(None)
    monkeypatch.delitem(program.commands, command, raising=False)
    with pytest.raises(MissingExtraError, match=re.escape(install_line(needed))):
        program.get_command(None, command)
    assert program.get_command(None, "benhc") is None


def test_every_command_has_help():
    program = get_command(app)
    for name in program.list_commands(None):
        result = completed(name, "--help")
        help_text = program.get_command(None, name).help
        assert help_text.splitlines()[0][:40] in " ".join(result.stdout.split()), name


@pytest.mark.parametrize(
    "command", [[], ["score"], ["caption"], ["study"], ["align"], ["align", "train"], ["cococf", "build"]]
)
def test_flags_take_no_value_in_help(command):
    result = completed(*command, "--help")
    assert "--help" in result.stdout
    assert "bool" not in result.stdout.lower()


def options_of(command):
    """Return the option names of a command, each with its help and its panel."""
    parameters = get_command(app).get_command(None, command).params
    return {name: (option.help, option.rich_help_panel) for option in parameters for name in option.opts}


@pytest.mark.parametrize("command", ["bench", "doctor", "explain", "report", "serve", "study"])
def test_every_command_that_scores_has_the_scorer_options_of_score(command):
    names = ["--encoder", "-e", "--form", "--set", "--encoder-option", "--bank", "--device", "--dtype",
             "--revision", "--verify", "--max-pixels"]  # fmt: skip
    expected, got = options_of("score"), options_of(command)
    if command == "report":  # has no default encoder
        expected |= {name: got[name] for name in ("--encoder", "-e")}
    assert {name: got.get(name) for name in names} == {name: expected[name] for name in names}


@pytest.mark.parametrize("words", [["--id-column", "nope"], ["--retry"], ["--images", "."]])
def test_options_of_rows_are_rejected_for_one_image(red, words):
    done = msdscore("score", red, "a dog", "-e", "toy", *words)
    assert done.returncode == 2
    assert done.stderr == f"msdscore: {words[0]}: only for a file of rows; omit it for one image and its captions\n"


def test_unknown_dtype_is_rejected_by_every_encoder(red):
    assert "got 'int8'" in refused("score", red, "a dog", "-e", "toy", "--dtype", "int8")


@pytest.mark.parametrize("options", [["-OO"], []])
def test_program_prints_without_docstrings_and_without_a_width(options):
    command = [sys.executable, *options, "-m", "msdscore", "encoders"]
    done = subprocess.run(command, env={**os.environ, "COLUMNS": "0"}, capture_output=True, text=True, check=True)
    assert "mini " in done.stdout


def test_help_of_score_is_grouped_in_panels():
    panels = [panel for _, panel in options_of("score").values()]
    assert set(panels) <= {None, "Input", "Output", "Scoring", "Speed", "Shards, into a folder"}
    assert max(panels.count(panel) for panel in set(panels)) <= 10
    shown = invoke("score", "--help").stdout
    places = [shown.index(f"─ {panel} ─") for panel in ("Input", "Output", "Scoring", "Speed", "Shards, into a folder")]
    assert places == sorted(places)


def test_a_parameter_typed_as_a_dataclass_becomes_one_option_per_field():
    @dataclass(frozen=True)
    class Size:
        width: Annotated[int, typer.Option()]
        height: int = 2
        names: list[str] = field(default_factory=list)

    @dataclass(frozen=True)
    class Colour:
        size: str = "large"  # the same name as the other group

    def show(path: str, size: Size, colour: Colour) -> None:
        shown.append((path, size, colour))

    shown, program = [], typer.Typer()
    program.command()(flattened(show))
    result = CliRunner().invoke(program, ["here", "--width", "3", "--names", "a", "--names", "b", "--size", "small"])
    assert result.exit_code == 0, result.output
    assert shown == [("here", Size(3, 2, ["a", "b"]), Colour("small"))]
    assert CliRunner().invoke(program, ["here"]).exit_code == 2  # --width has no default
    assert shown[1:] == []


def test_score_prints_a_table_and_json(red):
    table = completed("score", red, "a red square", "a blue square", "-e", "toy")
    assert table.stdout.splitlines()[1].endswith("a red square")
    assert "msd|enc:toy" in table.stdout
    answer = json.loads(msdscore("score", red, "a red square", "-e", "toy", "--json").stdout)
    assert answer["scores"][0]["caption"] == "a red square"
    assert answer["scores"][0]["error"] is None


def test_exit_codes(red, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"image": "red.png", "caption": "red"}))
    fine = completed("score", rows, "-e", "toy", "-o", tmp_path / "out.parquet")
    assert "1 rows, 0 failed" in fine.stderr
    rows.write_text(rows.read_text() + "\n" + json.dumps({"image": "gone.png", "caption": "red"}))
    partial_run = completed("score", rows, "-e", "toy", code=3)
    assert json.loads(partial_run.stdout.splitlines()[1])["error"].endswith("gone.png: no such file")
    for wrong in (
        ["score", rows, "-e", "tot"],
        ["score", rows, "-e", "toy", "--set", "kapa=3"],
        ["score", rows, "-e", "toy", "-o", tmp_path / "out.txt"],
        ["score", tmp_path / "none.jsonl", "-e", "toy"],
        ["score", rows, "a caption", "-e", "toy"],
        ["score", rows, "-e", "toy", "-o", tmp_path / "out.parquet"],
        ["score"],
        ["nonsense"],
    ):
        answer = msdscore(*wrong)
        assert answer.returncode == 2, wrong
        assert "Traceback" not in answer.stderr
    assert "Did you mean 'toy'" in msdscore("score", rows, "-e", "tot").stderr


def test_json_is_printed_with_an_output(red, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"image": "red.png", "caption": "red"}))
    facts = json.loads(msdscore("score", rows, "-e", "toy", "-o", tmp_path / "out.csv", "--json").stdout)
    assert (facts["output"], facts["rows"], facts["failed"]) == (str(tmp_path / "out.csv"), 1, 0)
    ranked = json.loads(msdscore("score", red, "red", "-e", "toy", "-o", tmp_path / "one.csv", "--json").stdout)
    assert ranked["scores"][0]["caption"] == "red"


def test_invalid_paths_are_one_line_errors(red, tmp_path):
    for arguments, line in (
        (["score", red, "-e", "toy"], "red.png: an image needs captions: msdscore score IMAGE CAPTION…"),
        (["score", red, "red", "-e", "toy", "-o", red / "x.csv"], "cannot be written ("),
        (["demo", "-e", "toy", "-o", red], "red.png: is a file; expected the name of a folder"),
    ):
        answer = msdscore(*arguments)
        assert answer.returncode == 2, answer.stderr
        assert line in answer.stderr
        assert len(answer.stderr.splitlines()) == 1


def test_rows_from_standard_input(red):
    line = json.dumps({"image": str(red), "caption": "red"})
    answer = completed("score", "-", "-e", "toy", input=line + "\n")
    assert json.loads(answer.stdout)["caption"] == "red"


def test_encoders_are_listed_and_shown():
    assert "clip-l14" in msdscore("encoders").stdout
    assert "openai/clip-vit-large-patch14" in msdscore("encoders", "clip-l14").stdout
    names = [row["name"] for row in json.loads(msdscore("encoders", "--json").stdout)]
    assert {"toy", "clip-b32", "clip-l14"} <= set(names)
    wrong = msdscore("encoders", "clip-l41")
    assert wrong.returncode == 2
    assert "Did you mean 'clip-l14'" in wrong.stderr


@pytest.fixture
def own_encoder(tmp_path, monkeypatch):
    """Return a function that writes a toy encoder of the user with other methods, and returns its name."""

    def write(methods):
        (tmp_path / "own_encoder.py").write_text(
            "from PIL import Image\nfrom msdscore.encoders.toy import ToyEncoder\n"
            f"class Own(ToyEncoder):\n    {methods}\ndef own(): return Own(name='own')\n"
        )
        return "own_encoder:own"

    monkeypatch.syspath_prepend(tmp_path)
    yield write
    sys.modules.pop("own_encoder", None)


def test_internal_errors_are_not_caught(own_encoder, red):
    result = invoke("score", str(red), "x", "-e", own_encoder("def encode_texts(self, texts): 1 / 0"))
    assert isinstance(result.exception, ZeroDivisionError)
    assert not isinstance(result.exception, MSDScoreError)


def write_rows(path, *rows):
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_missing_images_of_rows_hint_at_the_folder_of_images(red, tmp_path):
    rows = tmp_path / "rows" / "rows.jsonl"
    rows.parent.mkdir()
    rows.write_text('{"image": "red.png", "caption": "a red square"}\n' * 2)
    command = ("score", rows, "-o", tmp_path / "out.jsonl", "-e", "toy")
    assert msdscore(*command).stderr.count("pass --images") == 1
    assert "--images" not in msdscore(*command, "--images", tmp_path / "rows", "--overwrite").stderr
    assert "--images" not in msdscore(*command, "--images", tmp_path, "--overwrite").stderr


def test_failed_rows_and_finished_runs_are_reported(red, tmp_path):
    bad = [{"image": f"gone{i}.png", "caption": "red"} for i in range(5)]
    rows = write_rows(tmp_path / "rows.jsonl", {"image": "red.png", "caption": "red", "msd": 1}, *bad)
    command = ["score", rows, "-e", "toy", "-o", tmp_path / "out.tsv"]
    first = completed(*command, code=3)
    assert first.stderr.splitlines()[0].endswith("6 rows, 5 failed -> " + str(tmp_path / "out.tsv"))
    assert "row 1: " in first.stderr
    assert "gone0.png: no such file" in first.stderr
    assert "and 2 more; see the column error of the output" in first.stderr
    assert "the input column msd is renamed to input_msd" in first.stderr
    again = completed(*command, code=3)
    assert again.stderr.splitlines()[0].endswith("already finished, nothing to do")
    assert again.stderr.splitlines()[-1] == first.stderr.splitlines()[-1]
    Image.new("RGB", (40, 40), "red").save(tmp_path / "gone3.png")
    assert "image files were changed" in msdscore(*command).stderr
    facts = json.loads(msdscore(*command, "--json", "--retry").stdout)
    assert (facts["rows"], facts["failed"]) == (6, 4)


@pytest.mark.skipif(sys.platform != "linux", reason="needs file names that are not UTF-8")
def test_names_that_are_not_utf8_are_written_or_a_one_line_error(red, tmp_path):
    rows, name = write_rows(tmp_path / "rows.jsonl", {"image": "red.png", "caption": "red"}), b"/caf\xe9.parquet"
    output = os.fsdecode(os.fsencode(tmp_path) + name)
    assert msdscore("score", rows, "-e", "toy", "-o", output).returncode == 0
    assert Path(output).is_file()
    done = msdscore("score", output, "-e", "toy", "-o", tmp_path / "again.parquet")  # PyArrow opens no such file
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "cannot be read as a table" in done.stderr


def test_rows_with_warnings_are_counted(red, tmp_path):
    captions = ["a red square", "a \u200bred square", "a red\u200b ball"]
    rows = write_rows(tmp_path / "rows.jsonl", *({"image": "red.png", "caption": text} for text in captions))
    done = msdscore("score", rows, "-e", "toy", "-o", tmp_path / "out.jsonl")
    warned = [line for line in (tmp_path / "out.jsonl").read_text().splitlines() if json.loads(line)["warnings"]]
    assert len(warned) == 2
    assert done.stderr.splitlines()[0].endswith("rows with warnings: 2 (column warnings)")
    folder = msdscore("score", rows, "-e", "toy", "-o", f"{tmp_path / 'scores'}/", "--json")
    assert "rows with warnings: 2 (column warnings)" in folder.stderr.splitlines()
    assert json.loads(folder.stdout)["warned"] == 2
    clean = write_rows(tmp_path / "clean.jsonl", {"image": "red.png", "caption": captions[0]})
    assert "rows with warnings" not in msdscore("score", clean, "-e", "toy", "-o", tmp_path / "clean.csv").stderr


def test_columns_and_compressed_input(red, tmp_path):
    rows = [{"Photo": "red.png", "alt text": "red", "nr": "a", "image": "wrong.png"}]
    with gzip.open(tmp_path / "rows.jsonl.gz", "wt") as file:
        file.write(json.dumps(rows[0]))
    options = ["--image-column", "photo", "--caption-column", "alt text", "--id-column", "nr"]
    answer = completed("score", tmp_path / "rows.jsonl.gz", "-e", "toy", *options)
    row = json.loads(answer.stdout)
    assert {name: row[name] for name in rows[0]} == rows[0]
    assert row["error"] is None
    wrong = msdscore("score", tmp_path / "rows.jsonl.gz", "-e", "toy", "--caption-column", "alttext")
    assert wrong.returncode == 2
    assert "unknown column 'alttext'. Did you mean 'alt text'?" in wrong.stderr


def test_scores_of_one_image_do_not_replace_a_finished_run(red, tmp_path):
    output = tmp_path / "out.parquet"
    rows = write_rows(tmp_path / "rows.jsonl", *[{"image": "red.png", "caption": f"red {i}"} for i in range(9)])
    assert msdscore("score", rows, "-e", "toy", "-o", output).returncode == 0
    before = output.read_bytes()
    refused = msdscore("score", red, "red", "-e", "toy", "-o", output)
    assert refused.returncode == 2
    assert "out.parquet: is the output of a finished run; choose another -o or pass --overwrite" in refused.stderr
    assert output.read_bytes() == before
    assert msdscore("score", red, "red", "-e", "toy", "-o", output, "--overwrite").returncode == 0
    assert output.read_bytes() != before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_interrupted_run_prints_how_to_resume(red, tmp_path, number, code):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(json.dumps({"image": "red.png", "caption": f"red {i} " * 50}) for i in range(20_000)))
    output = tmp_path / "out.jsonl"
    command = [sys.executable, "-m", "msdscore", "score", str(rows), "-e", "toy", "-o", str(output)]
    # Background jobs of a shell ignore Ctrl-C, and so would a child process of tests that run in one.
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    worker = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=heard)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("out.jsonl.parts/manifest.json")) and time.monotonic() < deadline:
        time.sleep(0.01)
    worker.send_signal(number)
    try:
        _, errors = worker.communicate(timeout=60)
    finally:
        worker.kill()
    assert worker.returncode == code
    assert errors.strip() == "stopped; finished parts are saved, and the same command resumes from there"
    assert (tmp_path / "out.jsonl.parts").is_dir()


def test_very_long_names_are_shortened(red):
    for wrong in (["score", "x" * 5000 + ".jsonl"], ["score", red, "red", "-e", "y" * 5000]):
        answer = msdscore(*wrong)
        assert answer.returncode == 2
        assert len(answer.stderr) < 1500


@pytest.fixture
def one_row(red):
    path = red.with_name("rows.jsonl")
    path.write_text(json.dumps({"image": "red.png", "caption": "a café"}, ensure_ascii=False), encoding="utf-8")
    return path


def test_doctor_reports_the_installation_and_passes():
    done = completed("doctor", "-e", "toy")
    lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert lines["version"].startswith("msdscore ")
    assert re.search(r"\bnumpy \d", lines["libraries"])
    assert "threads on the CPU" in lines["runtime"]
    assert lines["self-test"].startswith("passed: 3 of 3 colours recognised, scores are repeatable")


def test_doctor_names_the_library_of_an_own_encoder(own_encoder):
    done = invoke("doctor", "-e", own_encoder("pass"), "--json")
    assert json.loads(done.stdout)["runtime"].startswith("own_encoder, ")


def test_doctor_fails_with_the_encoder():
    done = invoke("doctor", "-e", "clip-l41", "--json")
    assert done.exit_code == 1
    answer = json.loads(done.stdout)
    assert answer["passed"] is False
    assert answer["self-test"].startswith(
        "failed: UnknownNameError: unknown encoder 'clip-l41'. Did you mean 'clip-l14'"
    )


DISTRIBUTION = """\
Metadata-Version: 2.1
Name: msdscore
Version: 0
Requires-Dist: numpy
Requires-Dist: pillow>=9; extra == 'here'
Requires-Dist: no-such-package>=1.0; python_version >= "3.8" and extra == "gone"
Requires-Dist: msdscore[here,gone]; extra == "both"
Requires-Dist: no-test-package; extra == "test"
"""


def test_doctor_lists_libraries_with_their_versions_and_missing_ones(tmp_path, monkeypatch):
    for name in ("msdscore", "msdscore_torch", "msdscore_serve", "msdscore_lab", "msdscore_mini"):
        (tmp_path / f"{name}-0.dist-info").mkdir()
        text = DISTRIBUTION if name == "msdscore" else f"Metadata-Version: 2.1\nName: {name}\nVersion: 0\n"
        (tmp_path / f"{name}-0.dist-info" / "METADATA").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    answer = json.loads(invoke("doctor", "-e", "toy", "--json").stdout)
    expected = f"numpy {version('numpy')}, pillow {version('pillow')}; not installed: no-such-package"
    assert answer["libraries"] == expected


def test_doctor_describes_the_weights(tmp_path):
    folder = make_tiny_clip(tmp_path / "clip")
    (folder / "notes.dat").write_bytes(bytes(5_000_000))
    size = sum(path.stat().st_size for path in folder.rglob("*"))
    for more, how in (
        ([], "sizes and checksums; use --verify to hash every byte"),
        (["--verify"], "every byte hashed"),
    ):
        done = invoke("doctor", "-e", str(folder), "--device", "cpu", "--json", *more)
        assert json.loads(done.stdout)["weights"] == f"{folder}, {size / 1e6:.0f} MB, verified ({how})"
    toy = invoke("doctor", "-e", "toy", "--json")
    assert json.loads(toy.stdout)["weights"] == "no files, or managed by the encoder's loader"


@pytest.mark.parametrize(
    ("colours", "line"),
    [
        (
            ["red", "red", "green", "green", "green", "green"],
            "passed: 2 of 3 colours recognised, scores are repeatable",
        ),
        (["red", "red", "red", "red", "red", "red"], "failed: 1 of 3 colours recognised, scores are repeatable"),
        (
            ["red", "red", "green", "green", "blue", "white"],
            "failed: 3 of 3 colours recognised, scores are not finite or not repeatable",
        ),
    ],
)
def test_doctor_requires_two_of_three_colours_and_equal_scores(colours, line, own_encoder):
    """Each of three images is ranked twice; the encoder sees these colours instead."""
    others = f"seen = {colours}; prepare = lambda self, image: super(Own, self).prepare(Image.new('RGB', image.size, self.seen.pop(0)))"
    done = invoke("doctor", "-e", own_encoder(others), "--json")
    answer = json.loads(done.stdout)
    assert answer["self-test"].startswith(f"{line}, ")
    assert (answer["passed"], done.exit_code) == ((True, 0) if line.startswith("passed") else (False, 1))


def test_shell_completion_of_encoders_does_not_import_torch():
    code = (
        "import sys; from typer.testing import CliRunner; from msdscore.cli.app import app; "
        "env = {'_MSDSCORE_COMPLETE': 'complete_bash', 'COMP_WORDS': 'msdscore score -e clip-l', 'COMP_CWORD': '3'}; "
        "print(CliRunner().invoke(app, [], env=env, prog_name='msdscore').stdout); "
        "print([name for name in ('torch', 'numpy', 'pyarrow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["clip-l14", "clip-l14-336", "[]"]


def test_empty_output_name_is_rejected(one_row):
    done = msdscore("score", one_row, "-e", "toy", "-o", "")
    assert done.returncode == 2
    assert "-o is empty; expected a file, a folder, or - for standard output" in done.stderr


def test_ascii_standard_output_gets_json_escapes(one_row):
    done = completed("score", one_row, "-e", "toy", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert r"a caf\u00e9" in done.stdout
    assert json.loads(done.stdout)["caption"] == "a café"


@pytest.mark.slow
def test_standard_output_on_a_full_disk_is_a_one_line_error(one_row):
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "msdscore", "-q", "score", str(one_row), "-e", "toy"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("msdscore: standard output, or a file: No space left on device")
    assert len(done.stderr.splitlines()) == 1


def test_input_with_a_name_that_is_not_utf8_is_rejected(one_row):
    path = os.fsdecode(os.fsencode(one_row.parent) + b"/caf\xe9.jsonl")
    one_row.rename(path)
    for _ in range(2):
        done = completed("score", path, "-e", "toy", "-o", one_row.parent / "out.jsonl", "--json")
    assert json.loads(done.stdout)["rows"] == 1


def test_ctrl_c_during_imports_prints_no_traceback():
    code = (
        "import os, signal, sys\nimport msdscore.__main__ as program\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'msdscore.cli.app': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\nprogram.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_caption_that_cannot_be_read_does_not_discard_the_others(red, tmp_path):
    shown = completed("score", red, "a red square", "", "-e", "toy", code=3)
    assert "a red square" in shown.stdout
    assert "not scored, '': caption is empty" in shown.stdout
    written = msdscore("score", red, "a red square", "", "-e", "toy", "-o", tmp_path / "scores.parquet")
    assert (written.returncode, "1 of 2 captions failed; see the column error of" in written.stderr) == (3, True)
    none = msdscore("score", red, "", "!!!", "-e", "toy")
    assert (none.returncode, none.stdout, none.stderr.count("\n")) == (2, "", 1)


def test_references_are_cited_and_a_file_that_matches_no_row_is_an_error(red, tmp_path):
    rows, output = tmp_path / "rows.jsonl", tmp_path / "scores.parquet"
    captions = [{"image": str(red), "caption": "a red square"}, {"image": "other.png", "caption": "a blue square"}]
    rows.write_text("".join(json.dumps(row) + "\n" for row in captions))
    for name, keys in (("none.json", ["another"]), ("some.json", [red.name])):
        (tmp_path / name).write_text(json.dumps({key: ["a red picture", "red"] for key in keys}))
    none = msdscore("score", rows, "-e", "toy", "-o", output, "--references", tmp_path / "none.json")
    assert (none.returncode, output.exists()) == (2, False)
    assert f"no references for the first 2 rows of {rows}; expected file names or ids such as" in none.stderr
    assert "got such as another" in none.stderr
    answer = msdscore("score", rows, "-e", "toy", "-o", output, "--references", tmp_path / "some.json")
    assert "no references for 1 images (other.png …); their ref_msd is missing" in answer.stderr
    cited = msdscore("cite", output)
    assert "nrefs:2" in cited.stdout
    assert "with references (Ref-MSD)" in cited.stderr
    assert "and 2 references per image" in cited.stderr


def test_cite_prints_software_paper_and_the_encoder_of_a_result(red, tmp_path):
    plain = completed("cite")
    assert re.findall(r"^@\w+\{(.*),$", plain.stdout, re.M) == ["msdscore", "kan2026msdscore"]
    assert "arXiv:2605.06080" in plain.stdout
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"image": str(red), "caption": "a red square"}) + "\n")
    for name in ("scores.parquet", "scores.jsonl"):
        assert msdscore("score", rows, "-e", "toy", "-o", tmp_path / name).returncode == 0
        printed = msdscore("cite", tmp_path / name)
        assert r"note = {msd\textbar\allowbreak{}enc:toy@1" in printed.stdout
        assert printed.stderr.startswith(
            r"We report a variant of MSD-Score~\cite{kan2026msdscore} with the encoder toy (weights 1), "
        )
        assert printed.stderr.count("enc:toy@1") == 1
        value = read_results(tmp_path / name).numbers["msd"][0]
        assert printed.stderr.splitlines()[1] == f"Mean: {value:.3f} (n = 1 captions of 1 images)."
    (tmp_path / "bench.json").write_text(
        '{"metrics": [{"signature": "msd|enc:clip-l14@abc|k:3,2"}, {"signature": "length"}]}'
    )
    cited = msdscore("cite", tmp_path / "bench.json").stdout
    assert re.findall(r"^@\w+\{(.*),$", cited, re.M) == ["msdscore", "kan2026msdscore", "radford2021learning"]
    default = msdscore("cite", "msd-e|enc:mini@86|form:evidence|nrefs:5|v:0.2.0")
    assert re.findall(r"^@\w+\{(.*),$", default.stdout, re.M)[2:] == ["tan2019efficientnet", "wang2020minilm"]
    assert default.stderr == (
        r"We report MSD-E, which the software msdscore~\cite{msdscore} defines and which extends "
        r"MSD-Score~\cite{kan2026msdscore}, with the encoder mini (weights 86)"
        r"~\cite{tan2019efficientnet,wang2020minilm} and 5 references per image, computed by msdscore 0.2.0"
        r"~\cite{msdscore}; signature: \texttt{"
        + r"\textbar\allowbreak{}".join(["msd-e", "enc:mini@86", "form:evidence", "nrefs:5", "v:0.2.0"])
        + "}.\n"
    )
    published = msdscore("cite", "msd|enc:clip-l14@abc|init:sample,0|pool:mean|ref:3|nrefs:2|v:0.2.0")
    assert published.stderr.startswith(
        r"We report MSD-Score~\cite{kan2026msdscore} with references (Ref-MSD) with the encoder"
    )
    odd = msdscore("cite", "msd|enc:my_50%&{#}$^~@1|v:1").stdout
    note = re.search(r"note = \{(.*)\}\n", odd)[1]
    assert not re.search(r"(?<!\\)[%&#$_^~|]", note)
    assert note.count("{") == note.count("}")
    assert odd.startswith("@misc{msdscore,")
    wrong = msdscore("cite", rows)
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    assert "rows.jsonl: has no signature; expected an output of msdscore score" in wrong.stderr


def test_every_third_party_encoder_has_a_citation():
    for row in built_in():
        assert row.name == "toy" or row.citations, row.name
        cited = bibtex([f"msd|enc:{row.name}@1|v:1"])
        assert all(f"{{{key},\n" in cited for key in row.citations), row.name


@pytest.mark.parametrize(
    ("closed", "arguments", "code", "message"),
    [
        ("<&-", "score - -o out.jsonl --encoder toy", 2, "msdscore: -: standard input is closed; expected JSON lines"),
        (">&-", "encoders", 2, "Bad file descriptor"),
        (">&-", "score rows.jsonl -o out.parquet --encoder toy", 0, ""),
        ("<&- >&- 2>&-", "score rows.jsonl -o out.parquet --encoder toy", 0, ""),
    ],
)
def test_closed_streams_are_one_line_errors(tmp_path, closed, arguments, code, message):
    Image.new("RGB", (32, 32), "red").save(tmp_path / "a.png")
    (tmp_path / "rows.jsonl").write_text('{"image": "a.png", "caption": "a red square"}\n')
    command = f"{sys.executable} -m msdscore {arguments} {closed}"
    answer = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert answer.returncode == code, answer.stderr
    assert message in answer.stderr
    assert "Traceback" not in answer.stderr
    if code == 0:
        assert pq.read_table(tmp_path / "out.parquet").num_rows == 1


def test_control_characters_are_escaped(red):
    for command in ("explain", "score"):
        answer = completed(command, red, "a red \x1b[31msquare\x07 \u202eback", "--encoder", "toy")
        assert not {"\x1b", "\x07", "\u202e"} & set(answer.stdout + answer.stderr)
        assert r"\x1b[31m" in answer.stdout


def test_items_are_listed_from_the_benchmark_folder_or_its_parent(tmp_path):
    from bench_sets import make_expert as write

    for root, folder in ((tmp_path / "a", tmp_path / "a"), (tmp_path / "b", tmp_path / "b" / "flickr8k-expert")):
        folder.mkdir(parents=True)
        write(folder)
        answer = completed("benchmarks", "items", "flickr8k-expert", "--root", root)
        assert json.loads(answer.stdout.splitlines()[0])["captions"]


def test_rank_is_another_name_of_score(red):
    ranked, scored = (completed(name, red, "a red square", "a blue square", "-e", "toy") for name in ("rank", "score"))
    assert ranked.stdout == scored.stdout


@contextmanager
def in_terminal(width, code):
    """Run code with a progress display in a process whose standard error is a terminal; yield it and the terminal."""
    import pty

    master, terminal = pty.openpty()
    script = "import os, sys; from msdscore.cli.progress import display\nwith display() as progress:\n" + code
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=terminal,
        env={**os.environ, "TERM": "xterm", "COLUMNS": str(width)},
    )  # fmt: skip
    os.close(terminal)
    try:
        yield process, master
    finally:
        process.kill()
        process.communicate()
        os.close(master)


@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
@pytest.mark.parametrize("width", [80, 700])  # a terminal that is ready for 80 characters may block on 700
def test_a_terminal_that_takes_no_output_does_not_stop_a_run(width):
    with in_terminal(width, f"    for _ in range(500): progress.console.print('x' * {width - 1})") as (process, _):
        assert process.wait(timeout=60) == 0  # nobody reads it


@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
def test_a_terminal_that_is_read_again_shows_whole_lines_and_the_end():
    code = (
        "    for _ in range(500): progress.console.print('x' * 79)\n"
        "    os.write(1, b'full\\n'); sys.stdin.readline()\n"
        "    progress.console.print('the end')\n"
    )
    with in_terminal(80, code) as (process, master):
        assert process.stdout.readline() == b"full\n"
        shown = more = os.read(master, 1 << 16)
        while b"x" in more:  # then the display is refreshed, without text
            shown += (more := os.read(master, 1 << 16))
        process.stdin.write(b"\n")
        process.stdin.flush()
        with suppress(OSError):  # the end of a terminal
            while more := os.read(master, 1 << 16):
                shown += more
        assert process.wait(timeout=60) == 0
    assert b"the end\r\n" in shown
    assert {line.count(b"x") for line in shown.split(b"\r\n")} <= {0, 79}
