"""Study of references: agreement by their number."""

import json

from bench_sets import encoded, write_images, write_rows
from command_line import invoke


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
