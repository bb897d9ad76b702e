"""Properties of all encoder families, on tiny checkpoints in the real formats."""

import pickle
import sys
from types import ModuleType

import numpy as np
import pytest
import torch

import tiny_clip
import tiny_models
import tiny_openclip
from msdscore.encoders.base import Encoder, PatchLayout, TokenLayout, prepare_and_encode
from msdscore.encoders.registry import find_row, load_encoder
from msdscore.errors import ConfigError, MissingExtraError, WeightsError
from msdscore.scorer import Scorer
from msdscore_torch import backbone

MAKERS = {
    "clip": tiny_clip.make_tiny_clip,
    "siglip": tiny_models.make_siglip,
    "siglip2": tiny_models.make_siglip2,
    "blip": tiny_models.make_blip,
    "llava": tiny_models.make_llava,
    "llava_onevision": tiny_models.make_onevision,
    "qwen2_5_vl": tiny_models.make_qwen,
    "open_clip": tiny_openclip.make_folder,
    "open_clip bert": tiny_openclip.make_biomed,
    "open_clip map": tiny_openclip.make_convolutions,
}
TRANSFORMERS = [name for name in MAKERS if not name.startswith("open_clip")]
LONG = "a dog sat on the mat. The cat sat on a red ball and the dog. A red cat on the mat, a dog on the red ball."
TEXTS = ["the cat", "a red dog on a mat", "x", LONG, "", "été 日本 👩‍👩‍👧"]
SIZES = [(64, 64), (97, 41), (41, 97), (20, 31)]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("families")


@pytest.fixture(scope="module", params=MAKERS)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def folder(root, family):
    made = root / family
    return made if made.is_dir() else MAKERS[family](made)


@pytest.fixture(scope="module")
def encoder(folder):
    return load_encoder(str(folder), device="cpu")


@pytest.fixture(scope="module")
def images():
    return tiny_models.noise_images(SIZES)


@pytest.fixture(scope="module")
def seen(encoder, images):
    return prepare_and_encode(encoder, images)


@pytest.fixture(scope="module")
def read(encoder):
    return encoder.encode_texts(TEXTS)


def assert_unit(vectors):
    torch.testing.assert_close(vectors.norm(dim=-1), torch.ones(vectors.shape[:-1]), rtol=0, atol=1e-5)


def test_family_is_detected_from_the_folder(folder, family, encoder):
    assert find_row(str(folder)).family == family.split()[0]
    assert isinstance(encoder, Encoder)
    assert encoder.signature.startswith(f"{folder.name}@")
    assert encoder.signature.endswith("dtype:float32")


def test_patches_are_unit_vectors_with_boxes(seen):
    assert seen.points.dtype == seen.pooled.dtype == torch.float32
    assert_unit(seen.points[seen.mask])
    assert_unit(seen.pooled)
    assert (seen.points[~seen.mask] == 0).all()
    for layout, size, mask in zip(seen.layout, SIZES, seen.mask, strict=True):
        assert isinstance(layout, PatchLayout)
        assert layout.size == size
        assert len(layout.boxes) == layout.grid[0] * layout.grid[1] >= mask.sum()
        left, top, right, bottom = layout.boxes[mask[: len(layout.boxes)].numpy()].T
        assert (left >= 0).all()
        assert (top >= 0).all()
        assert (left < right).all()
        assert (top < bottom).all()
        assert (right <= size[0]).all()
        assert (bottom <= size[1]).all()


def test_patches_of_one_image_do_not_overlap(seen):
    for layout in seen.layout:
        left, top, right, bottom = layout.boxes.astype(np.float64).T
        width = np.minimum(right[:, None], right) - np.maximum(left[:, None], left)
        height = np.minimum(bottom[:, None], bottom) - np.maximum(top[:, None], top)
        shared = np.maximum(width, 0) * np.maximum(height, 0)
        assert (shared - np.diag(np.diag(shared))).max() < 1e-2


