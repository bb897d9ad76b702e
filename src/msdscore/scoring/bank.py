"""Banks of background images: built once from any images, stored in a file, named in the signature."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from math import sqrt
from pathlib import Path

import numpy as np
from PIL.Image import Image
from safetensors.numpy import save

from msdscore.core.arrays import Device, integers
from msdscore.core.divergence import fit_all
from msdscore.core.evidence import Bank
from msdscore.core.mixture import FitSettings, Mixture
from msdscore.encoders.banks import bank_bytes, bank_facts, bank_tensors, read_bank
from msdscore.encoders.base import (
    Embeddings,
    Encoder,
    encode_by_length,
    encode_in_batches,
    prepare_and_encode,
)
from msdscore.encoders.fingerprint import encoder_signature
from msdscore.errors import ConfigError
from msdscore.forms.base import Form
from msdscore.io.files import pixel_key, text_key


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

    def require(self, encoder: str, form: Form) -> None:
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
    encoder: Encoder, form: Form, images: Sequence[Image], captions: Sequence[str] = (), *, batch_size: int = 32
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
