"""Sweeps of the evidence form, and calibration of words: by hand, and by command."""

import json

import numpy as np
import pytest

from bench_sets import make_sugarcrepe
from coloured_pairs import write_coloured
from command_line import invoke
from msdscore.errors import InputError
from msdscore_lab.bank.calibrate import CONFIRMED
from msdscore_lab.paper.sections import study_grids
from msdscore_lab.studies.match import word_tables


@pytest.fixture(scope="module")
def evidence(tmp_path_factory):
    """Return options of the toy encoder with a bank of coloured images, and other rows."""
    folder = tmp_path_factory.mktemp("evidence")
    rows = write_coloured(folder, 60)
    scorer = ["--encoder", "toy", "--form", "evidence"]
    bank = ["bank", str(folder), "-o", str(folder / "bank.safetensors"), "--pairs", str(rows)]
    answer = invoke(*bank, *scorer)
    assert answer.exit_code == 0, f"{answer.output}{answer.exception}"
    return [*scorer, "--bank", str(folder / "bank.safetensors")], rows


def test_settings_of_the_evidence_form_are_swept_and_shown_by_set(evidence, tmp_path):
    scorer, _ = evidence
    root, output = make_sugarcrepe(tmp_path / "data"), tmp_path / "delta.json"
    study = ["study", "sweep", "delta", "--root", str(root), "--values", "0 0.1", "--samples", "20", *scorer]
    answer = invoke(*study, "-o", str(output))
    assert answer.exit_code == 0, f"{answer.output}{answer.exception}"
    result = json.loads(output.read_text())
    (table,) = result["tables"]
    without, used = (row for row in table["rows"] if row["metric"] == "msd")
    assert ("|d:0|" in without["signature"], "|d:0.1|" in used["signature"]) == (True, True)
    (grid,) = study_grids("delta", result)
    assert grid.columns == ("set", "in use", "delta=0")
    ((name, figure, change),) = grid.rows
    assert name == "sugarcrepe"
    assert figure == f"{100 * used[table['headline']]['value']:.1f}"
    assert change.startswith(f"{100 * without['difference']['value']:+.1f} [")
    refused = invoke(*study[:-4], "-e", "toy", "--form", "short")
    assert "paper has no delta; use --form evidence" in str(refused.exception)


def drawn(count=4000):
    """Return words with uniform p-values if true, and calibrated probabilities at a prior of 0.9."""
    rng = np.random.default_rng(0)
    truth = rng.uniform(size=count) < 0.5
    p_values = np.where(truth, rng.uniform(size=count), rng.beta(1, 4, size=count))
    odds = 9 / (4 * (1 - p_values) ** 3)  # densities of the two, and the prior
    return [
        (number // 4, number % 2, CONFIRMED if true else 0, float(p), float(o / (1 + o)))
        for number, (true, p, o) in enumerate(zip(truth, p_values, odds, strict=True))
    ]


def test_uniform_p_values_have_calibrated_levels():
    levels, bins = word_tables(drawn(), "s")
    for row in levels.rows:
        assert row["true"].low <= row["level"] + 0.01
        assert row["true"].value == pytest.approx(row["level"], abs=0.03)
        assert row["absent"].value > row["true"].value
    assert [row["words"] for row in levels.rows][-2:] == ["kind 0", "kind 1"]
    assert bins.facts["error"].value < 0.03
    wrong = [(image, kind, true, p, min(1.0, o + 0.2)) for image, kind, true, p, o in drawn()]
    assert word_tables(wrong, "s")[1].facts["error"].value > 0.03
    with pytest.raises(InputError, match="true of their images"):
        word_tables([row for row in drawn() if row[2]], "s")


def test_words_of_captions_by_command(evidence, tmp_path):
    scorer, rows = evidence
    study = ["study", "words", "--marks", "captions", "--rows", str(rows), "--limit", "12", *scorer]
    answer = invoke(*study, "-o", str(tmp_path / "w.json"))
    assert answer.exit_code == 0, f"{answer.output}{answer.exception}"
    names = [table["name"] for table in json.loads((tmp_path / "w.json").read_text())["tables"]]
    assert names == ["p_values", "bins"]
    assert (tmp_path / "w.png").is_file()
    refused = invoke("study", "words", "--marks", "captions", "--rows", str(rows), "-e", "toy", "--form", "short")
    assert "needs the evidence form" in str(refused.exception)
