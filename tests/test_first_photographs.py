"""Verdicts of `mini` on the photographs that people try first; docs/trust.md lists those that are wrong."""

from collections import Counter

import pytest
from skimage import data

from msdscore import Scorer
from msdscore.text.warnings import UNFAMILIAR
from msdscore_lab.benchmarks.base import image_source
from msdscore_lab.benchmarks.readers.rows import captioned_images
from real_data import FOLDER, needs

pytest.importorskip("msdscore_mini", reason="needs the weights of mini")

TRUE, FALSE = ("on topic",), ("off topic",)
# Photograph of scikit-image, caption, and the verdicts that it may have.
EXPECTED = (
    ("rocket", "towers with lights at night", TRUE),
    ("rocket", "a dog on the beach", FALSE),
    ("rocket", "a kitchen with a stove", FALSE),
    ("camera", "a man in a black coat with a camera on a tripod", TRUE),
    ("camera", "a photographer in a field", TRUE),
    ("camera", "a woman riding a horse", FALSE),
    ("camera", "a pizza on a table", FALSE),
    ("coffee", "a cup of coffee on a saucer with a spoon", TRUE),
    ("coffee", "a cup of coffee", TRUE),
    ("coffee", "coffee", TRUE),
    ("coffee", "a dog in the snow", FALSE),
    ("cat", "a close up of a cat", TRUE),
    ("cat", "a cat", TRUE),
    ("cat", "a striped cat looking at the camera", TRUE),
    ("cat", "a dog on a beach", FALSE),
    ("cat", "a man on a surfboard", FALSE),
    ("astronaut", "a cat on a table", FALSE),
    ("astronaut", "a man riding a horse", FALSE),
    ("coins", "rows of old coins", (None,)),  # unlike the photographs that the encoder knows
    ("coins", "a plate of pasta", (None,)),
)
WRONG = (  # known failures
    ("astronaut", "a smiling woman in an orange suit in front of a flag", "off topic"),
    ("astronaut", "a person in an orange suit", "unsure"),
    ("rocket", "a rocket on a launch pad", "unsure"),
    ("coffee", "a cup of tea next to a cat", "on topic"),
)
VALIDATION = FOLDER / "val_flickr8k.jsonl"


@pytest.fixture(scope="module")
def scorer():
    return Scorer()


@pytest.mark.parametrize("name", sorted({name for name, *_ in EXPECTED}))
def test_verdicts_on_first_photographs(scorer, name):
    rows = [(caption, verdicts) for own, caption, verdicts in EXPECTED if own == name]
    scores = scorer.rank(getattr(data, name)(), [caption for caption, _ in rows])
    found = [(score.verdict, round(score.match, 2)) for score in scores]
    assert all(own[0] in verdicts for own, (_, verdicts) in zip(found, rows, strict=True)), found
    for score in scores:
        assert score.withheld == ((UNFAMILIAR,) if score.verdict is None else ())


@pytest.mark.parametrize(("name", "caption", "verdict"), WRONG)
def test_known_failures_are_those_of_the_page(scorer, name, caption, verdict):
    """If one of these is right one day, it moves to `EXPECTED` and leaves docs/trust.md."""
    assert scorer.score(getattr(data, name)(), caption).verdict == verdict


@needs(VALIDATION.name)
def test_ten_photographs_of_flickr(scorer):
    """The caption of a person is on topic and that of the next image not, except on an image that is unlike others."""
    entries = []
    for entry in captioned_images(VALIDATION):
        entries.append(entry)
        if len(entries) == 10:
            break
    own, other = [], []
    for number, entry in enumerate(entries):
        texts = [entry.captions[0], entries[(number + 1) % 10].captions[0]]
        first, second = scorer.rank(image_source(entry.image), texts)
        own.append(first.verdict)
        other.append(second.verdict)
    assert Counter(own) == {"on topic": 8, "unsure": 1, None: 1}, own
    assert "on topic" not in other, other
    assert other.count("off topic") >= 7
