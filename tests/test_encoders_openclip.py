"""open_clip models against the tokenizer, preprocessing, similarity and formats of open_clip."""

import json
import shutil

import open_clip
import pytest
import torch

from hostile import Bomb
from msdscore.encoders.base import prepare_and_encode
from msdscore.encoders.registry import find_row, load_encoder
from msdscore.errors import ConfigError, UnknownNameError, WeightsError
from tiny_models import noise_images
from tiny_openclip import CONVOLUTIONS, OWN, TEXT, VIT, build, make_biomed, make_convolutions, make_folder, register

TEXTS = ["the cat", "A red dog, on a mat!", "x 3.5", "don't  stop\nnow", "déjà vu 日本 👩‍👩‍👧"]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("openclip")


@pytest.fixture(scope="module")
def own(root):
    return make_folder(root / "own")


@pytest.fixture(scope="module")
def convolutions(root):
    return make_convolutions(root / "convolutions")


@pytest.fixture(scope="module")
def biomed(root):
    return make_biomed(root / "biomed")


@pytest.fixture(scope="module")
def images():
    return noise_images([(64, 64), (97, 41), (41, 97), (200, 31)], seed=3)


@torch.inference_mode()
def library_similarity(folder, images, texts):
    """Compute the similarity with open_clip only, from the same folder."""
    model, transform = open_clip.create_model_from_pretrained(f"local-dir:{folder}")
    tokenizer = open_clip.get_tokenizer(f"local-dir:{folder}")
    features = model.eval().encode_image(torch.stack([transform(image) for image in images]), normalize=True)
    return features @ model.encode_text(tokenizer(texts), normalize=True).T


def our_similarity(encoder, images, texts):
    return prepare_and_encode(encoder, images).pooled @ encoder.encode_texts(texts).pooled.T


@pytest.mark.parametrize("name", ["own", "convolutions"])
def test_pooled_vectors_give_the_similarity_of_open_clip(name, request, images):
    folder = request.getfixturevalue(name)
    short = TEXTS[:4]
    ours = our_similarity(load_encoder(str(folder), device="cpu"), images, short)
    torch.testing.assert_close(ours, library_similarity(folder, images, short), rtol=0, atol=1e-5)


def test_bert_text_tower_gives_the_similarity_of_open_clip(biomed, images, root):
    """open_clip loads the tower's configuration by name, so it gets a copy with a local path."""
    theirs = shutil.copytree(biomed, root / "theirs")
    config = json.loads((theirs / "open_clip_config.json").read_text())
    config["model_cfg"]["text_cfg"]["hf_model_name"] = str(biomed / "text")
    (theirs / "open_clip_config.json").write_text(json.dumps(config))
    texts = ["the cat", "A red dog, on a mat!"]
    ours = our_similarity(load_encoder(str(biomed), device="cpu"), images, texts)
    torch.testing.assert_close(ours, library_similarity(theirs, images, texts), rtol=0, atol=1e-5)


def test_tokens_equal_open_clip(own):
    """Without truncation, and without open_clip's repair of mojibake and HTML."""
    encoder = load_encoder(str(own), device="cpu")
    theirs = open_clip.get_tokenizer("ViT-B-32")
    for text in TEXTS:
        assert encoder.tokenizer.encode(text).ids == theirs.encode(text)


@torch.inference_mode()
@pytest.mark.parametrize("patch_norm", [False, True])
def test_patches_are_projected_states_without_cls(own, images, patch_norm):
    encoder = load_encoder(str(own), device="cpu", patch_norm=patch_norm)
    model, transform = open_clip.create_model_from_pretrained(f"local-dir:{own}")
    pixels = torch.stack([transform(image) for image in images])
    found = model.eval().visual.forward_intermediates(
        pixels, indices=1, normalize_intermediates=patch_norm, intermediates_only=True, output_fmt="NLC"
    )
    expected = torch.nn.functional.normalize(found["image_intermediates"][0] @ model.visual.proj, dim=-1)
    torch.testing.assert_close(prepare_and_encode(encoder, images).points, expected, rtol=0, atol=1e-5)
    assert f",norm:{'yes' if patch_norm else 'no'}," in encoder.signature


