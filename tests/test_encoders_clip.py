"""The CLIP family on a tiny checkpoint in the real format, against transformers."""

import json
import shutil

import pytest
import torch
import transformers

from hostile import Bomb
from msdscore.encoders.base import prepare_and_encode
from msdscore.encoders.registry import load_encoder
from msdscore.errors import ConfigError, UnknownNameError, WeightsError
from msdscore.forms.paper import NAMED
from msdscore.scorer import Scorer
from tiny_clip import PROJECTION, make_tiny_clip
from tiny_models import noise_images, pillow_processor

LONG = "the dog sat. The cat sat on the mat and saw. A dog ran off to the sea, and the cat came too."
TEXTS = ["the cat", "a dog on the mat", "x", LONG, "", "été 👩‍👩‍👧"]
SIZES = [(64, 64), (97, 41), (41, 97), (20, 31)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_clip(tmp_path_factory.mktemp("clip") / "tiny")


@pytest.fixture(scope="module")
def encoder(folder):
    return load_encoder(str(folder), device="cpu")


@pytest.fixture(scope="module")
def library(folder):
    return transformers.CLIPModel.from_pretrained(folder).eval()


@pytest.fixture(scope="module")
def tokenizer(folder):
    return transformers.AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def images():
    return noise_images(SIZES)


def library_pixels(folder, images):
    return pillow_processor("CLIPImageProcessor").from_pretrained(folder)(images, return_tensors="pt")["pixel_values"]


@torch.inference_mode()
def test_pooled_vectors_give_the_similarity_of_transformers(folder, encoder, library, tokenizer, images):
    short = [text for text in TEXTS if text not in (LONG, "été 👩‍👩‍👧")]
    inputs = tokenizer(short, padding=True, return_tensors="pt")
    theirs = library(**inputs, pixel_values=library_pixels(folder, images))
    ours = prepare_and_encode(encoder, images).pooled @ encoder.encode_texts(short).pooled.T
    torch.testing.assert_close(ours, theirs.logits_per_image / library.logit_scale.exp(), rtol=0, atol=1e-5)


@torch.inference_mode()
def test_legacy_eos_token_id_gives_the_same_vectors(folder, encoder, tmp_path):
    """OpenAI's published configs have eos_token_id 2, which transformers treats as the highest id."""
    old = shutil.copytree(folder, tmp_path / "old")
    config = json.loads((old / "config.json").read_text())
    config["text_config"]["eos_token_id"] = 2
    (old / "config.json").write_text(json.dumps(config))
    ours = load_encoder(str(old), device="cpu").encode_texts(TEXTS)
    torch.testing.assert_close(ours.pooled, encoder.encode_texts(TEXTS).pooled, rtol=0, atol=1e-6)


@torch.inference_mode()
@pytest.mark.parametrize("patch_norm", [False, True])
def test_patches_are_projected_states_without_cls(folder, library, images, patch_norm):
    encoder = load_encoder(str(folder), device="cpu", patch_norm=patch_norm)
    states = library.vision_model(pixel_values=library_pixels(folder, images)).last_hidden_state
    states = library.vision_model.post_layernorm(states) if patch_norm else states
    expected = torch.nn.functional.normalize(library.visual_projection(states[:, 1:]), dim=-1)
    torch.testing.assert_close(prepare_and_encode(encoder, images).points, expected, rtol=0, atol=1e-5)
    assert f"norm:{'yes' if patch_norm else 'no'}" in encoder.signature


@torch.inference_mode()
def test_tokens_are_projected_states_without_start_and_end(encoder, library, tokenizer):
    states = library.text_model(**tokenizer(["a dog on the mat"], return_tensors="pt")).last_hidden_state
    expected = torch.nn.functional.normalize(library.text_projection(states[:, 1:-1]), dim=-1)
    torch.testing.assert_close(encoder.encode_texts(["a dog on the mat"]).points, expected, rtol=0, atol=1e-5)


def test_first_window_equals_a_short_text(tmp_path, encoder):
    """The first window of a long text equals a short text with the same words."""
    first = "the dog sat. The cat sat on"
    points = encoder.encode_texts([first]).points[0]
    torch.testing.assert_close(encoder.encode_texts([LONG]).points[0, :5], points[:5], rtol=0, atol=1e-5)


def test_vectors_are_detached_and_can_train_heads(encoder, images):
    out = prepare_and_encode(encoder, images)
    assert not out.points.requires_grad
    assert not encoder.encode_texts(["x"]).pooled.requires_grad
    head = torch.nn.Linear(PROJECTION, 3)
    head(out.points).sum().backward()
    assert head.weight.grad is not None


def test_signature_contains_folder_name_and_content_hash(folder, encoder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "elsewhere" / "tiny")
    other = make_tiny_clip(tmp_path / "other" / "tiny", seed=1)
    assert encoder.signature.startswith("tiny@")
    assert encoder.signature.endswith(",norm:no,long:window,dtype:float32")
    assert load_encoder(str(copy), device="cpu").signature == encoder.signature
    assert load_encoder(str(other), device="cpu").signature != encoder.signature


def test_pickled_weights_load_without_running_code(folder, encoder, tmp_path):
    old = shutil.copytree(folder, tmp_path / "tiny")
    state = transformers.CLIPModel.from_pretrained(old).state_dict()
    (old / "model.safetensors").unlink()
    torch.save(state, old / "pytorch_model.bin")
    ours = load_encoder(str(old), device="cpu").encode_texts(TEXTS)
    assert torch.equal(ours.points, encoder.encode_texts(TEXTS).points)


def test_a_pickle_with_code_is_rejected(folder, tmp_path):
    bad, trace = tmp_path / "bad", tmp_path / "trace"
    shutil.copytree(folder, bad)
    (bad / "model.safetensors").unlink()
    torch.save({"weight": Bomb(trace)}, bad / "pytorch_model.bin")
    with pytest.raises(WeightsError, match="cannot be loaded"):
        load_encoder(str(bad), device="cpu")
    assert not trace.exists()


def test_damaged_weights_are_one_line_errors(folder, tmp_path):
    bad = shutil.copytree(folder, tmp_path / "bad")
    weights = bad / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    with pytest.raises(WeightsError, match="bad' cannot be loaded") as caught:
        load_encoder(str(bad), device="cpu")
    assert "\n" not in str(caught.value)


def test_missing_tensors_are_not_filled_with_random_numbers(folder, tmp_path):
    from safetensors.torch import load_file, save_file

    bad = shutil.copytree(folder, tmp_path / "bad")
    tensors = load_file(bad / "model.safetensors")
    del tensors["visual_projection.weight"]
    save_file(tensors, bad / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(WeightsError, match="'visual_projection.weight'"):
        load_encoder(str(bad), device="cpu")


def test_preprocessor_with_another_size_is_rejected(folder, tmp_path):
    bad = shutil.copytree(folder, tmp_path / "bad")
    config = json.loads((bad / "preprocessor_config.json").read_text())
    (bad / "preprocessor_config.json").write_text(json.dumps({**config, "crop_size": 40}))
    with pytest.raises(WeightsError, match=r"32 x 32 .*\(40, 40\)"):
        load_encoder(str(bad), device="cpu")


def test_preprocessor_in_the_processor_file_is_used(folder, encoder, images, tmp_path):
    new = shutil.copytree(folder, tmp_path / "new")
    config = json.loads((new / "preprocessor_config.json").read_text())
    (new / "preprocessor_config.json").unlink()
    (new / "processor_config.json").write_text(json.dumps({"image_processor": config}))
    ours = prepare_and_encode(load_encoder(str(new), device="cpu"), images)
    assert torch.equal(ours.points, prepare_and_encode(encoder, images).points)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"long_text": "drop"}, ConfigError, "long_text .*got 'drop'"),
        (
            {"patchnorm": True},
            UnknownNameError,
            "'patchnorm'.*'patch_norm'",
        ),
        (
            {"dtype": "int8"},
            ConfigError,
            "dtype .*got 'int8'",
        ),
        ({"device": "abacus"}, ConfigError, "device .*got 'abacus'"),
        ({"device": "cuda:99"}, ConfigError, "device 'cuda:99'"),
    ],
)
def test_invalid_options_are_rejected(folder, options, error, message):
    with pytest.raises(error, match=message):
        load_encoder(str(folder), **options)