def test_tokens_are_unit_vectors_with_spans(read):
    assert_unit(read.points[read.mask])
    assert (read.points[~read.mask] == 0).all()
    assert read.mask.sum(1).tolist() == [len(item.spans) for item in read.layout]
    assert not read.mask[4].any()
    for text, layout in zip(TEXTS, read.layout, strict=True):
        assert isinstance(layout, TokenLayout)
        assert all(0 <= start < end <= len(text) for start, end in layout.spans)
        assert list(layout.spans) == sorted(layout.spans)
    assert TEXTS[0][slice(*read.layout[0].spans[-1])] == "cat"


def test_tokens_cover_all_characters_of_a_unicode_text(read):
    covered = {index for span in read.layout[5].spans for index in range(*span)}
    missing = [character for index, character in enumerate(TEXTS[5]) if index not in covered]
    assert all(character.isspace() for character in missing)


def test_long_caption_is_windowed_without_loss(read):
    layout = read.layout[3]
    assert layout.windows > 1
    assert layout.cut == 0
    covered = {index for span in layout.spans for index in range(*span)}
    assert all(index in covered for index, character in enumerate(LONG) if character.isalnum())


def test_truncation_is_optional_and_reported(folder, read):
    (layout,) = load_encoder(str(folder), device="cpu", long_text="cut").encode_texts([LONG]).layout
    assert layout.windows == 1
    assert layout.cut == len(read.layout[3].spans) - len(layout.spans) > 0


def test_caption_vectors_do_not_depend_on_the_batch(encoder, read):
    for index, text in enumerate(TEXTS):
        alone = encoder.encode_texts([text])
        count = alone.points.shape[1]
        torch.testing.assert_close(read.points[index, :count], alone.points[0], rtol=0, atol=2e-5)
        torch.testing.assert_close(read.pooled[index], alone.pooled[0], rtol=0, atol=2e-5)
        assert read.layout[index] == alone.layout[0]


def test_image_vectors_do_not_depend_on_the_batch(encoder, images, seen):
    for index, image in enumerate(images):
        alone = prepare_and_encode(encoder, [image])
        count = alone.points.shape[1]
        torch.testing.assert_close(seen.points[index, :count], alone.points[0], rtol=0, atol=2e-5)
        torch.testing.assert_close(seen.pooled[index], alone.pooled[0], rtol=0, atol=2e-5)


def test_preprocessing_in_other_processes_is_identical(encoder, images):
    sent = pickle.loads(pickle.dumps(encoder.sendable_prepare))
    for image in images:
        here, there = encoder.prepare(image), sent(image)
        assert there.view == here.view
        assert np.array_equal(there.pixels, here.pixels)


def test_vectors_of_different_tokens_and_patches_differ(seen, read):
    """If tiny weights made all vectors equal, the tests above would pass trivially."""
    for points in (seen.points[0][seen.mask[0]], read.points[1][read.mask[1]]):
        alike = points @ points.T - 2 * torch.eye(len(points))
        assert alike.max() < 0.9999


def test_score_rank_and_explain_work_for_every_family(encoder, images):
    scorer = Scorer(encoder)
    ranked = scorer.rank(images[1], TEXTS[:2])
    whys = scorer.explain(images[1], TEXTS[:2])
    assert [why.score.msd for why in whys] == [score.msd for score in ranked]
    assert all(np.isfinite(score.msd) for score in ranked)
    assert encoder.signature in scorer.signature


def test_half_precision_is_close_and_returns_float32(folder, images, seen, read, monkeypatch):
    monkeypatch.setattr(backbone, "cpu_computes", lambda dtype: True)
    half = load_encoder(str(folder), device="cpu", dtype="bfloat16")
    for ours, exact in ((prepare_and_encode(half, images[:2]), seen), (half.encode_texts(TEXTS[:2]), read)):
        assert ours.points.dtype == ours.pooled.dtype == torch.float32
        near = (ours.pooled * exact.pooled[:2]).sum(-1)
        # Eight bits of mantissa, a few layers.
        assert near.min() > 0.995
    assert half.signature.endswith("dtype:bfloat16")


