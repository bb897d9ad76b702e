"""Loss terms against plain loops, closed forms and gradients."""

import math

import pytest
import torch

from msdscore_lab.align.aligner import make_optimiser
from msdscore_lab.align.objective import info_nce, same_images
from msdscore_lab.align.recipe import TrainSpec


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


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_captions_of_one_image_share_its_contrastive_weight():
    logits, owner = numbers(3, 6), torch.tensor([0, 0, 1, 1, 2, 2])
    excluded = same_images(torch.tensor([4, 7, 4]), 2)
    wanted = 0.0
    for caption in range(6):
        own = int(owner[caption])
        column = sum(math.exp(logits[i, caption]) for i in range(3) if not excluded[i, caption])
        row = sum(math.exp(logits[own, j]) for j in range(6) if not excluded[own, j])
        wanted += math.log(column) + math.log(row) - 2 * float(logits[own, caption])
    assert float(info_nce(logits, excluded)) == pytest.approx(wanted / 12, abs=1e-12)
    assert excluded[0].tolist() == [False, False, False, False, True, True]
