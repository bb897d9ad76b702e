"""The evidence form: evidence of words, precision, information, p-values, match and missing words."""

import json
import os
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from coloured_pairs import PLAIN, coloured, write_coloured
from command_line import completed, invoke, msdscore
from msdscore import Scorer
from msdscore.core.divergence import fit_all
from msdscore.core.evidence import (
    JUDGED,
    TYPICAL,
    ZERO,
    Match,
    WordCalibration,
    WordKind,
    information_terms,
    penalty_terms,
    precision_terms,
    verdict,
    word_evidence,
)
from msdscore.encoders.banks import BankQuality, load_bank, named, save_bank
from msdscore.encoders.registry import load_encoder
from msdscore.errors import ConfigError, UnknownNameError
from msdscore.forms.evidence import Evidence
from msdscore.forms.paper import Paper
from msdscore.forms.registry import find_form
from msdscore.io.images import sample_image
from msdscore.scoring import pipeline
from msdscore.scoring.spec import ScorerSpec
from msdscore_lab.bank.calibrate import (
    calibrated_bank,
    fit_logistic,
    reliabilities,
    share_above,
    similar_texts,
    word_calibration,
)
from test_scoring import make_image, tiny_clip

KINDS = (
    WordKind(0.1, tuple(np.linspace(-1.0, 9.0, 201).tolist()), 0.3, -1.0),
    WordKind(0.5, tuple(np.linspace(0.0, 20.0, 201).tolist()), 0.6, -3.0),
)
WORDS = WordCalibration({"dog": 0.9, "grass": 0.3, "thing": 0.01}, 0.2, KINDS, 2.0)
margins = st.lists(st.floats(-8, 8), min_size=1, max_size=12)


@pytest.fixture(scope="module", params=["tiny clip", "toy"])
def bank(request):
    encoder = tiny_clip() if request.param == "tiny clip" else load_encoder("toy")
    return encoder, calibrated_bank(encoder, Evidence(components=2), *coloured(), background=20)


def rows(values):
    return torch.tensor([values], dtype=torch.float64)


def test_precision_by_hand():
    terms = precision_terms(rows([4.0, 2.0, -6.0]), rows([1.0, 2.0, 1.0]))
    assert terms[0].tolist() == pytest.approx([4 / 4, 2 * 2 / 4, -6 / 4])
    assert precision_terms(rows([4.0, -2.0]), rows([0.5, 0.5])).sum().item() == pytest.approx(1.0)  # a plain mean
    assert precision_terms(rows([4.0, -2.0]), rows([0.0, 0.0])).tolist() == [[0.0, 0.0]]


def test_doubt_by_hand():
    odds, settled, weights = rows([2.0, -1.0, 0.5]), rows([1.5, 1.0, 1.0]), rows([0.5, 1.0, 0.2])
    belongs = 1 / (1 + np.exp(-(0.5 * 2 - 1 + 0.2 * 0.5) / 1.7))
    assert penalty_terms(odds, settled, weights)[0].tolist() == pytest.approx([0.0, belongs * 2.0, belongs * 0.2 * 0.5])
    assert penalty_terms(odds, settled, 0 * weights).tolist() == [[0.0, 0.0, 0.0]]


