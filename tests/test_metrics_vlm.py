"""FLEUR and a local judge on a tiny LLaVA that memorised its answers."""

import numpy as np
import pytest
import torch
from PIL import Image

from metric_batches import make_batch
from msdscore.errors import ConfigError, WeightsError
from msdscore_lab.metrics.registry import load_metric
from msdscore_lab.metrics.vlm import judge
from msdscore_lab.metrics.vlm.fleur import digit_probabilities, digit_tokens, smooth
from msdscore_lab.metrics.vlm.prompts import read_prompt
from tiny_models import make_llava
from tiny_talker import make_talker

pytest.importorskip("transformers")
GREY = Image.new("RGB", (20, 16), "grey")
SHORT = "Grade {caption}:"


@pytest.fixture(scope="module")
def talker(tmp_path_factory):
    folder = tmp_path_factory.mktemp("talker")
    (folder / "prompt.txt").write_text(SHORT)
    make_talker(folder / "model", {"Grade good:": "0.8", "Grade bad:": "0.2", "Grade odd:": "no"})
    return folder


def test_published_prompts_are_read_from_scripts_without_running_them(tmp_path):
    script = tmp_path / "run_fleur.py"
    script.write_text(
        'raise SystemExit\n\ndef ask(text):\n    question = f"Grade: {text}\\nScore:"\n    plain = "A {} B {} "\n'
        '    broken = "A {"\n'
        "    question = START + question\n"
    )
    assert read_prompt(f"{script}:question", "caption") == "Grade: {caption}\nScore:"
    assert read_prompt(f"{script}:plain", "first", "second") == "A {first} B {second} "
    with pytest.raises(ConfigError, match="answer"):
        read_prompt(f"{script}:answer", "caption")
    with pytest.raises(ConfigError, match=r"2 placeholders \(first, second\), found 1: \{text\}"):
        read_prompt(f"{script}:question", "first", "second")
    with pytest.raises(ConfigError, match="broken"):
        read_prompt(f"{script}:broken", "caption")


def test_fleur_uses_digit_probabilities(talker):
    metric = load_metric(f"fleur:{talker / 'model'},device=cpu,prompt={talker / 'prompt.txt'}")
    batch = make_batch([GREY, None], [(0, ("good", "bad")), (1, ("good", "bad")), (0, ("odd", "good"))])
    values = metric.score(batch).values
    assert values[0, 0] == pytest.approx(0.8, abs=0.1)
    assert values[0, 1] == pytest.approx(0.2, abs=0.1)
    assert values[0, 0] != 0.8  # smoothed instead of greedy
    assert np.isnan(values[1]).all()
    assert np.isnan(values[2, 0])
    assert values[2, 1] == values[0, 0]
    assert "|prompt:prompt.txt@" in metric.choices
    assert "dtype:float32" in metric.choices


def test_fleur_with_a_padded_vocabulary(talker, tmp_path):
    import shutil

    from transformers import AutoModelForImageTextToText

    padded = shutil.copytree(talker / "model", tmp_path / "padded")
    model = AutoModelForImageTextToText.from_pretrained(padded)
    model.resize_token_embeddings(model.get_input_embeddings().num_embeddings + 64, mean_resizing=False)
    model.save_pretrained(padded)
    batch = make_batch([GREY], [(0, ("good", "bad"))])
    values = load_metric(f"fleur:{padded},device=cpu,prompt={talker / 'prompt.txt'}").score(batch).values
    assert values[0, 0] == pytest.approx(0.8, abs=0.1)


def test_digit_tokens_with_another_vocabulary_size():
    digits = digit_tokens({str(digit): digit for digit in range(10)})
    spoken = torch.zeros(1, 16, dtype=torch.float64)
    spoken[0, 3] = 1.0
    assert digit_probabilities(spoken, digits)[0, 3] == 1
    assert digit_probabilities(spoken[:, :8], digits)[0].tolist() == [0, 0, 0, 1] + [0] * 6


