import math
import pickle
import random
from copy import copy
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import reference
from msdscore import Paper, Scorer, load_encoder
from msdscore.encoders.base import prepare_and_encode
from msdscore.errors import CaptionError, ConfigError, ImageError, UnknownNameError
from msdscore.forms.registry import added
from msdscore.scoring.rows import score_rows
from tiny_clip import make_tiny_clip

CAPTIONS = ["a red square", "a blue square on the left", "green", "a red and blue image of nothing at all"]


@cache
def tiny_clip():
    return load_encoder(str(make_tiny_clip(Path(mkdtemp()) / "clip")))


def measure(scorer, images, captions, owner):
    pipeline = scorer.pipeline
    embedded = pipeline.embedder.images(pipeline.decode(images)).require()
    return pipeline.measure(embedded, pipeline.embedder.texts(captions).require(), owner, range(len(captions)))


def make_image(seed=0, size=(60, 40)):
    generator = random.Random(seed)
    image = Image.new("RGB", size)
    image.putdata([tuple(generator.randrange(256) for _ in range(3)) for _ in range(size[0] * size[1])])
    return image


def test_score_equals_the_formula_on_the_embeddings():
    encoder, config = tiny_clip(), Paper(components=(3, 2), gate_center=4.0)
    image, caption = make_image(), CAPTIONS[1]
    score = Scorer(encoder, config).score(image, caption)
    images, texts = prepare_and_encode(encoder, [image]), encoder.encode_texts([caption])
    patches = images.points[0][images.mask[0]].double().numpy()
    tokens = texts.points[0][texts.mask[0]].double().numpy()
    coverage, support = reference.divergences(
        patches, tokens, reference.farthest_first(patches, 6), reference.farthest_first(tokens, 4)
    )
    beta = 1 / (1 + math.exp((len(tokens) - 4.0) / 3.0))
    divergence = beta * coverage + (1 - beta) * support
    similarity = float(images.pooled[0] @ texts.pooled[0])
    assert score.length == len(tokens)
    assert score.beta == pytest.approx(beta)
    # Float32 embeddings, twenty EM steps, against float64: tolerance 1e-4.
    assert (score.coverage, score.support) == pytest.approx((coverage, support), abs=1e-4)
    assert score.msd == pytest.approx(similarity - 0.1 * divergence, abs=1e-4)
    assert score.soft_msd == score.msd
    assert score.uncertainty == 1.0


def test_rank_has_one_uncertainty_and_sorts_by_soft_msd():
    scores = Scorer(tiny_clip()).rank(make_image(), CAPTIONS)
    expected = reference.uncertainty([score.similarity for score in scores])
    for score in scores:
        assert score.uncertainty == pytest.approx(expected)
        assert score.soft_msd == pytest.approx(score.similarity - 0.1 * expected * score.divergence)
    ordered = [scores.soft_msd[index] for index in scores.ranking]
    assert ordered == sorted(ordered, reverse=True)
    assert scores.best == CAPTIONS[scores.ranking[0]]


@pytest.mark.parametrize("init", ["spread", "sample"])
def test_score_is_independent_of_batch_and_order(init):
    config = Paper(init=init, seed=3)
    images = [make_image(seed, size) for seed, size in enumerate([(60, 40), (40, 60), (33, 80)])]
    owner = [0, 1, 2, 0]
    alone = [
        Scorer(tiny_clip(), config).score(images[image], caption)
        for image, caption in zip(owner, CAPTIONS, strict=True)
    ]
    for size in (1, 2, 32):
        measured = measure(Scorer(tiny_clip(), config, batch_size=size), images, CAPTIONS, owner)
        # The encoder may round differently for other batch sizes; the core does not add to that.
        assert measured.similarity.tolist() == pytest.approx([score.similarity for score in alone], abs=1e-6)
        assert measured.terms.coverage.tolist() == pytest.approx([s.coverage for s in alone], abs=1e-4)
        assert measured.terms.support.tolist() == pytest.approx([s.support for s in alone], abs=1e-4)


def test_repeated_calls_are_bitwise_identical():
    first, second = (Scorer(tiny_clip()).rank(make_image(), CAPTIONS) for _ in range(2))
    assert first == second


