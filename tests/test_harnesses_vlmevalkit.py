"""VLMEvalKit's prediction files (tsv, json) and the images of its datasets."""

import base64
import csv
import io
import json
from pathlib import Path

import pytest
from PIL import Image

from msdscore.errors import InputError
from msdscore.rows.files import open_rows
from msdscore_lab.harnesses.vlmevalkit import main, unpack

ROWS = [
    {"index": 7, "question": "Describe.", "answer": "['a']", "prediction": "a red square"},
    {"index": 12, "question": "Describe.", "answer": "['b']", "prediction": "a blue square"},
    {"index": 15, "question": "Describe.", "answer": "['c']", "prediction": "Failed to obtain answer via API."},
]


def image() -> str:
    # Noise, so that the cell exceeds the default limit of the csv module.
    place = io.BytesIO()
    Image.effect_noise((400, 400), 90).convert("RGB").save(place, "PNG")
    return base64.b64encode(place.getvalue()).decode()


@pytest.fixture
def dataset(tmp_path) -> Path:
    with (tmp_path / "DATA.tsv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter="\t", quoting=csv.QUOTE_ALL)
        writer.writerow(["index", "image", "answer"])
        writer.writerows([[7, image(), "['a']"], [12, image(), "['b']"], [15, "7", "['c']"]])
    return tmp_path / "DATA.tsv"


def write_tsv(path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(ROWS[0]), delimiter="\t", quoting=csv.QUOTE_ALL)
        writer.writeheader()
        writer.writerows(ROWS)


WRITERS = {"tsv": write_tsv, "json": lambda path: path.write_text(json.dumps(ROWS))}


@pytest.mark.parametrize("kind", WRITERS)
def test_predictions_find_their_images_by_index(dataset, tmp_path, kind):
    assert unpack(dataset, tmp_path / "images") == 3
    WRITERS[kind](tmp_path / f"model_DATA.{kind}")
    with open_rows(tmp_path / f"model_DATA.{kind}", images=tmp_path / "images") as source:
        rows = list(source.read())
    assert [row.caption for row in rows[:2]] == ["a red square", "a blue square"]
    assert [Path(row.image).name for row in rows] == ["7.jpg", "12.jpg", "15.jpg"]
    assert "prediction reports that the model did not answer: Failed to obtain" in str(rows[2].error)


def test_images_are_written_once_and_shared_ones_copied(dataset, tmp_path, capsys):
    before = csv.field_size_limit()
    assert main([str(dataset), "-o", str(tmp_path / "images")]) == 0
    assert capsys.readouterr().out.startswith("3 images")
    assert unpack(dataset, tmp_path / "images") == 0
    assert csv.field_size_limit() == before
    assert (tmp_path / "images" / "15.jpg").read_bytes() == (tmp_path / "images" / "7.jpg").read_bytes()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (["../x", "A" * 100], "is not a valid file name"),
        (["1", "9"], "shares the image of row 9"),
        (["1", "!" * 100], "not valid base64"),
    ],
)
def test_a_file_that_is_not_a_dataset_is_rejected(tmp_path, row, message, capsys):
    (tmp_path / "DATA.tsv").write_text("index\timage\n" + "\t".join(row) + "\n")
    with pytest.raises(InputError, match=message):
        unpack(tmp_path / "DATA.tsv", tmp_path / "images")
    (tmp_path / "DATA.tsv").write_text("a\tb\n1\t2\n")
    assert main([str(tmp_path / "DATA.tsv"), "-o", str(tmp_path / "images")]) == 2
    assert "expected the columns index and image of a VLMEvalKit dataset, found: a, b" in capsys.readouterr().err


def test_images_of_another_dataset_are_not_taken_for_those_of_this_one(dataset, tmp_path):
    unpack(dataset, tmp_path / "images")
    Image.new("RGB", (8, 8)).save(tmp_path / "images" / "12.jpg")
    with pytest.raises(InputError, match=r"12\.jpg"):
        unpack(dataset, tmp_path / "images")
