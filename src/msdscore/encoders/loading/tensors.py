"""Read the tensors of weight files without running anything that a file may hold."""

from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from msdscore.errors import WeightsError


def read_tensors(files: Iterable[Path]) -> dict[str, Tensor]:
    """All tensors of some files, by safetensors or `torch.load(weights_only=True)`.

    Raises:
        WeightsError: a file is damaged, or holds anything but tensors.
    """
    tensors: dict[str, Tensor] = {}
    for path in files:
        try:
            tensors |= _tensors(path)
        except Exception as error:  # damaged files raise anything
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise WeightsError(f"weights of {str(path)!r} cannot be loaded ({reason}); fetch the file again") from error
    return tensors


def _tensors(path: Path) -> dict[str, Tensor]:
    if path.suffix == ".safetensors":
        return load_file(path)
    loaded = torch.load(path, map_location="cpu", weights_only=True)
    return loaded.get("state_dict", loaded)
