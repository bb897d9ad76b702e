"""The CLIP family through transformers: patches and tokens projected into the space of the pooled vectors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from PIL.Image import Image
from torch import Tensor

from msdscore.core.sphere import masked_mean, real_points, unit
from msdscore.encoders.base import Embeddings
from msdscore.encoders.frames import Frame, frame_batch, on_picture, patch_layout
from msdscore.encoders.hf import load_frame, load_model, load_tokenizer
from msdscore.encoders.placement import Placement, place, read_options, require_choice
from msdscore.encoders.texts import Reading, literal_backend, pack, tokenise, unpack_pooled, unpack_tokens
from msdscore.encoders.weights import Checkpoint, find_checkpoint
from msdscore.errors import ConfigError, WeightsError

_NEEDS = (("preprocessor_config.json", "processor_config.json"), ("tokenizer.json", "vocab.json"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipOptions:
    """What a user can choose about a CLIP encoder."""

    patch_norm: bool = False  # the authors project patches without the final norm of the tower
    pool: str = "model"  # or "mean": of the local vectors, as the paper's text has it
    long_text: str = "window"  # or "cut"

    def __post_init__(self) -> None:
        require_choice("pool", self.pool, ("model", "mean"))
        require_choice("long_text", self.long_text, ("window", "cut"))


@dataclass(frozen=True, slots=True)
class ClipParts:
    """What a checkpoint consists of once it is loaded."""

    model: Any  # transformers.CLIPModel
    backend: Any  # tokenizers.Tokenizer
    frame: Frame
    reading: Reading


class ClipEncoder:
    """Patches, tokens and pooled vectors of one CLIP model.

    Patches are the last hidden states without CLS, tokens those without start and end, each through the
    projection that the pooled vector takes. Vectors come out in float32 whatever the model computes in, as
    plain tensors without history: heads can be trained on them.
    """

    def __init__(self, parts: ClipParts, *, name: str, signed: str, placement: Placement, options: ClipOptions) -> None:
        self._parts = parts
        self._name = name
        self._signed = signed
        self._placement = placement
        self._options = options
        vision = parts.model.config.vision_config
        self._patch = int(vision.patch_size)
        self._grid = (int(vision.image_size) // self._patch,) * 2

    @property
    def name(self) -> str:
        """The name it was loaded by."""
        return self._name

    @property
    def signature(self) -> str:
        """Everything that can change a vector, as `key:value` parts joined by commas."""
        options = self._options
        norm = "yes" if options.patch_norm else "no"
        choices = f"norm:{norm},pool:{options.pool},long:{options.long_text}"
        return f"{self._signed},{choices},dtype:{self._placement.dtype_name}"

    @property
    def device(self) -> torch.device:
        """Where the vectors are made."""
        return self._placement.device

    @torch.no_grad()
    def encode_images(self, images: Sequence[Image]) -> Embeddings:
        """Patches and pooled vectors; `layout` holds a `PatchLayout` an item."""
        _require_items(images, "picture")
        model, frame = self._parts.model, self._parts.frame
        pixels, views = frame_batch(images, frame, self.device)
        states = model.vision_model(pixel_values=pixels.to(self._placement.dtype))
        patches = states.last_hidden_state[:, 1:]
        if self._options.patch_norm:
            patches = model.vision_model.post_layernorm(patches)
        points = unit(model.visual_projection(patches))
        layout = tuple(patch_layout(view, self._grid, (self._patch, self._patch)) for view in views)
        mask = torch.stack([on_picture(item) for item in layout]).to(self.device)
        pooled = unit(model.visual_projection(states.pooler_output))
        return self._embeddings(points, mask, pooled, layout)

    @torch.no_grad()
    def encode_texts(self, texts: Sequence[str]) -> Embeddings:
        """Tokens and pooled vectors; `layout` holds a `TokenLayout` an item."""
        _require_items(texts, "caption")
        model = self._parts.model
        batch = pack([tokenise(self._parts.backend, text) for text in texts], self._parts.reading)
        states = model.text_model(
            input_ids=batch.ids.to(self.device), attention_mask=batch.attention.to(self.device).long()
        )
        points = unit(model.text_projection(unpack_tokens(states.last_hidden_state, batch)))
        pooled = unpack_pooled(model.text_projection(states.pooler_output), batch)
        return self._embeddings(points, batch.mask.to(self.device), pooled, batch.layout)

    def _embeddings(
        self, points: Float[Tensor, "batch points dim"], mask: Tensor, pooled: Tensor, layout: Any
    ) -> Embeddings:
        real = real_points(points, mask)
        if not (torch.isfinite(real).all() and torch.isfinite(pooled).all()):
            raise ConfigError(
                f"{self._name} overflows in {self._placement.dtype_name}; "
                "load it with dtype='float32' or dtype='bfloat16'"
            )
        return Embeddings(real, mask, masked_mean(real, mask) if self._options.pool == "mean" else pooled, layout)


def load_clip(
    source: str,
    *,
    name: str,
    revision: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    **options: Any,
) -> ClipEncoder:
    """Load a CLIP checkpoint from a folder or a hub name.

    On CUDA `auto` means float16: CLIP's numbers fit its range, and it rounds eight times finer than bfloat16.

    Raises:
        WeightsError: files are missing, damaged, or of another kind of model.
    """
    chosen = read_options(ClipOptions, options)
    placement = place(device, dtype, half=torch.float16)
    checkpoint = find_checkpoint(source, revision=revision, needs=_NEEDS)
    model = load_model("CLIPModel", checkpoint).to(device=placement.device, dtype=placement.dtype).eval()
    tokenizer = load_tokenizer(checkpoint)
    parts = ClipParts(
        model=model,
        backend=literal_backend(tokenizer),
        frame=_fitting_frame(checkpoint, int(model.config.vision_config.image_size)),
        reading=_reading(model, tokenizer, chosen.long_text),
    )
    return ClipEncoder(parts, name=name, signed=checkpoint.signed(name), placement=placement, options=chosen)


def _fitting_frame(checkpoint: Checkpoint, image_size: int) -> Frame:
    frame = load_frame(checkpoint)
    canvas = frame.crop or frame.resize
    if canvas != (image_size, image_size):
        raise WeightsError(
            f"the preprocessor of {checkpoint.source!r} should give {image_size} x {image_size} pixels "
            f"as its model takes, but gives {canvas}; copy the file from its base model"
        )
    return frame


def _reading(model: Any, tokenizer: Any, long_text: str) -> Reading:
    end = int(tokenizer.eos_token_id)
    return Reading(
        context=int(model.config.text_config.max_position_embeddings),
        prefix=(int(tokenizer.bos_token_id),),
        suffix=(end,),
        pad=end,  # the pooled state is that of the first end token
        long_text=long_text,
    )


def _require_items(items: Sequence[object], kind: str) -> None:
    if not items:
        raise ConfigError(f"expected at least one {kind} to encode, got none")
