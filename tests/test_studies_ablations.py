"""Ablations on small sets whose answer is known: variants, buckets and margins by hand, and the commands end to end."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from bench_sets import make_expert, make_sugarcrepe
from msdscore.benchmarks.run.plan import BenchmarkPlan
from msdscore.cli.app import app
from msdscore.encoders.registry import load_encoder
from msdscore.errors import ConfigError, InputError
from msdscore.scoring.config import MSDConfig
from msdscore.stats.resample import Resampling
from msdscore.studies.ablations import direction, margin
from msdscore.studies.ablations.decided import DecidedPairs, decided_pairs, joined, quantile_bins
from msdscore.studies.ablations.settings import ABLATIONS, MIXTURES, named_variants, value_variants
from msdscore.studies.ablations.sweep import charts, run_sweep, section, slug
from msdscore.studies.paper.page import PARTS, fill, main, part


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return make_sugarcrepe(tmp_path_factory.mktemp("sugarcrepe"))


def invoke(*words):
    answer = CliRunner().invoke(app, ["study", *map(str, words)])
    assert answer.exit_code == 0, f"{answer.output}{answer.exception}"
    return answer.stdout


def plan(root, name="sugarcrepe", **more):
    return BenchmarkPlan(name=name, root=root, metrics=("cosine", "msd"), samples=50, **more)


def test_variants_are_the_settings_and_the_own_value_is_among_them():
    variants, own = value_variants(ABLATIONS["kappa"], [5, 10], load_encoder("toy"), MSDConfig())
    assert [one.name for one in variants] == ["kappa=5", "kappa=10", "kappa=20"]
    assert own == "kappa=20"
    assert variants[0].pipeline().config.kappa == 5.0
    assert variants[0].place == 5.0
    pairs, _ = value_variants(ABLATIONS["components"], [(3, 2)], load_encoder("toy"), MSDConfig())
    assert [one.name for one in pairs] == ["components=3,2"]
    assert pairs[0].place is None
    with pytest.raises(ConfigError, match=r"components are two numbers \(image, text\), got 3"):
        value_variants(ABLATIONS["components"], [3], load_encoder("toy"), MSDConfig())
    with pytest.raises(ConfigError, match="kappa is a number, got 'many'"):
        value_variants(ABLATIONS["kappa"], ["many"], load_encoder("toy"), MSDConfig())
    assert slug("Gaussian, spherical") == "gaussian-spherical"


def test_a_sweep_holds_every_variant_against_the_baseline_and_is_not_run_twice(root, tmp_path, monkeypatch):
    encoder = load_encoder("toy")
    variants, own = value_variants(ABLATIONS["alpha"], [0.0, 0.1], encoder, MSDConfig())
    seen = []
    found = run_sweep(
        plan(root), variants, tmp_path, axis="alpha", baseline=own, progress=lambda d, t: seen.append(d / t)
    )
    assert seen[-1] == 1.0
    first, second = found.rows
    assert "msd" in first.against
    assert not second.against
    # Without its divergence MSD is the cosine.
    assert first.result.metric("msd").figures == first.result.metric("cosine").figures
    assert first.against["msd"].first == first.result.metric("msd").figures[0].value
    monkeypatch.setattr(encoder, "encode_texts", None)
    assert run_sweep(plan(root), variants, tmp_path, axis="alpha", baseline=own).to_dict() == found.to_dict()
    text = section([found], ["msd"])
    assert "| difference from alpha=0.1 |" in text
    assert "| accuracy/add_att |" in text
    assert json.dumps(found.to_dict())
    assert charts([found], ["cosine", "msd"])[0].lines[1].x == (0.0, 0.1)
    with pytest.raises(ConfigError, match="expected different variants with x among them"):
        run_sweep(plan(root), variants, tmp_path, axis="alpha", baseline="x")


def test_rated_benchmarks_can_be_swept(tmp_path):
    data = make_expert(tmp_path / "data")
    variants = named_variants({"a": {"alpha": 0.1}, "b": {"alpha": 0.3}}, load_encoder("toy"), MSDConfig())
    found = run_sweep(plan(data, "flickr8k-expert"), variants, tmp_path / "runs", axis="alpha")
    assert "tau_c" in section([found], ["msd"])
    row = found.rows[0]
    pairs = decided_pairs(row.result, row.folder, ("cosine", "msd"))
    assert len(pairs) == 24  # three captions of each picture with unequal ratings
    assert pairs.right("cosine").mean() == pytest.approx(2 / 3)  # it knows colours and not that a square is no dog


def by_hand():
    """Ten pairs: cosine is right where the margin is large, the divergence where it is small."""
    cosine = np.array([[0.5, 0.5 + gap] for gap in (0.01, 0.02, 0.03, 0.04, 0.05)] + [[0.9, 0.1 * k] for k in range(5)])
    local = np.array([[1.0, 0.0]] * 5 + [[0.0, 0.65]] * 5)
    scores = {"cosine": cosine, "coverage": local, "support": -local, "bi-kl": local, "msd": cosine + local,
              "soft-msd": cosine + local, "rank-agg": cosine}  # fmt: skip
    return DecidedPairs(scores, np.arange(10.0), np.array([f"p{k // 2}" for k in range(10)]))


def test_gains_lie_where_the_margin_is_small():
    bins = margin.margin_bins(by_hand(), temperature=0.2, count=2)
    assert [one.pairs for one in bins] == [5, 5]
    assert [one.accuracy["cosine"].value for one in bins] == [0.0, 1.0]
    assert [one.gain.value for one in bins] == pytest.approx([1.0, -0.4])
    assert bins[0].uncertainty > bins[1].uncertainty
    assert bins[0].margin == pytest.approx(0.03)
    gap, temperature = 0.05, 0.2
    expected = 2 * (1 - 1 / (1 + np.exp(-gap / temperature)))
    assert margin.uncertainties(np.array([[0.5, 0.55]]), temperature) == pytest.approx([expected])
    found = margin.gains(by_hand(), how=Resampling(samples=100))
    assert (found[0].first, found[0].second) == ("soft-msd", "cosine")
    assert found[0].difference.value == pytest.approx(0.3)
    assert "| soft-msd − cosine | +30.0 [" in margin.section("Set", bins, found)
    assert len(margin.charts("Set", bins)) == 2


def test_buckets_of_length_hold_all_pairs():
    both = joined([by_hand(), by_hand()])
    found = direction.length_buckets(both, count=5)
    assert sum(one.pairs for one in found) == 20
    assert found[0].accuracy["coverage"].value == 1.0
    assert found[0].accuracy["support"].value == 0.0
    assert [one.mean for one in found] == sorted(one.mean for one in found)
    assert "**100.0" in direction.section(found, ["a"])
    assert [len(one) for one in quantile_bins(np.zeros(4), 3)] == [4]


def test_the_commands_write_table_figure_and_numbers_and_go_on(root, tmp_path):
    common = ("--root", root, "-e", "toy", "--samples", 20)
    text = invoke("kappa", *common, "--values", "10 20", "-o", tmp_path / "kappa.json")
    assert "| figure | kappa=10 | kappa=20 |" in text
    found = json.loads((tmp_path / "kappa.json").read_text())
    assert found["study"] == "kappa"
    assert [one["value"] for one in found["benchmarks"][0]["variants"]] == [10.0, 20.0]
    assert "| add_att | " in part("kappa", found)
    assert "kappa:10|" in part("kappa", found)
    assert "kappa:10|" in found["benchmarks"][0]["variants"][0]["metrics"][1]["signature"]
    assert (tmp_path / "kappa.png").is_file()
    runs = sorted(tmp_path.glob("kappa.runs/*/*.json"))
    before = [path.with_suffix(".parquet").stat().st_mtime_ns for path in runs]
    for suffix in (".json", ".md", ".png"):
        (tmp_path / "kappa.json").with_suffix(suffix).unlink()
    invoke("kappa", *common, "--values", "10 20", "-o", tmp_path / "kappa.json")
    assert [path.with_suffix(".parquet").stat().st_mtime_ns for path in runs] == before
    assert json.loads((tmp_path / "kappa.json").read_text()) == found


def test_every_distribution_is_tried_at_one_alpha_and_at_equal_weight(root, tmp_path):
    common = ("--root", root, "-e", "toy", "--samples", 10, "--no-control", "--limit", 4, "--json")
    text = invoke("mixtures", *common, "-o", tmp_path / "m.json")
    same, equal = (json.loads(text)[name]["benchmarks"][0]["variants"] for name in ("same_alpha", "equal_weight"))
    assert [one["name"] for one in same] == list(MIXTURES)
    assert "paper, vMF, fixed kappa" in part("mixtures", json.loads(text))
    signatures = [one["metrics"][0]["signature"].split("|") for one in equal]
    assert [part for parts in signatures for part in parts if part.startswith("mix:")] == [
        f"mix:{kind}" for kind in MIXTURES.values() if kind != "vmf"
    ]
    alphas = [float(part[2:]) for parts in signatures for part in parts if part.startswith("a:")]
    runs = [tmp_path / "m.runs" / "same-alpha" / slug(name) / "sugarcrepe.parquet" for name in MIXTURES]
    spreads = [np.std(np.array(pq.read_table(run)["bi-kl"].to_pylist())) for run in runs]
    assert np.multiply(alphas, spreads) == pytest.approx(0.1 * spreads[0])


def test_direction_and_margin(root):
    common = ("--root", root, "-e", "toy", "-b", "sugarcrepe", "--samples", 20, "--json")
    part_of = json.loads(invoke("margin", *common, "--bins", 1, "--option", "subsets=add_att"))["benchmarks"][0]
    assert (part_of["counted"], part_of["options"]) == (8, {"subsets": "add_att"})
    found = json.loads(invoke("direction", *common, "--buckets", 2))
    assert [one["name"] for one in found["benchmarks"][0]["variants"]][1:] == [
        "coverage only",
        "beta 0.5",
        "support only",
    ]
    assert sum(one["pairs"] for one in found["by_length"]) == 16
    assert "| support only |" in part("direction", found)
    found = json.loads(invoke("margin", *common, "--bins", 2))
    assert "The paper's, Easy-CF" in part("margin", found)
    found["benchmarks"][0]["bins"][0]["gain"] |= {"low": None, "high": None}  # of too few pictures
    assert "| +" in part("margin", found) or "| -" in part("margin", found)
    found = found["benchmarks"][0]
    assert [one["first"] for one in found["gains"]] == ["soft-msd", "msd", "soft-msd", "soft-msd"]
    assert {"cosine", "rank-agg"} <= set(found["bins"][0]["accuracy"])
    assert Path(found["variants"][0]["name"]).name == "settings"


def test_the_page_of_the_paper_is_filled_from_result_files(tmp_path):
    marks = "".join(f"# {name}\n<!-- study {name}: begin -->\nold\n<!-- study {name}: end -->\n" for name in PARTS)
    page, results = tmp_path / "paper.md", tmp_path / "results"
    page.write_text(marks)
    results.mkdir()
    interval = {"value": 0.5, "low": 0.4, "high": None, "n": 3}
    row = {"name": "AUC", "n": 7, "true": interval, "wrong": interval, "chance": 0.5}
    (results / "words.json").write_text(json.dumps({"rows": [row], "captions": 9, "signature": "msd|kappa:20"}))
    main(["--results", str(results), "-o", str(page)])
    text = page.read_text()
    assert "| AUC | 7 | 50.0 | 50.0 | 50.0 |" in text
    assert "`msd|kappa:20`" in text
    assert text.count("old") == len(PARTS) - 1
    with pytest.raises(InputError, match="the page has no place for study words"):
        fill("", {"words": ""})
    with pytest.raises(InputError, match="expected result files of studies"):
        main(["--results", str(tmp_path), "-o", str(page)])


def test_the_documented_page_has_a_place_for_every_study():
    page = Path(__file__).parents[1] / "docs" / "paper.md"
    text = page.read_text(encoding="utf-8")
    assert fill(text, dict.fromkeys(PARTS, "new")).count("new\n") >= len(PARTS)
