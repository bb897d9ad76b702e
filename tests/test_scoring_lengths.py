"""Calibration by the number of content words: p-values, probabilities, match, and banks without it."""

import json
from dataclasses import replace

import numpy as np
import pytest

from coloured_pairs import coloured
from msdscore import Scorer
from msdscore.core.evidence import (
    LENGTHS,
    Familiarity,
    Match,
    WordCalibration,
    WordKind,
    length_class,
    length_weights,
)
from msdscore.encoders import banks
from msdscore.encoders.banks import bank_bytes, read_bank
from msdscore.encoders.registry import load_encoder
from msdscore.forms.evidence import Evidence
from msdscore.text.warnings import UNFAMILIAR
from msdscore_lab.bank import calibrate
from msdscore_lab.bank.calibrate import calibrated_bank, fit_logistic
from msdscore_lab.bank.lengths import (
    Mentions,
    exchanged,
    fit_lengths,
    is_sure,
    match_features,
    match_lengths,
    names_person,
    parts,
    short_texts,
)

SHIFTS = (-6.0, -4.0, -2.0, 0.0, 0.0)  # of the evidence of words, by class of length


def drawn_mentions(rng, count=20000):
    counts = rng.choice([1, 2, 3, 4, 6, 8, 12], size=count)
    true = rng.random(count) < 0.5
    shift = np.array([SHIFTS[length_class(int(words))] for words in counts])
    evidence = rng.normal(8.0, 2.0, count) - 6.0 * ~true + shift
    return Mentions(rng.integers(0, 2, count), counts, evidence, true, ~true, counts > 2)


def test_p_values_are_right_in_every_class_of_length():
    rng = np.random.default_rng(1)
    kind = WordKind(0.1, (0.0, 1.0), 1.0, 0.0)
    words = WordCalibration({}, 0.2, (kind,), 2.0)
    lengths = fit_lengths(words, drawn_mentions(rng), 200)
    assert [len(kinds) for kinds in lengths] == [2] * len(LENGTHS)
    fresh = drawn_mentions(rng)
    fitted = WordCalibration({}, 0.2, (kind,), 2.0, lengths)
    p_values, probabilities = fitted.judge(fresh.evidence, fresh.kind, fresh.length.astype(float))
    for count in (1, 2, 12):
        for number in (0, 1):
            here = fresh.true & (fresh.length == count) & (fresh.kind == number)
            assert 0.06 < (p_values[here] < 0.1).mean() < 0.14
            absent = fresh.absent & (fresh.length == count) & (fresh.kind == number)
            assert (p_values[absent] < 0.1).mean() > 0.5
            assert probabilities[here].mean() > 0.9 > 0.6 > probabilities[absent].mean()
    # Without classes, most true words of one-word captions would be in doubt.
    whole = WordCalibration({}, 0.2, (lengths[-1][0],), 2.0)
    short = fresh.true & (fresh.length == 1) & (fresh.kind == 0)
    assert (whole.judge(fresh.evidence[short], fresh.kind[short], np.ones(short.sum()))[0] < 0.1).mean() > 0.5


def test_long_classes_are_fitted_on_whole_captions_and_rare_absent_words_do_not_widen_a_class():
    rng = np.random.default_rng(4)
    drawn = drawn_mentions(rng)
    whole = rng.random(len(drawn.true)) < 0.3
    drawn = drawn._replace(
        evidence=drawn.evidence - 3.0 * (~whole & (drawn.length > 2)), whole=whole & (drawn.length > 2)
    )
    absent = drawn.absent & (rng.random(len(whole)) < 0.02)  # fewer than are needed for a slope of each class
    words = WordCalibration({}, 0.2, (WordKind(0.1, (0.0, 1.0), 1.0, 0.0),), 2.0)
    fitted = WordCalibration({}, 0.2, words.kinds, 2.0, fit_lengths(words, drawn._replace(absent=absent), 200))
    p_values, _ = fitted.judge(drawn.evidence, drawn.kind, drawn.length.astype(float))
    for chosen in (drawn.whole & (drawn.length == 12), drawn.length == 1):
        assert 0.06 < (p_values[chosen & drawn.true & (drawn.kind == 0)] < 0.1).mean() < 0.14


def test_p_values_rise_with_the_evidence_and_change_little_between_lengths():
    lengths = fit_lengths(
        WordCalibration({}, 0.2, (WordKind(0.1, (0.0, 1.0), 1.0, 0.0),), 2.0),
        drawn_mentions(np.random.default_rng(2)),
        200,
    )
    words = WordCalibration({}, 0.2, lengths[0][:1], 2.0, lengths)
    evidence = np.linspace(-5, 15, 200)
    for count in (1, 2, 3, 5, 7, 10, 30):
        for values in words.judge(evidence, np.zeros(200, dtype=np.int64), np.full(200, float(count))):
            assert (np.diff(values) >= 0).all()
    assert length_weights(np.arange(1.0, 50.0)).sum(axis=1) == pytest.approx(1.0)


