"""Builders of the evidence and paper pages, on small datasets and hand-written result files."""

import json
import math
import re
import sys
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from align_data import make_rows, recipe, source
from bench_sets import make_sugarcrepe
from msdscore.encoders.registry import load_encoder
from msdscore.errors import InputError
from msdscore.installation import install_line
from msdscore.scorer import Scorer
from msdscore_lab.align.export import export
from msdscore_lab.align.run.parts import TrainOptions
from msdscore_lab.align.run.train import train
from msdscore_lab.benchmarks.base import image_source
from msdscore_lab.benchmarks.readers.battles import read_docent_spans
from msdscore_lab.benchmarks.readers.rows import find_rows
from msdscore_lab.benchmarks.registry import load
from msdscore_lab.benchmarks.results.result import read_result
from msdscore_lab.benchmarks.run.plan import BenchmarkPlan
from msdscore_lab.benchmarks.run.runner import run_benchmark
from msdscore_lab.paper import evidence as evidence_page
from msdscore_lab.paper import page as paper_page
from msdscore_lab.paper import rehearsal
from msdscore_lab.paper import run as paper_run
from msdscore_lab.paper.rehearsal_data import write_benchmarks
from msdscore_lab.paper.tables import caparena
from msdscore_lab.studies.registry import load_study
from tiny_clip import make_tiny_clip
from tiny_lm import WIDTH, make_tiny_llama


def places(names):
    """Return a page with a section for each name."""
    return "".join(f"# {name}\n<!-- study {name}: begin -->\nold\n<!-- study {name}: end -->\n" for name in names)


def test_evidence_page_is_filled_from_a_benchmark_run(tmp_path):
    make_sugarcrepe(tmp_path / "data")
    scorer = Scorer(load_encoder("toy"), "short")
    plan = BenchmarkPlan(name="sugarcrepe", root=tmp_path / "data", metrics=("cosine", "msd"), samples=5)
    run_benchmark(plan, tmp_path / "sugarcrepe.json", lambda: scorer.pipeline)
    page = tmp_path / "evidence.md"
    page.write_text(f"# Evidence\n\nOur words.\n\n{places(evidence_page.PARTS)}\nMore words.\n")
    evidence_page.main(["--results", str(tmp_path), "-o", str(page)])
    text = page.read_text()
    assert text.startswith("# Evidence\n\nOur words.\n")
    assert text.endswith("More words.\n")
    assert text.count("old") == len(evidence_page.PARTS) - 1
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
    parts = evidence_page.parts(tmp_path)
    assert set(parts) == set(evidence_page.STUDIES)
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
        evidence_page.parts(tmp_path / "nothing")


def test_paper_page_is_filled_from_result_files(tmp_path):
    page, results = tmp_path / "paper.md", tmp_path / "results"
    page.write_text(places(paper_page.PARTS))
    results.mkdir()
    share = {"value": 0.5, "low": 0.4, "high": None, "n": 3}
    row = {"metric": "msd", "accuracy/mean": share, "p_holm": 0.25, "signature": "msd|kappa:20"}
    rows = [row | {"variant": "kappa=20", "difference": None}, row | {"variant": "kappa=80", "difference": share}]
    facts = {"headline": "accuracy/mean", "benchmark": "sugarcrepe", "counted": 9, "images": 4, "signature": ""}
    (results / "kappa.json").write_text(json.dumps({"tables": [{"name": "kappa", "rows": rows, **facts}]}))
    paper_page.main(["--results", str(results), "-o", str(page)])
    text = page.read_text()
    assert "| kappa=20 | 50.0 | – | 74.6 |" in text
    assert "| kappa=80 | 50.0 | +50.0, p 0.250 | – |" in text
    assert "(sugarcrepe, 9 items, 4 images)" in text
    assert "`msd|kappa:20`" in text
    assert text.count("old") == len(paper_page.PARTS) - 1
    with pytest.raises(InputError, match="no section for study kappa"):
        paper_page.fill("", {"kappa": ""})
    with pytest.raises(InputError, match="result files of studies"):
        paper_page.main(["--results", str(tmp_path), "-o", str(page)])


PLACED = [
    name for name in paper_page.PARTS if name not in paper_page.SWEEPS | {"reconstruction", "timing", "backbones"}
]


@pytest.mark.parametrize(("name", "parts"), [("paper", PLACED), ("evidence", evidence_page.PARTS)])
def test_documented_page_has_all_sections(name, parts):
    text = (Path(__file__).parents[1] / "docs" / "lab" / f"{name}.md").read_text(encoding="utf-8")
    assert paper_page.fill(text, dict.fromkeys(parts, "new")).count("new\n") >= len(parts)


