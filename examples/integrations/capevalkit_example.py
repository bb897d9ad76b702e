"""The callable for capevalkit's `evaluate_metric(benchmark=…, metric=…)`."""

from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from msdscore_lab.harnesses.capevalkit import caption_metric
from msdscore_torch.integrations.shared import shared_scorer


@dataclass(frozen=True)
class CaptionSample:
    """The sample class of capevalkit."""

    id: str
    image: str
    prediction: str


def main() -> None:
    """Score three captions of one image."""
    Image.new("RGB", (64, 64), "red").save("red.png")
    captions = ("a red square", "a blue square", "a red and green square")
    samples = [CaptionSample(str(number), str(Path("red.png")), text) for number, text in enumerate(captions)]
    print(caption_metric("toy")(samples))  # caption_metric() for photographs
    print(shared_scorer("toy").signature)


if __name__ == "__main__":
    main()
