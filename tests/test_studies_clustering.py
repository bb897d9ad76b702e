"""Clustering of tokens: entropies by hand, and both studies end to end."""

import json

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from bench_sets import make_expert, make_sugarcrepe
from command_line import invoke
from msdscore.scorer import Scorer
from msdscore.scoring.spec import ScorerSpec
from msdscore_lab.benchmarks.registry import load
from msdscore_lab.paper.sections import study_grids
from msdscore_lab.studies.ablations.clustering import (
    adjusted_rand,
    distinct_captions,
    entropies,
    entropy,
    stability,
    text_responsibilities,
)
from msdscore_lab.studies.ablations.mixtures import FAMILIES, with_mixture
from msdscore_lab.studies.ablations.sweep import MIXTURES
from msdscore_lab.studies.context import Study


def test_rand_index_equals_scikit_learn():
    rng = np.random.default_rng(0)
    for size in (1, 2, 3, 7, 40):
        for _ in range(10):
            a, b = rng.integers(0, 3, size), rng.integers(0, 4, size)
            assert adjusted_rand(a, b) == pytest.approx(adjusted_rand_score(a, b), abs=1e-12)
    same = rng.integers(0, 3, 20)
    assert adjusted_rand(same, (same + 1) % 3) == 1.0


def test_entropy_counts_real_tokens_only():
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
def test_responsibilities_are_those_of_the_last_em_step(pipeline, kind):
    """Another M-step must reproduce the means, because EM has converged."""
    texts = pipeline.embedder.texts(["a red square and a blue ball", "a green dog"])
    config = with_mixture(pipeline.form, kind, iterations=60)
    shares, mask = text_responsibilities(texts, config)
    assert shares.shape[1] == 2
    torch.testing.assert_close(shares.sum(dim=1)[mask], torch.ones(int(mask.sum()), dtype=shares.dtype))
    more, _ = text_responsibilities(texts, config.changed(iterations=61))
    torch.testing.assert_close(more, shares, atol=2e-3, rtol=0)
    assert kind == "vmf" or kind in FAMILIES


def test_captions_are_distinct_and_evenly_spread(root):
    items = load("sugarcrepe", root).items
    whole = distinct_captions(items, None)
    assert len(whole) == len({text for item in items for text in item.captions})
    assert distinct_captions(items, 4) == whole[:: len(whole) // 4][:4]


def test_adaptive_concentration_is_harder(root):
    bins, captions = entropy(Study(root=root, spec=ScorerSpec(encoder="toy")), bins=2)
    assert len(captions.rows) == len(distinct_captions(load("sugarcrepe", root).items, None))
    for row in bins.rows:
        adaptive, fixed = (row[f"entropy, {kind} kappa"].value for kind in ("adaptive", "fixed"))
        assert 0 <= adaptive < fixed <= bins.facts["largest_possible"] + 1e-6


@pytest.mark.slow
def test_clusterings_depend_on_the_seed_of_random_starts(root):
    clusterings, captions = stability(Study(root=root, spec=ScorerSpec(encoder="toy")), seeds=3)
    assert [row["mixture"] for row in clusterings.rows] == list(MIXTURES)
    assert all(-1 <= row["index"] <= 1 for row in captions.rows)
    assert min(row["index"] for row in captions.rows) < 1


@pytest.mark.slow
def test_clustering_commands(root, tmp_path):
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
        answer = invoke(*command)
        assert answer.exit_code == 0, f"{answer.output}{answer.exception}"
        found = json.loads((tmp_path / f"{name}.json").read_text())
        assert next(table for table in found["tables"] if table["name"] == key)["rows"]
        assert "kappa:20" in study_grids(name, found)[0].notes[-1]
        assert (tmp_path / f"{name}.png").is_file()
    rated = make_expert(tmp_path / "rated")
    answer = invoke("study", "stability", "--root", str(rated), "-e", "toy", "-b", "flickr8k-expert")
    assert "expected at least one pair" in str(answer.exception)
