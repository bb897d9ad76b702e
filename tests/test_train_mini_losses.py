"""Losses of `mini` against plain loops, closed forms and gradients; hard negatives by rule."""

import math
from dataclasses import replace
from random import Random

import pytest
import torch

from align_data import projected
from msdscore.core.mixture import FitSettings, fit
from msdscore.text.words import stem
from msdscore_lab.edits import words_of
from point_sets import terms
from train_mini.local_losses import caption_table, fit_mixtures, kl_tables, token_table, word_loss
from train_mini.losses import bias_loss, centred, graded_loss, grounded_loss
from train_mini.negatives import CLASS_OF, CLASSES, MOVABLE, class_weights, make_negatives


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


def mixtures(images, texts, of_images, of_texts):
    return fit_mixtures(images, of_images), fit_mixtures(texts, of_texts)


def test_each_direction_has_a_table_and_coverage_may_skip_patches():
    images, texts = projected(2, 7, seed=1), projected(4, 5, seed=2)
    of_images = FitSettings(components=3, iterations=3)
    of_texts = FitSettings(components=2, iterations=3)
    support, coverage = kl_tables(images, texts, *mixtures(images, texts, of_images, of_texts), stride=2)
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


def test_kl_gradients_flow_through_all_em_iterations():
    fitting = FitSettings(components=2, iterations=3)
    images, texts = projected(2, 4, seed=1, requires_grad=True), projected(2, 3, seed=2)

    def value(points):
        side = replace(images, points=points)
        return sum(table.diagonal().sum() for table in kl_tables(side, texts, *mixtures(side, texts, fitting, fitting)))

    assert torch.autograd.gradcheck(value, (images.points,), atol=1e-5)


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
    absent = torch.tensor([[0, 1, 1], [0, 0, 1], [0, 0, 1], [1, 1, 0], [1, 0, 0]], dtype=torch.bool)
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


def test_token_table_has_the_gradient_of_the_maximum(monkeypatch):
    images = projected(3, 6, seed=3, requires_grad=True)
    texts = projected(2, 4, seed=4)
    tokens = texts.points[texts.mask].requires_grad_(True)
    for room in (1, 1 << 20):
        monkeypatch.setattr("train_mini.local_losses.MAX_TABLE_SIZE", room)

        def table(tokens, points):
            return token_table(replace(images, points=points), tokens)

        assert torch.autograd.gradcheck(table, (tokens, images.points))
        plain = (tokens @ images.points.mT).masked_fill(~images.mask.unsqueeze(1), -torch.inf).amax(dim=2).mT
        assert torch.allclose(table(tokens, images.points), plain, atol=1e-12)


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
