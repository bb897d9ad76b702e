"""The least supported words of a caption, as numbers name them and as an explanation ranks them."""

import pytest
from PIL import Image

from msdscore.encoders.base import TokenLayout
from msdscore.scorer import Scorer
from msdscore.scoring.worst import _worst

CAPTIONS = ("a red square", "a green square beside a blue circle", "the", "a snow-white cat, with 3.5 dogs!")


@pytest.mark.parametrize("encoder", ["toy", "mini"])
def test_they_are_the_first_that_an_explanation_ranks(encoder):
    scorer, picture = Scorer(encoder), Image.new("RGB", (64, 64), "red")
    found = scorer.pipeline.score(scorer.pipeline.decode([picture]), CAPTIONS, [0] * len(CAPTIONS), worst=3)
    for numbers, caption in zip(found, CAPTIONS, strict=True):
        words = scorer.explain(picture, caption).ranked if getattr(numbers, "worst", ()) else ()
        assert getattr(numbers, "worst", ()) == tuple(unit.text for unit in words[:3])
    assert encoder == "mini" or "green" in found[1].worst


def test_none_are_named_unless_asked_for():
    pipeline = Scorer("toy").pipeline
    assert pipeline.score(pipeline.decode([Image.new("RGB", (8, 8))]), ["a cat"], [0])[0].worst == ()


def test_pieces_of_a_word_count_by_their_mean_and_unjudged_words_not_at_all():
    layout = TokenLayout(((0, 4), (4, 7), (8, 11), (12, 15)))
    assert _worst("playing cat dog", layout, [3.0, 1.0, 2.5, 1.0], None) == ("cat", "playing", "dog")
    assert _worst("playing cat dog", layout, [3.0, 1.0, 2.5, 1.0], [0.2, 0.2, 0.0, 0.2]) == ("playing", "dog")
