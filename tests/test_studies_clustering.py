"""Clusterings of tokens: the Rand index against scikit-learn, entropies by hand, and both studies end to end."""

import json

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score
from typer.testing import CliRunner

from bench_sets import make_expert, make_sugarcrepe
from msdscore.benchmarks.registry import load
from msdscore.cli.app import app
from msdscore.core.variants.families import FAMILIES
from msdscore.errors import InputError
from msdscore.scorer import Scorer
from msdscore.stats.clusterings import adjusted_rand
from msdscore.studies.ablations.settings import MIXTURES
from msdscore.studies.clustering.assignments import distinct_captions, entropies, text_shares
from msdscore.studies.clustering.entropy import entropy_study
from msdscore.studies.clustering.stability import cluster_stability, score_spread
from msdscore.studies.paper.page import part


def test_the_rand_index_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    for size in (1, 2, 3, 7, 40):
        for _ in range(30):
            a, b = rng.integers(0, 3, size), rng.integers(0, 4, size)
            assert adjusted_rand(a, b) == pytest.approx(adjusted_rand_score(a, b), abs=1e-12)
    same = rng.integers(0, 3, 20)
    assert adjusted_rand(same, (same + 1) % 3) == 1.0
    with pytest.raises(InputError, match=r"expected two clusterings of the same items, got shapes \(2,\) and \(3,\)"):
        adjusted_rand([0, 1], [0, 1, 2])


def test_entropy_counts_real_tokens_alone():
    shares = torch.tensor([[[0.5, 1.0, 0.3], [0.5, 0.0, 0.7]]])
    mask = torch.tensor([[True, True, False]])
    assert entropies(shares, mask).item() == pytest.approx(np.log(2) / 2)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return make_sugarcrepe(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def pipeline():
    return Scorer("toy", "short").pipeline


@pytest.mark.parametrize("kind", MIXTURES.values())
def test_shares_are_those_of_the_last_step_of_em(pipeline, kind):
    """One more M-step from the shares must give the mixture's own means: EM has come to rest."""
    texts = pipeline.embed_texts(["a red square and a blue ball", "a green dog"])
    config = pipeline.config.changed(mixture=kind, iterations=60)
    shares, mask = text_shares(texts, config)
    assert shares.shape[1] == 2
    torch.testing.assert_close(shares.sum(dim=1)[mask], torch.ones(int(mask.sum()), dtype=shares.dtype))
    more, _ = text_shares(texts, config.changed(iterations=61))
    torch.testing.assert_close(more, shares, atol=2e-3, rtol=0)
    assert kind == "vmf" or kind in FAMILIES


def test_captions_are_taken_once_and_spread_evenly(root):
    items = load("sugarcrepe", root).items
    whole = distinct_captions(items, None)
    assert len(whole) == len({text for item in items for text in item.captions})
    assert [one.text for one in distinct_captions(items, 4)] == [one.text for one in whole[:: len(whole) // 4]][:4]


def test_adaptive_concentration_is_harder(root, pipeline):
    captions = distinct_captions(load("sugarcrepe", root).items, None)
    found = entropy_study(pipeline, captions, bins=2)
    assert len(found.lengths) == len(captions)
    for one in found.bins:
        assert 0 <= one.entropy["adaptive kappa"].value < one.entropy["fixed kappa"].value <= found.most + 1e-6
    assert json.dumps(found.to_dict())


def test_one_start_gives_one_score_and_seeds_do_not(root, pipeline):
    items = load("sugarcrepe", root).items
    found = cluster_stability(pipeline, distinct_captions(items, 6), seeds=2)
    assert [one.mixture for one in found] == list(MIXTURES)
    assert all(-1 <= value <= 1 for one in found for value in one.each)
    spread = score_spread(pipeline, items, seeds=3)
    assert len(spread.drawn) == 3
    assert spread.pairs == 16
    assert 0 <= spread.deviation.value < spread.between
    accuracy = np.mean([_score(pipeline, pair) for pair in items])
    assert spread.spread.value == pytest.approx(accuracy)


def _score(pipeline, pair):
    decoded = pipeline.decode([pair.image.read()])
    right, wrong = pipeline.score(decoded, pair.captions, [0, 0])
    return right.msd > wrong.msd


def test_the_commands(root, tmp_path):
    for name, key in (("stability", "clusterings"), ("entropy", "bins")):
        command = [
            "study",
            name,
            "--root",
            str(root),
            "-e",
            "toy",
            "--limit",
            "12",
            "-o",
            str(tmp_path / f"{name}.json"),
        ]
        answer = CliRunner().invoke(app, command)
        assert answer.exit_code == 0, f"{answer.output}{answer.exception}"
        found = json.loads((tmp_path / f"{name}.json").read_text())
        assert found[key]
        assert "kappa:20" in part(name, found)
        assert (tmp_path / f"{name}.png").is_file()
    rated = make_expert(tmp_path / "rated")
    answer = CliRunner().invoke(app, ["study", "stability", "--root", str(rated), "-e", "toy", "-b", "flickr8k-expert"])
    assert "expected at least one pair" in str(answer.exception)
