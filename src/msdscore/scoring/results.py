"""Scores of many captions that print well, compare, and leave as arrays, rows, Arrow or pandas."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from msdscore.errors import ConfigError, RowError, require
from msdscore.scoring.config import Form
from msdscore.scoring.measurement import NUMBERS, Numbers, soften
from msdscore.scoring.score import OPTIONAL, SHOWN, Score, cell, columns_of, html_table, known, shown

if TYPE_CHECKING:
    import pandas
    import pyarrow

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_COUNTS = ("length", "windows")


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """Scores of captions as arrays, in the order the captions were given; see `Score` for which direction is better.

    `columns` holds every number by name, NaN (counts: 0) where `errors` has a reason. `candidates` is the size of each
    caption's candidate set. A slice gives `Scores`, a number gives one `Score`; `a + b` joins two that were made with
    the same signature.

    >>> from PIL import Image
    >>> from msdscore import Scorer
    >>> scores = Scorer("toy").rank(Image.new("RGB", (64, 64), "red"), ["a blue square", "a red square"])
    >>> bool(scores.msd[1] > scores.msd[0]), len(scores[1:])
    (True, 1)
    """

    captions: tuple[str, ...]
    columns: Mapping[str, npt.NDArray[Any]]
    candidates: Ints
    warnings: tuple[tuple[str, ...], ...]
    errors: tuple[str | None, ...]
    signature: str

    @classmethod
    def of(
        cls,
        captions: Sequence[str],
        scored: Sequence[Numbers | RowError],
        sets: Sequence[int],
        form: Form,
        signature: str,
    ) -> "Scores":
        """Scores from numbers or reasons; captions with equal numbers in `sets` are one candidate set."""
        good = [place for place, one in enumerate(scored) if isinstance(one, Numbers)]
        rows = [one for one in scored if isinstance(one, Numbers)]
        columns = {name: _column(name, rows, good, len(scored)) for name in NUMBERS}
        chosen = [sets[place] for place in good]
        softened = soften([row.similarity for row in rows], [row.msd for row in rows], chosen, form)
        for name, values in zip(("uncertainty", "soft_msd"), softened, strict=True):
            columns[name] = np.full(len(scored), np.nan)
            columns[name][good] = values
        _, inverse, counts = np.unique(np.asarray(sets, dtype=np.int64), return_inverse=True, return_counts=True)
        errors = tuple(str(one) if isinstance(one, RowError) else None for one in scored)
        warnings = tuple(one.warnings if isinstance(one, Numbers) else () for one in scored)
        return cls(tuple(captions), columns, counts[inverse], warnings, errors, signature)

    @property
    def msd(self) -> Floats:
        """MSD of every caption; higher is better."""
        return self.columns["msd"]

    @property
    def soft_msd(self) -> Floats:
        """Soft-MSD of every caption within its candidate set; higher is better."""
        return self.columns["soft_msd"]

    @property
    def similarity(self) -> Floats:
        """Cosine of the pooled vectors; higher is better."""
        return self.columns["similarity"]

    @property
    def precision(self) -> Floats:
        """Whether what each caption says is true of its image, in nats; higher is better. NaN: not of this form."""
        return self.columns["precision"]

    @property
    def information(self) -> Floats:
        """How much each caption tells about its image; higher is better. NaN: not of this form."""
        return self.columns["information"]

    @property
    def coverage(self) -> Floats:
        """What each caption omits, in nats; lower is better. NaN: not of this form."""
        return self.columns["coverage"]

    @property
    def support(self) -> Floats:
        """What each caption says and the image does not show, in nats; lower is better. NaN: not of this form."""
        return self.columns["support"]

    @property
    def match(self) -> Floats:
        """The probability that each caption belongs to its image; NaN where it is not known."""
        return self.columns["match"]

    @property
    def failed(self) -> int:
        """How many captions could not be scored."""
        return sum(error is not None for error in self.errors)

    def __len__(self) -> int:
        return len(self.captions)

    @overload
    def __getitem__(self, index: int) -> Score: ...

    @overload
    def __getitem__(self, index: slice) -> "Scores": ...

    def __getitem__(self, index: int | slice) -> "Score | Scores":
        if isinstance(index, slice):
            columns = {name: values[index] for name, values in self.columns.items()}
            texts = self.captions[index], self.warnings[index], self.errors[index]
            return Scores(texts[0], columns, self.candidates[index], *texts[1:], self.signature)
        return Score(
            caption=self.captions[index],
            candidates=int(self.candidates[index]),
            signature=self.signature,
            warnings=self.warnings[index],
            error=self.errors[index],
            # What the form does not have, or the bank cannot tell, is None.
            **{
                name: known(value) if name in OPTIONAL else value
                for name, value in ((name, values[index].item()) for name, values in self.columns.items())
            },
        )

    def __iter__(self) -> Iterator[Score]:
        return (self[index] for index in range(len(self)))

    def __add__(self, other: "Scores") -> "Scores":
        return concatenate([self, other])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Scores):
            return NotImplemented
        plain = (self.captions, self.errors, self.signature) == (other.captions, other.errors, other.signature)
        return plain and all(
            np.array_equal(values, other.columns[name], equal_nan=True) for name, values in self.columns.items()
        )

    __hash__ = None  # type: ignore[assignment]  # arrays can be changed

    @property
    def ranking(self) -> tuple[int, ...]:
        """Numbers of the captions from best to worst Soft-MSD; equal scores keep their order, failed ones come last."""
        return tuple(np.argsort(-self.soft_msd, kind="stable").tolist())

    @property
    def best(self) -> str:
        """The caption with the highest Soft-MSD."""
        return self.captions[self.ranking[0]]

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary per caption, with the caption and the added columns."""
        return [{"caption": score.caption, **score.row()} for score in self]

    def to_dict(self) -> dict[str, Any]:
        """The signature and one dictionary per caption under `scores`: plain values, ready for JSON."""
        return {"signature": self.signature, "scores": self.rows()}

    def to_arrow(self) -> "pyarrow.Table":
        """An Arrow table whose schema carries the signature."""
        pyarrow = require("pyarrow", extra="all")
        bad = np.array([error is not None for error in self.errors], dtype=bool)
        # The numbers of the form: those of the optional ones that any caption has.
        own = [name for name in OPTIONAL if name != "match" and not np.isnan(self.columns[name]).all()]
        names = columns_of(own)
        columns = {name: pyarrow.array(self.columns[name], mask=bad) for name in names if name in self.columns}
        columns |= {"reading": pyarrow.array([score.reading for score in self], pyarrow.string())}
        warnings = ["; ".join(some) or None for some in self.warnings]
        columns |= {"warnings": pyarrow.array(warnings, pyarrow.string())}
        columns |= {"error": pyarrow.array(self.errors, pyarrow.string())}
        ordered = {"caption": pyarrow.array(self.captions, pyarrow.string())} | {name: columns[name] for name in names}
        return pyarrow.table(ordered).replace_schema_metadata({"msdscore": self.signature})

    def to_pandas(self) -> "pandas.DataFrame":
        """A pandas table whose `attrs` carry the signature."""
        frame = require("pandas", extra="pandas").DataFrame(self.rows())
        frame.attrs["signature"] = self.signature
        return frame

    def __str__(self) -> str:
        ranked = self._ranked()
        widths = {name: max(9, len(SHOWN[name][0])) for name in shown(ranked)}
        heads = " ".join(f"{SHOWN[name][0]:>{width}}" for name, width in widths.items())
        lines = [f"{'':>2} {heads}  caption"]
        for place, score in enumerate(ranked, start=1):
            numbers = " ".join(f"{cell(score, name):>{width}}" for name, width in widths.items())
            lines.append(f"{place:>2} {numbers}  {score.caption}")
        notes = [f"warning, {s.caption[:40]!r}: {warning}" for s in ranked for warning in s.warnings]
        notes += [f"not scored, {s.caption[:40]!r}: {s.error}" for s in ranked if s.error is not None]
        return "\n".join([*lines, *notes, self.signature])

    def __repr__(self) -> str:
        best = f", best {self.best!r}" if len(self) > 1 and int(self.candidates.min()) == len(self) else ""
        return f"Scores({len(self)} captions, {self.failed} failed{best}, {self.signature})"

    def _repr_html_(self) -> str:
        return html_table(self._ranked(), self.signature)

    def _ranked(self) -> Sequence[Score]:
        return [self[index] for index in self.ranking]


def concatenate(parts: Sequence[Scores]) -> Scores:
    """Scores one after the other; they must have been made with the same signature."""
    signatures = list(dict.fromkeys(part.signature for part in parts))
    if len(signatures) != 1:
        raise ConfigError(f"expected scores of one signature to join, got {len(signatures)}: {'; '.join(signatures)}")
    return Scores(
        tuple(caption for part in parts for caption in part.captions),
        {name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns},
        np.concatenate([part.candidates for part in parts]),
        tuple(warnings for part in parts for warnings in part.warnings),
        tuple(error for part in parts for error in part.errors),
        signatures[0],
    )


def _column(name: str, rows: Sequence[Numbers], places: Sequence[int], total: int) -> npt.NDArray[Any]:
    """One of the numbers for all captions, NaN or 0 where there is none."""
    values: npt.NDArray[Any] = np.zeros(total, dtype=np.int64) if name in _COUNTS else np.full(total, np.nan)
    numbers = [getattr(row, name) for row in rows]
    values[list(places)] = [np.nan if value is None else value for value in numbers]
    return values
