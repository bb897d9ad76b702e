"""Times by length: every pair falls into one bucket, stages add up, and the command writes what it says."""

import json

import pytest
from PIL import Image
from typer.testing import CliRunner

from bench_sets import COLOURS, encoded, write_pictures, write_rows
from msdscore.cli.app import app
from msdscore.scoring.spec import ScorerSpec
from msdscore.studies.timing import STAGES, section, timing


def test_pairs_are_timed_by_the_length_of_their_captions():
    red = Image.new("RGB", (32, 32), "red")
    pairs = [(red, "a red square"), (red, "red " * 15), (red, "a blue one"), (red, "word " * 100)]
    told = []
    result = timing(ScorerSpec(encoder="toy").build(), pairs, progress=lambda *now: told.append(now))
    assert [(one.name, one.stages["total"].n) for one in result.buckets] == [("1-10", 2), ("11-20", 1), ("81+", 1)]
    assert told[-1] == (4, 4)
    for one in result.buckets:
        parts = [one.stages[stage].value for stage in STAGES]
        assert all(part > 0 for part in parts)
        assert sum(parts[:-1]) == pytest.approx(parts[-1])
        assert one.together > 0
    assert "| 11-20 | 1 |" in section(result)


def test_the_command_times_one_caption_and_all_as_one(tmp_path):
    write_pictures(tmp_path / "rows.images.parquet", {f"{name}.png": encoded(name) for name in COLOURS})
    rows = [{"image": f"{name}.png", "captions": [f"a {name} square"] * 6} for name in COLOURS]
    write_rows(tmp_path / "rows.jsonl", rows)
    output = tmp_path / "times.json"
    asked = ["study", "timing", "--rows", str(tmp_path / "rows.jsonl"), "--encoder", "toy", "-o", str(output)]
    done = CliRunner().invoke(app, [*asked, "--limit", "2"])
    assert done.exit_code == 0, done.output
    found = json.loads(output.read_text(encoding="utf-8"))
    assert [one["tokens"] for one in found["buckets"]] == ["1-10", "11-20"]
    assert output.with_suffix(".md").is_file()
