"""Faithfulness of maps: regions are masked, and the local divergence d is measured again.

The local divergence is that of the form `paper` (Bi-KL) unless another form is passed. Two maps are tested by
default: `influence`, the regions that change the score, and `carried`, the paper's token terms carried to the regions.

For correct captions, regions are ranked by the support map and the effect is d(masked) − d(original); for incorrect
ones, by the penalty map with the opposite sign. With a faithful map the effect is top > random > bottom for both.
Deletion and insertion curves show d while regions are removed or added in the order of a map.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from msdscore.core.arrays import from_numpy, to_numpy
from msdscore.core.embeddings import take
from msdscore.encoders.base import PatchLayout
from msdscore.explain.explanation import image_of
from msdscore.explain.maps import PROJECTIONS as SHOWN
from msdscore.explain.maps import MapTerms, Regions, both_ways, carried, terms_of
from msdscore.forms.base import Measurement
from msdscore.intervals import Floats, Ints, bootstrap_mean
from msdscore.scoring.embedder import Embedded
from msdscore.scoring.pipeline import Pipeline
from msdscore_lab.benchmarks.base import Pair, clusters, image_key, image_source
from msdscore_lab.studies.context import PAPER, Study, pair_batches
from msdscore_lab.studies.table import Column, Plot, Row, Table

Patches = Ints  # indices of patches
BENCHMARK = "sugarcrepe"
PROJECTION = "influence"  # the map of the curves
TESTED = (PROJECTION, "carried")  # the second is the paper's
KINDS = ("correct", "incorrect")
REGIONS = ("top", "random", "bottom")
SHARE = 0.1  # share of masked regions
ORDERS, CURVE_KINDS = ("map", "random", "reverse"), ("deletion", "insertion")
CurveKey = tuple[str, str, str]  # kind of caption, kind of curve, order
CURVES = tuple((kind, curve_kind, order) for order, curve_kind, kind in product(ORDERS, CURVE_KINDS, KINDS))
# Shares of deleted patches, below 1: the density of an image without patches is undefined.
DELETED = tuple(round(0.1 * step, 1) for step in range(10))
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


def kernel(terms: MapTerms) -> Regions:
    """`influence` with every patch as a separate component: affinities minus their mean replace removals."""
    return both_ways(terms, terms.shares @ terms.affinity - 1 / len(terms.coverage))


def centred(terms: MapTerms) -> Regions:
    """`carried` for token terms minus their mean over the caption."""
    return carried(replace(terms, support=terms.support - terms.support.mean()))


def contrasted(terms: MapTerms) -> Regions:
    """Token terms minus their mean, spread over the patches by affinity, both signs in one map."""
    lean = (terms.support - terms.support.mean()) @ terms.affinity
    return -lean, lean


# Maps that users can choose, and others for comparison.
PROJECTIONS: dict[str, Callable[[MapTerms], Regions]] = {
    "influence": SHOWN["influence"],
    "kernel": kernel,
    "carried": carried,
    "centred": centred,
    "contrasted": contrasted,
}


def faithfulness(study: Study, *, every_projection: bool = False) -> list[Table]:
    """Mask top, random and bottom regions, and delete and insert regions in the order of the maps."""
    pipeline, pairs = study.pipeline(PAPER), study.pairs(BENCHMARK)
    rows: list[Row] = []
    for projection in PROJECTIONS if every_projection else TESTED:
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
    tables = [masking, *curve_tables(study, pipeline, pairs)]
    return [replace(table, signature=pipeline.signature) for table in tables]


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


def curve_tables(study: Study, pipeline: Pipeline, pairs: Sequence[Pair]) -> list[Table]:
    """Return areas under curves of d while patches are deleted or inserted in order, at random, and in reverse.

    Correct captions use the support map: deletion should raise d early (a large area), insertion should lower it
    early (a small one). Incorrect captions use the penalty map, with the opposite signs.
    """
    batches = pair_batches(pairs)
    answers = study.run(
        "curves", batches,
        lambda index, batch: _curve_values(pipeline, batch, np.random.default_rng((study.seed, index))),
        pipeline,
    )  # fmt: skip
    curves = {
        key: np.array([row for answer in answers for row in answer[position]]) for position, key in enumerate(CURVES)
    }
    names = clusters([pair for batch in batches for pair in batch])
    return [_area_table(curves, names, len(pairs)), _curve_table(curves)]


def _area_table(curves: Mapping[CurveKey, Floats], names: npt.NDArray[np.str_], pairs: int) -> Table:
    # The mean height of each curve, by the trapezoidal rule.
    areas = {key: np.trapezoid(values, dx=1 / (len(DELETED) - 1), axis=1) for key, values in curves.items()}
    rows: list[Row] = []
    for kind, curve_kind in product(KINDS, CURVE_KINDS):
        by_order = {order: areas[kind, curve_kind, order] for order in ORDERS}
        rows.append({
            "kind": kind, "curve": curve_kind,
            **{order: bootstrap_mean(by_order[order], clusters=names) for order in ORDERS},
            "gain": bootstrap_mean(by_order["map"] - by_order["random"], clusters=names),
            "should be": "above 0" if (kind == "correct") == (curve_kind == "deletion") else "below 0",
        })  # fmt: skip
    headings = {**{order: order for order in ORDERS}, "gain": "map − random"}
    columns = [Column("kind", "caption"), Column("curve"),
               *(Column(name, head, ".4f") for name, head in headings.items()), Column("should be")]  # fmt: skip
    title = f"Areas under deletion and insertion curves of d (patches dropped), {pairs} pairs, nats"
    return Table(name="areas", title=title, columns=columns, rows=rows, facts={"pairs": pairs}, notes=[_INTERVALS])


def _curve_table(curves: Mapping[CurveKey, Floats]) -> Table:
    shares = {"deletion": DELETED, "insertion": tuple(round(1 - share, 1) for share in DELETED[::-1])}
    points = [
        {"kind": f"{kind} captions", "curve": curve_kind, "order": order, "share": position, "d": value}
        for (kind, curve_kind, order), values in curves.items()
        for position, value in zip(shares[curve_kind], values.mean(axis=0).tolist(), strict=True)
    ]
    plot = Plot(
        x="share", y=["d"], series="order", panel=["kind", "curve"], x_label="share of patches", y_label="d, nats"
    )
    return Table(name="curves", rows=points, plots=[plot])


def measured_pairs(pipeline: Pipeline, pairs: Sequence[Pair], projection: str) -> MeasuredPairs:
    """Embed, measure and project pairs; pairs of one image share it."""
    sources = {image_key(pair.image): pair.image for pair in pairs}
    names = list(sources)
    owner = tuple(names.index(image_key(pair.image)) for pair in pairs for _ in pair.captions)
    captions = [caption for pair in pairs for caption in pair.captions]
    decoded = pipeline.decode([image_source(image) for image in sources.values()], keep=True)
    images, texts = pipeline.embed_images(decoded).require(), pipeline.embed_texts(captions).require()
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
    """Return d of every caption after dropping patches (one array per caption) from its image's points.

    With more arrays than captions, array i belongs to caption i modulo the number of captions.
    """
    captions = [index % len(measured.owner) for index in range(len(dropped))]
    owner = [measured.owner[caption] for caption in captions]
    batch = take(measured.images.vectors, [measured.images.row(item) for item in owner])
    mask = to_numpy(batch.mask).copy()
    for index, patches in enumerate(dropped):
        mask[index, np.flatnonzero(mask[index])[patches]] = False
    keys = tuple(measured.images.keys[measured.images.row(item)] for item in owner)
    images = Embedded(replace(batch, mask=from_numpy(mask, batch.mask)), tuple(range(len(owner))), {}, keys)
    return _local_divergence(pipeline.measure(images, measured.texts, range(len(captions)), captions), pipeline)


def without_pixels(pipeline: Pipeline, measured: MeasuredPairs, dropped: Sequence[Patches]) -> Floats:
    """Return d of every caption after painting patches in the image's mean colour and encoding it again."""
    masked = []
    for owner, patches in zip(measured.owner, dropped, strict=True):
        visible = np.flatnonzero(to_numpy(measured.images.vectors.mask)[measured.images.row(owner)])
        masked.append(blank(measured.decoded[owner], measured.layouts[owner], visible[patches]))
    images = pipeline.embed_images(pipeline.decode(masked)).require()
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