def test_toy_scores_are_bitwise_independent_of_the_batch():
    scorer = Scorer("toy")
    together = measure(scorer, [make_image(0), make_image(1)], CAPTIONS, [0, 1, 1, 0])
    for place, (owner, caption) in enumerate(zip([0, 1, 1, 0], CAPTIONS, strict=True)):
        alone = measure(scorer, [make_image(owner)], [caption], [0])
        assert alone.terms.coverage[0] == together.terms.coverage[place]
        assert alone.terms.support[0] == together.terms.support[place]


def test_named_forms_and_changes():
    assert Paper.named("authors").components == (4, 2)
    assert Paper.named("long", alpha=0.2).alpha == 0.2
    with pytest.raises(UnknownNameError, match="'shrt'.*'short'"):
        Paper.named("shrt")
    with pytest.raises(UnknownNameError, match="'kapa'.*'kappa'"):
        Paper.named("short", kapa=3)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"kappa": 0.0}, "kappa .*got 0.0"),
        ({"components": (0, 2)}, r"components .*got \(0, 2\)"),
        ({"iterations": 0}, "iterations .*got 0"),
        ({"beta": 1.5}, "beta .*got 1.5"),
        ({"kappa": "abc"}, "kappa .*got 'abc'"),
        ({"kappa": math.inf}, "kappa .*got inf"),
        ({"alpha": math.nan}, "alpha .*got nan"),
        ({"alpha": 1e308}, r"alpha .*1e\+06, got 1e\+308"),
        ({"temperature": 1e-300}, "temperature .*1e-06, got 1e-300"),
        ({"alpha": -0.1}, "alpha .*got -0.1"),
        ({"gate_center": "x"}, "gate_center .*got 'x'"),
        ({"iterations": 1.5}, "iterations .*got 1.5"),
        ({"iterations": True}, "iterations .*got True"),
        ({"seed": "x"}, "seed .*got 'x'"),
        ({"components": (10**8, 2)}, r"components \(image\) .*1024, got"),
        ({"iterations": 10**9}, "iterations .*10000, got"),
        ({"components": 3}, r"components .*got 3"),
        ({"components": (True, 2)}, "components must be two"),
    ],
)
def test_invalid_settings_are_rejected(setting, message):
    with pytest.raises(ConfigError, match=message):
        Paper(**setting)


def test_invalid_items_are_rejected():
    scorer = Scorer("toy")
    with pytest.raises(ImageError, match="no-such.jpg: no such file"):
        scorer.score("no-such.jpg", "a dog")
    with pytest.raises(CaptionError, match="is empty"):
        scorer.score(make_image(), "\u200b")
    with pytest.raises(ConfigError, match="rank needs"):
        scorer.rank(make_image(), [])
    with pytest.raises(ConfigError, match="options go with"):
        Scorer(tiny_clip(), long_text="cut")


def test_invalid_gate_is_rejected():
    with pytest.raises(UnknownNameError, match="'5'.*coverage, fixed, length"):
        Paper(gate=5)


@pytest.mark.parametrize("caption", [None, 5, math.nan, b"a dog"])
def test_captions_must_be_text(caption):
    is_missing = caption is None or caption is math.nan
    scorer, message = Scorer("toy"), "is empty" if is_missing else f"caption .*got {type(caption).__name__}"
    for call in (scorer.score, scorer.explain):
        with pytest.raises(CaptionError, match=message):
            call(make_image(), caption)
    for call in (scorer.rank, scorer.explain):
        with pytest.raises(CaptionError, match=message):
            call(make_image(), ["a dog", caption])


def test_rank_accepts_any_sequence_of_captions():
    scorer = Scorer("toy")
    expected = scorer.rank(make_image(), CAPTIONS)
    assert scorer.rank(make_image(), (caption for caption in CAPTIONS)) == expected
    assert scorer.rank(make_image(), np.array(CAPTIONS)) == expected
    assert len(scorer.explain(make_image(), iter(CAPTIONS))) == len(CAPTIONS)
    for lone in ("a dog", None, 5):
        with pytest.raises(ConfigError, match="rank needs"):
            scorer.rank(make_image(), lone)


def test_invalid_scorer_arguments_are_rejected():
    with pytest.raises(ConfigError, match="an encoder .*got NoneType"):
        Scorer(None)
    with pytest.raises(ConfigError, match="name of a form, got dict"):
        Scorer("toy", {"kappa": 3})
    with pytest.raises(ConfigError, match="batch_size.*got '8'"):
        Scorer("toy", batch_size="8")
    with pytest.raises(UnknownNameError, match="unknown encoder ''"):
        Scorer("")


