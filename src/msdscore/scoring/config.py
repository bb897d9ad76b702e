"""Every setting of the score, with the source of each number."""

import math
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from msdscore.errors import ConfigError, unknown_name

Gate = Literal["length", "coverage", "support", "fixed"]
Init = Literal["sample", "spread"]
Calibration = Literal["none", "background", "evidence"]
MixtureKind = Literal["vmf", "vmf-adaptive", "gaussian", "gaussian-diagonal", "gaussian-shrunk"]
_LARGEST = 1e6  # of any number, and 1e-6 of those that are divided by: beyond them scores overflow in float32


@dataclass(frozen=True, slots=True, kw_only=True)
class MSDConfig:
    """What turns embeddings into MSD and Soft-MSD.

    >>> MSDConfig.preset("long").components
    (5, 3)
    >>> MSDConfig(kappa=-1.0)
    Traceback (most recent call last):
    msdscore.errors.ConfigError: kappa must be positive, got -1.0
    """

    components: tuple[int, int] = (3, 2)  # image, text: paper, short captions
    kappa: float = 20.0  # paper, concentration sweep
    iterations: int = 20  # paper, EM details
    init: Init = "spread"  # docs/decisions.md: as good as drawn starts, and no spread over seeds
    seed: int = 0  # of drawn starts
    alpha: float = 0.1  # paper, hyperparameters
    gate: Gate = "length"
    gate_center: float = 20.0  # L0, paper
    gate_width: float = 3.0  # tau_L, paper
    beta: float = 0.5  # weight of coverage where the gate is fixed
    temperature: float = 0.2  # xi, paper
    # beyond the paper: terms less their mean over a bank of background pictures; evidence: words weighed too
    calibration: Calibration = "none"
    information: float = 0.0  # weight of information, gamma; beyond the paper, with calibration=evidence
    tail: float = 0.0  # weight of doubtful words in the support of long captions; with calibration=evidence
    mixture: MixtureKind = "vmf"  # the paper's; the others are its ablations, in float64, variances start at 1/kappa

    def __post_init__(self) -> None:
        _require_components(self.components)
        object.__setattr__(self, "components", tuple(self.components))
        for field in fields(self):
            _require_number(field.name, getattr(self, field.name), type(field.default))
        for name in ("kappa", "gate_width", "temperature"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be positive, got {getattr(self, name)}")
            if getattr(self, name) < 1 / _LARGEST:
                raise ConfigError(f"{name} must be at least {1 / _LARGEST:g}, got {getattr(self, name)}")
        for name in ("alpha", "information", "tail"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.iterations < 1:
            raise ConfigError(f"iterations must be at least 1, got {self.iterations}")
        if not 0 <= self.beta <= 1:
            raise ConfigError(f"beta must lie between 0 and 1, got {self.beta}")
        _require_choice("init", self.init, get_args(Init))
        _require_choice("gate", self.gate, get_args(Gate))
        _require_choice("calibration", self.calibration, get_args(Calibration))
        _require_choice("mixture", self.mixture, get_args(MixtureKind))
        for name in ("information", "tail"):
            if getattr(self, name) and self.calibration != "evidence":
                raise ConfigError(
                    f"{name}={getattr(self, name):g} needs evidence of words; set calibration=evidence or {name}=0"
                )
        if self.mixture != "vmf" and self.calibration != "none":
            raise ConfigError(f"mixture={self.mixture} has no calibrated form; set calibration=none")

    @property
    def weighs_coverage(self) -> bool:
        """Whether any caption's divergence contains coverage.

        >>> MSDConfig().weighs_coverage, MSDConfig(gate="support").weighs_coverage
        (True, False)
        """
        return self.gate in ("length", "coverage") or (self.gate == "fixed" and self.beta > 0)

    @classmethod
    def preset(cls, name: str, **changes: Any) -> "MSDConfig":
        """A named set of settings, with changes on top."""
        if name not in PRESETS:
            raise unknown_name("preset", name, PRESETS)
        return PRESETS[name].changed(**changes)

    def changed(self, **changes: Any) -> "MSDConfig":
        """A copy with some settings changed; unknown ones are refused with the known names."""
        known = [field.name for field in fields(self)]
        for name in changes:
            if name not in known:
                raise unknown_name("setting", name, known)
        return replace(self, **changes)


def _require_number(name: str, value: Any, kind: type) -> None:
    """Refuse what is no finite number, or no whole one, where the default is one."""
    if kind is int and (isinstance(value, bool) or not isinstance(value, int)):
        raise ConfigError(f"{name} must be a whole number, got {value!r}")
    if kind is float and (isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value)):
        raise ConfigError(f"{name} must be a finite number, got {value!r}")
    if kind is float and abs(value) > _LARGEST:
        raise ConfigError(f"{name} must lie within {_LARGEST:g}, got {value!r}")


def _require_components(components: Any) -> None:
    counts = components if isinstance(components, tuple | list) else ()
    if len(counts) != 2 or not all(isinstance(n, int) and not isinstance(n, bool) and n >= 1 for n in counts):
        raise ConfigError(f"components must be two counts of at least 1 (image, text), got {components}")


def _require_choice(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise unknown_name(name, str(value), known)


PRESETS = {
    "short": MSDConfig(),  # paper: captions of a sentence
    "long": MSDConfig(components=(5, 3)),  # paper: captions of a paragraph
    "authors": MSDConfig(components=(4, 2), init="sample", seed=42),  # the authors' SugarCrepe scripts
}
