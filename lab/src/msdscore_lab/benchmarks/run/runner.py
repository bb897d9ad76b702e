"""Run a benchmark: score every item with its image and a wrong one in resumable parts, then compute the figures."""

import json
import math
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache, partial
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from itertools import accumulate, compress
from pathlib import Path
from statistics import fmean, stdev
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from msdscore.encoders.fingerprint import encoder_signature
from msdscore.encoders.registry import built_in_row
from msdscore.errors import ConfigError, RunError
from msdscore.forms.registry import facts_of
from msdscore.intervals import Floats
from msdscore.io.files import write_bytes
from msdscore.io.runs import discard, open_run
from msdscore.io.targets import REMEDY
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.references import count_fact
from msdscore.version import __version__
from msdscore_lab.benchmarks.base import Benchmark, Item, image_key
from msdscore_lab.benchmarks.protocols import counting
from msdscore_lab.benchmarks.protocols.counting import Figure, Figures, Flags
from msdscore_lab.benchmarks.registry import reader_options
from msdscore_lab.benchmarks.results import result as tables
from msdscore_lab.benchmarks.results.result import MetricResult, Provenance, Result, ScorerRecord, score_matrix
from msdscore_lab.benchmarks.run.cases import ItemBatch, fill, item_batches, published_encoder, text_cases
from msdscore_lab.benchmarks.run.plan import BenchmarkPlan, Work, prepare_work
from msdscore_lab.benchmarks.run.score_file import (
    Reusable,
    find_reusable,
    images_fingerprint,
    is_score_file,
    write,
)
from msdscore_lab.metrics.base import Cases, Metric, Scope

T = TypeVar("T")
Progress = Callable[[int, int], None]
_PACKAGES = ("numpy", "scipy", "torch", "transformers", "pillow")
_MAX_FAILURES = 5  # error messages in a result


def run_benchmark(
    plan: BenchmarkPlan,
    output: Path,
    pipeline: Callable[[], Pipeline],
    *,
    overwrite: bool = False,
    progress: Progress = lambda done, total: None,
) -> Result:
    """Score and evaluate a benchmark; scores are stored as Parquet next to the result file `output` (.json).

    A stopped run resumes. Existing scores are reused: only new metrics are scored, and changed images are an error;
    another protocol has a separate result file. `pipeline` is called if a metric needs an encoder. A benchmark with
    random draws is averaged over `plan.seeds` draws.
    """
    if output.suffix != ".json":
        raise ConfigError(f"{output}: expected a .json file for the result; scores are stored next to it as .parquet")
    output.parent.mkdir(parents=True, exist_ok=True)
    work = prepare_work(plan)
    default = work.row.protocols[0]
    protocol = work.plan.protocol
    target = output if protocol == default else output.with_stem(f"{output.stem}-{protocol}")
    _check_free(target, tables.is_result, plan.root, overwrite=overwrite)
    # Only reference-based metrics depend on the draw of references.
    seeds = plan.seeds or (work.item_set.draws if any(metric.needs("references") for metric in work.metrics) else 1)
    run = partial(_run_once, pipeline=cache(pipeline), overwrite=overwrite, progress=progress)
    if seeds == 1:
        result = run(work, output.with_suffix(".parquet"))
    elif "seed" not in reader_options(plan.name, plan.root):
        raise ConfigError(f"{plan.name} has no random draws; remove --seeds")
    else:
        results, first = [], int(plan.options.get("seed", 0))
        for seed in range(first, first + seeds):
            draw = prepare_work(replace(plan, options={**plan.options, "seed": seed}))
            results.append(run(draw, output.with_name(f"{output.stem}.seed-{seed}.parquet")))
        result = average(results)
    write_bytes(target, tables.to_json(result).encode() + b"\n", folder=target.parent)
    return result


def _check_free(path: Path, is_own_file: Callable[[Path], bool], root: Path, *, overwrite: bool) -> None:
    """Raise `RunError` for a file that was not written by a run; with `overwrite`, only among the benchmark's files."""
    if not path.exists() or is_own_file(path):
        return
    if path.resolve().is_relative_to(root.resolve()):
        raise RunError(f"{path}: is a file of the benchmark, not a result of a run; choose another -o")
    if not overwrite:
        raise RunError(f"{path}: exists, but was not written by a known run; {REMEDY}")


