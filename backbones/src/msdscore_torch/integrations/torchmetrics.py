"""MSD as a torchmetrics `Metric`, with the arguments of CLIPScore and per-pair scores."""

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from msdscore.errors import ConfigError, require, unknown_name
from msdscore.io.images import ImageSource
from msdscore.scorer import Scorer
from msdscore.scoring.spec import DEFAULT_ENCODER
from msdscore_torch.integrations.shared import ScorerLike, described, shared_scorer

if TYPE_CHECKING:
    from torchmetrics import Metric
else:
    Metric = require("torchmetrics", extra="torchmetrics").Metric

# One state each, with a number per pair. Only those for which higher is better can be the metric's value.
_BEST_HIGH = ("msd", "similarity", "precision", "information", "match", "ref_msd", "reference_score")
_COLUMNS = (*_BEST_HIGH, "negation", "penalty", "invented", "coverage", "support")

_Images = Tensor | ImageSource | Sequence[Tensor] | Sequence[ImageSource]
_Captions = str | Sequence[str]


class UnscoredWarning(UserWarning):
    """Some pairs could not be scored; the mean is over the others."""


class MSDScore(Metric):
    """Mean MSD of image-caption pairs; with `return_rows`, the scores of every pair too.

    The first argument is the name of an encoder (also the hub name of a CLIP model), a `ScorerSpec` or a `Scorer`. `by`
    is the score to average: msd, similarity, precision, information, match, ref_msd or reference_score. A pair that
    cannot be scored is NaN in the rows and excluded from the mean, with an `UnscoredWarning`.

    >>> metric = MSDScore("toy")
    >>> red = torch.tensor([255, 0, 0], dtype=torch.uint8).reshape(3, 1, 1).expand(3, 64, 64)
    >>> bool(metric(red, "a red square") > metric(red, "a blue square"))
    True
    >>> metric.update(red[None], ["a red square"])
    >>> len(metric.msd)
    3
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False  # the encoder runs once per batch, in `forward` too

    msd: list[Tensor]
    similarity: list[Tensor]
    precision: list[Tensor]
    information: list[Tensor]
    match: list[Tensor]
    negation: list[Tensor]
    penalty: list[Tensor]
    invented: list[Tensor]
    coverage: list[Tensor]
    support: list[Tensor]
    ref_msd: list[Tensor]
    reference_score: list[Tensor]

    def __init__(
        self,
        model_name_or_path: ScorerLike = DEFAULT_ENCODER,
        *,
        by: str = "msd",
        return_rows: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if by not in _BEST_HIGH:
            raise unknown_name("number to average", by, _BEST_HIGH)
        self._given, self._by, self._return_rows = described(model_name_or_path), by, return_rows
        self._reason: str | None = None
        for name in _COLUMNS:
            self.add_state(name, default=[], dist_reduce_fx="cat")

    @property
    def scorer(self) -> Scorer:
        """The scorer; loaded on first use, and shared by all copies of the metric."""
        return shared_scorer(self._given)

    @property
    def signature(self) -> str:
        """Everything that can change the score, in one line."""
        return self.scorer.signature

    def update(
        self,
        source: _Images | _Captions,
        target: _Images | _Captions,
        references: Sequence[Sequence[str] | None] | None = None,
    ) -> None:
        """Score images and captions, in either order; one caption per image.

        `references[i]` are human captions of image i, or None; without them `ref_msd` is NaN.
        """
        images, captions = _images_and_captions(source, target)
        if not images:
            return  # this process has no rows of the last batch
        scores = self.scorer.score_batch(images, captions, references=references)
        self._reason = next((error for error in scores.errors if error), self._reason)
        for name in _COLUMNS:
            values = scores.columns.get(name, np.full(len(scores), np.nan))
            column = torch.as_tensor(values, device="cpu").to(self.dtype)
            getattr(self, name).append(column.to(self.device))

    def compute(self) -> Tensor | dict[str, Tensor]:
        """Return the mean, or a dictionary with the `mean` and all scores of every pair in the order of the updates."""
        # After a synchronisation a state is one tensor, before it a list of them.
        nothing = torch.zeros(0, dtype=self.dtype, device=self.device)
        rows = {name: torch.cat([nothing, *_listed(getattr(self, name))]) for name in _COLUMNS}
        chosen = rows[self._by]
        missing = int(chosen.isnan().sum())
        if missing:
            why = self._reason or "on another process, or the bank does not have this number"
            text = f"{missing} of {len(chosen)} pairs have no {self._by} and are excluded from the mean (first: {why})"
            warnings.warn(text, UnscoredWarning, stacklevel=2)
        mean = chosen.nanmean()
        return {"mean": mean, **rows} if self._return_rows else mean

    def plot(self, val: Any = None, ax: Any = None) -> Any:
        """Plot one mean or several."""
        value = self.compute() if val is None else val
        return self._plot(value["mean"] if isinstance(value, dict) else value, ax)


def _images_and_captions(source: Any, target: Any) -> tuple[list[ImageSource], list[str]]:
    """Return images and captions as lists of the same length."""
    first, second = _batch(source), _batch(target)
    if not first and not second:
        return [], []
    texts, others = (any(isinstance(value, str) for value in side) for side in (first, second))
    if texts == others:
        got = "captions" if texts else "images"
        raise ConfigError(f"expected images and captions, got {got} twice; the path of an image is a pathlib.Path")
    images, captions = (second, first) if texts else (first, second)
    if odd := [text for text in captions if not isinstance(text, str)]:
        raise ConfigError(f"expected captions as text, got {type(odd[0]).__name__}; pass '' for a missing caption")
    if len(images) != len(captions):
        raise ConfigError(f"expected one caption per image, got {len(images)} images and {len(captions)} captions")
    for number, image in enumerate(images):
        # Integer levels of any width become uint8; other values are unchanged, and raise later.
        whole = isinstance(image, Tensor) and not image.is_floating_point() and image.dtype != torch.uint8
        if whole and image.numel() and int(image.min()) >= 0 and int(image.max()) <= 255:
            images[number] = image.to(torch.uint8)
    return images, captions


def _batch(given: Any) -> list[Any]:
    """Convert a batch of images or captions (list, array, tensor or table column) to a list."""
    if hasattr(given, "to_pylist"):  # Arrow iterates over its own scalars
        return list(given.to_pylist())
    dimensions = getattr(given, "ndim", 0)
    many = dimensions == 4 or (dimensions == 1 and not isinstance(given, Tensor))
    return list(given) if many else _listed(given)


def _listed(given: Any) -> list[Any]:
    return list(given) if isinstance(given, list | tuple) else [given]
