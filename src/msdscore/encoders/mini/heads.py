"""The trained parts of `mini`: heads that put frozen features of pictures and captions into two shared spaces."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from msdscore.encoders.mini import lite2, minilm


@dataclass(frozen=True, slots=True)
class HeadSizes:
    """The sizes that the heads were trained with."""

    grid: int  # rows and columns of patches
    pooled: int  # dimension of the global space
    local: int  # dimension of the local space
    pooled_hidden: int
    local_hidden: int
    pooled_layers: tuple[int, ...]  # of the text tower, read by the global path
    local_layers: tuple[int, ...]  # read by the local path
    attention_inner: int


class Projection(nn.Module):
    """LayerNorm, then a linear map plus one with a hidden layer."""

    def __init__(self, inputs: int, outputs: int, hidden: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.ln, self.drop = nn.LayerNorm(inputs), nn.Dropout(dropout)
        self.lin = nn.Linear(inputs, outputs, bias=False)
        self.up, self.down = nn.Linear(inputs, hidden), nn.Linear(hidden, outputs)

    def forward(self, x: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch outputs"]:
        """The projected features, not yet of unit length."""
        x = self.drop(self.ln(x))
        return self.lin(x) + self.down(self.drop(functional.gelu(self.up(x))))


class AttentionPool(nn.Module):
    """One transformer layer over all tokens, then a weighted mean with learned weights."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        inner: int,
        *,
        width: int = minilm.WIDTH,
        heads: int = 6,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.inp = nn.Sequential(nn.LayerNorm(inputs), nn.Dropout(dropout), nn.Linear(inputs, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, inner, dropout, functional.gelu, batch_first=True, norm_first=True
        )
        self.enc = nn.ModuleList([layer])
        self.ln, self.score, self.out = nn.LayerNorm(width), nn.Linear(width, 1), nn.Linear(width, outputs)
        self.drop = nn.Dropout(dropout)

    def forward(
        self, x: Float[Tensor, "batch positions inputs"], mask: Bool[Tensor, "batch positions"]
    ) -> Float[Tensor, "batch outputs"]:
        """One vector a text; padding has no weight."""
        x = self.inp(x)
        for layer in self.enc:
            x = layer(x, src_key_padding_mask=~mask)
        x = self.ln(x)
        weights = self.score(x).squeeze(-1).masked_fill(~mask, -torch.inf).softmax(dim=-1)
        return self.out(self.drop((weights.unsqueeze(-1) * x).sum(dim=1)))


class MiniHeads(nn.Module):
    """Local heads for patches (`li`) and tokens (`lt`), global heads for pictures (`gi`) and captions (`gt`, `gt2`)."""

    def __init__(self, sizes: HeadSizes) -> None:
        super().__init__()
        self.sizes = sizes
        width = minilm.WIDTH
        self.li = Projection(lite2.CHANNELS, sizes.local, sizes.local_hidden)
        self.lt = Projection(width * len(sizes.local_layers), sizes.local, sizes.local_hidden)
        self.gi = Projection(lite2.CHANNELS, sizes.pooled, sizes.pooled_hidden)
        self.gt2 = Projection(width, sizes.pooled, sizes.pooled_hidden)
        self.gt = AttentionPool(width * len(sizes.pooled_layers), sizes.pooled, sizes.attention_inner)

    def see(self, maps: lite2.Maps) -> tuple[Float[Tensor, "batch patches local"], Float[Tensor, "batch pooled"]]:
        """Patches on the grid, row by row, and one global vector a picture."""
        size = (self.sizes.grid, self.sizes.grid)
        cells = [functional.interpolate(part, size, mode="bilinear", align_corners=False) for part in maps]
        means = [part.mean(dim=(2, 3)) for part in maps]
        return self.li(torch.cat(cells, dim=1).flatten(2).mT), self.gi(torch.cat(means, dim=1))

    def read(
        self, states: Sequence[Float[Tensor, "batch positions 384"]], mask: Bool[Tensor, "batch positions"]
    ) -> tuple[Float[Tensor, "batch positions local"], Float[Tensor, "batch pooled"]]:
        """A local vector a token and one global vector a text."""
        tokens = self.lt(torch.cat([states[layer] for layer in self.sizes.local_layers], dim=-1))
        real = mask.unsqueeze(-1)
        mean = (states[-1] * real).sum(dim=1) / real.sum(dim=1).clamp_min(1)
        whole = torch.cat([states[layer] for layer in self.sizes.pooled_layers], dim=-1)
        return tokens, self.gt(whole, mask) + self.gt2(mean)
