"""Ablation of the evidence form, and calibration of words: by hand, against the scorer, and by command."""

import json

import numpy as np
import pytest
import torch

from bench_sets import make_sugarcrepe
from coloured_pairs import write_coloured
from command_line import invoke
from msdscore.core.evidence import information_terms, penalty_terms, precision_terms
from msdscore.errors import ConfigError, InputError
from msdscore.forms.evidence import Evidence
from msdscore_lab.bank.calibrate import CONFIRMED
from msdscore_lab.studies.ablations.form import CURVES, Words, ablations, information, penalty, precision
from msdscore_lab.studies.match import word_tables


def drawn_words(count, similarity=0.3, affirmed=1.0):
    rng = np.random.default_rng(count)
    margins, odds, settled = rng.normal(size=(3, count))
    return Words(similarity, affirmed, margins, rng.uniform(0.05, 0.6, count), odds, settled)


@pytest.mark.parametrize("count", [1, 3, 12])
def test_parts_equal_the_score(count):
    words = drawn_words(count)
    margins, weights, odds, settled = (
        torch.from_numpy(side)[None] for side in (words.margins, words.weights, words.odds, words.settled)
    )
    assert precision(words) == pytest.approx(float(precision_terms(margins, weights).sum()))
    assert information(words, 0.7) == pytest.approx(float(information_terms(margins, weights, spread=0.7).sum()))
    assert penalty(words) == pytest.approx(float(penalty_terms(odds, settled, weights).sum()))


def test_every_variant_changes_its_part():
    silent, words = drawn_words(0), drawn_words(5, affirmed=0.6)
    settings = Evidence()
    forms = ablations(settings, 0.7)
    for name, of in forms.items():
        assert of(silent) == pytest.approx(0.0 if name == "without similarity" else 0.3)
    local = settings.alpha * precision(words), settings.gamma * information(words, 0.7)
    rest = 0.3 - 0.4 * 0.3 - settings.delta * penalty(words)
    assert forms["evidence"](words) == pytest.approx(rest + (local[0] + local[1]) / 2)
    assert forms["precision alone"](words) == pytest.approx(rest + local[0])
    assert forms["information alone"](words) == pytest.approx(rest + local[1])
    assert forms["without penalty"](words) == pytest.approx(forms["evidence"](words) + settings.delta * penalty(words))
    assert forms["without negation"](words) == pytest.approx(forms["evidence"](words) + 0.12)
    assert forms["penalty without its factor"](words) < forms["evidence"](words)


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


def test_default_form_equals_the_score_of_the_benchmark(evidence, tmp_path):
    scorer, _ = evidence
    root = make_sugarcrepe(tmp_path / "data")
    study = ["study", "form", "--root", str(root), "-b", "sugarcrepe", "--samples", "20", "--json", *scorer]
    answer = invoke(*study)
    assert answer.exit_code == 0, f"{answer.output}{answer.exception}"
    ablation, balance, delta, left_out = json.loads(answer.stdout)["tables"]
    bench = ["bench", "sugarcrepe", "--root", str(root), "-m", "msd", "-m", "cosine", "--samples", "20", *scorer]
    answer = invoke(*bench, "-o", str(tmp_path / "out"))
    assert answer.exit_code == 0, f"{answer.output}{answer.exception}"
    metrics = {
        row["label"]: row["figures"][0]["value"]
        for row in json.loads((tmp_path / "out" / "sugarcrepe.json").read_text())["metrics"]
    }
    row = ablation["rows"][0]
    assert row["evidence"] == pytest.approx(100 * metrics["msd"])
    assert row["cosine"]["value"] == pytest.approx(100 * (metrics["cosine"] - metrics["msd"]))
    for curve in (balance, delta):
        own = [row[curve["name"]] for row in curve["rows"] if row["set"] == "sugarcrepe"]
        assert own == list(CURVES[curve["name"]])
    at = next(row for row in delta["rows"] if row["delta"] == 0.1)
    assert at["score"] == pytest.approx(100 * metrics["msd"])
    assert left_out["rows"][0]["set"] == "sugarcrepe"


def test_form_study_rejects_other_forms_and_empty_folders(tmp_path):
    study = ["study", "form", "--root", str(make_sugarcrepe(tmp_path / "data")), "-e", "toy", "--form", "short"]
    assert isinstance(invoke(*study).exception, ConfigError)
    (tmp_path / "none").mkdir()
    study[3] = str(tmp_path / "none")
    assert isinstance(invoke(*study).exception, InputError)


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
    refused = invoke("study", "words", "--marks", "captions", "--rows", str(rows), "-e", "toy", "-p", "short")
    assert "needs the evidence form" in str(refused.exception)
