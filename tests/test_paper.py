"""The program of the paper: every step on tiny checkpoints, its page, and the verdicts on published values."""

import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from align_data import make_rows, recipe, source
from msdscore.encoders.registry import find_row, list_encoders
from msdscore_lab.align.export import export
from msdscore_lab.align.run.parts import TrainOptions
from msdscore_lab.align.run.train import train
from msdscore_lab.benchmarks.protocols.counting import Figure
from msdscore_lab.benchmarks.results.result import read_result, to_json
from msdscore_lab.paper import compare
from msdscore_lab.paper.__main__ import USAGE, main
from msdscore_lab.paper.plan import ALSO, CHECKS, DOMAINS, STEPS, VLMS, Settings, local_encoder, model_source, steps_of
from msdscore_lab.paper.run import SOME_FAILED
from msdscore_lab.paper.tables import caparena
from msdscore_lab.studies.registry import load_study
from paper_data import write_benchmarks
from tiny_clip import make_tiny_clip
from tiny_lm import WIDTH, make_tiny_llama
from tiny_models import make_blip, make_llava, make_onevision, make_qwen, make_siglip
from tiny_openclip import make_biomed


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_benchmarks(tmp_path_factory.mktemp("paper") / "data", images=4, size=(48, 40))


def run_paper(data, output, *more):
    return main(["--data", str(data), "-o", str(output), "--samples", "5", "--device", "cpu", *map(str, more)])


def only(*names):
    return [word for name in names for word in ("--only", name)]


def verdicts_of(output):
    return {value["name"]: value for value in json.loads((output / "paper.json").read_text())["values"]}


CHECKPOINTS = {
    **dict.fromkeys(("clip-b32", "clip-l14", "remoteclip-l14"), make_tiny_clip),
    "longclip-l": lambda folder: make_tiny_clip(folder, context=248),
    "siglip-so400m": make_siglip,
    "blip-itm-base": make_blip,
    "biomedclip": make_biomed,
    "llama-7b": make_tiny_llama,
    "llava-1.5-7b": make_llava,
    "llava-onevision-7b": make_onevision,
    "llava-critic-7b": make_onevision,
    "qwen2.5-vl-7b": make_qwen,
}


@pytest.mark.slow
def test_every_step_finishes_on_tiny_checkpoints(data, tmp_path, capfd):
    """All steps with every further encoder and an aligner that is trained first; SPICE needs a download."""
    for name, make in CHECKPOINTS.items():
        make(tmp_path / "local" / name)
    more = ["--local", tmp_path / "local", "--limit", 6, "--recipe-set", "train.batch=4"]
    more += [word for name in ALSO for word in ("--also", name)]
    assert run_paper(data, tmp_path / "out", *more, "--judge", "llava-1.5-7b") == SOME_FAILED
    lines = [line.partition(": not run: ") for line in capfd.readouterr().err.splitlines() if ": not run: " in line]
    reasons = {name: reason for name, _, reason in lines}
    # SPICE needs Java programs; a model without a chat template gives no verdict.
    assert list(reasons) == ["caparena-spice", "caparena-judge-llava-1.5-7b"], reasons
    page, tex = ((tmp_path / "out" / name).read_text() for name in ("paper.md", "paper.tex"))
    tables = [line for line in page.splitlines() if re.fullmatch(r"\*\*.*\*\*", line)]
    ours = [line for line in tables if "What the paper" not in line and "Where the paper" not in line]
    marked = [line for line in ours if "a trial on at most 6 items, no result" in line]
    assert len(marked) == len(ours) - 1  # all but the list of published values
    assert tex.count("a trial on at most 6 items") == tex.count("\\begin{tabular}") > 20
    assert "| BLEU-4 | Yes |" in page
    assert {value["outcome"] for value in verdicts_of(tmp_path / "out").values()} == {"not judged", "not run"}
    assert (tmp_path / "out" / "aligned" / "captioners" / "coco-cf.png").is_file()
    with (
        Image.open(tmp_path / "out" / "aligned" / "maps.png") as sheet,
        Image.open(tmp_path / "out" / "aligned" / "maps-1.png") as panel,
    ):
        assert sheet.height > 2 * panel.height
    aligned = json.loads((tmp_path / "out" / "aligned" / "kappa.json").read_text())
    assert "enc:with-reconstruction@" in aligned["tables"][0]["rows"][0]["signature"]


