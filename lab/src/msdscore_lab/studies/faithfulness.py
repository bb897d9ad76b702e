"""Faithfulness of maps: regions are masked, and the local divergence d is measured again.

The local divergence is that of the form `paper` (Bi-KL) unless another form is passed. Two maps are tested:
`influence`, the regions that change the score, and `carried`, the paper's token terms carried to the regions.

For correct captions, regions are ranked by the support map and the effect is d(masked) − d(original); for incorrect
ones, by the penalty map with the opposite sign. With a faithful map the effect is top > random > bottom for both.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from PIL import Image

from msdscore.core.arrays import from_numpy, to_numpy
from msdscore.core.embeddings import take
from msdscore.encoders.base import PatchLayout
from msdscore.explain.explanation import image_of
from msdscore.explain.projections import PROJECTIONS, Regions, terms_of
from msdscore.forms.base import Measurement
from msdscore.intervals import Floats, Ints, bootstrap_mean
from msdscore.scoring.embedder import Embedded
from msdscore.scoring.pipeline import Pipeline
from msdscore_lab.benchmarks.base import Pair, clusters, image_key, image_source
from msdscore_lab.studies.context import PAPER_FORM, Study, pair_batches
from msdscore_lab.studies.table import Column, Plot, Row, Table

Patches = Ints  # indices of patches
BENCHMARK = "sugarcrepe"
KINDS = ("correct", "incorrect")
REGIONS = ("top", "random", "bottom")
SHARE = 0.1  # share of masked regions
_INTERVALS = "means with 95 % cluster-bootstrap intervals over images"


@dataclass(frozen=True, slots=True)
class MeasuredPairs:
    """Embedded and measured pairs; captions 2i and 2i + 1 are the correct and the incorrect one of pair i.

    `owner` is the image index of each caption.
    """

    decoded: tuple[Image.Image, ...]
    images: Embedded
    texts: Embedded
    owner: tuple[int, ...]
    layouts: tuple[PatchLayout, ...]
    regions: tuple[Regions, ...]
    divergence: Floats

    def ranking(self, caption: int) -> Patches:
        """Return the patches of a caption's image, the most important ones of its map first."""
        support, penalty = self.regions[caption]
        return np.argsort(-(support if caption % 2 == 0 else penalty), kind="stable")


def faithfulness(study: Study) -> list[Table]:
    """Mask the top, random and bottom regions of the maps."""
    pipeline, pairs = study.pipeline(PAPER_FORM), study.pairs(BENCHMARK)
    rows: list[Row] = []
    for projection in PROJECTIONS:
        rows += masking_rows(study, pipeline, pairs, projection)
    heads = {region: region for region in REGIONS} | {
        "top_over_random": "top − random", "random_over_bottom": "random − bottom",
    }  # fmt: skip
    plot = Plot(y=REGIONS, series="masking", panel=["projection", "kind"], x_label="masked regions",
                y_label="change of d, nats", level=0.0)  # fmt: skip
    masking = Table(
        name="masking",
        title=f"Effect on d of masking {100 * SHARE:g} % of the regions, {len(pairs)} pairs, nats",
        columns=[Column("projection"), Column("kind", "caption"), Column("masking", "masked"),
                 *(Column(name, head, ".4f") for name, head in heads.items()), Column("order")],
        rows=rows,
        notes=["correct captions: support map, d(masked) − d(original)",
               "incorrect captions: penalty map, d(original) − d(masked)", _INTERVALS],
        facts={"pairs": len(pairs), "share": SHARE, "ordered": all(row["order"] == "held" for row in rows)},
        plots=[plot],
    )  # fmt: skip
    return [replace(masking, signature=pipeline.signature)]


def masking_rows(study: Study, pipeline: Pipeline, pairs: Sequence[Pair], projection: str) -> list[Row]:
    """Return the mean effect of masking each region, by kind of caption and of masking, and the differences."""
    batches = pair_batches(pairs)
    answers = study.run(
        f"masking-{projection}", batches,
        lambda index, batch: _effects(pipeline, batch, projection, np.random.default_rng((study.seed, index))),
        pipeline, share=SHARE,
    )  # fmt: skip
    effects = {name: np.concatenate([answer[name] for answer in answers]) for name in answers[0]}
    names, rows = clusters([pair for batch in batches for pair in batch]), list[Row]()
    for kind, masking in product(KINDS, MASKINGS):
        top, middle, bottom = (effects[f"{kind}/{masking}/{region}"] for region in REGIONS)
        columns = {"top": top, "random": middle, "bottom": bottom, "top_over_random": top - middle,
                   "random_over_bottom": middle - bottom}  # fmt: skip
        ordered = top.mean() > middle.mean() > bottom.mean()
        rows.append({
            "projection": projection, "kind": kind, "masking": masking,
            **{name: bootstrap_mean(values, clusters=names) for name, values in columns.items()},
            "order": "held" if ordered else "not held",
        })  # fmt: skip
    return rows


