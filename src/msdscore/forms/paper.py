"""The paper's form: coverage and support, two directed divergences between the mixtures of image and caption.

`core.divergence` has the formulas.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from msdscore.core.arrays import Array, Int, float64, to_numpy
from msdscore.core.divergence import Divergence, compare_mixtures, length_gate
from msdscore.core.embeddings import Embeddings, masked_mean
from msdscore.core.evidence import Bank
from msdscore.core.mixture import FitSettings, Init
from msdscore.errors import ConfigError, unknown_name
from msdscore.forms.base import (
    MOST_COMPONENTS,
    MOST_ITERATIONS,
    Column,
    Form,
    Gallery,
    Measurement,
    PointMask,
    PointTerms,
    Pooled,
    Role,
    ScoreStep,
    Sides,
    Unit,
    Values,
    check_count,
    check_number,
    check_share,
    exact,
    units_of,
)

Gate = Literal["length", "coverage", "support", "fixed"]
Calibration = Literal["none", "background"]
Pool = Literal["model", "mean"]
Measured = Measurement[Divergence]


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper(Form):
    """Settings of the paper's form, MSD-Score.

    Args:
        components: Mixture components of an image and of a caption.
        kappa: Concentration of the components.
        iterations: Iterations of EM.
        init: Start of EM, `spread` (farthest points first, deterministic) or `sample` (random, as in the paper).
        seed: Seed of random starts.
        alpha: Weight of the divergence against the similarity.
        gate: Weight of coverage against support: by `length`, only `coverage`, only `support`, or `fixed`.
        gate_center: Length in tokens at which both weigh the same.
        gate_width: Width of the transition in tokens.
        beta: Weight of coverage if the gate is `fixed`.
        temperature: Temperature of the uncertainty in Soft-MSD.
        calibration: `background` subtracts the mean over a bank of background images from every term.
        pool: Vectors whose cosine is the similarity: the encoder's pooled ones (`model`), or the normalised mean of its
            local ones (`mean`, as in the paper).

    >>> Paper.named("long").components
    (5, 3)
    >>> Paper(kappa=-1.0)
    Traceback (most recent call last):
    msdscore.errors.ConfigError: kappa must be positive, got -1.0
    """

    name: ClassVar[str] = "MSD"  # the paper's
    table: ClassVar[tuple[Column, ...]] = (
        Column(
            "coverage", "coverage", "divergence, nats: what is not mentioned", ".4f",
            lower_is_better=True, shown=5, logged=8,
        ),
        Column(
            "support", "support", "divergence, nats: what is invented", ".4f", lower_is_better=True, shown=6, logged=9
        ),
        Column("beta", "beta", "weight of coverage"),
        Column("divergence", "divergence", "coverage and support, weighted by beta", lower_is_better=True),
    )  # fmt: skip
    maps: ClassVar[tuple[Role, ...]] = ("support", "penalty", "omission")
    map_unit: ClassVar[str] = "nats"
    projection: ClassVar[str] = "influence"  # has coverage too, which token terms do not
    shown_settings: ClassVar[tuple[str, ...]] = ("alpha",)
    plotted: ClassVar[tuple[str, str]] = ("coverage", "support")
    galleries: ClassVar[tuple[Gallery, ...]] = (
        Gallery("Worst captions", "msd", "lowest MSD", "penalty"),
        Gallery(
            "Most omitted regions", "coverage", "purple: regions that the caption omits", "omission", per_image=True
        ),
    )

    components: tuple[int, int] = (3, 2)  # image, text: paper, short captions
    kappa: float = 20.0  # paper, concentration sweep
    iterations: int = 20  # paper, EM details
    init: Init = "spread"  # docs/lab/decisions.md: as good as random starts, without variance over seeds
    seed: int = 0  # of random starts
    alpha: float = 0.1  # paper, hyperparameters
    gate: Gate = "length"
    gate_center: float = 20.0  # L0, paper
    gate_width: float = 3.0  # tau_L, paper
    beta: float = 0.5  # weight of coverage if the gate is fixed
    temperature: float = 0.2  # xi, paper
    calibration: Calibration = "none"  # beyond the paper: terms minus their mean over a bank of background images
    pool: Pool = "model"

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
        choices = {"init": Init, "gate": Gate, "calibration": Calibration, "pool": Pool}
        for name, known in choices.items():
            if getattr(self, name) not in get_args(known):
                raise unknown_name(name, str(getattr(self, name)), get_args(known))

    @classmethod
    def named(cls, name: str, **changes: Any) -> "Paper":
        """Return the paper's form of that name, with some settings changed."""
        if name not in NAMED:
            raise unknown_name("form", name, NAMED)
        return NAMED[name].changed(**changes)

    @property
    def needs_bank(self) -> bool:
        """Whether terms are compared with a bank of background images."""
        return self.calibration != "none"

    @property
    def image_fit(self) -> FitSettings:
        """Fit settings of the mixtures of images."""
        return FitSettings(
            components=self.components[0],
            kappa=float(self.kappa),
            iterations=self.iterations,
            init=self.init,
            seed=self.seed,
        )

    @property
    def text_fit(self) -> FitSettings:
        """Fit settings of the mixtures of captions."""
        return replace(self.image_fit, components=self.components[1])

    def check_bank(self, bank: Bank, name: str) -> None:
        """Raise `ConfigError` for a bank without captions if coverage has a weight."""
        weighs_coverage = self.gate in ("length", "coverage") or (self.gate == "fixed" and self.beta > 0)
        if bank.texts is None and weighs_coverage:
            raise ConfigError(
                f"gate={self.gate} weighs coverage, but the bank {name} has no captions to calibrate it; "
                "set gate=support or calibration=none, or build a bank with: msdscore bank IMAGES --captions FILE"
            )

    def facts(self, bank: str | None = None) -> dict[str, str]:
        """Return everything that can change a score, abbreviated for signatures."""
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
        facts |= {} if self.pool == "model" else {"pool": self.pool}
        return facts | ({} if bank is None else {"cal": f"background,{bank}"})

    def betas(self, lengths: Int[Array, " captions"]) -> Values:
        """Return the weight of coverage for captions of these lengths in tokens."""
        wide = float64(lengths)
        if self.gate == "length":
            return length_gate(wide, center=self.gate_center, width=self.gate_width)
        return np.full_like(wide, {"coverage": 1.0, "support": 0.0, "fixed": self.beta}[self.gate])

    def pooled(self, batch: Embeddings) -> Pooled:
        """Return the encoder's pooled vectors, or the normalised mean of its local ones."""
        return batch.pooled if self.pool == "model" else masked_mean(batch.points, batch.mask)

    def lengths(self, texts: Embeddings) -> Int[Array, " captions"]:
        """Return L, the number of tokens of every caption, with those that have no vector."""
        return texts.token_counts

    def terms(self, sides: Sides, bank: Bank | None) -> Divergence:
        """Compute both divergences of every pair, one term per patch and per token."""
        mixtures = sides.fit(sides.images, self.image_fit), sides.fit(sides.texts, self.text_fit)
        background = (None, None) if bank is None else (bank.images, bank.texts)
        return compare_mixtures(sides.images, sides.texts, mixtures, sides.image_of, sides.text_of, background)

    def numbers(self, measured: Measured) -> dict[str, Values]:
        """Return similarity, coverage, support, the gate, divergence and MSD of every pair, in float64 on the CPU."""
        similarity = float64(measured.similarity)
        coverage, support = map(float64, (measured.terms.coverage, measured.terms.support))
        beta = self.betas(measured.lengths)
        divergence = beta * coverage + (1 - beta) * support
        return {
            "similarity": similarity,
            "coverage": coverage,
            "support": support,
            "beta": beta,
            "divergence": divergence,
            "msd": similarity - self.alpha * divergence,
        }

    def parts(self, score: Any) -> list[ScoreStep]:
        """Return the contributions of regions and words, unless they have no weight."""
        weight, beta = score.uncertainty * self.alpha, score.beta
        regions, words = -weight * beta * score.coverage, -weight * (1 - beta) * score.support
        parts: list[ScoreStep] = []
        if beta > 0:
            parts.append(("regions covered" if regions > 0 else "regions not mentioned", regions, "omission"))
        if beta < 1:
            parts.append(("words supported" if words > 0 else "words likely wrong", words, "penalty"))
        return [(name, size, "support" if size > 0 else role) for name, size, role in parts]

    def worst(self, measured: Measured, count: int) -> list[tuple[str, ...]]:
        """Return at most `count` content words of every caption, by the mean of their support terms, largest first.

        Without `units`, which take three times as long: shards have these words for every row.
        """
        worst = []
        for pair, terms in enumerate(measured.terms.support_terms.tolist()):
            words = self.words(measured, pair)
            means = [
                (-sum([terms[token] for token in word.tokens]) / len(word.tokens), number)
                for number, word in enumerate(words)
                if word.content and word.tokens
            ]
            worst.append(tuple([words[number].text for _, number in sorted(means)[:count]]))
        return worst

    def units(self, measured: Measured, pair: int) -> tuple[Unit, ...]:
        """Return the words and marks of a caption with the term and the gap of each; none for one without tokens."""
        words = self.words(measured, pair)
        terms = float64(measured.terms.support_terms[pair])
        size = len(measured.tokens[pair].spans)
        weight = self.alpha * (1 - float(self.betas(measured.lengths[pair : pair + 1])[0]))
        facts: dict[int, dict[str, Any]] = {}
        for number, word in enumerate(words):
            tokens = list(word.tokens)
            share = float(terms[tokens].sum())
            facts[number] = {"term": -weight * share, "gap": share * size / len(tokens)} if tokens else {"term": None}
        return units_of(words, facts)

    def point_terms(self, measured: Measured, pair: int, patches: PointMask, tokens: PointMask) -> PointTerms:
        """Return coverage terms of the visible patches and support terms of the tokens."""
        coverage, support = (
            float64(terms)[: len(mask)][to_numpy(mask)[: len(terms)]]
            for terms, mask in (
                (measured.terms.coverage_terms[pair], patches),
                (measured.terms.support_terms[pair], tokens),
            )
        )
        beta = float(self.betas(measured.lengths[pair : pair + 1])[0])
        return PointTerms(coverage, support, beta, np.full(len(support), 1 / max(len(support), 1)))


NAMED = {
    "short": Paper(),  # paper: captions of a sentence
    "long": Paper(components=(5, 3)),  # paper: captions of a paragraph
    # As in the text of the paper: random starts, mean-pooled vectors.
    "paper": Paper(init="sample", pool="mean"),
    "paper-long": Paper(components=(5, 3), init="sample", pool="mean"),
    "authors": Paper(components=(4, 2), init="sample", seed=42),  # the authors' SugarCrepe scripts
}