def test_plan_lists_names_hours_needs_and_takes_numbers(data, tmp_path, capsys):
    assert run_paper(data, tmp_path, "--list", "--also", "biomedclip") == 0
    lines = capsys.readouterr().out.splitlines()
    steps = steps_of(Settings(data=data, output=tmp_path, also=("biomedclip",)))
    assert [line.split()[2] for line in lines[1:-1]] == [step.name for step in steps]
    assert lines[1].split() == ["1", "~3.5", "reconstruction", "open", "chat.json,", "images"]
    (line,) = (line for line in lines if "rocov2-biomedclip" in line)
    assert line.endswith("open      rocov2, weights of biomedclip")
    number = next(at for at, step in enumerate(steps, start=1) if step.name == "pascal50s")
    assert run_paper(data, tmp_path, "-e", "toy", "--aligner", "none", "--only", number) == 0
    assert (tmp_path / "bench" / "pascal50s.json").is_file()
    assert run_paper(data, tmp_path, "-e", "toy", "--aligner", "none", "--list") == 0
    assert re.search(r"0\.\d\d  pascal50s +finished", capsys.readouterr().out)
    assert run_paper(data, tmp_path, "-e", "toy", "--aligner", "none", "--only", "99") == USAGE
    assert "or a number from 1 to" in capsys.readouterr().err


def test_invalid_calls_are_one_line_and_code_2(tmp_path, capsys):
    page = tmp_path / "page.md"
    for words, message in (
        ([], "error: --data: expected a folder of benchmarks, but None does not exist\n"),
        (["fill", str(page), "--results", str(tmp_path)], "No such file or directory"),
    ):
        assert main(words) == USAGE
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    page.write_text("<!-- study choices: begin --><!-- study choices: end -->")
    assert main(["fill", str(page), "--results", str(tmp_path)]) == USAGE
    assert "expected result files such as" in capsys.readouterr().err
    assert main(["--data", str(tmp_path), "--unknown"]) == USAGE
    assert "No such option: --unknown" in capsys.readouterr().err
    assert main(["--help"]) == 0
    assert "--recipe-set" in capsys.readouterr().out


def test_every_table_of_the_paper_has_a_step():
    names = [step.name for step in STEPS]
    assert len(set(names)) == len(names)
    wanted = "caparena docent flickr8k-expert flickr8k-cf composite pascal50s backbones coco-cf coco-cf-captioners"
    wanted += " mixture kappa stability entropy direction margin faithfulness timing reconstruction ranking tune words"
    wanted += " sugarcrepe maps maps-reconstruction rsicd-remoteclip-l14 rocov2-biomedclip caparena-references"
    assert set(wanted.split()) <= set(names)
    for step in STEPS:
        if step.command[0] == "study":
            load_study(step.command[1])


def test_steps_with_the_aligner_wait_for_its_training(data, tmp_path, capsys):
    assert run_paper(data, tmp_path, "-e", "toy", *only("entropy")) == SOME_FAILED
    assert "entropy: not run: the aligner is not trained yet" in capsys.readouterr().err
    assert "\n- entropy: the aligner is not trained yet" in (tmp_path / "paper.md").read_text()
    plain = replace(Settings(data=data, output=tmp_path), aligner=Path("none"))
    assert plain.main is None
    assert "sugarcrepe-plain" not in [step.name for step in steps_of(plain)]


def test_every_row_of_the_aligner_uses_it(data, tmp_path):
    """All others are named: plain or further encoders, metrics without one, and the training itself."""
    (tmp_path / "aligner").mkdir()
    everything = {"also": ALSO, "judge": VLMS, "fleur": "org/llava", "aligner": tmp_path / "aligner"}
    settings = Settings(data=data, output=tmp_path, **everything)
    used, others = set(), set()
    for step in steps_of(settings):
        words = [word for command in step.commands(settings) for word in command]
        pairs = list(pairwise(words))
        (used if ("--encoder", str(tmp_path / "aligner")) in pairs else others).add(step.name)
    further = {f"caparena-{name}" for name in (*VLMS, "longclip-l")} | {f"caparena-judge-{name}" for name in VLMS}
    checks = {f"{benchmark}-{name}" for name, row in CHECKS.items() for benchmark in row}
    domains = {f"{benchmark}-{name}" for name, benchmark in DOMAINS.items()}
    plain = {"reconstruction", "sugarcrepe-plain", "maps-reconstruction"}
    no_encoder = {"caparena-references", "caparena-spice", "caparena-fleur", "docent-fleur"}
    assert others == further | checks | domains | plain | no_encoder
    assert used > {"sugarcrepe", "backbones", "mixture", "kappa", "stability", "entropy", "alpha", "tune", "timing"}


