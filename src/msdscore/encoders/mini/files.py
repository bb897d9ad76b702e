"""Files of the weight package `msdscore-mini`."""

from pathlib import Path

from msdscore.encoders.loading.checkpoints import locate
from msdscore.encoders.loading.hashing import verify_sums

PACKAGE = "package:msdscore_mini"


def base_file(name: str) -> Path:
    """Return a verified file of the installed weights, such as the frozen networks.

    Raises:
        WeightsError: the package is not installed, or the file is damaged.
    """
    path = Path(locate(f"{PACKAGE}/{name}"))
    verify_sums(path.parent, only=(name,))
    return path
