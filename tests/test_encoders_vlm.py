"""Vision-language models against the visual tokens and language-model states of transformers."""

import json
import shutil

import pytest
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file, save_file

from msdscore.encoders.base import prepare_and_encode
from msdscore.encoders.registry import load_encoder
from msdscore.errors import ConfigError, WeightsError
from tiny_models import CANVASES, TOWER, make_llava, make_onevision, make_qwen, noise_images, pillow_processor

TEXT = "a red cat"
SIZES = [(64, 64), (97, 41), (41, 97), (180, 170)]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("vlm")


@pytest.fixture(scope="module")
def llava(root):
    return make_llava(root / "llava")


@pytest.fixture(scope="module")
def onevision(root):
    return make_onevision(root / "onevision")


@pytest.fixture(scope="module")
def qwen(root):
    return make_qwen(root / "qwen")


@pytest.fixture(scope="module")
def images():
    return noise_images(SIZES, seed=4)


def library(folder, kind):
    return getattr(transformers, kind).from_pretrained(folder).eval()


def processed(folder, name, images):
    return pillow_processor(name).from_pretrained(folder)(images, return_tensors="pt")


def features(output):
    """Return the tensors, which transformers 5 wraps in an output object."""
    return getattr(output, "pooler_output", output)


def assert_tokens(encoder, images, expected, atol=1e-5):
    seen = prepare_and_encode(encoder, images)
    for row, tokens in enumerate(expected):
        unit = torch.nn.functional.normalize(tokens, dim=-1)
        real = seen.mask[row][: len(unit)]
        assert len(seen.layout[row].boxes) == len(unit)
        torch.testing.assert_close(seen.points[row, : len(unit)][real], unit[real], rtol=0, atol=atol)


@torch.inference_mode()
def test_llava_visual_tokens_equal_transformers(llava, images):
    pixels = processed(llava, "CLIPImageProcessor", images)["pixel_values"]
    expected = features(library(llava, "LlavaForConditionalGeneration").get_image_features(pixel_values=pixels))
    assert_tokens(load_encoder(str(llava), device="cpu"), images, expected)


@torch.inference_mode()
def test_image_can_be_padded_to_a_square_of_the_mean_colour(root, images):
    folder = make_llava(root / "padded", do_pad=True)
    square = pillow_processor("LlavaImageProcessor")(
        do_pad=True, size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
    )
    pixels = square(images, return_tensors="pt")["pixel_values"]
    expected = features(library(folder, "LlavaForConditionalGeneration").get_image_features(pixel_values=pixels))
    encoder = load_encoder(str(folder), device="cpu")
    assert_tokens(encoder, images, expected)
    (layout,) = prepare_and_encode(encoder, [Image.new("RGB", (128, 64))]).layout
    assert layout.boxes[[0, 4, 15]].tolist() == [[0, 0, 32, 0], [0, 0, 32, 32], [96, 64, 128, 64]]
    assert prepare_and_encode(encoder, [Image.new("RGB", (128, 64))]).mask.sum() == 8


@torch.inference_mode()
def test_onevision_tiles_equal_transformers_without_overview_and_newlines(onevision, images):
    model = library(onevision, "LlavaOnevisionForConditionalGeneration")
    inputs = processed(onevision, "LlavaOnevisionImageProcessor", images)
    packed = features(model.get_image_features(inputs["pixel_values"], inputs["image_sizes"]))
    encoder = load_encoder(str(onevision), device="cpu")
    layouts = prepare_and_encode(encoder, images).layout
    expected = []
    for tokens, layout in zip(packed, layouts, strict=True):
        rows, columns = layout.grid
        mosaic = tokens[9:].reshape(rows, columns + 1, -1)  # 9 patches of the overview; one newline token per row
        expected.append(mosaic[:, :-1].flatten(0, 1))
    assert_tokens(encoder, images, expected)
    assert ",views:tiles," in encoder.signature
    overview = load_encoder(str(onevision), device="cpu", views="overview")
    assert_tokens(overview, images, [tokens[:9] for tokens in packed])
    assert ",views:overview," in overview.signature


@torch.inference_mode()
def test_qwen_visual_tokens_equal_transformers(qwen, images):
    model = library(qwen, "Qwen2_5_VLForConditionalGeneration")
    inputs = processed(qwen, "Qwen2VLImageProcessor", images)
    expected = features(model.get_image_features(inputs["pixel_values"], inputs["image_grid_thw"]))
    encoder = load_encoder(str(qwen), device="cpu")
    assert_tokens(encoder, images, expected)
    grids = [[1, 2 * layout.grid[0], 2 * layout.grid[1]] for layout in prepare_and_encode(encoder, images).layout]
    assert grids == inputs["image_grid_thw"].tolist()


def test_image_area_of_qwen_is_in_the_signature(qwen):
    encoder = load_encoder(str(qwen), device="cpu", max_patches=8)
    (layout,) = prepare_and_encode(encoder, [Image.new("RGB", (300, 150))]).layout
    assert layout.grid == (2, 4)
    assert layout.boxes[-1].tolist() == [225, 75, 300, 150]
    assert ",pixels:512," in encoder.signature