def test_run_resumes_and_rejects_other_options(data, tmp_path, capsys):
    command = (data, tmp_path, "-e", "toy", "--aligner", "none", *only("kappa", "ranking"), "--limit", "6")
    (data / "captioners.jsonl").rename(data / "hidden.jsonl")
    assert run_paper(*command) == SOME_FAILED
    (data / "hidden.jsonl").rename(data / "captioners.jsonl")
    assert "ranking: not run: " in capsys.readouterr().err
    text = (tmp_path / "paper.md").read_text()
    assert "`msdscore study sweep kappa --root" in text
    assert "| kappa=20 (quoted) | 74.6 | 76.88 |" in text
    assert "init:sample,0" in text
    assert "captioners.jsonl does not exist" in text
    made = (tmp_path / "kappa.json").stat().st_mtime_ns
    assert run_paper(*command) == 0
    assert (tmp_path / "kappa.json").stat().st_mtime_ns == made
    assert "captioners.jsonl does not exist" not in (tmp_path / "paper.md").read_text()
    assert run_paper(*command[:-1], "7") == USAGE
    assert "contains results with limit 6, now 7; choose another -o" in capsys.readouterr().err
    assert run_paper(tmp_path / "nowhere", tmp_path) == USAGE


def test_tables_have_the_rows_and_decimals_of_the_paper(data, tmp_path):
    names = ("caparena", "coco-cf", "coco-cf-captioners", "flickr8k-expert", "sugarcrepe")
    assert run_paper(data, tmp_path, "-e", "toy", "--aligner", "none", *only(*names)) == 0
    text, tex = ((tmp_path / name).read_text() for name in ("paper.md", "paper.tex"))
    assert "**Without the local aligner**: all rows use plain toy" in text
    assert "| FLEUR (quoted) | No | 45.8 | 51.3 | 46.2 | 44.4 | 41.4 | 0.393 | 0.297 |" in text
    assert "| VDC-Score (quoted) | Yes | 55.7 |" in text
    assert "| VLM-as-a-Judge (Qwen2.5-VL-7B) (quoted) | No | 52.2 |" in text
    assert "| MSD, table of concentrations (quoted) | 74.58 | 76.88 | 79.39 | 80.33 | 94.07 | 63.44 |" in text
    assert re.search(r"^\| cosine of the model's vectors \| (\**\d+\.\d\d\** \| ?){7}", text, re.M)
    assert "| CLIPScore (toy) |" in text
    assert "| Soft-MSD (toy) |" in text
    assert "| Easy-CF (quoted) | 61.20 | 28.00 | 61.02 | 59.19 | 63.93 | 63.89 |" in text
    assert "| captions | CLIPScore | cosine | KL(img‖txt) | KL(txt‖img) | Bi-KL | MSD | Soft-MSD |" in text
    assert "| easy/llava |" in text
    assert "| UMIC (quoted) | – | 46.8 | – |" in text
    assert "Soft-MSD (quoted) & No & 57.6 & 64.4 &" in tex
    assert tex.count("\\begin{tabular}") == 5
    assert "no result" not in text  # no banner without a limit
    made = read_result(tmp_path / "bench" / "sugarcrepe.json").made
    assert made.command.startswith("msdscore bench sugarcrepe --root")
    assert f"`{made.command}`" in text
    assert "Bi-KL 79.9 below 13 tokens" in text
    assert "| captions of more than 77 tokens | read in windows for MSD, cut for CLIPScore |" in text


