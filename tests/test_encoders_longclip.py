"""Interpolation of position embeddings, and LongCLIP in the transformers format."""

import pytest
import torch

from msdscore.encoders.registry import load_encoder
from msdscore.errors import ConfigError
from msdscore_torch.contrastive import stretch_positions
from tiny_clip import make_tiny_clip


def test_interpolation_to_248_positions_equals_the_published_loop():
    old = torch.randn(77, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    new = torch.zeros(248, 5, dtype=torch.float64)
    new[:20] = old[:20]
    for i in range(56):
        for part in range(4):
            new[20 + 4 * i + part] = ((4 - part) * old[20 + i] + part * old[21 + i]) / 4
    for part in range(4):
        new[244 + part] = old[76] + part * (old[76] - old[75]) / 4
    torch.testing.assert_close(stretch_positions(old), new, rtol=0, atol=1e-12)


def test_checkpoint_with_248_positions_uses_one_window(tmp_path):
    encoder = load_encoder(str(make_tiny_clip(tmp_path / "long", context=248)), device="cpu")
    (layout,) = encoder.encode_texts(["the cat " * 123]).layout
    assert (layout.windows, len(layout.spans)) == (1, 246)


@torch.inference_mode()
def test_clip_positions_can_be_stretched_on_loading(tmp_path):
    folder = make_tiny_clip(tmp_path / "short", context=30)
    plain = load_encoder(str(folder), device="cpu")
    long = load_encoder(str(folder), device="cpu", stretch=True)
    text = "the cat " * 25
    assert plain.encode_texts([text]).layout[0].windows > 1
    assert long.encode_texts([text]).layout[0].windows == 1
    assert ",positions:248," in long.signature
    torch.testing.assert_close(long.encode_texts(["the cat"]).points, plain.encode_texts(["the cat"]).points)


def test_stretching_248_positions_is_rejected(tmp_path):
    with pytest.raises(ConfigError, match="got 248"):
        load_encoder(str(make_tiny_clip(tmp_path / "long", context=248)), device="cpu", stretch=True)
