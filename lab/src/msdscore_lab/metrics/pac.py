"""PAC-S and RefPAC-S from the checkpoint files that their authors released, through open_clip."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor

from msdscore.errors import WeightsError, require
from msdscore.intervals import Floats
from msdscore.io.files import file_key
from msdscore_lab.metrics.base import Cases, CaseScores, Loaded
from msdscore_lab.metrics.encoded import PREFIX, harmonic, nearest_reference
from msdscore_lab.metrics.registry import choice
from msdscore_torch.backbone import place

WEIGHT = 2.0  # w of the released script
FAMILIES = ("openai", "open_clip")  # backbones of clip_ViT-B-32.pth and openClip_ViT-L-14.pth
_BATCH = 32
_MEAN = {"openai": (0.48145466, 0.4578275, 0.40821073), "open_clip": (0.5, 0.5, 0.5)}
_STD = {"openai": (0.26862954, 0.26130258, 0.27577711), "open_clip": (0.5, 0.5, 0.5)}


def load_pac(path: str, device: str = "auto", family: str = "openai") -> Loaded:
    """2·max(cos, 0) of the image and the prefixed caption."""
    towers = PacTowers(path, device, family)
    return Loaded(lambda batch: CaseScores(towers.score(batch)[0]), towers.choices)


def load_refpac(path: str, device: str = "auto", family: str = "openai") -> Loaded:
    """Harmonic mean of PAC-S and max(cos, 0) with the nearest reference; NaN without references."""
    towers = PacTowers(path, device, family)

    def score(batch: Cases) -> CaseScores:
        pac, captions = towers.score(batch)
        return CaseScores(harmonic(pac, nearest_reference(captions, batch.references, towers.texts)))

    return Loaded(score, towers.choices)


class PacTowers:
    """Image and text tower of a PAC-S checkpoint, which return unit vectors."""

    def __init__(self, path: str, device: str, family: str) -> None:
        choice("family", family, FAMILIES)
        open_clip: Any = require("open_clip", extra="openclip")
        state = _state(path)
        self._device = place(device, "float32").device
        self._model = _build(state, quick_gelu=family == "openai", path=path).to(self._device)
        self._tokenize = open_clip.SimpleTokenizer(context_length=int(state["positional_embedding"].shape[0]))
        self._prepare = open_clip.image_transform(
            self._model.visual.image_size, is_train=False, mean=_MEAN[family], std=_STD[family]
        )
        self.choices = f"ckpt:{Path(path).name}@{file_key(Path(path))[:8]}|family:{family}|w:{WEIGHT:g}"

    def images(self, images: Sequence[Image]) -> Floats:
        """Return unit vectors of images."""
        return self._encode(
            images, self._model.encode_image, lambda batch: torch.stack([self._prepare(image) for image in batch])
        )

    def texts(self, texts: Sequence[str]) -> Floats:
        """Return unit vectors of prefixed texts, truncated at the context length as in the released script."""
        return self._encode(
            texts, self._model.encode_text, lambda batch: self._tokenize([PREFIX + text for text in batch])
        )

    @torch.no_grad()
    def _encode(
        self, items: Sequence[Any], encode: Callable[[Tensor], Tensor], prepare: Callable[..., Tensor]
    ) -> Floats:
        if not items:
            return np.zeros((0, 1))
        batches = (items[start : start + _BATCH] for start in range(0, len(items), _BATCH))
        rows = torch.cat([encode(prepare(batch).to(self._device)) for batch in batches]).double()
        unit: Floats = (rows / rows.norm(dim=1, keepdim=True)).cpu().numpy()
        return unit

    def score(self, batch: Cases) -> tuple[Floats, Floats]:
        """Return PAC-S of every candidate, NaN without an image, and the unit vectors of the candidates."""
        captions: Floats = self.texts(batch.texts)[batch.captions]
        readable = {index: image for index, image in enumerate(batch.images) if image is not None}
        images = np.full((len(batch.images), captions.shape[2]), np.nan)
        if readable:
            images[list(readable)] = self.images(list(readable.values()))
        cosine = (images[batch.owner][:, None, :] * captions).sum(axis=2)
        return WEIGHT * np.maximum(cosine, 0.0), captions


def _state(path: str) -> dict[str, Tensor]:
    """Load the tensors of a released file; no code of the file is executed."""
    if not Path(path).is_file():
        raise WeightsError(f"{path}: no such file; download the checkpoint from https://github.com/aimagelab/pacscore")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files raise various errors
        raise WeightsError(f"{path} cannot be read as tensors ({type(error).__name__}); download it again") from error
    state: dict[str, Tensor] = content.get("state_dict", content)
    if "visual.proj" not in state or "positional_embedding" not in state:
        raise WeightsError(f"{path} does not contain a CLIP model with a ViT; expected a PAC-S checkpoint")
    return state


def _build(state: dict[str, Tensor], *, quick_gelu: bool, path: str) -> Any:
    model_module: Any = require("open_clip.model", extra="openclip")
    try:
        model = model_module.build_model_from_openai_state_dict(dict(state), quick_gelu=quick_gelu).float()
        # The builder rounds to half precision; the second load restores the numbers of the file.
        model.load_state_dict({key: value.float() for key, value in state.items() if value.ndim or "scale" in key})
    except (KeyError, RuntimeError) as error:
        detail = str(error).splitlines()[0]
        raise WeightsError(f"{path} does not fit a CLIP model ({detail}); expected a PAC-S checkpoint") from error
    return model.eval()
