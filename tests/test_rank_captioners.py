"""Ranking of captioners: means and ranks by hand, significance, Soft-MSD, invalid inputs, and the tables."""

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from command_line import invoke
from msdscore.errors import InputError
from msdscore.intervals import Resampling
from msdscore.scorer import Scorer
from msdscore_lab.captioners.contest import read_contest
from msdscore_lab.captioners.ranking import rank, ranking_grids, verdict
from msdscore_lab.citation import means
from msdscore_lab.stats.differences import draws_for

SIGNATURE = "msd|enc:x|xi:0.2|v:1"
FEW = Resampling(samples=200)


def scored(
    path: Path, values: np.ndarray, *, system: str | None = None, signature: str = SIGNATURE, **more: object
) -> Path:
    """Write a scored file of one captioner, one image per row."""
    count = len(values)
    table = {
        "image": more.pop("images", [f"{n}.jpg" for n in range(count)]),
        "caption": [f"caption {n}" for n in range(count)],
        "similarity": values + 0.1,
        "coverage": 1 - values,
        "support": 2 - values,
        "msd": values,
        "soft_msd": values,
        "match": 1 / (1 + np.exp(-values)),
        "error": pa.array([None] * count, pa.string()),
        **more,
    }
    if system is not None:
        table["system"] = [system] * count
    pq.write_table(pa.table(table).replace_schema_metadata({"msdscore": signature}), path)
    return path


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    noise = np.random.default_rng(0)
    base = noise.normal(size=60) * 0.1
    good, same, bad = (base + shift + noise.normal(size=60) * 0.02 for shift in (0.5, 0.5, 0.1))
    return [
        str(scored(tmp_path / f"{name}.parquet", values))
        for name, values in (("good", good), ("same", same), ("bad", bad))
    ]


def test_means_are_cited_with_the_interval_of_the_ranking(files) -> None:
    contest = read_contest(files)
    how = draws_for(np.array(contest.images), seed=0)
    for placed in rank(contest, how=how).metrics[0].placed:
        mean = placed.mean
        (path,) = (path for path in files if Path(path).stem == placed.captioner)
        cited = (
            f"Mean: {mean.value:.3f} (n = 60 captions of 60 images, 95\\% interval [{mean.low:.3f}, {mean.high:.3f}])."
        )
        assert means(path) == cited


def test_means_ranks_and_pairs(files) -> None:
    found = rank(read_contest(files), how=FEW)
    msd = found.metrics[0]
    assert msd.metric == "msd"
    assert msd.placed[-1].captioner == "bad"
    assert msd.placed[-1].rank.value == msd.placed[-1].rank.low == msd.placed[-1].rank.high == 3
    own = pq.read_table(files[2]).column("msd").to_numpy()
    assert msd.placed[-1].mean.value == pytest.approx(own.mean())
    pairs = {(one.first, one.second): one for one in msd.duels}
    assert pairs["good", "bad"].p_value < 0.05
    assert pairs["good", "same"].p_value > 0.05
    assert pairs["good", "bad"].difference.low > 0.3
    coverage = next(one for one in found.metrics if one.metric == "coverage")
    assert coverage.lower_is_better
    assert coverage.placed[-1].captioner == "bad"
    assert {one.metric for one in found.metrics if one.duels} == {"msd", "soft_msd", "match"}


@pytest.mark.parametrize("seed", range(4))
def test_interval_rank_and_test_agree_for_every_seed(tmp_path, seed) -> None:
    """The differences are chosen so that p is 0.03 and 0.07, where two methods could disagree."""
    noise = np.random.default_rng(5).gamma(1.0, size=(80, 3))  # skewed, as scores are
    columns = noise - noise.mean(axis=0) + np.array([0.0, 0.26, 0.35])
    files = [str(scored(tmp_path / f"{name}.parquet", values)) for name, values in zip("abc", columns.T, strict=True)]
    found = rank(read_contest(files), how=Resampling(samples=20_000, seed=seed))
    msd = found.metrics[0]
    significant = {frozenset((one.first, one.second)): one.p_value < 0.05 for one in msd.duels}
    assert significant == {frozenset("ab"): False, frozenset("ac"): True, frozenset("bc"): False}
    for one in msd.duels:
        assert (one.difference.low > 0 or one.difference.high < 0) == significant[frozenset((one.first, one.second))]
    ends = {row.captioner: (row.rank.value, row.rank.low, row.rank.high) for row in msd.placed}
    assert ends == {"c": (1, 1, 2), "b": (2, 1, 3), "a": (3, 2, 3)}
    assert any("20,000 draws" in note for note in ranking_grids(found)[0].notes)