def _curve_values(pipeline: Pipeline, pairs: Sequence[Pair], rng: np.random.Generator) -> list[list[list[float]]]:
    """Return the values of one curve per pair, for every key of `CURVES`."""
    measured = measured_pairs(pipeline, pairs, PROJECTION)
    ranked = [measured.ranking(caption) for caption in range(len(measured.regions))]
    shuffled = [rng.permutation(len(order)) for order in ranked]
    orders = {"map": ranked, "random": shuffled, "reverse": [order[::-1] for order in ranked]}
    curves: dict[CurveKey, Floats] = {}
    for name, order in orders.items():
        # Inserting the first patches of an order is deleting the others, which come first in the reversed order.
        backwards = [patches[::-1] for patches in order]
        by_kind = {"deletion": _deletion(pipeline, measured, order),
                "insertion": _deletion(pipeline, measured, backwards)[:, ::-1]}  # fmt: skip
        for curve_kind, values in by_kind.items():
            curves |= {(kind, curve_kind, name): values[index::2] for index, kind in enumerate(KINDS)}
    return [curves[key].tolist() for key in CURVES]


def _deletion(pipeline: Pipeline, measured: MeasuredPairs, order: Sequence[Patches]) -> Floats:
    """Return d of every caption (rows) after deleting each share of its patches in order (columns)."""
    dropped = [patches[: int(share * len(patches))].copy() for share in DELETED for patches in order]
    return without_patches(pipeline, measured, dropped).reshape(len(DELETED), len(order)).T