def test_every_table_of_the_paper_has_a_step():
    names = [step.name for step in paper_run.STEPS]
    assert len(set(names)) == len(names)
    wanted = (
        "caparena docent flickr8k-expert flickr8k-cf composite pascal50s backbones coco-cf captioners mixtures kappa"
    )
    wanted += " stability entropy direction margin faithfulness timing reconstruction ranking tune sensitivity"
    wanted += " sugarcrepe maps maps-reconstruction words rsicd-remoteclip-l14 rocov2-biomedclip caparena-references"
    assert set(wanted.split()) <= set(names)
    for step in paper_run.STEPS:
        assert step.command[0] in ("bench", "study", "rank-captioners", "explain")
        if step.command[0] == "study":
            load_study(step.command[1])


@pytest.mark.slow
def test_paper_run_resumes(tmp_path, capsys):
    make_sugarcrepe(tmp_path / "data")
    command = ["-e", "toy", "--data", str(tmp_path / "data"), "-o", str(tmp_path / "out"), "--samples", "5"]
    only = ["--only", "kappa", "--only", "caparena", "--limit", "6"]
    assert paper_run.main([*command, *only]) == paper_run.SOME_FAILED  # CapArena is missing
    text = (tmp_path / "out" / "paper.md").read_text()
    assert "| kappa=20 |" in text
    assert "74.6 |" in text  # the paper's
    assert "init:sample,0" in text
    assert "\n- caparena: no file of caparena" in text or "\n- caparena: expected" in text
    assert "caparena" in capsys.readouterr().err  # with the reason
    made = (tmp_path / "out" / "kappa.json").stat().st_mtime_ns
    paper_run.main([*command, *only])
    assert (tmp_path / "out" / "kappa.json").stat().st_mtime_ns == made
    assert paper_run.main([*command, "--only", "nothing"]) == 2
    assert "expected one of reconstruction" in capsys.readouterr().err


