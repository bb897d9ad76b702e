"""Reproduction of published values, end to end on tiny checkpoints and small benchmarks."""

import json
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from msdscore.encoders.registry import find_row, list_encoders
from msdscore_lab.benchmarks.protocols.counting import Figure
from msdscore_lab.benchmarks.results.result import read_result
from msdscore_lab.paper import run as paper_run
from msdscore_lab.paper.rehearsal import write_checkpoint
from msdscore_lab.paper.rehearsal_data import write_benchmarks
from msdscore_lab.reproduce import campaign, studies
from msdscore_lab.reproduce.__main__ import main
from msdscore_lab.reproduce.published import COSINE, PUBLISHED

TOWER = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
VISION = {**TOWER, "image_size": 32, "patch_size": 8}
CLIP_TEXT = {**TOWER, "vocab_size": 600, "max_position_embeddings": 77}
TINY = {
    "clip-b32": {"text": CLIP_TEXT, "vision": VISION, "projection": 24},
    "clip-l14": {"text": CLIP_TEXT, "vision": VISION, "projection": 24},
    "longclip-l": {"text": {**CLIP_TEXT, "max_position_embeddings": 248}, "vision": VISION, "projection": 24},
    "siglip2-base": {"text": {**TOWER, "vocab_size": 400, "max_position_embeddings": 64}, "vision": VISION},
    "llava-1.5-7b": {
        "text": {**TOWER, "vocab_size": 400, "max_position_embeddings": 128},
        "vision": {**VISION, "projection_dim": 32},
    },
    # As a folder of transformers; the published file is one of open_clip.
    "remoteclip-l14": {"text": CLIP_TEXT, "vision": VISION, "projection": 24},
    "biomedclip": {
        "vision": {"timm_model_name": "test_vit", "image_size": 160}, "projection": 24,
        "text": {**TOWER, "vocab_size": 400, "max_position_embeddings": 128}, "context": 128,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def rehearsal(tmp_path_factory):
    """Write tiny checkpoints of all encoders, and all benchmarks."""
    folder = tmp_path_factory.mktemp("rehearsal")
    write_benchmarks(folder / "data", images=4, size=(48, 40))
    for name, shape in TINY.items():
        write_checkpoint(folder / "checkpoints" / name, name, shape)
    return folder


def _run(folder, output, *more):
    data, local = str(folder / "data"), str(folder / "checkpoints")
    return main(["run", "--data", data, "--local", local, "-o", str(output), "--device", "cpu", *more])


@pytest.mark.slow
def test_run_command_and_finished_runs_load_nothing(rehearsal, tmp_path, capsys, monkeypatch):
    assert _run(rehearsal, tmp_path, "--samples", "10", "--study", "none") == 0
    written = json.loads((tmp_path / "reproduce.json").read_text())
    cells = written["cells"]
    runs = {(e, b) for e in campaign.GENERAL for b in campaign.EVERY} | {("llava-1.5-7b", "caparena")}
    runs |= {("clip-l14", b) for b in ("flickr8k-cf", "composite", "docent", "coco-cf")}
    runs |= {("remoteclip-l14", "rsicd"), ("biomedclip", "rocov2")}
    assert {(cell["encoder"], cell["benchmark"]) for cell in cells} == runs
    assert all("init:sample" in cell["signature"] for cell in cells if cell["metric"] == "msd")  # form paper
    assert all(cell["signature"] and cell["command"] for cell in cells)
    assert written["summary"] == {"within": 0, "outside": 0, "not_judged": len(cells), "missing": 0}
    ranked = {cell["figure"] for cell in cells if cell["benchmark"] == "caparena" and cell["published"] is not None}
    assert {"model/spearman", "model/kendall"} < ranked
    (clipscore,) = (cell for cell in cells if cell["cell"] == "clip-b32, pascal50s, clipscore, accuracy/mean")
    assert clipscore["published"] == 80.7
    assert clipscore["difference"] == pytest.approx(clipscore["ours"] - 80.7, abs=0.005)
    assert clipscore["reason"] == "not judged: 4 of 4,000 items were scored"
    assert "crop:torchvision" in clipscore["signature"]
    assert "--encoder-option crop=torchvision" in clipscore["command"]
    page = (tmp_path / "reproduce.md").read_text()
    assert "| benchmark or study | reproduced | not reproduced | not judged | not run |" in page
    assert "| clip-b32 | clipscore | accuracy/HC |" in page
    assert page.count("$ msdscore bench ") == len(runs)
    # The same command again loads no encoder and writes the same pages.
    monkeypatch.setattr(campaign, "load_encoder", lambda *_, **__: pytest.fail("loaded an encoder"))
    assert _run(rehearsal, tmp_path, "--samples", "10", "--study", "none") == 0
    assert (tmp_path / "reproduce.md").read_text() == page
    assert "0 missing" in capsys.readouterr().out


@pytest.mark.slow
def test_studies_are_compared_and_missing_ones_have_a_reason(rehearsal, tmp_path):
    more = ("-e", "clip-l14", "-b", "coco-cf", "--study", "kappa", "--study", "timing", "--samples", "5")
    folder = tmp_path / "without captions"
    (folder / "data").mkdir(parents=True)
    for name in ("sugarcrepe", "coco-cf"):
        (folder / "data" / name).symlink_to(rehearsal / "data" / name)
    (folder / "checkpoints").symlink_to(rehearsal / "checkpoints")
    assert _run(folder, tmp_path, *more) == 3  # no captions for timing
    cells = {cell["cell"]: cell for cell in json.loads((tmp_path / "reproduce.json").read_text())["cells"]}
    kappa = cells["clip-l14, study kappa, sugarcrepe, kappa=20, msd, headline"]
    assert kappa["published"] == 74.58
    assert (kappa["within"], kappa["reason"]) == (None, "not judged: 28 of 7,511 items were scored")
    assert "study kappa --root" in kappa["command"]
    timing = cells["clip-l14, study timing, buckets, overall, Soft-MSD"]
    assert timing["ours"] is None
    assert timing["reason"].startswith("not run: ")
    easy = cells["clip-l14, coco-cf, soft-msd, accuracy/easy"]
    assert (easy["published"], easy["within"]) == (63.89, None)
    assert easy["reason"] == "not judged: the items of the published figure are not known"
    assert "study kappa" in (tmp_path / "reproduce.md").read_text()


def test_study_values_belong_to_a_step_of_the_paper():
    steps = {step.name for step in paper_run.STEPS}
    assert set(studies.STUDIES) <= steps
    assert len({(one.step, one.table, one.name) for one in studies.FIGURES}) == len(studies.FIGURES)
    figure = studies.FIGURES[0]
    table = {
        "name": "same_alpha",
        "headline": "accuracy/mean",
        "benchmark": "sugarcrepe",
        "counted": 7511,
        "rows": [{**figure.row, "accuracy/mean": {"value": 0.7, "low": 0.68, "high": 0.72, "n": 7511}}],
    }
    cell = studies.study_cell(figure, {"tables": [table]}, "", "command", None)
    assert (cell.ours, cell.difference, cell.tolerance, cell.within) == (70.0, -4.99, 2.005, False)
    table["rows"][0]["accuracy/mean"] = {"value": 0.74, "low": None, "high": None, "n": 100}  # binomial
    near = studies.study_cell(figure, {"tables": [table]}, "", "command", None)
    assert near.tolerance == pytest.approx(0.005 + 196 * (0.74 * 0.26 / 100) ** 0.5, abs=1e-4)
    assert near.within
    assert studies.study_cell(figure, {"tables": [table]}, "", "command", 9).within is None
    assert studies.study_cell(figure, {"tables": [{**table, "counted": 70}]}, "", "command", None).within is None
    assert studies.study_cell(figure, {"tables": []}, "", "command", None).ours is None


def test_interrupted_campaign_resumes(rehearsal, tmp_path, capsys, monkeypatch):
    scored = []
    run_benchmark = campaign.run_benchmark

    def stopped_at_the_second(plan, *arguments, **options):
        scored.append(plan.name)
        if len(scored) == 2:
            raise KeyboardInterrupt
        return run_benchmark(plan, *arguments, **options)

    monkeypatch.setattr(campaign, "run_benchmark", stopped_at_the_second)
    assert _run(rehearsal, tmp_path, "-e", "clip-b32", "--samples", "5") == 130
    assert "the same command resumes from there" in capsys.readouterr().err
    first = tmp_path / "results" / "clip-b32" / "sugarcrepe.parquet"
    before = first.stat().st_mtime_ns
    assert {cell["benchmark"] for cell in json.loads((tmp_path / "reproduce.json").read_text())["cells"]} == {
        "sugarcrepe"
    }
    assert _run(rehearsal, tmp_path, "-e", "clip-b32", "--samples", "5") == 0
    assert first.stat().st_mtime_ns == before
    assert len({cell["benchmark"] for cell in json.loads((tmp_path / "reproduce.json").read_text())["cells"]}) == 3


def test_values_on_complete_benchmarks_are_judged_by_their_tolerance(rehearsal, tmp_path):
    assert _run(rehearsal, tmp_path, "-e", "clip-b32", "-b", "flickr8k-expert", "--samples", "5") == 0
    result = read_result(tmp_path / "results" / "clip-b32" / "flickr8k-expert.json")
    verdicts = []
    for value in (0.512, 0.5126, 0.5128, 0.5112):  # half a digit and one of 5,664 items are 0.07 points
        metrics = tuple(replace(metric, figures=(Figure("tau_c", value, None, 5664),)) for metric in result.metrics)
        cells = campaign.compared_cells("clip-b32", replace(result, counted=5664, metrics=metrics), "command", None)
        verdicts += [cell.within for cell in cells if cell.metric == "clipscore"]
    assert verdicts == [True, True, False, False]


def test_half_precision_scores_widen_the_tolerance(rehearsal, tmp_path):
    assert _run(rehearsal, tmp_path, "-e", "clip-b32", "-b", "sugarcrepe", "--samples", "5") == 0
    path = tmp_path / "results" / "clip-b32" / "sugarcrepe.json"
    result, table = read_result(path), pq.read_table(path.with_suffix(".parquet"))
    at = table.column_names.index(COSINE)
    size = len(table)

    def tolerances(gap):
        scores = pa.array([[0.25 + gap, 0.25]] * size, table.schema.field(COSINE).type)
        other = table.set_column(at, table.schema.field(COSINE), scores)
        metrics = tuple(replace(one, figures=(Figure("accuracy/add_att", 1.0, None, 4),)) for one in result.metrics)
        cells = campaign.compared_cells("clip-b32", replace(result, metrics=metrics), "command", other)
        return [cell.tolerance for cell in cells if (cell.metric, cell.figure) == (COSINE, "accuracy/add_att")]

    assert tolerances(0.01) == [pytest.approx(0.005 + 25, abs=0.01)]  # one of four items
    assert tolerances(0.00001) == [pytest.approx(0.005 + 225, abs=0.01)]  # in half precision all four are ties


def test_failed_runs_have_a_reason_and_the_rest_continues(rehearsal, tmp_path, capsys):
    only = tmp_path / "data"
    only.mkdir()
    (only / "pascal50s").symlink_to(rehearsal / "data" / "pascal50s")
    asked = ["run", "--data", str(only), "-o", str(tmp_path / "out"), "-e", "clip-b32", "--samples", "5"]
    folder = f"clip-b32={rehearsal / 'checkpoints' / 'clip-b32'}"
    assert main([*asked, "--checkpoint", folder, "--device", "cpu"]) == 3
    assert "clip-b32, sugarcrepe: not run: expected" in capsys.readouterr().err
    cells = json.loads((tmp_path / "out" / "reproduce.json").read_text())["cells"]
    assert {cell["benchmark"] for cell in cells if cell["ours"] is None} == {"sugarcrepe", "flickr8k-expert"}
    assert all(cell["reason"].startswith("not run: ") for cell in cells if cell["ours"] is None)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["-e", "clip-b23"], "expected a known encoder, got 'clip-b23'; known: clip-b32"),
        (["-b", "crepe"], "expected a known benchmark, got 'crepe'"),
        (["--study", "kapa"], "expected a known study, got 'kapa'; known: mixtures"),
        (["--checkpoint", "clip-b32"], "--checkpoint: expected NAME=FOLDER, got 'clip-b32'"),
        (["--checkpoint", "clip-b32=nowhere"], "checkpoint of clip-b32: expected a folder, but nowhere does not exist"),
        (["--local", "nowhere"], "--local: expected folders named clip-b32"),
        (["--data", "nowhere"], "--data: expected a folder of benchmarks, but nowhere does not exist"),
    ],
)
def test_invalid_usage_is_a_one_line_error(tmp_path, capsys, more, message):
    assert main(["run", "--data", str(tmp_path), "-o", str(tmp_path / "out"), *more]) == 2
    assert message in capsys.readouterr().err


