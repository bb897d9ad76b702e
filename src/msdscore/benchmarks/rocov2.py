"""ROCOv2: radiology pictures with one caption each, as retrieval-style pairs."""

from pathlib import Path

from msdscore.benchmarks.base import Pair, Reading
from msdscore.benchmarks.retrieval import Columns, read_split

GET = "https://huggingface.co/datasets/eltorio/ROCOv2-radiology (folder data; non-commercial licence)"


def read(root: Path, *, split: str = "test", seed: int = 0) -> Reading[Pair]:
    """One pair a picture of a split (train, validation or test), drawn by `seed`."""
    return read_split(root, split, Columns("image_id", "caption"), seed=seed, get=GET)