@pytest.mark.parametrize("texts", ["clip", "llama"])
def test_an_aligner_is_used_for_all_rows_but_clipscore(data, tmp_path, texts):
    clip = str(make_tiny_clip(tmp_path / "local" / "clip-l14"))
    tower = {"source": clip}
    heads = {"dim": 16}
    if texts == "llama":  # as the recipe paper-llama
        tower = {"kind": "embeddings", "source": str(make_tiny_llama(tmp_path / "llama"))}
        heads = {"dim": WIDTH, "image": {"kind": "linear"}, "text": {"kind": "none"}}
    small = recipe(image={"source": clip}, text=tower, heads=heads, train={"steps": 1})
    train(small, source(make_rows(tmp_path / "rows")), tmp_path / "run", options=TrainOptions(device="cpu"))
    export(tmp_path / "run", tmp_path / "aligner")
    command = ["--local", tmp_path / "local", *only("sugarcrepe")]
    assert run_paper(data, tmp_path / "plain", *command, "--aligner", "none") == 0
    more = [*command, *only("sugarcrepe-plain", "iterations"), "--limit", "6", "--aligner", tmp_path / "aligner"]
    assert run_paper(data, tmp_path / "out", *more[2:4], *more[:2], "--aligner", tmp_path / "aligner") == 0
    aligned = read_result(tmp_path / "out" / "aligned" / "bench" / "sugarcrepe.json")
    plain = read_result(tmp_path / "plain" / "bench" / "sugarcrepe.json")
    for label in ("clipscore", "clipscore,prefix="):
        assert aligned.metric(label).figures == plain.metric(label).figures
        assert aligned.metric(label).encoder.startswith("clip-l14@")
    assert aligned.metric("soft-msd").encoder.startswith("aligner@")
    text = (tmp_path / "out" / "paper.md").read_text()
    assert "Rows use the local aligner `aligner`" in text
    assert "`clipscore|w:2.5|prefix:A photo depicts|enc:clip-l14@" in text  # next to the signature of Soft-MSD
    assert run_paper(data, tmp_path / "trial", *more) == 0
    study = json.loads((tmp_path / "trial" / "aligned" / "iterations.json").read_text())
    assert "enc:aligner@" in study["tables"][0]["rows"][0]["signature"]
    assert read_result(tmp_path / "trial" / "bench-plain" / "sugarcrepe.json").encoder.startswith("clip-l14@")


def test_judge_and_fleur_are_rows_of_the_table_of_caparena(data, tmp_path):
    assert run_paper(data, tmp_path, "-e", "toy", "--aligner", "none", *only("caparena")) == 0
    content = json.loads((tmp_path / "bench" / "caparena-paper.json").read_text())
    names = {"judge-llava-1.5-7b": "judge:folder,backend=local", "fleur": "fleur:folder", "references": "meteor"}
    for folder, label in names.items():
        (tmp_path / f"bench-{folder}").mkdir()
        changed = {**content, "metrics": [{**content["metrics"][0], "label": label, "signature": "x|v:0"}]}
        (tmp_path / f"bench-{folder}" / "caparena-paper.json").write_text(json.dumps(changed))
    (grid,) = caparena(tmp_path)
    rows = [(row[0], row[1]) for row in grid.rows]
    for name, needs in (("VLM-as-a-Judge (LLaVA-1.5-7B)", "No"), ("FLEUR", "No")):
        assert rows[rows.index((f"{name} (quoted)", needs)) + 1] == (name, needs)
    assert rows[rows.index(("METEOR (quoted)", "Yes")) + 1] == ("METEOR, not with the paper's tokens", "Yes")


def test_models_of_known_encoders_are_found_on_the_hub(tmp_path):
    assert model_source(None, "llava-1.5-7b,prompt=a.txt") == "llava-hf/llava-1.5-7b-hf,prompt=a.txt"
    assert model_source(tmp_path, "org/other") == "org/other"
    (tmp_path / "llava-1.5-7b").mkdir()
    assert model_source(tmp_path, "llava-1.5-7b,orders=2") == f"{tmp_path / 'llava-1.5-7b'},orders=2"


@pytest.mark.parametrize(
    ("name", "file", "source", "options"),
    [
        ("remoteclip-l14", find_row("remoteclip-l14").options["file"], "open_clip:ViT-L-14", {}),
        ("longclip-l", "longclip-L.pt", "open_clip:ViT-L-14-quickgelu", {"context": 248}),
    ],
)
def test_single_weight_files_are_loaded_through_open_clip(tmp_path, name, file, source, options):
    assert local_encoder(tmp_path, name) == (name, {})
    (tmp_path / name).mkdir()
    assert local_encoder(tmp_path, name) == (str(tmp_path / name), {})
    (tmp_path / name / file).touch()
    assert local_encoder(tmp_path, name) == (f"{source}/{tmp_path / name / file}", options)


def test_published_values_belong_to_a_step_and_have_a_source(tmp_path):
    everything = Settings(
        data=tmp_path, output=tmp_path, aligner=tmp_path, also=ALSO, judge=VLMS, fleur="org/llava",
    )  # fmt: skip
    steps = {step.name for step in steps_of(everything)}
    assert {one.step for one in compare.PUBLISHED} == {one.step for one in compare.PUBLISHED} & steps
    places = [(one.step, one.metric, one.table, str(one.row), one.figure) for one in compare.PUBLISHED]
    assert len(set(places)) == len(places)
    assert all(one.source and one.reason and round(one.value, one.digits) == one.value for one in compare.PUBLISHED)
    assert {*ALSO, *CHECKS, *DOMAINS} <= {row.name for row in list_encoders()}
    assert {one.value for one in compare.PUBLISHED if one.open == compare.TWO_NUMBERS} == {63.44, 66.36}
    contradicted = {one.step for one in compare.PUBLISHED if one.open}
    assert contradicted >= {"mixture", "margin", "direction", "rsicd-remoteclip-l14", "caparena-llava-1.5-7b"}


