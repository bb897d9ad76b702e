"""How well heads find captions by pictures and pictures by captions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from PIL.Image import Image
from torch import Tensor

from msdscore.align.data.pairs import Pairs, TrainingPair, picture_content
from msdscore.align.features.live import join_points
from msdscore.align.losses.terms import caption_table, token_table
from msdscore.encoders.aligned.heads import AlignedHeads, Projected
from msdscore.encoders.aligned.towers.base import ImageTower, Points, TextTower
from msdscore.encoders.base import prepare_all
from msdscore.errors import ImageError, InputError
from msdscore.io.images import open_image

Tell = Callable[[int, int], None]
RANKS = (1, 5, 10)


@dataclass(frozen=True, slots=True)
class Retrieval:
    """Recall in percent at ranks 1, 5 and 10, both ways; of an image the best of its captions counts."""

    image_to_text: tuple[float, ...]
    text_to_image: tuple[float, ...]
    images: int
    captions: int
    unreadable: int = 0  # pictures that could not be read and are left out

    @property
    def mean(self) -> float:
        """Mean of both recalls at rank 1: what early stopping watches."""
        return (self.image_to_text[0] + self.text_to_image[0]) / 2


@dataclass(frozen=True, slots=True)
class Judged:
    """Aligned validation pictures and captions; `owner[i]` is the picture of caption i."""

    images: Projected
    texts: Projected
    owner: Int[Tensor, " captions"]
    unreadable: int


@torch.no_grad()
def embed_pairs(
    pairs: Pairs,
    towers: tuple[ImageTower, TextTower],
    heads: AlignedHeads,
    *,
    chunk: int,
    local: bool = True,
    tell: Tell | None = None,
) -> Judged:
    """Align all pictures and captions of some pairs; unreadable pictures are left out.

    Without `local` only the pooled vectors are kept, which is all that retrieval by cosine needs.

    Raises:
        InputError: no picture can be read.
    """
    counted = _Counted()
    images, texts = list[Projected](), list[Projected]()
    for start in range(0, len(pairs), chunk):
        pictures, captions = _read(pairs.items[start : start + chunk], counted)
        if pictures:
            seen = towers[0].features(prepare_all(towers[0], pictures))
            images.append(_kept(heads.project_images(seen), local))
            parts = _parts(captions, chunk)
            texts += [_kept(heads.project_texts(towers[1].features(part)), local) for part in parts]
        if tell is not None:
            tell(min(len(pairs), start + chunk), len(pairs))
    if not images:
        raise InputError(f"none of the {len(pairs)} validation pictures can be read")
    joined = _join(images)
    owner = torch.tensor(counted.owner, device=joined.pooled.device)
    return Judged(joined, _join(texts), owner, counted.unreadable)


@dataclass(slots=True)
class _Counted:
    """The picture of every caption read so far, and how many pictures could not be read."""

    shown: int = 0
    unreadable: int = 0
    owner: list[int] = field(default_factory=list)


def _read(pairs: Sequence[TrainingPair], counted: _Counted) -> tuple[list[Image], list[str]]:
    pictures, captions = list[Image](), list[str]()
    for pair in pairs:
        try:
            pictures.append(open_image(picture_content(pair.picture)))
        except ImageError:
            counted.unreadable += 1
            continue
        captions += pair.captions
        counted.owner += [counted.shown] * len(pair.captions)
        counted.shown += 1
    return pictures, captions


@torch.no_grad()
def retrieval_by_cosine(judged: Judged) -> Retrieval:
    """Recall by the pooled vectors."""
    return _recalls(judged.images.pooled @ judged.texts.pooled.mT, judged)


@torch.no_grad()
def retrieval_by_local(judged: Judged) -> Retrieval:
    """Recall by the mean over tokens of the best patch."""
    tokens = judged.texts.points[judged.texts.mask]
    return _recalls(caption_table(token_table(judged.images, tokens), judged.texts.mask), judged)


def _recalls(table: Float[Tensor, "images captions"], judged: Judged) -> Retrieval:
    own = judged.owner.unsqueeze(0) == torch.arange(len(table), device=table.device).unsqueeze(1)
    # The rank of the best own caption: how many foreign ones stand before it. Ties count against the model.
    best = table.masked_fill(~own, -torch.inf).amax(dim=1, keepdim=True)
    before_texts = ((table >= best) & ~own).sum(dim=1)
    mine = table.gather(0, judged.owner.unsqueeze(0))
    before_images = ((table >= mine) & ~own).sum(dim=0)
    return Retrieval(
        tuple(_percent(before_texts < rank) for rank in RANKS),
        tuple(_percent(before_images < rank) for rank in RANKS),
        images=table.shape[0],
        captions=table.shape[1],
        unreadable=judged.unreadable,
    )


def _percent(hits: Tensor) -> float:
    return 100 * float(hits.double().mean())


def _join(parts: Sequence[Projected]) -> Projected:
    points = join_points([Points(part.points, part.mask) for part in parts])
    return Projected(points.vectors, points.mask, torch.cat([part.pooled for part in parts]))


def _kept(side: Projected, local: bool) -> Projected:
    return side if local else Projected(side.points[:, :0], side.mask[:, :0], side.pooled)


def _parts(texts: Sequence[str], size: int) -> list[Sequence[str]]:
    return [texts[start : start + size] for start in range(0, len(texts), size)]
