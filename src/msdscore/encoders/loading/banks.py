"""Files of banks: the mixtures of background pictures and captions, beside an encoder's weights or on their own."""

from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from msdscore.core.calibration import Bank
from msdscore.core.mixture import Mixture
from msdscore.errors import WeightsError

FORMAT = "msdscore-bank-1"
FILE = "bank.safetensors"  # in the folder of an encoder that brings one


def read_bank(path: Path) -> tuple[Bank, str]:
    """A bank, and the signature of the encoder that it was built for (empty beside that encoder's own weights).

    Raises:
        WeightsError: the file is missing, damaged or no bank.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118, no mapping
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{path}: cannot be read as a bank ({error}); build one with: msdscore bank") from error
    if metadata.get("format") != FORMAT:
        raise WeightsError(f"{path}: is no bank of background pictures; build one with: msdscore bank")
    kappa = float(metadata["kappa"])
    sides = {side: _mixture(tensors, side, kappa) for side in ("images", "texts") if f"{side}.means" in tensors}
    return Bank(sides["images"], sides.get("texts")), metadata.get("encoder", "")


def bank_bytes(bank: Bank, *, encoder: str = "", half: bool = False) -> bytes:
    """The content of a bank's file; in half precision it takes half the room."""
    metadata = {"format": FORMAT, "encoder": encoder, "kappa": repr(bank.images.kappa)}
    tensors = bank_tensors(bank)
    return save({name: tensor.half() if half else tensor for name, tensor in tensors.items()}, metadata=metadata)


def bank_tensors(bank: Bank) -> dict[str, Tensor]:
    """The tensors of a bank: `images.means`, `images.log_weights`, and `texts.*` where there are captions."""
    sides = {"images": bank.images} | ({} if bank.texts is None else {"texts": bank.texts})
    tensors = {f"{side}.means": mixture.means for side, mixture in sides.items()}
    tensors |= {f"{side}.log_weights": mixture.log_weights for side, mixture in sides.items()}
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def _mixture(tensors: dict[str, Tensor], side: str, kappa: float) -> Mixture:
    return Mixture(tensors[f"{side}.means"], tensors[f"{side}.log_weights"], kappa)
