"""Explanations as files to keep: the figures and the page that `msdscore explain` writes."""

from collections.abc import Callable

from msdscore.errors import MissingExtraError
from msdscore.explain.save import encoded
from msdscore.serve.guard import RefusedError
from msdscore.serve.judge import Explained

FIGURES = {
    "png": "image/png",
    "svg": "image/svg+xml",
    "pdf": "application/pdf",
    "html": "text/html; charset=utf-8",
    "json": "application/json",
}


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
