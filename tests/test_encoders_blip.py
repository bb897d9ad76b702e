"""BLIP for image-text matching against the contrastive score of transformers."""

import pytest
import torch
import transformers

from msdscore.encoders.base import prepare_and_encode
from msdscore.encoders.registry import load_encoder
from msdscore.errors import WeightsError
from tiny_models import make_blip, noise_images, pillow_processor

TEXTS = ["the cat", "a red dog on a mat.", "x"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_blip(tmp_path_factory.mktemp("blip") / "tiny")


@pytest.fixture(scope="module")
def library(folder):
    return transformers.BlipForImageTextRetrieval.from_pretrained(folder).eval()


@pytest.fixture(scope="module")
def images():
    return noise_images([(64, 64), (97, 41)], seed=2)


@pytest.fixture(scope="module")
def pixels(folder, images):
    return pillow_processor("BlipImageProcessor").from_pretrained(folder)(images, return_tensors="pt")["pixel_values"]


@torch.inference_mode()
def test_pooled_vectors_give_the_contrastive_score_of_transformers(folder, library, images, pixels):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
    theirs = library(
        input_ids=inputs["input_ids"],
        attention_mask=inputs["attention_mask"],
        pixel_values=pixels,
        use_itm_head=False,
    ).itm_score
    encoder = load_encoder(str(folder), device="cpu")
    ours = prepare_and_encode(encoder, images).pooled @ encoder.encode_texts(TEXTS).pooled.T
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


@torch.inference_mode()
def test_points_are_projected_states_without_the_first_and_last(folder, library, images, pixels):
    encoder = load_encoder(str(folder), device="cpu")
    normal = torch.nn.functional.normalize
    patches = library.vision_proj(library.vision_model(pixels).last_hidden_state[:, 1:])
    torch.testing.assert_close(prepare_and_encode(encoder, images).points, normal(patches, dim=-1), rtol=0, atol=1e-5)
    inputs = transformers.AutoTokenizer.from_pretrained(folder)(["the cat"], return_tensors="pt")
    states = library.text_encoder(inputs["input_ids"], attention_mask=inputs["attention_mask"]).last_hidden_state
    tokens = library.text_proj(states[:, 1:-1])
    torch.testing.assert_close(encoder.encode_texts(["the cat"]).points, normal(tokens, dim=-1), rtol=0, atol=1e-5)


def test_blip_captioner_is_rejected(folder, tmp_path):
    config = transformers.BlipConfig.from_pretrained(folder)
    other = tmp_path / "captioner"
    transformers.BlipForConditionalGeneration(config).save_pretrained(other)
    for name in ("preprocessor_config.json", "tokenizer.json"):
        (other / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(WeightsError, match=r"lack \d+ tensors of Blip"):
        load_encoder(str(other), device="cpu")