def _run_once(
    work: Work,
    scores: Path,
    *,
    pipeline: Callable[[], Pipeline],
    overwrite: bool,
    progress: Progress,
) -> Result:
    started, plan, items = time.monotonic(), work.plan, work.item_set.items
    _check_free(scores, is_score_file, plan.root, overwrite=overwrite)
    if overwrite:
        scores.unlink(missing_ok=True)
    base = {**work.base, "count": len(items), "images": images_fingerprint(items)}
    loaded = pipeline() if any(metric.needs("encoder") for metric in work.metrics) else None
    scorer = None if loaded is None else _record(loaded)
    signatures = _signatures(work, scorer)
    earlier = find_reusable(scores, base, signatures)
    if earlier.remaining:
        table = _score(work, scores, base, earlier, loaded, signatures, progress)
        if images_fingerprint(items) != base["images"]:
            raise RunError(f"{scores}: images were changed during the run; run again")
        columns = {"error": [None] * len(items), **table}
        write(scores, tables.scores_table(items, columns), base, {**earlier.signatures, **signatures})
        _discard_parts(scores)
    progress(len(items), len(items))
    made = _provenance(work, scorer, time.monotonic() - started)
    result = summarise(work, scorer, pq.read_table(scores), scores.name, made)
    _check_answers(work.metrics, result)
    return result


def _check_answers(metrics: Sequence[Metric], result: Result) -> None:
    """Raise `RunError` if the model of a metric gave no usable answer on any item."""
    for metric in metrics:
        if metric.row.answer and result.items > result.failed and result.metric(metric.label).missing == result.items:
            raise RunError(
                f"{metric.label}: none of {result.items} items has an answer that can be read; expected "
                f"{metric.row.answer}; check the model and its prompt"
            )


def _discard_parts(scores: Path) -> None:
    """Remove the parts of finished and stopped runs, except those in use by another process."""
    for folder in scores.parent.glob(f"{scores.stem}.????????????.parquet.parts"):
        with suppress(RunError):
            discard(folder.with_suffix(""))


def _provenance(work: Work, scorer: ScorerRecord | None, seconds: float) -> Provenance:
    """Return date, command, device and time of a run, and a hash of its items."""
    return Provenance(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        command=work.plan.command,
        device=scorer.device if scorer else "",
        seconds=round(seconds, 1),
        data={"items": work.base["items"]},
    )


def _signatures(work: Work, scorer: ScorerRecord | None) -> dict[str, str]:
    return {metric.label: signature(metric, scorer) for metric in work.metrics}


def _record(pipeline: Pipeline) -> ScorerRecord:
    """Return the signatures of a scorer and its encoder."""
    published = ""
    with suppress(ConfigError):
        published = encoder_signature(published_encoder(pipeline.encoder))
    return ScorerRecord(pipeline.signature, pipeline.embedder.signature, str(pipeline.encoder.device), published)


def _score(
    work: Work,
    scores: Path,
    base: Mapping[str, Any],
    earlier: Reusable,
    pipeline: Pipeline | None,
    signatures: Mapping[str, str],
    progress: Progress,
) -> dict[str, list[Any]]:
    """Return the columns of all items, from earlier scores and from parts next to `scores`.

    Only a run of the same metrics on the same items and images resumes from these parts.
    """
    plan, items = work.plan, work.item_set.items
    manifest = {"base": base, "metrics": {label: signatures[label] for label in earlier.remaining}}
    digest = blake2b(json.dumps(manifest, ensure_ascii=False).encode(), digest_size=6).hexdigest()
    batches = list(item_batches(items, seed=plan.seed, control=plan.control, size=plan.batch_images))
    done = [0, *accumulate(len(batch.items) for batch in batches)]  # items before each batch, then all
    pipeline = pipeline and pipeline.remembering()  # every distinct caption is embedded once over all batches
    texts, metrics = text_cases(items), _metrics(work, earlier.remaining, "part")
    with open_run(scores.with_name(f"{scores.stem}.{digest}.parquet"), manifest) as run:
        for number, key, batch in run.missing(("", batch) for batch in batches):
            progress(done[number], done[-1])
            run.write(number, _score_batch(metrics, texts(batch, whole=False), batch, pipeline), key=key)
        columns = tables.merge_columns(run.tables(), earlier.columns, len(items))
    if corpus_metrics := _metrics(work, earlier.remaining, "corpus"):
        (batch,) = item_batches(items, seed=plan.seed, control=plan.control, size=len(items))
        scored = tables.score_columns(corpus_metrics, texts(batch, whole=plan.limit is None))
        table = pa.table({"item": pa.array(batch.items, pa.int64()), **scored})
        columns |= tables.merge_columns([table], {}, len(items))
    return columns


def _metrics(work: Work, labels: Sequence[str], scope: Scope) -> list[Metric]:
    """Return the metrics with these labels that score a part of the items at a time, or the whole corpus."""
    return [metric for metric in work.metrics if metric.label in labels and metric.row.scope == scope]