def sure(*digits):
    return np.stack([np.eye(10)[digit] for digit in digits])


@pytest.mark.parametrize(
    ("pieces", "digits", "score"),
    [
        (["▁", "0", ".", "4", "5", "</s>"], sure(0, 0, 0, 4, 5, 0), 0.45),
        (["▁0", ".", "0"], sure(0, 0, 0), 0.0),
        (["1", ".", "0"], sure(1, 0, 0), 1.0),
        (["1"], 0.7 * sure(1) + 0.3 * sure(0), 0.7 + 0.9 * 0.3),
        (["0", "."], 0.6 * sure(0, 0) + 0.4 * sure(1, 1), 0.4),
        (["0", ".", "3"], np.stack([sure(0)[0], sure(0)[0], 0.5 * sure(3)[0] + 0.25 * sure(9)[0]]), 0.15 + 0.225),
    ],
)
def test_smoothing_by_hand(pieces, digits, score):
    assert smooth(pieces, digits) == pytest.approx(score)


@pytest.mark.parametrize("pieces", [["no", "idea"], ["8", "5"], ["1", ".", "5"], ["0.", "75"], []])
def test_answer_outside_of_the_scale_has_no_score(pieces):
    assert np.isnan(smooth(pieces, np.full((len(pieces), 10), 0.1)))


def test_digit_tokens_with_and_without_a_space_add_up():
    vocabulary = {str(digit): digit for digit in range(10)} | {"▁7": 10, "77": 11, "Ġ7": 12, "٧": 13}
    matrix = digit_tokens(vocabulary)
    assert matrix[:, 7].nonzero().flatten().tolist() == [7, 10, 12]
    with pytest.raises(ConfigError, match="a token for every digit"):
        digit_tokens({"1": 0})
    assert matrix.dtype == torch.float64


def test_invalid_prompts_and_checkpoints_are_rejected(tmp_path, talker):
    with pytest.raises(ConfigError, match="nowhere.txt: no such"):
        load_metric("fleur:x,prompt=nowhere.txt")
    (tmp_path / "bare.txt").write_text("Grade it.")
    with pytest.raises(ConfigError, match=r"\{caption\} in the prompt"):
        load_metric(f"fleur:x,prompt={tmp_path / 'bare.txt'}")
    silent = make_llava(tmp_path / "silent")
    with pytest.raises(WeightsError, match="(chat template|processor)"):
        load_metric(f"fleur:{silent},device=cpu")


def test_a_local_judge_is_queried_in_both_orders(tmp_path, tmp_path_factory, monkeypatch):
    # Short words, which a tiny model can memorise in a second.
    monkeypatch.setattr(judge, "SYSTEM", "Judge.")
    monkeypatch.setattr(judge, "QUESTION", "{first} or {second}")
    lessons = {"Judge.\n\nup or down": "Verdict: 1", "Judge.\n\ndown or up": "Verdict: 2"}
    folder = make_talker(tmp_path_factory.mktemp("judge") / "model", lessons)
    asked = f"judge:{folder},backend=local,device=cpu,temperature=0,cache={tmp_path / 'cache'}"
    batch = make_batch([GREY], [(0, ("up", "down"))])
    first = load_metric(asked).score(batch)
    assert first.values.tolist() == [[1.0, 0.0]]
    assert load_metric(asked).score(batch).values.tolist() == first.values.tolist()  # from the disk
    assert len(list((tmp_path / "cache").rglob("*.json"))) == 2


def test_sampled_answer_depends_only_on_the_seed(talker):
    from msdscore_lab.metrics.vlm.model import Sampling, load_local

    model = load_local(str(talker / "model"), device="cpu")
    hot = Sampling(temperature=50.0, top_p=1.0, most_tokens=8)
    answers = [model.answer(GREY, "Grade good:", hot, seed=seed) for seed in (1, 1, 2)]
    assert answers[0] == answers[1] != answers[2]
    assert torch.initial_seed() != 1
