"""A benchmark run: every metric over every item with its own and a wrong image, in parts that survive a crash."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from msdscore.benchmarks.base import image_key, image_names
from msdscore.benchmarks.base import stamp as file_state
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
    image_state,
    is_ours,
    keep,
    recorded_scorer,
    sources_of,
    write,
)
from msdscore.errors import ConfigError, RunError
from msdscore.io.outputs.run import discard, open_run
from msdscore.io.outputs.targets import REMEDY
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
    # Only metrics that read references depend on how these are drawn.
    seeds = plan.seeds or (work.item_set.draws if any(metric.needs("references") for metric in work.metrics) else 1)
    if seeds == 1:
        result = _run_once(work, output.with_suffix(".parquet"), overwrite=overwrite, progress=progress)
    elif "seed" not in reader_options(plan.name, plan.root):
        raise ConfigError(f"{plan.name} draws nothing, so that seeds do not change it; leave --seeds out")
    else:
        results, first = [], int(plan.options.get("seed", 0))
        for seed in range(first, first + seeds):
            draw = prepare_work(replace(plan, options={**plan.options, "seed": seed}), work.pipeline, stamp=stamp)
            scores = output.with_name(f"{output.stem}.seed-{seed}.parquet")
            results.append(_run_once(draw, scores, overwrite=overwrite, progress=progress))
        result = average(results)
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


def _run_once(work: Work, scores: Path, *, overwrite: bool, progress: Progress) -> Result:
    begun = time.monotonic()
    _check_free(scores, is_ours, work.plan.root, overwrite=overwrite)
    if overwrite:
        scores.unlink(missing_ok=True)
    items = work.item_set.items
    sources = sources_of(items, seed=work.plan.seed, control=work.control)
    scorer = recorded_scorer(scores, work.stamp) if work.encodes else None
    kept = keep(scores, work.base, _signatures(work, scorer), sources) if scorer else None
    if kept is None or kept.tasks:
        if work.encodes:
            pipeline = work.pipeline()
            scorer = ScorerRecord(pipeline.signature, pipeline.encoder.signature, str(pipeline.encoder.device))
        kept = keep(scores, work.base, _signatures(work, scorer), sources)
    signatures = _signatures(work, scorer)
    if kept.tasks:
        columns = _score(work, kept, _parts_of(scores, work.base, signatures, kept), progress)
        if sources_of(items, seed=work.plan.seed, control=work.control) != sources:
            raise RunError(f"{scores}: images were changed while they were scored; run again, which scores those alone")
        strangers, stamps = zip(*sources, strict=True)
        marks = {"error": [None] * len(items), "stranger": strangers, "stamp": stamps}
        known = None if scorer is None else {"stamp": work.stamp, "record": asdict(scorer)}
        write(scores, scores_table(items, {**marks, **columns}), work.base, {**kept.signatures, **signatures}, known)
        # Parts of runs that were stopped go too; those that another process is at work on stay.
        for folder in scores.parent.glob(f"{scores.stem}.????????????.parquet.parts"):
            with suppress(RunError):
                discard(folder.with_suffix(""))
    progress(len(items), len(items))
    names = image_names(item.image for item in items)
    sizes = {names[image_key(item.image)]: file_state(item.image).partition("-")[0] for item in items}
    about = Provenance(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        command=work.plan.command,
        device=scorer.device if scorer else "",
        seconds=round(time.monotonic() - begun, 1),
        data={"items": work.base["items"], "pictures": _mark(sorted(sizes.items()), 16)},
    )
    return summarise(work, scorer, pq.read_table(scores), scores.name, about)


def _signatures(work: Work, scorer: ScorerRecord | None) -> dict[str, str]:
    return {metric.label: signature(metric, scorer) for metric in work.metrics}


def _mark(content: Any, size: int, **how: Any) -> str:
    return blake2b(json.dumps(content, **how).encode(), digest_size=size).hexdigest()


def _parts_of(
    scores: Path, base: Mapping[str, Any], signatures: Mapping[str, str], kept: Kept
) -> tuple[Path, dict[str, Any]]:
    """Where the parts of exactly this work lie, so that a stopped run goes on and no other one is taken for it."""
    mark = _mark({"base": base, "metrics": signatures, "tasks": kept.tasks}, 6, ensure_ascii=False)
    return scores.with_name(f"{scores.stem}.{mark}.parquet"), {"base": base, "metrics": signatures, "work": mark}


def _score(work: Work, kept: Kept, parts: tuple[Path, dict[str, Any]], progress: Progress) -> dict[str, list[Any]]:
    """The columns of all items: those kept, and those of parts that this or an earlier try has written."""
    items = work.item_set.items
    left = [
        (batch, labels) for numbers, labels in kept.tasks for batch in work.batches(work.plan.batch_images, numbers)
    ]
    total, done = sum(len(batch.items) for batch, _ in left), 0
    # Every distinct caption is embedded once, whichever batches it appears in.
    pipeline = work.pipeline().remembering() if work.encodes else None
    texts = text_cases(items)

    def compute(missing: Iterator[tuple[str, tuple[ItemBatch, tuple[str, ...]]]]) -> Iterator[tuple[str, pa.Table]]:
        for key, (batch, labels) in missing:
            progress(done, total)
            metrics = [m for m in work.metrics if m.label in labels and m.row.scope == "part"]
            needs = {need for metric in metrics for need in metric.row.needs}
            cases, errors = fill(texts(batch, whole=False), batch, needs, pipeline)
            columns: dict[str, Any] = {"item": pa.array(batch.items, pa.int64())}
            if needs & {"encoder", "pictures"}:
                columns["error"] = pa.array([errors.get(number) for number in range(len(batch.items))], pa.string())
            yield key, pa.table(columns | score_columns(metrics, cases))
            count((batch, labels))

    def count(part: tuple[ItemBatch, tuple[str, ...]]) -> None:
        nonlocal done
        done += len(part[0].items)

    with open_run(*parts) as run:
        write_parts(run, ((_image_key(batch), (batch, labels)) for batch, labels in left), compute, reused=count)
        columns = joined_columns(run.tables(), kept.columns, len(items))
    # Metrics that look at all items together.
    asked = {label for _, labels in kept.tasks for label in labels}
    whole = [metric for metric in work.metrics if metric.row.scope == "corpus" and metric.label in asked]
    if whole:
        batch = work.batches(len(items))[0]
        scored = score_columns(whole, texts(batch, whole=work.plan.limit is None))
        table = pa.table({"item": pa.array(batch.items, pa.int64()), **scored})
        columns |= joined_columns([table], {}, len(items))
    return columns


def _image_key(batch: ItemBatch) -> str:
    """A hash of the state of a batch's images: parts of other images are scored again."""
    stamps = "\n".join(map(image_state, batch.images))
    return blake2b(stamps.encode(), digest_size=8).hexdigest()
