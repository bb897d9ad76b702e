"""Explanations as people meet them: to print, to look at in a notebook, to save."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msdscore.errors import ConfigError, MissingExtraError
from msdscore.explain.document import document
from msdscore.explain.save import png, save
from msdscore.explain.snippet import snippet
from msdscore.explain.terms import Attribution, picture_of, terms_of
from msdscore.io.images import ImageSource
from msdscore.scoring.measurement import numbers
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.results import Scores


class Explanation(Attribution):
    """The score of one caption of one picture, taken apart: see `Attribution` for what it holds."""

    def to_dict(self) -> dict[str, Any]:
        """Everything but the pixels, as plain values."""
        return document(self)

    def save(self, path: str | Path) -> None:
        """Write a picture (.png, .svg, .pdf), a page (.html) or the numbers (.json)."""
        Explanations((self,)).save(path)

    def __str__(self) -> str:
        listed = ", ".join(f"{unit.text} ({unit.gap:+.2f})" for unit in self.ranked[:3])
        return f"{self.score}\nleast supported, nats: {listed or 'none'}"

    def __repr__(self) -> str:
        least = f", least supported {self.ranked[0].text!r}" if self.ranked else ""
        return f"Explanation({self.score.caption!r}, msd {self.score.msd:+.4f}{least})"

    def _repr_html_(self) -> str:
        return Explanations((self,))._repr_html_()

    def _repr_png_(self) -> bytes | None:
        return Explanations((self,))._repr_png_()


@dataclass(frozen=True, slots=True)
class Explanations:
    """Explanations of captions of one picture, shown side by side on one scale."""

    items: tuple[Explanation, ...]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Explanation:
        return self.items[index]

    def __iter__(self) -> Iterator[Explanation]:
        return iter(self.items)

    def save(self, path: str | Path) -> None:
        """Write a picture (.png, .svg, .pdf), a page (.html) or the numbers (.json)."""
        save(self.items, Path(path))

    def __str__(self) -> str:
        return "\n\n".join(f"{item.score.caption}\n{item}" for item in self)

    def _repr_html_(self) -> str:
        return snippet(self.items)

    def _repr_png_(self) -> bytes | None:
        try:
            return png(self.items)
        except MissingExtraError:
            return None


def explain(pipeline: Pipeline, image: ImageSource, captions: Sequence[str]) -> Explanations:
    """Score captions of one picture as a candidate set and keep every term."""
    if isinstance(captions, str) or not captions:
        raise ConfigError("an explanation needs a list of at least one caption")
    decoded = pipeline.decode([image], keep=True)
    images, texts = pipeline.embed_images(decoded).require(), pipeline.embed_texts(captions).require()
    measured = pipeline.measure(images, texts, [0] * len(captions), range(len(captions)))
    rows = numbers(measured, pipeline.config)
    scores = Scores.of(captions, rows, [0] * len(captions), pipeline.config, pipeline.signature)
    terms = terms_of(pipeline.config, images, texts, measured)
    layout = measured.patches[0]
    picture = picture_of(decoded[0])
    visible = images.vectors.mask[0, : len(layout.boxes)].cpu().numpy()
    return Explanations(
        tuple(
            Explanation(score, picture, layout, measured.tokens[number], terms[number], visible, pipeline.config)
            for number, score in enumerate(scores)
        )
    )
