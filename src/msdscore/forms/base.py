"""The base class of forms, and the types that forms share with the modules that use them.

A form is one way of scoring: its settings, terms, columns and words, and what explanations and reports show of them.
Each form is one module, of this package or of another one, and a row of `registry`; other modules use it through
`Form`.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, fields, replace
from functools import lru_cache
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from msdscore.core.arrays import Array, Bool, Float, Int, fetching, is_array, take_rows
from msdscore.core.divergence import Fit, fit_all, total
from msdscore.core.embeddings import Embeddings, PatchLayout, TokenLayout
from msdscore.core.evidence import ZERO, Bank
from msdscore.core.mixture import FitSettings, Mixture
from msdscore.errors import ConfigError, unknown_name
from msdscore.text.warnings import NOT_ENGLISH
from msdscore.text.words import PERSONS, Word, segment, stem

Floats = npt.NDArray[np.float64]
Values = Float[np.ndarray, " pairs"]
PointMask = Bool[np.ndarray, " points"]
Pooled = Float[Array, "batch pooled_dim"]
Role = Literal["support", "penalty", "omission", "leaning"]  # of a colour
ScoreStep = tuple[str, float, Role]  # a step from the similarity to the score: its name, its size and its colour

LIKELY_WRONG, CHECK = "likely wrong", "check"  # findings about words in doubt
UNREADABLE = frozenset(("match", "invented"))  # numbers that a caption in another language does not have
EVEN = 0.5  # probability of a word below which it is more probably false than true
UNRELIABLE = "this encoder cannot tell whether it is true"
LARGEST = 1e6  # a larger number overflows a score
SMALLEST = 1e-6  # minimum of a number used as a divisor
MOST_COMPONENTS = 1024  # of a mixture; images and captions have fewer points
MOST_ITERATIONS = 10_000  # of EM, which converges in tens


class Column(NamedTuple):
    """One column: its name in files, its heading and number format in tables, and its meaning in a few words.

    `kind` is its type in files. `shown` and `logged` are its positions, from 1 on, in tables of scores and in the logs
    of training and evaluation; 0 excludes it.
    """

    name: str
    heading: str
    meaning: str
    format: str = ""
    kind: Literal["number", "count", "text", "list"] = "number"
    lower_is_better: bool = False
    shown: int = 0
    logged: int = 0


class Gallery(NamedTuple):
    """Rows of a report with the worst values of a column, once `per_image`; `role` is the map that is drawn, if any."""

    title: str
    column: str
    note: str
    role: Role | None = None
    per_image: bool = False


@dataclass(frozen=True, slots=True)
class Sides:
    """Embedded images and captions, and the pairs to measure.

    Pair p is row `rows[0][p]` of `images` with row `rows[1][p]` of `texts`; `image_of` and `text_of` are the same
    numbers on the device. `captions` has one text per row of `texts`. `fit` fits mixtures; it may cache them.
    """

    images: Embeddings
    texts: Embeddings
    rows: tuple[Sequence[int], Sequence[int]]
    captions: Sequence[str]
    image_of: Int[Array, " pairs"]
    text_of: Int[Array, " pairs"]
    fit: Fit = fit_all

    @property
    def layouts(self) -> tuple[TokenLayout, ...]:
        """The layout of every caption."""
        return tuple(layout for layout in self.texts.layout if isinstance(layout, TokenLayout))


class Terms(Protocol):
    """Measured terms of pairs, whose sums are the numbers of a form: a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def image_mixtures(self) -> Mixture:
        """The mixtures of the images, one per row."""


T = TypeVar("T", bound=Terms, covariant=True)


@dataclass(frozen=True, slots=True)
class Measurement(Generic[T]):
    """Similarity and terms of pairs of an image and a caption.

    `image_of` and `text_of` are the rows of each pair's image and caption in the batches that were compared; `patches`
    has one layout per image, `tokens`, `captions` and `lengths` have one entry per pair. `terms` are those of the form.
    """

    similarity: Float[Array, " pairs"]
    lengths: Int[Array, " pairs"]
    image_of: Int[Array, " pairs"]
    text_of: Int[Array, " pairs"]
    patches: tuple[PatchLayout, ...]
    tokens: tuple[TokenLayout, ...]
    captions: tuple[str, ...]
    terms: T

    def __len__(self) -> int:
        return len(self.tokens)

    def fetching(self) -> "Callable[[], Measurement[T]]":
        """Start copying all but the mixtures to the host; the returned function waits once and returns NumPy arrays."""
        own, local = _arrays(self), _arrays(self.terms)
        fetch = fetching(*own.values(), *local.values())

        def wait() -> Measurement[T]:
            arrays: tuple[Any, ...] = fetch()
            terms = replace(self.terms, **dict(zip(local, arrays[len(own) :], strict=True)))
            return replace(self, **dict(zip(own, arrays, strict=False)), terms=terms)

        return wait


