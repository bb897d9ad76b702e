"""Training recipes: all settings of a run in one frozen, validated object.

Recipes are TOML files: included ones are loaded by name, others by path; single settings can be overridden.
"""

import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from msdscore.errors import ConfigError, InputError, unknown_name
from msdscore_torch.aligned.heads import HeadsSpec
from msdscore_torch.aligned.towers import ImageTowerSpec, TextTowerSpec, plain, read_spec

PRECISIONS = ("auto", "float32", "bfloat16")
PREFIXES = ("linear", "head")


def require_between(spec: object, names: str, minimum: float, limit: float = math.inf, *, bound: str) -> None:
    """Raise `ConfigError` unless minimum <= value < limit for all named settings; `bound` is used in the message."""
    for name in names.split():
        if not minimum <= getattr(spec, name) < limit:
            raise ConfigError(f"{name} must {bound}, got {getattr(spec, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSpec:
    """Weights of the loss terms, each of which can be zero, and their settings.

    >>> LossSpec(contrastive=0.0)
    Traceback (most recent call last):
    msdscore.errors.ConfigError: at least one loss weight must be positive, got none
    """

    TERMS: ClassVar[tuple[str, ...]] = ("contrastive", "reconstruction")

    contrastive: float = 1.0  # InfoNCE on pooled vectors
    reconstruction: float = 0.0  # caption from patches through the frozen language model
    temperature: float = 0.07  # initial value of the learned temperatures
    max_scale: float = 100.0  # learned temperatures are at least 1 / max_scale

    def __post_init__(self) -> None:
        if (smallest := min(self.weights.values())) < 0:
            raise ConfigError(f"loss weights must not be negative, got {smallest}")
        if not any(self.weights.values()):
            raise ConfigError("at least one loss weight must be positive, got none")
        if min(self.temperature, self.max_scale) <= 0:
            raise ConfigError("temperature and max_scale must be positive")

    @property
    def weights(self) -> dict[str, float]:
        """The weight of every term by name."""
        return {name: getattr(self, name) for name in self.TERMS}


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageSpec:
    """The frozen causal language model of the reconstruction; it is never loaded at scoring time."""

    source: str = ""  # a folder, a hub name, package:NAME/path
    revision: str = ""
    gguf: str = ""  # name of a .gguf file in the source
    batch: int = 16  # captions per forward pass, to limit memory
    prefix: str = "linear"  # map from aligned patches to its inputs; "head": the image head's outputs without a map

    def __post_init__(self) -> None:
        require_between(self, "batch", 1, bound="be at least 1")
        if self.prefix not in PREFIXES:
            raise unknown_name("prefix", self.prefix, PREFIXES)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSpec:
    """Sampling from the data at every step."""

    captions: int = 1  # captions per image in a batch; repeated if an image has fewer
    window: int = 8  # blocks (shards, row groups) that are shuffled together

    def __post_init__(self) -> None:
        require_between(self, "captions window", 1, bound="be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSpec:
    """Training of the heads. `batch` counts pairs over all processes, so it is also the number of negatives."""

    epochs: float = 1.0
    steps: int = 0  # optimiser steps; 0: computed from `epochs`
    batch: int = 128
    accumulate: int = 1  # batches whose gradients are averaged before a step
    tower_batch: int = 64  # items per batch of the frozen towers
    lr: float = 1e-3
    weight_decay: float = 0.0  # of matrices only
    beta2: float = 0.999  # of AdamW
    warmup: float = 0.03  # share of the steps
    clip: float = 1.0  # maximum gradient norm; 0: no clipping
    average: float = 0.0  # decay of the moving average of the weights; 0: none
    precision: str = "auto"  # bfloat16 autocast on CUDA, float32 elsewhere
    eval_every: int = 0  # steps; 0: after every epoch
    save_every: int = 0  # steps; 0: after every epoch, at least 100 steps apart
    keep: int = 2  # newest checkpoints to retain, besides the best
    patience: int = 0  # evaluations without a better retrieval before the run stops; 0: never
    log_every: int = 10

    def __post_init__(self) -> None:
        require_between(self, "batch accumulate tower_batch keep log_every", 1, bound="be at least 1")
        require_between(self, "steps weight_decay clip eval_every save_every patience", 0, bound="not be negative")
        if self.epochs <= 0 or self.lr <= 0:
            raise ConfigError(f"epochs and lr must be positive, got {self.epochs} and {self.lr}")
        require_between(self, "warmup average beta2", 0, 1, bound="be at least 0 and under 1")
        if self.precision not in PRECISIONS:
            raise unknown_name("precision", self.precision, PRECISIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Backbones, heads, losses and training of one aligner."""

    name: str
    description: str = ""
    seed: int = 0
    image: ImageTowerSpec
    text: TextTowerSpec
    heads: HeadsSpec = field(default_factory=HeadsSpec)
    loss: LossSpec = field(default_factory=LossSpec)
    lm: LanguageSpec = field(default_factory=LanguageSpec)
    sample: SampleSpec = field(default_factory=SampleSpec)
    train: TrainSpec = field(default_factory=TrainSpec)

    def __post_init__(self) -> None:
        if self.loss.reconstruction and not self.lm.source:
            raise ConfigError("loss.reconstruction needs a language model: set lm.source, or loss.reconstruction=0")
        if self.heads.pool == "model" and (self.image.kind, self.text.kind) != ("encoder", "encoder"):
            raise ConfigError("heads.pool 'model' needs two towers of kind 'encoder'; use 'mean' or 'own'")


AnyRecipe = TypeVar("AnyRecipe", bound=Recipe)


def list_recipes() -> tuple[str, ...]:
    """Return the names of the recipes in the package.

    >>> list_recipes()
    ('paper', 'paper-llama')
    """
    names = (path.name for path in (files("msdscore_lab.align") / "recipes").iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml")))


def load_recipe(kind: type[AnyRecipe], name: str | Path, *, changes: Iterable[str] = ()) -> AnyRecipe:
    """Load a recipe by name or from a TOML file, with changes such as `train.steps=100`.

    `kind` is `Recipe`, or a subclass with the settings of another trainer.

    >>> load_recipe(Recipe, "paper", changes=["train.lr=0.002"]).train.lr
    0.002

    Raises:
        UnknownNameError: If there is no such recipe or setting.
        InputError: If the file is not TOML.
        ConfigError: If a setting is invalid.
    """
    values = _read(name)
    for change in changes:
        _set(values, change)
    return read_spec(kind, values)


def load_trained(path: Path) -> Recipe:
    """Load the recipe of a finished run, without loss and sampling settings, which may belong to another trainer."""
    values = _read(path)
    parts = {key: values[key] for key in ("name", "description", "seed", "image", "text", "heads")}
    return read_spec(Recipe, {**parts, "train": {"tower_batch": values["train"]["tower_batch"]}})


def dump_recipe(recipe: Recipe) -> str:
    """Return the whole recipe as TOML with all settings; loading it returns the same recipe."""
    return _dump(plain(recipe), ())


def _read(name: str | Path) -> dict[str, Any]:
    path = Path(name)
    if path.suffix == ".toml" or path.is_file():
        if not path.is_file():
            raise InputError(f"no such recipe file {str(name)!r}; included recipes are {', '.join(list_recipes())}")
        text = path.read_text(encoding="utf-8")
    else:
        if str(name) not in list_recipes():
            raise unknown_name("recipe", str(name), list_recipes())
        text = (files("msdscore_lab.align") / "recipes" / f"{name}.toml").read_text(encoding="utf-8")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{name}: not valid TOML ({error})") from error


def _set(values: dict[str, Any], change: str) -> None:
    """Change one setting in place, as in `heads.image.kind=mlp`."""
    key, sign, text = change.partition("=")
    if not sign or not key.strip():
        raise ConfigError(f"expected a change such as train.steps=100, got {change!r}")
    *tables, last = key.strip().split(".")
    for name in tables:
        values = values.setdefault(name, {})
        if not isinstance(values, dict):
            raise ConfigError(f"{key.strip()!r} is not a setting: {name!r} is a value, not a table")
    try:
        values[last] = tomllib.loads(f"value = {text.strip()}")["value"]
    except tomllib.TOMLDecodeError:  # a string without quotes
        values[last] = text.strip()


def _dump(values: Mapping[str, Any], section: tuple[str, ...]) -> str:
    # JSON and TOML share the syntax of strings, numbers, booleans and lists.
    settings = [f"{key} = {json.dumps(item)}" for key, item in values.items() if not isinstance(item, dict)]
    tables = [_dump(item, (*section, key)) for key, item in values.items() if isinstance(item, dict)]
    head = [f"[{'.'.join(section)}]"] if section else []
    return "\n".join([*head, *settings, ""]) + ("\n" if tables else "") + "\n".join(tables)
