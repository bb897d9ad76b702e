"""Reference-based metrics, with Java only if it is required."""

import math
import os
import shutil

import numpy as np
import pytest

from metric_batches import make_batch
from msdscore.errors import ConfigError, MissingExtraError
from msdscore_lab.metrics.references import words
from msdscore_lab.metrics.registry import load_metric

pytest.importorskip("pycocoevalcap", reason="needs the extra 'references'")
SAME, OTHER = "A dog runs on the beach.", "A man reads."
REFERENCES = ("a dog runs on the beach", "the dog is running")
BATCH = make_batch(
    [None],
    [(0, (SAME, OTHER)), (0, ("A cat sleeps", "a cat sleeps!")), (0, ("no", "references"))],
    references=[REFERENCES, ("a cat sleeps", "the cat is asleep on a mat"), ()],
)


@pytest.mark.parametrize("name", ["bleu-4", "rouge-l", "cider"])
def test_identical_caption_scores_highest_without_java(name, monkeypatch):
    monkeypatch.setenv("PATH", "")
    values = load_metric(name).score(BATCH).values
    assert values[0, 0] > values[0, 1]
    assert values[1, 0] == values[1, 1]  # case and punctuation are ignored
    assert np.isnan(values[2]).all()


def test_bleu_and_rouge_of_an_exact_match_are_one():
    assert load_metric("bleu-4").score(BATCH).values[0, 0] == pytest.approx(1, abs=1e-6)
    assert load_metric("rouge-l").score(BATCH).values[0, 0] == pytest.approx(1)


def test_rouge_by_hand():
    batch = make_batch([None], [(0, ("a dog", "a b c"))], references=[("a red dog",)])
    recall, precision, beta = 2 / 3, 1.0, 1.2
    expected = (1 + beta**2) * precision * recall / (recall + beta**2 * precision)
    assert load_metric("rouge-l").score(batch).values[0, 0] == pytest.approx(expected)


def test_the_control_does_not_change_the_true_scores():
    doubled = make_batch(
        [None], [(0, (SAME, OTHER)), (0, ("A cat sleeps", OTHER)), (0, (SAME, OTHER)), (0, ("A cat sleeps", OTHER))],
        references=[REFERENCES, ("a cat sleeps",), ("a cat sleeps",), REFERENCES], control=[False, False, True, True],
    )  # fmt: skip
    single = make_batch(
        [None], [(0, (SAME, OTHER)), (0, ("A cat sleeps", OTHER))], references=[REFERENCES, ("a cat sleeps",)]
    )
    both, alone = (load_metric("cider").score(batch).values for batch in (doubled, single))
    np.testing.assert_array_equal(both[:2], alone)
    assert (both[2:, 0] < both[:2, 0]).all()


def test_cider_equals_the_package_on_each_column_of_candidates():
    from pycocoevalcap.cider.cider import Cider

    rng = np.random.default_rng(0)
    vocabulary = ["dog", "cat", "runs", "sleeps", "red", "blue", "on", "a", "mat", "beach", "two", "men"]

    def sentence():
        return " ".join(rng.choice(vocabulary, 6))

    cases = [(0, (sentence(), sentence() + " unheard words")) for _ in range(30)]
    references = [tuple(sentence() for _ in range(4)) for _ in cases]
    found = load_metric("cider").score(make_batch([None], cases, references=references)).values
    for place in (0, 1):
        candidates = {case: [captions[place]] for case, (_, captions) in enumerate(cases)}
        expected = Cider().compute_score({k: list(several) for k, several in enumerate(references)}, candidates)[1]
        np.testing.assert_allclose(found[:, place], expected, rtol=1e-12)


def test_tokens_equal_treebank_tokens():
    assert words('He said: "don\'t" (twice), at 2.5 m...') == "he said do n't twice at 2.5 m"
    assert words("well-known woman's hat") == "well-known woman 's hat"


def test_missing_java_is_reported(monkeypatch):
    monkeypatch.setenv("PATH", "")
    for asked in ("meteor", "spice", "bleu-4,tokenizer=ptb"):
        with pytest.raises(MissingExtraError, match="needs Java 8"):
            load_metric(asked)
    with pytest.raises(ConfigError, match="tokenizer.*got 'bpe'"):
        load_metric("cider,tokenizer=bpe")


@pytest.mark.skipif(
    shutil.which("java") is None or not os.environ.get("MSDSCORE_TEST_METEOR"),
    reason="needs Java and half a minute: set MSDSCORE_TEST_METEOR=1",
)
def test_meteor_terminates_its_process():
    values = load_metric("meteor").score(BATCH).values
    assert values[0, 0] == pytest.approx(1, abs=1e-6)
    assert 0 <= values[0, 1] < 0.5
    assert math.isnan(values[2, 0])


@pytest.mark.skipif(shutil.which("java") is None, reason="needs Java")
def test_spice_downloads_nothing():
    from pathlib import Path

    from pycocoevalcap.spice import spice

    if (Path(spice.__file__).parent / "lib" / "stanford-corenlp-3.6.0.jar").is_file():
        pytest.skip("the models are installed")
    with pytest.raises(MissingExtraError, match="stanford-corenlp-3.6.0.jar"):
        load_metric("spice")


@pytest.mark.skipif(shutil.which("java") is None, reason="needs Java")
def test_ptb_tokenizer_gives_the_same_words():
    simple, ptb = (load_metric(f"rouge-l,tokenizer={name}").score(BATCH).values for name in ("simple", "ptb"))
    np.testing.assert_allclose(simple, ptb)
