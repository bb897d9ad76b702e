"""What calibration=evidence means: words weighed, information, omissions, match."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from typer.testing import CliRunner

from msdscore import MSDConfig, Scorer
from msdscore.cli.app import app
from msdscore.core.evidence import (
    TokenWeights,
    WordCalibration,
    belonging,
    doubt_terms,
    evidence,
    information_terms,
    log_odds,
    shares,
    strength,
    support_shares,
)
from msdscore.core.fusion import Match
from msdscore.core.omission import every_token, omission_terms, patch_weights, spoken_of
from msdscore.core.schedule import PointSet, fit_all
from msdscore.encoders.base import TokenLayout
from msdscore.errors import ConfigError
from msdscore.scoring.bank import load_bank, own_bank, save_bank
from msdscore.scoring.calibrate import Captioned, Labelled, calibrated_bank, similar_captions, word_weights
from msdscore.scoring.comparison import fit_settings
from msdscore.scoring.words import token_weights
from msdscore.stats.logistic import fit_logistic, fit_rising
from test_scoring import picture, tiny_clip

EVIDENCE = MSDConfig(calibration="evidence", gate="fixed", beta=0.2, information=0.05, tail=0.5, gate_center=4.0)
CALIBRATION = WordCalibration(
    {"dog": 1.0, "grass": 0.5}, other=0.1, slope=0.5, zero=2.0, center=1.0, width=0.5, spreads={"dog": 3.0}
)
COLOURS = ("red", "green", "blue", "yellow", "black", "white")


def coloured(count=60):
    """Plain pictures of one colour with two captions each."""
    made = []
    for number in range(count):
        name = COLOURS[number % len(COLOURS)]
        captions = (f"a {name} square number {number % 7}", f"{name} paint on a wall")
        made.append(Captioned(Image.new("RGB", (32, 32), name), captions))
    return made


@pytest.fixture(scope="module")
def bank():
    return calibrated_bank(tiny_clip(), EVIDENCE, coloured(), pictures=20)


def weights_of(caption):
    spans = tuple((place, place + len(word)) for place, word in _places(caption))
    return token_weights([caption], [TokenLayout(spans)], CALIBRATION, width=len(spans), device=torch.device("cpu"))


def _places(caption):
    start = 0
    for word in caption.split():
        start = caption.index(word, start)
        yield start, word
        start += len(word)


def test_words_weigh_what_they_can_be_judged_by_and_denied_or_silent_ones_nothing():
    assert weights_of("a dog on grass beside Zorblax").weights[0].tolist() == pytest.approx([0, 1, 0, 0.5, 0, 0.1])
    assert weights_of("grass but no dogs").weights[0].tolist() == pytest.approx([0.5, 0, 0, 0])
    assert weights_of("none nobody neither nothing").weights[0].tolist() == [0, 0, 0, 0]
    assert weights_of("no cat . a dog").weights[0].tolist() == pytest.approx([0, 0, 0, 0, 1])


def test_pieces_of_a_word_share_its_weight_and_a_second_mention_is_not_new():
    layout = TokenLayout(((2, 4), (4, 5), (10, 13)))
    found = token_weights(["a dog and dogs"], [layout], CALIBRATION, width=4, device=torch.device("cpu"))
    assert found.weights[0].tolist() == [0.5, 0.5, 1.0, 0.0]
    assert found.new[0].tolist() == [True, True, False, False]


def test_support_is_the_weighed_mean_of_evidence_and_padding_changes_nothing():
    terms = torch.tensor([[-2.0, 1.0, 0.0], [-1.0, -1.0, -1.0]])
    mask = torch.tensor([[True, True, False], [True, True, True]])
    found = evidence(terms, mask)
    assert found[0].tolist() == [4.0, -2.0, 0.0]
    weights = tokens([[0.81, 0.01, 99.0], [0.0, 0.0, 0.0]])
    long, short = (support_shares(weights, torch.full((2,), value), mask) for value in (1.0, 0.0))
    assert long.sum(dim=1).tolist() == short.sum(dim=1).tolist() == pytest.approx([1.0, 1.0])
    assert long[0].tolist() == pytest.approx([0.81 / 0.82, 0.01 / 0.82, 0.0])
    assert short[0].tolist() == pytest.approx([0.75, 0.25, 0.0], abs=1e-2)  # fourth roots
    assert shares(weights.weights, mask)[1].tolist() == pytest.approx([1 / 3] * 3)


def tokens(weights, new=None, *, pieces=None, spreads=None):
    """Weights of tokens as given; all words are new, whole and of spread 1 unless told otherwise."""
    whole = torch.tensor(weights)
    said = torch.ones_like(whole).bool() if new is None else torch.tensor(new)
    ones = [torch.ones_like(whole) if values is None else torch.tensor(values) for values in (pieces, spreads)]
    return TokenWeights(whole, said, *ones)


def told(values, weights=None, **facts):
    given = tokens([weights or [1.0] * len(values)], **{name: [value] for name, value in facts.items()})
    return information_terms(torch.tensor([values]), given).sum().item()


def test_information_is_evidence_in_units_of_its_spread_over_background_pictures():
    assert told([6.0, 2.0], [1.0, 0.0625], spreads=[3.0, 2.0]) == pytest.approx(
        (6.0 + 0.5 * 2.0) / np.sqrt(3.0**2 + (0.5 * 2.0) ** 2)
    )
    # Pieces that share the weight of a word count as words of that weight do.
    assert told([5.0, 7.0, 2.0], [0.5, 0.5, 1.0], pieces=[2.0, 2.0, 1.0]) == pytest.approx(told([5.0, 7.0, 2.0]))


def test_information_rises_by_true_words_falls_by_false_ones_and_a_repeated_caption_gains_nothing():
    one = told([6.0])
    assert told([6.0, 5.0]) > one
    assert told([6.0, -1.0]) < one
    assert told([6.0, 6.0], new=[True, False]) == pytest.approx(one)
    assert told([6.0, 6.0], [1.0, 0.0]) == pytest.approx(one)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-20, 20), min_size=1, max_size=12), st.integers(0, 2**16), st.floats(0.1, 10))
def test_information_of_random_words_is_what_a_loop_over_words_finds(values, seed, scale):
    generator = np.random.default_rng(seed)
    size = len(values)
    weights, spreads = generator.uniform(0.02, 1, size), generator.uniform(0.5, 4, size)
    new = generator.uniform(size=size) < 0.7
    upper = sum(w**0.25 * e for w, e, n in zip(weights, values, new, strict=True) if n)
    lower = sum((w**0.25 * s) ** 2 for w, s, n in zip(weights, spreads, new, strict=True) if n)
    given_tokens = TokenWeights(*(torch.tensor(x)[None] for x in (weights, new, np.ones(size), spreads)))
    found = information_terms(torch.tensor([values], dtype=torch.float64), given_tokens).sum().item()
    assert found == pytest.approx(upper / np.sqrt(lower) if lower else 0.0, abs=1e-9)
    # Evidence and spread in other units are the same information.
    wider = replace(given_tokens, spreads=given_tokens.spreads * scale)
    again = information_terms(torch.tensor([values], dtype=torch.float64) * scale, wider).sum().item()
    assert again == pytest.approx(found, abs=1e-9)


def test_information_of_a_caption_of_another_picture_does_not_go_with_its_length():
    generator = torch.Generator().manual_seed(0)
    for size in (2, 12):
        drawn = torch.randn(4000, size, generator=generator)
        ones = torch.ones_like(drawn)
        found = information_terms(drawn, TokenWeights(ones, ones.bool(), ones, ones)).sum(dim=1)
        assert found.mean().abs() < 0.05
        assert found.std().item() == pytest.approx(1.0, abs=0.05)


def doubts(values, weights=None, new=None):
    given_tokens = tokens([weights or [1.0] * len(values)], None if new is None else [new])
    mask = torch.ones(1, len(values), dtype=torch.bool)
    found = torch.tensor([values], dtype=torch.float64)
    belongs = belonging(found, given_tokens, mask, CALIBRATION).unsqueeze(1)
    return (belongs * doubt_terms(found, given_tokens, CALIBRATION))[0].tolist()


def test_doubts_count_false_words_that_can_be_judged_once_and_no_sure_ones():
    # Log-odds are 0.5 (e - 2): a word of evidence 3 is sure, one of 2 is even, one of -2 is two nats below.
    values = [12.0, 3.0, 2.0, -2.0]
    gate = 1 / (1 + np.exp(-(np.mean(values) - 1.0) / 0.5))
    assert doubts(values) == pytest.approx([0.0, 0.0, 0.5 * gate, 2.5 * gate])
    assert doubts([12.0, -2.0], [1.0, 0.1])[1] == pytest.approx(0.01 * 2.5, rel=1e-3)
    assert doubts([12.0, -2.0], new=[True, False])[1] == 0.0


def test_a_false_word_weighs_as_much_in_a_long_caption_as_in_a_short_one():
    short, long = doubts([9.0, 9.0, -2.0]), doubts([9.0] * 40 + [-2.0])
    assert long[-1] == pytest.approx(short[-1], rel=0.01)
    assert sum(doubts([-3.0] * 30)) < 0.05  # of another picture: nothing of it belongs here


def test_strength_and_log_odds_are_linear_in_evidence():
    found, mask = torch.tensor([[4.0, 1.0]]), torch.ones(1, 2, dtype=torch.bool)
    assert strength(found, tokens([[0.75, 0.25]]), mask).item() == pytest.approx(3.25)
    assert log_odds(found, CALIBRATION)[0].tolist() == pytest.approx([1.0, -0.5])


def points(*directions):
    vectors = torch.nn.functional.normalize(torch.tensor(directions, dtype=torch.float32), dim=-1)
    return PointSet(vectors.unsqueeze(0), torch.ones(1, len(directions), dtype=torch.bool), torch.zeros(1).long())


def joined(*sides):
    width = max(side.points.shape[1] for side in sides)
    grown = [torch.nn.functional.pad(side.points, (0, 0, 0, width - side.points.shape[1])) for side in sides]
    masks = [torch.nn.functional.pad(side.mask, (0, width - side.mask.shape[1])) for side in sides]
    return PointSet(torch.cat(grown), torch.cat(masks), torch.zeros(len(sides)).long())


X, Y, Z, W = (1.0, 0, 0, 0), (0, 1.0, 0, 0), (0, 0, 1.0, 0), (-1.0, -1.0, 0, 1.0)


def coverage_of(*captions):
    """Coverage of a picture that shows X and Y by captions given as their tokens."""
    picture_side, texts = points(X, Y), joined(*(points(*caption) for caption in captions))
    background = every_token(joined(points(X), points(Y), points(Z), points(X, Z)), 10.0)
    rows = torch.arange(len(captions))
    terms = omission_terms(
        picture_side,
        texts,
        fit_all(picture_side, fit_settings(MSDConfig(), 2)),
        image_of=torch.zeros_like(rows),
        text_of=rows,
        background=background,
    )
    return terms.sum(dim=1).tolist()


def test_a_true_addition_lowers_coverage_and_a_false_one_does_not():
    told, true, false = coverage_of((X,), (X, Y), (X, W))
    assert true < told
    assert false >= told


def test_padding_of_the_background_and_of_the_captions_changes_no_omission():
    assert coverage_of((X,))[0] == pytest.approx(coverage_of((X,), (X, Y, Z, W))[0], abs=1e-6)


def test_patches_of_which_all_captions_say_the_same_weigh_little():
    side = points(X, (0, 0, 0, 1.0))
    spoken = spoken_of(side, every_token(joined(points(X), points(Y), points(Z)), 10.0))
    weights = patch_weights(side, spoken)[0]
    assert weights.sum().item() == pytest.approx(1.0)
    assert weights[0] > 100 * weights[1]


def test_words_that_evidence_tells_apart_weigh_more_than_words_that_it_does_not():
    generator = np.random.default_rng(0)
    present = np.arange(400) % 2 == 0
    sharp, blind = present * 5.0 + generator.normal(size=400), generator.normal(size=400)
    labelled = Labelled(
        np.array(["dog"] * 400 + ["mood"] * 400), np.concatenate([sharp, blind]), np.concatenate([present, present])
    )
    weights, other = word_weights(labelled)
    assert weights["dog"] > 0.9
    assert weights["mood"] < 0.1
    assert 0 < other <= 1


def test_a_logistic_curve_finds_its_slope_and_center():
    generator = np.random.default_rng(1)
    values = generator.uniform(-4, 8, 20000)
    truth = generator.uniform(size=20000) < 1 / (1 + np.exp(-1.5 * (values - 2.0)))
    even = truth.mean()
    slope, center = fit_logistic(values, truth)
    assert slope == pytest.approx(1.5, rel=0.1)
    # Both sides count as equally frequent, which moves the center by the log-odds of their shares.
    assert center == pytest.approx(2.0 + np.log(even / (1 - even)) / 1.5, abs=0.2)


def test_a_rising_curve_finds_probabilities_that_are_not_logistic():
    generator = np.random.default_rng(2)
    values = generator.uniform(0, 1, 40000)
    truth = generator.uniform(size=40000) < values**3 / (values**3 + (1 - values))
    match = Match(*fit_rising(values, truth), "")
    asked = np.linspace(0.1, 0.9, 9)
    even = truth.mean() / (1 - truth.mean())  # both sides count as equally frequent
    odds = asked**3 / (1 - asked) / even
    assert match(torch.tensor(asked)).numpy() == pytest.approx(odds / (1 + odds), abs=0.03)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(-5, 5), st.booleans()), min_size=1, max_size=60))
def test_a_rising_curve_rises_everywhere(rows):
    values, truth = (np.array(column) for column in zip(*rows, strict=True))
    points, odds = fit_rising(values.astype(np.float64), truth)
    assert np.all(np.diff(odds) > 0)
    found = Match(points, odds, "")(torch.linspace(-9, 9, 50, dtype=torch.float64))
    assert torch.isfinite(found).all()
    assert (found.diff() >= 0).all()


def test_terms_add_up_to_every_column_and_the_score_is_made_of_them(bank):
    scorer = Scorer(tiny_clip(), EVIDENCE, bank=bank)
    captions = ["a red square", "a green wall with no paint", "red"]
    measured = scorer.measure([picture()], captions, [0] * 3)
    for row, score in enumerate(scorer.rank(picture(), captions)):
        assert score.support == pytest.approx(measured.divergence.support_terms[row].sum().item(), abs=1e-5)
        assert score.coverage == pytest.approx(measured.divergence.coverage_terms[row].sum().item(), abs=1e-5)
        assert score.information == pytest.approx(measured.information_terms[row].sum().item(), abs=1e-5)
        local = 0.1 * score.divergence - 0.05 * score.information
        assert score.msd == pytest.approx(score.similarity - local, abs=1e-6)
        assert 0 <= score.match <= 1
    assert "i:0.05|tail:0.5,4,3|" in scorer.signature
    assert f"cal:evidence,{bank.name}" in scorer.signature


def test_match_rises_with_the_score_and_says_nothing_under_other_settings(bank):
    scorer = Scorer(tiny_clip(), EVIDENCE, bank=bank)
    scores = scorer.rank(picture(), ["a red square", "white paint on a wall", "blue", "a black square number 3"])
    assert np.array_equal(np.argsort(scores.msd), np.argsort(scores.match))
    other = Scorer(tiny_clip(), EVIDENCE.changed(alpha=0.3), bank=bank).score(picture(), "red")
    assert other.match is None
    assert other.information is not None


def test_plain_settings_tell_no_information_and_no_match():
    score = Scorer(tiny_clip(), MSDConfig()).score(picture(), "red")
    assert score.information is None
    assert score.match is None


def test_a_bank_with_words_survives_its_file(bank, tmp_path):
    save_bank(bank, tmp_path / "bank.safetensors")
    again = load_bank(tmp_path / "bank.safetensors")
    assert again.name == bank.name
    assert (again.bank.words, again.bank.match) == (bank.bank.words, bank.bank.match)
    assert torch.equal(again.bank.captions.means, bank.bank.captions.means)
    assert again.bank.captions.kappa == bank.bank.captions.kappa


def test_other_words_give_the_bank_another_name(bank):
    from msdscore.scoring.bank import named

    moved = replace(bank.bank.words, zero=bank.bank.words.zero + 1)
    assert named(replace(bank.bank, words=moved), tiny_clip()).name != bank.name


def test_tables_show_information_and_match_where_they_are_known(bank):
    scores = Scorer(tiny_clip(), EVIDENCE, bank=bank).rank(picture(), ["red", "a blue square"])
    assert str(scores).splitlines()[0].split()[-3:] == ["information", "match", "caption"]
    assert f"{scores[0].match:.2f}  {scores[0].caption}" in str(scores)
    assert "<th>match</th>" in scores._repr_html_()
    assert "match" not in str(Scorer(tiny_clip(), "short").rank(picture(), ["red"])).splitlines()[0]
    with pytest.raises(ConfigError, match="calibration is none; set calibration=evidence"):
        Scorer(tiny_clip(), "short", bank=bank)


def test_evidence_needs_a_bank_of_captioned_pictures_and_information_needs_evidence(bank):
    bare = replace(bank, bank=replace(bank.bank, words=None))
    with pytest.raises(ConfigError, match=r"needs a bank that was built from captioned pictures, .* msdscore bank"):
        Scorer(tiny_clip(), EVIDENCE, bank=bare)
    with pytest.raises(
        ConfigError, match=r"information=0.1 needs evidence of words; set calibration=evidence or information=0"
    ):
        MSDConfig(information=0.1)
    with pytest.raises(ConfigError, match=r"tail=0.1 needs evidence of words; set calibration=evidence or tail=0"):
        MSDConfig(tail=0.1)
    with pytest.raises(ConfigError, match="at least 50 captioned pictures, got 10"):
        calibrated_bank(tiny_clip(), EVIDENCE, coloured(10))


def test_similar_pictures_lend_captions_and_never_their_own():
    pairs = coloured(12)
    for pair, near in zip(pairs, similar_captions(pairs, count=3), strict=True):
        assert 0 < len(near) <= 3
        assert not set(near) & set(pair.captions)


def test_one_command_builds_a_bank_from_captioned_pictures(tmp_path):
    rows = []
    for number, pair in enumerate(coloured(54)):
        pair.picture.save(tmp_path / f"{number}.png")
        rows.append(json.dumps({"image": f"{number}.png", "captions": pair.captions}))
    (tmp_path / "rows.jsonl").write_text("\n".join(rows), encoding="utf-8")
    made = tmp_path / "bank.safetensors"
    asked = ["bank", str(tmp_path), "-o", str(made), "--pairs", str(tmp_path / "rows.jsonl"), "--encoder", "toy"]
    answer = CliRunner().invoke(app, [*asked, "--limit", "10", "--set", "gate=support"])
    assert answer.exit_code == 0, answer.output
    found = load_bank(made)
    assert len(found.bank.images) == 10
    scorer = Scorer("toy", MSDConfig(calibration="evidence", gate="support"), bank=str(made))
    assert 0 <= scorer.score(tmp_path / "0.png", "a red square").match <= 1


def test_the_packaged_encoder_knows_words():
    from msdscore.encoders.registry import load_encoder

    encoder = load_encoder("mini")
    named = own_bank(encoder)
    if named is None or named.bank.words is None:
        pytest.skip("this mini brings a bank of pictures alone")
    assert named.bank.words.weights["dog"] > named.bank.words.other
