"""Study of hallucinated words: positions of names, statistics by hand, and the toy encoder end to end."""

import json

import numpy as np
import pytest

from bench_sets import COLOURS, encoded, write_images, write_rows
from command_line import invoke
from msdscore.errors import InputError
from msdscore.scoring.spec import ScorerSpec
from msdscore_lab.benchmarks.readers.ratings import MarkedCaption
from msdscore_lab.studies.changed import replaced_word
from msdscore_lab.studies.context import Study
from msdscore_lab.studies.words import mentions_of, read_synonyms, words


def marked(caption, **more):
    return MarkedCaption("1", None, caption, **more)


def texts(one, synonyms=None):
    return [(one.caption[slice(*span)], invented) for span, invented in mentions_of(one, synonyms or {})]


def test_names_match_whole_words_and_the_longest_wins():
    one = marked("Hot dogs, two Benches near dogma and a puppy", present=("hot dog", "bench"), absent=("dog",))
    assert texts(one) == [("Hot dogs", False), ("Benches", False)]
    assert texts(one, {"dog": ("puppy",)}) == [("Hot dogs", False), ("Benches", False), ("puppy", True)]


def test_replaced_word_is_found_if_one_word_changed():
    assert replaced_word("a red car", "a blue car") == ("red", "blue")
    assert replaced_word("a red car", "a red car at night") is None
    assert replaced_word("a red car", "a blue bus") is None


def test_synonyms_are_read_by_class(tmp_path):
    (tmp_path / "names.txt").write_text("person, girl,  boy\n\nmotorcycle, motor bike\n")
    assert read_synonyms(tmp_path / "names.txt") == {"person": ("girl", "boy"), "motorcycle": ("motor bike",)}


@pytest.fixture
def long(tmp_path):
    rows = []
    for place, colour in enumerate(COLOURS):
        other = COLOURS[(place + 1) % len(COLOURS)]
        rows.append({"image": f"{colour}.png", "caption": f"a {colour} square and a {other} square",
                     "hallucinated": [other], "objects": [colour]})  # fmt: skip
    write_rows(tmp_path / "long.jsonl", rows)
    write_images(tmp_path / "long.images.parquet", {f"{colour}.png": encoded(colour) for colour in COLOURS})
    return tmp_path


def test_terms_find_absent_objects_only_with_the_right_image(long):
    study = Study(root=long, spec=ScorerSpec(encoder="toy", form="short"))
    (table,) = words(study, marks="chair")
    assert (table.facts["captions"], table.facts["left_out"]) == (8, 0)
    assert table.rows[0]["n"] == 16
    for row in table.rows:
        assert row["true"].value > 0.85, row["name"]
        assert row["wrong"].value < row["true"].value, row["name"]
        assert row["chance"] == 0.5
    write_rows(long / "long.jsonl", [{"image": "red.png", "caption": "a dog", "hallucinated": [], "objects": ["dog"]}])
    with pytest.raises(InputError, match="marked words, got none"):
        words(study, marks="chair")


def test_words_command_prints_a_table_and_writes_json(long, tmp_path):
    answer = invoke(
        "study", "words", "--root", str(long), "--marks", "chair", "-e", "toy", "-o", str(tmp_path / "words.json")
    )
    assert answer.exit_code == 0, answer.output
    assert "| AUC within captions | 8 |" in answer.stdout
    rows = json.loads((tmp_path / "words.json").read_text())["tables"][0]["rows"]
    assert np.isfinite([row["true"]["value"] for row in rows]).all()
    wrong = invoke("study", "words", "--root", str(long), "--marks", "chiar")
    assert "Did you mean 'chair'" in str(wrong.exception)
