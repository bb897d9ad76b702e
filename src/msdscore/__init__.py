"""Judge image captions without references, and see which words the picture does not support."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from msdscore.version import __version__

if TYPE_CHECKING:
    from msdscore.encoders.base import Embeddings, Encoder
    from msdscore.encoders.registry import list_encoders, load_encoder, register
    from msdscore.explain.terms import Explanation, Explanations
    from msdscore.scoring.config import MSDConfig
    from msdscore.scoring.results import Score, Scores
    from msdscore.scoring.scorer import Scorer

_EXPORTS = {
    "Embeddings": "msdscore.encoders.base",
    "Encoder": "msdscore.encoders.base",
    "Explanation": "msdscore.explain.terms",
    "Explanations": "msdscore.explain.terms",
    "MSDConfig": "msdscore.scoring.config",
    "Score": "msdscore.scoring.results",
    "Scorer": "msdscore.scoring.scorer",
    "Scores": "msdscore.scoring.results",
    "list_encoders": "msdscore.encoders.registry",
    "load_encoder": "msdscore.encoders.registry",
    "register": "msdscore.encoders.registry",
}

__all__ = [
    "Embeddings",
    "Encoder",
    "Explanation",
    "Explanations",
    "MSDConfig",
    "Score",
    "Scorer",
    "Scores",
    "__version__",
    "list_encoders",
    "load_encoder",
    "register",
]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'msdscore' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
