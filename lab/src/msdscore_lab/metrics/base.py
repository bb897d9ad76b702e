"""Types of metrics: a metric maps cases of images and captions to one score per candidate caption."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Image

from msdscore.core.arrays import Array
from msdscore.encoders.base import Embeddings
from msdscore.errors import ConfigError
from msdscore.forms.base import Form
from msdscore.forms.registry import FORMS
from msdscore.intervals import Floats, Ints
from msdscore.scoring.references import ReferenceComparison

Need = Literal["encoder", "mixtures", "published", "images", "references", "pairs"]
Scope = Literal["part", "corpus"]
Compare = Callable[
    [Sequence[str], Sequence[Sequence[str]]], list[ReferenceComparison]
]  # captions, and references of each


@dataclass(frozen=True, slots=True)
class PublishedVectors:
    """Pooled vectors of the images of a batch as the encoder's publication defines them, and a function for texts."""

    images: Array  # rows as in `Vectors.images`
    embed: Callable[[Sequence[str]], Embeddings]


@dataclass(frozen=True, slots=True)
class Vectors:
    """Embeddings of the distinct images and captions of a batch, and the scores of their pairs.

    Images and texts that could not be read have no row; `readable` are the texts that have one, in row order. Pair k
    is row `pair_images[k]` of `images` with row `pair_texts[k]` of `texts`; `pair_of[c, j]` is the pair of
    case c and candidate j, −1 if there is none. `numbers` has columns over the pairs: similarity, and with mixtures
    coverage, support, beta, divergence and msd. `embed` encodes other texts, `compare` compares captions with lists
    of references. `background` has the means (items, components, dim) of the background images, if the scorer is
    calibrated. `published` returns vectors with the model's own pooling and captions cut at the context, whatever the
    settings of the scorer: metrics of others are computed from them.
    """

    images: Embeddings
    texts: Embeddings
    readable: tuple[str, ...]
    pair_images: Ints
    pair_texts: Ints
    pair_of: Ints
    numbers: Mapping[str, Floats]
    published: Callable[[], PublishedVectors]
    compare: Compare
    form: Form
    background: Array | None

    def spread(self, by_pair: Floats) -> Floats:
        """Return values of pairs as a matrix of cases and candidates, NaN without a pair."""
        padded = np.append(np.asarray(by_pair, dtype=np.float64), np.nan)
        matrix: Floats = padded[self.pair_of]
        return matrix

    def column(self, name: str) -> Floats:
        """Return one column of `numbers` as a matrix of cases and candidates."""
        if name not in self.numbers:
            forms = " or ".join(row.name for row in FORMS.rows().values() if name in row.form.columns)
            raise ConfigError(f"these settings have no {name}; choose --form {forms}")
        return self.spread(self.numbers[name])


@dataclass(frozen=True, slots=True)
class Cases:
    """Cases to score: each is an image with one or more candidate captions.

    `captions[c, j]` is the index in `texts` of candidate j of case c, `owner[c]` the index of its image in
    `images` (None: unreadable, or not needed). Equal `group` numbers are cases of one image. `control` marks cases
    with the image and references of another item. With `whole`, these are all cases of a benchmark.
    """

    ids: tuple[str, ...]
    texts: tuple[str, ...]
    captions: Ints
    images: tuple[Image | None, ...]
    owner: Ints
    group: Ints
    control: NDArray[np.bool_]
    references: tuple[tuple[str, ...], ...]
    vectors: Vectors | None = None
    whole: bool = True
    names: tuple[str, ...] = ()  # shortest unique names of the images

    def __len__(self) -> int:
        return len(self.ids)

    def candidates(self, case: int) -> tuple[str, ...]:
        """Return the candidate captions of one case."""
        return tuple(self.texts[index] for index in self.captions[case].tolist())

    def image(self, case: int) -> Image | None:
        """Return the decoded image of one case."""
        return self.images[int(self.owner[case])]

    def image_name(self, case: int) -> str:
        """Return the name of the image of one case; empty without names."""
        return self.names[int(self.owner[case])] if self.names else ""


@dataclass(frozen=True, slots=True)
class CaseScores:
    """Scores of all cases (cases, candidates), NaN if a score could not be computed."""

    values: Floats


ScoreCases = Callable[[Cases], CaseScores]


@dataclass(frozen=True, slots=True)
class Loaded:
    """Result of a metric's loader: the function, and `key:value` choices for the signature."""

    score: ScoreCases
    choices: str = ""
    lower_is_better: bool | None = None  # overrides the row; None: as in the row
    judged: bool = False  # in addition to the row


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRow:
    """Registry row of one metric: its loader, its requirements, and its description.

    `loader` is `"module:callable"`, called as `loader(argument, **options)` and returning `Loaded`. `judged`
    metrics decide ties themselves: no tie threshold is applied to their scores.
    """

    name: str
    loader: str
    title: str
    needs: tuple[Need, ...] = ()
    higher_is_better: bool = True
    argument: str = ""  # meaning of ARGUMENT in NAME:ARGUMENT; empty: it takes none
    extra: str = ""  # extra of msdscore-lab, or of msdscore for encoders
    options: tuple[str, ...] = ()
    scope: Scope = "part"
    judged: bool = False
    answer: str = ""  # what its model must answer; a run in which no answer has it fails
    citation: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Metric:
    """A loaded metric; `label` is the requested name and the name of its columns."""

    label: str
    row: MetricRow
    score: ScoreCases
    choices: str
    higher_is_better: bool
    judged: bool = False

    def needs(self, need: Need) -> bool:
        """Return whether the metric has this requirement."""
        return need in self.row.needs