def test_match_of_short_captions_has_its_own_scale():
    rng = np.random.default_rng(3)
    counts = rng.choice([1.0, 2.0, 4.0, 7.0, 12.0], size=4000)
    true = rng.random(4000) < 0.5
    scores = rng.normal(0.0, 0.2, 4000) + 0.6 * true - 0.5 * (counts == 1)
    match = Match((0.0,) * 4, "", match_lengths(fit_logistic(match_features(scores, counts), true)))
    for count in (1.0, 12.0):
        here = counts == count
        assert (match(scores[here & true], counts[here & true]) >= 0.5).mean() > 0.85
        assert (match(scores[here & ~true], counts[here & ~true]) >= 0.5).mean() < 0.15
    rising = match(np.linspace(-2, 2, 50), np.full(50, 3.0))
    assert (np.diff(rising) > 0).all()


def test_parts_are_shorter_captions():
    caption = "A man in a blue shirt is riding a brown horse, no dog."
    found = dict(parts(caption))
    assert found["a horse"] == found["A man"] == 1
    assert found["a blue shirt"] == 2
    assert not any("dog" in part for part in found)  # negated
    drawn = list(short_texts([caption], ["two cats on a sofa"], seed=0))
    assert {is_true for _, is_true in drawn} == {True, False}
    assert drawn == list(short_texts([caption], ["two cats on a sofa"], seed=0))


def test_words_for_persons_are_one_family():
    assert exchanged("A man and two boys on a horse") == "a woman and two girls on a horse"
    assert exchanged("A horse") == "A horse"
    assert names_person(["a lady", "a dog", "two kids"]) == 2
    assert is_sure(frozenset({"dog", "cat"}), {"dog": 2, "cat": 2}, is_true=True)
    assert not is_sure(frozenset({"dog", "cat"}), {"dog": 1}, is_true=False)


@pytest.fixture(scope="module")
def built():
    images, captions = coloured(80)
    return calibrated_bank(load_encoder("toy"), Evidence(components=2), images, captions, background=20)


def test_bank_has_lengths_and_earlier_banks_load_without_them(built, tmp_path, monkeypatch):
    assert len(built.bank.words.lengths) == len(built.bank.match.lengths) == len(LENGTHS)
    path = tmp_path / "bank.safetensors"
    path.write_bytes(bank_bytes(built.bank, encoder=built.encoder))
    assert read_bank(path)[0].words == built.bank.words
    facts = {name: json.loads(text) for name, text in banks.bank_facts(built.bank).items()}
    for name in ("words", "match"):
        del facts[name]["lengths"]
    earlier = {name: json.dumps(fact) for name, fact in facts.items()}
    monkeypatch.setattr(banks, "bank_facts", lambda bank: earlier)
    path.write_bytes(bank_bytes(built.bank, encoder=built.encoder))
    old = read_bank(path)[0]
    assert (old.words.lengths, old.match.lengths) == ((), ())
    p_values, _ = old.words.judge(np.array([0.0, 99.0]), np.zeros(2, dtype=np.int64), np.array([1.0, 9.0]))
    assert p_values[1] == 1.0


def test_images_unlike_those_of_the_bank_get_a_warning_and_no_verdict(built):
    known = built.bank.familiarity
    image = coloured(1)[0][0]
    strict, mild = (
        replace(built, bank=replace(built.bank, familiarity=replace(known, limit=limit))) for limit in (2.0, -2.0)
    )
    far, near = (Scorer("toy", bank=bank).score(image, "a red square") for bank in (strict, mild))
    assert (far.verdict, near.verdict is None) == (None, False)
    assert far.withheld == (UNFAMILIAR,)
    assert UNFAMILIAR not in near.warnings
    assert far.headline.startswith("no verdict (")
    assert far.headline.endswith(f": {UNFAMILIAR}")
    assert far.familiarity == near.familiarity == far.row()["familiarity"]
    assert far.match == near.match  # the number itself does not change
    assert np.isnan(
        Scorer("toy", bank=replace(built, bank=replace(built.bank, familiarity=None))).score(image, "x red").familiarity
    )


def test_familiarity_is_the_mean_cosine_with_the_nearest_captions(built, tmp_path):
    captions = np.eye(8, dtype=np.float32)
    image = np.array([[0.0, 0.5, 0.5, 0.5, 0.5, 0.0, 0.0, 0.0]], dtype=np.float32)
    assert Familiarity(captions, 0.1)(image).tolist() == pytest.approx([0.4])
    path = tmp_path / "bank.safetensors"
    path.write_bytes(bank_bytes(built.bank, encoder=built.encoder))
    again, known = read_bank(path)[0].familiarity, built.bank.familiarity
    assert np.array_equal(again.captions, known.captions)
    assert again.limit == known.limit


def test_captions_of_familiarity_do_not_skip_every_second_one(monkeypatch):
    monkeypatch.setattr(calibrate, "_REFERENCES", 6)
    images, captions = coloured(50)
    others = ["a red square", "a blue circle"] * 7
    bank = calibrate.calibrated_bank(
        load_encoder("toy"), Evidence(components=2), images, captions, background=20, others=others
    ).bank
    assert len(np.unique(bank.familiarity.captions, axis=0)) == 2
