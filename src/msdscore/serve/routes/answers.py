"""What the routes answer: scores, rankings, explanations and rewards as plain values, figures as files."""

from collections.abc import Callable, Sequence
from typing import Any

from msdscore.errors import MissingExtraError
from msdscore.explain.document import document
from msdscore.explain.save import encoded
from msdscore.scoring.results import Scores
from msdscore.serve.page.look import looks
from msdscore.serve.requests.guard import RefusedError
from msdscore.serve.requests.reading import AskedRewards
from msdscore.serve.work.judge import Explained

FIGURES = {
    "png": "image/png",
    "svg": "image/svg+xml",
    "pdf": "application/pdf",
    "html": "text/html; charset=utf-8",
    "json": "application/json",
}  # what `msdscore explain` writes too


def scored(found: Scores | str, captions: Sequence[str]) -> list[dict[str, Any]]:
    """One row per caption; where the picture could not be read, each has that reason."""
    if isinstance(found, str):
        return [{"caption": caption, "msd": None, "error": found} for caption in captions]
    return [{name: _plain(value) for name, value in row.items()} for row in found.rows()]


def ranked(found: Scores | str, captions: Sequence[str]) -> dict[str, Any]:
    """The same with the numbers of the captions from best to worst."""
    ranking = list(found.ranking) if isinstance(found, Scores) else []
    return {"scores": scored(found, captions), "ranking": ranking}


def explained(found: Explained | str, captions: Sequence[str]) -> dict[str, Any]:
    """One explanation per caption with how it is drawn; None and a reason for those that cannot be read."""
    if isinstance(found, str):
        return {"error": found, "explanations": [None] * len(captions), "errors": [found] * len(captions)}
    made = iter([] if found.found is None else zip(found.found, looks(found.found), strict=True))
    explanations: list[dict[str, Any] | None] = []
    for number in range(len(captions)):
        if number in found.reasons:
            explanations.append(None)
            continue
        item, look = next(made)
        explanations.append(document(item) | {"look": look})
    return {
        "error": None,
        "explanations": explanations,
        "errors": [found.reasons.get(number) for number in range(len(captions))],
    }


def rewarded(found: Sequence[Scores | str], asked: AskedRewards) -> dict[str, Any]:
    """A reward or a reason for every completion."""
    rewards: list[float | None] = [None] * len(asked.reasons)
    reasons = list(asked.reasons)
    for answer, one, own in zip(found, asked.items, asked.numbers, strict=True):
        for number, row in zip(own, scored(answer, one.captions), strict=True):
            rewards[number], reasons[number] = row["msd"], row["error"]
    return {"rewards": rewards, "reasons": reasons}


def drawing(found: Explained | str, kind: str) -> Callable[[], bytes]:
    """What draws the explanations that were found; refuses where there are none."""
    if isinstance(found, str):
        raise RefusedError(422, found)
    explanations = found.found
    if explanations is None:
        raise RefusedError(422, next(iter(found.reasons.values())))

    def draw() -> bytes:
        try:
            return encoded(explanations.items, kind)
        except MissingExtraError as error:
            raise RefusedError(501, str(error)) from error

    return draw


def _plain(value: Any) -> Any:
    """A number that JSON knows; none for NaN."""
    return None if isinstance(value, float) and value != value else value
