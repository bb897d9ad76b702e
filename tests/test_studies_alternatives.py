"""Studies of missing words and suggestions."""

import json

import pytest
from PIL import Image

from coloured_pairs import PLAIN, coloured
from msdscore.encoders.banks import save_bank
from msdscore.encoders.registry import load_encoder
from msdscore.errors import ConfigError
from msdscore.forms.evidence import Evidence
from msdscore.scoring.spec import ScorerSpec
from msdscore_lab.bank.calibrate import calibrated_bank
from msdscore_lab.studies.context import Study
from msdscore_lab.studies.localisation import replaced_word
from msdscore_lab.studies.registry import run_study


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    path = tmp_path_factory.mktemp("bank") / "bank.safetensors"
    save_bank(calibrated_bank(load_encoder("toy"), Evidence(components=2), *coloured(), background=20), path)
    return ScorerSpec(encoder="toy", bank=str(path))


def test_replaced_word_is_found_if_one_word_changed():
    assert replaced_word("a red car", "a blue car") == ("red", "blue")
    assert replaced_word("a red car", "a red car at night") is None
    assert replaced_word("a red car", "a blue bus") is None


def test_missing_words_are_checked_against_other_captions(tmp_path, spec):
    rows = []
    for name in PLAIN:
        Image.new("RGB", (32, 32), name).save(tmp_path / f"{name}.png")
        rows.append({"image": f"{name}.png", "captions": ["a square", f"{name} paint on a wall"]})
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    (table,) = run_study("missing", Study(root=path, spec=spec))
    row = table.rows[0]
    assert row["n"] == len(PLAIN)
    assert row["words"] > 0
    assert row["right"].value == 1.0  # the toy encoder recognises colours


def test_suggestions_for_replaced_words(tmp_path, spec):
    rows = []
    for number, name in enumerate(PLAIN):
        Image.new("RGB", (32, 32), name).save(tmp_path / f"{name}.png")
        other = PLAIN[(number + 1) % len(PLAIN)]
        captions = {"caption": f"{name} paint on a wall", "negative_caption": f"{other} paint on a wall"}
        rows.append({"subset": "replace_att", "key": str(number), "image": f"{name}.png", **captions})
    (tmp_path / "sugarcrepe.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    (table,) = run_study("suggestions", Study(root=tmp_path, spec=spec))
    row = table.rows[0]
    assert (row["subset"], row["n"]) == ("replace_att", len(PLAIN))
    assert 0 <= row["named"].value <= row["doubtful"].value <= 1


def test_a_bank_without_a_vocabulary_is_rejected(tmp_path):
    with pytest.raises(ConfigError, match="bank with vocabulary"):
        run_study("suggestions", Study(root=tmp_path, spec=ScorerSpec(encoder="toy")))
