"""Which captions belong to which image, in ragged sets that are never padded to the largest one."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Int
from torch import Tensor

from msdscore.core.blocks import Block


@dataclass(frozen=True, slots=True)
class CandidateSets:
    """The captions of every image: `order[first[i] : first[i] + size[i]]` are those of image i."""

    order: Int[Tensor, " captions"]
    first: Int[Tensor, " images"]
    size: Int[Tensor, " images"]  # on the CPU: it decides how the work is cut

    @classmethod
    def of(cls, owner: Int[Tensor, " captions"], images: int) -> "CandidateSets":
        """Sets from the image number of every caption."""
        size = torch.bincount(owner, minlength=images)
        return CandidateSets(owner.argsort(stable=True), size.cumsum(0) - size, size.cpu())

    def largest_first(self, block: Block) -> Block:
        """The block with its images ordered by the size of their sets, so that each round is a prefix of it."""
        size = self.size[block.items.cpu()]
        order = size.argsort(descending=True, stable=True)
        kept = bool((order[1:] > order[:-1]).all())
        return block if kept else replace(block, items=block.items[order.to(block.items.device)], whole=False)

    def rounds(self, block: Block) -> Iterator[Int[Tensor, " some"]]:
        """First captions of all images of an ordered block, then second captions of those that have one, and so on."""
        size = self.size[block.items.cpu()]
        for turn in range(int(size.max()) if len(size) else 0):
            some = int((size > turn).sum())
            yield self.order[self.first[block.items[:some]] + turn]