def judged(tmp_path, data, *, value, counted=7511, **changes):
    """Return the outcome of msd on add_att of SugarCrepe, published as 76.88, for a figure of ours."""
    settings = Settings(data=data, output=tmp_path, encoder="toy", aligner=Path("none"), **changes)
    path = tmp_path / "bench" / "sugarcrepe.json"
    result = read_result(path)
    figure = Figure("accuracy/add_att", value, None, 692)
    metrics = tuple(replace(metric, figures=(figure,)) for metric in result.metrics)
    path.write_text(to_json(replace(result, counted=counted, metrics=metrics)))
    answers = {one.name: one for one in compare.verdicts(settings)}
    return answers["sugarcrepe, msd, accuracy/add_att"]


def test_values_on_complete_data_are_judged_by_their_tolerance(data, tmp_path):
    assert run_paper(data, tmp_path, "-e", "toy", "--aligner", "none", *only("sugarcrepe")) == 0
    first = judged(tmp_path, data, value=0.7688, counted=28)
    assert (first.outcome, first.reason) == ("not judged", "28 of 7,511 items were scored")
    near = judged(tmp_path, data, value=0.75)
    assert near.tolerance == pytest.approx(0.005 + 196 * (0.75 * 0.25 / 692) ** 0.5, abs=1e-4)
    assert near.outcome == "reproduced"
    assert judged(tmp_path, data, value=0.70).outcome == "not reproduced"
    trial = judged(tmp_path, data, value=0.7688, limit=9)
    assert (trial.outcome, trial.reason) == ("not judged", "at most 9 items were scored")
    settings = Settings(data=data, output=tmp_path, encoder="toy", aligner=Path("none"))
    outcomes = compare.summary(compare.verdicts(settings))
    assert outcomes["reproduced"] == outcomes["not reproduced"] == 0 or outcomes["not run"] > 100
    contradicted = [one for one in compare.verdicts(settings) if one.reason == compare.TWO_NUMBERS]
    assert not contradicted or all(one.outcome == "not judged" for one in contradicted)


def test_rows_of_the_aligner_are_not_judged_without_it(data, tmp_path):
    assert run_paper(data, tmp_path, "-e", "toy", "--aligner", "none", *only("flickr8k-cf")) == 0
    path = tmp_path / "bench" / "flickr8k-cf.json"
    path.write_text(to_json(replace(read_result(path), counted=47830)))
    settings = Settings(data=data, output=tmp_path, encoder="toy", aligner=Path("none"))
    found = {one.reason for one in compare.verdicts(settings) if one.published.step == "flickr8k-cf"}
    assert found == {"the paper uses its aligner, this run none"}


def test_half_precision_scores_widen_the_tolerance_of_repeated_values(data, tmp_path):
    make_tiny_clip(tmp_path / "local" / "clip-b32")
    command = ["--local", tmp_path / "local", "--also", "clip-b32", *only("sugarcrepe-clip-b32")]
    assert run_paper(data, tmp_path / "out", "-e", "toy", "--aligner", "none", *command) == 0
    path = tmp_path / "out" / "checks-clip-b32" / "sugarcrepe.json"
    result, table = read_result(path), pq.read_table(path.with_suffix(".parquet"))
    assert "crop:torchvision" in result.metrics[0].signature
    label, size = result.metrics[0].label, len(table)
    figures = tuple(replace(result.metrics[0], figures=(Figure("accuracy/add_att", 1.0, None, 4),)) for _ in range(1))
    path.write_text(to_json(replace(result, metrics=figures)))
    settings = Settings(data=data, output=tmp_path / "out", encoder="toy", also=("clip-b32",), aligner=Path("none"))

    def tolerance(gap):
        scores = pa.array([[0.25 + gap, 0.25]] * size, table.schema.field(label).type)
        pq.write_table(
            table.set_column(table.column_names.index(label), table.schema.field(label), scores),
            path.with_suffix(".parquet"),
        )
        answers = {one.name: one for one in compare.verdicts(settings)}
        return answers[f"sugarcrepe-clip-b32, {label}, accuracy/add_att"].tolerance

    assert tolerance(0.01) == pytest.approx(0.005 + 25, abs=0.01)  # one of four items
    assert tolerance(0.00001) == pytest.approx(0.005 + 225, abs=0.01)  # in half precision all four are ties
