"""Frozen backbones as towers: images or texts in, raw local features of one or two paths out.

Their settings are frozen dataclasses, read from plain values of TOML or JSON with every key and type checked.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import interpolate

from msdscore.encoders.backbone import Placement
from msdscore.encoders.base import Features, Prepared, PreparesImages, TokenLayout
from msdscore.errors import ConfigError, MSDScoreError, unknown_name
from msdscore.text.words import content_tokens

IMAGE_KINDS = ("encoder", "transformers", "timm", "mini")
TEXT_KINDS = ("encoder", "transformers", "mini")
Level = int | str
Spec = TypeVar("Spec")
Item = TypeVar("Item", contravariant=True)


def read_spec(kind: type[Spec], given: Any, *, where: str = "") -> Spec:
    """A spec from a mapping; lists become tuples, nested mappings nested specs.

    >>> from msdscore.encoders.aligned.heads import HeadSpec
    >>> read_spec(HeadSpec, {"kind": "mlp", "dropout": 0}).kind
    'mlp'
    >>> read_spec(HeadSpec, {"dropout": "much"}, where="heads.image")
    Traceback (most recent call last):
    msdscore.errors.ConfigError: heads.image.dropout should be float, got 'much'

    Raises:
        UnknownNameError: a key that the spec does not have.
        ConfigError: a value of the wrong type, or that cannot work.
    """
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where or kind.__name__} should be a table of settings, got {given!r}")
    hints = get_type_hints(kind)
    dot = f"{where}." if where else ""
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    for key in given:
        if key not in known:
            raise unknown_name("setting", f"{dot}{key}", [f"{dot}{name}" for name in known])
    values = {key: read_value(hints[key], value, where=f"{dot}{key}") for key, value in given.items()}
    try:
        return kind(**values)
    except TypeError as error:
        missing = str(error).rpartition(": ")[2]
        raise ConfigError(f"{where or kind.__name__} lacks a setting: {missing}") from error
    except MSDScoreError as error:
        raise type(error)(f"{where}: {error}" if where else str(error)) from error


def read_value(hint: Any, value: Any, *, where: str) -> Any:
    """One value of the type that a spec's field has.

    Raises:
        ConfigError: it is of another type.
    """
    if is_dataclass(hint) and isinstance(hint, type):
        return read_spec(hint, value, where=where)
    if get_origin(hint) is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{where} should be a list, got {value!r}")
        return tuple(read_value(get_args(hint)[0], item, where=where) for item in value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    allowed = get_args(hint) or (hint,)
    if type(value) not in allowed:
        names = " or ".join(choice.__name__ for choice in allowed)
        raise ConfigError(f"{where} should be {names}, got {value!r}")
    return value


def plain(spec: Any) -> dict[str, Any]:
    """The spec as plain values; tuples become lists."""
    values: dict[str, Any] = json.loads(json.dumps(asdict(spec)))
    return values


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageTowerSpec:
    """A frozen image backbone and the features taken from it.

    `source` is an encoder's name or folder (`encoder`), a checkpoint (`transformers`), an architecture (`timm`) or
    `lite2` (`mini`: the network of the shipped encoder, always with its three maps);
    `package:NAME/path` points into an installed package. `levels` are numbers of layers, `stride16`-like names, or
    `final`; several are resized to `grid` cells per side and concatenated.
    """

    kind: str = "encoder"
    source: str
    revision: str = ""
    weights: str = ""  # timm: a file of tensors; empty: the hub's. mini: a file of tuned convolutions, if there is one
    branches: tuple[str, ...] = ()  # mini: several such files, a network for each; features lie side by side
    sha256: str = ""  # of the weights; checked when given
    levels: tuple[Level, ...] = (-1,)
    grid: int = 0  # 0: as the first level has it
    global_levels: tuple[Level, ...] = ()  # of a global path; empty: the same features
    global_grid: int = 0
    size: int = 0  # timm, mini: side of the square that images are drawn on; 0: the model's own
    mean: tuple[float, ...] = ()  # timm: overrides of the model's own statistics
    std: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        _check(self, IMAGE_KINDS, mini="lite2")
        if self.kind == "encoder" and (self.grid or self.global_grid or self.levels != (-1,) or self.global_levels):
            raise ConfigError("an image tower of kind 'encoder' has no levels and no grid; use transformers or timm")
        if self.branches and (self.kind != "mini" or self.weights):
            raise ConfigError("branches are for an image tower of kind 'mini', in the place of weights")
        changed = self.levels != (-1,) or self.global_levels or self.global_grid or self.mean or self.std
        if self.kind == "mini" and changed:
            raise ConfigError("an image tower of kind 'mini' always gives its three maps; set grid and size alone")

    @property
    def global_path(self) -> tuple[tuple[Level, ...], int]:
        """Levels and grid of the global path; where it has no levels of its own, those of the local one."""
        levels = self.global_levels or self.levels
        return levels, self.global_grid or (0 if self.global_levels else self.grid)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTowerSpec:
    """A frozen text backbone; `levels` are numbers of hidden states (0: the embeddings), concatenated."""

    kind: str = "encoder"
    source: str
    revision: str = ""
    sha256: str = ""
    levels: tuple[Level, ...] = (-1,)
    global_levels: tuple[Level, ...] = ()
    context: int = 0  # tokens read at once; 0: what the checkpoint says
    words: str = "all"  # of the local path; or "content"

    def __post_init__(self) -> None:
        _check(self, TEXT_KINDS, mini="minilm")
        if self.words not in ("all", "content"):
            raise ConfigError(f"words must be 'all' or 'content', got {self.words!r}")
        if not all(isinstance(level, int) for level in (*self.levels, *self.global_levels)):
            raise ConfigError(f"levels of a text tower must be numbers of hidden states, got {self.levels}")
        if self.kind == "encoder" and (self.levels != (-1,) or self.global_levels):
            raise ConfigError("a text tower of kind 'encoder' has no levels; use transformers")


def _check(spec: ImageTowerSpec | TextTowerSpec, kinds: tuple[str, ...], *, mini: str) -> None:
    if spec.kind not in kinds:
        raise unknown_name("tower", spec.kind, kinds)
    if not spec.source:
        raise ConfigError("a tower needs a source: an encoder's name, a folder, a hub name or an architecture")
    if not spec.levels:
        raise ConfigError("a tower needs at least one level")
    if spec.kind == "mini" and spec.source != mini:
        raise unknown_name("source of a tower of kind 'mini':", spec.source, (mini,))


@dataclass(frozen=True, slots=True, kw_only=True)
class TowerPlace:
    """Where towers run, and what becomes of long captions."""

    device: str = "cpu"
    dtype: str = "auto"
    whole: bool = False  # whether a global path is wanted
    long_text: str = "window"


class Tower(Protocol[Item]):
    """A frozen backbone."""

    @property
    def files(self) -> tuple[Path, ...]:
        """The files of its weights; none where it has none."""

    @property
    def device(self) -> torch.device:
        """Where its features are made."""

    def features(self, items: Sequence[Item], /) -> Features:
        """Raw features of images or captions, without history."""


class ImageTower(Tower[Prepared], PreparesImages, Protocol):
    """A frozen image backbone."""


TextTower: TypeAlias = Tower[str]


def keep_content(features: Features, texts: Sequence[str]) -> Features:
    """The same features with only the content words on the local path, moved to the front of each caption."""
    layouts = [layout for layout in features.layout if isinstance(layout, TokenLayout)]
    chosen = [content_tokens(text, layout.spans) for text, layout in zip(texts, layouts, strict=True)]
    fewer = tuple(
        replace(layout, spans=tuple(layout.spans[number] for number in own))
        for layout, own in zip(layouts, chosen, strict=True)
    )
    points, width = features.points, max(map(len, chosen), default=0)
    rows = [[*own, *[0] * (width - len(own))] for own in chosen]
    index = torch.tensor(rows, dtype=torch.int64, device=points.device).reshape(len(chosen), width)
    sizes = torch.tensor([[len(own)] for own in chosen], device=points.device)
    return replace(
        features,
        points=points.gather(1, index.unsqueeze(-1).expand(-1, -1, points.shape[2])),
        mask=torch.arange(width, device=points.device) < sizes,
        layout=fewer,
    )


def frozen(model: Any, where: Placement) -> Any:
    """The model on its device, in evaluation mode, and closed to gradients."""
    return model.to(device=where.device, dtype=where.dtype).eval().requires_grad_(False)


def take_level(states: Sequence[Tensor], level: Level) -> Tensor:
    """One of the hidden states by number, from the end when negative."""
    if not isinstance(level, int) or not -len(states) <= level < len(states):
        raise ConfigError(f"level {level!r} does not exist; expected a number under {len(states)} or -1, -2, …")
    return states[level]


def mean_state(
    states: Float[Tensor, "windows positions dim"], mask: Bool[Tensor, "windows positions"]
) -> Float[Tensor, "windows dim"]:
    """The mean of the states of real positions, special tokens among them."""
    real = mask.unsqueeze(-1)
    return (states.float() * real).sum(dim=1) / real.sum(dim=1).clamp_min(1)


def join_levels(maps: Sequence[Float[Tensor, "batch _ _ _"]], grid: int) -> Float[Tensor, "batch dim rows columns"]:
    """Maps of several levels on one grid, concatenated; `grid` 0 takes the first level's own."""
    size = (grid, grid) if grid else tuple(maps[0].shape[-2:])
    # Antialiasing averages where the grid gets coarser, and does nothing where it gets finer.
    resized = [
        item.float()
        if tuple(item.shape[-2:]) == size
        else interpolate(item.float(), size=size, mode="bilinear", antialias=True)
        for item in maps
    ]
    return torch.cat(resized, dim=1)


def all_points(features: Float[Tensor, "batch dim rows columns"]) -> Features:
    """The cells of a map as points in row-major order, all of them real."""
    points = features.flatten(2).transpose(1, 2)
    return Features(points, torch.ones(points.shape[:2], dtype=torch.bool, device=points.device))
