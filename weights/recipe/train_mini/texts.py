"""Texts on the device: tokens of many texts in flat arrays, from which padded rows are built for each step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from msdscore.core.arrays import Bool, Float, Int
from msdscore.encoders.tokens import tokenise
from msdscore.text.words import stem, token_contents
from msdscore_torch.aligned.minilm import CLS, PAD, SEP, MiniLMTexts

NO_WORD, UNKNOWN_WORD = -1, -2  # a token outside content words; one of a content word without an id
LONGEST = 126  # largest number of tokens of a text


@dataclass(frozen=True, slots=True)
class FlatTexts:
    """Concatenated tokens of all texts; `counts[i]` texts belong to owner i, in order."""

    ids: npt.NDArray[np.int32]
    words: npt.NDArray[np.int32]  # the number of each token's word
    sizes: npt.NDArray[np.int32]  # tokens of each text
    counts: npt.NDArray[np.int32]


def flatten(owned: Sequence[Sequence[str]], tower: MiniLMTexts, number: Mapping[str, int]) -> FlatTexts:
    """Return tokens and word ids of the texts of every owner; `number` has the id of each stem."""
    ids, words, sizes = list[int](), list[int](), list[int]()
    for texts in owned:
        for text in texts:
            tokens = tokenise(tower.tokenizer, text)
            ids += tokens.ids[:LONGEST]
            words += [_word(word, number) for word in token_contents(text, tokens.spans)[:LONGEST]]
            sizes.append(min(LONGEST, len(tokens.ids)))
    arrays = [np.array(values, dtype=np.int32) for values in (ids, words, sizes, [len(texts) for texts in owned])]
    return FlatTexts(*arrays)


def _word(word: str, number: Mapping[str, int]) -> int:
    return number.get(stem(word), UNKNOWN_WORD) if word else NO_WORD


@dataclass(frozen=True, slots=True)
class TokenRows:
    """Padded tokens of texts, with the special tokens of the tower."""

    ids: Int[Tensor, "texts positions"]
    words: Int[Tensor, "texts positions"]
    mask: Bool[Tensor, "texts positions"]

    def trimmed(self) -> "TokenRows":
        """Return the rows without columns that are padding in all of them."""
        width = int(self.mask.sum(dim=1).max()) if len(self.mask) else 2
        return TokenRows(self.ids[:, :width], self.words[:, :width], self.mask[:, :width])

    def content_positions(
        self,
    ) -> tuple[Int[Tensor, "texts content"], Bool[Tensor, "texts content"], Int[Tensor, "texts content"]]:
        """Return the positions of the tokens of content words, in order, their mask, and the ids of their words."""
        content = self.words != NO_WORD
        counts = content.sum(dim=1, keepdim=True)
        width = int(counts.max()) if len(counts) else 0
        positions = content.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :width]
        real = torch.arange(width, device=positions.device) < counts
        return positions, real, torch.where(real, self.words.gather(1, positions).long(), NO_WORD)

    def where(self, chosen: Bool[Tensor, " texts"], other: "TokenRows") -> "TokenRows":
        """Return the chosen rows from `other`, the rest from these rows; both must have the same width."""
        pick = chosen.unsqueeze(1)
        return TokenRows(
            torch.where(pick, other.ids, self.ids),
            torch.where(pick, other.words, self.words),
            torch.where(pick, other.mask, self.mask),
        )


class TextPool:
    """Texts of one kind on a device, by owner."""

    def __init__(self, flat: FlatTexts, tower: MiniLMTexts) -> None:
        device = tower.device
        # One token and one text without owner, so that index -1 is valid even in an empty pool.
        self.ids, self.words, self.sizes = (
            torch.from_numpy(np.append(values, filler)).to(device)
            for values, filler in ((flat.ids, 0), (flat.words, NO_WORD), (flat.sizes.astype(np.int64), 0))
        )
        self.counts = torch.from_numpy(flat.counts).to(device).long()
        self._starts = self.sizes.cumsum(0) - self.sizes
        self.first = self.counts.cumsum(0) - self.counts

    def __len__(self) -> int:
        return len(self.sizes) - 1

    @property
    def owners(self) -> Int[Tensor, " texts"]:
        """The owner of every text."""
        return torch.arange(len(self.counts), device=self.counts.device).repeat_interleave(self.counts)

    def rows(self, index: Int[Tensor, " texts"], width: int) -> TokenRows:
        """Return texts by index, truncated to `width` tokens; a negative index is a text without tokens."""
        size = torch.where(index >= 0, self.sizes[index], 0).clamp(max=width)
        column = torch.arange(width, device=index.device)
        real = column < size.unsqueeze(1)
        source = (self._starts[index].unsqueeze(1) + column).clamp(max=len(self.ids) - 1)
        ids = torch.full((len(index), width + 2), PAD, dtype=torch.long, device=index.device)
        ids[:, 1:-1] = torch.where(real, self.ids[source].long(), PAD)
        ids[:, 0] = CLS
        ids.scatter_(1, (size + 1).unsqueeze(1), SEP)
        words = torch.full((len(index), width + 2), NO_WORD, dtype=torch.int32, device=index.device)
        words[:, 1:-1] = torch.where(real, self.words[source], NO_WORD)
        mask = torch.arange(width + 2, device=index.device) < (size + 2).unsqueeze(1)
        return TokenRows(ids, words, mask)

    def pick(self, owners: Int[Tensor, " owners"], drawn: Float[Tensor, " owners"]) -> Int[Tensor, " owners"]:
        """Return one text index per owner, by a random number in [0, 1); −1 if the owner has no text."""
        counts = self.counts[owners]
        index = (drawn * counts).long().minimum((counts - 1).clamp_min(0))
        return torch.where(counts > 0, self.first[owners] + index, -1)