def test_published_values_have_a_source_and_a_benchmark():
    names = {row.name for row in list_encoders()}
    assert set(campaign.ENCODERS) <= names
    assert len({(one.encoder, one.benchmark, one.metric, one.figure) for one in PUBLISHED}) == len(PUBLISHED)
    assert all(one.source and one.reason and one.digits in (1, 2) for one in PUBLISHED)
    assert all(round(one.value, one.digits) == one.value for one in PUBLISHED)
    assert {one.encoder for one in PUBLISHED} <= set(campaign.ENCODERS)


def test_remoteclip_file_is_loaded_through_open_clip(tmp_path):
    file = find_row("remoteclip-l14").options["file"]
    (tmp_path / file).touch()
    asked = campaign.Campaign(data=tmp_path, output=tmp_path, checkpoints={"remoteclip-l14": tmp_path})
    spec = campaign.encoder_spec(asked, "remoteclip-l14")
    assert (spec.encoder, spec.options) == (f"open_clip:ViT-L-14/{tmp_path}/{file}", ())


def test_longclip_file_is_loaded_through_open_clip(tmp_path):
    (tmp_path / "longclip-L.pt").touch()
    asked = campaign.Campaign(data=tmp_path, output=tmp_path, checkpoints={"longclip-l": tmp_path})
    spec = campaign.encoder_spec(asked, "longclip-l")
    assert spec.encoder == f"open_clip:ViT-L-14-quickgelu/{tmp_path}/longclip-L.pt"
    assert spec.options == (("context", 248),)
