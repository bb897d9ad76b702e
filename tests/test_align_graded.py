"""Graded relevance, grounded negatives, several captions per image and unrolled divergences against plain loops."""

import math
from random import Random

import pytest
import torch

from align_data import projected
from msdscore.core.mixture import FitSettings, fit
from msdscore.text.words import stem
from msdscore_lab.align.data.negatives import CLASS_OF, CLASSES, MOVABLE, class_weights, make_negatives
from msdscore_lab.align.losses import fit_mixtures, info_nce, kl_tables, same_images
from msdscore_lab.edits import words_of
from point_sets import terms
from train_mini.losses import bias_loss, centred, graded_loss, grounded_loss


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_graded_loss_equals_a_plain_loop():
    similarity, wanted = numbers(3, 6, seed=1), numbers(3, 6, seed=2)
    gain, offset = torch.tensor(1.3, dtype=torch.float64), torch.tensor(-0.2, dtype=torch.float64)
    plain = sum((1.3 * float(similarity[i, j]) - 0.2 - float(wanted[i, j])) ** 2 for i in range(3) for j in range(6))
    assert float(graded_loss(similarity, wanted, gain, offset)) == pytest.approx(100 * plain / 18, rel=1e-12)
    total = 0.0
    for j in range(6):
        s, r = similarity[:, j].tolist(), wanted[:, j].tolist()
        total += sum((1.3 * (s[i] - sum(s) / 3) - (r[i] - sum(r) / 3)) ** 2 for i in range(3))
    found = graded_loss(centred(similarity), centred(wanted), gain)
    assert float(found) == pytest.approx(100 * total / 18, rel=1e-12)


def test_graded_loss_passes_gradcheck():
    similarity = numbers(2, 4).requires_grad_()
    gain, offset = numbers(1, seed=3)[0].requires_grad_(), numbers(1, seed=4)[0].requires_grad_()
    wanted = numbers(2, 4, seed=5)
    assert torch.autograd.gradcheck(lambda s, a, b: graded_loss(s, wanted, a, b), (similarity, gain, offset))
    assert torch.autograd.gradcheck(lambda s, a: graded_loss(centred(s), wanted, a), (similarity, gain))


def test_grounded_negatives_and_their_bias_equal_plain_loops():
    table, owner, scale = numbers(3, 4), torch.tensor([0, 2, 2, 1]), torch.tensor(2.5, dtype=torch.float64)
    grounded, bias = 0.0, 0.0
    for n in range(4):
        column = table[:, n].tolist()
        mean = sum(column) / 3
        grounded += math.log1p(math.exp(-2.5 * (column[int(owner[n])] - mean)))
        bias += (2.5 * mean) ** 2
    assert float(grounded_loss(table, owner, scale)) == pytest.approx(grounded, rel=1e-12)
    assert float(bias_loss(table, scale)) == pytest.approx(bias, rel=1e-12)


def test_preference_independent_of_the_image_has_no_gain_and_costs_its_bias():
    table, owner, scale = numbers(3, 4), torch.tensor([0, 2, 2, 1]), torch.tensor(2.5, dtype=torch.float64)
    shifted = table + torch.tensor([1.0, 2.0, -3.0, 0.5])
    assert torch.allclose(grounded_loss(shifted, owner, scale), grounded_loss(table, owner, scale))
    assert float(bias_loss(centred(table), scale)) == pytest.approx(0.0, abs=1e-20)


def test_grounded_negatives_pass_gradcheck_and_bias_does_not_train_the_temperature():
    table, scale = numbers(3, 4).requires_grad_(), torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    owner = torch.tensor([0, 2, 2, 1])
    assert torch.autograd.gradcheck(lambda t, s: grounded_loss(t, owner, s), (table, scale))
    assert torch.autograd.gradcheck(lambda t: bias_loss(t, scale), (table,))
    bias_loss(table, scale).backward()
    assert scale.grad is None


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


def test_each_direction_has_a_table_and_coverage_may_skip_patches():
    images, texts = projected(2, 7, seed=1), projected(4, 5, seed=2)
    of_images = FitSettings(components=3, iterations=3)
    of_texts = FitSettings(components=2, iterations=3)
    support, coverage = kl_tables(images, texts, fit_mixtures(images, of_images), of_texts, direction="each", stride=2)
    keys = torch.zeros(1, dtype=torch.int64)
    for i in range(2):
        for j in range(4):
            x, y = images.points[i : i + 1], texts.points[j : j + 1]
            seen, said = images.mask[i : i + 1], texts.mask[j : j + 1]
            image, text = fit(x, seen, keys, of_images), fit(y, said, keys, of_texts)
            to_image = terms(y, said, own=text, other=image).sum()
            to_text = terms(x[:, ::2], seen[:, ::2], own=image, other=text).sum()
            assert float(support[i, j]) == pytest.approx(-float(to_image), abs=1e-9)
            assert float(coverage[i, j]) == pytest.approx(-float(to_text), abs=1e-9)


CAPTIONS = ["Two dogs chase a red ball on the beach .", "A man in a black hat is standing near a bus, smiling."]


@pytest.mark.parametrize("caption", CAPTIONS)
def test_negative_replaces_a_word_of_the_same_class_or_swaps_two(caption):
    banned, chance = words_of(CAPTIONS), Random(0)
    for changed in (made for _ in range(40) for made in make_negatives(caption, banned, 2, chance)):
        before, after = caption.lower().split(), changed.lower().split()
        differing = [(a.strip(".,"), b.strip(".,")) for a, b in zip(before, after, strict=True) if a != b]
        if len(differing) == 2:
            assert differing[0] == differing[1][::-1]
            continue
        ((old, new),) = differing
        # A word such as orange belongs to two classes, so all classes of the new word are checked.
        own = MOVABLE if CLASS_OF[old] in MOVABLE else (CLASS_OF[old],)
        assert any(new in CLASSES[name] for name in own)
        assert not {new, stem(new)} & banned


def test_frequent_words_are_sampled_more_often():
    captions = ["a red dog"] * 400
    weights = class_weights(captions)
    assert weights == {"red": 21.0, "dog": 21.0}
    drawn = [make_negatives("a blue sky", (), 1, Random(n), weights=weights)[0] for n in range(200)]
    share = sum("red" in text for text in drawn) / 200
    # 21 of the 21 + 13 other colours' weights; three standard deviations of 200 draws are 0.1.
    assert share == pytest.approx(21 / (21 + len(CLASSES["colours"]) - 2), abs=0.1)
