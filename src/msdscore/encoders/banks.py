"""Files of banks: background images and captions, words and vocabulary; next to an encoder's weights or separate."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from msdscore.core.arrays import to_numpy
from msdscore.core.evidence import Bank, Familiarity, Match, Vocabulary, WordCalibration, WordKind
from msdscore.core.mixture import Mixture
from msdscore.errors import WeightsError

FORMAT = "msdscore-bank-2"
_VOCABULARY_FACTS = ("words", "stems", "coefficients")
_VOCABULARY_TENSORS = ("frequency", "points", "alike")


def read_bank(path: Path, *, digest: str = "") -> tuple[Bank, str]:
    """Read a bank, and the signature of the encoder that it was built for (empty next to that encoder's weights).

    `digest` is the hash of its content, if a verified file lists it: computing it takes longer than reading the bank.

    Raises:
        WeightsError: the file is missing, damaged or not a bank.
    """
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, no mapping
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{path}: cannot be read as a bank ({error}); build one with: msdscore bank") from error
    tensors = {
        name: tensor.astype(np.float32) if tensor.dtype == np.float16 else tensor for name, tensor in stored.items()
    }
    if metadata.get("format") != FORMAT:
        raise WeightsError(f"{path}: is not a bank of background images; build one with: msdscore bank")
    for name, tensor in tensors.items():
        if np.isnan(tensor).any():
            raise WeightsError(f"{path}: {name} contains NaN; build the bank again, with an encoder that is finite")
    try:
        bank = _parsed(tensors, metadata)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise WeightsError(f"{path}: is damaged ({type(error).__name__}: {error}); build it again") from error
    object.__setattr__(bank, "digest", digest)
    return bank, metadata.get("encoder", "")


def uncalibrated(bank: Bank | None, *, is_default: bool) -> Bank | None:
    """Return an encoder's own bank without its match, unless the encoder has the options it was calibrated with."""
    return bank if bank is None or is_default else replace(bank, match=None)


def _parsed(tensors: Mapping[str, npt.NDArray[Any]], metadata: Mapping[str, str]) -> Bank:
    kappa = float(metadata["kappa"])
    sides = {
        side: Mixture(tensors[f"{side}.means"], tensors[f"{side}.log_weights"], kappa)
        for side in ("images", "texts")
        if f"{side}.means" in tensors
    }
    bank = Bank(sides["images"], sides.get("texts"))
    if "words" in metadata:
        facts = json.loads(metadata["words"])
        lengths = tuple(_kinds(kinds) for kinds in facts.get("lengths", ()))
        words = WordCalibration(**{**facts, "kinds": _kinds(facts["kinds"]), "lengths": lengths})
        bank = replace(bank, words=words)
    if "match" in metadata:
        facts = json.loads(metadata["match"])
        slopes = tuple((constant, slope) for constant, slope in facts.get("lengths", ()))
        bank = replace(bank, match=Match(tuple(facts["coefficients"]), facts["settings"], slopes))
    if "vocabulary" in metadata:
        facts = json.loads(metadata["vocabulary"])
        values: dict[str, Any] = {name: tuple(facts[name]) for name in _VOCABULARY_FACTS}
        values |= {name: tensors[f"vocabulary.{name}"] for name in _VOCABULARY_TENSORS}
        bank = replace(bank, vocabulary=Vocabulary(**values))
    if "familiarity" in metadata:
        limit = float(json.loads(metadata["familiarity"])["limit"])
        bank = replace(bank, familiarity=Familiarity(tensors["familiarity.captions"], limit))
    _check_shapes(bank)
    return bank


def _check_shapes(bank: Bank) -> None:
    for mixture in (bank.images, bank.texts):
        if mixture is not None and (mixture.means.ndim != 3 or mixture.log_weights.shape != mixture.means.shape[:2]):
            raise ValueError(f"means {mixture.means.shape}, weights {mixture.log_weights.shape}")
    words = bank.vocabulary
    if words is not None:
        count, points = len(words.words), words.points
        shapes = (len(words.stems), *words.frequency.shape, *points.shape[:1], len(words.alike))
        if points.shape[1:] != bank.images.means.shape[2:] or set(shapes) != {count}:
            raise ValueError(f"a vocabulary of {count} words with tensors of {sorted(set(shapes))}, {points.shape}")


def _kinds(stored: Iterable[Mapping[str, Any]]) -> tuple[WordKind, ...]:
    return tuple(WordKind(**{**kind, "quantiles": tuple(kind["quantiles"])}) for kind in stored)


def bank_bytes(bank: Bank, *, encoder: str = "", half: bool = False) -> bytes:
    """Serialise a bank; half precision halves its size."""
    metadata = {"format": FORMAT, "encoder": encoder, "kappa": repr(bank.images.kappa), **bank_facts(bank)}
    tensors = bank_tensors(bank)
    stored = {
        name: tensor.astype(np.float16)
        if half and name != "vocabulary.frequency" and tensor.dtype.kind == "f"
        else tensor
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
    facts = {name: value for name in ("words", "match") if (value := getattr(bank, name)) is not None}
    if bank.vocabulary is not None:
        facts["vocabulary"] = {name: getattr(bank.vocabulary, name) for name in _VOCABULARY_FACTS}
    if bank.familiarity is not None:
        facts["familiarity"] = {"limit": bank.familiarity.limit}
    return {name: json.dumps(value, ensure_ascii=False, default=_fields) for name, value in facts.items()}


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


def bank_tensors(bank: Bank) -> dict[str, npt.NDArray[Any]]:
    """The tensors of a bank: of `images`, and, if present, of `texts`, `vocabulary` and `familiarity`."""
    tensors: dict[str, npt.NDArray[Any]] = {}
    for side, mixture in {"images": bank.images, "texts": bank.texts}.items():
        if mixture is not None:
            tensors |= {f"{side}.means": mixture.means, f"{side}.log_weights": mixture.log_weights}
    if bank.vocabulary is not None:
        tensors |= {f"vocabulary.{name}": getattr(bank.vocabulary, name) for name in _VOCABULARY_TENSORS}
    if bank.familiarity is not None:
        tensors["familiarity.captions"] = bank.familiarity.captions
    return {name: np.ascontiguousarray(to_numpy(tensor)) for name, tensor in tensors.items()}
