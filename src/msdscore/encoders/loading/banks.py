"""Files of banks: background images and captions, words and vocabulary, beside an encoder's weights or on their own."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from msdscore.core.evidence import Bank, Match, Vocabulary, WordCalibration, WordKind
from msdscore.core.mixture import Mixture
from msdscore.errors import WeightsError

FORMAT = "msdscore-bank-2"
EARLIER = "msdscore-bank-1"  # holds background images and captions alike; its words are read in another way


def read_bank(path: Path) -> tuple[Bank, str]:
    """A bank, and the signature of the encoder that it was built for (empty beside that encoder's own weights).

    Raises:
        WeightsError: the file is missing, damaged or no bank.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, no mapping
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{path}: cannot be read as a bank ({error}); build one with: msdscore bank") from error
    tensors = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in stored.items()}
    if metadata.get("format") not in (FORMAT, EARLIER):
        raise WeightsError(f"{path}: is no bank of background images; build one with: msdscore bank")
    if metadata["format"] == EARLIER and "words" in metadata:
        raise WeightsError(f"{path}: the bank is of an earlier version; build it again with: msdscore bank --pairs")
    kappa = float(metadata["kappa"])
    sides = {
        side: Mixture(tensors[f"{side}.means"], tensors[f"{side}.log_weights"], kappa)
        for side in ("images", "texts")
        if f"{side}.means" in tensors
    }
    facts = {name: json.loads(metadata[name]) for name in ("words", "match", "vocabulary") if name in metadata}
    bank = Bank(
        sides["images"],
        sides.get("texts"),
        _words(facts["words"]) if "words" in facts else None,
        Match(tuple(facts["match"]["coefficients"]), facts["match"]["settings"]) if "match" in facts else None,
        _vocabulary(facts["vocabulary"], tensors) if "vocabulary" in facts else None,
    )
    return bank, metadata.get("encoder", "")


def bank_bytes(bank: Bank, *, encoder: str = "", half: bool = False) -> bytes:
    """The content of a bank's file; in half precision it takes half the room."""
    metadata = {"format": FORMAT, "encoder": encoder, "kappa": repr(bank.images.kappa), **bank_facts(bank)}
    tensors = bank_tensors(bank)
    stored = {
        name: tensor.half() if half and name != "vocabulary.frequency" and tensor.is_floating_point() else tensor
        for name, tensor in tensors.items()
    }
    return _ordered(save(stored, metadata=metadata))


def _ordered(content: bytes) -> bytes:
    """The same file with its header sorted: the library writes metadata in an order that changes from run to run."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8:end]), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    header += b" " * (-len(header) % 8)  # tensors start at a multiple of eight bytes
    return len(header).to_bytes(8, "little") + header + content[end:]


def bank_facts(bank: Bank) -> dict[str, str]:
    """What a bank knows beside its tensors, as text: how words are read, and how scores become probabilities."""
    facts = {name: asdict(value) for name in ("words", "match") if (value := getattr(bank, name)) is not None}
    if bank.vocabulary is not None:
        facts["vocabulary"] = {name: getattr(bank.vocabulary, name) for name in _VOCABULARY_FACTS}
    return {name: json.dumps(value, ensure_ascii=False) for name, value in facts.items()}


_VOCABULARY_FACTS = ("words", "stems", "coefficients")
_VOCABULARY_TENSORS = ("frequency", "points", "alike")


def bank_tensors(bank: Bank) -> dict[str, Tensor]:
    """The tensors of a bank: `images.means`, `images.log_weights`, and `texts.*`, `vocabulary.*` where it has them."""
    tensors: dict[str, Tensor] = {}
    for side, mixture in {"images": bank.images, "texts": bank.texts}.items():
        if mixture is not None:
            tensors |= {f"{side}.means": mixture.means, f"{side}.log_weights": mixture.log_weights}
    if bank.vocabulary is not None:
        tensors |= {f"vocabulary.{name}": getattr(bank.vocabulary, name) for name in _VOCABULARY_TENSORS}
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def _words(facts: dict[str, Any]) -> WordCalibration:
    kinds = tuple(WordKind(**{**kind, "quantiles": tuple(kind["quantiles"])}) for kind in facts["kinds"])
    return WordCalibration(**{**facts, "kinds": kinds})


def _vocabulary(facts: dict[str, Any], tensors: dict[str, Tensor]) -> Vocabulary:
    values: dict[str, Any] = {name: tuple(facts[name]) for name in _VOCABULARY_FACTS}
    values |= {name: tensors[f"vocabulary.{name}"] for name in _VOCABULARY_TENSORS}
    return Vocabulary(**values)