def test_results_print_and_export():
    scores = Scorer("toy").rank(make_image(), CAPTIONS)
    assert CAPTIONS[0] in str(scores)
    assert scores.signature in str(scores)
    assert "MSD" in str(scores[0])
    assert [*scores[::-1]] == [*scores][::-1]
    table, frame = scores.to_arrow(), scores.to_pandas()
    assert table.column_names == list(scores.rows()[0]) == ["caption", *added(Paper)]
    assert table.schema.metadata[b"msdscore"].decode() == frame.attrs["signature"] == scores.signature
    assert frame["msd"].tolist() == [row["msd"] for row in scores.rows()]
    hostile = Scorer("toy").rank(make_image(), ["<script>alert(1)</script>"])
    assert "<script>" not in hostile._repr_html_()


def test_signature_contains_all_settings():
    base = Scorer("toy").signature
    changes = [
        {"kappa": 30.0}, {"components": (5, 3)}, {"iterations": 5}, {"init": "sample"}, {"alpha": 0.2},
        {"gate": "support"}, {"gate": "fixed"}, {"gate_center": 10.0}, {"gate_width": 2.0}, {"temperature": 0.1},
        {"init": "sample", "seed": 1}, {"gate": "fixed", "beta": 0.1},
    ]  # fmt: skip
    signatures = [Scorer("toy", Paper(**change)).signature for change in changes]
    assert len({base, *signatures}) == len(changes) + 1


def test_settings_in_a_signature_are_exact():
    assert Scorer("toy", Paper(alpha=0.1)).signature != Scorer("toy", Paper(alpha=0.10000001)).signature
    assert "|kappa:20|" in Scorer("toy", Paper(kappa=20)).signature


def test_scores_of_no_rows_have_the_limits_of_verdicts():
    (scores,) = score_rows(Scorer("toy", verdict_at=(0.3, 0.9)).pipeline, [])
    assert scores.to_arrow().schema.metadata[b"verdict_at"] == b"0.3,0.9"


def test_number_that_a_form_does_not_have_is_nan_and_null():
    score = Scorer("toy").score(make_image(), "a red square")
    assert math.isnan(score.precision)
    assert "precision" not in score.row()
    assert (score.has_match, score.row()["match"], score.verdict) == (False, None, None)
    assert not hasattr(score, "covrage")
    for again in (pickle.loads(pickle.dumps(score)), copy(score)):
        assert again == score


def test_parts_of_the_score_by_hand():
    form = Paper(alpha=0.5)
    parts = form.parts
    score = SimpleNamespace(uncertainty=0.8, beta=0.25, coverage=-2.0, support=3.0)
    covered, wrong = parts(score)
    assert covered == ("regions covered", pytest.approx(0.4 * 0.25 * 2.0), "support")
    assert wrong == ("words likely wrong", pytest.approx(-0.4 * 0.75 * 3.0), "penalty")
    score = SimpleNamespace(uncertainty=0.8, beta=0.25, coverage=2.0, support=-3.0)
    omitted, supported = parts(score)
    assert omitted == ("regions not mentioned", pytest.approx(-0.4 * 0.25 * 2.0), "omission")
    assert supported == ("words supported", pytest.approx(0.4 * 0.75 * 3.0), "support")
    for beta, names in ((0.0, ["words supported"]), (1.0, ["regions not mentioned"])):
        assert [name for name, _, _ in parts(SimpleNamespace(**{**vars(score), "beta": beta}))] == names
    nothing = parts(SimpleNamespace(uncertainty=0.0, beta=0.5, coverage=1.0, support=1.0))
    assert [(name, role) for name, _, role in nothing] == [
        ("regions not mentioned", "omission"),
        ("words likely wrong", "penalty"),
    ]


def test_captions_that_are_not_valid_unicode_have_an_error():
    """So a command line passes invalid UTF-8: it must not be scored without those letters."""
    scores = Scorer("toy").score_batch([Image.new("RGB", (64, 64), "red")] * 2, ["caf\udce9", "café"])
    assert "not valid Unicode" in scores.errors[0]
    assert scores.errors[1] is None