def _arrays(data: Any) -> dict[str, Array]:
    """Return the fields of a dataclass that are arrays of a library other than NumPy, whose arrays are on the host."""
    values = {field.name: getattr(data, field.name) for field in fields(data)}
    return {name: value for name, value in values.items() if is_array(value) and not isinstance(value, np.ndarray)}


@dataclass(frozen=True, slots=True)
class Unit:
    """A word, mark or phrase of the caption, with its effect on the score.

    `term` is its contribution to MSD: above zero it raises the score. In the evidence form a judged word has `evidence`
    in nats, a `p_value` (the fraction of true words of its kind with evidence this low) and the `probability` that it
    is true if nine words in ten are; a word below 0.1 has a term below zero. `penalty` is its share of the caption's.
    A word that is not `judged`, because the encoder cannot judge whether it is true, because it is negated, or because
    it is repeated, has none of these. `gap` is for the paper's form: how far the image does not support the word, in
    nats. `references` is the number of references that say or mean a content word; the p-value then depends on image
    and references.
    """

    text: str
    start: int
    end: int
    kind: str  # word or mark
    content: bool
    tokens: tuple[int, ...]
    term: float | None = None
    gap: float | None = None
    evidence: float | None = None
    p_value: float | None = None
    probability: float | None = None
    penalty: float | None = None
    judged: bool = True
    reason: str = ""  # why it is not judged
    references: int | None = None


def finding(word: str, p_value: float | None, probability: float | None, doubt: float = ZERO) -> str:
    """Return what is said about a word: `likely wrong`, `check`, or nothing.

    A word is likely wrong if few true words have so little support (a p-value below `doubt`) and it is more probably
    false than true; if only the first holds, it is worth a check. Words for persons are at most that: man and woman
    are confused too often (docs/trust.md).

    >>> finding("dog", 0.05, 0.4), finding("dog", 0.05, 0.6), finding("dog", 0.05, 0.4, doubt=0.01)
    ('likely wrong', 'check', '')
    """
    if p_value is None or p_value >= doubt:
        return ""
    is_false = probability is not None and probability < EVEN
    return LIKELY_WRONG if is_false and stem(word.casefold()) not in PERSONS else CHECK


def rank_key(unit: Unit) -> float | None:
    """Return how little the image supports a word, higher for less support; None if it is not judged."""
    if unit.p_value is None or unit.evidence is None:
        return unit.gap
    return -unit.p_value - 1e-6 * unit.evidence  # words below all quantiles are ordered by their evidence


def ranked(units: Iterable[Unit]) -> tuple[Unit, ...]:
    """Return judged units, the least supported first; equal ones in reading order."""
    known = [(value, unit) for unit in units if (value := rank_key(unit)) is not None]
    return tuple(unit for _, unit in sorted(known, key=lambda pair: -pair[0]))


def units_of(words: Sequence[Word], facts: Mapping[int, Mapping[str, Any]]) -> tuple[Unit, ...]:
    """Return units of the words and marks of a caption; those without `facts`, by their position, were not judged."""
    units = []
    for number, word in enumerate(words):
        reasons = (
            (word.kind == "mark", ""),
            (not word.content, "not a content word"),
            (word.negated, "negated"),
            (not word.tokens, "this encoder does not read it"),
            (not word.new, "repeated word"),
            (True, UNRELIABLE),
        )
        reason = next(reason for applies, reason in reasons if applies)
        described = (word.text, word.start, word.end, word.kind, word.content, word.tokens)
        units.append(Unit(*described, **facts.get(number) or {"judged": False, "reason": reason}))
    return tuple(units)


@dataclass(frozen=True, slots=True)
class PointTerms:
    """The terms of one pair by patch and by token, for the maps of an explanation."""

    coverage: Floats  # one per visible patch, adding up to the coverage divergence
    support: Floats  # one per token, adding up to the support divergence; under evidence, minus its contribution to MSD
    beta: float  # the weight of coverage
    shares: Floats  # one per token, adding up to 1: its weight among the tokens


