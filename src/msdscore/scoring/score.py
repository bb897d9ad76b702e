"""The score of one caption: what it holds, which direction is better, how it prints."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from msdscore.core.evidence import reading

# Numbers that not every form has.
OPTIONAL = ("precision", "information", "coverage", "support", "beta", "divergence", "match")
_FIRST, _LAST = (
    ("similarity",),
    ("uncertainty", "length", "windows", "msd", "soft_msd", "match", "reading", "warnings", "error"),
)
# What scoring may add to a row, whatever the form.
ALL_COLUMNS = (*_FIRST, *OPTIONAL[:-1], *_LAST)


def columns_of(form: Sequence[str]) -> tuple[str, ...]:
    """What scoring adds to a row, in this order, given the numbers of the form.

    >>> columns_of(("precision", "information"))[:3]
    ('similarity', 'precision', 'information')
    """
    return (*_FIRST, *form, *_LAST)


# What a table of scores shows: heading and form of each number.
SHOWN = {
    "soft_msd": ("Soft-MSD", "+.4f"),
    "msd": ("MSD", "+.4f"),
    "similarity": ("similarity", "+.4f"),
    "precision": ("precision", "+.3f"),
    "information": ("information", "+.3f"),
    "coverage": ("coverage", ".4f"),
    "support": ("support", ".4f"),
    "match": ("match", ".2f"),
    "reading": ("reading", ""),
}


@dataclass(frozen=True, slots=True)
class Score:
    """The score of one caption.

    Higher is better:

    - `msd`, `soft_msd` and `similarity`. `soft_msd` is gated by the uncertainty of the set of `candidates` captions;
      for a caption scored alone it equals `msd`.
    - `precision`: is what the caption says true of this image? In nats per word; below zero there is more doubt than
      support.
    - `information`: how much does it tell about this image? In standard deviations over background images.
    - `match`: the probability that the caption belongs to this image rather than to another one of its kind, and
      `reading`: the same in a word, good from 0.7 on, doubtful from 0.3 on, else poor.

    `precision`, `information` and `match` are None under the paper's presets, which have two divergences instead, in
    nats, lower is better: `coverage`, what the image shows and the caption omits, and `support`, what the caption says
    and the image does not show; `divergence` is the two, weighed by `beta`.

    Neither: `uncertainty` is that of the candidate set (1: the similarities do not tell the captions apart), `length`
    the number of tokens that were read, `windows` the number of parts in which a long caption was read.

    `warnings` say what a reader of the score should know, such as words that the encoder cannot read. Where `error`
    gives a reason there was nothing to score, and the numbers are NaN.
    """

    caption: str
    msd: float
    soft_msd: float
    similarity: float
    uncertainty: float
    length: int
    windows: int
    candidates: int
    signature: str
    precision: float | None = None
    information: float | None = None
    match: float | None = None
    coverage: float | None = None
    support: float | None = None
    beta: float | None = None
    divergence: float | None = None
    warnings: tuple[str, ...] = ()
    error: str | None = None

    def __str__(self) -> str:
        if self.error is not None:
            return f"not scored: {self.error}"
        return "\n".join([self._line(), *(f"warning: {warning}" for warning in self.warnings)])

    def _line(self) -> str:
        alone = "alone" if self.candidates == 1 else f"among {self.candidates}"
        return (
            f"MSD {self.msd:+.4f}  Soft-MSD {self.soft_msd:+.4f} ({alone})"
            + "".join(
                f"  {SHOWN[name][0]} {cell(self, name)}"
                for name in shown([self])
                if name not in ("msd", "soft_msd", "reading")
            )
            + ("" if self.match is None else f" ({self.reading})")
        )

    @property
    def reading(self) -> str | None:
        """The match in a word: good, doubtful or poor."""
        return reading(self.match)

    def _repr_html_(self) -> str:
        return html_table([self], self.signature)

    def row(self) -> dict[str, Any]:
        """The added columns of a scored row; None where there is no number."""
        values = asdict(self) | {"warnings": "; ".join(self.warnings) or None, "reading": self.reading}
        own = [name for name in OPTIONAL if name != "match" and values[name] is not None]
        return {name: known(values[name]) for name in columns_of(own)}

    def to_dict(self) -> dict[str, Any]:
        """Caption, numbers, candidates and signature as plain values, ready for JSON; None where there is no number."""
        return {"caption": self.caption, **self.row(), "candidates": self.candidates, "signature": self.signature}


def known(value: Any) -> Any:
    """A value, or None for NaN."""
    return None if isinstance(value, float) and math.isnan(value) else value


def shown(scores: Sequence[Score]) -> list[str]:
    """The numbers that a table of these scores shows: all but those that none of them has."""
    return [name for name in SHOWN if any(getattr(score, name) is not None for score in scores)]


def cell(score: Score, name: str) -> str:
    """One number of a table of scores; nothing where there is none."""
    value = getattr(score, name)
    return "" if value is None else format(value, SHOWN[name][1])


def html_table(scores: Sequence[Score], signature: str) -> str:
    """A table of scores and their signature, as notebooks show it."""
    names = shown(scores)
    head = "".join(f"<th>{name}</th>" for name in (*names, "caption"))
    rows = [
        "".join(f"<td style='text-align:right'>{cell(score, name)}</td>" for name in names)
        + f"<td style='text-align:left'>{escape(score.caption)}</td>"
        for score in scores
    ]
    body = "".join(f"<tr>{row}</tr>" for row in (head, *rows))
    return f"<table>{body}</table><small><code>{escape(signature)}</code></small>"
