"""Files of tensors: model weights, and banks of background images and captions, words and vocabulary.

Loading a file never runs code from it. A bank is stored next to an encoder's weights or separately.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from msdscore.core.evidence import Bank, Match, Vocabulary, WordCalibration, WordKind
from msdscore.core.mixture import Mixture
from msdscore.errors import WeightsError

_MATRIX = 2  # dimensions of tensors stored as bytes
_STEPS = 127  # of a byte on either side of zero
FORMAT = "msdscore-bank-2"
_VOCABULARY_FACTS = ("words", "stems", "coefficients")
_VOCABULARY_TENSORS = ("frequency", "points", "alike")


def read_tensors(files: Iterable[Path]) -> dict[str, Tensor]:
    """Read all tensors of files, by safetensors or `torch.load(weights_only=True)`.

    Raises:
        WeightsError: a file is damaged, or contains anything but tensors.
    """
    tensors: dict[str, Tensor] = {}
    for path in files:
        try:
            if path.suffix == ".safetensors":
                tensors |= load_file(path)
            else:
                loaded = torch.load(path, map_location="cpu", weights_only=True)
                tensors |= loaded.get("state_dict", loaded)
        except Exception as error:  # damaged files raise anything
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise WeightsError(f"weights of {str(path)!r} cannot be loaded ({reason}); download it again") from error
    return tensors


def packed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Matrices as bytes with a scale per row, a quarter of float32; everything else in half precision.

    Convolutions remain in half precision, too: their errors would add up over the layers of a network.

    >>> small = packed({"line.weight": torch.tensor([[1.0, -0.5], [0.0, 0.25]]), "line.bias": torch.ones(2)})
    >>> sorted(small), small["line.weight"].dtype
    (['line.bias', 'line.weight', 'line.weight.scale'], torch.int8)
    >>> widened(small)["line.weight"].round(decimals=2)
    tensor([[ 1.0000, -0.5000],
            [ 0.0000,  0.2500]])
    """
    small: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.ndim != _MATRIX:
            small[name] = tensor.to(torch.float16).contiguous()
            continue
        scale = tensor.float().abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny) / _STEPS
        small |= {name: (tensor.float() / scale).round().to(torch.int8).contiguous(), f"{name}.scale": scale}
    return small


def widened(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors in float32, whatever they are stored in."""
    wide = {}
    for name, tensor in tensors.items():
        if tensor.dtype == torch.int8:
            wide[name] = tensor.float() * tensors[f"{name}.scale"]
        elif not (name.endswith(".scale") and tensors.get(name.removesuffix(".scale"), tensor).dtype == torch.int8):
            wide[name] = tensor.float()
    return wide


def read_bank(path: Path) -> tuple[Bank, str]:
    """Read a bank, and the signature of the encoder that it was built for (empty next to that encoder's weights).

    Raises:
        WeightsError: the file is missing, damaged or not a bank.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, no mapping
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{path}: cannot be read as a bank ({error}); build one with: msdscore bank") from error
    tensors = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in stored.items()}
    if metadata.get("format") != FORMAT:
        raise WeightsError(f"{path}: is not a bank of background images; build one with: msdscore bank")
    kappa = float(metadata["kappa"])
    sides = {
        side: Mixture(tensors[f"{side}.means"], tensors[f"{side}.log_weights"], kappa)
        for side in ("images", "texts")
        if f"{side}.means" in tensors
    }
    bank = Bank(sides["images"], sides.get("texts"))
    if "words" in metadata:
        facts = json.loads(metadata["words"])
        kinds = tuple(WordKind(**{**kind, "quantiles": tuple(kind["quantiles"])}) for kind in facts["kinds"])
        bank = replace(bank, words=WordCalibration(**{**facts, "kinds": kinds}))
    if "match" in metadata:
        facts = json.loads(metadata["match"])
        bank = replace(bank, match=Match(tuple(facts["coefficients"]), facts["settings"]))
    if "vocabulary" in metadata:
        facts = json.loads(metadata["vocabulary"])
        values: dict[str, Any] = {name: tuple(facts[name]) for name in _VOCABULARY_FACTS}
        values |= {name: tensors[f"vocabulary.{name}"] for name in _VOCABULARY_TENSORS}
        bank = replace(bank, vocabulary=Vocabulary(**values))
    return bank, metadata.get("encoder", "")


def bank_bytes(bank: Bank, *, encoder: str = "", half: bool = False) -> bytes:
    """Serialise a bank; half precision halves its size."""
    metadata = {"format": FORMAT, "encoder": encoder, "kappa": repr(bank.images.kappa), **bank_facts(bank)}
    tensors = bank_tensors(bank)
    stored = {
        name: tensor.half() if half and name != "vocabulary.frequency" and tensor.is_floating_point() else tensor
        for name, tensor in tensors.items()
    }
    content = save(stored, metadata=metadata)
    # The header is sorted: the library writes metadata in an order that changes from run to run.
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.dumps(json.loads(content[8:end]), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    header += b" " * (-len(header) % 8)  # tensors start at a multiple of eight bytes
    return len(header).to_bytes(8, "little") + header + content[end:]


def bank_facts(bank: Bank) -> dict[str, str]:
    """The settings of a bank as text, in addition to its tensors: word calibration and match probabilities."""
    facts = {name: asdict(value) for name in ("words", "match") if (value := getattr(bank, name)) is not None}
    if bank.vocabulary is not None:
        facts["vocabulary"] = {name: getattr(bank.vocabulary, name) for name in _VOCABULARY_FACTS}
    return {name: json.dumps(value, ensure_ascii=False) for name, value in facts.items()}


def bank_tensors(bank: Bank) -> dict[str, Tensor]:
    """The tensors of a bank: `images.means`, `images.log_weights`, and, if present, `texts.*` and `vocabulary.*`."""
    tensors: dict[str, Tensor] = {}
    for side, mixture in {"images": bank.images, "texts": bank.texts}.items():
        if mixture is not None:
            tensors |= {f"{side}.means": mixture.means, f"{side}.log_weights": mixture.log_weights}
    if bank.vocabulary is not None:
        tensors |= {f"vocabulary.{name}": getattr(bank.vocabulary, name) for name in _VOCABULARY_TENSORS}
    return {name: tensor.contiguous() for name, tensor in tensors.items()}
