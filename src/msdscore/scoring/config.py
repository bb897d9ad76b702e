"""The settings of the score: the paper's form, the evidence form, their presets, and the identity of a scorer."""

import warnings
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal, get_args

from msdscore.core.evidence import Evidence
from msdscore.core.mixture import FitSettings, Kind
from msdscore.core.settings import (
    MOST_COMPONENTS,
    MOST_ITERATIONS,
    check_choice,
    check_count,
    check_number,
    check_share,
    exact,
    replace_known,
)
from msdscore.errors import ConfigError, unknown_name
from msdscore.version import __version__

Gate = Literal["length", "coverage", "support", "fixed"]
Init = Literal["sample", "spread"]
Calibration = Literal["none", "background"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """Settings of the paper's form: what turns both divergences into MSD and Soft-MSD.

    >>> Paper.preset("long").components
    (5, 3)
    >>> Paper(kappa=-1.0)
    Traceback (most recent call last):
    msdscore.errors.ConfigError: kappa must be positive, got -1.0
    """

    columns: ClassVar[tuple[str, ...]] = ("coverage", "support", "beta", "divergence")

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
    calibration: Calibration = "none"  # beyond the paper: terms less their mean over a bank of background images
    mixture: Kind = "vmf"  # the paper's; the others are its ablations, in float64, variances start at 1/kappa

    def __post_init__(self) -> None:
        counts = self.components if isinstance(self.components, tuple | list) else ()
        if len(counts) != 2 or not all(isinstance(n, int) and not isinstance(n, bool) and n >= 1 for n in counts):
            raise ConfigError(f"components must be two counts of at least 1 (image, text), got {self.components}")
        for side, count in zip(("image", "text"), counts, strict=True):
            check_count(f"components ({side})", count, most=MOST_COMPONENTS)
        object.__setattr__(self, "components", tuple(counts))
        check_count("iterations", self.iterations, most=MOST_ITERATIONS)
        check_count("seed", self.seed, least=0)
        for name in ("alpha", "gate_center"):
            check_number(name, getattr(self, name))
        for name in ("kappa", "gate_width", "temperature"):
            check_number(name, getattr(self, name), positive=True)
        check_share("beta", self.beta)
        choices = {"init": Init, "gate": Gate, "calibration": Calibration, "mixture": Kind}
        for name, known in choices.items():
            check_choice(name, getattr(self, name), get_args(known))
        if self.mixture != "vmf" and self.calibration != "none":
            raise ConfigError(f"mixture={self.mixture} has no calibrated form; set calibration=none")

    @property
    def weighs_coverage(self) -> bool:
        """Whether any caption's divergence contains coverage.

        >>> Paper().weighs_coverage, Paper(gate="support").weighs_coverage
        (True, False)
        """
        return self.gate in ("length", "coverage") or (self.gate == "fixed" and self.beta > 0)

    @property
    def needs_bank(self) -> bool:
        """Whether terms are held against a bank of background images."""
        return self.calibration != "none"

    @property
    def image_fit(self) -> FitSettings:
        """How the mixtures of images are fitted."""
        return FitSettings(
            components=self.components[0], kappa=self.kappa, iterations=self.iterations, init=self.init, seed=self.seed,
            mixture=self.mixture,
        )  # fmt: skip

    @property
    def text_fit(self) -> FitSettings:
        """How the mixtures of captions are fitted."""
        return replace(self.image_fit, components=self.components[1])

    def facts(self) -> dict[str, str]:
        """Everything that can change a score, in the short form of signatures."""
        gates = {
            "length": f"length,{exact(self.gate_center)},{exact(self.gate_width)}",
            "fixed": f"fixed,{exact(self.beta)}",
        }
        facts = {
            "k": f"{self.components[0]},{self.components[1]}",
            "kappa": exact(self.kappa),
            "it": str(self.iterations),
            "init": f"sample,{self.seed}" if self.init == "sample" else self.init,
            "a": exact(self.alpha),
            "gate": gates.get(self.gate, self.gate),
            "xi": exact(self.temperature),
        }
        return facts | ({} if self.mixture == "vmf" else {"mix": self.mixture})

    @classmethod
    def preset(cls, name: str, **changes: Any) -> "Form":
        """A named set of settings, with changes on top."""
        return preset(name, **changes)

    def changed(self, **changes: Any) -> "Form":
        """A copy with some settings changed; unknown ones are refused with the known names."""
        return changed(self, changes)


Form = Paper | Evidence
MSDConfig = Paper  # its name before there were two forms


def preset(name: str, **changes: Any) -> Form:
    """A named set of settings, with changes on top.

    >>> preset("evidence", balance=0.25).balance
    0.25
    """
    if name not in PRESETS:
        raise unknown_name("preset", name, PRESETS)
    return changed(PRESETS[name], changes)


def changed(form: Form, changes: dict[str, Any]) -> Form:
    """A form with some settings changed; unknown ones are refused with the known names."""
    if changes.get("calibration") == "evidence":
        warnings.warn("calibration=evidence is the preset 'evidence' now", DeprecationWarning, stacklevel=2)
        form = form if isinstance(form, Evidence) else Evidence()
        changes = {name: value for name, value in changes.items() if name != "calibration"}
    return replace_known(form, changes)


PRESETS: dict[str, Form] = {
    "short": Paper(),  # paper: captions of a sentence
    "long": Paper(components=(5, 3)),  # paper: captions of a paragraph
    "authors": Paper(components=(4, 2), init="sample", seed=42),  # the authors' SugarCrepe scripts
    "evidence": Evidence(),  # beyond the paper: precision and information; needs a bank built from captioned images
}


@dataclass(frozen=True, slots=True)
class Identity:
    """Encoder (by its signature), form and bank of a scorer; equal identities and inputs give equal scores.

    >>> Identity("toy@1", Paper()).signature.split("|v:")[0]
    'msd|enc:toy@1|k:3,2|kappa:20|it:20|init:spread|a:0.1|gate:length,20,3|xi:0.2'
    """

    encoder: str
    form: Form
    bank: str | None = None  # by its name, which holds a hash of its content

    @property
    def signature(self) -> str:
        """One line of `key:value` facts joined by bars, which every number carries."""
        facts = {"enc": self.encoder} | self.form.facts()
        if self.bank is not None:
            facts |= {"cal": f"background,{self.bank}"} if isinstance(self.form, Paper) else {"bank": self.bank}
        return "|".join(["msd", *(f"{name}:{value}" for name, value in facts.items()), f"v:{__version__}"])

    def manifest(self) -> dict[str, Any]:
        """The same as plain values, setting by setting, so that a run can say what differs."""
        settings = {
            name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self.form).items()
        }
        return {"encoder": self.encoder, "settings": settings, "bank": self.bank}


def facts_of(signature: str) -> dict[str, str]:
    """The facts of a signature, which is all that a file of scores says of its scorer.

    >>> facts_of("msd|enc:toy@1|xi:0.2|v:1.0")
    {'enc': 'toy@1', 'xi': '0.2', 'v': '1.0'}
    """
    return dict(fact.partition(":")[::2] for fact in signature.split("|")[1:])
