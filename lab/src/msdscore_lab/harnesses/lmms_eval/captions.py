"""Functions for lmms-eval tasks, which score the caption of each document."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from PIL.Image import Image

from msdscore.errors import ConfigError
from msdscore.forms.registry import columns_logged
from msdscore.rows.rules import pair_rows
from msdscore.scoring.results import known
from msdscore.scoring.rows import score_all
from msdscore.scoring.spec import DEFAULT_ENCODER
from msdscore_torch.integrations.shared import ScorerLike, shared_scorer

Document = Mapping[str, Any]


def caption_scores(
    scorer: ScorerLike = DEFAULT_ENCODER, *, image: str | None = None, words: int = 3
) -> Callable[[Document, Sequence[str]], dict[str, Any]]:
    """Create a `process_results` function that lists `words` least supported words.

    `image` is the dataset's column of images; without it the column `image`, or the only one with images.

    The task must pass its images: `process_results_use_image: true`. A caption that cannot be scored has only
    `msd_judged` (0) and the error, so that means are over the others.

    >>> from PIL import Image
    >>> scores = caption_scores("toy")({"image": Image.new("RGB", (64, 64), "red")}, ["a red square"])
    >>> scores["msd_judged"], "msd" in scores
    (1.0, True)
    """

    def process_results(doc: Document, results: Sequence[str]) -> dict[str, Any]:
        rows = pair_rows([doc[_image_column(doc, image)]], [results[0] if results else ""], [0], sets=[0])
        (score,) = score_all(shared_scorer(scorer).pipeline, rows, worst=words)
        if score.error is not None:
            return {"msd_judged": 0.0, "msd_reason": score.error}
        numbers = {name if name == "msd" else f"msd_{name}": known(getattr(score, name)) for name in columns_logged()}
        present = {name: value for name, value in numbers.items() if value is not None}
        return {**present, "msd_judged": 1.0, "msd_least_supported": ", ".join(score.worst)}

    return process_results


def visual(doc: Document) -> list[Any]:
    """Return the image of a document, for `doc_to_visual`: the column `image`, or the only one with an image."""
    return [doc[_image_column(doc)].convert("RGB")]


def _image_column(doc: Document, name: str | None = None) -> str:
    """Return the column of the image: the one of this name, else `image`, else the only one that contains an image."""
    names = [name] if name is not None else ["image", *(key for key, value in doc.items() if isinstance(value, Image))]
    known = [key for key in dict.fromkeys(names) if key in doc]
    if not known or (len(known) > 1 and known[0] != "image"):
        wanted = repr(name or "image") if not known else f"one column of images, not {' and '.join(known)}"
        raise ConfigError(
            f"the document has no {wanted}, only {', '.join(doc)}; set process_results_use_image: true in the task, or "
            "pass the column: caption_scores(image=…)"
        )
    return known[0]


def nothing(doc: Document) -> str:
    """Return an empty target, for `doc_to_target`; no reference is needed."""
    return ""


process_results = caption_scores()