@given(margins, st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_doubt_equals_a_plain_sum_and_ignores_padding(odds, seed):
    rng = np.random.default_rng(seed)
    weights, settled = rng.uniform(0.01, 1, len(odds)), rng.uniform(-1, 3, len(odds))
    belongs = 1 / (1 + np.exp(-(weights @ np.array(odds)) / weights.sum()))
    expected = belongs * sum(w * max(h - o, 0) for w, h, o in zip(weights, settled, odds, strict=True))
    for width in (0, 3):
        sides = rows(odds + [-99.0] * width), rows([*settled, *[9.0] * width]), rows([*weights, *[0.0] * width])
        assert penalty_terms(*sides).sum().item() == pytest.approx(expected, abs=1e-9)


def naive(margin, weights, spread):
    whole = sum(weights)
    if not whole:
        return 0.0, 0.0
    scored = sum(w * t for t, w in zip(margin, weights, strict=True))
    return scored / whole, scored / (spread * sum(w * w for w in weights) ** 0.5)


@given(margins, st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_parts_equal_a_plain_loop_for_any_padding_order_and_dtype(margin, seed):
    rng = np.random.default_rng(seed)
    weights = rng.uniform(0.01, 1, len(margin)).tolist()
    precision, information = naive(margin, weights, 1.7)
    for width in (0, 3):  # padding has no weight
        t, w = rows(margin + [99.0] * width), rows(weights + [0.0] * width)
        assert precision_terms(t, w).sum().item() == pytest.approx(precision, abs=1e-12)
        assert information_terms(t, w, spread=1.7).sum().item() == pytest.approx(information, abs=1e-12)
    order = rng.permutation(len(margin))
    shuffled = [margin[n] for n in order], [weights[n] for n in order]
    assert naive(*shuffled, 1.7) == pytest.approx((precision, information), abs=1e-9)
    single = precision_terms(rows(margin).float(), rows(weights).float()).sum().item()
    assert single == pytest.approx(precision, abs=1e-4)  # float32 against float64


@given(margins)
@settings(max_examples=60, deadline=None)
def test_terms_have_the_sign_of_their_margin(margin):
    weights = [0.5] * len(margin)
    for terms in (
        precision_terms(rows(margin), rows(weights)),
        information_terms(rows(margin), rows(weights), spread=2.0),
    ):
        assert (terms[0].numpy() * np.array(margin) >= 0).all()  # tiny margins may round to zero
    true, false = (precision_terms(rows([*margin, value]), rows([*weights, 0.5])).sum() for value in (3.0, -3.0))
    assert false < true


def test_evidence_of_a_word_is_the_mean_over_its_tokens():
    words = torch.tensor([[[0, 2], [3, -1], [-1, -1]]])
    tokens = torch.tensor([[1.0, 100.0, 3.0, 7.0]])
    assert word_evidence(tokens, words).tolist() == [[2.0, 7.0, 0.0]]


def test_kinds_and_weights_of_words():
    assert [WORDS.kind_of(word) for word in ("dog", "grass", "unheard-of", "thing")] == [1, 0, 0, None]
    assert [WORDS.weight_of(word) for word in ("dog", "thing")] == [0.9, 0.0]


def test_word_at_the_reliability_threshold_belongs_to_the_kind():
    words = replace(WORDS, reliability={"at": 0.5, "under": 0.4999, "least": JUDGED, "less": JUDGED - 1e-4})
    assert [words.kind_of(word) for word in ("at", "under", "least", "less")] == [1, 0, 0, None]
    assert [words.weight_of(word) for word in ("least", "less")] == [JUDGED, 0.0]


def test_zero_and_scale_of_log_odds_follow_the_quantiles_of_true_words():
    weak, strong = KINDS
    assert (weak.zero, strong.zero) == pytest.approx((-1 + 0.1 * 10, 0.1 * 20))
    assert (weak.settled, strong.settled) == pytest.approx((0.3 * 4 - 1, 1.0))  # the strong one's median has 3
    at = np.array([weak.zero, weak.quantiles[100]])
    assert WORDS.judge(at, np.array([0, 0]), np.ones(2))[0].tolist() == pytest.approx([ZERO, TYPICAL])


def test_p_values_of_true_words_are_uniform():
    rng = np.random.default_rng(0)
    true = rng.normal(6, 3, 4000)
    kind = WordKind(0.1, tuple(np.quantile(true[:2000], np.linspace(0, 1, 201)).tolist()), 1.0, 0.0)
    words = WordCalibration({}, 0.2, (kind,), 1.0)
    p = words.judge(true[2000:], np.zeros(2000, dtype=np.int64), np.ones(2000))[0]
    for level in (0.05, 0.1, 0.5, 0.9):
        assert (p < level).mean() == pytest.approx(level, abs=0.03)  # 2,000 draws: three standard errors
    assert ((true[2000:] < kind.zero) == (p < ZERO)).all()


def test_probabilities_depend_on_prior_and_evidence():
    values, kinds = np.array([0.0, 5.0, 10.0]), np.array([1, 1, 1])
    odds = np.exp(0.6 * values - 3.0) * 0.9 / 0.1  # nine of ten words are true
    assert WORDS.probabilities(values, kinds).tolist() == pytest.approx((odds / (1 + odds)).tolist())


def test_match_depends_on_score_and_length():
    match = Match((-1.0, 2.0, -0.5, 0.25), "")
    length = np.array([1.0, 20.0])
    x = 0.8
    expected = [1 / (1 + np.exp(-(-1 + 2 * x - 0.5 * np.log(n) + 0.25 * x * np.log(n)))) for n in (1, 20)]
    assert match(np.array([x, x]), length).tolist() == pytest.approx(expected, abs=1e-6)
    assert [verdict(value) for value in (0.9, 0.5, 0.3, 0.1, None)] == [
        "on topic",
        "on topic",
        "unsure",
        "off topic",
        None,
    ]


def test_logistic_regression_recovers_coefficients():
    rng = np.random.default_rng(1)
    x = np.stack([np.ones(60000), rng.normal(3, 2, 60000), rng.normal(0, 1, 60000)], axis=1)
    odds = x @ np.array([-1.0, 0.7, -0.4])
    truth = rng.uniform(size=60000) < 1 / (1 + np.exp(-odds))
    assert fit_logistic(x, truth, balanced=False) == pytest.approx((-1.0, 0.7, -0.4), abs=0.05)


def test_reliability_reflects_the_auc_of_words():
    stems = np.array(["dog"] * 200 + ["thing"] * 200)
    rng = np.random.default_rng(2)
    present = np.tile([True, False], 200)
    evidence = np.where(stems == "dog", np.where(present, 8.0, 0.0), 3.0) + rng.normal(0, 1, 400)
    values, other = reliabilities(stems, evidence, present)
    assert values["dog"] > 0.8 > 0.1 > values["thing"]
    calibration = word_calibration(stems, evidence, present, np.ones_like(present), spread=2.0)
    kind = calibration.kinds[calibration.kind_of("dog")]
    assert 6 < kind.zero < 8  # 10 % quantile of N(8, 1)
    slips = np.concatenate(
        [np.zeros(400, dtype=bool), np.ones(30, dtype=bool)]
    )  # mentioned by one person only: the zero is unchanged
    more = np.append(stems, ["dog"] * 30), np.append(evidence, [0.0] * 30), np.append(present, [True] * 30)
    assert word_calibration(*more, ~slips, spread=2.0).kinds[-1].zero == kind.zero
    assert kind.slope > 0
    assert calibration.kind_of("thing") is None
    assert 0 <= other <= 1


def test_reliability_of_rare_words_is_shrunk_towards_their_mean():
    # Three words of two present and two absent mentions each, with AUCs of 1, 0.5 and 0.5.
    stems = np.repeat(["dog", "cat", "cow"], 4)
    present = np.tile([True, True, False, False], 3)
    evidence = np.array([9.0, 8.0, 1.0, 0.0, 5.0, 4.0, 5.0, 4.0, 5.0, 4.0, 5.0, 4.0])
    values, other = reliabilities(stems, evidence, present)
    prior = share_above(evidence[present], evidence[~present])
    expected = {word: (4 * own + 10 * prior) / 14 for word, own in (("dog", 1.0), ("cat", 0.5), ("cow", 0.5))}
    assert values == pytest.approx({word: (2 * area - 1) ** 2 for word, area in expected.items()}, abs=1e-4)
    assert other == pytest.approx((2 * prior - 1) ** 2)


def test_captions_of_similar_images_are_never_of_the_same_image():
    _, captions = coloured(12)
    for own, near in zip(captions, similar_texts(captions, count=3), strict=True):
        assert 0 < len(near) <= 3
        assert not set(near) & set(own)
    # Rare words count more, an image has one caption of each other image, and never more than there are.
    texts = [["a red dog"], ["a red cat", "the red cat sleeps"], ["a big dog in red"], ["two boats"]]
    assert similar_texts(texts, count=1) == [("a big dog in red",), ("a red dog",), ("a red dog",), ("a red dog",)]
    assert [len(near) for near in similar_texts(texts, count=10)] == [3, 3, 3, 3]
    assert similar_texts(texts, first=1, count=10) == [("a big dog in red", "a red cat", "two boats")]


def test_bank_enables_the_evidence_form_for_any_encoder(bank):
    encoder, made = bank
    scorer = Scorer(encoder, bank=made)  # without settings, the bank selects the evidence form
    assert scorer.form == Evidence(components=2)
    scores = scorer.rank(make_image(), ["a red square", "white paint on a wall", "blue", "a black square number 3"])
    assert np.isfinite(scores.precision).all()
    assert ((scores.match > 0) & (scores.match < 1)).all()
    first, second = scorer.form.weights
    local = first * scores.precision + second * scores.information - scorer.form.delta * scores.penalty
    assert scores.msd == pytest.approx(scores.similarity - scores.negation + local)
    assert (scores.penalty >= 0).all()
    with pytest.raises(AttributeError, match="'coverage', only similarity"):
        _ = scores.coverage
    assert np.isnan(scores[0].coverage)
    assert "coverage" not in scores[0].row()
    assert f"|bank:{made.name}|" in scorer.signature
    assert "|gate:" not in scorer.signature


def test_mixture_of_an_image_is_fitted_once_for_all_captions_and_changes_no_byte(bank, monkeypatch):
    encoder, made = bank
    red, blue = Image.new("RGB", (32, 32), "red"), Image.new("RGB", (32, 32), "blue")
    pairs = [(image, f"a {name} square") for name in PLAIN for image in (red, blue)]
    fresh = [Scorer(encoder, bank=made).explain(*pair).to_dict() for pair in pairs]
    scores = [Scorer(encoder, bank=made).score(*pair).row() for pair in pairs]
    fitted = []
    monkeypatch.setattr(pipeline, "fit_all", lambda side, fit: fitted.append(len(side)) or fit_all(side, fit))
    scorer = Scorer(encoder, bank=made)
    assert json.dumps([scorer.explain(*pair).to_dict() for pair in pairs]) == json.dumps(fresh)
    assert json.dumps([scorer.score(*pair).row() for pair in pairs]) == json.dumps(scores)
    assert fitted == [1, 1]
    fitted.clear()
    paper = Scorer(encoder, "short")
    for caption in ("a red square", "a blue square", "a green square"):
        paper.score(red, caption)
    assert fitted == [1] * 4  # the image once, and every caption


def test_explanation_adds_up_and_matches_its_colours(bank):
    encoder, made = bank
    scorer = Scorer(encoder, bank=made)
    for item in scorer.explain(
        make_image(), ["a red square", "white paint on a wall, a black square", "no red square"]
    ):
        score = item.score
        terms = sum(unit.term for unit in item.units if unit.term is not None)
        assert terms == pytest.approx(score.msd - score.similarity + score.negation, abs=1e-9)
        assert sum(unit.penalty or 0.0 for unit in item.units) == pytest.approx(score.penalty, abs=1e-9)
        for unit in item.units:
            if unit.p_value is not None:
                assert 0 <= unit.p_value <= 1
                assert 0 <= unit.probability <= 1
        document = json.loads(json.dumps(item.to_dict()))
        assert {"p_value", "probability", "penalty"} <= set(document["words"][1])
        assert {"missing", "suggestions"} <= set(document)


def test_negated_words_are_excluded_with_a_warning(bank):
    encoder, made = bank
    scorer = Scorer(encoder, bank=made)
    negated = scorer.score(make_image(), "there is no red square")
    assert (negated.precision, negated.information, negated.penalty) == (0.0, 0.0, 0.0)
    assert "negated words are not scored" in negated.warnings
    assert "negated words are not scored" not in scorer.score(make_image(), "a red square").warnings
    units = scorer.explain(make_image(), "no red square").units
    assert not any(unit.judged for unit in units)


def test_similarity_is_the_cosine_and_negation_a_separate_column(bank):
    encoder, made = bank
    scorer, caption = Scorer(encoder, bank=made), "a red square without a blue wall"
    seen, read = encoder.encode_images([encoder.prepare(make_image())]), encoder.encode_texts([caption])
    cosine = float(seen.pooled[0] @ read.pooled[0])
    score = scorer.score(make_image(), caption)
    assert score.similarity == pytest.approx(cosine, abs=1e-6)
    assert score.negation == pytest.approx(max(cosine, 0.0) / 2)  # two of four content words are negated
    assert scorer.score(make_image(), "a red square").negation == 0.0
    assert ("negation" in [name for name, *_ in scorer.form.parts(score)]) == (cosine > 0)


def test_negative_similarity_is_not_raised_by_negation(bank):
    encoder, made = bank
    scorer = Scorer(encoder, bank=made)
    form, pipeline = scorer.form, scorer.pipeline
    images = pipeline.embedder.images(pipeline.decode([make_image()]))
    measured = pipeline.measure(images, pipeline.embedder.texts(["no red square"]), [0], [0])
    for similarity, expected in ((0.4, 0.4), (-0.4, 0.0)):
        numbers = form.numbers(replace(measured, similarity=torch.tensor([similarity])))
        assert numbers["negation"].item() == pytest.approx(expected)
        assert numbers["msd"].item() == pytest.approx(similarity - expected)


def test_match_is_only_available_with_the_settings_of_the_bank(bank):
    encoder, made = bank
    other = Scorer(encoder, Evidence(components=2, alpha=0.3), bank=made).score(make_image(), "red")
    assert not other.has_match
    assert not np.isnan(other.information)
    plain = Scorer(encoder, Paper()).score(make_image(), "red")
    assert (plain.has_match, plain.verdict, plain.row()["match"]) == (False, None, None)


def test_bank_with_words_survives_a_round_trip(bank, tmp_path):
    encoder, made = bank
    save_bank(made, tmp_path / "bank.safetensors")
    again = load_bank(tmp_path / "bank.safetensors")
    assert again.name == made.name
    assert (again.bank.words, again.bank.match) == (made.bank.words, made.bank.match)
    vocabulary, before = again.bank.vocabulary, made.bank.vocabulary
    assert (vocabulary is None) == (before is None)  # an encoder without single-token words has none
    if before is not None:
        assert vocabulary.words == before.words
        assert np.array_equal(vocabulary.alike, before.alike)
        assert not (before.alike == np.arange(len(before.words))[:, None]).any()  # no word is its own neighbour
    moved = replace(made.bank.words, spread=made.bank.words.spread + 1)
    assert named(replace(made.bank, words=moved), encoder.signature).name != made.name


def test_tables_show_the_columns_of_the_form_and_the_reading(bank):
    encoder, made = bank
    everything = replace(made, bank=replace(made.bank, familiarity=None))  # no image is unfamiliar
    scores = Scorer(encoder, bank=everything).rank(make_image(), ["red", "a blue square"])
    heads = str(scores).splitlines()[0].split()
    assert heads == ["Soft-MSD-E", "MSD-E", "similarity", "precision", "information", "invented", "match", "verdict",
                     "caption"]  # fmt: skip
    single = str(Scorer(encoder, bank=made).rank(make_image(), ["a square, no red"])).splitlines()[0].split()
    assert single[:3] == ["MSD-E", "similarity", "negation"]
    assert scores.to_arrow().column("verdict").to_pylist() == [score.verdict for score in scores]
    assert "coverage" not in scores.to_arrow().column_names
    assert "match" not in str(Scorer(encoder, "short").rank(make_image(), ["red"])).splitlines()[0]


def test_limits_of_verdicts_are_chosen_and_recorded():
    plain = Scorer("mini")
    score = plain.score(sample_image("cat"), "a cat next to a dog")
    below, above = round(score.match - 0.05, 2), round(score.match + 0.05, 2)
    for limits, expected in (((0.0, below), "on topic"), ((below, above), "unsure"), ((above, 1.0), "off topic")):
        scores = Scorer("mini", verdict_at=limits).rank(sample_image("cat"), [score.caption])
        assert (scores[0].verdict, scores.signature) == (expected, plain.signature)
        assert scores.to_arrow().schema.metadata[b"verdict_at"].decode() == f"{limits[0]:g},{limits[1]:g}"
    for wrong in ((0.6, 0.5), (0.5,), "0.2,0.5", (0.1, 1.2), (True, 1)):
        with pytest.raises(ConfigError, match="verdict_at must be two rising limits"):
            ScorerSpec(verdict_at=wrong)


def test_incompatible_banks_are_rejected(bank):
    encoder, made = bank
    with pytest.raises(ConfigError, match="these settings use none"):
        Scorer(encoder, "short", bank=made)
    bare = replace(made, bank=replace(made.bank, words=None))
    with pytest.raises(ConfigError, match="bank .*from captioned images"):
        Scorer(encoder, Evidence(components=2), bank=bare)
    with pytest.raises(ConfigError, match="got 10"):
        calibrated_bank(encoder, Evidence(), *coloured(10))


def test_settings_of_the_two_forms():
    assert find_form("evidence", balance=0.25).weights == pytest.approx((0.075, 0.01))
    with pytest.raises(UnknownNameError, match="unknown setting 'gate'"):
        Evidence().changed(gate="support")
    with pytest.raises(ConfigError, match="balance.*got 1.5"):
        Evidence(balance=1.5)


def test_bank_command_builds_a_bank_from_captioned_images(tmp_path):
    write_coloured(tmp_path, 54)
    made = tmp_path / "bank.safetensors"
    asked = ["bank", str(tmp_path), "-o", str(made), "--pairs", str(tmp_path / "rows.jsonl"), "--encoder", "toy"]
    answer = invoke(*asked, "--limit", "10", "--set", "components=2")
    assert answer.exit_code == 0, answer.output
    assert len(load_bank(made).bank.images) == 10
    assert 0 <= Scorer("toy", bank=str(made)).score(tmp_path / "0.png", "a red square").match <= 1
    # The toy encoder recognises colours, so held-out words are judged well.
    words, match = map(float, re.search(r"on 11 held-out images, .* words (\S+), match (\S+)", answer.output).groups())
    assert min(words, match) > 0.9
    assert "chance (" not in answer.output


def bank_of_rows(folder, change):
    """Run the command that builds a bank from rows of colours, each of them changed by a function of its number."""
    path = write_coloured(folder, 54)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row | change(number, rows)) + "\n" for number, row in enumerate(rows)))
    asked = ["bank", folder, "-o", folder / "b.safetensors", "--pairs", path, "--encoder", "toy"]
    return msdscore(*asked, "--limit", "10", "--set", "components=2")


