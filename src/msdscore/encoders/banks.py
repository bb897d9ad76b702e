"""Banks of background images and captions: built from any images, stored in files, named in signatures.

A file is next to an encoder's weights or separate; it also has the calibration of words and a vocabulary, if there are.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from hashlib import sha256
from math import sqrt
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from PIL.Image import Image
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from msdscore.core.arrays import Device, integers, to_numpy
from msdscore.core.divergence import fit_all
from msdscore.core.evidence import Bank, Familiarity, Match, Vocabulary, WordCalibration, WordKind
from msdscore.core.mixture import FitSettings, Mixture
from msdscore.encoders.base import Embeddings, Encoder, encode_by_length, encode_in_batches, prepare_and_encode
from msdscore.encoders.fingerprint import encoder_signature
from msdscore.errors import ConfigError, WeightsError
from msdscore.io.files import pixel_key, text_key

FORMAT = "msdscore-bank-2"
_VOCABULARY_FACTS = ("words", "stems", "coefficients")
_VOCABULARY_TENSORS = ("frequency", "points", "alike")


class CalibratedForm(Protocol):
    """The requirements of a form on its bank."""

    @property
    def image_fit(self) -> FitSettings:
        """Fit settings of the mixtures of images."""

    @property
    def text_fit(self) -> FitSettings | None:
        """Fit settings of the mixtures of captions; None for a form that has none."""

    def check_bank(self, bank: Bank, name: str) -> None:
        """Raise `ConfigError` for a bank that these settings cannot use."""


@dataclass(frozen=True, slots=True)
class BankQuality:
    """How well a calibration separates true from likely false, on images that it was not fitted on.

    `words` and `match` are areas under the ROC curve (0.5 is chance) of words and of whole captions, over `images`
    held-out images.
    """

    words: float
    match: float
    images: int

    @property
    def chance(self) -> float:
        """The area that random values exceed once in twenty, with one true and one false value per image."""
        return min(1.0, 0.5 + 1.645 * sqrt((2 * self.images + 1) / 12) / self.images)


@dataclass(frozen=True, slots=True)
class NamedBank:
    """A bank with its name in the signature, and the signature of its encoder.

    `quality` is known when the bank has just been calibrated; it is not stored in the file.
    """

    name: str
    encoder: str
    bank: Bank
    quality: BankQuality | None = field(default=None, compare=False)
    _copies: dict[Device, Bank] = field(default_factory=dict, init=False, repr=False, compare=False)

    def on(self, device: Device) -> Bank:
        """Return the bank on a device: NumPy arrays for "cpu", tensors for a device of torch. It is copied once."""
        if device not in self._copies:
            texts = None if self.bank.texts is None else self.bank.texts.on(device)
            self._copies[device] = replace(self.bank, images=self.bank.images.on(device), texts=texts)
        return self._copies[device]

    def require(self, encoder: str, form: CalibratedForm) -> None:
        """Raise `ConfigError` unless the bank was built for this encoder's signature, these mixtures and this form."""
        if self.encoder != encoder:
            raise ConfigError(
                f"the bank {self.name} was built for encoder {self.encoder}, not for {encoder}; "
                "build one with: msdscore bank IMAGES --pairs ROWS.jsonl -o bank.safetensors and the --encoder of this "
                "run"
            )
        for side, mixtures, fit in (
            ("image", self.bank.images, form.image_fit),
            ("text", self.bank.texts, form.text_fit),
        ):
            if mixtures is None or fit is None:
                continue
            if (mixtures.kappa, mixtures.means.shape[1]) != (fit.kappa, fit.components):
                raise ConfigError(
                    f"the bank {self.name} has {side} mixtures of {mixtures.means.shape[1]} components with kappa "
                    f"{mixtures.kappa:g}, the configuration needs {fit.components} with {fit.kappa:g}; "
                    "build a matching one with: msdscore bank IMAGES --pairs ROWS.jsonl -o bank.safetensors and the "
                    "--encoder and --form of this run, or score without a bank: --form short"
                )
        form.check_bank(self.bank, self.name)


def named(bank: Bank, encoder: str) -> NamedBank:
    """Return a bank with its name: its size and a short hash of its content, e.g. `128@1f0c9a2b`.

    `encoder` is the signature of its encoder.
    """
    return NamedBank(f"{len(bank.images)}@{bank.digest or content_digest(bank)}", encoder, bank)


def content_digest(bank: Bank) -> str:
    """Return eight hexadecimal digits for the tensors and settings of a bank.

    Raises:
        ConfigError: a tensor contains NaN.
    """
    # The order of metadata in the file is not fixed, so they are hashed separately from the tensors.
    facts = "".join(f"{name}={value}" for name, value in sorted(bank_facts(bank).items()))
    tensors = bank_tensors(bank)
    if any(np.isnan(tensor).any() for tensor in tensors.values()):
        raise ConfigError("the encoder returned vectors that are not finite for the bank; load it with dtype='float32'")
    digest = sha256(save(tensors))
    digest.update(facts.encode())
    return digest.hexdigest()[:8]


def build_bank(
    encoder: Encoder,
    form: CalibratedForm,
    images: Sequence[Image],
    captions: Sequence[str] = (),
    *,
    batch_size: int = 32,
) -> NamedBank:
    """Fit the mixtures of background images, and of background captions if coverage is calibrated too."""
    if len(images) < 2:
        raise ConfigError(f"a bank needs at least 2 images, got {len(images)}; a few hundred are typical")
    image_side = encode_in_batches(images, partial(prepare_and_encode, encoder), size=batch_size)
    image_mixtures = _mixtures(image_side, [pixel_key(image) for image in images], form.image_fit)
    text_mixtures = None
    if captions and form.text_fit is not None:
        text_side = encode_by_length(captions, encoder.encode_texts, size=4 * batch_size)
        text_mixtures = _mixtures(text_side, [text_key(caption) for caption in captions], form.text_fit)
    return named(Bank(image_mixtures, text_mixtures), encoder_signature(encoder))


def save_bank(named: NamedBank, path: Path) -> None:
    """Write a bank as safetensors."""
    from msdscore.io.targets import put  # imports the output formats, which a score does not need

    put(path, bank_bytes(named.bank, encoder=named.encoder), overwrite=True)


def load_bank(path: Path) -> NamedBank:
    """Read a bank that `save_bank` wrote."""
    return named(*read_bank(path))


def _mixtures(batch: Embeddings, keys: Sequence[int], fit: FitSettings) -> Mixture:
    keyed = replace(batch, keys=integers(keys, like=batch.mask))
    return fit_all(keyed, fit).on("cpu")


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
