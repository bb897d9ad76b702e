"""Evaluation of a run: retrieval of captions by images and of images by captions."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from msdscore.core.arrays import Float, Int
from msdscore.core.embeddings import join
from msdscore.encoders.base import Embeddings, Features, prepare_all
from msdscore.encoders.hashing import verify_files
from msdscore.errors import ImageError, InputError
from msdscore.io.images import open_image
from msdscore_lab.align.features import chunks
from msdscore_lab.align.losses import caption_table, token_table
from msdscore_lab.align.run.folder import read_run
from msdscore_lab.align.run.parts import Towers, open_towers, tune_towers
from msdscore_lab.pairs import DataSource, Pairs, image_content, open_pairs
from msdscore_torch.aligned.heads import AlignedHeads, Side
from msdscore_torch.backbone import place

RANKS = (1, 5, 10)


@dataclass(frozen=True, slots=True)
class Retrieval:
    """Recall in percent at ranks 1, 5 and 10, in both directions; the best-ranked caption of an image counts."""

    image_to_text: tuple[float, ...]
    text_to_image: tuple[float, ...]
    images: int
    captions: int
    unreadable: int = 0  # images that could not be read and are ignored

    @property
    def mean(self) -> float:
        """Mean of both recalls at rank 1, the criterion of early stopping."""
        return (self.image_to_text[0] + self.text_to_image[0]) / 2


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Retrieval of a run by pooled vectors and by local max-similarity."""

    run: str
    step: int
    cosine: Retrieval
    local: Retrieval

    def rows(self) -> list[dict[str, str]]:
        """Return one row per similarity and direction: recall in percent at every rank."""
        ranks = [f"R@{rank}" for rank in RANKS]
        return [
            {"similarity": name, "direction": direction}
            | dict(zip(ranks, (f"{value:.1f}" for value in recall), strict=True))
            for name, figures in (("cosine of pooled vectors", self.cosine), ("local max-similarity", self.local))
            for direction, recall in (
                ("image to text", figures.image_to_text),
                ("text to image", figures.text_to_image),
            )
        ]


def evaluate(run: str | Path, data: DataSource, *, device: str = "auto") -> Evaluation:
    """Measure the retrieval of a run on captioned images.

    Raises:
        RunError: If the folder has no run with a checkpoint.
    """
    torch_device = place(device, "auto").device
    finished = read_run(Path(run))
    recipe, towers = finished.recipe, open_towers(finished.recipe, torch_device)
    verify_files(towers[0].files, finished.towers.image_sha256, source=recipe.image.source)
    verify_files(towers[1].files, finished.towers.text_sha256, source=recipe.text.source)
    towers = tune_towers(towers, finished.trunk)
    heads, chunk = finished.heads.to(torch_device), recipe.train.tower_batch
    cosine, local = measure_retrieval(open_pairs(data), towers, heads, chunk=chunk)
    assert local is not None, "local retrieval is measured by default"
    return Evaluation(str(run), finished.step, cosine, local)


@torch.no_grad()
def measure_retrieval(
    pairs: Pairs, towers: Towers, heads: AlignedHeads, *, chunk: int, local: bool = True
) -> tuple[Retrieval, Retrieval | None]:
    """Compute recall by pooled vectors, and with `local` by the mean over tokens of the best patch.

    Unreadable images are ignored.

    Raises:
        InputError: If no image can be read.
    """

    def project(side: Side, features: Features) -> Embeddings:
        aligned = heads.project(side, features)
        # Pooled vectors are sufficient for retrieval by cosine.
        return aligned if local else replace(aligned, points=aligned.points[:, :0], mask=aligned.mask[:, :0])

    images, texts, owner = list[Embeddings](), list[Embeddings](), list[int]()
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
            images.append(project("image", towers[0].features(prepare_all(towers[0].prepare, decoded))))
            texts += [project("text", towers[1].features(batch)) for batch in chunks(captions, chunk)]
    if not images:
        raise InputError(f"none of the {len(pairs)} validation images can be read")
    image_embeddings, text_embeddings = join(images), join(texts)
    owners = torch.tensor(owner, device=image_embeddings.pooled.device)
    cosine = _recalls(image_embeddings.pooled @ text_embeddings.pooled.mT, owners, len(pairs) - readable)
    if not local:
        return cosine, None
    table = caption_table(
        token_table(image_embeddings, text_embeddings.points[text_embeddings.mask]), text_embeddings.mask
    )
    return cosine, _recalls(table, owners, len(pairs) - readable)


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
