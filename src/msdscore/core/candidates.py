"""Which captions belong to which image, in ragged sets that are never padded to the largest one."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Int
from torch import Tensor

from msdscore.core.blocks import Block

# Captions of an image that are compared in one product. The number is fixed, so that a product's shape, and with it the
# rounding of every row, is the same however many captions there are; eight cost little more than one.
SLOTS = 8


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

    def rounds(self, block: Block) -> Iterator[Int[Tensor, "some slots"]]:
        """The first captions of all images of an ordered block, then the next of those that have more; −1 is none."""
        size = self.size[block.items.cpu()]
        for start in range(0, int(size.max()) if len(size) else 0, SLOTS):
            some = int((size > start).sum())
            turn = torch.arange(start, start + SLOTS, device=self.order.device)
            place = (self.first[block.items[:some]].unsqueeze(1) + turn).clamp(max=len(self.order) - 1)
            has = turn < size[:some].to(turn.device).unsqueeze(1)
            yield torch.where(has, self.order[place], -1)
