"""The demo's photographs, which come with scikit-image and scikit-learn, and captions of four kinds for each."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from msdscore.errors import MissingExtraError

KINDS = ("good", "omits", "invents", "wrong")


@dataclass(frozen=True, slots=True)
class Photograph:
    """A free photograph inside an installed package; one caption per kind, in the order of `KINDS`."""

    name: str
    module: str
    path: str
    credit: str
    captions: tuple[str, str, str, str]


PHOTOGRAPHS = (
    Photograph(
        "cat",
        "skimage",
        "data/chelsea.png",
        "Stéfan van der Walt, CC0",
        (
            "a close up of an orange cat looking at the camera",
            "a close up of something orange",
            "an orange cat wearing a blue hat sits next to a dog",
            "a man is surfing a wave in the ocean",
        ),
    ),
    Photograph(
        "coffee",
        "skimage",
        "data/coffee.png",
        "Rachel Michetti, CC0",
        (
            "a cup of coffee with a spoon on a wooden table",
            "something on a wooden table",
            "a cup of coffee and a pizza next to a laptop on a table",
            "two dogs are running through the grass",
        ),
    ),
    Photograph(
        "astronaut",
        "skimage",
        "data/astronaut.png",
        "NASA, public domain",
        (
            "a smiling woman in an orange suit stands in front of a flag",
            "a person indoors",
            "a smiling woman in an orange suit holds a dog and a red balloon",
            "a train is stopped at a station",
        ),
    ),
    Photograph(
        "flower",
        "sklearn",
        "datasets/images/flower.jpg",
        "Dan Wilson, CC BY 2.0",
        (
            "a large orange flower with green leaves",
            "green leaves in a garden",
            "an orange flower held by a little girl in a red dress",
            "a bus is driving down a city street",
        ),
    ),
)


def locate(photograph: Photograph) -> Path:
    """The file of a photograph inside its package."""
    spec = find_spec(photograph.module)
    for place in (spec.submodule_search_locations or []) if spec else []:
        if (path := Path(place, photograph.path)).is_file():
            return path
    raise MissingExtraError(
        f"{photograph.path} comes with {photograph.module}; install it with: pip install 'msdscore[demo]'"
    )