def measured_pairs(pipeline: Pipeline, pairs: Sequence[Pair], projection: str) -> MeasuredPairs:
    """Embed, measure and project pairs; pairs of one image share it."""
    sources = {image_key(pair.image): pair.image for pair in pairs}
    names = list(sources)
    owner = tuple(names.index(image_key(pair.image)) for pair in pairs for _ in pair.captions)
    captions = [caption for pair in pairs for caption in pair.captions]
    decoded = pipeline.decode([image_source(image) for image in sources.values()], keep=True)
    images, texts = pipeline.embedder.images(decoded).require(), pipeline.embedder.texts(captions).require()
    measured = pipeline.measure(images, texts, owner, range(len(captions)))
    return MeasuredPairs(
        tuple(map(image_of, decoded)),
        images,
        texts,
        owner,
        measured.patches,
        tuple(PROJECTIONS[projection](terms) for terms in terms_of(pipeline.form, images, texts, measured)),
        _local_divergence(measured, pipeline),
    )


def without_patches(pipeline: Pipeline, measured: MeasuredPairs, dropped: Sequence[Patches]) -> Floats:
    """Return d of every caption after dropping patches (one array per caption) from its image's points."""
    owner, captions = measured.owner, range(len(measured.owner))
    batch = take(measured.images.vectors, [measured.images.row(item) for item in owner])
    mask = to_numpy(batch.mask).copy()
    for index, patches in enumerate(dropped):
        mask[index, np.flatnonzero(mask[index])[patches]] = False
    keys = tuple(measured.images.keys[measured.images.row(item)] for item in owner)
    images = Embedded(replace(batch, mask=from_numpy(mask, batch.mask)), tuple(range(len(owner))), {}, keys)
    return _local_divergence(pipeline.measure(images, measured.texts, captions, captions), pipeline)


def without_pixels(pipeline: Pipeline, measured: MeasuredPairs, dropped: Sequence[Patches]) -> Floats:
    """Return d of every caption after painting patches in the image's mean colour and encoding it again."""
    masked = []
    for owner, patches in zip(measured.owner, dropped, strict=True):
        visible = np.flatnonzero(to_numpy(measured.images.vectors.mask)[measured.images.row(owner)])
        masked.append(blank(measured.decoded[owner], measured.layouts[owner], visible[patches]))
    images = pipeline.embedder.images(pipeline.decode(masked)).require()
    indices = range(len(masked))
    return _local_divergence(pipeline.measure(images, measured.texts, indices, indices), pipeline)


MASKINGS: dict[str, Callable[[Pipeline, MeasuredPairs, Sequence[Patches]], Floats]] = {
    "patches": without_patches,
    "pixels": without_pixels,
}


def blank(image: Image.Image, layout: PatchLayout, patches: Patches) -> Image.Image:
    """Return the image with patches painted in its mean colour."""
    values = np.asarray(image).copy()
    mean = values.reshape(-1, values.shape[-1]).mean(axis=0)
    for left, top, right, bottom in layout.boxes[patches].round().astype(int).tolist():
        values[top:bottom, left:right] = mean
    return Image.fromarray(values)


def _local_divergence(measured: Measurement[Any], pipeline: Pipeline) -> Floats:
    """Return d: the local divergence, or in the evidence form similarity minus score."""
    values = pipeline.form.numbers(measured)
    local: Floats = values["divergence"] if "divergence" in values else values["similarity"] - values["msd"]
    return local


def _effects(
    pipeline: Pipeline, pairs: Sequence[Pair], projection: str, rng: np.random.Generator
) -> dict[str, list[float]]:
    """Return the effect of masking on every pair, by kind/masking/region."""
    measured = measured_pairs(pipeline, pairs, projection)
    regions = []
    for order in map(measured.ranking, range(len(measured.regions))):
        count = max(1, round(SHARE * len(order)))
        random = rng.permutation(len(order))[:count]
        regions.append({"top": order[:count], "random": random, "bottom": order[-count:]})
    effects: dict[str, list[float]] = {}
    for (masking, divergence), region in product(MASKINGS.items(), REGIONS):
        change = divergence(pipeline, measured, [patches[region] for patches in regions]) - measured.divergence
        effects[f"correct/{masking}/{region}"] = change[0::2].tolist()
        effects[f"incorrect/{masking}/{region}"] = (-change[1::2]).tolist()
    return effects
