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
from msdscore_lab.paper.evidence import EVIDENCE

PARTS = ("benchmarks", *EVIDENCE)


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
    sections.main([str(page), "--results", str(tmp_path)])
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


def interval(value):
    return {"value": value, "low": value - 0.1, "high": value + 0.1, "n": 9}


def test_evidence_page_is_filled_from_studies(tmp_path):
    shares = dict.fromkeys(("terms", "occlusion", "wrong_image", "chance", "right", "first", "frequent"), interval(0.5))
    shares |= dict.fromkeys(
        ("true", "once", "absent", "wrong", "doubtful", "named", "error", "reached"), interval(0.25)
    )
    shares |= dict.fromkeys(("changed", "original", "lower", "auc", "pointing", "mass"), interval(0.75))
    row = {"set": "thumb", "subset": "replace_obj", "depth": 1, "items": 3, "name": "AUC", "n": 7, "chance": 0.5}
    row = shares | row | {"words": "all", "level": 0.1, "captions": 2, "map": "even"}
    rows = {"name": "rows", "rows": [row], "captions": 8}
    tables = {
        "form": [
            {"name": "ablation", "rows": [{"set": "thumb", "evidence": 31.4, "cosine": {**interval(-2.0), "n": 4}}]},
            {"name": "delta", "rows": [{"set": "mean", "delta": 0.1, "gain": 2.5}, {"set": "thumb", "delta": 0.1}]},
            {
                "name": "left_out",
                "rows": [{"setting": "delta", "chosen": c, "gain": g} for c, g in ((0.1, 1), (0.2, 2))],
            },
        ],
        "words": [
            {"name": "p_values", "rows": [row], "auc": 0.8, "images": 5},
            {"name": "bins", "rows": [{"predicted": 0.5, "observed": interval(0.4)}], "error": interval(0.2)},
        ],
        "localisation": [{**rows, "rows": [{**row, "chance": interval(0.5)}]}],
        "changed": [{"name": "changed", "rows": [row]}],
        "boxes": [{"name": name, "rows": [row]} for name in ("words", "captions")],
        "chair": [rows],
        "suggestions": [rows],
        "missing": [{**rows, "rows": [{**row, "words": 1.9}]}],
        "match": [
            {"name": "bins", "rows": [], "images": 6, "medians": {"own": 0.78}, "areas": {"other": 0.99}},
            {"name": "lengths", "rows": [row]},
        ],
    }
    for name, study in tables.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"study": name, "tables": study}))
    parts = sections.sections(PARTS, tmp_path)
    assert set(parts) == set(EVIDENCE)
    assert "| thumb | 31.4 | -2.0 [-2.1, -1.9] |" in parts["form"]
    assert (
        "delta chosen with one set left out: 0.1 to 0.2, points over cosine on the set left out: +1.0 to +2.0"
        in (parts["form"])
    )
    assert "mean gain over cosine along delta: 0.1: +2.5" in parts["form"]
    assert (
        "off by 20.0 [10.0, 30.0] points on average (lower is better), most where 0.50 is predicted" in parts["words"]
    )
    assert "| replace_obj, first 1 | 3 | 50.0 [40.0, 60.0] |" in parts["localisation"]
    assert "| replace_obj | 7 | 75.0 [65.0, 85.0] |" in parts["changed"]
    assert parts["boxes"].count("| even | 7 | 75.0 [65.0, 85.0] |") == 2
    assert "median match: own 0.78" in parts["match"]
    with pytest.raises(InputError, match="such as sugarcrepe.json"):
        sections.sections(PARTS, tmp_path / "nothing")


def test_paper_page_is_filled_from_result_files(tmp_path):
    names = ("kappa", "alpha", "choices", "contradictions")
    page, results = tmp_path / "paper.md", tmp_path / "results"
    page.write_text(places(names))
    results.mkdir()
    share = {"value": 0.5, "low": 0.4, "high": None, "n": 3}
    row = {"metric": "msd", "accuracy/mean": share, "p_holm": 0.25, "signature": "msd|kappa:20"}
    rows = [row | {"variant": "kappa=20", "difference": None}, row | {"variant": "kappa=80", "difference": share}]
    facts = {"headline": "accuracy/mean", "benchmark": "sugarcrepe", "counted": 9, "images": 4, "signature": "msd|k"}
    table = {"name": "sugarcrepe", "title": "", "columns": [], "notes": [], "rows": rows, **facts}
    (results / "kappa.json").write_text(json.dumps({"tables": [table]}))
    sections.main([str(page), "--results", str(results)])
    text = page.read_text()
    assert "| kappa=20 | 50.0 | – | – |" in text
    assert "| +50.0 | 0.250 |" in text
    assert "| kappa=20 (quoted) | 74.6 | 76.88 |" in text
    assert "(sugarcrepe, 9 items, 4 images)" in text
    assert "`msd|k`" in text
    assert text.count("old") == 1  # alpha has no result
    assert published.CONTRADICTIONS[0][0] in text
    with pytest.raises(InputError, match="such as sugarcrepe.json or kappa.json"):
        sections.main([str(page), "--results", str(tmp_path)])


PAPER = ("mixture", "kappa", "stability", "entropy", "direction", "margin", "ood", "faithfulness", "choices",
         "contradictions")  # fmt: skip


@pytest.mark.parametrize(("name", "parts"), [("paper", PAPER), ("evidence", PARTS)])
def test_documented_page_has_all_sections(name, parts):
    text = (Path(__file__).parents[1] / "docs" / "lab" / f"{name}.md").read_text(encoding="utf-8")
    assert sections.filled_page(text, dict.fromkeys(parts, "new")).count("\n\nnew\n\n") == len(parts)


def test_documented_choices_are_those_of_the_program():
    text = (Path(__file__).parents[1] / "docs" / "lab" / "paper.md").read_text(encoding="utf-8")
    parts = {name: sections.text_table(grid()) for name, grid in sections.FIXED.items()}
    assert sections.filled_page(text, parts) == text
