"""The numbers of every caption, from the measurement of its pair."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from msdscore.core import paper
from msdscore.forms.base import Form, Measurement


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers of one scored caption that depend only on its image; each is also an attribute.

    `values` has similarity, msd, length, windows, the columns of the form, and match if it is known. `warnings` are
    remarks on the caption and the image, `worst` its least supported words if they were requested.

    >>> Numbers({"msd": 0.5}).msd
    0.5
    """

    values: Mapping[str, Any]
    warnings: tuple[str, ...] = ()
    worst: tuple[str, ...] = ()

    def __getattr__(self, name: str) -> Any:
        # Attributes that pickle and copy look for on a bare object must not read `values`.
        values = {} if name.startswith("_") or name == "values" else self.values
        if name in values:
            return values[name]
        raise AttributeError(f"these numbers have no {name!r}, only {', '.join(values)}")


def numbers(measured: Measurement[Any], form: Form, *, worst: int = 0) -> tuple[Numbers, ...]:
    """Return the numbers of every pair, with up to `worst` least supported words of its caption."""
    columns = {name: values.tolist() for name, values in form.numbers(measured).items()}
    columns["length"] = measured.lengths.tolist()
    columns["windows"] = [layout.windows for layout in measured.tokens]
    words = form.worst(measured, worst) if worst else [()] * len(measured)
    rows, names = zip(*columns.values(), strict=True), tuple(columns)
    scored = []
    for pair, (row, image, tokens) in enumerate(zip(rows, measured.image_of.tolist(), measured.tokens, strict=True)):
        cut = (f"cut: {tokens.cut} tokens at the end were not read",) if tokens.cut else ()
        warnings = (*tokens.warnings, *cut, *form.warnings(measured, pair), *measured.patches[image].warnings)
        scored.append(Numbers(dict(zip(names, row, strict=True)), warnings, words[pair]))
    return tuple(scored)


def soften(
    similarity: Sequence[float], msd: Sequence[float], group: Sequence[int], form: Form
) -> tuple[list[float], list[float]]:
    """Return the uncertainty and Soft-MSD of every caption; equal group numbers are one candidate set."""
    if not len(similarity):
        return [], []
    g, score = (torch.tensor(values, dtype=torch.float64) for values in (similarity, msd))
    sets = torch.tensor(group, dtype=torch.int64)
    uncertainty, soft = paper.soften(g, score, sets, temperature=form.temperature)
    return uncertainty.tolist(), soft.tolist()
