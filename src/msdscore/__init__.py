"""Judge image captions without references, and see which words the image does not support."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from msdscore.version import __version__

if TYPE_CHECKING:
    from msdscore.encoders.base import Embeddings, Encoder
    from msdscore.encoders.registry import list_encoders, load_encoder, register
    from msdscore.errors import (
        CaptionError,
        ConfigError,
        ImageError,
        InputError,
        MissingExtraError,
        MSDScoreError,
        RowError,
        RunError,
        UnknownNameError,
        WeightsError,
    )
    from msdscore.explain.explanation import Explanation, Explanations
    from msdscore.forms.base import Measurement
    from msdscore.forms.evidence import Evidence
    from msdscore.forms.paper import Paper
    from msdscore.io.images import ImageLimits
    from msdscore.scorer import Scorer
    from msdscore.scoring.bank import NamedBank, build_bank, load_bank, save_bank
    from msdscore.scoring.results import Score, Scores
    from msdscore.scoring.spec import ScorerSpec

_EXPORTS = {
    "CaptionError": "msdscore.errors",
    "ConfigError": "msdscore.errors",
    "Embeddings": "msdscore.encoders.base",
    "Encoder": "msdscore.encoders.base",
    "Evidence": "msdscore.forms.evidence",
    "Explanation": "msdscore.explain.explanation",
    "Explanations": "msdscore.explain.explanation",
    "ImageError": "msdscore.errors",
    "ImageLimits": "msdscore.io.images",
    "InputError": "msdscore.errors",
    "MSDScoreError": "msdscore.errors",
    "Measurement": "msdscore.forms.base",
    "MissingExtraError": "msdscore.errors",
    "NamedBank": "msdscore.scoring.bank",
    "Paper": "msdscore.forms.paper",
    "RowError": "msdscore.errors",
    "RunError": "msdscore.errors",
    "Score": "msdscore.scoring.results",
    "Scorer": "msdscore.scorer",
    "ScorerSpec": "msdscore.scoring.spec",
    "Scores": "msdscore.scoring.results",
    "UnknownNameError": "msdscore.errors",
    "WeightsError": "msdscore.errors",
    "build_bank": "msdscore.scoring.bank",
    "list_encoders": "msdscore.encoders.registry",
    "load_bank": "msdscore.scoring.bank",
    "load_encoder": "msdscore.encoders.registry",
    "register": "msdscore.encoders.registry",
    "save_bank": "msdscore.scoring.bank",
}

__all__ = [
    "CaptionError",
    "ConfigError",
    "Embeddings",
    "Encoder",
    "Evidence",
    "Explanation",
    "Explanations",
    "ImageError",
    "ImageLimits",
    "InputError",
    "MSDScoreError",
    "Measurement",
    "MissingExtraError",
    "NamedBank",
    "Paper",
    "RowError",
    "RunError",
    "Score",
    "Scorer",
    "ScorerSpec",
    "Scores",
    "UnknownNameError",
    "WeightsError",
    "__version__",
    "build_bank",
    "list_encoders",
    "load_bank",
    "load_encoder",
    "register",
    "save_bank",
]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'msdscore' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
