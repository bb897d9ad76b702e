"""Studies of explanations, on images with known answers."""

import json
from dataclasses import replace

import numpy as np
import pytest

from coloured_pairs import two_coloured, write_pairs
from command_line import invoke
from msdscore import Scorer
from msdscore.encoders.base import PatchLayout
from msdscore.errors import InputError
from msdscore.scoring.spec import ScorerSpec
from msdscore_lab.benchmarks.registry import load
from msdscore_lab.paper.sections import study_grids
from msdscore_lab.studies import faithfulness
from msdscore_lab.studies.context import Study
from msdscore_lab.studies.table import to_markdown


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    write_pairs(folder, 12)
    return folder


@pytest.fixture(scope="module")
def pairs(root):
    return list(load("sugarcrepe", root).items)


@pytest.fixture(scope="module")
def scorer():
    return Scorer("toy").pipeline


@pytest.fixture
def study(root):
    return Study(root=root, spec=ScorerSpec(encoder="toy"))


def test_maps_are_faithful_on_known_images(study):
    (table,) = faithfulness.faithfulness(study)
    kinds = [("correct", "patches"), ("correct", "pixels"), ("incorrect", "patches"), ("incorrect", "pixels")]
    assert [(row["projection"], row["kind"], row["masking"]) for row in table.rows] == [
        (projection, *kind) for projection in ("influence", "carried") for kind in kinds
    ]
    influence = table.rows[:4]
    assert all(row["order"] == "held" for row in influence)
    assert all(row["top_over_random"].low > 0 for row in influence)
    assert to_markdown([table]).count("| held |") == sum(row["order"] == "held" for row in table.rows) >= 4
    assert "gate:length" in table.signature  # the paper's Bi-KL


def test_dropping_patches_equals_an_image_without_them(scorer, pairs):
    chunk = faithfulness.measured_pairs(scorer, pairs[:2], "influence")
    none = [np.array([], dtype=np.int64)] * 4
    np.testing.assert_allclose(faithfulness.without_patches(scorer, chunk, none), chunk.divergence, atol=1e-6)
    left = np.flatnonzero(np.arange(36) % 6 < 3)  # without the left half, only the right colour is visible
    after = faithfulness.without_patches(scorer, chunk, [left] * 4)
    assert (np.abs(after - chunk.divergence) > 0.1).all()


def test_blanking_paints_boxes_in_the_mean_colour():
    image = two_coloured("red", "white", (8, 4))
    cells = PatchLayout((8, 4), (1, 2), np.array([[0.0, 0.0, 4.0, 4.0], [4.0, 0.0, 8.0, 4.0]], dtype=np.float32))
    values = np.asarray(faithfulness.blank(image, cells, np.array([1])))
    assert values[0, 0].tolist() == [220, 30, 30]
    assert values[0, 7].tolist() == np.asarray(image).reshape(-1, 3).mean(axis=0).astype(np.uint8).tolist()


@pytest.mark.slow
def test_masking_is_repeatable_and_seeded(study, scorer, pairs):
    def effects(seed):
        return faithfulness.masking_rows(replace(study, seed=seed), scorer, pairs[:6], "influence")

    assert effects(0) == effects(0)
    assert effects(1) != effects(0)


def test_empty_input_is_rejected(tmp_path):
    with pytest.raises(InputError, match="expected at least one pair"):
        Study(root=tmp_path).sample([])


@pytest.mark.slow
def test_faithfulness_commands_write_json_and_tables(root, tmp_path):
    common = ["--root", str(root), "--limit", "3", "--encoder", "toy"]
    answer = invoke("study", "faithfulness", *common, "-o", str(tmp_path / "f.json"))
    assert answer.exit_code == 0, answer.output
    assert "| influence | correct | patches |" in answer.output
    assert "| carried | correct | patches |" in answer.output
    assert json.loads((tmp_path / "f.json").read_text())["tables"][0]["pairs"] == 3
    (grid,) = study_grids("faithfulness", json.loads((tmp_path / "f.json").read_text()))
    assert ("correct (quoted)", "patches", "carried", "+0.1159", "+0.0531", "-0.0209") in grid.rows
