"""The networks that one head can be: a linear map, with an MLP or attention beside it, or a pool of all points."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from msdscore.errors import ConfigError, unknown_name


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSpec:
    """One head: a linear map (paper), a linear map plus an MLP, or attention over the points plus a linear map.

    `pool` makes one vector of all points of an item; it is for the global path of texts.

    >>> HeadSpec(kind="quadratic")
    Traceback (most recent call last):
    msdscore.errors.UnknownNameError: unknown head 'quadratic'. Known: attention, linear, mlp, pool
    """

    kind: str = "linear"
    hidden: int = 512  # width of the MLP, or of the attention blocks
    inner: int = 0  # pool: width of its feed-forward step; 0: twice `hidden`
    dropout: float = 0.0
    norm: bool = False  # layer norm on the features before the head; pool always has it
    bias: bool = True  # mlp: of the linear map beside it
    blocks: int = 1  # attention blocks
    heads: int = 8  # of each attention block

    def __post_init__(self) -> None:
        if self.kind not in _HEADS:
            raise unknown_name("head", self.kind, _HEADS)
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout must be at least 0 and under 1, got {self.dropout}")
        if min(self.hidden, self.blocks, self.heads) < 1 or self.hidden % self.heads:
            raise ConfigError(
                f"a head needs positive hidden, blocks and heads with hidden a multiple of heads, "
                f"got {self.hidden}, {self.blocks} and {self.heads}"
            )


class LinearHead(nn.Module):
    """The paper's head: one linear layer."""

    def __init__(self, spec: HeadSpec, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm = _norm(spec, inputs)
        self.drop = nn.Dropout(spec.dropout)
        self.line = nn.Linear(inputs, outputs)

    def forward(self, points: Tensor, mask: Tensor) -> Tensor:
        """Project every point on its own."""
        del mask
        return self.line(self.drop(self.norm(points)))


class MlpHead(nn.Module):
    """A linear layer plus an MLP with one hidden layer."""

    def __init__(self, spec: HeadSpec, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm = _norm(spec, inputs)
        self.drop = nn.Dropout(spec.dropout)
        self.line = nn.Linear(inputs, outputs, bias=spec.bias)
        self.rise = nn.Linear(inputs, spec.hidden)
        self.fall = nn.Linear(spec.hidden, outputs)

    def forward(self, points: Tensor, mask: Tensor) -> Tensor:
        """Project every point on its own."""
        if points.device.type != "cpu" or torch.is_grad_enabled() or mask.all():
            return self._project(points)
        # Padding costs as much as a point on a CPU; on a GPU to look for it would cost more.
        found = self._project(points[mask])
        return found.new_zeros(*mask.shape, found.shape[-1]).masked_scatter(mask.unsqueeze(-1), found)

    def _project(self, points: Tensor) -> Tensor:
        inner = self.drop(self.norm(points))
        return self.line(inner) + self.fall(self.drop(nn.functional.gelu(self.rise(inner))))


class AttentionHead(nn.Module):
    """Attention over the real points of an item, beside a linear layer."""

    def __init__(self, spec: HeadSpec, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norm = _norm(spec, inputs)
        self.drop = nn.Dropout(spec.dropout)
        self.line = nn.Linear(inputs, outputs)
        self.enter = nn.Linear(inputs, spec.hidden)
        self.blocks = nn.ModuleList(_Block(spec) for _ in range(spec.blocks))
        self.leave = nn.Linear(spec.hidden, outputs)

    def forward(self, points: Tensor, mask: Tensor) -> Tensor:
        """Project the points of each item together; padding is never looked at."""
        inner = self.drop(self.norm(points))
        mixed = self.enter(inner)
        # An item without points would attend to nothing and turn into NaN; what it gives is masked anyway.
        seen = (mask | ~mask.any(dim=1, keepdim=True))[:, None, None, :]
        for block in self.blocks:
            mixed = block(mixed, seen)
        return self.line(inner) + self.leave(mixed)


class _Block(nn.Module):
    """One pre-norm transformer block without positions."""

    def __init__(self, spec: HeadSpec) -> None:
        super().__init__()
        width = spec.hidden
        self.heads, self.chance = spec.heads, spec.dropout
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixes = nn.Linear(width, 3 * width)
        self.joins = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.drop = nn.Dropout(spec.dropout)

    def forward(self, points: Tensor, seen: Tensor) -> Tensor:
        batch, count, width = points.shape
        split = self.mixes(self.before(points)).view(batch, count, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        chance = self.chance if self.training else 0.0
        mixed = scaled_dot_product_attention(query, key, value, attn_mask=seen, dropout_p=chance)
        points = points + self.drop(self.joins(mixed.transpose(1, 2).reshape(batch, count, width)))
        return points + self.drop(self.mlp(self.between(points)))


class AttentionPool(nn.Module):
    """One transformer layer over all points of an item, then a weighted mean with learned weights."""

    def __init__(self, spec: HeadSpec, inputs: int, outputs: int) -> None:
        super().__init__()
        width, inner = spec.hidden, spec.inner or 2 * spec.hidden
        self.inp = nn.Sequential(nn.LayerNorm(inputs), nn.Dropout(spec.dropout), nn.Linear(inputs, width))
        layer = nn.TransformerEncoderLayer(
            width, spec.heads, inner, spec.dropout, nn.functional.gelu, batch_first=True, norm_first=True
        )
        self.enc = nn.ModuleList([layer])
        self.ln, self.score, self.out = nn.LayerNorm(width), nn.Linear(width, 1), nn.Linear(width, outputs)
        self.drop = nn.Dropout(spec.dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """One vector per item; padding has no weight."""
        x = self.inp(x)
        for layer in self.enc:
            x = layer(x, src_key_padding_mask=~mask)
        x = self.ln(x)
        weights = self.score(x).squeeze(-1).masked_fill(~mask, -torch.inf).softmax(dim=-1)
        return self.out(self.drop((weights.unsqueeze(-1) * x).sum(dim=1)))


class PoolHead(nn.Module):
    """One vector per item: a transformer block over its points, then their mean with learned weights."""

    def __init__(self, spec: HeadSpec, inputs: int, outputs: int) -> None:
        super().__init__()
        self.pool = AttentionPool(spec, inputs, outputs)

    def forward(self, points: Tensor, mask: Tensor) -> Tensor:
        """One vector for all points; an item without points must not turn into NaN."""
        pooled: Tensor = self.pool(points, mask | ~mask.any(dim=1, keepdim=True))
        return pooled


_HEADS: dict[str, type[nn.Module]] = {
    "linear": LinearHead,
    "mlp": MlpHead,
    "attention": AttentionHead,
    "pool": PoolHead,
}


def _norm(spec: HeadSpec, width: int) -> nn.Module:
    return nn.LayerNorm(width) if spec.norm else nn.Identity()


def make_head(spec: HeadSpec, inputs: int, outputs: int) -> nn.Module:
    """The head that a spec describes, with the library's own start."""
    return _HEADS[spec.kind](spec, inputs, outputs)
