"""Studies of references: agreement by their number, and p-values of words."""

import json

import numpy as np
import pytest

from bench_sets import encoded, write_images, write_rows
from command_line import invoke
from msdscore.errors import InputError
from msdscore.scoring.references import TRUE_WORDS
from msdscore_lab.studies.references import fit_shares, level_table


def test_curve_contains_all_numbers_of_references(tmp_path):
    colours = ("red", "green", "blue", "white")
    rows = [{"image": f"{own}.png", "caption": f"a {said} square", "human": 1 + 4 * (own == said)}
            for own in colours for said in colours]  # fmt: skip
    write_rows(tmp_path / "composite.jsonl", rows)
    write_images(tmp_path / "composite.images.parquet", {f"{colour}.png": encoded(colour) for colour in colours})
    people = {colour: [f"a {colour} box", f"{colour} paper", f"all {colour}"] for colour in colours}
    (tmp_path / "people.json").write_text(json.dumps(people))
    output = tmp_path / "curve.json"
    asked = ["study", "references", "--root", str(tmp_path), "-b", "composite", "-e", "toy", "--seeds", "2", "--samples",
             "20", "--references", str(tmp_path / "people.json"), "-o", str(output)]  # fmt: skip
    answer = invoke(*asked)
    assert answer.exit_code == 0, answer.output
    (table,) = json.loads(output.read_text())["tables"]
    assert [row["count"] for row in table["rows"]] == [0, 1, 2, 3]
    assert table["rows"][-1]["figure"]["value"] > 0
    assert "|nrefs:3|" in table["signature"]
    assert output.with_suffix(".png").is_file()


def test_parameters_of_words_are_recovered():
    rng = np.random.default_rng(1)
    counts = rng.integers(3, 6, size=6000)
    found = fit_shares(rng.binomial(counts, rng.beta(*TRUE_WORDS, size=6000)), counts)
    assert found == pytest.approx(TRUE_WORDS, rel=0.25)


def test_levels_are_shown_with_and_without_references():
    rng = np.random.default_rng(2)
    true = [(n, True, float(rng.uniform()), int(rng.binomial(5, rng.beta(*TRUE_WORDS))), 5) for n in range(400)]
    absent = [(n, False, float(rng.uniform() ** 2), 0, 5) for n in range(400)]
    table = level_table(true + absent, "s")
    at = {(row["evidence"], row["level"]): row for row in table.rows}
    assert at["image and references", 0.1]["true"].value == pytest.approx(0.1, abs=0.05)
    assert table.facts["auc"]["image and references"] > table.facts["auc"]["image"]
    with pytest.raises(InputError, match="true of their images"):
        level_table(true, "s")
