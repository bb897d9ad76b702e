"""MSDScore as a replacement for CLIPScore: the mean, and all pairs."""

import torch
from PIL import Image

from msdscore_torch.integrations.torchmetrics import MSDScore

COLOURS = ("red", "green", "blue")


def main() -> None:
    """Score six pairs in two batches."""
    metric = MSDScore("toy", return_rows=True)  # "mini" for photographs; toy only knows colours
    images = [Image.new("RGB", (64, 64), colour) for colour in COLOURS]
    metric.update(images, [f"a {colour} square" for colour in COLOURS])
    tensors = torch.zeros(3, 3, 64, 64, dtype=torch.uint8)
    metric.update(tensors, ["a black square", "a white square", "a red square"])
    result = metric.compute()
    print(f"mean {result['mean']:.4f}")
    print("rows", [round(value, 4) for value in result["msd"].tolist()])
    print(metric.signature)


if __name__ == "__main__":
    main()
