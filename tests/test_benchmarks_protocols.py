"""Protocols: official and authors' statistics by hand on small datasets, controls and joins."""

import random
from pathlib import Path

import numpy as np
import pytest
from scipy import stats as scipy_stats

from msdscore.errors import InputError, UnknownNameError
from msdscore.intervals import Resampling
from msdscore_lab.benchmarks.base import Battle, Benchmark, Pair, Rated, clusters, image_key, image_ring, wrong_images
from msdscore_lab.benchmarks.protocols.counting import Figure, evaluate
from msdscore_lab.benchmarks.readers.battles import HUMAN_ORDER
from msdscore_lab.benchmarks.registry import benchmark
from msdscore_lab.stats.elo import bootstrap_elo, games

_QUICK = Resampling(samples=50)
_NAN = float("nan")


def _by_name(figures: tuple[Figure, ...]) -> dict[str, Figure]:
    return {figure.name: figure for figure in figures}


def _pairs(subsets: list[str]) -> list[Pair]:
    return [Pair(f"{s}/{k}", Path(f"{k // 2}.jpg"), "p", "n", s) for k, s in enumerate(subsets)]


def test_pair_accuracy_counts_ties_as_wrong_and_nan_as_missing() -> None:
    items = _pairs(["x", "x", "x", "x", "y", "y"])
    scores = np.array([[1, 0], [1, 1], [0, 1], [_NAN, 1], [2, 1], [2, 1]])
    figures = _by_name(evaluate(benchmark("sugarcrepe"), items, scores, how=_QUICK))
    assert list(figures) == ["accuracy/mean", "accuracy/x", "accuracy/y", "accuracy/all"]
    part = figures["accuracy/x"]
    assert (part.n, part.ties, part.missing) == (3, 1, 1)
    assert part.value == pytest.approx(1 / 3)
    assert figures["accuracy/mean"].value == pytest.approx((1 / 3 + 1) / 2)
    assert figures["accuracy/all"].value == pytest.approx(3 / 5)


def test_intervals_resample_images() -> None:
    scores = np.tile([1.0, 0.0], (40, 1))
    whole = evaluate(benchmark("rsicd"), _pairs([""] * 40), scores, how=_QUICK)[0]
    scores[0] = 0.0, 1.0
    most = evaluate(benchmark("rsicd"), _pairs([""] * 40), scores, how=_QUICK)[0]
    assert whole.name == "accuracy/all"
    assert whole.interval is not None
    assert most.interval is not None
    assert (whole.interval.n, whole.interval.method) == (20, "cluster exact binomial")
    assert (most.interval.n, most.interval.method) == (20, "cluster bootstrap")
    assert whole.interval.low < 0.85


def test_pascal_ties_count_half_in_official_and_zero_in_authors() -> None:
    items, scores = _pairs(["HC", "HC", "HI", "MM"]), [[1, 1], [1, 0], [1, 0], [0, 1]]
    official = _by_name(evaluate(benchmark("pascal50s"), items, scores, how=_QUICK))
    authors = _by_name(evaluate(benchmark("pascal50s"), items, scores, protocol="authors", how=_QUICK))
    assert official["accuracy/HC"].value == 0.75
    assert authors["accuracy/HC"].value == 0.5
    assert official["accuracy/mean"].value == pytest.approx((0.75 + 1 + 0) / 3)


@pytest.mark.parametrize(
    ("name", "parts", "published"),
    [
        ("pascal50s", {"HC": 0.565, "HI": 0.993, "HM": 0.964, "MM": 0.704}, 0.807),  # CLIPScore's table
        ("pascal50s", {"HC": 0.613, "HI": 0.997, "HM": 0.976, "MM": 0.742}, 0.832),  # FLEUR's outputs
    ],
)
def test_published_pascal_means_are_means_of_the_categories(
    name: str, parts: dict[str, float], published: float
) -> None:
    items = _pairs([category for category in parts for _ in range(1000)])
    right = np.concatenate([np.arange(1000) < round(share * 1000) for share in parts.values()])
    scores = np.stack([right, ~right], axis=1)
    figures = _by_name(evaluate(benchmark(name), items, scores, how=Resampling(samples=1)))
    # CLIPScore's is 0.80650, which its authors round up.
    assert figures["accuracy/mean"].value == pytest.approx(published, abs=0.0006)


