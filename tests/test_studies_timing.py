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


class Counting:
    """A pipeline that counts its measurements."""

    def __init__(self, pipeline):
        self.pipeline, self.measured = pipeline, []

    def __getattr__(self, name):
        return getattr(self.pipeline, name)

    def measure(self, images, texts, owner, text_of):
        self.measured.append(len(owner))
        return self.pipeline.measure(images, texts, owner, text_of)


def test_only_captions_of_the_last_bucket_have_the_components_of_long_ones():
    red = Image.new("RGB", (32, 32), "red")
    short, long = (Counting(ScorerSpec(encoder="toy").build()) for _ in range(2))
    pairs = [(red, "a red square"), (red, "word " * 126), (red, "word " * 127)]
    times(short, pairs, lambda *now: None, long=long)
    assert long.measured == [1]
    assert short.measured == [1, 1, 1]  # the warm-up, and the first two pairs


def test_timing_command(tmp_path):
    write_images(tmp_path / "rows.images.parquet", {f"{name}.png": encoded(name) for name in COLOURS})
    rows = [
        {
            "image": f"{name}.png",
            "captions": [
                f"a {name} square",
                f"a {name} box",
                "a thing of one colour",
                f"a small {name} square " * 5,
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
