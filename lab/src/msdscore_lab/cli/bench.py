"""`msdscore bench`: run metrics on benchmarks of human judgements, with intervals and a wrong-image control."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from msdscore.cli import options
from msdscore.cli.options import INPUT, OUTPUT, SCORING, option
from msdscore.cli.progress import bar, stoppable, tell
from msdscore_lab.cli import options as lab_options
from msdscore_lab.cli.options import STATISTICS

if TYPE_CHECKING:
    from msdscore.scoring.pipeline import Pipeline
    from msdscore_lab.benchmarks.run.plan import BenchmarkPlan

PAPER_METRICS = ("cosine", "coverage", "support", "bi-kl", "msd", "soft-msd", "length")
EVIDENCE_METRICS = ("cosine", "precision", "information", "penalty", "msd", "soft-msd", "length")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtocolOptions:
    """Data, metrics, protocol and statistics of a benchmark run."""

    root: Path = option(INPUT, ..., help="Folder of the released files, or its parent (with NAME/), or a rows file.")
    reader_option: lab_options.ReaderOption = field(default_factory=list)
    references: Path | None = option(
        INPUT, None, help="File of reference captions by image: COCO annotations, JSON lines, or id to list."
    )
    limit: int | None = option(INPUT, None, min=1, help="Maximum number of items, evenly spread.")
    metric: list[str] = option(
        SCORING, [], "--metric", "-m", help="NAME[:ARGUMENT] from `msdscore metrics`, or module:function. Repeatable."
    )
    protocol: str = option(STATISTICS, "official", help="Evaluation protocol; see `msdscore benchmarks show NAME`.")
    seed: lab_options.Seed = 0
    seeds: int | None = option(
        STATISTICS, None, min=1, help="Number of random draws to average over, for benchmarks that have them."
    )
    samples: lab_options.Samples = 1000
    percentile: lab_options.Percentile = False
    control: lab_options.Control = True

    def plan(self, name: str, metrics: list[str]) -> "BenchmarkPlan":
        """Return the plan of one benchmark."""
        import shlex
        import sys

        from msdscore_lab.benchmarks.registry import data_folder
        from msdscore_lab.benchmarks.run.plan import BenchmarkPlan

        return BenchmarkPlan(
            name=name, root=data_folder(self.root, name), metrics=tuple(metrics),
            protocol=self.protocol, limit=self.limit, seed=self.seed, seeds=self.seeds, samples=self.samples,
            expanded=not self.percentile, control=self.control, options=dict(options.parsed(self.reader_option)),
            references=self.references, command=shlex.join(["msdscore", *sys.argv[1:]]),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultOptions:
    """Output files of a benchmark run."""

    output: Path = option(OUTPUT, Path("results"), "--output", "-o", help="Folder for NAME.json and NAME.parquet.")
    overwrite: bool = option(OUTPUT, False, "--overwrite", help="Delete existing scores first.")
    json: options.Json = False


def file_name(benchmark: str) -> str:
    """Return the file name of a benchmark, without the colon of `module:attribute`, which some systems do not allow.

    >>> file_name("mine:ROW")
    'mine.ROW'
    """
    return benchmark.replace(":", ".")


def bench(
    names: Annotated[
        list[str], typer.Argument(help="Names from `msdscore benchmarks`, or module:attribute of your own row.")
    ],
    protocol: ProtocolOptions,
    target: ResultOptions,
    scorer: options.ScorerOptions,
    batch: options.BatchOptions,
) -> None:
    """Run metrics on benchmarks of human judgements.

    Writes NAME.json (results, intervals, controls, signatures) and NAME.parquet (scores of every item), and prints
    the main figures. The same command resumes an interrupted run; if images were replaced, it needs --overwrite. An
    additional --metric scores only that metric; another --protocol evaluates the existing scores, into
    NAME-PROTOCOL.json.

    Exit codes: 0 all items scored, 3 some items failed (their errors are in the output), 2 invalid usage.
    """
    from functools import cache, partial

    from msdscore.io.targets import check_folder
    from msdscore_lab.benchmarks.results.grids import result_grids
    from msdscore_lab.benchmarks.results.result import to_json
    from msdscore_lab.benchmarks.run.plan import LONG_NOTE, pipeline_for
    from msdscore_lab.benchmarks.run.runner import run_benchmark
    from msdscore_lab.cli.grids import grid_table

    outputs = [f"{file_name(name)}{end}" for name in names for end in (".json", ".parquet")]
    check_folder(target.output, outputs, inputs=[protocol.root, scorer.bank])
    spec, results = scorer.spec(batch), []
    pipeline = cache(spec.build)

    @cache
    def fitting(name: str) -> "Pipeline":
        chosen = pipeline_for(name, pipeline(), spec)
        if chosen.form != pipeline().form:
            tell(f"{name}: {LONG_NOTE}")
        return chosen

    metrics = protocol.metric
    if not metrics:
        metrics = list(PAPER_METRICS if "coverage" in pipeline().form.columns else EVIDENCE_METRICS)
    for name in names:
        plan, file = protocol.plan(name, metrics), target.output / f"{file_name(name)}.json"
        with stoppable(), bar(name) as show:
            results.append(run_benchmark(plan, file, partial(fitting, name), overwrite=target.overwrite, progress=show))
    if target.json:
        typer.echo("[" + ",\n".join(map(to_json, results)) + "]")
    for grid in [] if target.json else result_grids(results, every=False):
        grid_table(grid)
    if pipeline.cache_info().currsize:
        options.print_cache_use(spec, pipeline().cache_use)
    raise typer.Exit(options.SOME_FAILED if any(result.failed for result in results) else 0)
