"""The builders of the evidence and paper pages, on small sets and on result files by hand."""

import json
from pathlib import Path

import pytest

import evidence_page
import paper_page
from bench_sets import COLOURS, encoded, make_expert, make_sugarcrepe, write_pictures, write_rows
from msdscore.errors import InputError, MSDScoreError


def test_the_evidence_page_keeps_what_people_wrote(tmp_path):
    make_sugarcrepe(tmp_path / "data")
    make_expert(tmp_path / "data")
    page = tmp_path / "evidence_page.md"
    page.write_text(f"# Evidence\n\nOur words.\n\n{evidence_page.BEGIN}\nold\n{evidence_page.END}\n\nMore words.\n")
    evidence_page.main(["--data", str(tmp_path / "data"), "-o", str(page), "--encoder", "toy", "--samples", "20"])
    text = page.read_text()
    assert text.startswith("# Evidence\n\nOur words.\n\n<!-- generated: begin -->")
    assert text.endswith("<!-- generated: end -->\n\nMore words.\n")
    assert "old" not in text
    assert "`python tools/evidence_page.py --data DATA --encoder toy --samples 20`" in text
    assert str(tmp_path) not in text
    for heading in ("## SugarCrepe", "## Flickr8k-Expert", "Paired tests against cosine", "with the wrong one"):
        assert heading in text
    assert "- msd against cosine: " in text
    assert "## Behaviour" not in text


def test_the_evidence_page_holds_words_and_behaviour_where_there_is_data(tmp_path):
    rows = [
        {"image": f"{c}.png", "caption": f"a {c} square and a {o} square", "hallucinated": [o], "objects": [c],
         "captions": [f"a {c} square", f"the square is {c}"]}
        for c, o in zip(COLOURS, COLOURS[1:] + COLOURS[:1], strict=True)
    ]  # fmt: skip
    write_rows(tmp_path / "long.jsonl", rows)
    write_pictures(tmp_path / "long.images.parquet", {f"{colour}.png": encoded(colour) for colour in COLOURS})
    page = tmp_path / "evidence_page.md"
    arguments = ["--data", tmp_path, "-o", page, "-e", "toy", "--samples", 20, "--captions", tmp_path / "long.jsonl"]
    evidence_page.main(list(map(str, arguments)))
    text = page.read_text()
    assert "## Words that long captions invent" in text
    assert "| AUC within captions | 8 |" in text
    assert "| wrong colour | first higher | 8 |" in text
    assert "--captions CAPTIONS" in text
    (tmp_path / "out").mkdir(exist_ok=True)
    with pytest.raises(MSDScoreError, match="expected one of sugarcrepe, .* found none"):
        evidence_page.main(["--data", str(page.parent / "out"), "-o", str(page), "-e", "toy"])


def test_the_evidence_page_stands_under_the_papers_settings_too(tmp_path):
    make_sugarcrepe(tmp_path / "data")
    make_expert(tmp_path / "data")
    page = tmp_path / "evidence_page.md"
    arguments = ["--data", tmp_path / "data", "-o", page, "--encoder", "toy", "--samples", 5, "--preset", "long"]
    evidence_page.main(list(map(str, arguments)))
    text = page.read_text()
    assert "## SugarCrepe, long" in text
    assert "## SugarCrepe, the paper's settings" in text
    assert "|k:5,3|" in text
    assert "|k:3,2|" in text
    assert "--preset long" in text


def test_the_page_of_the_paper_is_filled_from_result_files(tmp_path):
    marks = "".join(
        f"# {name}\n<!-- study {name}: begin -->\nold\n<!-- study {name}: end -->\n" for name in paper_page.PARTS
    )
    page, results = tmp_path / "paper.md", tmp_path / "results"
    page.write_text(marks)
    results.mkdir()
    interval = {"value": 0.5, "low": 0.4, "high": None, "n": 3}
    row = {"name": "AUC", "n": 7, "true": interval, "wrong": interval, "chance": 0.5}
    table = {"name": "rows", "rows": [row], "captions": 9, "signature": "msd|kappa:20"}
    (results / "words.json").write_text(json.dumps({"study": "words", "tables": [table]}))
    paper_page.main(["--results", str(results), "-o", str(page)])
    text = page.read_text()
    assert "| AUC | 7 | 50.0 | 50.0 | 50.0 |" in text
    assert "`msd|kappa:20`" in text
    assert text.count("old") == len(paper_page.PARTS) - 1
    with pytest.raises(InputError, match="the page has no place for study words"):
        paper_page.fill("", {"words": ""})
    with pytest.raises(InputError, match="expected result files of studies"):
        paper_page.main(["--results", str(tmp_path), "-o", str(page)])


def test_the_documented_page_has_a_place_for_every_study():
    page = Path(__file__).parents[1] / "docs" / "paper.md"
    text = page.read_text(encoding="utf-8")
    assert paper_page.fill(text, dict.fromkeys(paper_page.PARTS, "new")).count("new\n") >= len(paper_page.PARTS)
