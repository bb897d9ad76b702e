"""Golden vectors and scores of `mini`."""

import json
from pathlib import Path

import numpy as np
import pytest

from msdscore import Scorer
from msdscore.encoders.base import prepare_and_encode
from msdscore.io.images import open_image

pytest.importorskip("msdscore_mini", reason="needs the weights of mini")

GOLDEN = json.loads((Path(__file__).parent / "golden" / "mini.json").read_text(encoding="utf-8"))


def generated(number):
    x, y = np.meshgrid(np.arange(320), np.arange(240))
    base = np.stack([x / 319, y / 239, (x + y) / 558], axis=-1)
    noise = np.random.RandomState(number).randint(0, 56, (240, 320, 3))
    return np.floor(np.roll(base, -number, axis=-1) * 200 + noise).astype(np.uint8)


@pytest.fixture(scope="module")
def scorer():
    return Scorer()


@pytest.mark.parametrize("number", range(len(GOLDEN["images"])))
def test_image_vectors_equal_the_golden_file(scorer, number):
    kept = GOLDEN["images"][number]
    assert int(generated(number).sum()) == kept["bytes_sum"]
    embedded = prepare_and_encode(scorer.encoder, [open_image(generated(number))])
    assert embedded.pooled[0, :8].tolist() == pytest.approx(kept["pooled_head"], abs=1e-3)
    assert embedded.points[0, 0, :8].tolist() == pytest.approx(kept["patch0_head"], abs=1e-3)
    assert embedded.points[0, 143, :8].tolist() == pytest.approx(kept["patch143_head"], abs=1e-3)


def test_caption_vectors_and_scores_equal_the_golden_file(scorer):
    captions = [one["text"] for one in GOLDEN["captions"]]
    embedded = scorer.encoder.encode_texts(captions)
    for row, kept in enumerate(GOLDEN["captions"]):
        assert int(embedded.mask[row].sum()) == len(kept["kept"])
        assert embedded.pooled[row, :8].tolist() == pytest.approx(kept["pooled_head"], abs=1e-3)
    for kept in GOLDEN["scores"]:
        item = scorer.explain(generated(kept["image"]), kept["caption"])
        evidence = [unit.evidence for unit in item.units if unit.evidence is not None]
        assert evidence == pytest.approx(kept["evidence"], abs=2e-2)
        for name in ("similarity", "negation", "precision", "information", "penalty", "match"):
            assert getattr(item.score, name) == pytest.approx(kept[name], abs=1e-2)


def test_length_in_the_papers_form_counts_all_tokens(scorer):
    text = "two dogs are running on the beach next to a man in a red shirt"  # 15 words, seven of them content words
    image = open_image(generated(0))
    assert scorer.score(image, text).length == 7  # tokens with a vector
    for form in ("short", "paper", "paper-long"):
        score = Scorer(scorer.encoder, form).score(image, text)
        assert score.length == 15
        assert score.beta == pytest.approx(1 / (1 + np.exp((15 - 20) / 3)))
        explanation = Scorer(scorer.encoder, form).explain(image, text)
        support = sum(unit.term for unit in explanation.units if unit.term is not None)
        assert support == pytest.approx(-0.1 * (1 - score.beta) * score.support, abs=1e-6)
        # The gap of a word of one token is its term times the number of terms, of which only content words have one.
        (dogs,) = (unit for unit in explanation.units if unit.text == "dogs")
        assert dogs.gap * 0.1 * (1 - score.beta) / 7 == pytest.approx(-dogs.term, abs=1e-6)
