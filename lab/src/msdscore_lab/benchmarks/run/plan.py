"""The plan of a benchmark run, and its items and metrics."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from msdscore.errors import ConfigError, InputError, unknown_name
from msdscore.forms.base import Form
from msdscore.forms.paper import Paper
from msdscore.intervals import Resampling
from msdscore.rows.files import ReferenceFile
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.references import split_references
from msdscore.scoring.spec import ScorerSpec
from msdscore_lab.benchmarks.base import Benchmark, Item, ItemSet, Rated, image_key
from msdscore_lab.benchmarks.readers.files import all_tidy
from msdscore_lab.benchmarks.registry import benchmark, load
from msdscore_lab.benchmarks.run.cases import BATCH_IMAGES
from msdscore_lab.benchmarks.run.score_file import fingerprint
from msdscore_lab.metrics.base import Metric
from msdscore_lab.metrics.registry import load_metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkPlan:
    """Settings of a benchmark run: benchmark, folder, metrics and protocol.

    `options` are passed to the benchmark's reader; `references` is a file of reference captions, joined by image.
    `seed` is for the wrong images and the resampling. `seeds` is the number of random draws (of wrong captions,
    references) to average over; None is the benchmark's default. Intervals are `expanded` or plain percentiles.
    `command` is the command line, for the result's provenance.
    """

    name: str
    root: Path
    metrics: tuple[str, ...]
    protocol: str = "official"
    limit: int | None = None
    seed: int = 0
    seeds: int | None = None
    samples: int = 1000
    expanded: bool = True
    control: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)
    references: Path | None = None
    batch_images: int = BATCH_IMAGES
    command: str = ""

    @property
    def resampling(self) -> Resampling:
        """The resampling of intervals and tests."""
        return Resampling(samples=self.samples, seed=self.seed, expanded=self.expanded)

    def __post_init__(self) -> None:
        for name in ("limit", "batch_images", "samples", "seeds"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")


@dataclass(frozen=True, slots=True)
class Work:
    """A plan with its items and metrics."""

    plan: BenchmarkPlan
    row: Benchmark
    item_set: ItemSet[Any]
    metrics: tuple[Metric, ...]
    base: Mapping[str, Any]  # settings that must be equal to reuse scores, without the protocol


LONG_NOTE = "captions of a paragraph, so components are (5, 3) as in form long; --form short uses (3, 2)"
BY_LENGTH = (None, "paper")  # forms whose number of components depends on the benchmark, as in the paper


def form_for(name: str, form: Form, spec: ScorerSpec) -> Form:
    """Return the settings for a benchmark: components of form `long` for paragraph-length captions, as in the paper.

    A form other than `paper`, or explicit components, are not changed.

    >>> form_for("caparena", Paper(), ScorerSpec()).components
    (5, 3)
    >>> form_for("caparena", Paper(), ScorerSpec(form="short")).components
    (3, 2)
    """
    if not benchmark(name).long or not isinstance(form, Paper):
        return form
    is_explicit = spec.form not in BY_LENGTH or "components" in dict(spec.changes)
    return form if is_explicit else replace(form, components=(5, 3))


def pipeline_for(name: str, pipeline: Pipeline, spec: ScorerSpec) -> Pipeline:
    """Return the pipeline with the settings for a benchmark, see `form_for`."""
    form = form_for(name, pipeline.form, spec)
    if form == pipeline.form:
        return pipeline
    return Pipeline(
        pipeline.encoder, form, bank=pipeline.bank, limits=pipeline.limits, batch_size=pipeline.batch_size,
        decoders=pipeline.decoder.processes,
    )  # fmt: skip


def prepare_work(plan: BenchmarkPlan) -> Work:
    """Read the benchmark and load the metrics; without a second image, the plan has no wrong-image control."""
    row = benchmark(plan.name)
    if plan.protocol == "paper" and "paper" not in row.protocols:
        plan = replace(plan, protocol=row.protocols[0])  # the paper counts as the benchmark's authors do
    if plan.protocol not in row.protocols:
        raise unknown_name(f"protocol of {row.name}", plan.protocol, row.protocols)
    item_set = load(plan.name, plan.root, **plan.options)
    if plan.references is not None:
        item_set = _with_references(item_set, plan.references)
    item_set = _limited(item_set, plan.limit)
    metrics = load_metrics((*plan.metrics, *row.baselines))
    for metric in metrics:
        if metric.needs("pairs") and row.kind == "rated":
            raise ConfigError(f"metric {metric.label} compares two captions, but {row.name} rates single captions")
        if metric.needs("references") and not any(item.references for item in item_set.items):
            raise InputError(
                f"metric {metric.label} needs references, but the items of {row.name} have none here; "
                "pass a file of them with --references"
            )
    images = {image_key(item.image) for item in item_set.items}
    if plan.control and len(images) < 2:
        plan = replace(plan, control=False)
        note = {"no wrong-image control: all items have the same image": len(item_set.items)}
        item_set = replace(item_set, notes={**item_set.notes, **note})
    base = {
        "benchmark": plan.name,
        "options": {name: str(value) for name, value in sorted(plan.options.items())},
        "limit": plan.limit,
        "items": fingerprint(item_set.items),
        "control": plan.control,
        "seed": plan.seed,
    }
    return Work(plan, row, item_set, metrics, base)


def _with_references(item_set: ItemSet[Any], path: Path) -> ItemSet[Any]:
    """Return items with references from a file, without the item's captions; items without references are excluded."""
    reference_file, items = ReferenceFile(path), list[Item]()
    for item in item_set.items:
        references = all_tidy(reference_file.find({"image": item.image.name}))
        for caption in item.captions:
            references, _ = split_references(caption, references)
        items += [replace(item, references=references)] if references else []
    if not items:
        raise InputError(f"{path}: expected references of the benchmark's images, by file name; got none of them")
    note = {"items left out: no references": len(item_set.items) - len(items)}
    return replace(item_set, items=tuple(items), notes={**item_set.notes, **note})


def _limited(item_set: ItemSet[Any], limit: int | None) -> ItemSet[Any]:
    """Return at most `limit` items, equally spaced so that every subset is represented, and add a note.

    Ratings are selected by image, because single captions could not be compared with each other.
    """
    items: tuple[Item, ...] = item_set.items
    if limit is None or limit >= len(items):
        return item_set
    units = [[item] for item in items]
    if isinstance(items[0], Rated):
        by_image: dict[str, list[Item]] = {}
        for item in items:
            by_image.setdefault(image_key(item.image), []).append(item)
        units = list(by_image.values())
    count = max(1, -(-limit * len(units) // len(items)))
    selected = [item for index in range(count) for item in units[index * len(units) // count]]
    if len(selected) < limit:  # the selected images have fewer items than average
        selected_ids = {id(item) for item in selected}
        selected += [item for item in items if id(item) not in selected_ids]
    return ItemSet(tuple(selected[:limit]), {**item_set.notes, "items left out by --limit": len(items) - limit})