@pytest.mark.slow
def test_heat_maps_use_the_first_caption(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    (tmp_path / "data").mkdir()
    out = tmp_path / "out"
    command = ["-e", "toy", "--data", str(tmp_path / "data"), "-o", str(out), "--only", "maps", "--only", "sensitivity"]
    assert paper_run.main(command) == paper_run.SOME_FAILED
    assert f"\n- maps: {tmp_path / 'data' / 'captions.jsonl'} does not exist\n" in (out / "paper.md").read_text()
    assert "captions.jsonl" in capsys.readouterr().err
    Image.new("RGB", (40, 30), "red").save(tmp_path / "data" / "red.png")
    (tmp_path / "data" / "captions.jsonl").write_text(json.dumps({"image": "red.png", "caption": "a red square"}))
    assert paper_run.main(command) == 0
    text = (out / "paper.md").read_text()
    assert "![maps](maps.png)" in text
    assert (out / "maps.png").read_bytes().startswith(b"\x89PNG")
    assert "--map carried -o" in text
    assert "| 0.5 |" in text  # of the sensitivity
    assert (out / "sensitivity.png").is_file()


def test_tables_have_the_rows_and_decimals_of_the_paper(tmp_path):
    write_benchmarks(tmp_path / "data", images=6, size=(48, 40))
    command = ["-e", "toy", "--data", str(tmp_path / "data"), "-o", str(tmp_path / "out"), "--samples", "5"]
    only = [word for name in ("caparena", "coco-cf", "flickr8k-expert", "sugarcrepe") for word in ("--only", name)]
    assert paper_run.main([*command, *only]) == 0
    text, tex = ((tmp_path / "out" / name).read_text() for name in ("paper.md", "paper.tex"))
    assert "**Without the local aligner**: all rows use plain toy" in text
    assert "| FLEUR (quoted) | No | 45.8 | 51.3 | 46.2 | 44.4 | 41.4 | 0.393 | 0.297 |" in text
    assert "| VDC-Score (quoted) | Yes | 55.7 |" in text
    assert "| VLM-as-a-Judge (Qwen2.5-VL-7B) (quoted) | No | 52.2 |" in text
    assert "| MSD, table of concentrations (quoted) | 74.58 | 76.88 | 79.39 | 80.33 | 94.07 | 63.44 |" in text
    assert re.search(r"^\| cosine of the model's vectors \| (\**\d+\.\d\d\** \| ?){7}", text, re.M)
    assert "| CLIPScore (toy) |" in text
    assert "| Soft-MSD (toy) |" in text
    assert "| Easy-CF (quoted) | 61.20 | 28.00 | 61.02 | 59.19 | 63.93 | 63.89 |" in text
    assert "| UMIC (quoted) | – | 46.8 | – |" in text
    assert "Soft-MSD (quoted) & No & 57.6 & 64.4 &" in tex
    assert tex.count("\\begin{tabular}") == 4


@pytest.mark.parametrize("texts", ["clip", "llama"])
def test_an_aligner_is_used_for_the_score_and_not_for_clipscore(tmp_path, texts):
    write_benchmarks(tmp_path / "data", images=6, size=(48, 40))
    clip = str(make_tiny_clip(tmp_path / "local" / "clip-l14"))
    tower = {"source": clip}
    heads = {"dim": 16}
    if texts == "llama":  # as the recipe paper-llama
        tower = {"kind": "embeddings", "source": str(make_tiny_llama(tmp_path / "llama"))}
        heads = {"dim": WIDTH, "image": {"kind": "linear"}, "text": {"kind": "none"}}
    small = recipe(image={"source": clip}, text=tower, heads=heads, train={"steps": 1})
    train(small, source(make_rows(tmp_path / "rows")), tmp_path / "run", options=TrainOptions(device="cpu"))
    export(tmp_path / "run", tmp_path / "aligner")
    command = ["--data", str(tmp_path / "data"), "--local", str(tmp_path / "local"), "--samples", "5"]
    command += ["--only", "coco-cf"]
    assert paper_run.main([*command, "-o", str(tmp_path / "plain")]) == 0
    assert paper_run.main([*command, "-o", str(tmp_path / "out"), "--aligner", str(tmp_path / "aligner")]) == 0
    aligned = read_result(tmp_path / "out" / "aligned" / "bench" / "coco-cf.json")
    plain = read_result(tmp_path / "plain" / "bench" / "coco-cf.json")
    assert aligned.metric("clipscore").figures == plain.metric("clipscore").figures
    assert aligned.metric("clipscore").encoder.startswith("clip-l14@")
    assert aligned.metric("soft-msd").encoder.startswith("aligner@")
    text = (tmp_path / "out" / "paper.md").read_text()
    assert "| Easy-CF (aligner) |" in text
    assert "Soft-MSD uses the local aligner `aligner` in the main tables, CLIPScore plain clip-l14." in text
    assert "`clipscore|w:2.5|prefix:A photo depicts|enc:clip-l14@" in text  # next to the signature of Soft-MSD
    assert "`soft-msd|set:item|enc:aligner@" in text


def test_judge_and_fleur_are_rows_of_the_table_of_caparena(tmp_path):
    write_benchmarks(tmp_path / "data", images=4, size=(48, 40))
    out = tmp_path / "out"
    command = ["-e", "toy", "--data", str(tmp_path / "data"), "-o", str(out), "--samples", "5", "--only", "caparena"]
    assert paper_run.main(command) == 0
    content = json.loads((out / "bench" / "caparena-paper.json").read_text())
    names = {"judge-llava-1.5-7b": "judge:folder,backend=local", "fleur": "fleur:folder", "references": "meteor"}
    for folder, label in names.items():
        (out / f"bench-{folder}").mkdir()
        changed = {**content, "metrics": [{**content["metrics"][0], "label": label, "signature": "x|v:0"}]}
        (out / f"bench-{folder}" / "caparena-paper.json").write_text(json.dumps(changed))
    (grid,) = caparena(out)
    rows = [(row[0], row[1]) for row in grid.rows]
    for name, needs in (("VLM-as-a-Judge (LLaVA-1.5-7B)", "No"), ("FLEUR", "No"), ("METEOR", "Yes")):
        assert rows[rows.index((f"{name} (quoted)", needs)) + 1] == (name, needs)


def test_models_of_known_encoders_are_found_on_the_hub(tmp_path):
    model = paper_run._model
    assert model(None, "llava-1.5-7b,prompt=a.txt") == "llava-hf/llava-1.5-7b-hf,prompt=a.txt"
    assert model(tmp_path, "org/other") == "org/other"
    (tmp_path / "llava-1.5-7b").mkdir()
    assert model(tmp_path, "llava-1.5-7b,orders=2") == f"{tmp_path / 'llava-1.5-7b'},orders=2"


def test_dry_run_draws_weights_and_data_and_says_so(tmp_path, monkeypatch):
    tower = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    text = {**tower, "vocab_size": 600, "max_position_embeddings": 77}
    tiny = {"text": text, "vision": {**tower, "image_size": 32, "patch_size": 8}, "projection": 24}
    monkeypatch.setattr(rehearsal, "FULL", {"clip-l14": tiny})
    command = ["--random-weights", "--items", "3", "--device", "cpu", "--samples", "5", "-o", str(tmp_path / "out")]
    half = tmp_path / "out" / "random" / "checkpoints" / "clip-l14.partial"
    half.mkdir(parents=True)  # as after a kill
    assert paper_run.main([*command, "--only", "coco-cf", "--only", "captioners"]) == 0
    assert not half.exists()
    for name in ("paper.md", "paper.tex"):
        assert paper_run.RANDOM in (tmp_path / "out" / name).read_text()
    assert "| easy/llava |" in (tmp_path / "out" / "paper.md").read_text()
    times = json.loads((tmp_path / "out" / "times.json").read_text())
    assert list(times) == ["drawing benchmarks", "drawing weights of clip-l14", "coco-cf", "captioners"]
    # A step that a kill interrupted runs again; the times of finished steps are not changed.
    (tmp_path / "out" / "captioners" / "coco-cf.json").unlink()
    times["captioners"]["seconds"] = None
    (tmp_path / "out" / "times.json").write_text(json.dumps(times))
    assert paper_run.main([*command, "--only", "coco-cf", "--only", "captioners"]) == 0
    again = json.loads((tmp_path / "out" / "times.json").read_text())
    assert again["captioners"]["seconds"] is not None
    assert again["captioners"]["runs"] == 2
    assert {name: again[name] for name in times if name != "captioners"} == {
        name: times[name] for name in times if name != "captioners"
    }


def test_dry_run_without_open_clip_reports_it_and_continues(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "open_clip", None)
    command = ["--random-weights", "--items", "3", "--device", "cpu", "--samples", "5", "-o", str(tmp_path / "out")]
    command += ["-e", "toy", "--also", "remoteclip-l14", "--only", "rsicd-remoteclip-l14", "--only", "coco-cf"]
    assert paper_run.main(command) == paper_run.SOME_FAILED
    lines = capsys.readouterr().err.splitlines()
    needed = f"open_clip is needed here; install it with: {install_line('msdscore[openclip]')}"
    assert f"remoteclip-l14: {needed}" in lines
    assert f"rsicd-remoteclip-l14: not run: {needed}" in lines
    assert f"\n- rsicd-remoteclip-l14: {needed}\n" in (tmp_path / "out" / "paper.md").read_text()


def test_rehearsal_writes_all_vision_language_models(tmp_path):
    pytest.importorskip("transformers")
    tower = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    text = {**tower, "num_key_value_heads": 2, "vocab_size": 500, "max_position_embeddings": 512}
    onevision = {"text": text, "vision": {**tower, "num_attention_heads": 16, "image_size": 30, "patch_size": 8}}
    vision = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 4, "out_hidden_size": 32}
    vision |= {"patch_size": 4, "spatial_merge_size": 2, "window_size": 16, "fullatt_block_indexes": [1]}
    qwen = {"text": {**text, "mrope_section": [1, 1, 2]}, "vision": vision}
    shapes = {"llava-onevision-7b": onevision, "llava-critic-7b": onevision, "qwen2.5-vl-7b": qwen}
    assert set(paper_run.VLMS) <= set(rehearsal.FULL)
    for name, shape in shapes.items():
        folder = rehearsal.write_checkpoint(tmp_path / name, name, shape)
        scorer = Scorer(load_encoder(str(folder), device="cpu"), "paper-long")
        score = scorer.score(Image.new("RGB", (48, 40), "red"), "a red square before a white wall")
        assert math.isfinite(score.msd), name


