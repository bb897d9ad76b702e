"""SigLIP and SigLIP 2 against transformers: padding, end token, punctuation, native resolution."""

import json
import string

import pytest
import torch
import transformers
from PIL import Image

from msdscore.encoders.base import prepare_and_encode
from msdscore.encoders.registry import load_encoder
from msdscore.errors import ConfigError
from tiny_models import CONTEXT, make_siglip, make_siglip2, noise_images, pillow_processor

TEXTS = ["the cat", "A red dog, on a mat!", "x"]


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    return make_siglip(tmp_path_factory.mktemp("siglip") / "first")


@pytest.fixture(scope="module")
def second(tmp_path_factory):
    return make_siglip2(tmp_path_factory.mktemp("siglip") / "second")


@pytest.fixture(scope="module")
def images():
    return noise_images([(64, 64), (97, 41), (41, 97), (9, 300)], seed=1)


def library_ids(folder, texts, *, punctuation):
    """Tokenise as documented: cleaned text, end token, padded to the full context."""
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    clean = [
        text.lower() if punctuation else text.lower().translate(str.maketrans("", "", string.punctuation))
        for text in texts
    ]
    return tokenizer(clean, padding="max_length", max_length=CONTEXT, return_tensors="pt")["input_ids"]


@torch.inference_mode()
def test_pooled_vectors_give_the_similarity_of_transformers(first, images):
    library = transformers.SiglipModel.from_pretrained(first).eval()
    pixels = pillow_processor("SiglipImageProcessor").from_pretrained(first)(images, return_tensors="pt")[
        "pixel_values"
    ]
    theirs = library(input_ids=library_ids(first, TEXTS, punctuation=False), pixel_values=pixels).logits_per_image
    encoder = load_encoder(str(first), device="cpu")
    ours = prepare_and_encode(encoder, images).pooled @ encoder.encode_texts(TEXTS).pooled.T
    expected = (theirs - library.logit_bias) / library.logit_scale.exp()
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5)


@torch.inference_mode()
def test_native_resolution_gives_the_similarity_of_transformers(second, images):
    library = transformers.Siglip2Model.from_pretrained(second).eval()
    inputs = pillow_processor("Siglip2ImageProcessor").from_pretrained(second)(images, return_tensors="pt")
    theirs = library(input_ids=library_ids(second, TEXTS, punctuation=True), **inputs).logits_per_image
    encoder = load_encoder(str(second), device="cpu")
    seen = prepare_and_encode(encoder, images)
    expected = (theirs - library.logit_bias) / library.logit_scale.exp()
    torch.testing.assert_close(seen.pooled @ encoder.encode_texts(TEXTS).pooled.T, expected, rtol=0, atol=1e-4)
    assert [list(layout.grid) for layout in seen.layout] == inputs["spatial_shapes"].tolist()


@torch.inference_mode()
def test_points_are_normed_states_without_padding_and_end(first, images):
    library = transformers.SiglipModel.from_pretrained(first).eval()
    ids = library_ids(first, ["the cat"], punctuation=False)
    states = library.text_model(input_ids=ids).last_hidden_state[:, :2]
    encoder = load_encoder(str(first), device="cpu")
    expected = torch.nn.functional.normalize(states, dim=-1)
    torch.testing.assert_close(encoder.encode_texts(["the cat"]).points, expected, rtol=0, atol=1e-5)
    pixels = pillow_processor("SiglipImageProcessor").from_pretrained(first)(images, return_tensors="pt")[
        "pixel_values"
    ]
    patches = torch.nn.functional.normalize(library.vision_model(pixels).last_hidden_state, dim=-1)
    torch.testing.assert_close(prepare_and_encode(encoder, images).points, patches, rtol=0, atol=1e-5)


def test_end_token_can_be_included(first):
    text = "the cat"
    plain = load_encoder(str(first), device="cpu").encode_texts([text])
    encoder = load_encoder(str(first), device="cpu", keep_end=True)
    kept = encoder.encode_texts([text])
    assert kept.layout[0].spans == (*plain.layout[0].spans, (7, 7))
    torch.testing.assert_close(kept.points[:, :2], plain.points, rtol=0, atol=1e-6)
    torch.testing.assert_close(kept.pooled, plain.pooled, rtol=0, atol=1e-6)
    assert ",end:kept," in encoder.signature


def test_case_and_punctuation_are_ignored_with_correct_spans(first):
    encoder = load_encoder(str(first), device="cpu")
    out = encoder.encode_texts(["the cat", "The, CAT!"])
    torch.testing.assert_close(out.points[0], out.points[1], rtol=0, atol=1e-6)
    assert ["The, CAT!"[slice(*span)] for span in out.layout[1].spans] == ["The", "CAT"]


def test_siglip2_reads_punctuation_but_ignores_case(second):
    out = load_encoder(str(second), device="cpu").encode_texts(["a cat.", "A CAT.", "a cat"])
    torch.testing.assert_close(out.points[0], out.points[1], rtol=0, atol=1e-6)
    assert out.mask.sum(1).tolist() == [3, 3, 2]


@torch.inference_mode()
@pytest.mark.parametrize("name", ["first", "second"])
def test_heads_map_patches_and_tokens_to_the_pooled_space(name, request, images):
    folder = request.getfixturevalue(name)
    encoder = load_encoder(str(folder), device="cpu", local="heads")
    model = encoder.model
    plain = load_encoder(str(folder), device="cpu")
    seen, states = prepare_and_encode(encoder, images[:1]), []
    handle = model.vision_model.post_layernorm.register_forward_hook(lambda _m, _i, output: states.append(output))
    prepare_and_encode(encoder, images[:1])
    handle.remove()
    alone = model.vision_model.head(states[0][0, 3:4].unsqueeze(0))
    torch.testing.assert_close(seen.points[0, 3], torch.nn.functional.normalize(alone[0], dim=-1), rtol=0, atol=1e-5)
    torch.testing.assert_close(seen.pooled, prepare_and_encode(plain, images[:1]).pooled, rtol=0, atol=1e-6)
    assert ",local:heads," in encoder.signature


def test_towers_of_different_widths_need_the_heads(tmp_path):
    folder = make_siglip(tmp_path / "giant", text_width=16)
    with pytest.raises(ConfigError, match="32 numbers and tokens 16"):
        load_encoder(str(folder), device="cpu")
    encoder = load_encoder(str(folder), device="cpu", local="heads")
    assert (
        encoder.encode_texts(["a cat"]).points.shape[-1]
        == prepare_and_encode(encoder, [Image.new("RGB", (9, 9))]).points.shape[-1]
    )


@pytest.mark.parametrize("option", ["jpeg", "resize"])
def test_native_resolution_has_no_pixel_options(second, option):
    with pytest.raises(ConfigError, match=f"omit {option}:device"):
        load_encoder(str(second), device="cpu", **{option: "device"})


def test_number_of_native_patches_is_in_the_signature(second):
    encoder = load_encoder(str(second), device="cpu", max_patches=6)
    (layout,) = prepare_and_encode(encoder, [Image.new("RGB", (60, 40))]).layout
    assert layout.grid == (2, 3)
    assert layout.boxes[-1].tolist() == [40, 20, 60, 40]
    assert ",patches:6," in encoder.signature


def test_slow_tokenizer_is_read_from_its_file(first):
    """The class needs a library that is not a dependency."""
    config = json.loads((first / "tokenizer_config.json").read_text())
    assert config["tokenizer_class"] == "SiglipTokenizer"
    assert load_encoder(str(first), device="cpu").encode_texts(["the cat"]).mask.sum() == 2
