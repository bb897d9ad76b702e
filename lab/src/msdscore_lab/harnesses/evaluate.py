"""Module for Hugging Face `evaluate`: scores predictions against the paths of their images."""

import math
from collections.abc import Sequence
from typing import Any

from msdscore.errors import require
from msdscore.scoring.results import Scores
from msdscore.scoring.spec import DEFAULT_ENCODER
from msdscore.version import __version__
from msdscore_torch.integrations.shared import ScorerLike, shared_scorer

# Its base class is not imported by name: `evaluate.load` uses the first class of the module.
evaluate: Any = require("evaluate", extra="evaluate", of="msdscore-lab")
_CITATION = "See CITATION.cff of msdscore."
_INPUTS = (
    "predictions: captions; images: paths of their images; references: a list of human captions for each image "
    "(optional); scorer: an encoder's name, a ScorerSpec or a Scorer."
)


class MSDModule(evaluate.Metric):  # type: ignore[misc]  # it has no types
    """MSD for `evaluate`: `MSDModule().compute(predictions=captions, images=paths)`, without a download.

    Returns the mean `msd` over the scored captions, the list `scores` (None for the others), `errors` and the
    `signature`; with `references`, a list of human captions for each image, also `ref_msd` and `ref_scores`.
    """

    def _info(self) -> Any:
        datasets = require("datasets", extra="evaluate", of="msdscore-lab")
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description=__doc__,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features({"predictions": text, "images": text}),
        )

    def compute(self, *, predictions: Any = None, references: Any = None, **given: Any) -> Any:
        """Score captions, with a list of references for each if there are any."""
        # `evaluate` passes references to `_compute` only if every call has them.
        people = {} if references is None else {"people": references}
        return super().compute(predictions=predictions, **people, **given)

    def _compute(
        self,
        predictions: Sequence[str],
        images: Sequence[str],
        people: Sequence[Sequence[str]] | None = None,
        scorer: ScorerLike = DEFAULT_ENCODER,
    ) -> dict[str, Any]:
        scores = shared_scorer(scorer).score_batch(list(images), list(predictions), references=people)
        mean, known = _mean(scores, "msd")
        means, values = _mean(scores, "ref_msd") if "ref_msd" in scores.columns else (None, [])
        return {
            "msd": mean,
            "scores": known,
            **({"ref_msd": means, "ref_scores": values} if values else {}),
            "errors": list(scores.errors),
            "signature": scores.signature,
            "version": __version__,
        }


def _mean(scores: Scores, name: str) -> tuple[float | None, list[float | None]]:
    """Return the mean of a score over the captions that have it, and the score of every caption."""
    values = [None if math.isnan(value) else float(value) for value in scores.columns[name]]
    judged = [value for value in values if value is not None]
    return sum(judged) / len(judged) if judged else None, values
