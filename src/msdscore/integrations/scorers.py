"""Scorers shared by all integrations, loaded once per spec and process."""

import threading
from functools import lru_cache
from typing import TypeAlias

from msdscore.errors import ConfigError
from msdscore.scorer import Scorer
from msdscore.scoring.spec import ScorerSpec

# Accepted by every integration: a scorer, a spec, or the name of an encoder.
ScorerLike: TypeAlias = Scorer | ScorerSpec | str

# Columns of logs, in this order, if the score has them.
LOGGED = ("msd", "match", "similarity", "denial", "precision", "information", "doubt", "coverage", "support")
_CACHED = 4  # scorers; a process rarely needs two
_LOADING = threading.Lock()
_load = lru_cache(maxsize=_CACHED)(Scorer.from_spec)


def described(given: ScorerLike) -> Scorer | ScorerSpec:
    """Convert a name to a spec, which is small, picklable and loaded on first use; others are unchanged.

    >>> described("toy").encoder
    'toy'
    """
    if isinstance(given, str):
        return ScorerSpec(encoder=given)
    if not isinstance(given, Scorer | ScorerSpec):
        raise ConfigError(f"expected a Scorer, a ScorerSpec or the name of an encoder, got {type(given).__name__}")
    return given


def shared_scorer(given: ScorerLike) -> Scorer:
    """Return the scorer of a spec, loaded once per process; a scorer is returned unchanged.

    >>> shared_scorer("toy") is shared_scorer(ScorerSpec(encoder="toy"))
    True
    """
    found = described(given)
    if isinstance(found, Scorer):
        return found
    with _LOADING:  # harnesses call from several threads, and weights must not be loaded twice
        return _load(found)
