"""Figures of a run on any captioned pictures."""

from dataclasses import dataclass
from pathlib import Path

from msdscore.align.data.formats import DataSource, open_pairs
from msdscore.align.retrieval import RANKS, Retrieval, Tell, embed_pairs, retrieval_by_cosine, retrieval_by_local
from msdscore.align.run.checkpoint import read_run
from msdscore.align.run.towers import reopen_towers, tune_towers
from msdscore.encoders.placement import place


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Retrieval of a run by pooled vectors and by local max-similarity."""

    run: str
    step: int
    cosine: Retrieval
    local: Retrieval

    def rows(self) -> list[dict[str, str]]:
        """One line per similarity and direction: recall in percent at every rank."""
        ranks = [f"R@{rank}" for rank in RANKS]
        return [
            {"similarity": name, "direction": way} | dict(zip(ranks, (f"{value:.1f}" for value in found), strict=True))
            for name, figures in (("cosine of pooled vectors", self.cosine), ("local max-similarity", self.local))
            for way, found in (("image to text", figures.image_to_text), ("text to image", figures.text_to_image))
        ]


def evaluate(run: str | Path, data: DataSource, *, device: str = "auto", tell: Tell | None = None) -> Evaluation:
    """Judge a run by retrieval on captioned pictures.

    Raises:
        RunError: the folder holds no run with a checkpoint.
    """
    where = place(device, "auto").device
    found = read_run(Path(run))
    towers = tune_towers(reopen_towers(Path(run), found.recipe, where), found.trunk)
    pairs, chunk = open_pairs(data), found.recipe.train.tower_batch
    judged = embed_pairs(pairs, towers, found.heads.to(where), chunk=chunk, tell=tell)
    return Evaluation(str(run), found.step, retrieval_by_cosine(judged), retrieval_by_local(judged))
