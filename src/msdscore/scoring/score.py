"""The score of one caption: what it holds, which direction is better, how it prints."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

# What scoring adds to a row, in this order.
COLUMNS = (
    "similarity",
    "coverage",
    "support",
    "beta",
    "divergence",
    "information",
    "uncertainty",
    "length",
    "windows",
    "msd",
    "soft_msd",
    "match",
    "warnings",
    "error",
)
# What a table of scores shows: heading and form of each number.
SHOWN = {
    "soft_msd": ("Soft-MSD", "+.4f"),
    "msd": ("MSD", "+.4f"),
    "similarity": ("similarity", "+.4f"),
    "coverage": ("coverage", ".4f"),
    "support": ("support", ".4f"),
    "information": ("information", ".4f"),
    "match": ("match", ".2f"),
}


@dataclass(frozen=True, slots=True)
class Score:
    """The score of one caption.

    Higher is better:

    - `msd`, `soft_msd` and `similarity`. `soft_msd` is gated by the uncertainty of the set of `candidates` captions;
      for a caption scored alone it equals `msd`.
    - `information`: how much the caption tells about this picture, in standard deviations over background pictures.
    - `match`: the probability that the caption belongs to this picture rather than to another one of its kind.
      `information` and `match` are None where the bank does not know the encoder's words.

    Lower is better, because these are divergences in nats:

    - `coverage`: what the picture shows and the caption omits.
    - `support`: what the caption says and the picture does not show.
    - `divergence`: the two, weighed by `beta`.

    Neither: `beta` is the weight of coverage, `uncertainty` that of the candidate set (1: the similarities do not tell
    the captions apart), `length` the number of tokens, `windows` the number of pieces in which a long caption was read.

    `warnings` say what a reader of the score should know, such as words that the encoder cannot read. Where `error`
    gives a reason there was nothing to score, and the numbers are NaN.
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
    information: float | None = None
    match: float | None = None
    warnings: tuple[str, ...] = ()
    error: str | None = None

    def __str__(self) -> str:
        if self.error is not None:
            return f"not scored: {self.error}"
        return "\n".join([self._line(), *(f"warning: {warning}" for warning in self.warnings)])

    def _line(self) -> str:
        alone = "alone" if self.candidates == 1 else f"among {self.candidates}"
        return (
            f"MSD {self.msd:+.4f}  Soft-MSD {self.soft_msd:+.4f} ({alone})  similarity {self.similarity:+.4f}  "
            f"coverage {self.coverage:.4f}  support {self.support:.4f}"
            + ("" if self.information is None else f"  information {self.information:.4f}")
            + ("" if self.match is None else f"  match {self.match:.2f}")
        )

    def _repr_html_(self) -> str:
        return html_table([self], self.signature)

    def row(self) -> dict[str, Any]:
        """The added columns of a scored row; None where there is no number."""
        values = asdict(self) | {"warnings": "; ".join(self.warnings) or None}
        return {name: known(values[name]) for name in COLUMNS}


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
