"""The position embeddings of LongCLIP: 248 of them, stretched from the 77 of a CLIP text tower.

The first 20 positions, the well-trained ones, stay as they are; every further step is cut into four.
"""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from msdscore.errors import ConfigError

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
