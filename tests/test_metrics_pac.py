"""PAC-S from a small checkpoint in the released format."""

import numpy as np
import pytest
import torch
from PIL import Image

from metric_batches import make_batch
from msdscore.errors import ConfigError, WeightsError
from msdscore_lab.metrics.registry import load_metric

open_clip = pytest.importorskip("open_clip", reason="needs the extra 'openclip'")
RED, BLUE = (Image.new("RGB", (40, 32), colour) for colour in ("red", "blue"))
PAIR = ("a red square", "a blue dog")


@pytest.fixture(scope="module")
def model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return open_clip.CLIP(
            16,
            vision_cfg={"layers": 1, "width": 64, "patch_size": 16, "image_size": 32},
            text_cfg={"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 1, "layers": 1},
            quick_gelu=True,
        ).eval()


@pytest.fixture(scope="module")
def checkpoint(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("pac") / "clip_tiny.pth"
    torch.save({"state_dict": model.state_dict(), "epoch": 3}, path)
    return path


@torch.no_grad()
def expected(model, source, texts):
    prepare = open_clip.image_transform(
        32, is_train=False, mean=(0.48145466, 0.4578275, 0.40821073), std=(0.26862954, 0.26130258, 0.27577711)
    )
    image = model.encode_image(prepare(source)[None])[0]
    rows = model.encode_text(open_clip.tokenize([f"A photo depicts {text}" for text in texts]))
    return torch.cosine_similarity(rows, image[None]).double().numpy(), torch.nn.functional.normalize(rows, dim=1)


def test_pac_s_is_twice_the_clipped_cosine(model, checkpoint):
    batch = make_batch([RED, None, BLUE], [(0, PAIR), (1, PAIR), (2, PAIR)])
    metric = load_metric(f"pac-s:{checkpoint}")
    values = metric.score(batch).values
    for case, image in ((0, RED), (2, BLUE)):
        np.testing.assert_allclose(values[case], 2 * np.maximum(expected(model, image, PAIR)[0], 0), atol=1e-5)
    assert np.isnan(values[1]).all()
    assert metric.choices.startswith("ckpt:clip_tiny.pth@")
    assert metric.choices.endswith("|family:openai|w:2")


def test_refpac_s_is_the_harmonic_mean_with_the_nearest_reference(model, checkpoint):
    references = ("a crimson tile", "a dog in the dark")
    batch = make_batch([RED], [(0, PAIR), (0, PAIR)], references=[references, ()])
    values = load_metric(f"refpac-s:{checkpoint}").score(batch).values
    alone, rows = expected(model, RED, (*PAIR, *references))
    for place in range(2):
        nearest = max(float((rows[place] @ rows[2:].T).max()), 0)
        score = 2 * max(alone[place], 0)
        assert values[0, place] == pytest.approx(2 * score * nearest / (score + nearest) if score else 0, abs=1e-5)
    assert np.isnan(values[1]).all()


def test_invalid_checkpoints_are_rejected(tmp_path, checkpoint):
    with pytest.raises(WeightsError, match="nowhere.pth: no such file"):
        load_metric("pac-s:nowhere.pth")
    (tmp_path / "junk.pth").write_bytes(b"junk")
    with pytest.raises(WeightsError, match="junk.pth cannot be read"):
        load_metric(f"pac-s:{tmp_path / 'junk.pth'}")
    torch.save({"state_dict": {"weight": torch.zeros(1)}}, tmp_path / "other.pth")
    with pytest.raises(WeightsError, match="other.pth does not contain"):
        load_metric(f"pac-s:{tmp_path / 'other.pth'}")
    with pytest.raises(ConfigError, match="family.*got 'x'"):
        load_metric(f"pac-s:{checkpoint},family=x")


class Evil:
    def __reduce__(self):
        return (print, ("run from a checkpoint",))


def test_a_checkpoint_cannot_run_code(tmp_path, capsys):
    torch.save({"state_dict": Evil()}, tmp_path / "evil.pth")
    with pytest.raises(WeightsError, match="cannot be read as tensors"):
        load_metric(f"pac-s:{tmp_path / 'evil.pth'}")
    assert capsys.readouterr().out == ""