@torch.inference_mode()
@pytest.mark.parametrize(
    ("name", "kind", "lead"),
    [
        ("llava", "LlavaForConditionalGeneration", 1),
        ("onevision", "LlavaOnevisionForConditionalGeneration", 0),
        ("qwen", "Qwen2_5_VLForConditionalGeneration", 0),
    ],
)
def test_tokens_are_last_states_over_the_caption_only(name, kind, lead, request):
    """LLaVA-1.5 prepends a start token, which is dropped; Qwen has none."""
    folder = request.getfixturevalue(name)
    ids = transformers.AutoTokenizer.from_pretrained(folder)(TEXT, return_tensors="pt")["input_ids"]
    states = library(folder, kind)(input_ids=ids, output_hidden_states=True).hidden_states[-1]
    expected = torch.nn.functional.normalize(states[:, lead:], dim=-1)
    ours = load_encoder(str(folder), device="cpu").encode_texts([TEXT])
    torch.testing.assert_close(ours.points, expected, rtol=0, atol=1e-5)
    mean = torch.nn.functional.normalize(expected.sum(1), dim=-1)
    torch.testing.assert_close(ours.pooled, mean, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["llava", "onevision", "qwen"])
def test_texts_without_tokens_have_no_points(name, request):
    encoder = load_encoder(str(request.getfixturevalue(name)), device="cpu")
    assert encoder.encode_texts(["", ""]).points.shape[1] == 0
    both = encoder.encode_texts(["", TEXT])
    torch.testing.assert_close(both.points[1:], encoder.encode_texts([TEXT]).points, rtol=0, atol=1e-5)
    assert torch.isfinite(both.points).all()


def test_special_tokens_in_captions_are_text(llava):
    encoder = load_encoder(str(llava), device="cpu")
    (layout,) = encoder.encode_texts(["a</s>b"]).layout
    assert len(layout.spans) > 3


def test_invalid_options_are_rejected(qwen):
    with pytest.raises(ConfigError, match="views.*got 'all'"):
        load_encoder(str(qwen), device="cpu", views="all")


ORIGINAL = (
    ("language_model.lm_head.", "lm_head."),
    ("language_model.model.", "model."),
    ("vision_tower.vision_model.", "vision_tower."),  # version 4 writes one more level than version 5
    ("vision_tower.", "model.vision_tower.vision_tower.vision_model."),
    ("multi_modal_projector.linear_1.", "model.mm_projector.0."),
    ("multi_modal_projector.linear_2.", "model.mm_projector.2."),
    ("image_newline", "model.image_newline"),
)


@pytest.fixture(scope="module")
def critic(onevision, root):
    """Write the weights in the format of the LLaVA-NeXT repository, as published for LLaVA-Critic."""
    folder = root / "critic"
    folder.mkdir()
    state = {}
    for key, tensor in load_file(onevision / "model.safetensors").items():
        for new, old in ORIGINAL:
            if key.startswith(new):
                key = old + key.removeprefix(new)
        state[key] = tensor
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    text = json.loads((onevision / "config.json").read_text())["text_config"]
    config = {key: text[key] for key in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")}
    config |= {key: text[key] for key in ("num_attention_heads", "num_key_value_heads", "max_position_embeddings")}
    config |= {"model_type": "llava", "architectures": ["LlavaQwenForCausalLM"], "mm_vision_tower": "google/siglip"}
    config |= {"image_grid_pinpoints": CANVASES, "image_aspect_ratio": "anyres_max_9", "rope_theta": 1e6}
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("vocab.json", "merges.txt", "tokenizer_config.json"):
        (folder / name).write_bytes((onevision / name).read_bytes())
    return folder


def test_the_original_format_gives_the_same_vectors(critic, onevision, images):
    ours, same = load_encoder(str(critic), device="cpu"), load_encoder(str(onevision), device="cpu")
    assert ours.signature.startswith("critic@")
    torch.testing.assert_close(ours.encode_texts([TEXT]).points, same.encode_texts([TEXT]).points, rtol=0, atol=1e-6)
    torch.testing.assert_close(
        prepare_and_encode(ours, images).points, prepare_and_encode(same, images).points, rtol=0, atol=1e-6
    )


def test_incomplete_original_format_is_rejected(critic, root):
    bad = shutil.copytree(critic, root / "gaps")
    config = json.loads((bad / "config.json").read_text())
    del config["image_grid_pinpoints"]
    (bad / "config.json").write_text(json.dumps(config))
    with pytest.raises(WeightsError, match=r"gaps' .*KeyError\('image_grid"):
        load_encoder(str(bad), device="cpu")


def test_unsupported_vision_tower_is_rejected(llava, root):
    bad = shutil.copytree(llava, root / "pixtral")
    config = transformers.LlavaConfig.from_pretrained(llava)
    tower = {"model_type": "pixtral", "image_size": 32, "patch_size": 8, "head_dim": 8, **TOWER}
    config = transformers.LlavaConfig(text_config=config.text_config.to_dict(), vision_config=tower)
    transformers.LlavaForConditionalGeneration(config).save_pretrained(bad)
    with pytest.raises(ConfigError, match="vision tower .*got pixtral"):
        load_encoder(str(bad), device="cpu")


def test_layers_can_be_spread_over_devices(llava, images):
    pytest.importorskip("accelerate")
    spread = load_encoder(str(llava), device="cpu", device_map="cpu")
    plain = load_encoder(str(llava), device="cpu")
    assert spread.signature == plain.signature
    torch.testing.assert_close(prepare_and_encode(spread, images).points, prepare_and_encode(plain, images).points)