@pytest.mark.filterwarnings("ignore")  # warnings of the compiler
@pytest.mark.parametrize("family", [pytest.param("siglip", marks=pytest.mark.slow), "open_clip"], indirect=True)
def test_compiling_changes_only_the_signature(folder, images, read, seen):
    compiled = load_encoder(str(folder), device="cpu", compile="eager")
    torch.testing.assert_close(compiled.encode_texts(TEXTS).points, read.points, rtol=0, atol=1e-5)
    torch.testing.assert_close(prepare_and_encode(compiled, images).points, seen.points, rtol=0, atol=1e-5)
    assert ",compile:eager," in compiled.signature


@pytest.mark.filterwarnings("ignore")  # warnings of the compiler
@pytest.mark.parametrize("family", ["blip"], indirect=True)
def test_layers_of_one_tower_are_compiled_once_for_all_batches(folder, images):
    graphs = []

    @torch._dynamo.register_backend(name="counting")
    def counting(graph, inputs):
        graphs.append(graph)
        return graph.forward

    compiled = load_encoder(str(folder), device="cpu", compile="counting")
    for count in (4, 3, 2):
        prepare_and_encode(compiled, images[:count])
        compiled.encode_texts(TEXTS[:count])
        assert len(graphs) == 2, "one per tower"


@pytest.mark.parametrize("family", ["siglip"], indirect=True)
def test_unknown_compile_backend_is_rejected(folder):
    with pytest.raises(ConfigError, match="compile.*got 'gcc'"):
        load_encoder(str(folder), device="cpu", compile="gcc")


@pytest.mark.parametrize("family", TRANSFORMERS, indirect=True)
def test_device_map_and_quantisation_need_accelerate(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(MissingExtraError, match=r"accelerate .*\[large\]"):
        load_encoder(str(folder), device="cpu", device_map="auto")
    with pytest.raises(MissingExtraError, match=r"accelerate is needed here"):
        load_encoder(str(folder), device="cpu", bits=4)
    for bits in (1, 5, 16):
        with pytest.raises(ConfigError, match=f"bits .*got {bits}"):
            load_encoder(str(folder), device="cpu", bits=bits)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("family", TRANSFORMERS[:1], indirect=True)
def test_bits_choose_the_quantisation(folder, monkeypatch, bits):
    """Without bitsandbytes: what transformers is asked for."""
    pytest.importorskip("accelerate")
    asked = {}

    def refuse(*_, quantization_config, **__):
        asked.update(quantization_config.to_dict())
        raise OSError("loaded elsewhere")

    monkeypatch.setitem(sys.modules, "bitsandbytes", ModuleType("bitsandbytes"))
    monkeypatch.setattr("transformers.PreTrainedModel.from_pretrained", refuse)
    monkeypatch.setattr("transformers.BitsAndBytesConfig.post_init", lambda self: None)  # asks for the version
    with pytest.raises(WeightsError, match="loaded elsewhere"):
        load_encoder(str(folder), device="cpu", bits=bits)
    assert (asked["load_in_4bit"], asked["load_in_8bit"]) == (bits == 4, bits == 8)


@pytest.mark.filterwarnings("ignore")  # warnings of the libraries
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("family", TRANSFORMERS, indirect=True)
def test_quantised_weights_are_close(folder, images, seen, read, bits):
    pytest.importorskip("accelerate")
    pytest.importorskip("bitsandbytes")
    encoder = load_encoder(str(folder), device="cpu", bits=bits)
    assert f",bits:{bits}," in encoder.signature
    for ours, exact in ((prepare_and_encode(encoder, images), seen), (encoder.encode_texts(TEXTS[:3]), read)):
        near = (ours.pooled * exact.pooled[: len(ours)]).sum(-1)
        # Small random matrices lose much precision in four bits; with a wrong layer there would be no similarity.
        assert near.min() > 0.8
