"""One line that names everything that can change a score."""

from msdscore.encoders.base import Encoder
from msdscore.scoring.config import MSDConfig
from msdscore.version import __version__


def signature(encoder: Encoder, config: MSDConfig, bank: str | None = None) -> str:
    """`key:value` parts joined by bars; equal signatures and inputs give equal scores.

    >>> from msdscore.encoders.registry import load_encoder
    >>> signature(load_encoder("toy"), MSDConfig()).split("|v:")[0]
    'msd|enc:toy@1|k:3,2|kappa:20|it:20|init:spread|a:0.1|gate:length,20,3|xi:0.2'
    """
    parts = [
        "msd",
        f"enc:{encoder.signature}",
        f"k:{config.components[0]},{config.components[1]}",
        f"kappa:{config.kappa:g}",
        f"it:{config.iterations}",
        f"init:{_init(config)}",
        f"a:{config.alpha:g}",
        f"gate:{_gate(config)}",
        f"xi:{config.temperature:g}",
        *([] if bank is None else [f"cal:background,{bank}"]),
        f"v:{__version__}",
    ]
    return "|".join(parts)


def _init(config: MSDConfig) -> str:
    return f"sample,{config.seed}" if config.init == "sample" else config.init


def _gate(config: MSDConfig) -> str:
    if config.gate == "length":
        return f"length,{config.gate_center:g},{config.gate_width:g}"
    return f"fixed,{config.beta:g}" if config.gate == "fixed" else config.gate
