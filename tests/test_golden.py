"""Golden scores of the toy encoder; changes need an entry in the changelog.

Regenerate with: python tests/test_golden.py
"""

import json
from pathlib import Path

import pytest
from PIL import Image, ImageDraw

from msdscore import Paper, Scorer

GOLDEN = Path(__file__).parent / "golden" / "toy.json"
CAPTIONS = [
    "a red square on a blue wall",
    "a green circle",
    "blue",
    "a very long description of a red square that stands in the middle of a blue wall, painted with great care by "
    "somebody who likes squares, walls, red things and blue things more than anything else in the world",
]


def scene():
    image = Image.new("RGB", (96, 64), "blue")
    ImageDraw.Draw(image).rectangle((30, 15, 60, 45), fill="red")
    return image


def scores():
    table = {}
    for name, config in {
        "short": Paper.named("short"),
        "long": Paper.named("long"),
        "authors": Paper.named("authors"),
        "paper": Paper.named("paper"),
        "support": Paper(gate="support"),
    }.items():
        ranked = Scorer("toy", config).rank(scene(), CAPTIONS)
        table[name] = [{key: value for key, value in row.items() if key != "error"} for row in ranked.rows()]
    return table


@pytest.mark.parametrize("form", ["short", "long", "authors", "paper", "support"])
def test_scores_equal_the_golden_file(form):
    expected = json.loads(GOLDEN.read_text(encoding="utf-8"))[form]
    for row, kept in zip(scores()[form], expected, strict=True):
        for name, value in kept.items():
            # Other CPUs round products differently, which EM amplifies to the sixth digit at most.
            assert row[name] == (pytest.approx(value, abs=2e-4) if isinstance(value, float) else value), name


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(scores(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
