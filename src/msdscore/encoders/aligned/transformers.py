"""Hidden states of any transformers checkpoint as a frozen image or text tower."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from msdscore.encoders.aligned.towers import (
    ImageTowerSpec,
    Level,
    TextTowerSpec,
    TowerPlace,
    all_points,
    frozen,
    join_levels,
    keep_content,
    take_level,
)
from msdscore.encoders.backbone import place
from msdscore.encoders.base import Features, Prepared
from msdscore.encoders.loading.checkpoints import Checkpoint, find_checkpoint
from msdscore.encoders.loading.hashing import verify_files
from msdscore.encoders.loading.transformers import load_model, load_preprocessing, load_tokenizer
from msdscore.encoders.text.tokens import (
    Reading,
    TextBatch,
    join_windows,
    literal_backend,
    pack_texts,
    special_ids,
    unpack_tokens,
)
from msdscore.encoders.vision.preprocessing import (
    Preprocessing,
    on_picture,
    patch_layout,
    prepare_picture,
    stack_pixels,
)
from msdscore.errors import WeightsError

_LONGEST = 100_000  # tokenizers without a limit state an absurd one
_DEFAULT_CONTEXT = 512


class TransformersImages:
    """Hidden states of a vision transformer, without its special tokens."""

    def __init__(self, spec: ImageTowerSpec, where: TowerPlace, *, source: str) -> None:
        checkpoint, model = _open(spec, source)
        self.files: tuple[Path, ...] = checkpoint.weight_files()
        self._spec, self._whole = spec, where.whole
        self._place = place(where.device, where.dtype)
        self.device = self._place.device
        self._model = frozen(getattr(model, "vision_model", model), self._place)
        self.preprocessing: Preprocessing = load_preprocessing(checkpoint)

    def prepare(self, image: Image.Image) -> Prepared:
        """The image as the network takes it."""
        return prepare_picture(image, self.preprocessing)

    @torch.no_grad()
    def features(self, images: Sequence[Prepared]) -> Features:
        """The asked levels of every patch."""
        pixels = stack_pixels(images, self.preprocessing, self.device)
        states = self._model(pixel_values=pixels.to(self._place.dtype), output_hidden_states=True).hidden_states
        maps = [_as_map(state, self._model.config, pixels.shape[-2:]) for state in states]
        local = join_levels([take_level(maps, level) for level in self._spec.levels], self._spec.grid)
        rows, columns = int(local.shape[2]), int(local.shape[3])
        cells = [(image.view.canvas[0] / columns, image.view.canvas[1] / rows) for image in images]
        places = zip(images, cells, strict=True)
        layout = tuple(patch_layout(image.view, (rows, columns), cell) for image, cell in places)
        mask = torch.stack([on_picture(item) for item in layout]).to(self.device)
        whole = None
        if self._whole:
            levels, grid = self._spec.global_path
            whole = all_points(join_levels([take_level(maps, level) for level in levels], grid))
        return Features(all_points(local).points, mask, layout=layout, whole=whole)


class TransformersTexts:
    """Hidden states of any text encoder over the caption's own tokens; long captions are read in windows."""

    def __init__(self, spec: TextTowerSpec, where: TowerPlace, *, source: str) -> None:
        checkpoint, model = _open(spec, source)
        self.files: tuple[Path, ...] = checkpoint.weight_files()
        self._spec, self._whole = spec, where.whole
        self._place = place(where.device, where.dtype)
        self.device = self._place.device
        model = model.get_encoder() if getattr(model.config, "is_encoder_decoder", False) else model
        self._model = frozen(getattr(model, "text_model", model), self._place)
        tokenizer = load_tokenizer(checkpoint)
        self._reading = _reading(self._model, tokenizer, context=spec.context, long_text=where.long_text)
        self._backend = literal_backend(tokenizer)

    @torch.no_grad()
    def features(self, texts: Sequence[str]) -> Features:
        """The asked levels of every token."""
        batch = pack_texts(texts, self._backend, self._reading)
        states = self._model(
            input_ids=batch.ids.to(self.device),
            attention_mask=batch.attention.to(self.device).long(),
            output_hidden_states=True,
        ).hidden_states
        mask = batch.mask.to(self.device)

        def points(levels: tuple[Level, ...]) -> Features:
            chosen = torch.cat([take_level(states, level) for level in levels], dim=-1)
            return Features(unpack_tokens(chosen, batch).float(), mask)

        whole = points(self._spec.global_levels or self._spec.levels) if self._whole else None
        pooled = _sentence(states[-1], batch)
        every = replace(points(self._spec.levels), pooled=pooled, layout=batch.layout, whole=whole)
        return keep_content(every, texts) if self._spec.words == "content" else every


def _open(spec: ImageTowerSpec | TextTowerSpec, source: str) -> tuple[Checkpoint, Any]:
    """The files of a backbone, which are those that the spec was made with, and the model in them."""
    checkpoint = find_checkpoint(source, revision=spec.revision or None)
    verify_files(checkpoint.weight_files(), spec.sha256, source=spec.source)
    return checkpoint, load_model("AutoModel", checkpoint)


def _sentence(states: Float[Tensor, "windows positions dim"], batch: TextBatch) -> Float[Tensor, "batch dim"]:
    """A unit vector per caption: the mean of its last states, special tokens among them."""
    real = batch.attention.to(states.device).unsqueeze(-1)
    return join_windows((states.float() * real).sum(dim=1) / real.sum(dim=1).clamp_min(1), batch.windows)


def _as_map(states: Tensor, config: Any, size: Sequence[int]) -> Tensor:
    """Patches of a sequence of states as a map; special tokens stand before them."""
    patch = getattr(config, "patch_size", None)
    if not isinstance(patch, int):
        raise WeightsError(f"a tower of {config.model_type!r} has no square patches; use a timm model instead")
    rows, columns = size[0] // patch, size[1] // patch
    if states.dim() != 3 or states.shape[1] < rows * columns:
        raise WeightsError(f"a tower of {config.model_type!r} gives no row of patches; use a timm model instead")
    return states[:, states.shape[1] - rows * columns :].transpose(1, 2).unflatten(2, (rows, columns))


def _reading(model: Any, tokenizer: Any, *, context: int, long_text: str) -> Reading:
    prefix, suffix = special_ids(tokenizer.backend_tokenizer)
    pad = tokenizer.pad_token_id
    return Reading(
        context=context or _context(model, tokenizer),
        prefix=prefix,
        suffix=suffix,
        pad=int(pad if pad is not None else (suffix or prefix or (0,))[-1]),
        long_text=long_text,
    )


def _context(model: Any, tokenizer: Any) -> int:
    """What both the tokenizer and the position embeddings allow; RoBERTa's kin count positions from the pad on."""
    stated = int(min(tokenizer.model_max_length, _LONGEST))
    places = getattr(model.config, "max_position_embeddings", None)
    if isinstance(places, int):
        weight = getattr(getattr(model, "embeddings", None), "position_embeddings", None)
        skipped = getattr(weight, "padding_idx", None)
        stated = min(stated, places - (0 if skipped is None else skipped + 1))
    return stated if stated < _LONGEST else _DEFAULT_CONTEXT
