"""Reliability diagram of match: bins, and calibrated and miscalibrated predictions."""

import json

import numpy as np
import pytest

from coloured_pairs import write_coloured
from command_line import invoke
from msdscore.errors import ConfigError, InputError
from msdscore_lab.studies.match import reliability
from msdscore_lab.studies.table import to_figure, to_markdown


def drawn(count=6000, bend=1.0):
    """Return calibrated predictions; `bend` makes them overconfident."""
    generator = np.random.default_rng(0)
    said = generator.uniform(0.02, 0.98, count)
    own = generator.uniform(size=count) < said
    odds = bend * np.log(said / (1 - said))
    return [
        (row // 3, 0 if mine else 1 + row % 2, 1 + row % 2, 1 / (1 + np.exp(-z)))
        for row, (mine, z) in enumerate(zip(own, odds, strict=True))
    ]


def test_calibrated_predictions_are_on_the_diagonal():
    (true, lengths), (bent, _) = (reliability(drawn(bend=bend), "s") for bend in (1.0, 3.0))
    assert [(row["captions"], row["n"]) for row in lengths.rows] == [(1, 3000), (2, 3000)]
    assert all(row["error"].value < 0.04 for row in lengths.rows)
    assert sum(row["n"] for row in true.rows) == 6000
    for row in true.rows:
        assert row["low"] <= row["predicted"] <= row["high"]
        assert abs(row["predicted"] - row["observed"].value) < 0.06
    assert true.facts["error"].value < 0.03 < 0.08 < bent.facts["error"].value
    # A monotone function does not change the order.
    assert true.facts["areas"]["similar"] == pytest.approx(bent.facts["areas"]["similar"])
    assert "| 0.0 to 0.1 |" in to_markdown([true])
    assert to_figure([true])


def test_match_command_draws_the_diagram_and_rejects_settings_without_match(tmp_path):
    rows = write_coloured(tmp_path, 56)
    bank, made = tmp_path / "bank.safetensors", tmp_path / "match.json"
    asked = ["--encoder", "toy", "--form", "evidence"]
    built = ["bank", str(tmp_path), "-o", str(bank), "--pairs", str(rows), "--limit", "10", *asked]
    assert invoke(*built).exit_code == 0
    study = ["study", "match", "--rows", str(rows), "-o", str(made), *asked, "--limit", "12"]
    answer = invoke(*study, "--bank", str(bank))
    assert answer.exit_code == 0, answer.output
    found = json.loads(made.read_text(encoding="utf-8"))
    assert found["tables"][0]["images"] == 12
    assert made.with_suffix(".png").exists()
    refused = invoke(*study[:-3], "short", "--overwrite")
    assert refused.exit_code != 0
    assert "a bank with match" in str(refused.exception)
    (tmp_path / "few.jsonl").write_text(rows.read_text(encoding="utf-8").splitlines()[0], encoding="utf-8")
    few = [*study, "--bank", str(bank), "--overwrite"]
    few[few.index("--rows") + 1] = str(tmp_path / "few.jsonl")
    answer = invoke(*few)
    assert isinstance(answer.exception, InputError)
    assert "expected at least 2 images with captions" in str(answer.exception)
    with pytest.raises(ConfigError, match="no caption has a match"):
        reliability([], "s")