def _rated(rng: np.random.Generator, n: int) -> list[Rated]:
    return [
        Rated(f"{k}", Path(f"{k // 5}.jpg"), "c", tuple(rng.integers(1, 5, 3).astype(float)), subset=f"s{k % 2}")
        for k in range(n)
    ]


def test_expert_correlations_equal_scipy_on_single_and_mean_ratings() -> None:
    rng = np.random.default_rng(0)
    items = _rated(rng, 60)
    scores = np.array([np.mean(item.ratings) for item in items]) + rng.normal(size=60)
    scores[7] = _NAN
    figures = _by_name(evaluate(benchmark("flickr8k-expert"), items, scores, how=_QUICK))
    kept = np.delete(np.arange(60), 7)
    single = np.array([items[k].ratings for k in kept]).ravel()
    repeated, means = np.repeat(scores[kept], 3), [np.mean(items[k].ratings) for k in kept]
    expected = scipy_stats.kendalltau(repeated, single, variant="c").statistic
    assert figures["tau_c"].value == pytest.approx(expected)
    assert figures["tau_b"].value == pytest.approx(scipy_stats.kendalltau(repeated, single).statistic)
    averaged = scipy_stats.kendalltau(scores[kept], means, variant="c").statistic
    assert figures["tau_c/averaged"].value == pytest.approx(averaged)
    assert averaged > expected  # confusing the two would overstate a metric
    assert (figures["tau_c"].n, figures["tau_c"].missing) == (177, 3)
    assert (figures["tau_c/averaged"].n, figures["tau_c/averaged"].missing) == (59, 1)
    interval = figures["tau_c"].interval
    assert interval is not None
    assert interval.low < expected < interval.high
    assert interval.n == 12


def test_the_headline_differs_by_benchmark() -> None:
    items = _rated(np.random.default_rng(1), 20)
    scores = np.arange(20.0)
    headline = {
        name: evaluate(benchmark(name), items, scores, how=_QUICK)[0].name
        for name in ("flickr8k-expert", "flickr8k-cf", "composite")
    }
    assert headline == {"flickr8k-expert": "tau_c", "flickr8k-cf": "tau_b", "composite": "tau_c"}


def test_composite_has_pooled_and_per_source_correlations() -> None:
    items = _rated(np.random.default_rng(2), 30)
    figures = _by_name(evaluate(benchmark("composite"), items, np.arange(30.0), how=_QUICK))
    assert figures["tau_c"].n == 90
    assert figures["tau_c/s0"].n == figures["tau_c/s1"].n == 45


