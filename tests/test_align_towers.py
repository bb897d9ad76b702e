"""Frozen towers and heads: shapes, positions, padding and invalid settings."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from align_data import draw
from msdscore.encoders.base import prepare_all
from msdscore.errors import ConfigError, UnknownNameError, WeightsError
from msdscore_lab.align.run.parts import tower_dims
from msdscore_torch.aligned.encoder import load_towers
from msdscore_torch.aligned.heads import AlignedHeads, HeadSpec, HeadsSpec, SideDims, make_head
from msdscore_torch.aligned.towers import ImageTowerSpec, TextTowerSpec, TowerOptions
from msdscore_torch.hub import files_sha256
from msdscore_torch.tensors import Features
from tiny_clip import make_tiny_clip
from tiny_lm import make_tiny_bert

MODEL = "test_efficientnet"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("towers")


@pytest.fixture(scope="module")
def clip(folder):
    return str(make_tiny_clip(folder / "clip"))


@pytest.fixture(scope="module")
def bert(folder):
    return str(make_tiny_bert(folder / "bert"))


@pytest.fixture(scope="module")
def timm_weights(folder):
    import timm

    with torch.random.fork_rng():
        torch.manual_seed(0)
        save_file(timm.create_model(MODEL).state_dict(), folder / "timm.safetensors")
    return str(folder / "timm.safetensors")


def timm_spec(weights, **more):
    return ImageTowerSpec(kind="timm", source=MODEL, weights=weights, size=64, **more)


def towers(image, text, **options):
    return load_towers(image, text, TowerOptions(**options))


def seen(tower):
    return tower.features(prepare_all(tower.prepare, IMAGES))


TOY_TEXT = TextTowerSpec(source="toy")
TOY_IMAGE = ImageTowerSpec(source="toy")
IMAGES = [draw("red", "square"), draw("blue", "circle").resize((90, 30))]


def test_timm_levels_are_resized_to_one_grid_with_boxes_that_tile_the_image(timm_weights):
    spec = timm_spec(timm_weights, levels=("stride16", "stride32", "final"), grid=3)
    image, _ = towers(spec, TOY_TEXT)
    found = image.features(prepare_all(image.prepare, IMAGES))
    assert found.points.shape == (2, 9, 48 + 64 + 256)
    assert found.whole is None
    layout = found.layout[1]
    assert (layout.size, layout.grid) == ((90, 30), (3, 3))
    assert layout.boxes[0].tolist() == [0, 0, 30, 10]
    assert layout.boxes[-1].tolist() == [60, 20, 90, 30]


def test_timm_global_path_has_separate_levels_and_grid(timm_weights):
    spec = timm_spec(timm_weights, levels=("stride8",), global_levels=("final", "stride16"))
    image, text = towers(spec, TOY_TEXT, whole=True)
    found = image.features(prepare_all(image.prepare, IMAGES[:1]))
    assert found.points.shape == (1, 64, 32)
    assert found.whole.points.shape == (1, 4, 256 + 48)
    assert tower_dims(image, text)[0] == SideDims(32, 304)


def test_timm_vision_transformer_tower(folder):
    import timm

    path = folder / "vit.safetensors"
    save_file(timm.create_model("test_vit", img_size=32).state_dict(), path)
    spec = ImageTowerSpec(kind="timm", source="test_vit", weights=str(path), size=32, levels=(2, "final"))
    found = seen(towers(spec, TOY_TEXT)[0])
    assert found.points.shape == (2, 4, 128)


def test_timm_weights_with_other_names_are_matched_by_order(folder, timm_weights):
    import timm
    from safetensors.torch import load_file

    own = load_file(timm_weights)
    wanted = timm.create_model(MODEL).state_dict()
    renamed = {f"other.{number:04d}": own[name] for number, name in enumerate(wanted)}
    torch.save(renamed, folder / "renamed.pth")
    first = seen(towers(timm_spec(timm_weights), TOY_TEXT)[0])
    second = seen(towers(timm_spec(str(folder / "renamed.pth")), TOY_TEXT)[0])
    assert torch.equal(first.points, second.points)


def test_transformers_images_are_hidden_states_without_special_tokens(clip):
    from transformers import CLIPModel

    spec = ImageTowerSpec(kind="transformers", source=clip, levels=(-1, 0))
    found = seen(towers(spec, TOY_TEXT)[0])
    assert found.points.shape == (2, 16, 64)
    from msdscore.encoders.preprocessing import prepare_image
    from msdscore_torch.checkpoints import preprocessor, read_preprocessing
    from msdscore_torch.hub import find_checkpoint
    from msdscore_torch.vision.device import stack_pixels

    steps = read_preprocessing(preprocessor(find_checkpoint(clip)))
    pixels = stack_pixels([prepare_image(image, steps) for image in IMAGES], steps, torch.device("cpu"))
    with torch.no_grad():
        states = CLIPModel.from_pretrained(clip).vision_model(pixel_values=pixels, output_hidden_states=True)
    wanted = torch.cat([states.hidden_states[-1][:, 1:], states.hidden_states[0][:, 1:]], dim=-1)
    assert torch.allclose(found.points, wanted, atol=1e-6)


def test_text_levels_are_concatenated_and_special_tokens_dropped(bert):
    from transformers import AutoTokenizer, BertModel

    spec = TextTowerSpec(kind="transformers", source=bert, levels=(0, 3), global_levels=(-1,))
    _, text = towers(TOY_IMAGE, spec, whole=True)
    captions = ["a red square", "the circle"]
    found = text.features(captions)
    assert found.points.shape == (2, 3, 64)
    assert found.mask.sum(dim=1).tolist() == [3, 2]
    assert found.whole.points.shape == (2, 3, 32)
    assert found.layout[0].spans == ((0, 1), (2, 5), (6, 12))
    with torch.no_grad():
        ids = AutoTokenizer.from_pretrained(bert)(captions[0], return_tensors="pt")
        states = BertModel.from_pretrained(bert)(**ids, output_hidden_states=True).hidden_states
    wanted = torch.cat([states[0], states[3]], dim=-1)[0, 1:-1]
    assert torch.allclose(found.points[0], wanted, atol=1e-5)
    sentence = torch.nn.functional.normalize(states[-1][0].mean(dim=0), dim=0)
    assert torch.allclose(found.pooled[0], sentence, atol=1e-5)


def test_padding_of_the_tokenizer_is_masked(tmp_path, bert):
    from shutil import copytree

    from tokenizers import Tokenizer

    copy = copytree(bert, tmp_path / "padded")
    tokenizer = Tokenizer.from_file(str(copy / "tokenizer.json"))
    tokenizer.enable_padding(length=12)
    tokenizer.enable_truncation(max_length=12)
    tokenizer.save(str(copy / "tokenizer.json"))
    plain = towers(TOY_IMAGE, TextTowerSpec(kind="transformers", source=bert))[1].features(["a red square"])
    padded = towers(TOY_IMAGE, TextTowerSpec(kind="transformers", source=str(copy)))[1].features(["a red square"])
    assert torch.equal(plain.points, padded.points)


def test_long_captions_are_windowed(bert):
    _, text = towers(TOY_IMAGE, TextTowerSpec(kind="transformers", source=bert))
    caption = "a red square on the left. " * 6
    found = text.features([caption, "a circle"])
    assert found.mask[0].sum() == 42
    assert found.layout[0].windows > 1
    alone = text.features(["a circle"])
    assert torch.allclose(alone.points[0], found.points[1, :2], atol=1e-5)


def test_local_path_contains_only_content_words(bert):
    spec = TextTowerSpec(kind="transformers", source=bert, words="content")
    every = TextTowerSpec(kind="transformers", source=bert)
    captions = ["the red square is on a circle", "of the"]
    found = towers(TOY_IMAGE, spec, whole=True)[1].features(captions)
    full = towers(TOY_IMAGE, every)[1].features(captions)
    assert found.layout[0].spans == ((4, 7), (8, 14), (23, 29))
    assert found.mask.sum(dim=1).tolist() == [3, 2]
    places = [full.layout[0].spans.index(span) for span in found.layout[0].spans]
    assert torch.equal(found.points[0, :3], full.points[0, places])
    assert found.whole.mask.sum(dim=1).tolist() == full.mask.sum(dim=1).tolist()


def test_registered_encoder_is_a_tower(clip):
    image, text = towers(ImageTowerSpec(source=clip), TextTowerSpec(source=clip), whole=True)
    assert tower_dims(image, text) == (SideDims(24, 24, 24), SideDims(24, 24, 24))
    assert files_sha256(image.files) == files_sha256(text.files) != ""
    toy = towers(TOY_IMAGE, TOY_TEXT)[0]
    assert toy.files == ()


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda w: timm_spec(w, levels=("stride7",)), ConfigError, "level 'stride7'"),
        (lambda w: timm_spec(w, sha256="00"), WeightsError, r"SHA-256 00…, got \w{12}…"),
        (lambda w: timm_spec(w + ".none"), WeightsError, "weight file .* does not exist"),
        (lambda w: ImageTowerSpec(kind="timm", source="tset_vit", weights=w), UnknownNameError, "unknown timm model"),
        (
            lambda w: ImageTowerSpec(kind="timm", source="test_vit", weights=w, size=32),
            WeightsError,
            "do not fit the model",
        ),
        (lambda w: timm_spec("package:PIL/x.pth"), WeightsError, "'PIL' has no 'x.pth'"),
        (lambda w: ImageTowerSpec(source="toy", grid=3), ConfigError, "has no levels and no grid"),
        (lambda w: ImageTowerSpec(source=""), ConfigError, "a tower needs a source"),
    ],
)
def test_invalid_towers_are_rejected(timm_weights, make, kind, message):
    with pytest.raises(kind, match=message):
        towers(make(timm_weights), TOY_TEXT)


def test_levels_beyond_the_layers_are_rejected(bert):
    with pytest.raises(ConfigError, match="level 9"):
        towers(TOY_IMAGE, TextTowerSpec(kind="transformers", source=bert, levels=(9,)))[1].features(["a"])
    with pytest.raises(ConfigError, match="must be indices"):
        TextTowerSpec(kind="transformers", source=bert, levels=("final",))


@pytest.mark.parametrize("kind", ["linear", "mlp", "attention"])
@given(extra=st.integers(0, 4), garbage=st.floats(-1e3, 1e3))
def test_heads_ignore_padding(kind, extra, garbage):
    torch.manual_seed(0)
    head = make_head(HeadSpec(kind=kind, hidden=8, heads=2, norm=True), 6, 5).eval()
    points = torch.randn(2, 3, 6)
    mask = torch.tensor([[True, True, True], [True, False, False]])
    points = points.masked_fill(~mask.unsqueeze(-1), 0.0)
    wide = torch.cat([points, torch.full((2, extra, 6), garbage)], dim=1).masked_scatter(
        torch.tensor([[False] * (3 + extra), [False, True, True, *[False] * extra]])
        .unsqueeze(-1)
        .expand(2, 3 + extra, 6),
        torch.full((12,), garbage),
    )
    wide_mask = torch.cat([mask, torch.zeros(2, extra, dtype=torch.bool)], dim=1)
    with torch.no_grad():
        plain, padded = head(points, mask), head(wide, wide_mask)
    assert torch.allclose(plain[mask], padded[:, :3][mask], atol=1e-5)


def test_item_without_points_gives_zeros():
    spec = HeadsSpec(dim=4, text=HeadSpec(kind="attention", hidden=8, heads=2))
    heads = AlignedHeads(spec, SideDims(6), SideDims(6)).eval()

    empty = Features(torch.randn(1, 2, 6), torch.zeros(1, 2, dtype=torch.bool))
    found = heads.project("text", empty)
    assert torch.equal(found.points, torch.zeros(1, 2, 4))
    assert torch.equal(found.pooled, torch.zeros(1, 4))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dropout": 1.0}, "dropout .*got 1.0"),
        ({"hidden": 10, "heads": 4}, "got 10, 1 and 4"),
    ],
)
def test_invalid_head_settings_are_rejected(settings, message):
    with pytest.raises(ConfigError, match=message):
        HeadSpec(kind="attention", **settings)
