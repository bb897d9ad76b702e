"""A benchmark run: every metric over every item with its own and a wrong image, in parts that survive a crash."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from msdscore.benchmarks.base import Item, image_key, image_names, stamp
from msdscore.benchmarks.registry import reader_options
from msdscore.benchmarks.results.result import (
    Provenance,
    Result,
    ScorerRecord,
    is_result,
    joined_columns,
    score_columns,
    scores_table,
    write_result,
)
from msdscore.benchmarks.results.summary import average, signature, summarise
from msdscore.benchmarks.run.cases import ItemBatch, fill, text_cases
from msdscore.benchmarks.run.plan import BenchmarkPlan, Work, prepare_work
from msdscore.benchmarks.run.score_file import (
    Kept,
    MetricTask,
    image_state,
    is_ours,
    keep,
    recorded_scorer,
    sources_of,
    write,
)
from msdscore.errors import ConfigError, RunError
from msdscore.io.outputs.manifest import REMEDY
from msdscore.io.outputs.run import discard, open_run
from msdscore.metrics.base import Metric
from msdscore.run.plan import write_parts
from msdscore.scoring.pipeline import Pipeline

Progress = Callable[[int, int], None]


def run_benchmark(
    plan: BenchmarkPlan,
    output: Path,
    pipeline: Callable[[], Pipeline],
    *,
    stamp: str | None = None,
    overwrite: bool = False,
    progress: Progress = lambda done, total: None,
) -> Result:
    """Score and count a benchmark; scores go to a Parquet file beside the result file `output` (.json).

    A run goes on where an earlier one stopped. What is scored already stays: another metric is scored alone, images
    that came or changed since are scored again, another protocol counts again and has its own result file. `pipeline`
    is called where a metric needs an encoder; if `stamp` says what it is built from (`ScorerSpec.stamp`), only where
    something is left to encode. A benchmark that draws is drawn `plan.seeds` times and averaged.
    """
    if output.suffix != ".json":
        raise ConfigError(f"{output}: a result is a .json file, its scores lie beside it as .parquet")
    output.parent.mkdir(parents=True, exist_ok=True)
    work = prepare_work(plan, pipeline, stamp=stamp)
    default = work.row.protocols[0]
    target = output if plan.protocol == default else output.with_stem(f"{output.stem}-{plan.protocol}")
    _check_free(target, is_result, plan.root, overwrite=overwrite)
    seeds = plan.seeds or _draws(work)
    if seeds == 1:
        result = _one(work, output.with_suffix(".parquet"), overwrite=overwrite, progress=progress)
    else:
        drawn = [_drawn(work, number) for number in range(seeds)]
        files = [output.with_name(f"{output.stem}.seed-{draw.plan.options['seed']}.parquet") for draw in drawn]
        result = average([
            _one(draw, file, overwrite=overwrite, progress=progress) for draw, file in zip(drawn, files, strict=True)
        ])  # fmt: skip
    write_result(result, target)
    return result


def _check_free(path: Path, ours: Callable[[Path], bool], root: Path, *, overwrite: bool) -> None:
    """Refuse to replace a file that no run has written; one among the benchmark's own files even with `overwrite`."""
    if not path.exists() or ours(path):
        return
    if path.resolve().is_relative_to(root.resolve()):
        raise RunError(f"{path}: lies among the benchmark's files and no run has written it; choose another -o")
    if not overwrite:
        raise RunError(f"{path}: exists, and no run is known that wrote it; {REMEDY}")


def _draws(work: Work) -> int:
    """How often the protocol wants to draw: only metrics that read references depend on how they are drawn."""
    return work.item_set.draws if any(metric.needs("references") for metric in work.metrics) else 1


def _drawn(work: Work, number: int) -> Work:
    """The same work with the reader's seed moved on."""
    plan = work.plan
    if "seed" not in reader_options(plan.name, plan.root):
        raise ConfigError(f"{plan.name} draws nothing, so that seeds do not change it; leave --seeds out")
    seed = int(plan.options.get("seed", 0)) + number
    return prepare_work(replace(plan, options={**plan.options, "seed": seed}), work.pipeline, stamp=work.stamp)


def _one(work: Work, scores: Path, *, overwrite: bool, progress: Progress) -> Result:
    begun = time.monotonic()
    _check_free(scores, is_ours, work.plan.root, overwrite=overwrite)
    if overwrite:
        scores.unlink(missing_ok=True)
    items = work.item_set.items
    sources = sources_of(items, seed=work.plan.seed, control=work.control)
    scorer = recorded_scorer(scores, work.stamp) if work.encodes else None
    kept = keep(scores, work.base, _signatures(work, scorer), sources) if scorer else None
    if kept is None or kept.tasks:
        scorer = ScorerRecord.of(work.pipeline()) if work.encodes else None
        kept = keep(scores, work.base, _signatures(work, scorer), sources)
    signatures = _signatures(work, scorer)
    if kept.tasks:
        columns = _score(work, kept, _parts_of(scores, work.base, signatures, kept), progress)
        if sources_of(items, seed=work.plan.seed, control=work.control) != sources:
            raise RunError(f"{scores}: images were changed while they were scored; run again, which scores those alone")
        marks = {"error": [None] * len(items), "stranger": sources.strangers, "stamp": sources.stamps}
        known = None if scorer is None else {"stamp": work.stamp, "record": asdict(scorer)}
        table = scores_table(items, {**marks, **columns})
        write(scores, table, work.base, {**kept.signatures, **signatures}, known)
        _clear_parts(scores)
    progress(len(items), len(items))
    about = Provenance(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        command=work.plan.command,
        device=scorer.device if scorer else "",
        seconds=round(time.monotonic() - begun, 1),
        data={"items": work.base["items"], "pictures": _image_mark(items)},
    )
    return summarise(work, scorer, pq.read_table(scores), scores.name, about)


