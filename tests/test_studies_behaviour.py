"""Behaviour study: edits and expectations by hand, and metrics that pass or fail."""

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from PIL import Image

from bench_sets import COLOURS, encoded, write_images, write_rows
from command_line import invoke
from msdscore.errors import ConfigError, InputError, UnknownNameError
from msdscore.scorer import Scorer
from msdscore.scoring.spec import ScorerSpec
from msdscore.text import words
from msdscore_lab import edits
from msdscore_lab.benchmarks.readers.rows import captioned_images
from msdscore_lab.studies.behaviour import behaviour, checks_of, pass_rates, variants
from msdscore_lab.studies.context import Study
from msdscore_lab.studies.gaming import KINDS, gaming, gaming_texts
from msdscore_lab.studies.table import to_markdown

CAPTION = "Two brown dogs run behind a horse on the beach ."


def test_wrong_words_have_the_same_kind_and_are_not_mentioned():
    known = edits.words_of([CAPTION, "a cat"])
    for seed in range(20):
        chance = Random(seed)
        colour, number, thing = (
            change(CAPTION, known, chance) for change in (edits.other_colour, edits.other_number, edits.other_object)
        )
        assert colour.split()[1] in set(words.COLOURS) - {"brown"}
        assert number.split()[0].lower() in set(words.NUMBERS) - {"two"}
        assert number[0].isupper()
        new = set(thing.split()) - set(CAPTION.split())
        assert len(new) == 1
        assert not new & known
    assert edits.other_colour("a dog", set(), Random(0)) is None


def test_negation_typos_and_neutral_changes():
    chance = Random(1)
    assert edits.negated("The small dog sleeps", set(), chance) == "No small dog sleeps"
    assert edits.negated("People talk", set(), chance) is None
    misspelt = edits.typo(CAPTION, set(), chance)
    assert misspelt != CAPTION
    assert sorted(misspelt) == sorted(CAPTION)
    assert edits.typo("a cat", set(), chance) is None
    assert len(edits.nonsense(CAPTION, set(), chance).split()) == len(CAPTION.split())
    assert edits.prefixed("A dog", set(), chance) == "A photo of a dog"
    assert edits.with_empty_words("A dog", set(), chance).startswith("A dog. ")


def test_image_variants():
    image = Image.new("RGB", (60, 40), "red")
    image.putpixel((0, 0), (0, 0, 255))
    found = variants(image)
    assert found["as it is"] is image
    assert found["mirrored"].getpixel((59, 0)) == (0, 0, 255)
    assert found["cropped"].size == (54, 36)
    assert np.abs(np.asarray(found["JPEG 75"]).astype(int) - np.asarray(image)).mean() < 10


def test_checks_have_expectations():
    made = {test.family: test for test in checks_of([CAPTION, "Dogs at the sea"], ["A red bus", "x"], Random(0))}
    assert made["true detail added"].first[1] == "Two brown dogs run behind a horse on the beach. Dogs at the sea."
    assert made["true detail added"].second[1] == CAPTION
    assert made["false detail added"].second[1].endswith("A red bus.")
    assert made["wrong colour"].expects == "first higher"
    assert made["image mirrored"].second == ("mirrored", CAPTION)
    assert made["wrong colour"].with_wrong_image().first == ("wrong", CAPTION)
    assert made["image mirrored"].with_wrong_image() is None
    assert len(made) == 17


@pytest.fixture
def rows(tmp_path):
    write_images(tmp_path / "set.images.parquet", {f"{colour}.png": encoded(colour, 48) for colour in COLOURS[:6]})
    captions = [[f"A {colour} square.", f"the square is {colour}"] for colour in COLOURS[:6]]
    named = zip(COLOURS, captions, strict=False)
    write_rows(tmp_path / "set.jsonl", [{"image": f"{colour}.png", "captions": texts} for colour, texts in named])
    return tmp_path / "set.jsonl"


def rates(entries, *names):
    table = pass_rates(Study(root=Path()), Scorer("toy", "short").pipeline, names or ("similarity", "length"), entries)
    return table, {row["family"]: row for row in table.rows}


def test_columns_pass_the_checks_of_their_inputs(rows):
    table, families = rates(captioned_images(rows))
    assert table.facts["images"] == 6
    assert families["own against another's caption"]["similarity"].value == 1.0
    assert families["wrong colour"]["similarity"].value == 1.0
    assert families["wrong colour"]["similarity, wrong image"] < 1.0
    assert families["case and full stop"]["similarity"].value == 1.0
    assert families["image mirrored"]["length"].value == 1.0
    assert families["paragraph against sentence"]["length"].value == 1.0
    assert families["paragraph against sentence"]["length, wrong image"] == 1.0  # decided by the text only
    assert families["false detail added"]["length"].value == 0.0
    assert "| wrong colour | first higher | 6 | 100 [" in to_markdown([table])


