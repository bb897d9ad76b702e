"""Heads of an aligned encoder: they project frozen local features into a shared space, and pool them there.

A head is a linear map (paper), a linear map plus an MLP or attention, or a pool of all points.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from msdscore.core.arrays import Float
from msdscore.core.embeddings import masked_mean, real_points, unit
from msdscore.encoders.base import Embeddings
from msdscore.encoders.tokens import join_windows
from msdscore.errors import ConfigError, unknown_name
from msdscore_torch.tensors import Features

Side = Literal["image", "text"]
_HEADS = ("linear", "mlp", "attention", "pool", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSpec:
    """One head: a linear map (paper), a linear map plus an MLP, or attention over the points plus a linear map.

    `pool` reduces all points of an item to one vector; it is for the global path of texts. `none` leaves points as
    they are.

    >>> HeadSpec(kind="quadratic")
    Traceback (most recent call last):
    msdscore.errors.UnknownNameError: unknown head 'quadratic'. Known: attention, linear, mlp, none, pool
    """

    kind: str = "linear"
    hidden: int = 512  # width of the MLP, or of the attention blocks
    inner: int = 0  # pool: width of its feed-forward step; 0: twice `hidden`
    dropout: float = 0.0
    norm: bool = False  # layer norm on the features before the head; pool always has it
    bias: bool = True  # mlp: of the linear map
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


class PointHead(nn.Module):
    """A linear layer on every point (paper), optionally with a one-layer MLP or attention over the points.

    With `none` the points are unchanged: those of the tower are in the shared space already.
    """

    def __init__(self, spec: HeadSpec, inputs: int, outputs: int) -> None:
        super().__init__()
        self.kind = spec.kind
        if spec.kind == "none":
            if inputs != outputs:
                raise ConfigError(f"a head of kind 'none' has as many dimensions as its tower: set heads.dim={inputs}")
            return
        self.norm = nn.LayerNorm(inputs) if spec.norm else nn.Identity()
        self.drop = nn.Dropout(spec.dropout)
        self.line = nn.Linear(inputs, outputs, bias=spec.bias or spec.kind != "mlp")
        if spec.kind == "mlp":
            self.rise = nn.Linear(inputs, spec.hidden)
            self.fall = nn.Linear(spec.hidden, outputs)
        elif spec.kind == "attention":
            self.enter = nn.Linear(inputs, spec.hidden)
            self.blocks = nn.ModuleList(_Block(spec) for _ in range(spec.blocks))
            self.leave = nn.Linear(spec.hidden, outputs)

    def forward(self, points: Tensor, mask: Tensor) -> Tensor:
        """Project every point separately, or with `attention` those of each item together; padding is ignored."""
        if self.kind != "mlp" or points.device.type != "cpu" or torch.is_grad_enabled() or mask.all():
            return self._project(points, mask)
        # Padding costs as much as a point on a CPU; on a GPU checking for it would cost more.
        projected = self._project(points[mask], mask)
        return projected.new_zeros(*mask.shape, projected.shape[-1]).masked_scatter(mask.unsqueeze(-1), projected)

    def _project(self, points: Tensor, mask: Tensor) -> Tensor:
        if self.kind == "none":
            return points
        inner = self.drop(self.norm(points))
        if self.kind == "linear":
            return self.line(inner)
        if self.kind == "mlp":
            return self.line(inner) + self.fall(self.drop(nn.functional.gelu(self.rise(inner))))
        mixed = self.enter(inner)
        # An item without points would attend to nothing and become NaN; its output is masked anyway.
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


class PoolHead(nn.Module):
    """One vector per item: a transformer layer over its points, then their mean with learned weights."""

    def __init__(self, spec: HeadSpec, inputs: int, outputs: int) -> None:
        super().__init__()
        width, inner, chance = spec.hidden, spec.inner or 2 * spec.hidden, spec.dropout
        enter = nn.Sequential(nn.LayerNorm(inputs), nn.Dropout(chance), nn.Linear(inputs, width))
        gelu = nn.functional.gelu
        layer = nn.TransformerEncoderLayer(width, spec.heads, inner, chance, gelu, batch_first=True, norm_first=True)
        self.pool = nn.ModuleDict(
            {
                "inp": enter,
                "enc": nn.ModuleList([layer]),
                "ln": nn.LayerNorm(width),
                "score": nn.Linear(width, 1),
                "out": nn.Linear(width, outputs),
                "drop": nn.Dropout(chance),
            }
        )

    def forward(self, points: Tensor, mask: Tensor) -> Tensor:
        """One vector per item; padding has no weight, and an item without points must not become NaN."""
        pool, seen = self.pool, mask | ~mask.any(dim=1, keepdim=True)
        x = pool["ln"](pool["enc"][0](pool["inp"](points), src_key_padding_mask=~seen))  # type: ignore[index]
        weights = pool["score"](x).squeeze(-1).masked_fill(~seen, -torch.inf).softmax(dim=-1)
        pooled: Tensor = pool["out"](pool["drop"]((weights.unsqueeze(-1) * x).sum(dim=1)))
        return pooled


def make_head(spec: HeadSpec, inputs: int, outputs: int) -> nn.Module:
    """Build a head from a spec, with the default initialisation."""
    return (PoolHead if spec.kind == "pool" else PointHead)(spec, inputs, outputs)


POOLS = ("mean", "own", "model")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadsSpec:
    """All heads of an aligned encoder.

    `pool` selects the source of the pooled vectors: `mean` of the aligned local vectors (paper), `own` heads on a
    separate path, or the backbones' `model` outputs unchanged.
    """

    dim: int = 768
    pool: str = "mean"
    image: HeadSpec = field(default_factory=HeadSpec)
    text: HeadSpec = field(default_factory=HeadSpec)
    global_dim: int = 0  # of the separate path; 0: as `dim`
    global_image: HeadSpec = field(default_factory=HeadSpec)
    global_text: HeadSpec = field(default_factory=HeadSpec)
    mean_hidden: int = 0  # of an MLP on the text tower's pooled vector, added to a pool head; 0: none
    mean_dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.pool not in POOLS:
            raise unknown_name("pool", self.pool, POOLS)
        if "pool" in (self.image.kind, self.text.kind, self.global_image.kind):
            raise ConfigError("a head of kind 'pool' returns one vector per item; use it only as heads.global_text")
        if self.mean_hidden < 0 or (self.mean_hidden and self.global_text.kind != "pool"):
            raise ConfigError(f"mean_hidden needs a global_text of kind 'pool', got {self.global_text.kind!r}")
        if self.dim < 1 or self.global_dim < 0:
            raise ConfigError(f"dim must be at least 1 and global_dim at least 0, got {self.dim} and {self.global_dim}")


@dataclass(frozen=True, slots=True)
class SideDims:
    """Feature sizes of one tower: of its local path, of its global path and of its pooled vectors (0: none)."""

    local: int
    whole: int = 0
    pooled: int = 0


class AlignedHeads(nn.Module):
    """Both sides' heads: everything that is trained and needed for scoring."""

    def __init__(self, spec: HeadsSpec, image: SideDims, text: SideDims) -> None:
        super().__init__()
        self.spec = spec
        self.image = make_head(spec.image, image.local, spec.dim)
        self.text = make_head(spec.text, text.local, spec.dim)
        if spec.pool == "own":
            width = spec.global_dim or spec.dim
            self.global_image = make_head(spec.global_image, image.whole, width)
            self.global_text = make_head(spec.global_text, text.whole, width)
            self.global_mean = None
            if spec.mean_hidden:
                hidden, dropout = spec.mean_hidden, spec.mean_dropout
                mlp = HeadSpec(kind="mlp", hidden=hidden, dropout=dropout, norm=True, bias=False, heads=1)
                self.global_mean = make_head(mlp, text.pooled, width)

    def project(self, side: Side, features: Features) -> Embeddings:
        """Aligned unit vectors of images or captions, zero at padding, and their pooled vectors."""
        return to_embeddings(self.states(side, features))

    def states(self, side: Side, features: Features) -> Features:
        """Points of any length and pooled unit vectors of images or captions."""
        head, global_head = getattr(self, side), getattr(self, f"global_{side}", None)
        if self.spec.pool == "mean":
            pooled = None
        elif global_head is not None:
            pooled = self._pool(global_head, features)
        elif features.pooled is None:
            raise ConfigError("pool 'model' needs backbones with pooled outputs of one space; use pool 'mean' or 'own'")
        else:
            pooled = unit(features.pooled)
        points = head(features.points, features.mask)
        return Features(points, features.mask, pooled, features.layout, filled=features.filled)

    def _pool(self, head: nn.Module, features: Features) -> Float[Tensor, "batch dim"]:
        """Pooled unit vectors of a global path; a caption of several windows has the mean of theirs."""
        whole = features.whole
        if whole is None:
            raise ConfigError("pool 'own' needs a global path; load the towers with one")
        if isinstance(head, PoolHead):
            pooled: Tensor = head(whole.points, whole.mask)
            if self.global_mean is not None:
                if features.pooled is None:
                    raise ConfigError("mean_hidden needs a text tower with pooled vectors; set it to 0")
                pooled = pooled + self.global_mean(features.pooled, whole.mask.any(dim=1))
        elif whole.points.shape[1] == 1:  # one point is the mean of itself
            pooled = head(whole.points, whole.mask).squeeze(1)
        else:
            pooled = real_points(unit(head(whole.points, whole.mask)), whole.mask).sum(dim=1)
        return unit(pooled) if features.windows is None else join_windows(pooled, features.windows)


