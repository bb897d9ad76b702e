"""All commands that write files: no file of the user is lost without --overwrite."""

import errno
import json
import os
import tarfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from command_line import invoke
from msdscore.errors import ConfigError, InputError, RunError


def msdscore(*arguments):
    """Return the error of a command, or None if it succeeds."""
    result = invoke(*arguments)
    assert result.exception is None or isinstance(result.exception, (ConfigError, RunError, InputError, SystemExit))
    return None if result.exit_code == 0 else str(result.exception)


@pytest.fixture
def folder(tmp_path):
    for colour in ("red", "green", "blue"):
        Image.new("RGB", (48, 48), colour).save(tmp_path / f"{colour}.png")
    (tmp_path / "captions.txt").write_text("a red square\na blue one\n")
    return tmp_path


def commands(folder):
    """Return all commands that write a file, with the output option and a valid suffix."""
    red, scored = folder / "red.png", folder / "scored.jsonl"
    (folder / "rows.jsonl").write_text(json.dumps({"image": "red.png", "caption": "red"}))
    if not scored.exists():
        assert msdscore("score", folder / "rows.jsonl", "-e", "toy", "-o", scored) is None
    return {
        "score": (["score", red, "red", "-e", "toy"], "-o", ".csv"),
        "score rows": (["score", folder / "rows.jsonl", "-e", "toy"], "-o", ".csv"),
        "explain": (["explain", red, "red", "-e", "toy"], "-o", ".json"),
        "explain figure": (["explain", red, "red", "-e", "toy"], "-o", ".png"),
        "report": (["report", scored, "--images", folder], "-o", ".html"),
        "bank": (["bank", folder, "-e", "toy"], "-o", ".safetensors"),
    }


NAMES = ["score", "score rows", "explain", "explain figure", "report", "bank"]


@pytest.mark.parametrize("name", NAMES)
def test_existing_file_is_rejected_without_overwrite(folder, name):
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
def test_invalid_outputs_are_rejected_before_scoring(folder, name):
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


def test_inputs_are_never_overwritten(folder):
    red, rows = folder / "red.png", folder / "rows.jsonl"
    known = commands(folder)
    before = {path: path.read_bytes() for path in (red, rows, folder / "scored.jsonl")}
    page = folder / "scored.html"
    page.hardlink_to(folder / "scored.jsonl")
    shown, ranked = folder / "shown.html", folder / "ranked.html"
    shown.hardlink_to(red)
    ranked.with_suffix(".json").hardlink_to(red)
    ranked.with_suffix(".txt").hardlink_to(red)
    for command, option, target in (
        (known["explain"][0], "-o", red),
        (known["score rows"][0], "-o", rows),
        (known["report"][0], "-o", page),
        (known["report"][0], "-o", shown),
        (
            ("rank-captioners", f"a={folder / 'scored.jsonl'}", folder / "scored.jsonl"),
            "-o",
            ranked.with_suffix(".json"),
        ),
        (("select", folder / "scored.jsonl", "--keep", "50%"), "-o", ranked.with_suffix(".txt")),
        (("select", folder / "scored.jsonl", "--keep", "50%", "-o", folder / "keep.txt"), "--report", shown),
    ):
        for overwrite in ([], ["--overwrite"]):
            assert "which would be lost" in msdscore(*command, option, target, *overwrite)
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize("name", [*NAMES, "select", "select tars", "select rows"])
def test_full_disk_is_a_one_line_error_and_preserves_files(folder, name, monkeypatch):
    (folder / "tars").mkdir()
    with tarfile.open(folder / "tars/0.tar", "w") as tar:
        tar.add(folder / "red.png", "0.png")
        tar.add(folder / "captions.txt", "0.txt")
    known, shards = commands(folder), folder / "shards"
    assert msdscore("score", folder / "tars/0.tar", "-e", "toy", "-o", f"{shards}/") is None
    choose = ["select", shards / "0.parquet", "--keep", "100%"]
    known |= {
        "select": (choose, "-o", ".txt"), "select rows": (choose, "-o", ".parquet"), "select tars": (choose, "-o", ""),
    }  # fmt: skip
    command, option, suffix = known[name]
    output = folder / f"out{suffix}"

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", full)
        error = msdscore(*command, option, output)
    assert error is not None
    assert "No space left on device" in error
    assert str(output) in error
    assert not output.is_file()
    assert not list(folder.rglob("*.tmp"))
    assert msdscore(*command, option, output) is None