def test_missing_score_fails_and_invalid_requests_are_rejected(rows):
    entries = captioned_images(rows)
    failed = [replace(entry, captions=("Failed to obtain answer via API.", "a square")) for entry in entries[:1]]
    _, families = rates([*failed, *entries[1:]])
    assert families["own against another's caption"]["similarity"].value == pytest.approx(
        4 / 6
    )  # also of the image before it
    with pytest.raises(UnknownNameError, match="'msdd'.*'msd'"):
        behaviour(Study(root=rows, spec=ScorerSpec(encoder="toy")), metric=["msdd"])
    with pytest.raises(InputError, match="2 captions each, got 0"):
        rates([])


def test_images_next_to_the_rows_are_found_and_missing_ones_reported(tmp_path):
    write_rows(tmp_path / "set.jsonl", [{"image": f"{n}.png", "captions": ["a", "b"]} for n in COLOURS[:3]])
    with pytest.raises(InputError, match="none of 3 images .*red.png"):
        rates(captioned_images(tmp_path / "set.jsonl"))
    for colour in COLOURS[:3]:
        (tmp_path / f"{colour}.png").write_bytes(encoded(colour, 48))
    table, _ = rates(captioned_images(tmp_path / "set.jsonl"))
    assert table.facts["images"] == 3


def test_unreadable_images_do_not_stop_the_study(tmp_path, monkeypatch):
    monkeypatch.setattr("msdscore_lab.studies.behaviour.BATCH", 1)
    names = ["gone", "lost", *COLOURS[:3]]
    write_rows(tmp_path / "set.jsonl", [{"image": f"{n}.png", "captions": ["a", "b"]} for n in names])
    for colour in COLOURS[:3]:
        (tmp_path / f"{colour}.png").write_bytes(encoded(colour, 48))
    entries = captioned_images(tmp_path / "set.jsonl")
    table, _ = rates(entries)
    assert (table.facts["images"], table.facts["left_out"]) == (2, 3)
    with pytest.raises(InputError, match="no two consecutive images"):
        rates(entries[1:3])


def test_gaming_texts_are_built_from_probable_words_and_the_caption():
    texts = gaming_texts("Two dogs run .", ["dog", "grass", "ball", "sky"], ["ball"], Random(0))
    assert texts["caption and three probable words"] == "Two dogs run grass ball sky"
    assert texts["caption three times"] == "Two dogs run. Two dogs run. Two dogs run."
    assert texts["a photo of a X and a Y …"] == "a photo of a dog and a grass and a ball and a sky"
    assert texts["words of the caption sorted"] == "dogs run two"
    assert sorted(texts["words of the caption shuffled"].split()) == ["dogs", "run", "two"]
    assert texts["ten words of most evidence"] == "ball"


def test_lists_and_repetitions_are_not_good_matches(rows):
    pytest.importorskip("msdscore_mini", reason="needs the weights of mini")
    (table,) = gaming(Study(root=rows, spec=ScorerSpec(encoder="mini"), limit=3))
    found = {row["kind"]: row for row in table.rows}
    assert list(found) == list(KINDS)
    assert found["ten most probable words"]["n"] == 3
    assert found["ten most probable words"]["on_topic"] == found["caption three times"]["on_topic"] == 0
    assert found["caption three times"]["reward"].value == 0
    assert all(row["reward"].value <= row["msd"].value for row in table.rows)
    assert found["the caption itself"]["msd"].value == 0
    with pytest.raises(ConfigError, match="bank with vocabulary"):
        gaming(Study(root=rows, spec=ScorerSpec(encoder="toy")))


def test_behaviour_command(rows, tmp_path):
    answer = invoke(
        "study",
        "behaviour",
        "--rows",
        str(rows),
        "-e",
        "toy",
        "-m",
        "similarity",
        "-m",
        "length",
        "-o",
        str(tmp_path / "b.json"),
    )
    assert answer.exit_code == 0, answer.output
    assert "| no. | family | expected | n | similarity | wrong image | length | wrong image |" in answer.stdout
    (table,) = json.loads((tmp_path / "b.json").read_text())["tables"]
    assert {"similarity", "length"} <= set(table["rows"][0])
