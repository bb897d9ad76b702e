"""Evaluation of a run: retrieval of captions by images and of images by captions."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from msdscore.core.arrays import Float, Int
from msdscore.encoders.base import prepare_all
from msdscore.errors import ImageError, InputError
from msdscore.io.images import open_image
from msdscore_lab.align.batches import Towers, chunks
from msdscore_lab.align.run.folder import read_run
from msdscore_lab.align.run.parts import open_towers, tune_towers
from msdscore_lab.pairs import DataSource, Pairs, image_content, open_pairs
from msdscore_torch.aligned.heads import AlignedHeads
from msdscore_torch.backbone import place
from msdscore_torch.hub import verify_files

RANKS = (1, 5, 10)


@dataclass(frozen=True, slots=True)
class Retrieval:
    """Recall in percent at ranks 1, 5 and 10, in both directions; the best-ranked caption of an image counts."""

    image_to_text: tuple[float, ...]
    text_to_image: tuple[float, ...]
    images: int
    captions: int
    unreadable: int = 0  # images that could not be read and are ignored
    step: int = 0  # of the evaluated weights

    @property
    def mean(self) -> float:
        """Mean of both recalls at rank 1, the criterion of early stopping."""
        return (self.image_to_text[0] + self.text_to_image[0]) / 2

    def rows(self) -> list[dict[str, str]]:
        """Return one row per direction: recall in percent at every rank."""
        return [
            {"direction": name} | {f"R@{rank}": f"{value:.1f}" for rank, value in zip(RANKS, recall, strict=True)}
            for name, recall in (("image to text", self.image_to_text), ("text to image", self.text_to_image))
        ]


def evaluate(run: str | Path, data: DataSource, *, device: str = "auto") -> Retrieval:
    """Measure the retrieval of a run on captioned images, by the cosine of pooled vectors.

    Raises:
        RunError: If the folder has no run with a checkpoint.
    """
    torch_device = place(device, "auto").device
    finished = read_run(Path(run))
    recipe, towers = finished.recipe, open_towers(finished.recipe, torch_device)
    verify_files(towers[0].files, finished.towers.image_sha256, source=recipe.image.source)
    verify_files(towers[1].files, finished.towers.text_sha256, source=recipe.text.source)
    towers = tune_towers(towers, finished.trunk)
    found = measure_retrieval(open_pairs(data), towers, finished.heads.to(torch_device), chunk=recipe.train.tower_batch)
    return replace(found, step=finished.step)


@torch.no_grad()
def measure_retrieval(pairs: Pairs, towers: Towers, heads: AlignedHeads, *, chunk: int) -> Retrieval:
    """Compute recall by pooled vectors; unreadable images are ignored.

    Raises:
        InputError: If no image can be read.
    """
    images, texts, owner = list[Tensor](), list[Tensor](), list[int]()
    readable = 0
    for part in chunks(pairs.items, chunk):
        decoded, captions = [], list[str]()
        for pair in part:
            try:
                decoded.append(open_image(image_content(pair.image)))
            except ImageError:
                continue
            captions += pair.captions
            owner += [readable] * len(pair.captions)
            readable += 1
        if decoded:
            features = towers[0].features(prepare_all(towers[0].prepare, decoded))
            images.append(heads.project("image", features).pooled)
            texts += [heads.project("text", towers[1].features(batch)).pooled for batch in chunks(captions, chunk)]
    if not images:
        raise InputError(f"none of the {len(pairs)} validation images can be read")
    table = torch.cat(images) @ torch.cat(texts).mT
    return _recalls(table, torch.tensor(owner, device=table.device), len(pairs) - readable)


def _recalls(table: Float[Tensor, "images captions"], owner: Int[Tensor, " captions"], unreadable: int) -> Retrieval:
    is_own = owner.unsqueeze(0) == torch.arange(len(table), device=table.device).unsqueeze(1)
    # The rank of the image's best caption: the number of other captions before it. Ties count against the model.
    best = table.masked_fill(~is_own, -torch.inf).amax(dim=1, keepdim=True)
    before_texts = ((table >= best) & ~is_own).sum(dim=1)
    own_scores = table.gather(0, owner.unsqueeze(0))
    before_images = ((table >= own_scores) & ~is_own).sum(dim=0)
    image_to_text, text_to_image = (
        tuple(100 * float((before < rank).double().mean()) for rank in RANKS)
        for before in (before_texts, before_images)
    )
    return Retrieval(image_to_text, text_to_image, table.shape[0], table.shape[1], unreadable)
