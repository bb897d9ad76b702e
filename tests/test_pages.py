"""Sections of the evidence and paper pages, from small benchmarks and hand-written result files."""

import json
import re
from pathlib import Path

import pytest

from bench_sets import make_sugarcrepe
from msdscore.encoders.registry import load_encoder
from msdscore.errors import InputError
from msdscore.scorer import Scorer
from msdscore_lab.benchmarks.run.plan import BenchmarkPlan
from msdscore_lab.benchmarks.run.runner import run_benchmark
from msdscore_lab.paper import published, sections

PARTS = (
    "benchmarks",
    "balance",
    "delta",
    "words",
    "changed",
    "chair",
    "match",
)


def places(names):
    """Return a page with a section for each name."""
    return "".join(f"# {name}\n<!-- study {name}: begin -->\nold\n<!-- study {name}: end -->\n" for name in names)


def test_evidence_page_is_filled_from_a_benchmark_run(tmp_path):
    make_sugarcrepe(tmp_path / "data")
    scorer = Scorer(load_encoder("toy"), "short")
    plan = BenchmarkPlan(name="sugarcrepe", root=tmp_path / "data", metrics=("cosine", "msd"), samples=5)
    run_benchmark(plan, tmp_path / "sugarcrepe.json", lambda: scorer.pipeline)
    page = tmp_path / "evidence.md"
    page.write_text(f"# Evidence\n\nOur words.\n\n{places(PARTS)}\nMore words.\n")
    sections.fill_page(page, tmp_path)
    text = page.read_text()
    assert text.startswith("# Evidence\n\nOur words.\n")
    assert text.endswith("More words.\n")
    assert text.count("old") == len(PARTS) - 1
    (row,) = re.findall(r"^\| SugarCrepe, mean of 7, accuracy \|.*", text, re.M)
    assert re.fullmatch(
        r"\|[^|]*\| \d+ \| [\d.]+ \[.*?\] \| [\d.]+ \[.*?\] \| – \| – \| – \| – \| [\d.]+ / [\d.]+ \|", row
    )
    assert "`msd|enc:toy" in text
    assert "|bench:" not in text


def test_evidence_page_has_the_tables_of_studies(tmp_path):
    share = {"value": 0.25, "low": 0.2, "high": None, "n": 9}
    column = {"name": "mass", "title": "mass, %", "form": ".1f", "scale": 100, "ends": True}
    table = {"name": "words", "title": "Maps", "columns": [column], "notes": ["a note"], "rows": [{"mass": share}]}
    hidden = {"name": "bins", "columns": [], "rows": []}
    (tmp_path / "match.json").write_text(json.dumps({"tables": [table, hidden]}))
    (part,) = sections.sections(PARTS, tmp_path).values()
    assert part.split("\n\n") == ["**Maps**", "| mass, % |\n| :--- |\n| 25.0 |", "- a note\n"]
    with pytest.raises(InputError, match="such as sugarcrepe.json"):
        sections.sections(PARTS, tmp_path / "nothing")


def test_paper_page_is_filled_from_result_files(tmp_path):
    names = ("kappa", "alpha", "choices", "contradictions")
    page, results = tmp_path / "paper.md", tmp_path / "results"
    page.write_text(places(names))
    results.mkdir()
    share = {"value": 0.5, "low": 0.4, "high": None, "n": 3}
    row = {"metric": "msd", "accuracy/mean": share, "p": 0.25, "signature": "msd|kappa:20"}
    rows = [row | {"variant": "kappa=20", "difference": None}, row | {"variant": "kappa=80", "difference": share}]
    facts = {"headline": "accuracy/mean", "benchmark": "sugarcrepe", "counted": 9, "images": 4, "signature": "msd|k"}
    table = {"name": "sugarcrepe", "title": "", "columns": [], "notes": [], "rows": rows, **facts}
    (results / "kappa.json").write_text(json.dumps({"tables": [table]}))
    sections.fill_page(page, results)
    text = page.read_text()
    assert "| kappa=20 | 50.0 | – | – |" in text
    assert "| +50.0 | 0.250 |" in text
    assert "| kappa=20 (quoted) | 74.6 | 76.88 |" in text
    assert "(sugarcrepe, 9 items, 4 images)" in text
    assert "`msd|k`" in text
    assert text.count("old") == 1  # alpha has no result
    assert published.CONTRADICTIONS[0][0] in text
    with pytest.raises(InputError, match="such as sugarcrepe.json or kappa.json"):
        sections.fill_page(page, tmp_path)


PAPER_PARTS = ("mixture", "kappa", "stability", "entropy", "direction", "margin", "faithfulness", "choices",
         "contradictions")  # fmt: skip


@pytest.mark.parametrize(("name", "parts"), [("paper", PAPER_PARTS), ("evidence", PARTS)])
def test_documented_page_has_all_sections(name, parts):
    text = (Path(__file__).parents[1] / "docs" / "lab" / f"{name}.md").read_text(encoding="utf-8")
    assert sections.filled_page(text, dict.fromkeys(parts, "new")).count("\n\nnew\n\n") == len(parts)


def test_documented_choices_are_those_of_the_program():
    text = (Path(__file__).parents[1] / "docs" / "lab" / "paper.md").read_text(encoding="utf-8")
    parts = {name: sections.text_table(grid()) for name, grid in sections.FIXED.items()}
    assert sections.filled_page(text, parts) == text
