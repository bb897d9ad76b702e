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
        f"kappa:{_exact(config.kappa)}",
        f"it:{config.iterations}",
        f"init:{_init(config)}",
        f"a:{_exact(config.alpha)}",
        f"gate:{_gate(config)}",
        f"xi:{_exact(config.temperature)}",
        *([] if config.mixture == "vmf" else [f"mix:{config.mixture}"]),
        *([] if config.information == 0 else [f"i:{_exact(config.information)}"]),
        *([] if config.calibration != "evidence" else [f"tail:{_tail(config)}"]),
        *([] if bank is None else [f"cal:{config.calibration},{bank}"]),
        f"v:{__version__}",
    ]
    return "|".join(parts)


def _init(config: MSDConfig) -> str:
    return f"sample,{config.seed}" if config.init == "sample" else config.init


def _gate(config: MSDConfig) -> str:
    if config.gate == "length":
        return f"length,{_exact(config.gate_center)},{_exact(config.gate_width)}"
    return f"fixed,{_exact(config.beta)}" if config.gate == "fixed" else config.gate


def _tail(config: MSDConfig) -> str:
    """The weight of doubtful words, and the lengths at which captions count as long, which evidence always uses."""
    return ",".join(map(_exact, (config.tail, config.gate_center, config.gate_width)))


def _exact(number: float) -> str:
    """A number in as few digits as tell it from every other one.

    >>> _exact(20.0), _exact(0.1), _exact(0.10000001), _exact(1 / 3)
    ('20', '0.1', '0.10000001', '0.3333333333333333')
    """
    return repr(float(number)).removesuffix(".0")
