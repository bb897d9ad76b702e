"""Studies of the explanations, on pictures whose right answer is known."""

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from coloured_pairs import two_coloured, write_pairs
from msdscore import Scorer
from msdscore.benchmarks.base import Pair
from msdscore.benchmarks.registry import load
from msdscore.cli.app import app
from msdscore.encoders.base import PatchLayout
from msdscore.errors import ConfigError, InputError
from msdscore.studies.explanations import curves, localisation, masking
from msdscore.studies.explanations.faithfulness import MaskingSettings, faithfulness, section
from msdscore.studies.paper.page import part


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


def test_maps_are_faithful_where_the_answer_is_known(scorer, pairs):
    table = faithfulness(scorer, pairs, MaskingSettings())
    assert [(row.kind, row.masking) for row in table.rows] == [
        ("correct", "patches"), ("correct", "pixels"), ("incorrect", "patches"), ("incorrect", "pixels"),
    ]  # fmt: skip
    assert all(row.ordered for row in table.rows)
    assert all(row.top_over_random.low > 0 for row in table.rows)
    assert table.to_dict()["ordered"]
    assert section([table]).count("| held |") == 4


def test_dropping_patches_equals_a_picture_without_them(scorer, pairs):
    chunk = masking.measured_pairs(scorer, pairs[:2], "influence")
    none = [np.array([], dtype=np.int64)] * 4
    np.testing.assert_allclose(masking.without_patches(scorer, chunk, none), chunk.divergence, atol=1e-6)
    left = np.flatnonzero(np.arange(36) % 6 < 3)  # the left half is gone, so only the right colour is to be named
    after = masking.without_patches(scorer, chunk, [left] * 4)
    assert (np.abs(after - chunk.divergence) > 0.1).all()


def test_blanking_paints_boxes_in_the_mean_colour():
    picture = two_coloured("red", "white", (8, 4))
    cells = PatchLayout((8, 4), (1, 2), torch.tensor([[0.0, 0.0, 4.0, 4.0], [4.0, 0.0, 8.0, 4.0]]))
    values = np.asarray(masking.blank(picture, cells, np.array([1])))
    assert values[0, 0].tolist() == [220, 30, 30]
    assert values[0, 7].tolist() == np.asarray(picture).reshape(-1, 3).mean(axis=0).astype(np.uint8).tolist()


def test_masking_is_repeatable_and_seeded(scorer, pairs):
    one, two = (faithfulness(scorer, pairs, MaskingSettings(limit=6), maskings=["patches"]) for _ in range(2))
    assert one == two
    assert one.pairs == 6
    other = faithfulness(scorer, pairs, MaskingSettings(limit=6, seed=1), maskings=["patches"])
    assert other != one


def test_a_share_that_leaves_nothing_is_refused():
    with pytest.raises(ConfigError, match=r"share must lie between 0 and 0\.5, got 0\.7"):
        MaskingSettings(share=0.7)


def test_no_pairs_is_an_error():
    with pytest.raises(InputError, match="expected at least one pair"):
        masking.drawn_pairs([], None, 0)


def test_curves_bend_the_right_way(scorer, pairs):
    result = curves.curves(scorer, pairs[:4], MaskingSettings())
    gains = {(kind, way): gain.value for kind, way, gain in result.gains}
    assert gains["correct", "deletion"] > 0 > gains["correct", "insertion"]
    assert gains["incorrect", "insertion"] > 0 > gains["incorrect", "deletion"]
    whole = {(curve.kind, curve.way, curve.order): curve for curve in result.curves}
    start = whole["correct", "deletion", "map"].divergence[0]
    assert whole["correct", "deletion", "random"].divergence[0] == start
    assert whole["correct", "insertion", "map"].divergence[-1] == pytest.approx(start, abs=1e-6)
    assert "| correct | deletion |" in curves.section(result)


@pytest.mark.parametrize(
    ("right", "wrong", "changed"),
    [
        ("a red car", "a blue car", {0}),
        ("a cat on a mat", "a cat on a big rug", {1, 2}),
        ("a dog on grass", "a dog under grass", set()),
        ("A Dog", "a dog", set()),
        ("two men talk", "two women talk loudly", {1, 3}),
    ],
)
def test_changed_words(right, wrong, changed):
    assert localisation.changed_words(right, wrong) == changed


def test_questions_leave_out_what_cannot_be_asked():
    def pair(right, wrong, subset="replace_obj"):
        return Pair(right + wrong, two_coloured, right, wrong, subset=subset)

    asked = localisation.questions(
        [
            pair("a red car", "a blue car"),
            pair("a dog on grass", "a dog under grass"),
            pair("a cat", "a dog"),
            pair("a red car", "a blue car", "swap_obj"),
        ]
    )
    assert [one.pair.positive for one in asked] == ["a red car"]


def test_chance_is_that_of_a_random_order():
    question = localisation._question(Pair("x", two_coloured, "a red car on gravel", "a blue van on gravel"))
    rng = np.random.default_rng(0)
    hits = [bool(question.changed & set(rng.permutation(3)[:1].tolist())) for _ in range(4000)]
    assert localisation._chance(question, 1) == pytest.approx(2 / 3)
    assert np.mean(hits) == pytest.approx(2 / 3, abs=0.03)
    assert localisation._chance(question, 3) == 1.0


def test_terms_find_the_changed_colour_and_a_wrong_picture_does_not(scorer, pairs):
    result = localisation.localisation(scorer, pairs)
    assert {row.subset for row in result.rows} == {"replace_obj", "replace_att"}
    for row in result.rows:
        assert row.terms.value > row.chance.value
        assert row.terms.value > row.wrong_picture.value
    assert "| replace_att | 6 | 1 |" in localisation.section(result)


def test_other_subsets_are_no_question(scorer, pairs):
    from dataclasses import replace

    with pytest.raises(InputError, match="expected pairs of the subsets replace_obj, replace_att, got none"):
        localisation.localisation(scorer, [replace(pair, subset="add_obj") for pair in pairs])
    with pytest.raises(InputError, match="expected wrong captions that change one content word, got none among"):
        localisation.localisation(scorer, [replace(pair, negative=pair.positive) for pair in pairs])


def test_the_commands_write_numbers_and_tables(root, tmp_path):
    common = ["--root", str(root), "--limit", "3", "--encoder", "toy"]
    answer = CliRunner().invoke(app, ["study", "faithfulness", *common, "-o", str(tmp_path / "f.json")])
    assert answer.exit_code == 0, answer.output
    assert "| influence | correct | patches |" in answer.output
    assert json.loads((tmp_path / "f.json").read_text())["masking"][0]["pairs"] == 3
    assert "| paper, correct | +0.1159 |" in part("faithfulness", json.loads((tmp_path / "f.json").read_text()))
    assert "deletion" in (tmp_path / "f.md").read_text(encoding="utf-8")
    answer = CliRunner().invoke(app, ["study", "localisation", *common])
    assert answer.exit_code == 0, answer.output
    assert "terms − occlusion" in answer.output


def test_every_projection_can_be_tried(root):
    answer = CliRunner().invoke(
        app, ["study", "faithfulness", "--root", str(root), "--limit", "1", "-e", "toy", "--every-projection"]
    )
    assert answer.exit_code == 0, answer.output
    assert "| carried | correct | pixels |" in answer.output