def test_soft_msd_is_over_the_captions_of_all_captioners(files) -> None:
    contest = read_contest(files)
    captions = np.flatnonzero(contest.image_of == 7)
    assert len(captions) == len(contest.captioners)
    rows = [{name: values[at] for name, values in contest.numbers.items()} for at in captions]
    g = np.array([one["similarity"] for one in rows])
    share = np.exp(g / 0.2) / np.exp(g / 0.2).sum()
    u = 3 / 2 * (1 - share.max())
    for one in rows:
        assert one["soft_msd"] == pytest.approx(one["similarity"] - u * (one["similarity"] - one["msd"]))


def test_column_system_equals_separate_files(files, tmp_path) -> None:
    tables = [pq.read_table(path).append_column("system", pa.array([Path(path).stem] * 60)) for path in files]
    whole = pa.concat_tables(tables).replace_schema_metadata({"msdscore": SIGNATURE})
    pq.write_table(whole, tmp_path / "all.parquet")
    one, many = rank(read_contest([str(tmp_path / "all.parquet")]), how=FEW), rank(read_contest(files), how=FEW)
    assert [metric.placed for metric in one.metrics] == [metric.placed for metric in many.metrics]
    named = read_contest([f"{name}={path}" for name, path in zip("abc", files, strict=True)])
    assert named.captioners == ("a", "b", "c")


def test_incomparable_inputs_are_rejected(files, tmp_path) -> None:
    other = str(scored(tmp_path / "other.parquet", np.zeros(60), signature="msd|enc:y|v:1"))
    with pytest.raises(InputError, match="other.*enc:y.*good.*enc:x"):
        read_contest([files[0], other])
    plain = str(scored(tmp_path / "plain.parquet", np.zeros(60), signature=""))
    with pytest.raises(InputError, match="has no signature"):
        read_contest([files[0], plain])
    fewer = str(scored(tmp_path / "fewer.parquet", np.zeros(40)))
    with pytest.raises(InputError, match="fewer has 40 of 60 .*--shared"):
        read_contest([files[0], fewer])
    contest = read_contest([files[0], fewer], shared=True)
    assert (len(contest.images), contest.left_out) == (40, 20)
    others = str(scored(tmp_path / "others.parquet", np.zeros(3), images=["x", "y", "z"]))
    with pytest.raises(InputError, match="no image is shared"):
        read_contest([files[0], others], shared=True)
    with pytest.raises(InputError, match="got 1: good"):
        read_contest(files[:1])
    with pytest.raises(InputError, match="no column 'human'"):
        read_contest(files, people="human")


def test_images_with_failed_captions_are_excluded_for_all(files, tmp_path) -> None:
    values = np.full(60, 0.3)
    values[4] = np.nan
    failed = str(scored(tmp_path / "failed.parquet", values))
    contest = read_contest([files[0], failed])
    assert contest.left_out == 1
    assert "4.jpg" not in contest.images


def test_comparison_with_human_ratings(tmp_path) -> None:
    chance = np.random.default_rng(1)
    quality = {"a": 0.6, "b": 0.4, "c": 0.2}
    files = [
        str(scored(tmp_path / f"{who}.parquet", level + chance.normal(size=30) * 0.01, human=np.full(30, 5 * level)))
        for who, level in quality.items()
    ]
    found = rank(read_contest(files, people="human"), people="human", how=FEW)
    assert found.people is not None
    assert [one.captioner for one in found.people.placed] == ["a", "b", "c"]
    agreement = found.agreements[0]
    assert (agreement.metric, agreement.column) == ("msd", "human")
    assert agreement.spearman == agreement.kendall == pytest.approx(1)
    assert agreement.same_winner.value > 0.99


