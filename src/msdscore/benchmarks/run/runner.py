"""A benchmark run: every metric over every item with its own and a wrong picture, in parts that survive a crash."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from msdscore.benchmarks.base import Benchmark, Item, Note, Reading, picture_key, picture_names
from msdscore.benchmarks.registry import benchmark, load
from msdscore.benchmarks.results.item_table import item_table
from msdscore.benchmarks.results.result import Result, write_result
from msdscore.benchmarks.results.scores import corpus_columns, item_columns, part_table
from msdscore.benchmarks.results.summary import Counting, signature, summarise
from msdscore.benchmarks.run.cases import Wants, fill, text_cases
from msdscore.benchmarks.run.portions import PORTION_PICTURES, Portion, portions
from msdscore.errors import ConfigError, InputError, unknown_name
from msdscore.io.outputs.run import Run, discard, finished, open_run
from msdscore.metrics.base import Metric
from msdscore.metrics.registry import load_metrics
from msdscore.scoring.pipeline import Pipeline
from msdscore.version import __version__

Progress = Callable[[int, int], None]


def _nothing() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkPlan:
    """What to run: a benchmark under a folder with metrics, and how to count.

    `options` are those of the benchmark's reader. `seed` fixes the wrong pictures and the resampling.
    """

    name: str
    root: Path
    metrics: tuple[str, ...]
    protocol: str = "official"
    limit: int | None = None
    seed: int = 0
    samples: int = 1000
    control: bool = True
    options: Mapping[str, Any] = field(default_factory=_nothing)
    portion_pictures: int = PORTION_PICTURES

    def __post_init__(self) -> None:
        for name in ("limit", "portion_pictures", "samples"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")


def run_benchmark(
    plan: BenchmarkPlan,
    output: Path,
    pipeline: Callable[[], Pipeline],
    *,
    overwrite: bool = False,
    progress: Progress = lambda done, total: None,
) -> Result:
    """Score and count a benchmark; scores go to a Parquet file beside the result file `output` (.json).

    A run goes on where an earlier one stopped; a finished one is counted again, so that another protocol costs
    nothing. `pipeline` is called only where a metric needs an encoder.
    """
    if output.suffix != ".json":
        raise ConfigError(f"{output}: a result is a .json file, its scores lie beside it as .parquet")
    row = benchmark(plan.name)
    if plan.protocol not in row.protocols:
        raise unknown_name(f"protocol of {row.name}", plan.protocol, row.protocols)
    reading = _limited(load(plan.name, plan.root, **plan.options), plan.limit)
    metrics = load_metrics(plan.metrics)
    _check_needs(row, reading.items, metrics)
    work = _Work(plan, row, reading, metrics, pipeline() if Wants.of(metrics).encoder else None)
    output.parent.mkdir(parents=True, exist_ok=True)
    scores = output.with_suffix(".parquet")
    if overwrite:
        discard(scores)
    if finished(scores, work.manifest) is None:
        with open_run(scores, work.manifest) as run:
            _score(work, run, progress)
            run.finish([_assemble(work, run)], metadata={"msdscore": work.signature})
    result = summarise(work.counting(scores.name), metrics, pq.read_table(scores), reading.items)
    write_result(result, output)
    return result


@dataclass(frozen=True, slots=True)
class _Work:
    """A plan with everything that it names."""

    plan: BenchmarkPlan
    row: Benchmark
    reading: Reading[Any]
    metrics: tuple[Metric, ...]
    pipeline: Pipeline | None

    @property
    def control(self) -> bool:
        """Whether there are pictures enough to swap."""
        return self.plan.control and len({picture_key(item.image) for item in self.reading.items}) > 1

    @property
    def signature(self) -> str:
        return " ".join(signature(metric, self.pipeline) for metric in self.metrics)

    @property
    def manifest(self) -> dict[str, Any]:
        """Everything that must be the same for a run to go on; how to count is not among it."""
        pipeline = self.pipeline
        settings = asdict(pipeline.config) | {"components": list(pipeline.config.components)} if pipeline else None
        return {
            "benchmark": self.plan.name,
            "items": _fingerprint(self.reading.items),
            "metrics": [signature(metric, pipeline) for metric in self.metrics],
            "labels": [metric.label for metric in self.metrics],
            "encoder": pipeline.encoder.signature if pipeline else None,
            "settings": settings,
            "control": self.control,
            "seed": self.plan.seed,
            "portion_pictures": self.plan.portion_pictures,
            "version": __version__,
        }

    def portions(self, size: int) -> list[Portion]:
        """All items in portions of pictures."""
        return list(portions(self.reading.items, seed=self.plan.seed, control=self.control, size=size))

    def counting(self, scores: str) -> Counting:
        """How the scores are counted."""
        plan, notes = self.plan, self.reading.notes
        if plan.control and not self.control:
            notes = (*notes, Note("no wrong-image control: the items share one picture", len(self.reading.items)))
        return Counting(
            row=self.row,
            protocol=plan.protocol,
            pipeline=self.pipeline,
            seed=plan.seed,
            samples=plan.samples,
            limit=plan.limit,
            options=dict(plan.options),
            notes=notes,
            scores=scores,
        )


def _limited(reading: Reading[Any], limit: int | None) -> Reading[Any]:
    """Some items, spread evenly so that every subset has its share; a note says how many were left out."""
    total = len(reading.items)
    if limit is None or limit >= total:
        return reading
    left = Note("items left out by --limit", total - limit)
    return Reading(tuple(reading.items[number * total // limit] for number in range(limit)), (*reading.notes, left))


def _check_needs(row: Benchmark, items: Sequence[Item], metrics: Sequence[Metric]) -> None:
    for metric in metrics:
        if metric.needs("pairs") and row.kind == "rated":
            raise ConfigError(f"metric {metric.label} chooses between two captions; {row.name} rates single ones")
        if metric.needs("references") and not any(item.references for item in items):
            raise InputError(f"metric {metric.label} needs references, and the items of {row.name} have none here")


def _score(work: _Work, run: Run, progress: Progress) -> None:
    """Write the parts that no earlier run has finished."""
    some = [metric for metric in work.metrics if metric.row.scope == "portion"]
    wants = Wants.of(some)
    # Every distinct caption is embedded once, whichever portions it appears in.
    pipeline = work.pipeline.remembering() if work.pipeline else None
    todo, earlier = work.portions(work.plan.portion_pictures), set(run.done())
    done, total = 0, len(work.reading.items)
    references = _references(work.reading.items)
    progress(done, total)
    for portion in todo:
        if portion.number not in earlier:
            bare = text_cases(work.reading.items, portion, _of_pictures(portion, references), whole=False)
            run.write(portion.number, part_table(portion, some, fill(bare, portion, wants, pipeline)))
        done += len(portion.items)
        progress(done, total)


def _assemble(work: _Work, run: Run) -> pa.Table:
    """All items in their order with the scores of all metrics, those over the whole benchmark made now."""
    items = work.reading.items
    columns = item_columns(run.tables(), len(items))
    whole = [metric for metric in work.metrics if metric.row.scope == "corpus"]
    if whole:
        portion = work.portions(len(items))[0]
        batch = text_cases(items, portion, _of_pictures(portion, _references(items)), whole=work.plan.limit is None)
        columns |= corpus_columns(portion, whole, batch)
    table = item_table(items)
    for name, column in columns.items():
        table = table.append_column(name, column)
    return table


def _references(items: Sequence[Item]) -> dict[str, tuple[str, ...]]:
    """The references of each picture, those of its first item."""
    found: dict[str, tuple[str, ...]] = {}
    for item in items:
        found.setdefault(picture_key(item.image), item.references)
    return found


def _of_pictures(portion: Portion, references: Mapping[str, tuple[str, ...]]) -> dict[int, tuple[str, ...]]:
    return {number: references[picture_key(image)] for number, image in enumerate(portion.pictures)}


def _fingerprint(items: Sequence[Item]) -> str:
    digest, names = blake2b(digest_size=16), picture_names(item.image for item in items)
    for item in items:
        content = "\n".join([item.id, names[picture_key(item.image)], *item.captions, *item.references, ""])
        digest.update(content.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
