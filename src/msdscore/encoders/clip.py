"""The CLIP family through transformers: patches and tokens projected into the space of the pooled vectors."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from msdscore.core.device import sent
from msdscore.core.embeddings import unit
from msdscore.encoders.backbone import (
    Backbone,
    Identity,
    LargeOptions,
    compile_towers,
    place,
    read_options,
    require_choice,
    square_layouts,
)
from msdscore.encoders.base import Features, Prepared
from msdscore.encoders.loading.checkpoints import find_checkpoint
from msdscore.encoders.loading.transformers import load_placed, load_tokenizer, square_preprocessing
from msdscore.encoders.text.tokens import Reading, join_windows, literal_backend, unpack_tokens
from msdscore.encoders.vision.preprocessing import mask_of
from msdscore.errors import ConfigError

_NEEDS = (("preprocessor_config.json", "processor_config.json"), ("tokenizer.json", "vocab.json"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipOptions(LargeOptions):
    """What a user can choose about a CLIP encoder."""

    patch_norm: bool = False  # the authors project patches without the final norm of the tower
    stretch: bool = False  # read 248 tokens at once, as LongCLIP starts from a CLIP of 77 positions
    crop: str = "transformers"  # or "torchvision": half a pixel beside the centre is rounded as in CLIP's own code

    def __post_init__(self) -> None:
        LargeOptions.__post_init__(self)
        require_choice("crop", self.crop, ("transformers", "torchvision"))


class ClipEncoder(Backbone):
    """Patches, tokens and pooled vectors of one CLIP model.

    Patches are the last hidden states without CLS, tokens those without start and end, each through the
    projection that the pooled vector takes.
    """

    def __init__(self, identity: Identity, *, patch_norm: bool, **parts: Any) -> None:
        super().__init__(identity, **parts)
        self._patch_norm = patch_norm

    def _see(self, images: Sequence[Prepared]) -> Features:
        model = self._model
        states = model.vision_model(pixel_values=self._pixels(images))
        patches = states.last_hidden_state[:, 1:]
        if self._patch_norm:
            patches = model.vision_model.post_layernorm(patches)
        layout = square_layouts(images, model.config.vision_config)
        pooled = unit(model.visual_projection(states.pooler_output))
        return Features(model.visual_projection(patches), mask_of(layout), pooled, layout)

    def _read(self, texts: Sequence[str]) -> Features:
        model = self._model
        batch = self._pack(texts)
        # No token looks ahead, so what stands behind a caption changes none of its states. A GPU gets no mask:
        # transformers would wait for the device to see what it holds, and attention without one is faster.
        attention = None if self.device.type == "cuda" else sent(batch.attention, self.device).long()
        states = model.text_model(input_ids=sent(batch.ids, self.device), attention_mask=attention)
        tokens = model.text_projection(unpack_tokens(states.last_hidden_state, batch))
        pooled = join_windows(model.text_projection(states.pooler_output), batch.windows)
        return Features(tokens, batch.mask, pooled, batch.layout)


def load_clip(
    source: str, *, name: str, revision: str | None = None, device: str = "auto", dtype: str = "auto", **options: Any
) -> ClipEncoder:
    """Load a CLIP or LongCLIP checkpoint from a folder or a hub name.

    On CUDA `auto` means float16: CLIP's numbers fit its range, and it rounds eight times finer than bfloat16.

    Raises:
        WeightsError: files are missing, damaged, or of another kind of model.
    """
    chosen = read_options(ClipOptions, options)
    checkpoint = find_checkpoint(source, revision=revision, needs=_NEEDS)
    placed = place(device, dtype, half=torch.float16)
    model, placement = load_placed("CLIPModel", checkpoint, placed, chosen)
    if chosen.stretch:
        stretch_text_model(model)
    compile_towers(chosen, model.vision_model, model.text_model)
    tokenizer = load_tokenizer(checkpoint)
    return ClipEncoder(
        Identity(name, checkpoint.signed(name), placement, chosen, _choices(chosen)),
        model=model,
        tokenizer=literal_backend(tokenizer.backend_tokenizer),
        preprocessing=replace(
            chosen.applied(square_preprocessing(checkpoint, int(model.config.vision_config.image_size))),
            even_centre=chosen.crop == "torchvision",
        ),
        reading=_reading(model, tokenizer, chosen.long_text),
        patch_norm=chosen.patch_norm,
    )


def _choices(options: ClipOptions) -> tuple[str, ...]:
    stretched = ("positions:248",) if options.stretch else ()
    cropped = ("crop:torchvision",) if options.crop == "torchvision" else ()
    return (f"norm:{'yes' if options.patch_norm else 'no'}", *stretched, *cropped, *options.bits_choice)


def _reading(model: Any, tokenizer: Any, long_text: str) -> Reading:
    end = int(tokenizer.eos_token_id)
    return Reading(
        context=int(model.config.text_config.max_position_embeddings),
        prefix=(int(tokenizer.bos_token_id),),
        suffix=(end,),
        pad=end,  # the pooled state is that of the first end token
        long_text=long_text,
    )


# LongCLIP: 248 positions, stretched from 77. The first 20 stay as they are; every further step is cut into four.
KEPT = 20  # Zhang et al. 2024, "Long-CLIP": positions that CLIP's captions trained well
FACTOR = 4


def stretch_positions(
    table: Float[Tensor, "positions dim"], *, kept: int = KEPT, factor: int = FACTOR
) -> Float[Tensor, "longer dim"]:
    """A table of `kept + factor * (positions - kept)` rows, linear between old rows and beyond the last one.

    >>> stretch_positions(torch.tensor([[0.0], [1.0], [2.0], [4.0]]), kept=2, factor=2).flatten()
    tensor([0., 1., 2., 3., 4., 5.])
    """
    rest = table[kept:]
    steps = torch.cat([rest[1:] - rest[:-1], rest[-1:] - rest[-2:-1]])
    shares = torch.arange(factor, dtype=table.dtype, device=table.device) / factor
    between = rest.unsqueeze(1) + shares.view(1, -1, 1) * steps.unsqueeze(1)
    return torch.cat([table[:kept], between.flatten(0, 1)])


def merge_positions(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """An original LongCLIP state dict with one position table where it has two.

    It adds the first rows of `positional_embedding`, which stayed frozen, and the later rows of
    `positional_embedding_res`, which were trained on.
    """
    merged = dict(state)
    trained = merged.pop("positional_embedding_res", None)
    if trained is not None:
        merged["positional_embedding"] = torch.cat([merged["positional_embedding"][:KEPT], trained[KEPT:]])
    return merged


def stretch_text_model(model: Any) -> None:
    """Give the text tower of a transformers CLIP model the longer table, in place.

    Raises:
        ConfigError: it has too few positions, or is a LongCLIP already.
    """
    embeddings = model.text_model.embeddings
    table = embeddings.position_embedding.weight
    if not KEPT + 2 <= len(table) < 248:
        raise ConfigError(f"stretch needs a text tower of 22 to 247 positions, got {len(table)}; leave the option out")
    longer = stretch_positions(table.detach())
    embeddings.position_embedding = torch.nn.Embedding.from_pretrained(longer, freeze=True)
    embeddings.register_buffer("position_ids", torch.arange(len(longer), device=longer.device)[None], persistent=False)
    model.config.text_config.max_position_embeddings = len(longer)
