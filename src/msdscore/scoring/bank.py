"""Banks of background pictures: built once from any pictures, kept in a file, named in the signature."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path

import torch
from PIL.Image import Image
from safetensors.torch import save

from msdscore.core.calibration import Bank
from msdscore.core.mixture import Mixture
from msdscore.core.schedule import PointSet, fit_all
from msdscore.encoders.base import Embeddings, Encoder, encode_pictures
from msdscore.encoders.batches import encode_by_length, encode_in_batches
from msdscore.encoders.cached import unrounded
from msdscore.encoders.loading.banks import bank_bytes, bank_facts, bank_tensors, read_bank
from msdscore.errors import ConfigError
from msdscore.io.hashing import pixel_key, text_key
from msdscore.io.outputs.targets import put
from msdscore.scoring.comparison import fit_settings
from msdscore.scoring.config import MSDConfig


@dataclass(frozen=True, slots=True)
class NamedBank:
    """A bank with the name that the signature gives it, and the encoder whose space it lies in."""

    name: str
    encoder: str
    bank: Bank

    def require(self, encoder: Encoder, config: MSDConfig) -> None:
        """Refuse a bank that was not built for this encoder and these mixtures."""
        if self.encoder != unrounded(encoder.signature):
            raise ConfigError(
                f"the bank {self.name} was built for encoder {self.encoder}, not for {encoder.signature}; "
                "build one with: msdscore bank PICTURES -o bank.safetensors --encoder NAME"
            )
        for side, mixtures in zip(("image", "text"), (self.bank.images, self.bank.texts), strict=True):
            wanted = config.components[0 if side == "image" else 1]
            if mixtures is not None and (mixtures.kappa, mixtures.means.shape[1]) != (config.kappa, wanted):
                raise ConfigError(
                    f"the bank {self.name} has {side} mixtures of {mixtures.means.shape[1]} components with kappa "
                    f"{mixtures.kappa:g}, the configuration asks for {wanted} with {config.kappa:g}; "
                    "build one to fit with: msdscore bank PICTURES -o bank.safetensors, or score without a bank: "
                    "--preset short"
                )
        if config.calibration == "evidence":
            self._require_words(config)
        elif self.bank.texts is None and config.weighs_coverage:
            raise ConfigError(
                f"gate={config.gate} weighs coverage, and the bank {self.name} holds no captions to calibrate it; set "
                "gate=support or calibration=none, or build a bank with: msdscore bank PICTURES --captions FILE"
            )

    def _require_words(self, config: MSDConfig) -> None:
        if self.bank.words is None or (self.bank.captions is None and config.weighs_coverage):
            raise ConfigError(
                f"calibration=evidence needs a bank that was built from captioned pictures, and {self.name} was not; "
                "build one with: msdscore bank PICTURES --pairs ROWS.jsonl"
            )


def named(bank: Bank, encoder: Encoder) -> NamedBank:
    """A bank that was built for an encoder, with its name."""
    return NamedBank(_mark(bank), unrounded(encoder.signature), bank)


def own_bank(encoder: Encoder) -> NamedBank | None:
    """The bank that comes with an encoder, if it brings one."""
    return None if encoder.bank is None else named(encoder.bank, encoder)


def build_bank(
    encoder: Encoder,
    config: MSDConfig,
    pictures: Sequence[Image],
    captions: Sequence[str] = (),
    *,
    batch_size: int = 32,
) -> NamedBank:
    """Fit the mixtures of background pictures, and of background captions where coverage is to be calibrated too."""
    if len(pictures) < 2:
        raise ConfigError(f"a bank needs at least 2 pictures, got {len(pictures)}; some hundred serve well")
    image_side = encode_in_batches(pictures, partial(encode_pictures, encoder), size=batch_size)
    images = _mixtures(image_side, [pixel_key(picture) for picture in pictures], config, side=0)
    texts = None
    if captions:
        text_side = encode_by_length(captions, encoder.encode_texts, size=4 * batch_size)
        texts = _mixtures(text_side, [text_key(caption) for caption in captions], config, side=1)
    return named(Bank(images, texts), encoder)


def save_bank(named: NamedBank, path: Path) -> None:
    """Write a bank as safetensors."""
    put(path, bank_bytes(named.bank, encoder=named.encoder), overwrite=True)


def load_bank(path: Path) -> NamedBank:
    """Read a bank that `save_bank` wrote."""
    bank, encoder = read_bank(path)
    return NamedBank(_mark(bank), encoder, bank)


def moved(bank: Bank, device: torch.device) -> Bank:
    """The bank on a device."""
    texts, captions = (None if side is None else _moved(side, device) for side in (bank.texts, bank.captions))
    return replace(bank, images=_moved(bank.images, device), texts=texts, captions=captions)


def _moved(mixture: Mixture, device: torch.device) -> Mixture:
    return Mixture(mixture.means.to(device), mixture.log_weights.to(device), mixture.kappa)


def _mixtures(side_batch: Embeddings, keys: Sequence[int], config: MSDConfig, *, side: int) -> Mixture:
    device = side_batch.points.device
    points = PointSet(side_batch.points, side_batch.mask, torch.tensor(keys, dtype=torch.int64, device=device))
    return _moved(fit_all(points, fit_settings(config, config.components[side])), torch.device("cpu"))


def _mark(bank: Bank) -> str:
    """Size and a short hash of the content, e.g. `128@1f0c9a2b`."""
    # The order of metadata in the file is not fixed, so they are hashed apart from the tensors.
    facts = "".join(f"{name}={value}" for name, value in sorted(bank_facts(bank).items()))
    return f"{len(bank.images)}@{sha256(save(bank_tensors(bank)) + facts.encode()).hexdigest()[:8]}"
