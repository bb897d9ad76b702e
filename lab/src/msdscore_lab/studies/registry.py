"""The studies by name: the function of each, and the question it answers."""

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from msdscore.errors import ConfigError, unknown_name

if TYPE_CHECKING:
    from msdscore_lab.studies.context import Study
    from msdscore_lab.studies.table import Table

# By name: module under `msdscore_lab.studies` and function, and one line of help.
STUDIES = {
    "sweep": ("ablations.sweep:sweep", "One setting of the score, or the distribution of local vectors."),
    "tune": ("ablations.tune:tune", "The paper's tuning: scalar settings chosen once on held-out pairs."),
    "direction": ("ablations.pairs:direction", "Coverage, support, a fixed weight or the length gate."),
    "margin": ("ablations.pairs:margin", "Gains by the difference between the similarities of two captions."),
    "stability": ("ablations.clustering:stability", "Clusterings of tokens over random starts."),
    "entropy": ("ablations.clustering:entropy", "Entropy of responsibilities by caption length."),
    "reconstruction": ("ablations.transfer:reconstruction", "Aligners trained with and without reconstruction."),
    "backbones": ("ablations.transfer:backbones", "Every part of the score with several encoders."),
    "faithfulness": ("faithfulness:faithfulness", "Do maps show the regions that change the score?"),
    "words": ("words:words", "Do terms of words find hallucinated words?"),
    "references": ("references:curve", "Agreement with people by the number of references."),
    "behaviour": ("behaviour:behaviour", "Small generated tests of what a metric can see."),
    "gaming": ("gaming:gaming", "How often do texts that are not captions beat a caption?"),
    "timing": ("timing:timing", "Milliseconds per pair, by caption length."),
    "match": ("match:match", "Reliability diagram of `match`."),
}

# Parameters of `sweep`.
SWEPT = ("kappa", "alpha", "components", "iterations", "xi", "l0", "tau-l", "beta", "balance", "delta", "mixture")


def run_study(name: str, study: "Study", **options: Any) -> "list[Table]":
    """Run a study with its specific options and return its tables."""
    function = load_study(name)
    parameters = list(inspect.signature(function).parameters)[1:]
    if "parameter" in parameters and "parameter" not in options:
        raise ConfigError(f"study {name} needs a parameter, as in `study {name} kappa`; it has {', '.join(SWEPT)}")
    if options.get("parameter", SWEPT[0]) not in SWEPT and "parameter" in parameters:
        raise unknown_name("parameter", options["parameter"], SWEPT)
    for option in options:
        if option not in parameters:
            names = ", ".join(f"--{other.replace('_', '-')}" for other in parameters) or "no specific options"
            raise ConfigError(f"study {name} has no option --{option.replace('_', '-')}; it has {names}")
    return function(study, **options)


def load_study(name: str) -> "Callable[..., list[Table]]":
    """Import the function of a study."""
    if name not in STUDIES:
        raise unknown_name("study", name, STUDIES)
    module, _, function = STUDIES[name][0].partition(":")
    return getattr(import_module(f"msdscore_lab.studies.{module}"), function)
