"""The least supported words of a caption, as numbers name them and as an explanation ranks them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from msdscore.encoders.text.pieces import places
from msdscore.scorer import Scorer
from msdscore.scoring.worst import _held, _held_by_any, _worst

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
    spans, gaps = ((0, 4), (4, 7), (8, 11), (12, 15)), [3.0, 1.0, 2.5, 1.0]
    assert _worst("playing cat dog", spans, gaps, None, 3) == ("cat", "playing", "dog")
    assert _worst("playing cat dog", spans, gaps, None, 1) == ("cat",)
    assert _worst("playing cat dog", spans, gaps, [0.2, 0.2, 0.0, 0.2], 3) == ("playing", "dog")


PLACES = st.lists(st.tuples(st.integers(0, 14), st.integers(0, 14)).map(sorted).map(tuple), max_size=6)


@settings(deadline=None)
@given(caption=st.text("ab,'. é3", max_size=14), spans=PLACES, in_order=st.booleans())
def test_tokens_belong_to_the_words_that_an_explanation_gives_them_to(caption, spans, in_order):
    pieces = places(caption)
    if pieces:
        ordered = sorted(spans) if in_order else spans
        assert _held(ordered, pieces) == _held_by_any(ordered, pieces)
