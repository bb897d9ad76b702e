import numpy as np
import pytest
from PIL import Image
from safetensors import safe_open
from safetensors.numpy import save_file

from command_line import invoke
from msdscore import Paper, Scorer, load_encoder
from msdscore.encoders.banks import build_bank, load_bank, save_bank
from msdscore.errors import ConfigError, InputError, RunError, WeightsError
from test_scoring import CAPTIONS, make_image, measure, tiny_clip

BACKGROUND = Paper(calibration="background", gate="support")


def bank_of(encoder, config=BACKGROUND, count=6, captions=()):
    return build_bank(encoder, config, [make_image(100 + n) for n in range(count)], captions)


def test_terms_of_a_calibrated_score_add_up_and_the_bank_is_in_the_signature():
    encoder = tiny_clip()
    bank = bank_of(encoder)
    scorer = Scorer(encoder, BACKGROUND, bank=bank)
    measured = measure(scorer, [make_image()], CAPTIONS, [0] * 4)
    scores = scorer.rank(make_image(), CAPTIONS)
    for row, score in enumerate(scores):
        assert score.support == pytest.approx(measured.terms.support_terms[row].sum().item(), abs=1e-6)
    assert f"cal:background,{bank.name}" in scorer.signature
    assert "cal:" not in Scorer(encoder, "short").signature


def test_bank_survives_a_round_trip(tmp_path):
    bank = bank_of(tiny_clip(), captions=CAPTIONS)
    save_bank(bank, tmp_path / "bank.safetensors")
    again = load_bank(tmp_path / "bank.safetensors")
    assert again.name == bank.name
    assert np.array_equal(again.bank.images.means, bank.bank.images.means)
    assert np.array_equal(again.bank.texts.means, bank.bank.texts.means)
    by_path = Scorer(tiny_clip(), BACKGROUND, bank=str(tmp_path / "bank.safetensors"))
    assert by_path.score(make_image(), "red") == Scorer(tiny_clip(), BACKGROUND, bank=bank).score(make_image(), "red")


@pytest.mark.parametrize("changes", [{"gate": "length"}, {"gate": "coverage"}, {"gate": "fixed", "beta": 0.1}])
def test_calibration_covers_both_sides_or_is_rejected(changes):
    encoder, both_sides = tiny_clip(), BACKGROUND.changed(**changes)
    message = f"gate={changes['gate']} .*set gate=support"
    with pytest.raises(ConfigError, match=message):
        Scorer(encoder, both_sides, bank=bank_of(encoder))
    scorer = Scorer(encoder, both_sides, bank=bank_of(encoder, captions=CAPTIONS))
    plain = Scorer(encoder, Paper(**changes))
    # Minus its mean over the bank's captions, so that the mean coverage by captions of the bank is zero.
    calibrated = [score.coverage for score in scorer.rank(make_image(), CAPTIONS)]
    raw = [score.coverage for score in plain.rank(make_image(), CAPTIONS)]
    assert sum(calibrated) == pytest.approx(0, abs=1e-4)
    assert [c - r for c, r in zip(calibrated, raw, strict=True)] == pytest.approx(
        [calibrated[0] - raw[0]] * 4, abs=1e-4
    )


def test_a_fixed_gate_without_coverage_needs_no_captions():
    encoder = tiny_clip()
    fixed = Scorer(encoder, BACKGROUND.changed(gate="fixed", beta=0.0), bank=bank_of(encoder))
    assert fixed.score(make_image(), "red").divergence == fixed.score(make_image(), "red").support


def test_incompatible_banks_are_rejected(tmp_path):
    encoder = tiny_clip()
    with pytest.raises(ConfigError, match="need a bank, but encoder"):
        Scorer(encoder, BACKGROUND)
    with pytest.raises(ConfigError, match="kappa 20, .*needs 3 with 30"):
        Scorer(encoder, BACKGROUND.changed(kappa=30.0), bank=bank_of(encoder))
    with pytest.raises(ConfigError, match="built for .* not for toy@1"):
        Scorer("toy", BACKGROUND, bank=bank_of(encoder))
    with pytest.raises(ConfigError, match="a bank was passed, but"):
        Scorer(encoder, "short", bank=bank_of(encoder))
    with pytest.raises(ConfigError, match="2 images, got 1"):
        bank_of(encoder, count=1)
    (tmp_path / "no.safetensors").write_bytes(b"nothing")
    with pytest.raises(WeightsError, match="cannot be read as a bank"):
        load_bank(tmp_path / "no.safetensors")


def test_bank_command_builds_a_bank(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    for n in range(5):
        Image.new("RGB", (40, 30), (n * 40, 90, 200 - n * 30)).save(folder / f"{n}.png")
    target = tmp_path / "bank.safetensors"
    result = invoke("bank", str(folder), "-o", str(target), "-e", "toy", "--limit", "4")
    assert result.exit_code == 0, result.output
    assert "of 4 images for toy@1" in result.output
    command = ["score", str(folder / "0.png"), "a red square", "-e", "toy", "--set", "calibration=background"]
    answer = invoke(*command, "--bank", str(target))
    assert "gate=length weighs coverage" in str(answer.exception)
    command += ["--set", "gate=support"]
    assert "cal:background,4@" in invoke(*command, "--bank", str(target)).output


def test_invalid_outputs_and_captions_are_one_line_errors(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(2):
        make_image(number).save(folder / f"{number}.png")
    with pytest.raises(RunError, match="images: cannot be written"):
        save_bank(bank_of(tiny_clip()), folder)
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    (tmp_path / "blank.txt").write_bytes(b"\n \n")
    for name, reason in (
        ("none.txt", "expected captions in UTF-8, one per line:"),
        ("latin.txt", "expected captions in UTF-8, one per line:"),
        ("blank.txt", "expected captions, one per line or in a column caption, found none"),
    ):
        arguments = ["bank", str(folder), "-o", str(tmp_path / "b.safetensors"), "-e", "toy"]
        answer = invoke(*arguments, "--captions", str(tmp_path / name))
        assert isinstance(answer.exception, InputError)
        assert reason in str(answer.exception)


@pytest.mark.parametrize("lost", ["metadata format", "metadata kappa", "images.log_weights", "shape", "words", "match"])
def test_damaged_banks_are_weights_errors(lost, tmp_path):
    path = tmp_path / "bank.safetensors"
    save_bank(bank_of(load_encoder("toy")), path)
    with safe_open(path, framework="np") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if lost.startswith("metadata"):
        del metadata[lost.split()[1]]
    elif lost == "shape":
        tensors["images.log_weights"] = tensors["images.log_weights"][:, :1].copy()
    elif lost in ("words", "match"):
        metadata[lost] = '{"coefficients": 5}'
    else:
        del tensors[lost]
    save_file(tensors, path, metadata=metadata)
    state = "is not a bank" if lost == "metadata format" else "is damaged"
    with pytest.raises(WeightsError, match=rf"bank\.safetensors: {state}"):
        load_bank(path)


def test_own_bank_has_no_match_for_vectors_that_it_was_not_calibrated_with():
    image = Image.new("RGB", (64, 64), "red")
    assert Scorer("mini").score(image, "a red square").has_match
    other = Scorer("mini", long_text="cut").score(image, "a red square")
    assert not other.has_match
    assert other.verdict is None
