"""A module of Hugging Face `evaluate`: predictions and the paths of their images in, means and rows out."""

from collections.abc import Sequence
from typing import Any

from msdscore.errors import require
from msdscore.integrations.scorers import ScorerLike, shared_scorer
from msdscore.scoring.spec import DEFAULT_ENCODER
from msdscore.version import __version__

evaluate: Any = require("evaluate", extra="evaluate")  # no name of its base class here: `evaluate.load` takes the first
_CITATION = "See CITATION.cff of msdscore."
_INPUTS = "predictions: captions; images: paths of their images; scorer: an encoder's name, a ScorerSpec or a Scorer."


class MSDModule(evaluate.Metric):  # type: ignore[misc]  # it has no types
    """MSD for `evaluate`: `MSDModule().compute(predictions=captions, images=paths)`, without a download.

    Gives the mean `msd` over what could be scored, the list `scores` (None where there is none), `errors` and the
    `signature`.
    """

    def _info(self) -> Any:
        datasets = require("datasets", extra="evaluate")
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description=__doc__,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features({"predictions": text, "images": text}),
        )

    def _compute(
        self, predictions: Sequence[str], images: Sequence[str], scorer: ScorerLike = DEFAULT_ENCODER
    ) -> dict[str, Any]:
        scores = shared_scorer(scorer).score_batch(list(images), list(predictions))
        known = [None if error else float(value) for value, error in zip(scores.msd, scores.errors, strict=True)]
        judged = [value for value in known if value is not None]
        return {
            "msd": sum(judged) / len(judged) if judged else None,
            "scores": known,
            "errors": list(scores.errors),
            "signature": scores.signature,
            "version": __version__,
        }
