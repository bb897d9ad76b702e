"""Metrics that know nothing: caption length, chance, and ties."""

from hashlib import blake2b

import numpy as np

from msdscore.errors import ConfigError
from msdscore.metrics.base import Cases, CaseScores, Loaded


def load_length() -> Loaded:
    """More words, higher score."""
    return Loaded(lambda batch: CaseScores(batch.by_text([len(text.split()) for text in batch.texts])))


def load_shorter() -> Loaded:
    """Fewer words, higher score."""
    return Loaded(lambda batch: CaseScores(batch.by_text([-len(text.split()) for text in batch.texts])))


def load_constant() -> Loaded:
    """Zero for every caption."""
    return Loaded(lambda batch: CaseScores(np.zeros(batch.captions.shape)))


def load_random(seed: str = "0") -> Loaded:
    """A number in [0, 1) from the seed, the item's id and the place of the caption, in any order of work."""
    if not seed.isdigit():
        raise ConfigError(f"seed must be a whole number, got {seed!r}")

    def score(batch: Cases) -> CaseScores:
        width = batch.captions.shape[1]
        return CaseScores(np.array([[_draw(seed, key, place) for place in range(width)] for key in batch.ids]))

    return Loaded(score, f"seed:{seed}")


def _draw(seed: str, key: str, place: int) -> float:
    digest = blake2b(f"{seed}\n{place}\n{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