def _signatures(work: Work, scorer: ScorerRecord | None) -> dict[str, str]:
    return {metric.label: signature(metric, scorer) for metric in work.metrics}


def _score(work: Work, kept: Kept, parts: tuple[Path, dict[str, Any]], progress: Progress) -> dict[str, list[Any]]:
    """The columns of all items: those kept, and those of parts that this or an earlier try has written."""
    items = work.item_set.items
    left = [(batch, task) for task in kept.tasks for batch in work.batches(work.plan.batch_images, task.items)]
    total = sum(len(batch.items) for batch, _ in left)
    # Every distinct caption is embedded once, whichever batches it appears in.
    pipeline = work.pipeline().remembering() if work.encodes else None
    references, done = _references(items), 0

    def compute(missing: Iterator[tuple[str, tuple[ItemBatch, MetricTask]]]) -> Iterator[tuple[str, pa.Table]]:
        for key, (batch, task) in missing:
            progress(done, total)
            asked = [metric for metric in work.metrics if metric.label in task.labels]
            metrics = [metric for metric in asked if metric.row.scope == "part"]
            yield key, _part(items, batch, metrics, references, pipeline)
            count((batch, task))

    def count(part: tuple[ItemBatch, MetricTask]) -> None:
        nonlocal done
        done += len(part[0].items)

    with open_run(*parts) as run:
        write_parts(run, ((_image_key(batch), (batch, task)) for batch, task in left), compute, reused=count)
        columns = joined_columns(run.tables(), kept.columns, len(items))
    return columns | _corpus(work, kept.tasks, references)


def _image_key(batch: ItemBatch) -> str:
    """A hash of the state of a batch's images: parts of other images are scored again."""
    stamps = "\n".join(map(image_state, batch.images))
    return blake2b(stamps.encode(), digest_size=8).hexdigest()


def _part(
    items: Sequence[Item],
    batch: ItemBatch,
    metrics: Sequence[Metric],
    references: Mapping[str, tuple[str, ...]],
    pipeline: Pipeline | None,
) -> pa.Table:
    """The scores of one batch, with each item's number in the benchmark."""
    bare = text_cases(items, batch, _of_images(batch, references), whole=False)
    needs = {need for metric in metrics for need in metric.row.needs}
    cases, errors = fill(bare, batch, needs, pipeline)
    columns: dict[str, Any] = {"item": pa.array(batch.items, pa.int64())}
    if needs & {"encoder", "pictures"}:
        columns["error"] = pa.array([errors.get(number) for number in range(len(batch.items))], pa.string())
    return pa.table(columns | score_columns(metrics, cases))


def _corpus(work: Work, tasks: Sequence[MetricTask], references: Mapping[str, tuple[str, ...]]) -> dict[str, list[Any]]:
    """Columns of metrics that look at all items together, in the order of the items."""
    items, labels = work.item_set.items, {label for task in tasks for label in task.labels}
    whole = [metric for metric in work.metrics if metric.row.scope == "corpus" and metric.label in labels]
    columns: dict[str, list[Any]] = {}
    if whole:
        batch = work.batches(len(items))[0]
        cases = text_cases(items, batch, _of_images(batch, references), whole=work.plan.limit is None)
        for name, column in score_columns(whole, cases).items():
            placed: list[Any] = [None] * len(items)
            for number, value in zip(batch.items, column.to_pylist(), strict=True):
                placed[number] = value
            columns[name] = placed
    return columns


def _parts_of(
    scores: Path, base: Mapping[str, Any], signatures: Mapping[str, str], kept: Kept
) -> tuple[Path, dict[str, Any]]:
    """Where the parts of exactly this work lie, so that a stopped run goes on and no other one is taken for it."""
    manifest = {"base": base, "metrics": signatures, "tasks": [[task.items, task.labels] for task in kept.tasks]}
    mark = blake2b(json.dumps(manifest, ensure_ascii=False).encode(), digest_size=6).hexdigest()
    return scores.with_name(f"{scores.stem}.{mark}.parquet"), {"base": base, "metrics": signatures, "work": mark}


def _clear_parts(scores: Path) -> None:
    """Remove the parts of this run and of ones that were stopped; one that another process is at work on stays."""
    for folder in scores.parent.glob(f"{scores.stem}.????????????.parquet.parts"):
        with suppress(RunError):
            discard(folder.with_suffix(""))


def _image_mark(items: Sequence[Item]) -> str:
    """A hash of the names and sizes of all images."""
    names = image_names(item.image for item in items)
    sizes = {names[image_key(item.image)]: stamp(item.image).partition("-")[0] for item in items}
    return blake2b(json.dumps(sorted(sizes.items())).encode(), digest_size=16).hexdigest()


def _references(items: Sequence[Item]) -> dict[str, tuple[str, ...]]:
    """The references of each image, those of its first item."""
    references: dict[str, tuple[str, ...]] = {}
    for item in items:
        references.setdefault(image_key(item.image), item.references)
    return references


def _of_images(batch: ItemBatch, references: Mapping[str, tuple[str, ...]]) -> dict[int, tuple[str, ...]]:
    return {number: references[image_key(image)] for number, image in enumerate(batch.images)}