def test_ties_among_scores_are_counted() -> None:
    items = _rated(np.random.default_rng(3), 10)
    figure = evaluate(benchmark("flickr8k-cf"), items, np.arange(10) // 5, how=_QUICK)[0]
    assert figure.ties == 8


def _battle(k: int, winner: str | None, first: str, second: str, level: str = "level 1") -> Battle:
    known = {first: "a", second: "b", "equal": "tie", None: None}
    return Battle(f"{k}", Path(f"{k}.jpg"), "one", "two", known[winner], first, second, level)  # type: ignore[arg-type]


def _arena(n: int = 400, seed: int = 0) -> tuple[list[Battle], np.ndarray]:
    """Return battles among the fourteen models and the human writer, and scores that correlate with their order."""
    rng = np.random.default_rng(seed)
    battles, scores = [], []
    for k in range(n):
        i, j = rng.choice(len(HUMAN_ORDER), 2, replace=False)
        gap = (j - i) / 4 + rng.logistic()
        first, second = HUMAN_ORDER[i], HUMAN_ORDER[j]
        winner = "equal" if abs(gap) < 0.4 else (first if gap > 0 else second)
        battles.append(_battle(k, winner, first, second, f"level {k % 4 + 1}"))
        scores.append([gap / 10 + rng.normal(0, 0.05), 0.0])
    return battles, np.array(scores)


def test_caparena_official_by_hand() -> None:
    a, b, c = HUMAN_ORDER[0], HUMAN_ORDER[2], HUMAN_ORDER[3]
    battles = [
        _battle(0, a, a, b),  # 0.9: first, right
        _battle(1, "equal", a, c, "level 2"),  # 0.1: the smallest difference, tied as the people's one tie
        _battle(2, c, b, c, "level 2"),  # 0.3: first, wrong
        _battle(3, c, c, a),  # −0.5: second, wrong
        _battle(4, "human", "human", a),  # left out
        _battle(5, a, a, b),  # no score
    ]
    scores = np.array([[0.9, 0], [0.1, 0], [0.3, 0], [0, 0.5], [9, 0], [_NAN, 0]])
    figures = _by_name(evaluate(benchmark("caparena"), battles, scores, how=_QUICK))
    whole = figures["agreement/all"]
    assert (whole.value, whole.n, whole.ties, whole.missing, whole.skipped) == (0.5, 4, 1, 1, 1)
    assert figures["agreement/level 1"].value == 0.5
    assert figures["agreement/level 2"].value == 0.5
    assert figures["model/spearman"].n == 3


def test_caparena_ranking_is_elo_against_the_papers_order() -> None:
    battles, scores = _arena()
    figures = _by_name(evaluate(benchmark("caparena"), battles, scores, how=_QUICK))
    kept = [(x, s) for x, s in zip(battles, scores, strict=True) if "human" not in (x.system_a, x.system_b)]
    gaps = np.array([s[0] - s[1] for _, s in kept])
    threshold = np.sort(np.abs(gaps))[sum(x.winner == "tie" for x, _ in kept)]
    outcome = np.where(np.abs(gaps) >= threshold, (np.sign(gaps) + 1) / 2, 0.5)
    order = bootstrap_elo(games([x.system_a for x, _ in kept], [x.system_b for x, _ in kept], outcome)).systems
    people = [HUMAN_ORDER.index(name) for name in order]
    assert figures["model/spearman"].value == pytest.approx(scipy_stats.spearmanr(people, range(14)).statistic)
    assert figures["model/kendall"].value == pytest.approx(scipy_stats.kendalltau(people, range(14)).statistic)
    assert figures["model/spearman"].n == 14
    interval = figures["model/spearman"].interval
    assert interval is not None
    assert interval.low <= figures["model/spearman"].value <= interval.high
    assert (interval.method, interval.seed) == ("Elo bootstrap", 42)


def test_caparena_protocols_differ_as_documented() -> None:
    battles, scores = _arena()
    figures = {
        protocol: _by_name(evaluate(benchmark("caparena"), battles, scores, protocol=protocol, how=_QUICK))
        for protocol in benchmark("caparena").protocols
    }
    official, authors = figures["official"]["agreement/all"], figures["authors"]["agreement/all"]
    human = sum("human" in (x.system_a, x.system_b) for x in battles)
    tied = sum(x.winner == "tie" for x in battles)
    assert (official.n, official.skipped) == (400 - human, human)
    assert (authors.n, authors.skipped) == (400 - tied, tied)
    assert official.ties == sum(x.winner == "tie" and "human" not in (x.system_a, x.system_b) for x in battles)
    assert authors.value > official.value  # excluding ties increases agreement
    for protocol in figures:
        assert figures[protocol]["model/kendall"].n == 14
        assert figures[protocol]["model/kendall"].value > 0.5


def test_caparena_paper_counts_human_ties_and_treats_small_differences_as_ties() -> None:
    a, b = HUMAN_ORDER[0], HUMAN_ORDER[2]
    battles = [
        _battle(0, a, a, b),  # 2e-4: first, right
        _battle(1, "equal", a, b),  # 0.5e-4: a tie, right
        _battle(2, "equal", b, a),  # 0.3: first, wrong although people tied
        _battle(3, b, b, a),  # 1e-4 is a tie: wrong
        _battle(4, "human", "human", a),  # with the human writer only: right
    ]
    scores = np.array([[2e-4, 0], [0.5e-4, 0], [0.3, 0], [1e-4, 0], [9, 0]])
    figures = _by_name(evaluate(benchmark("caparena"), battles, scores, protocol="paper", how=_QUICK))
    assert (figures["agreement/all"].value, figures["agreement/all"].n) == (0.5, 4)
    assert figures["agreement/all"].ties == 2
    assert (figures["with human/agreement/all"].value, figures["with human/agreement/all"].n) == (0.6, 5)


@pytest.mark.parametrize("seed", range(4))
def test_caparena_authors_elo_is_their_shuffled_online_elo(seed: int) -> None:
    battles, scores = _arena(120, seed)
    figures = _by_name(evaluate(benchmark("caparena"), battles, scores, protocol="authors", how=_QUICK))
    records = [(x, s[0] - s[1]) for x, s in zip(battles, scores, strict=True) if x.winner != "tie"]
    totals: list[dict[str, float]] = [{}, {}]
    for number in range(5):
        shuffled = list(records)
        random.Random(1234 + number).shuffle(shuffled)
        tables: list[dict[str, float]] = [{}, {}]
        for battle, gap in shuffled:
            metric = 1.0 if gap > 1e-4 else 0.0 if gap < -1e-4 else 0.5
            for table, result in zip(tables, (metric, float(battle.winner == "a")), strict=True):
                ra, rb = table.get(battle.system_a, 1000.0), table.get(battle.system_b, 1000.0)
                change = 32 * (result - 1 / (1 + 10 ** ((rb - ra) / 400)))
                table[battle.system_a], table[battle.system_b] = ra + change, rb - change
        for total, table in zip(totals, tables, strict=True):
            for name, rating in table.items():
                total[name] = total.get(name, 0.0) + rating / 5
    names = [name for name in totals[0] if name != "human"]
    expected = scipy_stats.spearmanr([totals[0][n] for n in names], [totals[1][n] for n in names]).statistic
    assert figures["model/spearman"].value == pytest.approx(expected)


def test_judge_decides_ties() -> None:
    a, b = HUMAN_ORDER[0], HUMAN_ORDER[2]
    battles = [_battle(k, winner, a, b) for k, winner in enumerate([a, b, "equal", a])]
    verdicts = [[1, 0], [0.5, 0.5], [0.5, 0.5], [_NAN, _NAN]]
    figures = _by_name(evaluate(benchmark("caparena"), battles, verdicts, how=_QUICK, judged=True))
    whole = figures["agreement/all"]
    assert (whole.value, whole.n, whole.ties, whole.missing) == pytest.approx((2 / 3, 3, 2, 1))


def test_caparena_of_human_battles_only_has_no_statistic() -> None:
    figures = evaluate(benchmark("caparena"), [_battle(0, "human", "human", "x")], [[1, 0]], how=_QUICK)
    assert all(np.isnan(figure.value) for figure in figures)


def _docent(preferences: list[tuple[int, int, int]]) -> list[Battle]:
    names = ("mistakes", "omissions", "overall_quality")
    return [
        Battle(
            id=str(k),
            image=Path(f"{k // 2}.jpg"),
            caption_a="one",
            caption_b="two",
            winner="tie",
            system_a="A",
            system_b="B",
            aspects=dict(zip(names, row, strict=True)),
        )
        for k, row in enumerate(preferences)
    ]


def test_docent_official_has_three_aspects_with_matched_ties() -> None:
    rng = np.random.default_rng(4)
    rows = [tuple(int(v) for v in rng.integers(-2, 3, 3)) for _ in range(40)]
    scores = np.stack([rng.normal(size=40), np.zeros(40)], axis=1)
    figures = _by_name(evaluate(benchmark("docent"), _docent(rows), scores, how=_QUICK))  # type: ignore[arg-type]
    assert next(iter(figures)) == "overall_quality/accuracy"
    for at, aspect in enumerate(("mistakes", "omissions", "overall_quality")):
        people = np.array([row[at] for row in rows])
        threshold = np.sort(np.abs(scores[:, 0]))[(people == 0).sum()]
        said = np.where(np.abs(scores[:, 0]) >= threshold, np.sign(scores[:, 0]), 0)
        assert figures[f"{aspect}/accuracy"].value == pytest.approx((said == np.sign(people)).mean())
        assert figures[f"{aspect}/accuracy"].ties == (people == 0).sum()
        rho = scipy_stats.spearmanr(people, scores[:, 0]).statistic
        assert figures[f"{aspect}/spearman"].value == pytest.approx(rho)
        tau = scipy_stats.kendalltau(people, scores[:, 0]).statistic
        assert figures[f"{aspect}/kendall"].value == pytest.approx(tau)


def test_docent_authors_count_equal_scores_for_the_second() -> None:
    items = _docent([(0, 0, 2), (0, 0, -1), (0, 0, -2), (0, 0, 0), (0, 0, 1)])
    scores = np.array([[1, 0], [0, 0], [1, 0], [5, 0], [_NAN, 0]])
    figures = _by_name(evaluate(benchmark("docent"), items, scores, protocol="authors", how=_QUICK))
    accuracy = figures["overall_quality/binary accuracy"]
    assert (accuracy.n, accuracy.ties, accuracy.missing, accuracy.skipped) == (3, 1, 1, 1)
    assert accuracy.value == pytest.approx(2 / 3)
    assert set(figures) == {f"overall_quality/{n}" for n in ("binary accuracy", "spearman", "kendall", "pearson")}


def test_docent_paper_counts_every_aspect_with_and_without_ties() -> None:
    items = _docent([(1, -1, 2), (0, 0, -1), (-2, 1, 0)])
    scores = np.array([[1, 0], [5e-5, 0], [1, 0]])
    figures = _by_name(evaluate(benchmark("docent"), items, scores, protocol="paper", how=_QUICK))
    assert next(iter(figures)) == "overall_quality/binary accuracy"
    assert (figures["overall_quality/binary accuracy"].value, figures["overall_quality/binary accuracy"].n) == (0.5, 2)
    assert figures["mistakes/binary accuracy"].value == 0.5
    assert figures["omissions/binary accuracy"].value == 0.5
    assert figures["mistakes/accuracy with ties"].value == pytest.approx(
        2 / 3
    )  # the human tie is also a tie of the metric
    assert figures["overall_quality/accuracy with ties"].value == pytest.approx(1 / 3)
    for aspect in ("mistakes", "omissions", "overall_quality"):
        assert {f"{aspect}/spearman", f"{aspect}/kendall"} <= figures.keys()


def test_wrong_image_is_never_the_image_of_the_item() -> None:
    items = _pairs(["x"] * 31)
    for seed in range(5):
        swapped = wrong_images(items, seed)
        assert all(image_key(own.image) != image_key(other) for own, other in zip(items, swapped, strict=True))
        assert {image_key(other) for other in swapped} == {image_key(item.image) for item in items}
        assert swapped[0] == swapped[1]  # two pairs of one image
        assert swapped == wrong_images(items, seed)
    assert wrong_images(items, 0) != wrong_images(items, 1)


def test_wrong_images_do_not_depend_on_the_order_of_items() -> None:
    items = _pairs(["x"] * 12)
    straight = dict(zip((i.id for i in items), wrong_images(items, 3), strict=True))
    backwards = dict(zip((i.id for i in items[::-1]), wrong_images(items[::-1], 3), strict=True))
    assert straight == backwards


def test_equal_file_names_in_two_folders_are_two_images() -> None:
    items = [Pair(str(k), Path(folder) / "1.jpg", "p", "n") for k, folder in enumerate(("coco", "flickr", "coco"))]
    assert len(set(clusters(items))) == 2
    assert [str(image) for image in wrong_images(items, 0)] == ["flickr/1.jpg", "coco/1.jpg", "flickr/1.jpg"]
    with pytest.raises(InputError, match="different images, got 1"):
        wrong_images(items[:1], 0)


def test_wrong_images_do_not_depend_on_the_data_folder() -> None:
    def ring(root: str) -> list[str]:
        return [image.name for image in image_ring([Pair("", Path(root, f"{k}.jpg"), "p", "n") for k in range(9)], 3)]

    assert ring("/a/data") == ring("elsewhere")


def test_invalid_calls_are_rejected() -> None:
    items = _pairs(["x", "x"])
    with pytest.raises(InputError, match=r"got \(2, 3\)"):
        evaluate(benchmark("sugarcrepe"), items, np.zeros((2, 3)))
    with pytest.raises(UnknownNameError, match="'oficial'.*'official'"):
        evaluate(benchmark("sugarcrepe"), items, np.zeros((2, 2)), protocol="oficial")
    with pytest.raises(InputError, match="sugarcrepe: .*got none"):
        evaluate(benchmark("sugarcrepe"), [], [])


def test_elo_has_caparenas_number_of_resamples() -> None:
    assert bootstrap_elo(games(["a"], ["b"], [1])).draws.shape == (1000, 2)


def test_means_of_credits_are_the_figures_of_a_row_without_figures() -> None:
    protocols = "msdscore_lab.benchmarks.protocols"
    row = Benchmark(name="mine", kind="battles", reader="mine:read", credits=f"{protocols}.battles:caparena_credits")
    battles = [Battle(str(k), Path(f"{k}.jpg"), "x", "y", "a", "s", "t", level=str(k % 2)) for k in range(4)]
    scores = np.array([[1, 0], [0, 1], [1, 0], [1, 0]])
    figures = evaluate(row, battles, scores, how=_QUICK)
    assert {figure.name: figure.value for figure in figures} == {
        "agreement/all": 0.75, "agreement/0": 1.0, "agreement/1": 0.5,
    }  # fmt: skip
