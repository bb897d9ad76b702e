"""Sampling of a step: images in groups of similar ones, and the texts of each."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from msdscore.core.arrays import Float, Int
from msdscore.core.embeddings import unit
from train_mini.recipe import MiniSample
from train_mini.texts import TextPool, TokenRows

_NEAR = 40  # images among which the members of a group are drawn
_ROWS = 2048  # images compared with all others at once
_NAME = 12  # largest number of tokens of a class name in its frame
_SHORT, _JOINED, _LONG = 32, 62, 80  # largest numbers of tokens of captions, of joined captions, of paragraphs


@torch.no_grad()
def nearest(references: Float[Tensor, "positions dim"], items: Int[Tensor, " positions"]) -> npt.NDArray[np.int64]:
    """Return the most similar positions for each position of an epoch, nearest first, never of the same image."""
    vectors, parts = unit(references), []
    few = min(_NEAR, len(vectors) - 1)
    for part in torch.arange(len(vectors), device=vectors.device).split(_ROWS):
        alike = vectors[part] @ vectors.mT
        alike[items[part].unsqueeze(1) == items] = -2.0
        parts.append(alike.topk(few, dim=1).indices)
    return torch.cat(parts).cpu().numpy()


def grouped_order(
    near: npt.NDArray[np.int64], items: npt.NDArray[np.int64], *, group: int, seed: int, epoch: int
) -> npt.NDArray[np.int64]:
    """Return the positions of an epoch in groups of `group` similar images without repetition; a remainder is dropped.

    `items[i]` is the image at position i; an image may have several positions.

    >>> near = np.array([[1, 2], [0, 3], [3, 0], [2, 1]])
    >>> sorted(grouped_order(near, np.arange(4), group=2, seed=0, epoch=0).tolist())
    [0, 1, 2, 3]
    """
    numbers = np.random.default_rng([seed, epoch])
    used, groups = np.zeros(len(near), dtype=np.bool_), list[npt.NDArray[np.int64]]()
    for position in numbers.permutation(len(near)):
        if used[position]:
            continue
        free = near[position][~used[near[position]] & (items[near[position]] != items[position])]
        free = free[np.sort(np.unique(items[free], return_index=True)[1])][: 3 * group]
        if len(free) < group - 1:
            continue
        members = np.append(position, numbers.permutation(free)[: group - 1])
        used[members] = True
        groups.append(members)
    rest = numbers.permutation(np.flatnonzero(~used))
    groups += list(rest[: len(rest) // group * group].reshape(-1, group))
    return np.concatenate([groups[number] for number in numbers.permutation(len(groups))])


@dataclass(frozen=True, slots=True)
class Pools:
    """All texts of a run by kind; negatives belong to captions, names to classes, the rest to images."""

    captions: TextPool
    machine: TextPool
    joined: TextPool
    short: TextPool
    long: TextPool
    negatives: TextPool
    classes: TextPool  # names of object classes in frames


@dataclass(frozen=True, slots=True)
class StepTexts:
    """Texts of one step: two captions per image, a hard negative of the first if it has one, texts by rule."""

    captions: TokenRows  # image by image
    negative: TokenRows
    negative_owner: Int[Tensor, " negatives"]  # the caption of each
    machine: TokenRows
    machine_owner: Int[Tensor, " machine"]  # the image of each, by its index in the batch
    short: TokenRows
    short_owner: Int[Tensor, " short"]
    long: TokenRows
    long_owner: Int[Tensor, " long"]
    classes: TokenRows  # every class in one frame


def step_texts(
    pools: Pools, items: Int[Tensor, " batch"], spec: MiniSample, *, generator: torch.Generator
) -> StepTexts:
    """Draw the texts of a step; every second image has a long one."""
    drawn = torch.rand(9, len(items), generator=generator, device=items.device)
    positions = torch.arange(len(items), device=items.device)
    counts = pools.captions.counts[items]
    first = (drawn[0] * counts).long().minimum(counts - 1)
    step = 1 + (drawn[1] * (counts - 1)).long().minimum((counts - 2).clamp_min(0))
    start = pools.captions.first[items] + first
    second = pools.captions.first[items] + (first + step) % counts
    captions = pools.captions.rows(torch.stack([start, second], dim=1).flatten(), _JOINED)
    joined = pools.joined.rows(pools.joined.pick(items, drawn[2]).repeat_interleave(2), _JOINED)
    replaced = torch.stack([torch.zeros_like(drawn[3]).bool(), drawn[3] < spec.joined], dim=1).flatten()
    wrong = pools.negatives.pick(start, drawn[4])
    owner = (wrong >= 0).nonzero().squeeze(1)
    machine = pools.machine.pick(items, drawn[5])
    known = (machine >= 0).nonzero().squeeze(1)
    by_machine = (machine >= 0) & (drawn[6] < 0.5)
    short = pools.short.rows(pools.short.pick(items, drawn[7]), _SHORT)
    return StepTexts(
        captions=captions.where(replaced, joined),
        negative=pools.negatives.rows(wrong[owner], _SHORT),
        negative_owner=2 * owner,
        machine=pools.machine.rows(machine[known], _SHORT),
        machine_owner=known,
        short=short.where(by_machine, pools.machine.rows(machine, _SHORT)),
        short_owner=positions,
        long=pools.long.rows(pools.long.pick(items[::2], drawn[8, ::2]), _LONG),
        long_owner=positions[::2],
        classes=_framed(pools.classes, generator),
    )


def _framed(classes: TextPool, generator: torch.Generator) -> TokenRows:
    """Return every class once, in a random frame."""
    every = torch.arange(len(classes.counts), device=classes.counts.device)
    drawn = torch.rand(len(every), generator=generator, device=every.device)
    return classes.rows(classes.pick(every, drawn), _NAME)
