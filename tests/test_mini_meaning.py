"""Scores of `mini` on photographs: additions, paragraphs, changed words, negation."""

import json
from importlib.resources import files
from itertools import islice

import numpy as np
import pytest
from skimage import data

from msdscore import Scorer
from msdscore.core.evidence import ZERO
from msdscore.explain.look import word_colour
from msdscore_lab.benchmarks.base import image_source
from msdscore_lab.benchmarks.readers.rows import captioned_images
from real_data import FOLDER, needs

pytest.importorskip("msdscore_mini", reason="needs the weights of mini")

COCO = FOLDER / "train_coco.jsonl"
IMAGES = 32
needs_data = needs(COCO.name)

# Photographs of scikit-image: a true caption, and the same with one changed word.
SMALL = (
    (data.cat, "a close up of a cat", "a close up of a horse", "horse"),
    (data.coffee, "a cup of coffee on a table", "a pizza on a table", "pizza"),
    (data.chelsea, "a cat looking at the camera", "an elephant looking at the camera", "elephant"),
)


@pytest.fixture(scope="module")
def scorer():
    return Scorer()


@pytest.mark.parametrize(("photograph", "true", "false", "changed"), SMALL)
def test_changed_word_is_detected_and_lowers_the_score(scorer, photograph, true, false, changed):
    right, wrong = scorer.explain(photograph(), [true, false])
    assert right.score.msd > wrong.score.msd
    assert right.score.match > wrong.score.match
    assert wrong.ranked[0].text == changed
    word = wrong.ranked[0]
    assert word.p_value < ZERO
    assert word.term < 0


SAMPLES = files("msdscore_serve").joinpath("assets", "samples")


UNFAMILIAR = ("photographer.jpg", "stars.jpg", "chart.jpg")


@pytest.mark.parametrize(
    "sample", json.loads(SAMPLES.joinpath("samples.json").read_text()), ids=lambda own: own["file"]
)
def test_examples_of_the_page_have_plausible_results(scorer, sample):
    """The first caption is good and above false ones, true words are not orange, and words of `wrong` not blue.

    Images that the encoder does not know have no verdict. A false caption in `missed` is not noticed, as the page says.
    """
    folder = SAMPLES if SAMPLES.joinpath(sample["file"]).is_file() else files("msdscore").joinpath("photographs")
    image = folder.joinpath(sample["file"]).read_bytes()
    explained = [scorer.explain(image, caption) for caption in sample["captions"]]
    matches = [item.score.match for item in explained]
    known = not explained[0].score.withheld
    assert known == (sample["file"] not in UNFAMILIAR), explained[0].score.familiarity
    assert explained[0].score.verdict == ("on topic" if known else None), matches
    assert matches[0] >= 0.7
    judged = [unit for item in explained for unit in item.units if unit.content and unit.p_value is not None]
    colours = {(unit.text, round(unit.p_value, 3)): word_colour(unit, 1.0) for unit in judged}
    drawn = {word: role for word, (role, strength) in colours.items() if strength > 0}
    orange = [word for word, role in drawn.items() if role == "penalty" and word[0] not in sample["wrong"]]
    blue = [word for word, role in drawn.items() if role == "support" and word[0] in sample["wrong"]]
    assert (orange, blue) == ([], [])
    false = [item.score.match for item in explained if set(item.score.caption.split()) & set(sample["wrong"])]
    assert max(false) < min(0.5, matches[0]), matches
    assert all(
        item.score.verdict == "on topic" and not item.doubtful
        for item in explained
        if item.score.caption == sample.get("missed")
    )


@pytest.mark.parametrize(("photograph", "true"), [case[:2] for case in SMALL])
def test_negated_caption_does_not_beat_the_true_one(scorer, photograph, true):
    subject = true.split(" of ")[-1].removeprefix("a ").split(" on ")[0].split(" looking")[0]
    scores = scorer.rank(photograph(), [true, f"there is no {subject} in this picture"])
    assert scores.msd[0] > scores.msd[1]
    assert "negated words are not scored" in scores.warnings[1]


@pytest.fixture(scope="module")
def measured(scorer):
    """Score a sentence, the sentence with a true and with a false addition, and all captions as one paragraph."""
    numbers = []
    entries = list(islice(captioned_images(COCO), 0, 24 * IMAGES, 24))
    for place, entry in enumerate(entries):
        first, second = entry.captions[:2]
        other = entries[(place + IMAGES // 2) % IMAGES].captions[0]
        texts = [first, f"{first} {second}", f"{first} {other}", " ".join(entry.captions), other]
        texts.append(f"{texts[3]} {other}")
        scores = scorer.rank(image_source(entry.image), texts)
        numbers.append([scores.precision, scores.information, scores.msd, scores.match])
    return np.array(numbers).transpose(1, 0, 2)  # score, image, caption


@needs_data
def test_true_words_raise_information_and_false_words_lower_it(measured):
    information = measured[1]
    assert np.mean(information[:, 1] > information[:, 0]) > 0.8
    assert np.mean(information[:, 2] > information[:, 0]) < 0.2
    assert np.mean(information[:, 3] > information[:, 0]) > 0.9


@needs_data
def test_false_additions_lower_precision(measured):
    precision, msd = measured[0], measured[2]
    assert np.mean(precision[:, 2] < precision[:, 0]) > 0.9
    assert np.mean(msd[:, 5] < msd[:, 3]) >= 0.85  # one false sentence in a true paragraph


@needs_data
def test_msd_ranks_true_captions_first_and_false_additions_last(measured):
    msd, match = measured[2:]
    assert np.mean(msd[:, 0] > msd[:, 4]) > 0.95
    assert np.mean(msd[:, 1] > msd[:, 2]) > 0.9
    assert np.mean(match[:, 3] > 0.5) > 0.9  # true paragraphs are matches, as true sentences are
    assert np.mean(match[:, 0] > 0.5) > 0.8