def test_the_verdict_names_the_winner_and_ties(files) -> None:
    found = rank(read_contest(files), how=FEW)
    first = found.metrics[0].placed[0].captioner
    other = {"good": "same", "same": "good"}[first]
    assert verdict(found) == (
        f"Too close to call: no significant difference between {first} and {other} by MSD on 60 images."
    )


def test_command_ranks_outputs_of_score(tmp_path) -> None:
    for colour in ("red", "green", "blue"):
        Image.new("RGB", (32, 32), colour).save(tmp_path / f"{colour}.png")
    rows = [
        {"image": f"{colour}.png", "caption": f"a {said} square", "system": who, "human": 5 if said == colour else 1}
        for colour in ("red", "green", "blue")
        for who, said in (("right", colour), ("wrong", "purple"))
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    done = invoke("score", tmp_path / "rows.jsonl", "-e", "toy", "-o", tmp_path / "s.parquet")
    assert done.exit_code == 0, done.output
    words = [
        "rank-captioners",
        str(tmp_path / "s.parquet"),
        "-o",
        str(tmp_path / "r.json"),
        "--people",
        "human",
        "--samples",
        "50",
    ]
    made = invoke(*words)
    assert made.exit_code == 0, made.output
    assert "People rate right highest." in made.stderr
    content = json.loads((tmp_path / "r.json").read_text())
    assert content["images"] == 3
    assert content["signature"] == Scorer("toy").signature
    assert content["people"]["placed"][0]["captioner"] == "right"
    assert json.loads(invoke(*words[:2], "--json", "--samples", "50").stdout)["captioners"] == [
        "right",
        "wrong",
    ]


def test_files_without_scores_are_scored_with_one_encoding_of_each_image(tmp_path) -> None:
    for colour in ("red", "green", "blue"):
        Image.new("RGB", (32, 32), colour).save(tmp_path / f"{colour}.png")
    for who, said in (("right", None), ("wrong", "purple"), ("vague", "nice")):
        rows = [{"image": f"{name}.png", "caption": f"a {said or name} square"} for name in ("red", "green", "blue")]
        (tmp_path / f"{who}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    files = [tmp_path / "right.jsonl", f"W={tmp_path / 'wrong.jsonl'}", tmp_path / "vague.jsonl"]
    words = ["rank-captioners", *files, "-e", "toy", "--samples", "50", "--json"]
    first, again = invoke(*words), invoke(*words)
    assert first.exit_code == again.exit_code == 0, first.output + again.output
    assert "6 of 9 images (66.7 %)" in first.stderr  # three of nine were encoded
    content = json.loads(first.stdout)
    assert content == json.loads(again.stdout)
    assert sorted(content["captioners"]) == ["W", "right", "vague"]
    assert content["signature"] == Scorer("toy").signature
    assert "%" not in again.stderr  # nothing was encoded
    names = {path.name for path in tmp_path.iterdir() if not path.name.endswith((".png", ".json"))}
    expected = {f"{who}.{kind}" for who in ("right", "wrong", "vague") for kind in ("jsonl", "scores.parquet")}
    assert names == expected


def scored_rows(folder: Path, colours: dict[str, str], said: str, *, images: Path | None = None) -> str:
    """Write rows, images and toy scores into a folder; return the path of the scored file."""
    folder.mkdir(exist_ok=True)
    for name, colour in colours.items():
        path = (images or folder) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32), colour).save(path)
    rows = [{"image": name, "caption": f"a {said} square"} for name in colours]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words = ["score", str(folder / "rows.jsonl"), "-e", "toy", "-o", str(folder / "s.parquet")]
    done = invoke(*words, *(["--images", str(images)] if images else []))
    assert done.exit_code == 0, done.output
    return str(folder / "s.parquet")


def test_equal_file_names_in_two_folders_are_two_images(tmp_path) -> None:
    colours = {"val/1.png": "red", "test/1.png": "blue"}
    files = [f"{who}={scored_rows(tmp_path / who, colours, who)}" for who in ("red", "blue")]
    contest = read_contest(files)
    assert contest.images == ("test/1.png", "val/1.png")
    means = contest.means("msd")
    assert means[1, 0] > means[1, 1]  # "red" is right on val/1.png
    assert means[0, 0] < means[0, 1]


