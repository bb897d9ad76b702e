"""Maps against boxes: by hand, and by command on images of coloured squares."""

import json

import numpy as np
import pytest
from PIL import Image

from command_line import invoke
from msdscore_lab.studies.boxes import centre, coverage_of, figures

COLOURS = ("red", "green", "blue", "yellow")


def test_boxes_cover_patches_by_their_area_and_overlaps_count_once():
    half = coverage_of([(0.5, 0.25, 1.0, 0.5)], 2, 4)
    assert half.tolist() == [1.0] * 4 + [0.0] * 4
    assert coverage_of([(0.5, 0.25, 1.0, 0.5)] * 2, 2, 4).tolist() == half.tolist()
    assert coverage_of([(0.5, 0.5, 0.5, 0.5)], 1, 1).tolist() == [0.25]


def test_pointing_and_mass_by_hand():
    cover = np.array([1.0, 0.0, 0.0, 0.5])
    assert figures(np.array([0.4, 0.2, 0.2, 0.2]), cover) == (1.0, pytest.approx(0.5))
    assert figures(np.array([-1.0, 2.0, 0.0, 2.0]), cover) == (0.5, pytest.approx(0.25))  # two maxima, one in a box
    assert figures(np.ones(4), cover) == (0.5, pytest.approx(cover.mean()))
    assert figures(-np.ones(4), cover)[1] == pytest.approx(cover.mean())  # no mass: as a uniform map


def test_the_centre_prior_is_highest_in_the_middle_and_symmetric():
    prior = centre(5, 5).reshape(5, 5)
    assert prior.argmax() == 12
    assert np.allclose(prior, prior.T)
    assert np.allclose(prior, prior[::-1])


@pytest.fixture
def boxed(tmp_path):
    """Write grey images with a coloured square in one corner, its caption and its box."""
    rows, objects = [], []
    for number in range(12):
        name, corner = COLOURS[number % 4], (number % 2, number // 2 % 2)
        image = Image.new("RGB", (64, 64), "grey")
        image.paste(Image.new("RGB", (32, 32), name), (32 * corner[0], 32 * corner[1]))
        image.save(tmp_path / f"{number}.png")
        rows.append({"image": f"{number}.png", "captions": [f"a {name} square", f"{name} paint"]})
        box = [COLOURS.index(name), 0.25 + 0.5 * corner[0], 0.25 + 0.5 * corner[1], 0.5, 0.5]
        objects.append({"image": f"{number}.png", "objects": [box]})
    for name, lines in (("rows.jsonl", rows), ("rows.objects.jsonl", objects)):
        (tmp_path / name).write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    (tmp_path / "coco_classes.txt").write_text("\n".join(COLOURS), encoding="utf-8")
    return tmp_path / "rows.jsonl"


def test_maps_of_words_match_their_objects(boxed, tmp_path):
    study = ["study", "boxes", "--rows", str(boxed), "-e", "toy", "--form", "short", "-o", str(tmp_path / "b.json")]
    answer = invoke(*study)
    assert answer.exit_code == 0, f"{answer.output}{answer.exception}"
    words, captions = json.loads((tmp_path / "b.json").read_text())["tables"]
    found = {row["map"]: row for row in words["rows"]}
    assert found["even"]["mass"]["value"] == pytest.approx(0.25, abs=0.02)
    assert found["affinity"]["pointing"]["value"] > 0.9
    assert found["affinity"]["mass"]["value"] > found["even"]["mass"]["value"]
    assert {"influence", "carried", "even", "centre"} <= {row["map"] for row in captions["rows"]}


def test_missing_boxes_and_unmentioned_objects_are_one_line_errors(boxed):
    study = ["study", "boxes", "--rows", str(boxed), "-e", "toy", "--form", "short"]
    classes, objects = boxed.with_name("coco_classes.txt"), boxed.with_suffix(".objects.jsonl")
    classes.write_text("dog\ncat\ncow\nsheep", encoding="utf-8")
    assert "expected captions that name an annotated object" in str(invoke(*study).exception)
    for missing in (classes, objects):
        missing.unlink()
        error = str(invoke(*study).exception)
        assert f"{missing}: expected the boxes of rows.jsonl and their classes" in error