def test_rehearsal_writes_all_benchmarks_in_released_formats(tmp_path):
    write_benchmarks(tmp_path, images=6, size=(48, 40))
    counts = {"sugarcrepe": 42, "flickr8k-expert": 18, "flickr8k-cf": 18, "composite": 18, "pascal50s": 6}
    counts |= {"caparena": 6, "docent": 6, "coco-cf": 12, "rsicd": 6, "rocov2": 6}
    for name, count in counts.items():
        items = load(name, tmp_path / name).items
        assert len(items) == count, name
        assert find_rows(tmp_path / name, name) is None, name  # read from the released files
        assert {_size(item.image) for item in items} == {(48, 40)}, name
    assert {item.subset for item in load("coco-cf", tmp_path / "coco-cf", by="captioner").items} == {
        "easy/llava", "easy/qwen-vl", "hard/llava", "hard/qwen-vl",
    }  # fmt: skip
    (battle, *_) = load("caparena", tmp_path / "caparena").items
    assert battle.references
    assert len(battle.caption_a.split()) > 80
    (marked, *_) = read_docent_spans(tmp_path / "docent")
    ((start, end),) = marked.spans
    assert marked.caption[start:end] == "a small dog sleeps next to it."


def _size(image):
    content = image_source(image)
    with Image.open(BytesIO(content) if isinstance(content, bytes) else content) as opened:
        return opened.size
