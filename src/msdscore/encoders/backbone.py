"""What all encoders around a pretrained model share: their name, their signature, and the last step of every batch."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from PIL.Image import Image
from torch import Tensor

from msdscore.core.sphere import masked_mean, real_points, unit
from msdscore.encoders.base import Embeddings, PatchLayout, TokenLayout
from msdscore.encoders.placement import Placement, require_choice
from msdscore.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedOptions:
    """What a user can choose about every pretrained encoder."""

    pool: str = "model"  # or "mean": of the local vectors, as the paper's text has it
    long_text: str = "window"  # or "cut"
    compile: str = ""  # a backend of torch.compile, such as "inductor"

    def __post_init__(self) -> None:
        require_choice("pool", self.pool, ("model", "mean"))
        require_choice("long_text", self.long_text, ("window", "cut"))


@dataclass(frozen=True, slots=True)
class Identity:
    """What a loaded encoder answers when it is asked who it is.

    `signed` is the name with the mark of the weights; `choices` are the `key:value` parts of its family.
    """

    name: str
    signed: str
    placement: Placement
    options: SharedOptions
    choices: tuple[str, ...] = ()

    @property
    def signature(self) -> str:
        """Everything that can change a vector, as `key:value` parts joined by commas."""
        options = self.options
        compiled = (f"compile:{options.compile}",) if options.compile else ()
        shared = (f"pool:{options.pool}", f"long:{options.long_text}", *compiled)
        return ",".join((self.signed, *self.choices, *shared, f"dtype:{self.placement.dtype_name}"))


@dataclass(frozen=True, slots=True)
class States:
    """Local vectors before the last step, of any length; `pooled` are unit vectors, or None where there are none."""

    points: Float[Tensor, "batch points dim"]
    mask: Bool[Tensor, "batch points"]
    pooled: Float[Tensor, "batch pooled_dim"] | None
    layout: tuple[PatchLayout, ...] | tuple[TokenLayout, ...]


class Backbone(ABC):
    """An encoder around a pretrained model; a family says how its model sees and reads.

    Vectors come out in float32 whatever the model computes in, as plain tensors without history: heads can be
    trained on them.
    """

    def __init__(self, identity: Identity) -> None:
        self._identity = identity

    @property
    def name(self) -> str:
        """The name it was loaded by."""
        return self._identity.name

    @property
    def signature(self) -> str:
        """Everything that can change a vector, as `key:value` parts joined by commas."""
        return self._identity.signature

    @property
    def device(self) -> torch.device:
        """Where the vectors are made."""
        return self._identity.placement.device

    @torch.no_grad()
    def encode_images(self, images: Sequence[Image]) -> Embeddings:
        """Patches and pooled vectors; `layout` holds a `PatchLayout` an item."""
        _require_items(images, "picture")
        return self._finish(self._see(images))

    @torch.no_grad()
    def encode_texts(self, texts: Sequence[str]) -> Embeddings:
        """Tokens and pooled vectors; `layout` holds a `TokenLayout` an item."""
        _require_items(texts, "caption")
        return self._finish(self._read(texts))

    @abstractmethod
    def _see(self, images: Sequence[Image]) -> States:
        """Patches of pictures."""

    @abstractmethod
    def _read(self, texts: Sequence[str]) -> States:
        """Tokens of captions."""

    def _finish(self, states: States) -> Embeddings:
        mask = states.mask.to(states.points.device)
        real = real_points(unit(states.points), mask)
        mean = states.pooled is None or self._identity.options.pool == "mean"
        pooled = masked_mean(real, mask) if mean else states.pooled
        assert pooled is not None
        if not (torch.isfinite(real).all() and torch.isfinite(pooled).all()):
            raise ConfigError(
                f"{self.name} overflows in {self._identity.placement.dtype_name}; "
                "load it with dtype='float32' or dtype='bfloat16'"
            )
        return Embeddings(real, mask, pooled, states.layout)


def compile_towers(options: SharedOptions, *towers: Any) -> None:
    """Compile modules in place with the backend that the options name; nothing for an empty name.

    Raises:
        ConfigError: torch knows no such backend.
    """
    if not options.compile:
        return
    known = torch.compiler.list_backends(exclude_tags=None)
    if options.compile not in known:
        raise ConfigError(f"compile must be empty or one of {', '.join(sorted(known))}, got {options.compile!r}")
    for tower in towers:
        tower.compile(backend=options.compile)


def _require_items(items: Sequence[object], kind: str) -> None:
    if not items:
        raise ConfigError(f"expected at least one {kind} to encode, got none")
