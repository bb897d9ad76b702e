"""Loss terms against plain loops, closed forms and gradients."""

import math
from dataclasses import replace

import pytest
import torch

from align_data import projected
from msdscore.core.mixture import FitSettings, fit
from msdscore_lab.align.aligner import make_optimiser
from msdscore_lab.align.losses import (
    absent_words,
    caption_table,
    fit_mixtures,
    info_nce,
    kl_tables,
    negatives_loss,
    same_images,
    token_table,
    word_loss,
)
from msdscore_lab.align.recipe import TrainSpec
from point_sets import terms


def test_info_nce_equals_the_formula_of_the_paper():
    logits = torch.randn(4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    none = torch.zeros(4, 4, dtype=torch.bool)
    wanted = 0.0
    for i in range(4):
        row = sum(math.exp(logits[i, j]) for j in range(4))
        column = sum(math.exp(logits[j, i]) for j in range(4))
        wanted -= math.log(math.exp(logits[i, i]) / row) + math.log(math.exp(logits[i, i]) / column)
    assert float(info_nce(logits, none)) == pytest.approx(wanted / 8, abs=1e-12)


def test_repeated_image_is_not_its_own_negative():
    logits = torch.randn(3, 3, dtype=torch.float64)
    excluded = same_images(torch.tensor([4, 7, 4]))
    changed = logits.clone()
    changed[0, 2] = changed[2, 0] = 50.0
    assert torch.equal(info_nce(logits, excluded), info_nce(changed, excluded))


def test_token_table_is_the_maximum_over_patches(monkeypatch):
    images, texts = projected(3, 4, seed=1), projected(3, 5, seed=2)
    tokens = texts.points[texts.mask]
    wanted = torch.stack(
        [torch.stack([max(x @ y for x in images.points[b][images.mask[b]]) for b in range(3)]) for y in tokens]
    )
    assert torch.allclose(token_table(images, tokens), wanted)
    monkeypatch.setattr("msdscore_lab.align.losses.MAX_TABLE_SIZE", 1)
    assert torch.allclose(token_table(images, tokens), wanted)


def test_caption_table_is_the_mean_over_tokens():
    images, texts = projected(2, 4, seed=1), projected(3, 5, seed=2)
    table = token_table(images, texts.points[texts.mask])
    found = caption_table(table, texts.mask)
    assert found.shape == (2, 3)
    for image in range(2):
        for text in range(3):
            own = [
                max(x @ y for x in images.points[image][images.mask[image]])
                for y in texts.points[text][texts.mask[text]]
            ]
            assert float(found[image, text]) == pytest.approx(float(sum(own)) / len(own), abs=1e-12)


def test_word_loss_equals_a_plain_loop():
    table = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    owner = torch.tensor([0, 0, 1, 2, 2])
    words = torch.tensor([1, 2, 2, 3, 4])
    images = torch.tensor([[1, 2, 9], [2, 4, -1], [3, 4, -1]])
    absent = absent_words(words, images)
    assert absent.tolist() == [
        [False, True, True],
        [False, False, True],
        [False, False, True],
        [True, True, False],
        [True, False, False],
    ]
    scale, total = 2.0, 0.0
    for t in range(5):
        own = math.exp(scale * table[t, owner[t]])
        others = sum(math.exp(scale * table[t, b]) for b in range(3) if absent[t, b])
        rest = sum(math.exp(scale * table[u, owner[t]]) for u in range(5) if absent[u, owner[t]])
        total += math.log((own + others) / own) + math.log((own + rest) / own)
    found = word_loss(table, owner, absent, torch.tensor(scale, dtype=torch.float64))
    assert float(found) == pytest.approx(total / 10, abs=1e-12)


def test_word_loss_of_words_in_all_images_is_zero_with_zero_gradient():
    table = torch.randn(2, 2, requires_grad=True)
    loss = word_loss(table, torch.tensor([0, 1]), torch.zeros(2, 2, dtype=torch.bool), torch.tensor(1.0))
    loss.backward()
    assert loss.item() == pytest.approx(0.0, abs=1e-6)
    assert torch.allclose(table.grad, torch.zeros(2, 2), atol=1e-6)


def test_missing_hard_negatives_have_zero_loss():
    loss = negatives_loss(
        torch.tensor([0.3, 0.3]),
        torch.tensor([[0.3, 9.0], [9.0, 9.0]]),
        torch.tensor([[True, False], [False, False]]),
        torch.tensor(1.0),
    )
    assert float(loss) == pytest.approx(math.log(2) / 2, abs=1e-6)


@pytest.mark.parametrize("direction", ["support", "coverage"])
def test_kl_table_equals_the_divergence_of_the_score(direction):
    images, texts = projected(3, 6, seed=1), projected(3, 5, seed=2)
    of_images = FitSettings(components=3, iterations=4)
    of_texts = FitSettings(components=2, iterations=4)
    (found,) = kl_tables(images, texts, fit_mixtures(images, of_images), of_texts, direction=direction)
    keys = torch.zeros(1, dtype=torch.int64)
    for i in range(3):
        for j in range(3):
            x, y = images.points[i : i + 1], texts.points[j : j + 1]
            image = fit(x, images.mask[i : i + 1], keys, of_images)
            text = fit(y, texts.mask[j : j + 1], keys, of_texts)
            if direction == "support":
                wanted = terms(y, texts.mask[j : j + 1], own=text, other=image).sum()
            else:
                wanted = terms(x, images.mask[i : i + 1], own=image, other=text).sum()
            assert float(found[i, j]) == pytest.approx(-float(wanted), abs=1e-9)


def test_kl_gradients_flow_through_all_em_iterations():
    fitting = FitSettings(components=2, iterations=3)
    images, texts = projected(2, 4, seed=1, requires_grad=True), projected(2, 3, seed=2)

    def value(points):
        side = replace(images, points=points)
        return kl_tables(side, texts, fit_mixtures(side, fitting), fitting, direction="both")[0].diagonal().sum()

    assert torch.autograd.gradcheck(value, (images.points,), atol=1e-5)


def test_token_table_has_the_gradient_of_the_maximum(monkeypatch):
    images = projected(3, 6, seed=3, requires_grad=True)
    texts = projected(2, 4, seed=4)
    tokens = texts.points[texts.mask].requires_grad_(True)
    for room in (1, 1 << 20):
        monkeypatch.setattr("msdscore_lab.align.losses.MAX_TABLE_SIZE", room)

        def table(tokens, points):
            return token_table(replace(images, points=points), tokens)

        assert torch.autograd.gradcheck(table, (tokens, images.points))
        plain = (tokens @ images.points.mT).masked_fill(~images.mask.unsqueeze(1), -torch.inf).amax(dim=2).mT
        assert torch.allclose(table(tokens, images.points), plain, atol=1e-12)


def test_weight_decay_applies_only_to_matrices():
    class Parts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.matrix = torch.nn.Linear(2, 3)
            self.log_scale = torch.nn.Parameter(torch.tensor(1.0))

        def scaled_parameters(self):
            return [(list(self.parameters()), 0.5)]

    parts = Parts()
    groups = make_optimiser(parts, TrainSpec(weight_decay=0.3, lr=0.1)).param_groups
    decay = {id(parameter): group["weight_decay"] for group in groups for parameter in group["params"]}
    assert decay[id(parts.matrix.weight)] == 0.3
    assert decay[id(parts.matrix.bias)] == decay[id(parts.log_scale)] == 0.0
    assert {group["lr_factor"] for group in groups} == {0.5}
