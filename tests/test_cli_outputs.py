"""One rule for every command that writes a file: nothing of the user's is lost without --overwrite."""

import json

import pytest
from PIL import Image
from typer.testing import CliRunner

from msdscore.cli.app import app
from msdscore.errors import ConfigError, InputError, RunError


def msdscore(*arguments):
    """The error of a command, which the program prints as one line; None where it ends well."""
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exception is None or isinstance(result.exception, (ConfigError, RunError, InputError, SystemExit))
    return None if result.exit_code == 0 else str(result.exception)


@pytest.fixture
def folder(tmp_path):
    for colour in ("red", "green", "blue"):
        Image.new("RGB", (48, 48), colour).save(tmp_path / f"{colour}.png")
    (tmp_path / "captions.txt").write_text("a red square\na blue one\n")
    return tmp_path


def commands(folder):
    """Every command that writes a file, with the option that names it and a good suffix."""
    red, scored = folder / "red.png", folder / "scored.jsonl"
    (folder / "rows.jsonl").write_text(json.dumps({"image": "red.png", "caption": "red"}))
    if not scored.exists():
        assert msdscore("score", folder / "rows.jsonl", "-e", "toy", "-o", scored) is None
    return {
        "score": (["score", red, "red", "-e", "toy"], "-o", ".csv"),
        "score rows": (["score", folder / "rows.jsonl", "-e", "toy"], "-o", ".csv"),
        "explain": (["explain", red, "red", "-e", "toy"], "-o", ".json"),
        "explain figure": (["explain", red, "red", "-e", "toy"], "-o", ".png"),
        "words": (["explain", red, "red", "-e", "toy"], "--words", ".png"),
        "report": (["report", scored, "--images", folder], "-o", ".html"),
        "bank": (["bank", folder, "-e", "toy"], "-o", ".safetensors"),
    }


NAMES = ["score", "score rows", "explain", "explain figure", "words", "report", "bank"]


@pytest.mark.parametrize("name", NAMES)
def test_an_existing_file_is_refused_and_overwrite_is_the_one_way(folder, name):
    command, option, suffix = commands(folder)[name]
    precious = folder / f"precious{suffix}"
    precious.write_text("precious")
    error = msdscore(*command, option, precious)
    assert error is not None
    assert "choose another -o or pass --overwrite" in error
    assert precious.read_text() == "precious"
    assert msdscore(*command, option, precious, "--overwrite") is None
    assert precious.read_bytes() != b"precious"


@pytest.mark.parametrize("name", NAMES)
def test_the_same_command_may_run_twice(folder, name):
    command, option, suffix = commands(folder)[name]
    output = folder / "deep" / f"out{suffix}"
    assert msdscore(*command, option, output) is None
    before = output.read_bytes()
    assert msdscore(*command, option, output) is None
    assert output.read_bytes() == before


@pytest.mark.parametrize("name", NAMES)
def test_suffixes_and_folders_are_checked_before_any_work(folder, name):
    command, option, suffix = commands(folder)[name]
    wrong = folder / "blue.jpg"
    (folder / "blue.png").rename(wrong)
    (folder / f"folder{suffix}").mkdir()
    for overwrite in ([], ["--overwrite"]):
        assert "blue.jpg: unknown kind of output; expected a name ending in" in msdscore(
            *command, option, wrong, *overwrite
        )
        assert "is a folder; expected the name of a file" in msdscore(
            *command, option, folder / f"folder{suffix}", *overwrite
        )
    with Image.open(wrong) as image:
        assert image.size == (48, 48)


def test_an_input_is_never_written(folder):
    red, rows = folder / "red.png", folder / "rows.jsonl"
    known = commands(folder)
    before = {path: path.read_bytes() for path in (red, rows, folder / "scored.jsonl")}
    page = folder / "scored.html"
    page.hardlink_to(folder / "scored.jsonl")
    for command, option, target in (
        (known["explain"][0], "-o", red),
        (known["words"][0], "--words", red),
        (known["score rows"][0], "-o", rows),
        (known["report"][0], "-o", page),
    ):
        for overwrite in ([], ["--overwrite"]):
            assert "is an input of this command" in msdscore(*command, option, target, *overwrite)
    assert {path: path.read_bytes() for path in before} == before
    both = folder / "both.png"
    assert "is an input" in msdscore("explain", red, "red", "-e", "toy", "-o", both, "--words", both)


def test_captions_of_a_bank_come_from_a_text_or_from_rows(folder):
    rows = [{"caption": "a red square", "n": 1}, {"caption": "a blue one", "n": 2}, {"caption": " "}]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "empty.jsonl").write_text('{"n": 1}\n')
    for name in ("captions.txt", "rows.jsonl"):
        assert (
            msdscore("bank", folder, "-e", "toy", "--captions", folder / name, "-o", folder / f"{name}.safetensors")
            is None
        )
    made = [(folder / f"{name}.safetensors").read_bytes() for name in ("captions.txt", "rows.jsonl")]
    assert made[0] == made[1]
    error = msdscore("bank", folder, "-e", "toy", "--captions", folder / "empty.jsonl", "-o", folder / "x.safetensors")
    assert "expected captions, one per line or in a column caption, and it holds none" in error
