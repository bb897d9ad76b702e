"""Measurements of pairs of images and captions, and the numbers of every caption that follow from them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from msdscore.core import paper
from msdscore.core.device import sent
from msdscore.core.evidence import Bank
from msdscore.core.paper import total
from msdscore.encoders.base import Embeddings, PatchLayout
from msdscore.forms.base import Form, Measurement, Sides


def measure_pairs(
    images: Embeddings,
    texts: Embeddings,
    pairs: tuple[Sequence[int], Sequence[int]],
    *,
    keys: tuple[Sequence[int], Sequence[int]],
    form: Form,
    bank: Bank | None = None,
    captions: Sequence[str] = (),
) -> Measurement[Any]:
    """Measure pairs: pair p is row `pairs[0][p]` of the images with row `pairs[1][p]` of the texts.

    `keys` are those of the images and of the texts; `captions` are the texts, one per row.
    """
    device = images.points.device
    image_of, text_of, image_keys, text_keys = (
        sent(torch.tensor(values, dtype=torch.int64), device) for values in (*pairs, *keys)
    )
    sides = Sides(replace(images, keys=image_keys), replace(texts, keys=text_keys), pairs, image_of, text_of, captions)
    terms, layouts = form.measure(sides, bank), sides.layouts
    return Measurement(
        total(images.pooled[image_of] * texts.pooled[text_of]),
        texts.mask.sum(dim=1)[text_of],
        image_of,
        text_of,
        tuple(layout for layout in images.layout if isinstance(layout, PatchLayout)),
        tuple(layouts[row] for row in pairs[1]),
        tuple(captions[row] for row in pairs[1]) if captions else (),
        terms,
    )


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
