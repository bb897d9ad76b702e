"""The Triton kernel of attention against torch: interpreted on the CPU, compiled on a GPU."""

from unittest import mock

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import CLIPVisionConfig, CLIPVisionModel, Siglip2VisionConfig, Siglip2VisionModel

from triton_cases import needs_cuda, needs_interpreter, run_interpreted

# Numbers of positions around those of the tiles: 64 queries, 128 keys.
POSITIONS = (1, 2, 16, 17, 63, 64, 65, 128, 129, 257)


def check_attention(device, positions, *, width=64, heads=2, dtype=torch.float16):
    """The kernel against float64, on strided inputs as a tower makes them; an image's bits do not depend on its batch."""
    from msdscore_torch.gpu.attention import attend

    generator = torch.Generator().manual_seed(positions)
    parts = [torch.randn(2, positions, heads, width, generator=generator).to(device, dtype) for _ in range(3)]
    queries, keys, values = (part.transpose(1, 2) for part in parts)
    found = attend(queries, keys, values, 0.3)
    exact = scaled_dot_product_attention(*(part.double() for part in (queries, keys, values)), scale=0.3)
    rounding = {torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    assert (found.double() - exact.transpose(1, 2)).abs().max() < rounding
    assert torch.equal(attend(queries[1:], keys[1:], values[1:], 0.3), found[1:])
    apart = torch.stack([keys, keys], dim=-1).flatten(3)[..., ::2]  # its numbers are not next to each other
    assert torch.equal(attend(queries, apart, values, 0.3), found)


def interpret():
    """Run in a process of its own, whose Triton interprets kernels."""
    from msdscore_torch.gpu import attention

    for positions in POSITIONS:
        check_attention("cpu", positions)
    check_attention("cpu", 17, width=16, heads=3)
    config = CLIPVisionConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=56, patch_size=14
    )
    model = CLIPVisionModel(config).eval().half()
    pixels = torch.randn(3, 3, 56, 56, generator=torch.Generator().manual_seed(0)).half()
    with (
        torch.no_grad(),
        mock.patch.object(attention, "works", return_value=True),
        mock.patch.object(attention, "attend", wraps=attention.attend) as calls,
    ):
        before = model(pixels).last_hidden_state
        attention.use_attention(model, torch.device("cpu"))
        after = model(pixels).last_hidden_state
    assert calls.call_count == 2  # one per layer
    assert (before - after).abs().max() < 0.02
    check_masked(attention)


def check_masked(attention):
    """A tower whose images are padded keeps its mask: the shorter image does not see its padding."""
    config = Siglip2VisionConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, num_patches=16, patch_size=4
    )
    model = Siglip2VisionModel(config).eval()
    pixels = torch.randn(2, 16, 48, generator=torch.Generator().manual_seed(1))
    mask = (torch.arange(16) < torch.tensor([[16], [8]])).long()
    shapes = torch.tensor([[4, 4], [2, 4]])
    with torch.no_grad(), mock.patch.object(attention, "works", return_value=True):
        before = model(pixels, mask, shapes).last_hidden_state
        attention.use_attention(model, torch.device("cpu"))
        torch.testing.assert_close(model(pixels, mask, shapes).last_hidden_state, before)
        pixels[1, 8:] = 9.0
        torch.testing.assert_close(model(pixels, mask, shapes).last_hidden_state[1, :8], before[1, :8])


@needs_interpreter
def test_interpreted_attention_agrees_with_torch():
    run_interpreted("test_core_attention")


@needs_interpreter
def test_masks_and_other_types_take_the_attention_of_torch():
    from msdscore_torch.gpu.attention import _attention

    queries, keys, values = (torch.randn(1, 2, 5, 16) for _ in range(3))
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    found, _ = _attention(torch.nn.Identity(), queries, keys, values, mask)
    assert torch.equal(found, scaled_dot_product_attention(queries, keys, values, mask).transpose(1, 2))


@needs_cuda
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("positions", [1, 50, 257, 577])
def test_cuda_attention_agrees_with_torch(positions, dtype):
    check_attention("cuda", positions, dtype=dtype)