def to_embeddings(states: Features) -> Embeddings:
    """Unit vectors, zero at padding."""
    points = real_points(unit(states.points), states.mask)
    pooled = masked_mean(points, states.mask) if states.pooled is None else states.pooled
    return Embeddings(points, states.mask, pooled, states.layout)


class JoinedHeads(nn.Module):
    """Heads that were trained separately, on one text tower and one image tower.

    If the image tower has a branch for each of them, its features are concatenated, and each head reads its branch.
    """

    def __init__(self, members: Sequence[AlignedHeads], *, branches: bool) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self._each, self._branches = tuple(members), branches

    def states(self, side: Side, features: Features) -> Features:
        """Points of any length and pooled unit vectors of images or captions."""
        count = len(self._each)
        parts = split_features(features, count) if self._branches and side == "image" else [features] * count
        return join_states([heads.states(side, part) for heads, part in zip(self._each, parts, strict=True)])


def split_features(features: Features, count: int) -> list[Features]:
    """Split the concatenated features of branches."""
    whole = features.whole
    wholes = [None] * count if whole is None else split_features(whole, count)
    parts = features.points.chunk(count, dim=-1)
    return [replace(features, points=points, whole=whole) for points, whole in zip(parts, wholes, strict=True)]


def join_states(states: Sequence[Features]) -> Features:
    """Concatenate the unit vectors of all members; as unit vectors, their products are the means of the members'."""
    points = [unit(state.points) for state in states]
    pooled = [
        masked_mean(real_points(vectors, state.mask), state.mask) if state.pooled is None else state.pooled
        for vectors, state in zip(points, states, strict=True)
    ]
    return replace(
        states[0], points=torch.cat(points, dim=-1), pooled=unit(torch.cat([unit(part) for part in pooled], dim=-1))
    )
