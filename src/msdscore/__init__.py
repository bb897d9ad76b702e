"""Judge image captions without references, and see which words the image does not support."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from msdscore.threads import wait_passively
from msdscore.version import __version__

if TYPE_CHECKING:
    from msdscore.encoders.banks import NamedBank, build_bank, load_bank, save_bank
    from msdscore.encoders.base import Embeddings, Encoder
    from msdscore.encoders.cached import CacheSettings
    from msdscore.encoders.registry import EncoderRow, list_encoders, load_encoder, register_encoder
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
    from msdscore.forms.registry import register_form
    from msdscore.io.images import ImageLimits, sample_image
    from msdscore.rows.rules import ColumnNames
    from msdscore.run.options import RunOptions, ScoredFile
    from msdscore.scorer import Scorer
    from msdscore.scoring.results import Score, Scores
    from msdscore.scoring.spec import ScorerSpec

# Every name is imported from its module on first use.
_EXPORTS = {
    name: f"msdscore.{module}"
    for module, names in {
        "encoders.banks": "NamedBank build_bank load_bank save_bank",
        "encoders.base": "Embeddings Encoder",
        "encoders.cached": "CacheSettings",
        "encoders.registry": "EncoderRow list_encoders load_encoder register_encoder",
        "errors": "CaptionError ConfigError ImageError InputError MSDScoreError MissingExtraError RowError RunError "
        "UnknownNameError WeightsError",
        "explain.explanation": "Explanation Explanations",
        "forms.base": "Measurement",
        "forms.evidence": "Evidence",
        "forms.paper": "Paper",
        "forms.registry": "register_form",
        "io.images": "ImageLimits sample_image",
        "rows.rules": "ColumnNames",
        "run.options": "RunOptions ScoredFile",
        "scorer": "Scorer",
        "scoring.results": "Score Scores",
        "scoring.spec": "ScorerSpec",
    }.items()
    for name in names.split()
}
__all__ = [
    "CacheSettings", "CaptionError", "ColumnNames", "ConfigError", "Embeddings", "Encoder", "EncoderRow", "Evidence",
    "Explanation", "Explanations", "ImageError", "ImageLimits", "InputError", "MSDScoreError", "Measurement",
    "MissingExtraError", "NamedBank", "Paper", "RowError", "RunError", "RunOptions", "Score", "ScoredFile", "Scorer",
    "ScorerSpec", "Scores", "UnknownNameError", "WeightsError", "__version__", "build_bank", "list_encoders",
    "load_bank", "load_encoder", "register_encoder", "register_form", "sample_image", "save_bank",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        wait_passively()  # before the module imports torch
        return getattr(import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'msdscore' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
