"""A training loop that logs the captions of its model to TensorBoard: `tensorboard --logdir logs`."""

from pathlib import Path

from PIL import Image
from torch.utils.tensorboard import SummaryWriter

from msdscore_torch.integrations.training import ValidationCaptions, log_captions, log_scalars

COLOURS = ("red", "green", "blue")


def generate(model: list[str], images: list[Image.Image]) -> list[str]:
    """A captioner that knows some colours."""
    known = zip(COLOURS, images, strict=True)
    return [f"a {colour if colour in model else 'grey'} square" for colour, _ in known]


def main() -> None:
    """Run three epochs, with one more colour in each."""
    images = [Image.new("RGB", (64, 64), colour) for colour in COLOURS]
    sample = ValidationCaptions(images, generate, scorer="toy")  # without scorer= for photographs
    with SummaryWriter(str(Path("logs"))) as writer:
        for step in range(1, 4):
            checked = sample.check(list(COLOURS[:step]))
            log_scalars(writer, checked.scalars("msd"), step)
            log_captions(writer, checked, step, prefix="msd")
            print(step, checked.means()["msd"])
    print(checked.scores.signature)


if __name__ == "__main__":
    main()
