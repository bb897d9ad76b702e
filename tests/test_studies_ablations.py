"""Ablations on small datasets: variants, buckets and margins by hand, and the commands end to end."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from bench_sets import COLOURS, encoded, make_expert, make_sugarcrepe, write_images
from command_line import invoke, output_of
from counting import CountingEncoder
from msdscore.encoders.registry import load_encoder
from msdscore.errors import ConfigError, InputError
from msdscore.forms.paper import Paper
from msdscore.intervals import Resampling
from msdscore_lab.benchmarks.run.plan import BenchmarkPlan
from msdscore_lab.studies.ablations.pairs import (
    DecidedPairs,
    concatenate,
    decided_pairs,
    gain_rows,
    length_table,
    margin_rows,
    quantile_bins,
    uncertainties,
)
from msdscore_lab.studies.ablations.sweep import MIXTURES, named_variants, run_sweep, slug, sweep_table, value_variants
from msdscore_lab.studies.ablations.tune import ScoreParts
from msdscore_lab.studies.context import Study
from msdscore_lab.studies.table import to_json, to_markdown


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return make_sugarcrepe(tmp_path_factory.mktemp("sugarcrepe"))


def table_of(answer, name):
    return next(table for table in answer["tables"] if table["name"] == name)


def plan(root, name="sugarcrepe", **more):
    return BenchmarkPlan(name=name, root=root, metrics=("cosine", "msd", "tokens"), samples=50, **more)


def test_variants_include_the_default():
    variants, own = value_variants("kappa", "5 10", load_encoder("toy"), Paper())
    assert [variant.name for variant in variants] == ["kappa=5", "kappa=10", "kappa=20"]
    assert own == "kappa=20"
    assert variants[0].pipeline().form.kappa == 5.0
    assert variants[0].value == 5.0
    pairs, _ = value_variants("components", "3,2", load_encoder("toy"), Paper())
    assert [variant.name for variant in pairs] == ["components=3,2"]
    assert pairs[0].value is None
    with pytest.raises(ConfigError, match="got '3'"):
        value_variants("components", "3", load_encoder("toy"), Paper())
    with pytest.raises(ConfigError, match="got 'many'"):
        value_variants("kappa", "many", load_encoder("toy"), Paper())
    assert slug("Gaussian, spherical") == "gaussian-spherical"


def test_sweep_compares_variants_with_the_baseline_and_is_cached(root, tmp_path):
    encoder, study = CountingEncoder(), Study(root=root, output=tmp_path / "alpha.json")
    variants, own = value_variants("alpha", "0 0.1", encoder, Paper())
    results = run_sweep(study, plan(root), variants, baseline=own)
    first, second = results
    assert "msd" in first.against
    assert not second.against
    # Without divergence, MSD is the cosine.
    assert first.result.metric("msd").figures == first.result.metric("cosine").figures
    assert first.against["msd"].first == first.result.metric("msd").figures[0].value
    table = sweep_table(results, axis="alpha", baseline=own)
    encoded_once = len(encoder.captions)
    again = sweep_table(run_sweep(study, plan(root), variants, baseline=own), axis="alpha", baseline=own)
    assert to_json("alpha", [again]) == to_json("alpha", [table])
    assert len(encoder.captions) == encoded_once
    text = to_markdown([table])
    assert "| difference from alpha=0.1 |" in text
    assert "| accuracy/add_att |" in text
    assert json.dumps(to_json("alpha", [table]))
    assert [row["value"] for row in table.rows if row["metric"] == "msd"] == [0.0, 0.1]
    with pytest.raises(ConfigError, match="variants that include x"):
        run_sweep(study, plan(root), variants, baseline="x")


def test_rated_benchmarks_can_be_swept(tmp_path):
    data = make_expert(tmp_path / "data")
    variants = named_variants({"a": {"alpha": 0.1}, "b": {"alpha": 0.3}}, load_encoder("toy"), Paper())
    results = run_sweep(Study(root=data), plan(data, "flickr8k-expert"), variants)
    assert "tau_c" in to_markdown([sweep_table(results, axis="alpha")])
    row = results[0]
    pairs = decided_pairs(row, ("cosine", "msd"))
    assert len(pairs) == 24  # three captions per image with different ratings
    assert pairs.correct("cosine").mean() == pytest.approx(2 / 3)  # it recognises colours but not shapes


def by_hand():
    """Return ten pairs: cosine is right for large margins, the divergence for small ones."""
    cosine = np.array([[0.5, 0.5 + gap] for gap in (0.01, 0.02, 0.03, 0.04, 0.05)] + [[0.9, 0.1 * k] for k in range(5)])
    local = np.array([[1.0, 0.0]] * 5 + [[0.0, 0.65]] * 5)
    scores = {"clipscore": cosine, "cosine": cosine, "coverage": local, "support": -local, "bi-kl": local, "msd": cosine + local,
              "soft-msd": cosine + local, "rank-agg": cosine}  # fmt: skip
    return DecidedPairs(scores, np.arange(10.0), np.array([f"p{k // 2}" for k in range(10)]), np.array(["x"] * 10))


def test_gains_are_largest_for_small_margins():
    bins = margin_rows(by_hand(), temperature=0.2, count=2)
    assert [row["pairs"] for row in bins] == [5, 5]
    assert [row["cosine"].value for row in bins] == [0.0, 1.0]
    assert [row["gain"].value for row in bins] == pytest.approx([1.0, -0.4])
    assert bins[0]["uncertainty"] > bins[1]["uncertainty"]
    assert bins[0]["margin"] == pytest.approx(0.03)
    gap, temperature = 0.05, 0.2
    expected = 2 * (1 - 1 / (1 + np.exp(-gap / temperature)))
    assert uncertainties(np.array([[0.5, 0.55]]), temperature) == pytest.approx([expected])
    gains = gain_rows(by_hand(), how=Resampling(samples=100))
    assert gains[0]["metrics"] == "soft-msd − clipscore"
    assert gains[0]["difference"].value == pytest.approx(0.3)
    assert 0 < gains[0]["p"] <= 1


def test_length_buckets_contain_all_pairs():
    table = length_table(pairs := concatenate([by_hand(), by_hand()]), ["a"], quantile_bins(pairs.length, 5))
    assert sum(row["pairs"] for row in table.rows) == 20
    assert table.rows[0]["coverage"].value == 1.0
    assert table.rows[0]["support"].value == 0.0
    assert [row["mean"] for row in table.rows] == sorted(row["mean"] for row in table.rows)
    assert "| 0 to 1 | 4 | 0.5 | 0.0 " in to_markdown([table])
    assert [len(numbers) for numbers in quantile_bins(np.zeros(4), 3)] == [4]


def test_studies_write_table_figure_and_json_and_resume(root, tmp_path):
    common = ("--root", root, "-e", "toy", "--samples", 20)
    text = output_of("study", "sweep", "kappa", *common, "--values", "10 20", "-o", tmp_path / "kappa.json")
    assert "| MSD | kappa=10 |" in text
    found = json.loads((tmp_path / "kappa.json").read_text())
    assert found["study"] == "sweep"
    rows = [row for row in table_of(found, "sugarcrepe")["rows"] if row["metric"] == "msd"]
    assert [row["value"] for row in rows] == [10.0, 20.0]
    assert "kappa:10|" in rows[0]["signature"]
    assert (tmp_path / "kappa.png").is_file()
    runs = sorted(tmp_path.glob("kappa.runs/*/*.json"))
    before = [path.with_suffix(".parquet").stat().st_mtime_ns for path in runs]
    for suffix in (".json", ".md", ".png"):
        (tmp_path / "kappa.json").with_suffix(suffix).unlink()
    output_of("study", "sweep", "kappa", *common, "--values", "10 20", "-o", tmp_path / "kappa.json")
    assert [path.with_suffix(".parquet").stat().st_mtime_ns for path in runs] == before
    assert json.loads((tmp_path / "kappa.json").read_text()) == found


@pytest.mark.slow
def test_mixtures_are_compared_at_equal_alpha_and_equal_weight(root, tmp_path):
    common = ("--root", root, "-e", "toy", "--samples", 10, "--no-control", "--limit", 4, "--json")
    text = output_of("study", "sweep", "mixture", *common, "-o", tmp_path / "m.json")
    same, equal = (
        [row for row in table_of(json.loads(text), name)["rows"] if row["metric"] == "msd"]
        for name in ("same_alpha", "equal_weight")
    )
    assert [row["variant"] for row in same] == list(MIXTURES)
    signatures = [row["signature"].split("|") for row in equal]
    assert [part for parts in signatures for part in parts if part.startswith("mix:")] == [
        f"mix:{kind}" for kind in MIXTURES.values() if kind != "vmf"
    ]
    alphas = [float(part[2:]) for parts in signatures for part in parts if part.startswith("a:")]
    runs = [tmp_path / "m.runs" / "same-alpha" / slug(name) / "sugarcrepe.parquet" for name in MIXTURES]
    spreads = [np.std(np.array(pq.read_table(run)["bi-kl"].to_pylist())) for run in runs]
    assert np.multiply(alphas, spreads) == pytest.approx(0.1 * spreads[0])


@pytest.mark.slow
def test_direction_and_margin(root):
    common = ("--root", root, "-e", "toy", "-b", "sugarcrepe", "--samples", 20, "--json")
    answer = json.loads(output_of("study", "margin", *common, "--bins", 1, "--option", "subsets=add_att"))
    bins = table_of(answer, "bins")
    assert (bins["counted"], bins["options"]) == (8, {"subsets": "add_att"})
    edged = table_of(json.loads(output_of("study", "direction", *common, "--edges", "4 6")), "by_length")["rows"]
    assert [(row["tokens"], row["pairs"]) for row in edged] == [("3 to 3", 8), ("5 to 5", 8)]  # a red square and a …
    answer = json.loads(output_of("study", "direction", *common))
    rows = table_of(answer, "sugarcrepe")["rows"]
    assert [row["variant"] for row in rows][1:4] == ["coverage only", "beta 0.5", "support only"]
    assert sum(row["pairs"] for row in table_of(answer, "by_length")["rows"]) == 16
    answer = json.loads(output_of("study", "margin", *common, "--bins", 2))
    bins = table_of(answer, "bins")["rows"]
    firsts = [row["metrics"].split(" − ")[0] for row in table_of(answer, "gains")["rows"]]
    assert firsts == ["soft-msd", "msd", "soft-msd", "soft-msd"]
    assert {"cosine", "rank-agg"} <= set(bins[0])


def test_option_of_another_study_is_rejected(root):
    answer = invoke("study", "sweep", "kappa", "--root", str(root), "-e", "toy", "--seeds", "3")
    assert isinstance(answer.exception, ConfigError)
    assert "study sweep has no option --seeds; it has --parameter, --values, --benchmark" in str(answer.exception)
    answer = invoke("study", "sweep", "kapa", "--root", str(root))
    assert "Did you mean 'kappa'" in str(answer.exception)
    assert "study sweep needs a parameter" in str(invoke("study", "sweep", "--root", str(root)).exception)
    assert "Did you mean 'sweep'" in str(invoke("study", "sweeps", "--root", str(root)).exception)
    answer = invoke("study", "tune", "kappa", "--root", str(root))
    assert "study tune has no option --parameter" in str(answer.exception)


def test_study_without_readable_images_is_a_one_line_error(tmp_path):
    folder = make_sugarcrepe(tmp_path)
    write_images(folder / "sugarcrepe.images.parquet", dict.fromkeys((f"{c}.png" for c in COLOURS), b"no image"))
    for name in ("sweep kappa", "direction", "backbones", "sweep mixture", "margin", "tune"):
        more = ["--root", str(folder), "-e", "toy", "-b", "sugarcrepe", "--samples", "9", "--no-control"]
        answer = invoke("study", *name.split(), *more)
        assert isinstance(answer.exception, InputError), name
        assert "sugarcrepe: none of the 16 items could be scored: " in str(answer.exception)


@pytest.mark.parametrize(("name", "setting"), [("xi", "xi:"), ("l0", "gate:"), ("tau-l", "gate:"), ("beta", "gate:")])
def test_settings_of_gate_and_temperature_can_be_swept(root, name, setting):
    words = ("--root", root, "-e", "toy", "--samples", 9, "--no-control", "--limit", 6, "-m", "soft-msd", "--json")
    found = json.loads(output_of("study", "sweep", name, *words, "--values", "0.3 1"))
    facts = [next(fact for fact in row["signature"].split("|") if fact.startswith(setting))
             for row in found["tables"][0]["rows"]]  # fmt: skip
    assert len(set(facts)) == 3  # both values and the default


def test_tuning_selects_on_held_out_pairs_and_evaluates_on_the_others(root):
    found = json.loads(
        output_of("study", "tune", "--root", root, "-e", "toy", "--held-out", 6, "--samples", 20, "--json")
    )
    (choice,) = found["tables"]
    assert (choice["held_out"], choice["rest"]) == (6, 10)
    chosen, used = choice["rows"]
    assert [used[name] for name in ("kappa", "alpha", "temperature", "gate_center", "gate_width")] == [
        20,
        0.1,
        0.2,
        20,
        3,
    ]
    assert chosen["tuned"]["value"] >= used["tuned"]["value"]
    answer = invoke("study", "tune", "--root", str(root), "-e", "toy")
    assert "16 pairs of sugarcrepe could be scored and 1000 are held out" in str(answer.exception)


def test_tuned_scores_are_soft_msd(root):
    metrics = ("cosine", "coverage", "support", "tokens", "soft-msd")
    (row,) = run_sweep(
        Study(root=root), BenchmarkPlan(name="sugarcrepe", root=root, metrics=metrics, samples=9, control=False),
        named_variants({"x": {"alpha": 0.3, "gate_center": 4.0}}, load_encoder("toy"), Paper()),
    )  # fmt: skip
    soft = ScoreParts(*(row.scores(label) for label in metrics[:4])).soft((20.0, 0.3, 0.2, 4.0, 3.0))
    assert soft == pytest.approx(row.scores("soft-msd"), abs=1e-6)


def test_margins_of_coco_cf_are_evaluated_per_split(tmp_path):
    for at, split in enumerate(("easy", "hard")):
        rows = [
            {"image_id": n, "image_path": f"{colour}.png", "caption": f"a {colour} square",
             "negative_caption": f"a {COLOURS[(n + 1 + at) % 8]} square"}
            for n, colour in enumerate(COLOURS)
        ]  # fmt: skip
        (tmp_path / f"coco_cf_{split}.json").write_text(json.dumps(rows))
    (tmp_path / "val2017").mkdir()
    for colour in COLOURS:
        (tmp_path / "val2017" / f"{colour}.png").write_bytes(encoded(colour))
    words = ("--root", tmp_path, "-e", "toy", "-b", "coco-cf", "--samples", 9, "--bins", 2, "--no-control", "--json")
    found = json.loads(output_of("study", "margin", *words))
    names = [table["name"] for table in found["tables"]]
    assert names == ["bins-easy", "gains-easy", "bins-hard", "gains-hard", "coco-cf"]
    assert sum(row["pairs"] for row in found["tables"][0]["rows"]) == 8
    notes = {note for table in found["tables"][:4] for note in table["notes"]}
    assert notes
    assert all(note.startswith("a bag of words without the image is right in ") for note in notes)