def test_different_images_with_one_path_are_rejected(tmp_path) -> None:
    first = scored_rows(tmp_path / "p", {"1.png": "red"}, "red")
    other = scored_rows(tmp_path / "q", {"1.png": "blue"}, "red")
    with pytest.raises(InputError, match=r"1\.png .*p/s\.par.*q/s\.par"):
        read_contest([f"a={first}", f"b={other}"])
    copy = scored_rows(tmp_path / "r", {"1.png": "red"}, "blue")
    assert read_contest([f"a={first}", f"b={copy}"]).images == ("1.png",)


def test_equivalent_paths_are_the_same_image(tmp_path) -> None:
    first = scored_rows(tmp_path / "p", {"1.png": "red"}, "red", images=tmp_path / "val")
    second = scored_rows(tmp_path / "q", {"../val/1.png": "red"}, "blue")
    assert read_contest([f"a={first}", f"b={second}"]).images == ("1.png",)


def test_one_file_passed_twice_and_one_captioner_in_two_files_are_rejected(files, tmp_path) -> None:
    with pytest.raises(InputError, match=r"good\.parquet was passed twice"):
        read_contest([files[0], f"again={files[0]}"])
    (tmp_path / "q").mkdir()
    same = str(scored(tmp_path / "q" / "good.parquet", np.zeros(60)))
    with pytest.raises(InputError, match=r"captions of 0\.jpg by good"):
        read_contest([files[0], files[1], same])


def strict(text: str) -> dict[str, object]:
    """Parse strict JSON, in which NaN is an error."""
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_one_image_and_equal_ratings_give_valid_json(tmp_path) -> None:
    files = [str(scored(tmp_path / f"{n}.parquet", np.array([0.1 * n]), human=[3.0])) for n in (1, 2)]
    words = ["rank-captioners", *files, "--people", "human", "--samples", "50"]
    shown = invoke(*words, "--json", "-o", str(tmp_path / "r.json"))
    assert shown.exit_code == 0, shown.output
    content = strict(shown.stdout)
    assert content["metrics"][0]["placed"][0]["mean"]["low"] is None
    assert content["agreements"][0]["same_winner"] is content["agreements"][0]["spearman"] is None
    assert strict((tmp_path / "r.json").read_text()) == content
    table = invoke(*words)
    assert "nan" not in table.stdout.lower()
    assert "human is equal for all captions of each image" in " ".join(table.stdout.split())


def test_images_that_all_have_a_failed_caption_are_named_as_the_reason(tmp_path) -> None:
    failed = pa.array(["cannot be read"] * 3, pa.string())
    files = [str(scored(tmp_path / f"{name}.parquet", np.arange(3.0), error=failed)) for name in ("a", "b")]
    with pytest.raises(InputError, match="all 3 shared images"):
        read_contest(files)


def test_captioners_with_references_are_ranked_by_ref_msd(tmp_path):
    values = np.linspace(0, 1, 12)
    files = [
        scored(tmp_path / "a.parquet", values, ref_msd=values + 1.0),
        scored(tmp_path / "b.parquet", values + 0.2, ref_msd=values),
    ]
    ranking = rank(read_contest(list(map(str, files))), how=FEW)
    assert [metric.metric for metric in ranking.metrics][:2] == ["ref_msd", "msd"]
    assert [metric.placed[0].captioner for metric in ranking.metrics[:2]] == ["a", "b"]
    assert verdict(ranking).startswith("a is the best by Ref-MSD ")
    some = np.where(values < 0.2, np.nan, values)
    partly = [scored(tmp_path / f"{name}.parquet", values, ref_msd=some, reference_count=some * 0 + 2) for name in "cd"]
    ranking = rank(read_contest(list(map(str, partly))), how=FEW)
    assert "ref_msd" not in [metric.metric for metric in ranking.metrics]
    assert any("ref_msd is not ranked: 3 images have no references" in grid.notes for grid in ranking_grids(ranking))
    assert "|nrefs:2|" in ranking.contest.signature