class Form(ABC):
    """One way of scoring; a subclass is a frozen dataclass of settings with these methods.

    `measure` compares pairs, `numbers` adds the terms up to the columns of the form, `units` are the terms by word.
    """

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    name: ClassVar[str]  # of the score; its signatures begin with it in lower case
    table: ClassVar[tuple[Column, ...]] = ()  # columns that it adds to those of every score, in output order
    compounds: ClassVar[bool] = True  # whether the parts of a hyphenated word are one word
    has_p_values: ClassVar[bool] = False  # of words; without, explanations show their gaps

    # What explanations show.
    maps: ClassVar[tuple[Role, ...]] = ("support",)
    map_unit: ClassVar[str] = "MSD"  # of carried terms
    projection: ClassVar[str] = "carried"  # how terms become maps unless chosen: see `explain.projections`
    shown_settings: ClassVar[tuple[str, ...]] = ()

    # What reports show: two columns against each other, and the worst rows.
    plotted: ClassVar[tuple[str, str]] = ("similarity", "msd")
    galleries: ClassVar[tuple[Gallery, ...]] = (Gallery("Worst captions", "msd", "lowest score", "penalty"),)

    @property
    @abstractmethod
    def temperature(self) -> float:
        """The temperature of Soft-MSD."""

    @property
    @abstractmethod
    def image_fit(self) -> FitSettings:
        """Fit settings of the mixtures of images."""

    @property
    def text_fit(self) -> FitSettings | None:
        """Fit settings of the mixtures of captions; None for a form that has none."""
        return None

    @property
    def needs_bank(self) -> bool:
        """Whether terms are compared with a bank of background images."""
        return False

    def check_bank(self, bank: Bank, name: str) -> None:
        """Raise `ConfigError` for a bank that these settings cannot use."""
        return

    @classmethod
    def of_bank(cls, bank: Bank) -> "Form | None":
        """Return the form that a bank was built for; None for a bank that fits any form."""
        return None

    @abstractmethod
    def facts(self, bank: str | None = None) -> dict[str, str]:
        """Return everything that can change a score, abbreviated for signatures; `bank` is the name of the bank."""

    @abstractmethod
    def terms(self, sides: Sides, bank: Bank | None) -> Terms:
        """Compute the terms of pairs; the bank is on the device of the vectors."""

    @abstractmethod
    def numbers(self, measured: Measurement[Any]) -> dict[str, Values]:
        """Return similarity, the columns, MSD and perhaps match of every pair, in float64, from fetched terms."""

    def words(self, measured: Measurement[Any], pair: int) -> Sequence[Word]:
        """Return the words and marks of the caption of a pair."""
        return segment(measured.captions[pair], measured.tokens[pair].spans, compounds=self.compounds)

    def worst(self, measured: Measurement[Any], count: int) -> list[tuple[str, ...]]:
        """Return at most `count` content words of every pair's caption, the least supported first."""
        pairs = (self.units(measured, pair) for pair in range(len(measured)))
        return [tuple(unit.text for unit in ranked(unit for unit in units if unit.content)[:count]) for units in pairs]

    def doubtful(self, measured: Measurement[Any]) -> list[dict[str, str]] | None:
        """Return the words in doubt of every pair's caption with their `finding`, the least supported first.

        None for a form whose words have no p-values.
        """
        return None

    @abstractmethod
    def units(self, measured: Measurement[Any], pair: int) -> tuple[Unit, ...]:
        """Return the words and marks of the caption of a pair, with their effect on the score."""

    @abstractmethod
    def point_terms(self, measured: Measurement[Any], pair: int, patches: PointMask, tokens: PointMask) -> PointTerms:
        """Return the terms of a pair by patch and by token; the masks are True for real patches and tokens."""

    def parts(self, score: Any) -> list[ScoreStep]:
        """Return the steps from the similarity of a score to its Soft-MSD, in order."""
        size = float(score.soft_msd - score.similarity)
        return [("words", size, "support" if size > 0 else "penalty")]

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the numbers that the form adds to those of every score, in output order."""
        return tuple(column.name for column in self.table)

    def pooled(self, batch: Embeddings) -> Pooled:
        """Return the vectors of images or captions whose cosine is the similarity."""
        return batch.pooled

    def lengths(self, texts: Embeddings) -> Int[Array, " captions"]:
        """Return the length of every caption: the number of its tokens with a vector."""
        return texts.lengths

    def warnings(self, measured: Measurement[Any], pair: int) -> tuple[str, ...]:
        """Return warnings about the caption of a pair, besides those of the encoder."""
        return ()

    def changed(self, **changes: Any) -> Self:
        """Return a copy with some settings changed; raise `UnknownNameError` for an unknown one."""
        known = [field.name for field in fields(self)]
        for name in changes:
            if name not in known:
                raise unknown_name("setting", name, known)
        return replace(self, **changes)

    def measure(self, sides: Sides, bank: Bank | None = None) -> Measurement[Any]:
        """Compute similarity and terms of pairs, as arrays of the library and on the device of the vectors.

        The bank must be on the same device.
        """
        images, texts = self.pooled(sides.images), self.pooled(sides.texts)
        layouts, (_, text_rows) = sides.layouts, sides.rows
        return Measurement(
            total(take_rows(images, sides.image_of) * take_rows(texts, sides.text_of)),
            take_rows(self.lengths(sides.texts), sides.text_of),
            sides.image_of,
            sides.text_of,
            tuple(layout for layout in sides.images.layout if isinstance(layout, PatchLayout)),
            tuple(layouts[row] for row in text_rows),
            tuple(sides.captions[row] for row in text_rows),
            self.terms(sides, bank),
        )


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers of one scored caption that depend only on its image.

    `values` has similarity, msd, length, windows, the columns of the form, and match if it is known. `warnings` are
    remarks on the caption and the image, `doubtful` its words in doubt with what is said about each (None if words are
    not judged), `worst` its least supported words if they were requested.

    >>> Numbers({"msd": 0.5}).values["msd"]
    0.5
    """

    values: Mapping[str, Any]
    warnings: tuple[str, ...] = ()
    worst: tuple[str, ...] = ()
    doubtful: Mapping[str, str] | None = None


