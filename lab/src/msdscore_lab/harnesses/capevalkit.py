"""MSD as a metric of capevalkit: a callable for its Python API."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

from msdscore.errors import ConfigError, RunError
from msdscore.io.files import source_key
from msdscore.scoring.spec import DEFAULT_ENCODER
from msdscore_torch.integrations.shared import ScorerLike, shared_scorer


class CapevalkitSample(Protocol):
    """A sample that capevalkit passes to a metric."""

    id: str
    image: str
    prediction: str | None


def caption_metric(
    scorer: ScorerLike = DEFAULT_ENCODER, *, by: str = "msd"
) -> Callable[[Sequence[CapevalkitSample]], dict[str, float]]:
    """Create a callable for `capevalkit.evaluate_metric(benchmark=…, metric=caption_metric())`.

    A caption that cannot be scored raises, as capevalkit has no missing values.
    """

    def metric(samples: Sequence[CapevalkitSample]) -> dict[str, float]:
        ids = [sample.id for sample in samples]
        if repeated := [key for key, count in Counter(ids).items() if count > 1]:
            raise RunError(f"{len(repeated)} ids name several samples (first: {repeated[0]}); expected each id once")
        # An image is encoded once; its samples with other references are scored separately.
        lists = [tuple(getattr(sample, "references", None) or ()) for sample in samples]
        keys = [(source_key(sample.image), texts) for sample, texts in zip(samples, lists, strict=True)]
        image_of = {key: sample.image for key, sample in zip(keys, samples, strict=True)}
        index = {key: number for number, key in enumerate(image_of)}
        scores = shared_scorer(scorer).score_batch(
            list(image_of.values()),
            [sample.prediction or "" for sample in samples],
            owner=[index[key] for key in keys],
            references=[texts or None for _, texts in index] if any(lists) else None,
        )
        if failed := [f"{key}: {error}" for key, error in zip(ids, scores.errors, strict=True) if error]:
            raise RunError(f"{len(failed)} of {len(ids)} captions cannot be scored (first: {failed[0]})")
        if by not in scores.columns:
            raise ConfigError(f"expected one of {', '.join(scores.columns)}, got {by!r}")
        return dict(zip(ids, scores.columns[by].tolist(), strict=True))

    return metric