@pytest.mark.parametrize(("style", "head"), [("markdown", "**Captioners**"), ("latex", "% Captioners")])
def test_ranking_tables_are_printed_in_both_formats(files, style, head) -> None:
    printed = invoke("rank-captioners", *map(str, files), "--samples", "50", "-f", style)
    assert printed.exit_code == 0, printed.output
    assert printed.stdout.startswith(head)


def test_the_table_of_a_paper_has_five_columns_and_others_are_chosen(files, tmp_path) -> None:
    words = ["rank-captioners", *map(str, files), "--samples", "50"]
    written = invoke(*words, "-o", str(tmp_path / "r.tex"))
    assert written.exit_code == 0, written.output
    assert "Too close to call: no significant difference between" in written.stderr
    text = (tmp_path / "r.tex").read_text()
    assert r"captioner & MSD & 95 \% interval & p vs. best & n \\" in text
    rows = {line.split(" & ")[0]: line for line in text.splitlines()}
    p_values = {who: float(rows[who].split(" & ")[3]) for who in ("good", "same", "bad") if "--" not in rows[who]}
    assert p_values.pop("bad") < 0.1 < 0.3 < max(p_values.values())
    assert all(rows[who].endswith(r" & 60 \\") for who in ("good", "same", "bad"))
    assert "Soft-MSD" not in text
    assert not (tmp_path / "r.json").exists()
    chosen = invoke(*words, "-o", str(tmp_path / "r.md"), "--columns", "similarity,match,rank")
    assert chosen.exit_code == 0, chosen.output
    assert "| captioner | similarity | similarity, rank | match | match, rank |" in (tmp_path / "r.md").read_text()
    every = invoke(*words, "--columns", "all", "-f", "latex").stdout
    tables = [table for table in every.split("\n\n") if "captioner &" in table]
    headings = tables[0].split("toprule\n")[1].split(r" \\")[0].split(" & ")
    assert headings[:4] == ["captioner", "MSD", "MSD, rank", "Soft-MSD"]
    assert len(set(headings)) == len(headings)
    assert re.search(r"good & \\textbf{[\d.]+ \[", tables[0])  # the best value and its interval
    wrong = invoke(*words, "--columns", "msd,score")
    assert "unknown column 'score'" in str(wrong.exception)
    refused = invoke(*words, "-o", str(tmp_path / "r.pdf"))
    assert "expected a name ending in .json, .md, .tex" in str(refused.exception)


def test_scores_of_the_default_form_are_called_msd_e(tmp_path) -> None:
    signature = "msd-e|enc:mini@1|form:evidence|xi:0.2|v:1"
    files = [
        str(scored(tmp_path / f"{n}.parquet", values, signature=signature, precision=values, information=values))
        for n, values in enumerate([np.arange(6.0), np.arange(1.0, 7.0)])
    ]
    ranking = rank(read_contest(files), how=FEW)
    first, *pairs = ranking_grids(ranking, ["all"])
    assert first.columns[1:6:2] == ("MSD-E", "Soft-MSD-E", "match")
    assert [grid.title.partition(":")[0] for grid in pairs] == ["MSD-E", "Soft-MSD-E", "match"]
    assert "by MSD-E on 6 images" in verdict(ranking)


def test_too_few_images_for_the_differences_are_named(tmp_path) -> None:
    noise = np.random.default_rng(0).normal(size=(2, 400))
    few = [str(scored(tmp_path / f"few{n}.parquet", noise[n, :12] + 0.4 * n)) for n in range(2)]
    first, pairs = ranking_grids(rank(read_contest(few), how=FEW))
    assert any(note.startswith("only 12 images: ") for note in first.notes)
    needed = int(re.search(r"\(about ([\d,]+) images or more needed\)", pairs.notes[0])[1].replace(",", ""))
    gap = noise[1, :12] + 0.4 - noise[0, :12]
    assert needed == pytest.approx(7.84 * gap.var(ddof=1) / gap.mean() ** 2, rel=0.5)  # by the formula of the z-test
    many = [str(scored(tmp_path / f"many{n}.parquet", noise[n] + 0.4 * n)) for n in range(2)]
    first, pairs = ranking_grids(rank(read_contest(many), how=FEW))
    assert not any(note.startswith("only ") for note in first.notes)
    assert pairs.notes[0] == "all differences are significant at 0.05"