def lost(folder):
    """Return commands that would replace their inputs, with the files that must not change."""
    photo = folder / "photo.csv"
    photo.write_bytes((folder / "red.png").read_bytes())
    rows = [{"image": "photo.csv", "caption": "red"}, {"image": "red.png", "caption": "blue"}]
    for name in ("rows.jsonl", "plain.run.json"):
        (folder / name).write_text("\n".join(map(json.dumps, rows)))
    (folder / "plain.jsonl.run.json").write_text(json.dumps(rows))
    for name in ("A.json", "B.json", "r.json"):
        (folder / name).write_text(json.dumps(rows))
    (folder / "r.md").write_text("precious")
    (folder / "cf").mkdir()
    (folder / "cf/quality.json").write_text(json.dumps({"a.jpg": "a dog on a chair"}))
    with tarfile.open(folder / "00000.tar", "w") as tar:
        tar.add(folder / "red.png", "0.png")
    pq.write_table(pa.table({"key": ["0"], "caption": ["red"]}), folder / "00000.parquet")
    (folder / "parts.csv.parts").mkdir()
    (folder / "parts.csv.parts/mine.jsonl").write_text(json.dumps(rows[0]))
    scoring = ("score", "-e", "toy", "-o")
    return {
        "an input": ("caption", "rows.jsonl", "-m", "none", "-o", "rows.jsonl"),
        "an image of a folder": ("caption", ".", "-m", "none", "-o", "link.csv"),
        "a ranked file": ("rank-captioners", "A.json", "B.json", "-o", "A.json"),
        "a named file": ("rank-captioners", "me=A.json", "B.json", "-o", "A.json"),
        "rows of a study": ("study", "timing", "--rows", "r.json", "-o", "r.json", "-e", "toy"),
        "a side file of a study": ("study", "timing", "--rows", "r.md", "-o", "r.json", "-e", "toy"),
        "among the data of a study": ("study", "timing", "--rows", ".", "-o", "A.json", "-e", "toy"),
        "a report of cococf": ("cococf", "build", "cf/quality.json", "-o", "cf"),
        "run metadata": (*scoring, "plain.jsonl", "plain.jsonl.run.json"),
        "metadata of a tar": (*scoring, "00000.parquet", "00000.tar"),
        "an image of a row": (*scoring, "photo.csv", "rows.jsonl"),
        "a folder of parts": (*scoring, "parts.csv", "parts.csv.parts/mine.jsonl"),
    }


