"""Scorers that integrations share, so that weights are loaded once per process."""

import threading
from collections import OrderedDict
from concurrent.futures import Future
from typing import TypeAlias

from msdscore.errors import ConfigError
from msdscore.scorer import Scorer
from msdscore.scoring.spec import ScorerSpec

ScorerLike: TypeAlias = Scorer | ScorerSpec | str  # a str is the name of an encoder
_SHARED = 4  # scorers that stay loaded; a process rarely needs two
_scorers: OrderedDict[ScorerSpec, Future[Scorer]] = OrderedDict()  # the least recently used first
_scorers_lock = threading.Lock()  # never locked while a scorer is loaded: that may load another one


def described(given: ScorerLike) -> Scorer | ScorerSpec:
    """Convert a name to a spec, which is small, picklable and loaded on first use; others are returned unchanged.

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
    spec = described(given)
    if isinstance(spec, Scorer):
        return spec
    # Evaluation harnesses call from several threads, and weights must not be loaded twice.
    with _scorers_lock:
        is_first = spec not in _scorers
        future = _scorers.setdefault(spec, Future())
        _scorers.move_to_end(spec)
        while len(_scorers) > _SHARED:
            _scorers.popitem(last=False)
    if is_first:
        try:
            future.set_result(Scorer.from_spec(spec))
        except BaseException as error:  # noqa: BLE001, it is raised below, in every waiting thread
            with _scorers_lock:
                if _scorers.get(spec) is future:
                    del _scorers[spec]
            future.set_exception(error)
    return future.result()
