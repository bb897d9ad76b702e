"""Scores that print well, compare, and leave as rows, Arrow or pandas."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import TYPE_CHECKING, Any, overload

from msdscore.errors import require
from msdscore.scoring.measurement import Numbers

if TYPE_CHECKING:
    import pandas
    import pyarrow

# What scoring adds to a row, in this order.
COLUMNS = (
    "similarity",
    "coverage",
    "support",
    "beta",
    "divergence",
    "uncertainty",
    "length",
    "windows",
    "msd",
    "soft_msd",
    "error",
)


@dataclass(frozen=True, slots=True)
class Score:
    """The score of one caption; larger `msd` is better, larger `coverage` and `support` divergences are worse.

    `soft_msd` is gated by the uncertainty of the candidate set of `candidates` captions; for a caption scored alone
    it equals `msd`.
    """

    caption: str
    msd: float
    soft_msd: float
    similarity: float
    coverage: float
    support: float
    beta: float
    divergence: float
    uncertainty: float
    length: int
    windows: int
    candidates: int
    signature: str

    def __str__(self) -> str:
        alone = "alone" if self.candidates == 1 else f"among {self.candidates}"
        return (
            f"MSD {self.msd:+.4f}  Soft-MSD {self.soft_msd:+.4f} ({alone})  similarity {self.similarity:+.4f}  "
            f"coverage {self.coverage:.4f}  support {self.support:.4f}"
        )

    def _repr_html_(self) -> str:
        return f"<table>{_html_head()}{_html_row(self)}</table><small><code>{escape(self.signature)}</code></small>"

    def row(self) -> dict[str, Any]:
        """The added columns of a scored row."""
        values = asdict(self)
        return {name: values.get(name) for name in COLUMNS}


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores of a candidate set, in the order the captions were given."""

    captions: tuple[str, ...]
    numbers: tuple[Numbers, ...]
    uncertainty: tuple[float, ...]
    soft_msd: tuple[float, ...]
    signature: str

    def __len__(self) -> int:
        return len(self.captions)

    @overload
    def __getitem__(self, index: int) -> Score: ...

    @overload
    def __getitem__(self, index: slice) -> list[Score]: ...

    def __getitem__(self, index: int | slice) -> Score | list[Score]:
        if isinstance(index, slice):
            return [self[place] for place in range(len(self))[index]]
        return Score(
            caption=self.captions[index],
            soft_msd=self.soft_msd[index],
            uncertainty=self.uncertainty[index],
            candidates=len(self),
            signature=self.signature,
            **asdict(self.numbers[index]),
        )

    def __iter__(self) -> Iterator[Score]:
        return (self[index] for index in range(len(self)))

    @property
    def ranking(self) -> tuple[int, ...]:
        """Numbers of the captions from best to worst Soft-MSD; equal scores keep their order."""
        return tuple(sorted(range(len(self)), key=lambda index: -self.soft_msd[index]))

    @property
    def best(self) -> str:
        """The caption with the highest Soft-MSD."""
        return self.captions[self.ranking[0]]

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary a caption, with the caption and the added columns."""
        return [{"caption": score.caption, **score.row()} for score in self]

    def to_arrow(self) -> "pyarrow.Table":
        """An Arrow table whose schema carries the signature."""
        pyarrow = require("pyarrow", extra="all")
        names = ("caption", *COLUMNS)
        columns = {name: [row[name] for row in self.rows()] for name in names}
        columns["error"] = pyarrow.array(columns["error"], pyarrow.string())
        return pyarrow.table(columns).replace_schema_metadata({"msdscore": self.signature})

    def to_pandas(self) -> "pandas.DataFrame":
        """A pandas table whose `attrs` carry the signature."""
        frame = require("pandas", extra="pandas").DataFrame(self.rows())
        frame.attrs["signature"] = self.signature
        return frame

    def __str__(self) -> str:
        lines = [f"{'':>2} {'Soft-MSD':>9} {'MSD':>9} {'similarity':>10} {'coverage':>9} {'support':>8}  caption"]
        lines += [
            f"{place:>2} {s.soft_msd:>+9.4f} {s.msd:>+9.4f} {s.similarity:>+10.4f} {s.coverage:>9.4f} {s.support:>8.4f}"
            f"  {s.caption}"
            for place, s in enumerate(self._ranked(), start=1)
        ]
        return "\n".join([*lines, self.signature])

    def _repr_html_(self) -> str:
        cells = "".join(_html_row(score) for score in self._ranked())
        return f"<table>{_html_head()}{cells}</table><small><code>{escape(self.signature)}</code></small>"

    def _ranked(self) -> Sequence[Score]:
        return [self[index] for index in self.ranking]


def _html_head() -> str:
    names = ("soft_msd", "msd", "similarity", "coverage", "support", "caption")
    return f"<tr>{''.join(f'<th>{name}</th>' for name in names)}</tr>"


def _html_row(score: Score) -> str:
    values = (score.soft_msd, score.msd, score.similarity, score.coverage, score.support)
    cells = "".join(f"<td style='text-align:right'>{value:.4f}</td>" for value in values)
    return f"<tr>{cells}<td style='text-align:left'>{escape(score.caption)}</td></tr>"