def _score_batch(metrics: Sequence[Metric], bare: Cases, batch: ItemBatch, pipeline: Pipeline | None) -> pa.Table:
    """Return the scores of a batch with the error of each item, if its image or text is read."""
    needs = {need for metric in metrics for need in metric.row.needs}
    cases, errors = fill(bare, batch, needs, pipeline)
    columns: dict[str, Any] = {"item": pa.array(batch.items, pa.int64())}
    if needs & {"encoder", "images"}:
        columns["error"] = pa.array([errors.get(index) for index in range(len(batch.items))], pa.string())
    return pa.table(columns | tables.score_columns(metrics, cases))


def signature(metric: Metric, scorer: ScorerRecord | None) -> str:
    """Return the signature of a metric: everything that can change its scores."""
    choices = f"|{metric.choices}" if metric.choices else ""
    if scorer is None or not metric.needs("encoder"):
        return f"{metric.row.name}{choices}|v:{__version__}"
    if metric.needs("mixtures"):
        prefix, settings = scorer.signature.split("|", 1)
        name = metric.row.name.replace("msd", prefix) if metric.row.name in ("msd", "soft-msd") else metric.row.name
        return f"{name}{choices}|{settings}"
    if metric.needs("published"):
        return f"{metric.row.name}{choices}|enc:{scorer.published}|v:{__version__}"
    pool = facts_of(scorer.signature).get("pool")  # of the form; the encoder's if it is not stated
    pooled = f"|pool:{pool}" if pool else ""
    return f"{metric.row.name}{choices}|enc:{scorer.encoder}{pooled}|v:{__version__}"


def summarise(work: Work, scorer: ScorerRecord | None, table: pa.Table, scores: str, provenance: Provenance) -> Result:
    """Compute the figures of all metrics from the table of scores (the file `scores`), on the same items."""
    plan, row, items = work.plan, work.row, work.item_set.items
    errors = [error for error in table.column("error").to_pylist() if error]
    columns = {metric.label: _scores(metric, table) for metric in work.metrics}
    common, exclusions = _common_items(columns)
    common_items = list(compress(items, common))
    sheet = partial(counting.make_sheet, row, common_items, protocol=plan.protocol, how=plan.resampling)
    signatures = _result_signatures(work, scorer, common_items)
    metrics = [
        _metric_result(row, metric, signatures[metric.label], columns[metric.label], common, sheet)
        for metric in work.metrics
    ]
    length = None
    if common_items:
        direction, figures = counting.length_baseline(row, sheet(counting.lengths(common_items), judged=False))
        length = MetricResult(f"length alone ({direction} wins)", "", True, False, figures)
    return Result(
        benchmark=row.name,
        title=row.title,
        kind=row.kind,
        protocol=plan.protocol,
        encoder=scorer.encoder if scorer else "",
        items=len(items),
        counted=len(common_items),
        images=len({image_key(item.image) for item in common_items}),
        failed=len(errors),
        failures=tuple(dict.fromkeys(errors))[:_MAX_FAILURES],
        seed=plan.seed,
        samples=plan.samples,
        limit=plan.limit,
        options=dict(plan.options),
        notes={**work.item_set.notes, **exclusions, **_domain_note(row, scorer, len(common_items))},
        metrics=tuple(metrics),
        versions=versions(),
        scores=scores,
        length=length,
        made=provenance,
    )


def _result_signatures(work: Work, scorer: ScorerRecord | None, items: Sequence[Item]) -> dict[str, str]:
    """Return the signature of each metric followed by all settings of the benchmark that can change a figure."""
    plan = work.plan
    facts = [f"bench:{plan.name}", f"protocol:{plan.protocol}", f"n:{len(items)}", f"seed:{plan.seed}"]
    # Options of the benchmark's reader.
    facts += [f"{'draw' if name == 'seed' else name}:{value}" for name, value in sorted(plan.options.items())]
    facts += [] if plan.limit is None else [f"limit:{plan.limit}"]
    references = count_fact(len(item.references) for item in items)
    return {
        metric.label: "|".join(
            [signature(metric, scorer), *([references] if metric.needs("references") else []), *facts]
        )
        for metric in work.metrics
    }


def _domain_note(row: Benchmark, scorer: ScorerRecord | None, count: int) -> dict[str, int]:
    """Return a note if the encoder is not known to be trained on images of the benchmark's domain."""
    if not row.domain or scorer is None:
        return {}
    name = scorer.encoder.partition("@")[0]
    encoder = built_in_row(name)
    if encoder is not None and row.domain in encoder.domains:
        return {}
    source = f"items from {row.domain}, which encoder {name} is not known to be trained for"
    return {f"{source}: match and colours are not calibrated for it": count}


