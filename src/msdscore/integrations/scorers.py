"""One loaded scorer per description and process, shared by everything that scores inside another tool."""

import threading
from functools import lru_cache
from typing import TypeAlias

from msdscore.errors import ConfigError
from msdscore.scorer import Scorer
from msdscore.scoring.spec import ScorerSpec

# What every integration takes: a scorer, the description of one, or the name of an encoder.
ScorerLike: TypeAlias = Scorer | ScorerSpec | str

# What logs and tables show of a score, in this order, where its form has it and it is known.
SHOWN = ("msd", "match", "similarity", "denial", "precision", "information", "doubt", "coverage", "support")
_KEPT = 4  # scorers that stay loaded; a process rarely needs two
_LOADING = threading.Lock()


def described(given: ScorerLike) -> Scorer | ScorerSpec:
    """The same, with a name as a description: small, picklable, and loaded when it is first needed.

    >>> described("toy").encoder
    'toy'
    """
    if isinstance(given, str):
        return ScorerSpec(encoder=given)
    if not isinstance(given, Scorer | ScorerSpec):
        raise ConfigError(f"expected a Scorer, a ScorerSpec or the name of an encoder, got {type(given).__name__}")
    return given


def shared_scorer(given: ScorerLike) -> Scorer:
    """The scorer of a description, loaded once per process; a scorer is given back as it is.

    >>> shared_scorer("toy") is shared_scorer(ScorerSpec(encoder="toy"))
    True
    """
    found = described(given)
    if isinstance(found, Scorer):
        return found
    with _LOADING:  # harnesses call from several threads, and weights must not be loaded twice
        return _loaded(found)


@lru_cache(maxsize=_KEPT)
def _loaded(spec: ScorerSpec) -> Scorer:
    return Scorer.from_spec(spec)