def test_empty_batches_are_rejected(encoder):
    with pytest.raises(ConfigError, match="one image .*got none"):
        prepare_and_encode(encoder, [])
    with pytest.raises(ConfigError, match="one caption .*got none"):
        encoder.encode_texts([])


def test_form_paper_uses_random_starts_and_mean_pooling(folder, images):
    paper = Scorer(str(folder), "paper", device="cpu")
    assert "|k:3,2|kappa:20|it:20|init:sample,0|a:0.1|gate:length,20,3|xi:0.2|pool:mean|" in paper.signature
    assert "|k:5,3|kappa:20|it:20|init:sample,0|" in Scorer(str(folder), "paper-long", device="cpu").signature
    row, text = paper.pipeline.encoder, "a dog on the mat"
    image = prepare_and_encode(row, [images[0]])
    means = [sides.points[0][sides.mask[0]].mean(dim=0) for sides in (image, row.encode_texts([text]))]
    cosine = torch.nn.functional.cosine_similarity(means[0], means[1], dim=0)
    score = paper.score(images[0], text)
    assert score.similarity == pytest.approx(float(cosine), abs=1e-5)
    # The name of the form, the form and a loaded encoder are one metric.
    for other in (Scorer(row, "paper"), Scorer(str(folder), NAMED["paper"], device="cpu")):
        assert (other.signature, other.score(images[0], text)) == (paper.signature, score)
    assert "pool:" not in Scorer(row, "short").signature
    assert "pool:mean" in Scorer("toy", "paper").signature
    with pytest.raises(UnknownNameError, match="pol"):
        Scorer(str(folder), "paper", device="cpu", pol="mean")
