"""BLIP for image-text matching through transformers: patches and tokens in the space of its contrastive heads."""

from collections.abc import Sequence
from typing import Any

import torch

from msdscore.core.device import sent
from msdscore.core.embeddings import unit
from msdscore.encoders.backbone import (
    Backbone,
    Identity,
    LargeOptions,
    compile_towers,
    place,
    read_options,
    square_layouts,
)
from msdscore.encoders.base import Features, Prepared
from msdscore.encoders.loading.checkpoints import find_checkpoint
from msdscore.encoders.loading.transformers import load_placed, load_tokenizer, square_preprocessing
from msdscore.encoders.text.tokens import Reading, join_windows, literal_backend, special_ids, unpack_tokens
from msdscore.encoders.vision.preprocessing import mask_of

_NEEDS = (("preprocessor_config.json", "processor_config.json"), ("tokenizer.json", "vocab.txt"))


class BlipEncoder(Backbone):
    """Patches, tokens and pooled vectors of one BLIP-ITM model.

    Every state of a tower goes through the projection of that tower; the first one is the pooled vector, the
    others are patches and tokens. The matching head, which reads both sides at once, is not used.
    """

    def _see(self, images: Sequence[Prepared]) -> Features:
        model = self._model
        states = model.vision_model(pixel_values=self._pixels(images))
        vectors = model.vision_proj(states.last_hidden_state)
        layout = square_layouts(images, model.config.vision_config)
        return Features(vectors[:, 1:], mask_of(layout), unit(vectors[:, 0]), layout)

    def _read(self, texts: Sequence[str]) -> Features:
        model = self._model
        batch = self._pack(texts)
        states = model.text_encoder(
            input_ids=sent(batch.ids, self.device), attention_mask=sent(batch.attention, self.device).long()
        )
        vectors = model.text_proj(states.last_hidden_state)
        return Features(
            unpack_tokens(vectors, batch), batch.mask, join_windows(vectors[:, 0], batch.windows), batch.layout
        )


def load_blip(
    source: str, *, name: str, revision: str | None = None, device: str = "auto", dtype: str = "auto", **options: Any
) -> BlipEncoder:
    """Load a BLIP image-text retrieval checkpoint from a folder or a hub name.

    Raises:
        WeightsError: files are missing, damaged, or of another kind of model.
    """
    chosen = read_options(LargeOptions, options)
    checkpoint = find_checkpoint(source, revision=revision, needs=_NEEDS)
    placed = place(device, dtype, half=torch.float16)
    model, placement = load_placed("BlipForImageTextRetrieval", checkpoint, placed, chosen)
    compile_towers(chosen, model.vision_model, model.text_encoder)
    tokenizer = load_tokenizer(checkpoint)
    backend = literal_backend(tokenizer.backend_tokenizer)
    prefix, suffix = special_ids(backend)
    context = int(model.config.text_config.max_position_embeddings)
    return BlipEncoder(
        Identity(name, checkpoint.signed(name), placement, chosen, chosen.bits_choice),
        model=model,
        tokenizer=backend,
        preprocessing=chosen.applied(square_preprocessing(checkpoint, int(model.config.vision_config.image_size))),
        reading=Reading(
            context, prefix, suffix, int(tokenizer.pad_token_id), chosen.long_text, unknown=tokenizer.unk_token_id
        ),
    )
