"""Terms of explanations add up to the score, identify the wrong word, and are located at their patches."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coloured_pairs import two_coloured
from counting import CountingEncoder
from msdscore import Scorer
from msdscore.core.mixture import FitSettings, fit
from msdscore.encoders.base import PatchLayout
from msdscore.errors import ConfigError
from msdscore.explain import projections
from msdscore.explain.explanation import Explanation
from msdscore.explain.projections import terms_of
from msdscore_lab.studies.faithfulness import PROJECTIONS
from tiny_clip import make_tiny_clip

# The score sums float32 terms in float32, the tests in float64.
ROUNDING = 1e-5


@pytest.fixture(scope="module")
def scorer():
    return Scorer("toy")


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    pytest.importorskip("transformers")
    return Scorer(str(make_tiny_clip(tmp_path_factory.mktemp("clip") / "tiny")), device="cpu")


def assert_adds_up(item: Explanation) -> None:
    assert item.coverage_terms.sum() == pytest.approx(item.score.coverage, abs=ROUNDING)
    assert item.support_terms.sum() == pytest.approx(item.score.support, abs=ROUNDING)
    weight = item.form.alpha * (1 - item.score.beta)
    assert sum(unit.term or 0.0 for unit in item.units) == pytest.approx(-weight * item.score.support, abs=ROUNDING)
    np.testing.assert_allclose(item.affinity.sum(axis=1), 1.0, atol=1e-12)
    score = item.score
    local = score.beta * item.coverage_terms.sum() + (1 - score.beta) * item.support_terms.sum()
    assert score.similarity - item.form.alpha * score.uncertainty * local == pytest.approx(score.soft_msd, abs=ROUNDING)


@settings(max_examples=12)
@given(st.lists(st.sampled_from(["red", "blue", "dog", "the", "left,", "a", "日本", "…"]), min_size=1, max_size=25))
def test_terms_add_up_to_the_score(words):
    caption = "green " + " ".join(words)
    assert_adds_up(Scorer("toy").explain(two_coloured("green", "red"), caption))


@pytest.mark.parametrize(
    "caption",
    ["a cat and the dog", "a cat, isn't it? " * 8, "the big-dog at the cat; 3.5 thé"],
    ids=["short", "windows", "marks"],
)
def test_subwords_merge_into_words_and_still_add_up(clip, caption):
    item = clip.explain(two_coloured("green", "red"), caption)
    assert_adds_up(item)
    assert len(item.support_terms) > len(item.words)
    assert all(unit.tokens for unit in item.units)
    assert sorted(token for unit in item.units for token in unit.tokens) == list(range(len(item.support_terms)))


def test_several_captions_share_one_candidate_set(scorer):
    image, captions = two_coloured("green", "red"), ["green and red", "blue and red", "purple"]
    contrast = scorer.explain(image, captions)
    assert [item.score for item in contrast] == list(scorer.rank(image, captions))
    for item in contrast:
        assert_adds_up(item)


def test_the_wrong_colour_is_the_least_supported_colour(scorer):
    item = scorer.explain(two_coloured("green", "red"), "green on the left and blue on the right")
    colours = [unit.text for unit in item.ranked if unit.text in ("green", "blue")]
    assert colours == ["blue", "green"]
    assert item.ranked == tuple(sorted(item.ranked, key=lambda unit: -(unit.gap or 0)))
    assert "least supported, nats: " in str(item)


def test_words_attend_to_the_regions_that_show_them(scorer):
    item = scorer.explain(two_coloured("green", "red"), "green and red")
    green, red = (item.word_map(unit) for unit in item.ranked[::-1] if unit.text in ("green", "red"))
    if item.ranked[-1].text == "red":
        green, red = red, green
    assert green[:, :3].sum() > 0.75  # smoothed over the border
    assert red[:, 3:].sum() > 0.75


def test_omission_map_shows_the_omitted_half(scorer):
    item = scorer.explain(two_coloured("green", "red"), "green green")
    assert item.omission_map[:, 3:].min() > item.omission_map[:, :3].max()
    assert item.support_map[:, :3].min() > 0 == item.support_map[:, 3:].max()
    assert item.penalty_map[:, 3:].min() > 0 == item.penalty_map[:, :3].max()


def test_words_without_tokens_have_no_term_and_no_map(scorer):
    item = scorer.explain(two_coloured("green", "red"), "green, red")
    comma = item.units[1]
    assert (comma.text, comma.term, comma.gap, comma.kind) == (",", None, None, "mark")
    with pytest.raises(ConfigError, match="no token at ','"):
        item.word_map(comma)


def test_one_caption_has_one_explanation_and_a_list_has_several(scorer):
    image = two_coloured("green", "red")
    assert scorer.explain(image, "green").caption == "green"
    assert [item.caption for item in scorer.explain(image, ("green", "a red wall"))] == ["green", "a red wall"]
    with pytest.raises(ConfigError, match="at least one"):
        scorer.explain(image, [])


def test_calibrated_terms_add_up_to_the_score(scorer):
    from msdscore.encoders.banks import build_bank

    images = [two_coloured(left, right) for left in ("blue", "white") for right in ("purple", "yellow", "red")]
    config = scorer.form.changed(calibration="background", gate="support")
    bank = build_bank(scorer.encoder, config, images, ["green", "blue and white", "a dog"])
    item = Scorer(scorer.encoder, config, bank=bank).explain(two_coloured("green", "red"), "the green on a red dog")
    assert_adds_up(item)
    silent = {unit.text: unit.gap for unit in item.words}
    assert abs(silent["the"]) < 0.5 < -silent["green"]  # function words have the same terms on all images


def layout(grid, boxes, size):
    return PatchLayout(size, grid, np.array(boxes, dtype=np.float32))


def test_pixels_follow_the_boxes_of_a_cropped_view():
    # Two cells over the middle of an 8 x 4 image: the outer columns were cropped.
    cropped = layout((1, 2), [[2, 0, 4, 4], [4, 0, 6, 4]], (8, 4))
    seen = projections.pixels(np.array([0.0, 1.0]), cropped)
    assert seen.shape == (4, 8)
    assert np.isnan(seen[:, [0, 1, 6, 7]]).all()
    np.testing.assert_allclose(seen[0, 2:6], [0.0, 0.25, 0.75, 1.0])


def test_cells_of_padding_are_not_shown():
    padded = layout((2, 1), [[0, 0, 4, 0], [0, 0, 4, 4]], (4, 4))
    np.testing.assert_allclose(projections.pixels(np.array([9.0, 1.0]), padded), np.ones((4, 4)))


def test_pixels_at_another_size_are_the_same_map():
    cells = layout((2, 2), [[0, 0, 4, 4], [4, 0, 8, 4], [0, 4, 4, 8], [4, 4, 8, 8]], (8, 8))
    values = np.array([0.0, 1.0, 2.0, 3.0])
    small, large = projections.pixels(values, cells, (4, 4)), projections.pixels(values, cells)
    np.testing.assert_allclose(small.mean(), large.mean())
    np.testing.assert_allclose(large[0, 0], 0.0)
    np.testing.assert_allclose(large[-1, -1], 3.0)


def test_removals_equal_the_derivative_by_the_weight_of_a_patch():
    rng = np.random.default_rng(0)
    points, tokens = (torch.nn.functional.normalize(torch.tensor(rng.normal(size=(n, 4))), dim=1) for n in (9, 3))
    mask, keys = torch.ones(1, 9, dtype=torch.bool), torch.zeros(1, dtype=torch.int64)
    mixture = fit(points[None], mask, keys, FitSettings(components=3, kappa=5.0, iterations=200))
    means, log_weights = mixture.means[0].numpy(), mixture.log_weights[0].numpy()
    x, y = points.numpy(), tokens.numpy()
    shares = projections.responsibilities(x, means, 5.0, log_weights)

    def log_density(weights):  # with fixed responsibilities and lower patch weights
        mass = (weights[:, None] * shares).sum(axis=0)
        sums = shares.T @ (weights[:, None] * x)
        logits = np.log(mass / weights.sum()) + 5.0 * y @ (sums / np.linalg.norm(sums, axis=1, keepdims=True)).T
        return np.log(np.exp(logits).sum(axis=1))

    step = 1e-6
    slopes = [(log_density(np.ones(9) - step * np.eye(9)[i]) - log_density(np.ones(9))) / step for i in range(9)]
    changes = projections.removals(x, y, means, log_weights, 5.0)
    np.testing.assert_allclose(changes, np.array(slopes).T, atol=1e-4)


def test_influence_predicts_the_effect_of_dropping_a_patch(scorer):
    # One patch at a time, with a new fit.
    exact = Scorer(scorer.encoder, scorer.form.changed(gate="support"))
    pipeline = exact.pipeline
    images = pipeline.embedder.images(pipeline.decode([two_coloured("green", "red")]))
    texts = pipeline.embedder.texts(["green and blue in the middle"])
    measured = pipeline.measure(images, texts, [0], [0])
    expected = projections.influence(terms_of(exact.form, images, texts, measured)[0])[0]
    rises = []
    for patch in range(36):
        mask = images.batch.mask.copy()
        mask[0, patch] = False
        less = replace(images, batch=replace(images.batch, mask=mask))
        after = pipeline.measure(less, texts, [0], [0]).terms.support[0]
        rises.append(float(after - measured.terms.support[0]))
    assert np.corrcoef(expected, rises)[0, 1] > 0.9


def test_influence_on_coverage_equals_leave_one_out():
    ratios = np.array([1.0, 2.0, 6.0])
    terms = projections.MapTerms(ratios / 3, np.zeros(1), np.full((1, 3), 1 / 3), np.zeros((1, 3)), 1.0, np.ones(1))
    left_out = [np.delete(ratios, index).mean() - ratios.mean() for index in range(3)]
    np.testing.assert_allclose(projections.influence(terms)[0], left_out, atol=1e-12)


@pytest.mark.parametrize("name", PROJECTIONS)
def test_projections_have_one_value_per_patch(name):
    spread = np.array([[0.8, 0.1, 0.1], [0.1, 0.1, 0.8]])
    terms = projections.MapTerms(
        np.array([0.1, 0.3, -0.2]), np.array([0.5, -0.4]), spread, -spread, 0.5, np.full(2, 0.5)
    )
    support, penalty = PROJECTIONS[name](terms)
    assert support.shape == penalty.shape == (3,)
    assert np.argmax(support) == 2


def test_json_contains_all_values(scorer):
    item = scorer.explain(two_coloured("green", "red"), "green, blue")
    plain = json.loads(json.dumps(item.to_dict()))
    assert sum(plain["coverage_terms"]) == pytest.approx(plain["score"]["coverage"], abs=ROUNDING)
    assert sum(token["term"] for token in plain["tokens"]) == pytest.approx(plain["score"]["support"], abs=ROUNDING)
    assert [word["text"] for word in plain["words"]] == ["green", ",", "blue"]
    assert plain["words"][0]["leans_on"][0]["right"] <= 48
    assert plain["signature"] == scorer.signature
    assert np.array(plain["support_map"]).shape == (plain["image"]["rows"], plain["image"]["columns"])


class Masking(CountingEncoder):
    """The toy encoder with some patches of every image masked."""

    def __init__(self, masked):
        super().__init__()
        self.masked = masked

    def encode_images(self, images):
        batch = super().encode_images(images)
        mask = batch.mask.copy()
        mask[:, self.masked] = False
        return replace(batch, mask=mask)


def test_masked_patches_keep_their_position(tmp_path):
    masked = [0, 7, 20]
    item = Scorer(Masking(masked)).explain(two_coloured("green", "red"), "green on a red dog")
    count = len(item.patches.boxes)
    assert item.coverage_terms.shape == (count,)
    assert item.coverage_terms[masked].tolist() == [0, 0, 0]
    assert item.coverage_terms.sum() == pytest.approx(item.score.coverage, abs=1e-5)
    assert item.omission_map.shape == item.support_map.shape == item.patches.grid
    assert item.affinity.sum(axis=1) == pytest.approx(np.ones(len(item.support_terms)))
    whole = Scorer("toy").explain(two_coloured("green", "red"), "green on a red dog")
    leaning = [shown.word_map(shown.words[0]).ravel() for shown in (item, whole)]
    visible = np.setdiff1d(np.arange(count), masked)
    # "green" attends to the same patches, independent of their index among the visible ones.
    assert np.corrcoef(leaning[0][visible], leaning[1][visible])[0, 1] > 0.99
    item.save(tmp_path / "why.html")
    assert item.to_dict()["most_omitted"][0]["value"] == item.coverage_terms.max()


def test_the_centre_prior_is_highest_in_the_middle_and_symmetric():
    prior = projections.centre(5, 5).reshape(5, 5)
    assert prior.argmax() == 12
    assert np.allclose(prior, prior.T)
    assert np.allclose(prior, prior[::-1])


def test_region_is_smooth_prefers_the_centre_and_keeps_the_sum():
    values = np.zeros(49)
    values[[0, 24]] = 1.0  # a corner and the centre
    shown = projections.region(values, (7, 7), np.ones(49, dtype=bool)).reshape(7, 7)
    assert shown.sum() == pytest.approx(2.0)
    assert shown.argmax() == 24
    assert shown[3, 2] > shown[0, 0] > 0
    hidden = np.ones(49, dtype=bool)
    hidden[:7] = False
    masked = projections.region(values, (7, 7), hidden).reshape(7, 7)
    assert (masked[0] == 0).all()
    assert masked.sum() == pytest.approx(2.0)