def _metric_result(
    row: Benchmark,
    metric: Metric,
    signed: str,
    sides: Sequence[Floats],
    common: Flags,
    sheet: Callable[..., counting.Sheet[Any]],
) -> MetricResult:
    """Return the figures of one metric on the common items, with true and, with a control, with wrong images."""
    missing = int(np.isnan(sides[0]).any(axis=1).sum())
    result = MetricResult(metric.label, signed, metric.higher_is_better, metric.judged, (), missing=missing)
    if not common.any() or missing == len(sides[0]):
        return result
    sheets = [sheet(side[common], judged=metric.judged) for side in sides]
    figures, *control = (counting.figures(row, side) for side in sheets)
    matched = counting.matched_length(row, sheets[0])
    return replace(result, figures=figures, control=control[0] if control else (), matched=matched)


def _common_items(columns: Mapping[str, Sequence[Floats]]) -> tuple[Flags, dict[str, int]]:
    """Return a mask of the items that every metric scored (with a control, also with the wrong image), and a note.

    A metric without any score is ignored.
    """
    scored_by = {label: np.asarray(~np.isnan(np.hstack(sides)).any(axis=1)) for label, sides in columns.items()}
    scored = {label: flags for label, flags in scored_by.items() if flags.any()}
    common: Flags = np.logical_and.reduce(list((scored or scored_by).values()))
    if all((flags == common).all() for flags in scored.values()):
        return common, {}
    count, label = min((int(flags.sum()), label) for label, flags in scored.items())
    return common, {f"items left out: not scored by every metric ({label} has {count})": int((~common).sum())}


def _scores(metric: Metric, table: pa.Table) -> list[Floats]:
    """Return the scores with true images and, with a control, with wrong images; higher is better."""
    sign = 1 if metric.higher_is_better else -1
    true, wrong = (score_matrix(table, metric.label, wrong=side) for side in (False, True))
    assert true is not None, "the table has every metric of its run"
    return [sign * true, *([] if wrong is None or np.isnan(wrong).all() else [sign * wrong])]


def versions() -> dict[str, str]:
    """Return the versions of the packages that affect the numbers."""
    packages = {"msdscore": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            packages[name] = version(name)
    return packages


def average(results: Sequence[Result]) -> Result:
    """Return the first result with every figure and interval averaged over all results."""
    first, metrics = results[0], []
    for metric in first.metrics:
        draws = [result.metric(metric.label) for result in results]
        matched = _mean_figures([[draw.matched] for draw in draws if draw.matched is not None])
        facts = metric.signature.split("|")
        metrics.append(replace(
            metric,
            signature="|".join([*(fact for fact in facts if not fact.startswith("draw:")), f"draws:{len(draws)}"]),
            figures=_mean_figures([draw.figures for draw in draws]),
            control=_mean_figures([draw.control for draw in draws]),
            matched=matched[0] if matched else None,
        ))  # fmt: skip
    run = replace(first.made, seconds=round(sum(result.made.seconds for result in results), 1))
    return replace(first, metrics=tuple(metrics), seeds=len(results), failed=max(r.failed for r in results), made=run)


def _mean_figures(draws: Sequence[Sequence[Figure]]) -> Figures:
    """Average each figure of the first draw over all draws that have it."""
    means = []
    for figure in draws[0] if draws else ():
        same = [other for figures in draws for other in figures if other.name == figure.name]
        values, intervals = [other.value for other in same], [other.interval for other in same if other.interval]
        if len(same) > 1 and not any(map(math.isnan, values)):
            interval = None
            if len(intervals) == len(same):
                low, high = (fmean(getattr(each, end) for each in intervals) for end in ("low", "high"))
                interval = replace(intervals[0], value=fmean(values), low=low, high=high)
            figure = replace(figure, value=fmean(values), interval=interval, spread=stdev(values))
        means.append(figure)
    return tuple(means)


def keep_answers(
    path: Path | None,
    manifest: Mapping[str, Any],
    batches: Sequence[T],
    measure: Callable[[int, T], Any],
    *,
    progress: Progress = lambda done, total: None,
) -> list[Any]:
    """Return `measure(number, batch)` of every batch, plain values that are computed once and stored next to `path`.

    They stay there until they are discarded; those of another manifest raise `RunError`.
    """
    with TemporaryDirectory() as folder:
        target = Path(folder) / "answers.parquet" if path is None else path
        target.parent.mkdir(parents=True, exist_ok=True)
        with open_run(target, manifest) as run:
            for number, key, batch in run.missing(("", batch) for batch in batches):
                progress(number, len(batches))
                run.write(number, pa.table({"answer": [json.dumps(measure(number, batch))]}), key=key)
            progress(len(batches), len(batches))
            return [json.loads(part["answer"][0].as_py()) for part in run.tables()] if batches else []
