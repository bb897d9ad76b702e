"""The studies by name: where the function of each lies, and what it answers in one line."""

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from msdscore.errors import ConfigError, unknown_name

if TYPE_CHECKING:
    from msdscore.lab.studies.context import Study
    from msdscore.lab.studies.table import Table

STUDIES = {
    "mixtures": ("msdscore.lab.studies.sweep:mixtures", "Distributions of local vectors: vMF, or Gaussians."),
    "kappa": ("msdscore.lab.studies.sweep:kappa", "The concentration of the mixtures."),
    "alpha": ("msdscore.lab.studies.sweep:alpha", "The weight of the local divergence against the similarity."),
    "components": ("msdscore.lab.studies.sweep:components", "The number of components of both mixtures."),
    "iterations": ("msdscore.lab.studies.sweep:iterations", "The iterations of EM."),
    "xi": ("msdscore.lab.studies.sweep:xi", "The temperature xi of Soft-MSD."),
    "l0": ("msdscore.lab.studies.sweep:l0", "The caption length L0 at which the gate turns."),
    "tau-l": ("msdscore.lab.studies.sweep:tau_l", "The width tau_L of the gate."),
    "beta": ("msdscore.lab.studies.sweep:beta", "A fixed weight of coverage instead of the gate."),
    "tune": ("msdscore.lab.studies.tune:tune", "The paper's tuning: scalar settings chosen once on held-out pairs."),
    "direction": ("msdscore.lab.studies.pairs:direction", "Coverage, support, a fixed weight or the length gate."),
    "margin": ("msdscore.lab.studies.pairs:margin", "Gains by how far apart the similarities of two captions lie."),
    "stability": ("msdscore.lab.studies.clustering:stability", "Clusterings and scores over drawn starts."),
    "entropy": ("msdscore.lab.studies.clustering:entropy", "Entropy of responsibilities by caption length."),
    "sensitivity": (
        "msdscore.lab.studies.clustering:sensitivity",
        "How fast adaptive kappa grows with the mean resultant length.",
    ),
    "reconstruction": (
        "msdscore.lab.studies.transfer:reconstruction",
        "Aligners trained with and without reconstruction.",
    ),
    "backbones": ("msdscore.lab.studies.transfer:backbones", "Every part of the score with several encoders."),
    "ood": ("msdscore.lab.studies.transfer:ood", "Own against other captions in domains not trained on."),
    "faithfulness": ("msdscore.lab.studies.faithfulness:faithfulness", "Do maps show what moves the score?"),
    "boxes": ("msdscore.lab.studies.boxes:boxes", "Do maps of words and captions lie on annotated boxes?"),
    "localisation": ("msdscore.lab.studies.localisation:localisation", "Is the changed word the least supported one?"),
    "form": ("msdscore.lab.studies.form:form", "What each part of the evidence form is worth; balance from 0 to 1."),
    "words": ("msdscore.lab.studies.words:words", "Do terms of words find what a caption invents?"),
    "doubt": ("msdscore.lab.studies.doubt:doubt", "How often have true and false captions a word in doubt?"),
    "references": ("msdscore.lab.studies.references:curve", "Agreement with people by the number of references."),
    "reference-words": (
        "msdscore.lab.studies.references:word_reliability",
        "Do p-values that rest on references mean what they say?",
    ),
    "missing": ("msdscore.lab.studies.localisation:missing", "Are words called missing confirmed by other captions?"),
    "suggestions": ("msdscore.lab.studies.localisation:suggestions", "Is the original word among the suggestions?"),
    "judge-msd": (
        "msdscore.lab.studies.combine:judge_msd",
        "Soft-MSD and a judge: where they disagree, and both together.",
    ),
    "behaviour": ("msdscore.lab.studies.behaviour:behaviour", "Small generated tests: what can a metric see?"),
    "gaming": ("msdscore.lab.studies.gaming:gaming", "How often do texts that are not captions beat a caption?"),
    "timing": ("msdscore.lab.studies.timing:timing", "Milliseconds per pair, by caption length."),
    "match": ("msdscore.lab.studies.match:match", "Reliability diagram of `match`."),
}


def run_study(name: str, study: "Study", **own: Any) -> "list[Table]":
    """The tables of a study; `own` are the options that it takes beside those of all studies."""
    function = load_study(name)
    known = list(inspect.signature(function).parameters)[1:]
    for option in own:
        if option not in known:
            names = ", ".join(f"--{other.replace('_', '-')}" for other in known) or "none of its own"
            raise ConfigError(f"study {name} has no option --{option.replace('_', '-')}; it has {names}")
    return function(study, **own)


def load_study(name: str) -> "Callable[..., list[Table]]":
    """The function behind a name."""
    if name not in STUDIES:
        raise unknown_name("study", name, STUDIES)
    module, _, function = STUDIES[name][0].partition(":")
    return getattr(import_module(module), function)
