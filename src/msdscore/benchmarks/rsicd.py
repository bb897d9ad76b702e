"""RSICD: remote-sensing pictures with five captions each, as retrieval-style pairs."""

from pathlib import Path

from msdscore.benchmarks.base import Pair, Reading
from msdscore.benchmarks.retrieval import Columns, read_split

GET = "https://huggingface.co/datasets/arampacha/rsicd (folder data)"


def read(root: Path, *, split: str = "test", seed: int = 0) -> Reading[Pair]:
    """One pair a picture of a split (train, valid or test), drawn by `seed`."""
    return read_split(root, split, Columns("filename", "captions"), seed=seed, get=GET)