def numbers_of(measured: Measurement[Any], form: Form, *, worst: int = 0) -> tuple[Numbers, ...]:
    """Return the numbers of every pair, with up to `worst` least supported words of its caption."""
    columns = {name: values.tolist() for name, values in form.numbers(measured).items()}
    columns["length"] = measured.lengths.tolist()
    columns["windows"] = [layout.windows for layout in measured.tokens]
    words = form.worst(measured, worst) if worst else [()] * len(measured)
    doubtful: Sequence[Mapping[str, str] | None] = form.doubtful(measured) or [None] * len(measured)
    rows, names = zip(*columns.values(), strict=True), tuple(columns)
    scored = []
    for pair, (row, image, tokens) in enumerate(zip(rows, measured.image_of.tolist(), measured.tokens, strict=True)):
        cut = (f"cut: {tokens.cut} tokens at the end were not read",) if tokens.cut else ()
        warnings = (*tokens.warnings, *cut, *form.warnings(measured, pair), *measured.patches[image].warnings)
        values = dict(zip(names, row, strict=True))
        if NOT_ENGLISH in tokens.warnings:
            scored.append(Numbers(values | dict.fromkeys(values.keys() & UNREADABLE), warnings))
        else:
            scored.append(Numbers(values, warnings, words[pair], doubtful[pair]))
    return tuple(scored)


@lru_cache(maxsize=64)
def match_settings(form: Form) -> str:
    """Return the settings that determine the scale of a score, in one line: a `Match` is valid for them only."""
    return "|".join(f"{name}:{value}" for name, value in form.facts().items() if name != "xi")


def check_number(name: str, value: Any, *, positive: bool = False) -> None:
    """Raise `ConfigError` unless the value is finite, not negative, and in a range in which scores do not overflow."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"{name} must be a finite number, got {value!r}")
    if value > LARGEST:
        raise ConfigError(f"{name} must be at most {LARGEST:g}, got {value!r}")
    if positive and not value > 0:
        raise ConfigError(f"{name} must be positive, got {value}")
    if positive and value < SMALLEST:
        raise ConfigError(f"{name} must be at least {SMALLEST:g}, got {value}")
    if value < 0:
        raise ConfigError(f"{name} must not be negative, got {value}")


def check_share(name: str, value: Any) -> None:
    """Raise `ConfigError` unless the value is between 0 and 1."""
    check_number(name, value)
    if value > 1:
        raise ConfigError(f"{name} must be between 0 and 1, got {value}")


def check_count(name: str, value: Any, *, least: int = 1, most: int | None = None) -> None:
    """Raise `ConfigError` unless the value is an integer from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} must be a whole number, got {value!r}")
    if value < least:
        raise ConfigError(f"{name} must be at least {least}, got {value}")
    if most is not None and value > most:
        raise ConfigError(f"{name} must be at most {most}, got {value}")


def exact(number: int | float) -> str:
    """Shortest decimal representation that identifies a number.

    >>> exact(20.0), exact(0.1), exact(0.10000001), exact(1 / 3)
    ('20', '0.1', '0.10000001', '0.3333333333333333')
    """
    return repr(float(number)).removesuffix(".0")
