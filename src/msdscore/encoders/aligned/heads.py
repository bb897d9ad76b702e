"""All heads of an aligned encoder: they take frozen local features into a shared space, and pool them there."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from msdscore.core.sphere import masked_mean, real_points, unit
from msdscore.encoders.aligned.networks import HeadSpec, PoolHead, make_head
from msdscore.encoders.base import Embeddings, Features
from msdscore.encoders.text.tokens import join_windows
from msdscore.errors import ConfigError, unknown_name

POOLS = ("mean", "own", "model")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadsSpec:
    """All heads of an aligned encoder.

    `pool` says where the pooled vectors come from: `mean` of the aligned local vectors (paper), `own` heads on a
    path of their own, or the backbones' `model` outputs untouched.
    """

    dim: int = 768
    pool: str = "mean"
    image: HeadSpec = field(default_factory=HeadSpec)
    text: HeadSpec = field(default_factory=HeadSpec)
    global_dim: int = 0  # of the own path; 0: as `dim`
    global_image: HeadSpec = field(default_factory=HeadSpec)
    global_text: HeadSpec = field(default_factory=HeadSpec)
    mean_hidden: int = 0  # of an MLP on the text tower's own pooled vector, added to a pool head; 0: none
    mean_dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.pool not in POOLS:
            raise unknown_name("pool", self.pool, POOLS)
        if "pool" in (self.image.kind, self.text.kind, self.global_image.kind):
            raise ConfigError("a head of kind 'pool' gives one vector per item; it can only be heads.global_text")
        if self.mean_hidden < 0 or (self.mean_hidden and self.global_text.kind != "pool"):
            raise ConfigError(f"mean_hidden needs a global_text of kind 'pool', got {self.global_text.kind!r}")
        if self.dim < 1 or self.global_dim < 0:
            raise ConfigError(f"dim must be at least 1 and global_dim at least 0, got {self.dim} and {self.global_dim}")


def _mean_head(spec: HeadsSpec, inputs: int, outputs: int) -> nn.Module:
    mlp = HeadSpec(kind="mlp", hidden=spec.mean_hidden, dropout=spec.mean_dropout, norm=True, bias=False, heads=1)
    return make_head(mlp, inputs, outputs)


@dataclass(frozen=True, slots=True)
class SideDims:
    """Feature sizes that one tower gives: of its local path, of its global one and of its pooled vectors (0: none)."""

    local: int
    whole: int = 0
    pooled: int = 0


class AlignedHeads(nn.Module):
    """Both sides' heads; everything that training changes and that scoring needs."""

    def __init__(self, spec: HeadsSpec, image: SideDims, text: SideDims) -> None:
        super().__init__()
        self.spec = spec
        self.image = make_head(spec.image, image.local, spec.dim)
        self.text = make_head(spec.text, text.local, spec.dim)
        if spec.pool == "own":
            width = spec.global_dim or spec.dim
            self.global_image = make_head(spec.global_image, image.whole, width)
            self.global_text = make_head(spec.global_text, text.whole, width)
            self.global_mean = _mean_head(spec, text.pooled, width) if spec.mean_hidden else None

    def project_images(self, features: Features) -> Embeddings:
        """Aligned patches and pooled vectors of images."""
        return _finished(self.image_states(features))

    def project_texts(self, features: Features) -> Embeddings:
        """Aligned tokens and pooled vectors of captions."""
        return _finished(self.text_states(features))

    def image_states(self, features: Features) -> Features:
        """Patches of any length and pooled unit vectors of images."""
        return self._states(features, self.image, getattr(self, "global_image", None))

    def text_states(self, features: Features) -> Features:
        """Tokens of any length and pooled unit vectors of captions."""
        return self._states(features, self.text, getattr(self, "global_text", None))

    def _states(self, features: Features, head: nn.Module, global_head: nn.Module | None) -> Features:
        if self.spec.pool == "mean":
            pooled = None
        elif global_head is not None:
            pooled = self._own(global_head, features)
        elif features.pooled is None:
            raise ConfigError("pool 'model' needs backbones with pooled outputs of one space; use pool 'mean' or 'own'")
        else:
            pooled = unit(features.pooled)
        return Features(head(features.points, features.mask), features.mask, pooled, features.layout)

    def _own(self, head: nn.Module, features: Features) -> Float[Tensor, "batch dim"]:
        """Pooled unit vectors of a global path; a caption of several windows has the mean of theirs."""
        whole = features.whole
        if whole is None:
            raise ConfigError("pool 'own' needs a global path; load the towers with one")
        if isinstance(head, PoolHead):
            found: Tensor = head(whole.points, whole.mask)
            if self.global_mean is not None:
                if features.pooled is None:
                    raise ConfigError("mean_hidden needs a text tower with pooled vectors; set it to 0")
                found = found + self.global_mean(features.pooled, whole.mask.any(dim=1))
        elif whole.points.shape[1] == 1:  # one point is its own mean
            found = head(whole.points, whole.mask).squeeze(1)
        else:
            found = real_points(unit(head(whole.points, whole.mask)), whole.mask).sum(dim=1)
        return unit(found) if features.windows is None else join_windows(found, features.windows)


def _finished(states: Features) -> Embeddings:
    """Unit vectors, zero where the mask says padding."""
    points = real_points(unit(states.points), states.mask)
    pooled = masked_mean(points, states.mask) if states.pooled is None else states.pooled
    return Embeddings(points, states.mask, pooled, states.layout)


def count_parameters(module: nn.Module) -> int:
    """How many numbers training changes.

    >>> count_parameters(make_head(HeadSpec(), 3, 2))
    8
    """
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def seeded_heads(spec: HeadsSpec, image: SideDims, text: SideDims, *, seed: int) -> AlignedHeads:
    """Fresh heads whose start depends on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AlignedHeads(spec, image, text)


class JoinedHeads(nn.Module):
    """Heads that were trained apart, on one text tower and one image tower.

    Where the image tower has a branch for each of them, its features lie side by side, and each reads its own part.
    """

    def __init__(self, members: Sequence[AlignedHeads], *, branches: bool) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self._branches = branches

    def image_states(self, features: Features) -> Features:
        """Patches of any length and pooled unit vectors of images."""
        parts = split_features(features, len(self.members)) if self._branches else [features] * len(self.members)
        return join_states([heads.image_states(part) for heads, part in zip(self._heads(), parts, strict=True)])

    def text_states(self, features: Features) -> Features:
        """Tokens of any length and pooled unit vectors of captions."""
        return join_states([heads.text_states(features) for heads in self._heads()])

    def _heads(self) -> Iterator[AlignedHeads]:
        for member in self.members:
            assert isinstance(member, AlignedHeads), "members are heads"
            yield member


def split_features(features: Features, count: int) -> list[Features]:
    """Features of branches that lie side by side, each branch apart."""
    whole = features.whole
    wholes = [None] * count if whole is None else split_features(whole, count)
    parts = features.points.chunk(count, dim=-1)
    return [replace(features, points=points, whole=own) for points, own in zip(parts, wholes, strict=True)]


def join_states(states: Sequence[Features]) -> Features:
    """Unit vectors of all members side by side; as unit vectors, their products are the means of the members'."""
    points = [unit(state.points) for state in states]
    pooled = [
        masked_mean(real_points(vectors, state.mask), state.mask) if state.pooled is None else state.pooled
        for vectors, state in zip(points, states, strict=True)
    ]
    return replace(
        states[0], points=torch.cat(points, dim=-1), pooled=unit(torch.cat([unit(part) for part in pooled], dim=-1))
    )
