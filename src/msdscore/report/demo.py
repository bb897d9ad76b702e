"""The demo: real photographs, good and bad captions, and the terms of the score for each word."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from msdscore.explain.explanation import Explanation, Explanations, encoded
from msdscore.explain.html import data_uri, summary, whole_page
from msdscore.explain.look import legend
from msdscore.explain.maps import thumbnail
from msdscore.io.images import sample_image
from msdscore.io.targets import put_all

if TYPE_CHECKING:
    from msdscore.scorer import Scorer

IMAGE_PIXELS = 420
KINDS = ("good", "omits", "invents", "wrong")


@dataclass(frozen=True, slots=True)
class Photograph:
    """A sample photograph; one caption per kind, in the order of `KINDS`, and what the invented one shows."""

    name: str
    credit: str
    captions: tuple[str, str, str, str]
    line: str


PHOTOGRAPHS = (
    Photograph("coffee", "Rachel Michetti, CC0", (
        "a cup of coffee with a spoon on a wooden table",
        "something on a wooden table",
        "a cup of coffee and a pizza next to a laptop on a table",
        "two dogs are running through the grass",
    ), "The pizza and the laptop are invented, and both words are marked."),
    Photograph("cat", "Stéfan van der Walt, CC0", (
        "a close up of an orange cat looking at the camera",
        "a close up of an animal looking at something",
        "an orange cat wearing a blue hat sits next to a dog",
        "a man is surfing a wave in the ocean",
    ), "The blue hat and the dog are invented: the caption is unsure, and their words are in doubt."),
    Photograph("temple", "Daniel Büchele, CC BY 2.0", (
        "a tall building with a red roof and a blue sky",
        "a building and the sky",
        "a tall building with a roof next to a bus",
        "a plate of pasta with broccoli",
    ), "One wrong word is enough: the bus is marked, and its caption is unsure."),
    Photograph("towers", "SpaceX, public domain", (
        "tall towers with lights at night",
        "tall towers",
        "tall towers in the morning sun",
        "a herd of elephants walks across a dusty road",
    ), "A miss: it is night, but the caption with the morning sun is on topic, and no word stands out."),
)  # fmt: skip


def show(scorer: "Scorer") -> list[tuple[Photograph, Explanations]]:
    """Explain all captions of all photographs."""
    return [(photo, scorer.explain(sample_image(photo.name), list(photo.captions))) for photo in PHOTOGRAPHS]


def best_first(explained: Explanations) -> list[tuple[str, Explanation]]:
    """Return kinds and captions of a photograph, best first by Soft-MSD.

    They are not ranked by `match`, which judges every caption by itself and favours short ones.
    """
    pairs = list(zip(KINDS, explained, strict=True))
    return sorted(pairs, key=lambda pair: pair[1].score.soft_msd, reverse=True)


def write(shown: Sequence[tuple[Photograph, Explanations]], folder: Path, *, overwrite: bool = False) -> Path:
    """Write the page and one figure per photograph; return the path of the page."""
    target = folder / "index.html"
    files = {target: demo_page(shown).encode()}
    for photograph, explained in shown:
        good, _, invents, _ = explained
        files[folder / f"{photograph.name}.png"] = encoded((good, invents), "png")
    put_all(files, overwrite=overwrite)
    return target


def demo_page(shown: Sequence[tuple[Photograph, Explanations]]) -> str:
    """Return the whole self-contained page."""
    items = [item for _, explained in shown for item in explained]
    sections = [
        {
            "photograph": photograph,
            "image": data_uri(thumbnail(explained[0].image, IMAGE_PIXELS)),
            "rows": [
                summary(item, items) | {"kind": kind, "best": rank == 0}
                for rank, (kind, item) in enumerate(best_first(explained))
            ],
        }
        for photograph, explained in shown
    ]
    values = {"title": "msdscore demo", "sections": sections, "legend": legend(items)}
    values["signature"] = items[0].score.signature
    return whole_page("msdscore.report", "demo.html", values, styles=["demo.css"])