def test_bank_of_mismatched_captions_is_warned_about(tmp_path):
    order = np.random.default_rng(0).permutation(54)
    answer = bank_of_rows(tmp_path, lambda number, rows: {"image": rows[order[number]]["image"]})
    assert answer.returncode == 0, answer.stderr
    assert "warning: words are at chance" in answer.stderr
    assert "warning: match is at chance" in answer.stderr


def test_captions_without_judged_words_are_a_one_line_error(tmp_path):
    answer = bank_of_rows(tmp_path, lambda number, rows: {"captions": ["it is of the", "and so on"]})
    assert (answer.returncode, answer.stderr.count("\n")) == (2, 1)
    assert "needs captions with words that the encoder can read" in answer.stderr


def test_chance_level_has_a_false_positive_rate_of_5_percent():
    rng = np.random.default_rng(0)
    above = [share_above(*rng.normal(size=(2, 40))) > BankQuality(0.5, 0.5, 40).chance for _ in range(2000)]
    assert 0.035 < np.mean(above) < 0.065


@pytest.mark.slow
def test_bank_does_not_depend_on_hash_randomisation(tmp_path):
    write_coloured(tmp_path, 54)
    names = set()
    for seed in "123":
        made = tmp_path / f"{seed}.safetensors"
        asked = ["bank", tmp_path, "-o", made, "--pairs", tmp_path / "rows.jsonl", "--encoder", "toy", "--limit", "10"]
        completed(*asked, env={**os.environ, "PYTHONHASHSEED": seed})
        assert load_bank(made).bank.vocabulary is not None
        names.add(load_bank(made).name)
    assert len(names) == 1


def test_evidence_form_is_named_in_signatures_and_tables():
    image = Image.new("RGB", (64, 64), "red")
    evidence, paper = Scorer("mini"), Scorer("mini", form="short")
    assert (evidence.form.name, paper.form.name) == ("MSD-E", "MSD")
    assert evidence.signature.startswith("msd-e|enc:mini@")
    assert paper.signature.startswith("msd|enc:mini@")
    assert "\nMSD-E " in str(evidence.score(image, "a red wall"))
    assert "Soft-MSD-E" in str(evidence.rank(image, ["a red wall", "a dog"])).splitlines()[0]
    assert "MSD-E" not in str(paper.rank(image, ["a red wall", "a dog"]))


def test_invented_is_the_expected_share_of_false_words(bank):
    encoder, made = bank
    scorer = Scorer(encoder, bank=made)
    captions = ["a red square", "a red square, white paint on a wall", "the"]
    for item in scorer.explain(make_image(), captions):
        false = [1 - unit.probability for unit in item.units if unit.probability is not None]
        assert item.score.invented == pytest.approx(np.mean(false) if false else 0.0)
        assert 0 <= item.score.invented <= 1