@pytest.mark.parametrize(
    "name",
    [
        "an input", "an image of a folder", "a ranked file", "a named file", "rows of a study",
        "a side file of a study", "among the data of a study", "a report of cococf", "run metadata",
        "metadata of a tar", "an image of a row", "a folder of parts",
    ],
)  # fmt: skip
def test_indirect_inputs_are_never_overwritten(folder, name, monkeypatch):
    command = lost(folder)[name]
    (folder / "link.csv").symlink_to("red.png")
    monkeypatch.chdir(folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for overwrite in ([], ["--overwrite"]):
        error = msdscore(*command, *overwrite)
        assert error is not None
        if overwrite:
            assert "which would be lost" in error or "was not written by msdscore" in error
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_foreign_side_files_are_rejected_and_own_ones_replaced(folder, monkeypatch):
    monkeypatch.chdir(folder)
    rows = [{"image": f"{colour}.png", "captions": [colour]} for colour in ("red", "blue")]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    study = ("study", "timing", "--rows", "rows.jsonl", "-e", "toy", "--limit", 1, "-o", "out/t.json", "--overwrite")
    (folder / "out").mkdir()
    (folder / "out/t.md").write_text("precious")
    assert "t.md: exists and was not written by msdscore" in msdscore(*study)
    assert (folder / "out/t.md").read_text() == "precious"
    assert not (folder / "out/t.json").exists()
    (folder / "out/t.md").unlink()
    assert msdscore(*study) is None
    assert msdscore(*study) is None


def test_foreign_metadata_file_is_not_replaced(folder):
    notes = folder / "out.csv.run.json"
    notes.write_text("precious")
    assert msdscore("score", folder / "red.png", "red", "-e", "toy", "-o", folder / "out.csv") is None
    assert notes.read_text() == "precious"


@pytest.mark.parametrize("name", ["-", "/dev/stdout"])
def test_a_dash_is_standard_output(folder, name, monkeypatch):
    monkeypatch.chdir(folder)
    known = commands(folder)
    before = sorted(folder.rglob("*"))
    for what, begin in (("score rows", b"{"), ("explain", b"{"), ("report", b"<!doctype html>"), ("bank", b"")):
        result = invoke(*map(str, known[what][0]), "-o", name)
        assert result.exit_code == 0, result.exception
        assert result.stdout_bytes.lower().startswith(begin)
        assert result.stdout_bytes
    for command in (("bench", "sugarcrepe", "--root", "."), ("demo",), ("cococf", "build", "rows.jsonl")):
        assert "expected the name of a folder" in msdscore(*command, "-o", name)
    assert sorted(folder.rglob("*")) == before


def test_bank_reads_captions_from_text_or_rows(folder):
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
    assert "expected captions, one per line or in a column caption, found none" in error


def test_files_with_other_content_are_one_line_errors(folder):
    deep, other = folder / "deep.json", folder / "other.jsonl"
    deep.write_text("[" * 100_000)
    other.write_bytes(bytes(range(128, 256)) * 9)
    for command in (
        ["score", deep, "-e", "toy", "-o", folder / "out.jsonl"],
        ["compare", deep, deep],
        ["cococf", "build", deep, "-o", folder / "cf"],
        ["cococf", "build", other, "-o", folder / "cf"],
        ["cococf", "check", deep],
        ["bench", "sugarcrepe", "--root", other, "-e", "toy", "-o", folder / "results"],
    ):
        error = msdscore(*command)
        assert error, command
        assert "\n" not in error, command
    assert "deep.json: expected the folder of the benchmark's files, got a file" in msdscore(
        "study", "words", "--rows", deep, "-e", "toy"
    )
    assert "https://x.org/a.jsonl: an address; score it as a shard into a folder" in msdscore(
        "score", "https://x.org/a.jsonl", "-e", "toy", "-o", folder / "out.jsonl"
    )


@pytest.mark.parametrize(
    ("command", "row", "reason"),
    [
        (["bench", "sugarcrepe", "--root"], {"caption": "a", "negative_caption": None}, "expected a caption, got None"),
        (["bench", "pascal50s", "--root"], {"captions": "ab", "label": 0}, "expected 2 captions"),
        (["bench", "pascal50s", "--root"], {"captions": None, "label": 0}, "expected 2 captions"),
        (["bench", "pascal50s", "--root"], {"captions": ["a", 5], "label": 0}, "expected a caption, got 5"),
        (
            ["bench", "caparena", "--root"],
            {"system_a": "s", "system_b": "t", "aspects": {"q": "x"}},
            "expected aspects",
        ),
        (["cococf", "build"], {"captions": ["a dog"], "objects": ["dog", None]}, "expected objects as names"),
    ],
)
def test_rows_with_other_values_are_rejected(folder, command, row, reason):
    (folder / "odd.jsonl").write_text(json.dumps({"image": "red.png", **row}))
    more = ["-e", "toy"] if command[0] == "bench" else []
    assert reason in msdscore(*command, folder / "odd.jsonl", *more, "-o", folder / "results")


def test_counterfactuals_with_invalid_spans_are_rejected(folder):
    row = {"image_path": "a", "caption": "x", "negative_caption": "y", "change": {"caption_spans": [[1]]}}
    (folder / "cf.json").write_text(json.dumps([row]))
    assert "expected a change with spans" in msdscore("cococf", "check", folder / "cf.json")
