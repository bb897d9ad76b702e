"""The settings that the paper varies, each with the values that are tried."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from msdscore.benchmarks.results.scores import score_matrix
from msdscore.encoders.base import Encoder
from msdscore.errors import ConfigError
from msdscore.scoring.config import MSDConfig
from msdscore.scoring.pipeline import Pipeline
from msdscore.studies.ablations.sweep import Sweep, Variant

DIVERGENCE = "bi-kl"  # the metric that is d itself

# The paper's table of distributions: Euclidean Gaussians, adaptive and fixed concentration.
MIXTURES = {
    "vMF, fixed kappa": "vmf",
    "vMF, adaptive kappa": "vmf-adaptive",
    "Gaussian, spherical": "gaussian",
    "Gaussian, diagonal": "gaussian-diagonal",
    "Gaussian, shrunk": "gaussian-shrunk",
}
GATES: dict[str, dict[str, Any]] = {
    "length-gated": {"gate": "length"},
    "coverage only": {"gate": "coverage"},
    "beta 0.5": {"gate": "fixed", "beta": 0.5},
    "support only": {"gate": "support"},
}


@dataclass(frozen=True, slots=True)
class Ablation:
    """One setting under study: its name among the settings, the values tried, and how a curve shows them."""

    setting: str
    values: tuple[Any, ...]
    axis: str
    logarithmic: bool = False


ABLATIONS = {
    "kappa": Ablation("kappa", (5.0, 10.0, 20.0, 40.0, 80.0), "concentration kappa", logarithmic=True),
    "alpha": Ablation("alpha", (0.0, 0.02, 0.05, 0.1, 0.2, 0.5), "weight alpha of the divergence"),
    "components": Ablation(
        "components", ((1, 1), (2, 1), (3, 2), (4, 2), (5, 3), (8, 4)), "components K (image, text)"
    ),
    "iterations": Ablation("iterations", (1, 2, 5, 10, 20, 50), "iterations of EM", logarithmic=True),
}


def value_variants(
    ablation: Ablation, values: Sequence[Any], encoder: Encoder, config: MSDConfig
) -> tuple[list[Variant], str]:
    """A variant per value, and the name of the one that the settings hold already (it is added where it is missing)."""
    own = getattr(config, ablation.setting)
    kind = type(own)
    wanted = [_as(kind, value, ablation.setting) for value in (values or ablation.values)]
    wanted = wanted if own in wanted else sorted([*wanted, own])
    variants = [
        variant(spelled_value(ablation.setting, value), encoder, config.changed(**{ablation.setting: value}),
                None if isinstance(value, tuple) else float(value))
        for value in wanted
    ]  # fmt: skip
    return variants, spelled_value(ablation.setting, own)


def equal_weights(sweep: Sweep, choices: dict[str, dict[str, Any]], alpha: float) -> dict[str, dict[str, Any]]:
    """The same choices, each with the alpha at which alpha d varies over the captions as it does in the first."""
    spreads = {}
    for row in sweep.rows:
        found = score_matrix(pq.read_table(row.folder / row.result.scores), DIVERGENCE)
        assert found is not None, "the sweep holds the divergence of every variant"
        spreads[row.variant.name] = float(np.nanstd(found))
    first = next(iter(spreads.values()))
    return {name: {**choice, "alpha": alpha * first / spreads[name]} for name, choice in choices.items()}


def named_variants(choices: dict[str, dict[str, Any]], encoder: Encoder, config: MSDConfig) -> list[Variant]:
    """A variant per named change of the settings."""
    return [variant(name, encoder, config.changed(**changes)) for name, changes in choices.items()]


def variant(name: str, encoder: Encoder, config: MSDConfig, place: float | None = None) -> Variant:
    """Settings under a name, with an encoder that is loaded already."""
    return Variant(name, lambda: Pipeline(encoder, config), place)


def spelled_value(setting: str, value: Any) -> str:
    """A setting with its value, as tables have it.

    >>> spelled_value("kappa", 20.0), spelled_value("components", (3, 2))
    ('kappa=20', 'components=3,2')
    """
    return f"{setting}={','.join(map(str, value)) if isinstance(value, tuple) else f'{value:g}'}"


def _as(kind: type, value: Any, name: str) -> Any:
    if kind is tuple:
        if not isinstance(value, tuple) or len(value) != 2:
            raise ConfigError(f"{name} are two numbers (image, text), got {value!r}")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{name} is a number, got {value!r}")
    return kind(value)