@torch.inference_mode()
def test_tokens_are_projected_states_without_start_and_end(own):
    encoder = load_encoder(str(own), device="cpu")
    model, _ = open_clip.create_model_from_pretrained(f"local-dir:{own}")
    ids = open_clip.get_tokenizer(f"local-dir:{own}")(["a red cat"])
    found = model.eval().forward_intermediates(text=ids, text_indices=1, normalize_intermediates=True)
    expected = torch.nn.functional.normalize(found["text_intermediates"][0][:, 1:4] @ model.text_projection, dim=-1)
    torch.testing.assert_close(encoder.encode_texts(["a red cat"]).points, expected, rtol=0, atol=1e-5)


def test_mean_of_feature_map_vectors_is_the_pooled_vector(convolutions, images):
    """The head is linear, so it commutes with the mean over positions."""
    encoder = load_encoder(str(convolutions), device="cpu")
    visual = encoder.model.visual
    from msdscore_torch.openclip import timm_patches

    with torch.no_grad():
        patches, pooled, grid, _ = timm_patches(visual, torch.randn(2, 3, 64, 64))
    assert grid == (2, 2)
    torch.testing.assert_close(patches.mean(1), pooled, rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def remote(root):
    """Write a bare state dict, as published by RemoteCLIP, of an architecture that open_clip knows by name."""
    folder = root / "remote"
    folder.mkdir()
    name = register(folder, "ViT-remote-tiny")
    torch.save(build(OWN).state_dict(), folder / f"RemoteCLIP-{name}.pt")
    return folder


def test_state_dict_loads_by_architecture_and_file(remote, own, images):
    file = remote / "RemoteCLIP-ViT-remote-tiny.pt"
    encoder = load_encoder(f"open_clip:ViT-remote-tiny/{file}", device="cpu")
    assert encoder.signature.startswith("open_clip:ViT-remote-tiny/RemoteCLIP-ViT-remote-tiny.pt@")
    assert str(remote) not in encoder.signature
    reference = load_encoder(str(own), device="cpu")
    torch.testing.assert_close(
        encoder.encode_texts(TEXTS).points, reference.encode_texts(TEXTS).points, rtol=0, atol=1e-6
    )


def test_a_row_with_model_and_file_loads_from_a_folder(remote):
    from msdscore_torch.openclip import load_openclip

    encoder = load_openclip(
        str(remote), name="mine", device="cpu", model="ViT-remote-tiny", file="RemoteCLIP-ViT-remote-tiny.pt"
    )
    assert encoder.signature.startswith("mine@")
    with pytest.raises(ConfigError, match="model='x', file=''"):
        load_openclip(str(remote), name="mine", device="cpu", model="x")
    with pytest.raises(WeightsError, match=r"has no other.pt"):
        load_openclip(str(remote), name="mine", device="cpu", model="ViT-remote-tiny", file="other.pt")


def test_a_pickle_with_code_is_rejected(remote, tmp_path):
    torch.save({"weight": Bomb(tmp_path / "trace")}, tmp_path / "bad.pt")
    with pytest.raises(WeightsError, match="bad.pt' cannot be loaded"):
        load_encoder(f"open_clip:ViT-remote-tiny/{tmp_path / 'bad.pt'}", device="cpu")
    assert not (tmp_path / "trace").exists()


def test_weights_of_another_architecture_are_rejected(remote, tmp_path):
    name = register(tmp_path, "ViT-other-tiny", {**OWN, "embed_dim": 8})
    file = remote / "RemoteCLIP-ViT-remote-tiny.pt"
    with pytest.raises(WeightsError, match="architecture .*size mismatch"):
        load_encoder(f"open_clip:{name}/{file}", device="cpu")


@pytest.fixture(scope="module")
def long(root):
    """Write the format of LongCLIP: two partially used tables of 248 positions."""
    folder = root / "long"
    folder.mkdir()
    text = {**TEXT, "context_length": 248}
    model = build({**OWN, "quick_gelu": True, "text_cfg": text})
    state = model.state_dict()
    table = state.pop("positional_embedding")
    noise = torch.full_like(table, 9.0)
    state["positional_embedding"] = torch.cat([table[:20], noise[20:]])
    state["positional_embedding_res"] = torch.cat([noise[:20], table[20:]])
    torch.save(state, folder / "longclip-T.pt")
    register(folder, "ViT-long-tiny", {**OWN, "quick_gelu": True, "text_cfg": {**TEXT, "context_length": 77}})
    return folder, model


@torch.inference_mode()
def test_longclip_reads_248_tokens_with_both_tables(long):
    folder, model = long
    from msdscore_torch.openclip import load_openclip

    encoder = load_openclip(
        str(folder), name="longclip-t", device="cpu", model="ViT-long-tiny", file="longclip-T.pt", context=248
    )
    text = "a cat sat on the mat " * 40
    out = encoder.encode_texts([text])
    assert out.layout[0].windows == 1
    assert out.mask.sum() == 240
    ids = open_clip.tokenizer.SimpleTokenizer(context_length=248)([text])
    torch.testing.assert_close(out.pooled, model.encode_text(ids, normalize=True), rtol=0, atol=1e-5)


def test_pretrained_tag_determines_activation_and_preprocessing(monkeypatch, root, images):
    """Tags refer to a hub repository, which is in the cache here."""
    from huggingface_hub import constants

    name = register(root, "ViT-tagged-tiny")
    folder = root / "cache" / "models--org--tagged"
    snapshot = folder / "snapshots" / ("1" * 40)
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("1" * 40)
    torch.save(build({**OWN, "quick_gelu": True}).state_dict(), snapshot / "open_clip_pytorch_model.bin")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(root / "cache"))
    tag = {
        "hf_hub": "org/tagged/",
        "mean": (0.0,) * 3,
        "std": (1.0,) * 3,
        "interpolation": "bilinear",
        "quick_gelu": True,
    }
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, name, {"mine": tag})
    encoder = load_encoder(f"open_clip:{name}/mine", device="cpu")
    assert encoder.signature.startswith(f"open_clip:{name}/mine@11111111,")
    assert encoder.preprocessing.mean == (0.0, 0.0, 0.0)
    assert type(encoder.model.visual.transformer.resblocks[0].mlp.gelu).__name__ == "QuickGELU"
    with pytest.raises(UnknownNameError, match="'mime'.*'mine'"):
        load_encoder(f"open_clip:{name}/mime", device="cpu")


def test_incomplete_names_are_rejected():
    with pytest.raises(ConfigError, match="'ViT-B-32' needs weights"):
        load_encoder("open_clip:ViT-B-32", device="cpu")
    with pytest.raises(WeightsError, match="folder 'ViT-B-31'"):
        load_encoder("open_clip:ViT-B-31", device="cpu")
    assert find_row("open_clip:ViT-B-32/openai").family == "open_clip"


@pytest.mark.parametrize(
    "config", [{**OWN, "multimodal_cfg": {}}, {**OWN, "vision_cfg": {**VIT, "layers": [1, 1, 1, 1]}}]
)
def test_models_without_patches_are_rejected(own, tmp_path, config):
    bad = shutil.copytree(own, tmp_path / "bad")
    (bad / "open_clip_config.json").write_text(json.dumps({"model_cfg": config}))
    with pytest.raises(ConfigError, match="CoCa or ResNet"):
        load_encoder(str(bad), device="cpu")


def test_texts_are_padded_to_full_length_without_a_causal_mask(convolutions):
    """Without a causal mask, padding affects the vectors and must be as long as in training."""
    assert CONVOLUTIONS["text_cfg"]["no_causal_mask"]
    assert load_encoder(str(convolutions), device="cpu").text_settings.full
