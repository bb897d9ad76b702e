"""Files of banks: the mixtures of background pictures and captions, beside an encoder's weights or on their own."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from msdscore.core.calibration import Bank
from msdscore.core.evidence import WordCalibration
from msdscore.core.fusion import Match
from msdscore.core.mixture import Mixture
from msdscore.errors import WeightsError

FORMAT = "msdscore-bank-1"


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
    softer = float(metadata.get("captions_kappa", kappa))
    kappas = {"images": kappa, "texts": kappa, "captions": softer}
    sides = {side: _mixture(tensors, side, own) for side, own in kappas.items() if f"{side}.means" in tensors}
    words = WordCalibration(**json.loads(metadata["words"])) if "words" in metadata else None
    match = _match(json.loads(metadata["match"])) if "match" in metadata else None
    bank = Bank(sides["images"], sides.get("texts"), sides.get("captions"), words, match)
    return bank, metadata.get("encoder", "")


def bank_bytes(bank: Bank, *, encoder: str = "", half: bool = False) -> bytes:
    """The content of a bank's file; in half precision it takes half the room."""
    metadata = {"format": FORMAT, "encoder": encoder, "kappa": repr(bank.images.kappa), **bank_facts(bank)}
    tensors = bank_tensors(bank)
    stored = {name: tensor.half() if half else tensor for name, tensor in tensors.items()}
    return _ordered(save(stored, metadata=metadata))


def _ordered(content: bytes) -> bytes:
    """The same file with its header sorted: the library writes metadata in an order that changes from run to run."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8:end]), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    header += b" " * (-len(header) % 8)  # tensors start at a multiple of eight bytes
    return len(header).to_bytes(8, "little") + header + content[end:]


def bank_facts(bank: Bank) -> dict[str, str]:
    """What a bank knows beside its mixtures, as text: how words are read, and how scores become probabilities."""
    facts = {} if bank.captions is None else {"captions_kappa": repr(bank.captions.kappa)}
    known = {"words": bank.words, "match": bank.match}
    return facts | {name: json.dumps(asdict(one)) for name, one in known.items() if one is not None}


def bank_tensors(bank: Bank) -> dict[str, Tensor]:
    """The tensors of a bank: `images.means`, `images.log_weights`, and `texts.*`, `captions.*` where it has them."""
    given = {"images": bank.images, "texts": bank.texts, "captions": bank.captions}
    sides = {side: mixture for side, mixture in given.items() if mixture is not None}
    tensors = {f"{side}.means": mixture.means for side, mixture in sides.items()}
    tensors |= {f"{side}.log_weights": mixture.log_weights for side, mixture in sides.items()}
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def _match(facts: dict[str, Any]) -> Match:
    if "log_odds" not in facts:
        raise WeightsError("the bank is of an earlier version; build it again with: msdscore bank --pairs")
    return Match(tuple(facts["scores"]), tuple(facts["log_odds"]), facts["settings"])


def _mixture(tensors: dict[str, Tensor], side: str, kappa: float) -> Mixture:
    return Mixture(tensors[f"{side}.means"], tensors[f"{side}.log_weights"], kappa)
