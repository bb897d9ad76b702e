"""Metrics on encoder vectors, against the scorer and plain loops."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from metric_batches import make_batch, with_vectors
from msdscore.core.arrays import float64
from msdscore.encoders.base import prepare_and_encode
from msdscore.errors import ConfigError
from msdscore.forms.paper import Paper
from msdscore.io.files import pixel_key
from msdscore.scorer import Scorer
from msdscore.scoring.references import WEIGHTS
from msdscore_lab.metrics.encoded import nearest_reference, shuffled
from msdscore_lab.metrics.registry import load_metric

RED, BLUE = (Image.new("RGB", (24, 24), colour) for colour in ("red", "blue"))
PAIR = ("a red square on the left", "a blue square")


@pytest.fixture(scope="module")
def scorer():
    return Scorer("toy", Paper(components=(3, 2), init="sample", seed=7))


@pytest.fixture(scope="module")
def batch(scorer):
    cases = [(0, PAIR), (1, PAIR), (0, ("a red dog", "..."))]
    return with_vectors(make_batch([RED, BLUE], cases), scorer)


def score(asked, batch):
    return load_metric(asked).score(batch).values


@pytest.mark.parametrize(
    ("asked", "column"),
    [("cosine", "similarity"), ("coverage", "coverage"), ("support", "support"), ("bi-kl", "divergence"),
     ("msd", "msd"), ("soft-msd", "soft_msd")],
)  # fmt: skip
def test_parts_of_the_score_equal_the_scorer(scorer, batch, asked, column):
    values = score(asked, batch)
    for case, image in enumerate((RED, BLUE)):
        expected = [row[column] for row in scorer.rank(image, PAIR).rows()]
        np.testing.assert_allclose(values[case], expected, rtol=0, atol=1e-6)


def test_a_caption_without_words_has_no_score(batch):
    for asked in ("cosine", "msd", "clipscore", "max-sim"):
        values = score(asked, batch)[2]
        assert np.isfinite(values[0]), asked
        assert np.isnan(values[1]), asked
    alone = score("soft-msd", batch)[2, 0]
    assert alone == score("msd", batch)[2, 0]  # a set of one


def test_without_mixtures_the_similarity_is_the_same(scorer, batch):
    bare = with_vectors(
        make_batch([RED, BLUE], [(0, PAIR), (1, PAIR), (0, ("a red dog", "..."))]), scorer, mixtures=False
    )
    np.testing.assert_array_equal(score("cosine", bare), score("cosine", batch))


def test_soft_msd_uses_all_captions_of_an_image(scorer):
    captions = ("a red square", "a blue dog", "a green tree")
    batch = with_vectors(make_batch([RED], [(0, (text,)) for text in captions]), scorer)
    expected = [row["soft_msd"] for row in scorer.rank(RED, captions).rows()]
    np.testing.assert_allclose(score("soft-msd,set=image", batch)[:, 0], expected, atol=1e-6)
    np.testing.assert_array_equal(score("soft-msd", batch), score("msd", batch))
    with pytest.raises(ConfigError, match="set.*got 'all'"):
        load_metric("soft-msd,set=all")


def test_rank_agg_uses_the_divergence_within_the_margin(batch):
    similarity, divergence = score("cosine", batch)[:2], score("bi-kl", batch)[:2]
    strict = score("rank-agg,margin=0", batch)[:2]
    np.testing.assert_array_equal(np.sign(strict[:, 0]), np.sign(similarity[:, 0] - similarity[:, 1]))
    loose = score("rank-agg,margin=2", batch)[:2]
    np.testing.assert_array_equal(np.sign(loose[:, 0]), np.sign(divergence[:, 1] - divergence[:, 0]))
    assert np.isnan(score("rank-agg", batch)[2]).all()


def cosine(scorer, source, text):
    image, caption = (
        prepare_and_encode(scorer.encoder, [source]).pooled[0],
        scorer.encoder.encode_texts([text]).pooled[0],
    )
    return float(float64(image) @ float64(caption))


def test_clipscore_equals_its_formula(scorer, batch):
    expected = [2.5 * max(cosine(scorer, RED, f"A photo depicts {text}"), 0) for text in PAIR]
    np.testing.assert_allclose(score("clipscore", batch)[0], expected, atol=1e-6)
    plain = [2.5 * max(cosine(scorer, RED, text), 0) for text in PAIR]
    np.testing.assert_allclose(score("clipscore,prefix=", batch)[0], plain, atol=1e-6)
    np.testing.assert_array_equal(score("longclipscore", batch), score("clipscore", batch))
    assert load_metric("clipscore").choices == "w:2.5|prefix:A photo depicts"


def test_clipscore_with_the_crop_of_torchvision(tmp_path):
    transforms = pytest.importorskip("torchvision.transforms")
    from tiny_clip import make_tiny_clip

    folder = str(make_tiny_clip(tmp_path / "clip"))
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (427, 640, 3), dtype=np.uint8))
    caption, values = "a cat", {}
    for crop in ("transformers", "torchvision"):
        own = Scorer(folder, crop=crop, long_text="cut")
        values[crop] = score("clipscore", with_vectors(make_batch([noise], [(0, (caption,))]), own))[0, 0]
        assert ("crop:torchvision" in own.signature) == (crop == "torchvision")
    steps = own.encoder.preprocessing
    side = steps.crop[0]
    cut = transforms.Compose([transforms.Resize(side, Image.Resampling.BICUBIC), transforms.CenterCrop(side)])(noise)
    # The original canvas needs no resize or crop, so rounding does not matter.
    expected = 2.5 * max(cosine(own, cut, f"A photo depicts {caption}"), 0)
    assert values["torchvision"] == pytest.approx(expected, abs=1e-6)
    assert abs(values["transformers"] - expected) > 1e-4
    with pytest.raises(ConfigError, match="crop.*got 'even'"):
        Scorer(folder, crop="even")


@pytest.mark.parametrize("form", ["paper", "short"])
def test_clipscore_is_that_of_the_model_whatever_the_form(tmp_path, form):
    transformers = pytest.importorskip("transformers")
    from tiny_clip import make_tiny_clip

    folder = str(make_tiny_clip(tmp_path / "clip"))
    own = Scorer(folder, form)
    side = own.encoder.preprocessing.crop[0]  # images of this size are not resized, which processors do differently
    noise = [
        Image.fromarray(np.random.default_rng(seed).integers(0, 255, (side, side, 3), np.uint8)) for seed in (0, 1)
    ]
    long = "a cat and a dog and a mat and a cat and a dog"
    batch = with_vectors(make_batch(noise, [(0, ("a cat", long)), (1, ("a dog", long))]), own)
    model, processor = (
        transformers.CLIPModel.from_pretrained(folder).eval(),
        transformers.AutoProcessor.from_pretrained(folder),
    )
    texts = ["a cat", "a dog", long]
    context = model.config.text_config.max_position_embeddings
    given = processor(text=texts, images=noise, return_tensors="pt", padding=True, truncation=True, max_length=context)
    with torch.no_grad():
        cosines = 2.5 * (model(**given).logits_per_image / model.logit_scale.exp()).clamp(min=0).numpy()
    expected = [[cosines[0, 0], cosines[0, 2]], [cosines[1, 1], cosines[1, 2]]]
    np.testing.assert_allclose(score("clipscore,prefix=", batch), expected, atol=1e-5)


def _clip_cosines(folder, texts, pixels):
    import transformers

    model, tokenizer = (
        transformers.CLIPModel.from_pretrained(folder),
        transformers.AutoTokenizer.from_pretrained(folder),
    )
    context = model.config.text_config.max_position_embeddings
    given = tokenizer(texts, return_tensors="pt", padding=True, truncation=True, max_length=context)
    return model.eval()(**given, pixel_values=pixels).logits_per_image / model.logit_scale.exp()


def _siglip_cosines(folder, texts, pixels):
    import transformers

    model = transformers.SiglipModel.from_pretrained(folder)
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    context = model.config.text_config.max_position_embeddings
    given = tokenizer(texts, return_tensors="pt", padding="max_length", truncation=True, max_length=context)
    logits = model.eval()(input_ids=given["input_ids"], pixel_values=pixels).logits_per_image
    return (logits - model.logit_bias) / model.logit_scale.exp()


def _blip_cosines(folder, texts, pixels):
    import transformers

    model = transformers.BlipForImageTextRetrieval.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    context = model.config.text_config.max_position_embeddings
    given = tokenizer(texts, return_tensors="pt", padding=True, truncation=True, max_length=context)
    words = {name: given[name] for name in ("input_ids", "attention_mask")}
    return model.eval()(**words, pixel_values=pixels, use_itm_head=False).itm_score


@pytest.mark.parametrize(
    ("asked", "make", "cosines"),
    [("longclipscore,prefix=", "longclip", _clip_cosines), ("clipscore,prefix=", "siglip", _siglip_cosines),
     ("clipscore,prefix=", "blip", _blip_cosines)],
    ids=["longclip", "siglip", "blip"],
)  # fmt: skip
def test_similarity_is_that_of_the_model_with_the_form_of_the_paper(tmp_path, asked, make, cosines):
    transformers = pytest.importorskip("transformers")
    import tiny_models
    from tiny_clip import make_tiny_clip

    folder = tmp_path / make
    repeats = 130 if make == "longclip" else 12  # longer than the context
    if make == "longclip":
        make_tiny_clip(folder, context=248)
    else:
        getattr(tiny_models, f"make_{make}")(folder)
    own = Scorer(str(folder), "paper")
    kind = transformers.AutoConfig.from_pretrained(folder).vision_config
    noise = [
        Image.fromarray(np.random.default_rng(seed).integers(0, 255, (kind.image_size, kind.image_size, 3), np.uint8))
        for seed in (0, 1)
    ]
    texts = ["a cat", "the dog", "the cat " * repeats]
    batch = with_vectors(make_batch(noise, [(0, tuple(texts)), (1, tuple(texts))]), own)
    name = {"longclip": "CLIP", "siglip": "Siglip", "blip": "Blip"}[make] + "ImageProcessor"
    processor = tiny_models.pillow_processor(name).from_pretrained(folder)
    with torch.no_grad():
        expected = cosines(
            str(folder), [text.strip() for text in texts], processor(noise, return_tensors="pt")["pixel_values"]
        )
    scores = score(asked, batch)
    np.testing.assert_allclose(scores, 2.5 * expected.clamp(min=0).numpy(), atol=1e-5)
    assert scores.max() > 0.01
    # Means of local vectors, with which the form computes MSD, are another similarity.
    assert np.abs(score("cosine", batch) - expected.numpy()).max() > 1e-3


def test_clipscore_with_an_aligner_is_that_of_its_backbone(tmp_path):
    from align_data import make_rows, recipe, source
    from msdscore_lab.align.export import export
    from msdscore_lab.align.run.parts import TrainOptions
    from msdscore_lab.align.run.train import train
    from tiny_clip import make_tiny_clip

    clip = str(make_tiny_clip(tmp_path / "clip"))
    small = recipe(image={"source": clip}, text={"source": clip}, train={"steps": 1})
    train(small, source(make_rows(tmp_path / "data")), tmp_path / "run", options=TrainOptions(device="cpu"))
    aligned, plain = Scorer(str(export(tmp_path / "run", tmp_path / "encoder")), "paper"), Scorer(clip, "short")
    scores = [
        score("clipscore", with_vectors(make_batch([RED, BLUE], [(0, PAIR), (1, PAIR)]), own))
        for own in (aligned, plain)
    ]
    np.testing.assert_array_equal(*scores)
    cosines = [score("cosine", with_vectors(make_batch([RED], [(0, PAIR)]), own)) for own in (aligned, plain)]
    assert np.abs(cosines[0] - cosines[1]).max() > 1e-3


def test_clipscore_needs_pooled_vectors_of_the_model(tmp_path):
    from tiny_models import make_llava

    own = Scorer(str(make_llava(tmp_path / "llava")), "paper")
    batch = with_vectors(make_batch([RED], [(0, PAIR)]), own)
    with pytest.raises(ConfigError, match="llava"):
        score("clipscore", batch)


def test_refclipscore_is_the_harmonic_mean_with_the_nearest_reference(scorer):
    references = ("a red ball", "a dark room")
    batch = with_vectors(make_batch([RED], [(0, PAIR), (0, PAIR)], references=[references, ()]), scorer)
    found = score("refclipscore", batch)
    texts = float64(scorer.encoder.encode_texts([f"A photo depicts {text}" for text in (*PAIR, *references)]).pooled)
    for place in range(2):
        alone = 2.5 * max(cosine(scorer, RED, f"A photo depicts {PAIR[place]}"), 0)
        nearest = max(float(max(texts[place] @ texts[2], texts[place] @ texts[3])), 0)
        assert found[0, place] == pytest.approx(2 * alone * nearest / (alone + nearest), abs=1e-6)
    assert np.isnan(found[1]).all()


def test_metrics_with_references_equal_the_numbers_of_the_scorer(scorer):
    references = ("a red ball", "a dark room", "a square")
    batch = with_vectors(make_batch([RED], [(0, PAIR), (0, PAIR)], references=[references, ()]), scorer)
    names = ("ref_msd", "reference_score", "reference_similarity", "reference_support", "reference_coverage")
    for most in (3, 1):
        expected = scorer.rank(RED, PAIR, references[:most])
        for name in names:
            values = score(f"{name.replace('_', '-')},most={most}", batch)
            np.testing.assert_allclose(values[0], expected.columns[name], atol=1e-6)
            assert np.isnan(values[1]).all(), name


def test_references_are_sampled_by_seed(scorer):
    """Samples of one seed are nested, seeds differ, and the signature contains the seed."""
    references = tuple(f"{number} red balls" for number in range(9))
    batch = with_vectors(make_batch([RED], [(0, PAIR)], references=[references]), scorer)
    for most in (1, 4):
        expected = scorer.rank(RED, PAIR, shuffled(references, "1")[:most]).ref_msd
        np.testing.assert_allclose(score(f"ref-msd,most={most},seed=1", batch)[0], expected, atol=1e-6)
    assert len({tuple(shuffled(references, str(seed))) for seed in range(5)}) == 5
    assert load_metric("ref-msd,most=4,seed=1").choices == f"ref:{WEIGHTS}|most:4|drawn:1"
    with pytest.raises(ConfigError, match="seed.*got '1'"):
        load_metric("ref-msd,seed=1")


def test_control_swaps_image_and_references(scorer):
    red, blue = ("a red ball",), ("a blue lake",)
    cases = make_batch([RED, BLUE], [(0, PAIR), (1, PAIR)], references=[red, blue])
    batch = with_vectors(replace(cases, control=np.array([False, True])), scorer)
    expected = [scorer.rank(image, PAIR, texts).ref_msd for image, texts in ((RED, red), (BLUE, blue))]
    np.testing.assert_allclose(score("ref-msd", batch), expected, atol=1e-6)
    with pytest.raises(ConfigError, match="most.*got '0'"):
        load_metric("ref-msd,most=0")


def test_negative_reference_similarity_counts_as_zero():
    rows = {"a": np.array([1.0, 0.0]), "b": np.array([0.6, 0.8])}
    captions = np.array([[[-1.0, 0.0], [0.6, 0.8]]])
    assert nearest_reference(
        captions, [("a", "b")], lambda texts: np.stack([rows[text] for text in texts])
    ).tolist() == [[0.0, 1.0]]


def test_longclipscore_rejects_windows(tmp_path):
    from tiny_clip import make_tiny_clip

    scorer = Scorer(str(make_tiny_clip(tmp_path / "clip")))
    long = "a cat and a dog and a mat and a cat and a dog"
    batch = with_vectors(make_batch([RED], [(0, (long, "a cat"))]), scorer)
    with pytest.raises(ConfigError, match="LongCLIP"):
        load_metric("longclipscore").score(batch)


def test_max_sim_equals_a_loop(scorer, batch):
    image = prepare_and_encode(scorer.encoder, [RED])
    text = scorer.encoder.encode_texts([PAIR[0]])
    patches, tokens = image.points[0][image.mask[0]], text.points[0][text.mask[0]]
    expected = np.mean([max(float(patch @ token) for patch in patches) for token in tokens])
    assert score("max-sim", batch)[0, 0] == pytest.approx(expected, abs=1e-6)


def test_unreadable_image_does_not_affect_others(scorer):
    cases = [(0, PAIR), (1, PAIR)]
    holed = with_vectors(make_batch([None, BLUE], cases), scorer)
    alone = with_vectors(make_batch([BLUE], [(0, PAIR)]), scorer)
    for asked in ("msd", "clipscore", "max-sim", "soft-msd"):
        values = score(asked, holed)
        assert np.isnan(values[0]).all()
        np.testing.assert_allclose(values[1], score(asked, alone)[0], atol=1e-6)
    nothing = with_vectors(make_batch([None], [(0, PAIR)]), scorer)
    for asked in ("msd", "clipscore", "max-sim", "soft-msd", "rank-agg"):
        assert np.isnan(score(asked, nothing)).all()


def test_pairs_are_measured_once_with_content_keys(scorer, batch):
    assert len(batch.vectors.pair_images) == 5  # two images by two captions, and the dog
    assert pixel_key(RED) != pixel_key(BLUE)
    doubled = with_vectors(make_batch([BLUE, RED], [(1, PAIR), (0, PAIR), (1, PAIR)]), scorer)
    np.testing.assert_allclose(score("msd", doubled)[0], score("msd", batch)[0], atol=1e-6)
    assert len(doubled.vectors.pair_images) == 4
    assert isinstance(doubled.vectors.images.points, np.ndarray)


def test_calibrated_max_sim_subtracts_the_background(scorer, batch):
    with pytest.raises(ConfigError, match="max-sim-cal needs a background"):
        score("max-sim-cal", batch)
    background = prepare_and_encode(scorer.encoder, [RED, BLUE]).points[:, :5]
    changed = replace(batch, vectors=replace(batch.vectors, background=background))
    text = scorer.encoder.encode_texts([PAIR[0]]).points[0]
    offset = np.mean([[max(float(mean @ token) for mean in means) for token in text] for means in background])
    raw, found = score("max-sim", batch), score("max-sim-cal", changed)
    assert found[0, 0] == pytest.approx(raw[0, 0] - offset, abs=1e-6)
    np.testing.assert_allclose(found[0] - found[1], raw[0] - raw[1], atol=1e-6)  # the order of images is unchanged
