"""Timing study: buckets by length, stages, and the command."""

import json

import pytest
from PIL import Image

from bench_sets import COLOURS, encoded, write_images, write_rows
from command_line import invoke
from msdscore.scoring.spec import ScorerSpec
from msdscore_lab.studies.timing import STAGES, times


def test_pairs_are_timed_by_the_length_of_their_captions():
    red = Image.new("RGB", (32, 32), "red")
    pairs = [(red, "a red square"), (red, "red " * 15), (red, "a blue one"), (red, "word " * 100), (red, "word " * 200)]
    shown = []
    rows = times(ScorerSpec(encoder="toy").build(), pairs, lambda *now: shown.append(now))
    assert [(row["tokens"], row["pairs"]) for row in rows] == [
        ("up to 16", 3),
        ("17 to 126", 1),
        ("more than 126", 1),
        ("overall", 5),
    ]
    assert shown[-1] == (5, 5)
    for row in rows:
        parts = [row[stage].value for stage in STAGES]
        assert all(part > 0 for part in parts)
        assert sum(parts[:3]) == pytest.approx(row["features"].value)
        assert row["MSD"].value == pytest.approx(row["features"].value + row["EM/KL"].value)
        assert row["Soft-MSD"].value == pytest.approx(row["MSD"].value + row["gate"].value)
        assert row["CLIPScore"].value == pytest.approx(row["features"].value + row["cosine"].value)
        assert row["together"] > 0


def test_timing_command(tmp_path):
    write_images(tmp_path / "rows.images.parquet", {f"{name}.png": encoded(name) for name in COLOURS})
    rows = [
        {
            "image": f"{name}.png",
            "captions": [
                f"a {name} square",
                f"a {name} box",
                "a thing of one colour",
                "a small square",
                "one shape",
                "a tile",
            ],
        }
        for name in COLOURS
    ]
    write_rows(tmp_path / "rows.jsonl", rows)
    output = tmp_path / "times.json"
    asked = ["study", "timing", "--rows", str(tmp_path / "rows.jsonl"), "--encoder", "toy", "-o", str(output)]
    done = invoke(*asked, "--limit", "2")
    assert done.exit_code == 0, done.output
    found = json.loads(output.read_text(encoding="utf-8"))
    assert [row["tokens"] for row in found["tables"][0]["rows"]] == ["up to 16", "17 to 126", "overall"]
    assert output.with_suffix(".md").is_file()
