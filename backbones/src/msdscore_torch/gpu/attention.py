"""Attention of vision towers in one Triton kernel, for compiled encoders.

The tiles of torch's kernels waste much of the 257 positions of an image of 16 x 16 patches: here the positions after
the last full tile are a smaller one. On an H200 that takes 8 instead of 15 ms for 256 images of ViT-L/14. One program
computes some queries of one head of one image, so that an image's bits do not depend on its batch.
"""

from contextlib import suppress
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from msdscore_torch.gpu.fused import on_device, works

NAME = "msdscore"  # of this attention in transformers
QUERIES, TILE = 64, 128  # rows and columns of a tile of similarities
DTYPES = (torch.float16, torch.bfloat16)
WIDTHS = (16, 32, 64, 128)  # of a head
SHARED_BYTES = 96 << 10
AGREEMENT = 0.02  # maximum difference of means of normal numbers from those of torch, in half precision
_LOG2_E = 1.4426950408889634


# One opaque operation: torch's compiler passes it on as it is, in every version.
@torch.library.custom_op("msdscore::attend", mutates_args=())
def attend(queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """Attention of all positions to all, without a mask; its result is (images, positions, heads, width)."""
    from msdscore_torch.gpu.attention_kernels import attention_kernel

    images, heads, positions, width = queries.shape
    out = queries.new_empty((images, positions, heads, width))
    # The kernel reads the numbers of a vector next to each other; a compiler may choose another layout.
    queries, keys, values = (part if part.stride(3) == 1 else part.contiguous() for part in (queries, keys, values))
    with on_device(queries.device):
        attention_kernel[(-(-positions // QUERIES), images * heads)](
            queries, keys, values, out, heads,
            *queries.stride()[:3], *keys.stride()[:3], *values.stride()[:3],
            out.stride(0), out.stride(2), out.stride(1), scale * _LOG2_E,
            COUNT=positions, ROWS=QUERIES, LAST=_tile(positions % QUERIES), TILE=TILE, REST=_tile(positions % TILE),
            WIDTH=width, num_warps=4, num_stages=2,
        )  # fmt: skip
    return out


@attend.register_fake
def _(queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    images, heads, positions, width = queries.shape
    return queries.new_empty((images, positions, heads, width))


def _tile(count: int) -> int:
    """The smallest tile of a matrix product with this many rows."""
    return max(16, 1 << (count - 1).bit_length())


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """The attention as transformers calls it."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    serves = query.dtype in DTYPES and query.shape == key.shape and query.shape[-1] in WIDTHS
    if attention_mask is not None or not serves:
        return scaled_dot_product_attention(query, key, value, attention_mask, scale=scale).transpose(1, 2), None
    return attend(query, key, value, scale), None


def use_attention(tower: nn.Module, device: torch.device) -> None:
    """Let a vision tower of transformers use this kernel if it works here; with a mask it uses that of torch."""
    from transformers import AttentionInterface

    if not usable(device):
        return
    AttentionInterface.register(NAME, _attention)
    with suppress(ImportError):  # before 4.53, masks did not depend on the attention
        from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

        AttentionMaskInterface.register(NAME, sdpa_mask)  # without it, masks of padding are dropped
    configs: dict[int, Any] = {id(part.config): part.config for part in tower.modules() if hasattr(part, "config")}
    for config in configs.values():
        config._attn_implementation = NAME


@cache
def usable(device: torch.device) -> bool:
    """Whether the kernel works on a device; if it should but does not, warn once."""
    return works(device, _agrees, shared=SHARED_BYTES)


@torch.no_grad()
def _agrees(device: torch.device) -> bool:
    generator = torch.Generator().manual_seed(0)
    draws = torch.randn(3, 2, 2, 257, 64, generator=generator).to(device, torch.bfloat16)
    queries, keys, values = draws.unbind()
    plain = scaled_dot_product_attention(queries.float(), keys.float(), values.float()).transpose(1, 2)
    return bool(((attend(queries, keys, values, 0.125).float() - plain).abs() < AGREEMENT).all())
