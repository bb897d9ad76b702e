"""`msdscore bench`: metrics on benchmarks of human judgements, with intervals and the wrong-image control."""

from pathlib import Path
from typing import Annotated

import typer

from msdscore.cli import options
from msdscore.cli.progress import bar, stoppable

PAPER_METRICS = ("cosine", "coverage", "support", "bi-kl", "msd", "soft-msd", "length")
EVIDENCE_METRICS = ("cosine", "precision", "information", "msd", "soft-msd", "length")


def bench(
    context: typer.Context,
    names: Annotated[list[str], typer.Argument(help="Benchmarks; see `msdscore benchmarks`.")],
    root: Annotated[
        Path, typer.Option("--root", help="Folder of the released files, or one that holds NAME/; or a rows file.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for NAME.json and NAME.parquet.")] = Path(
        "results"
    ),
    metric: Annotated[
        list[str],
        typer.Option("--metric", "-m", help="NAME[:ARGUMENT] of `msdscore metrics`, those of the form. Repeatable."),
    ] = [],
    protocol: Annotated[str, typer.Option(help="How to count; see `msdscore benchmarks show NAME`.")] = "official",
    option: options.ReaderOption = [],
    limit: Annotated[int | None, typer.Option(min=1, help="Only so many items, spread evenly.")] = None,
    seed: options.Seed = 0,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Draw a benchmark that draws so often: mean and spread.")
    ] = None,
    samples: options.Samples = 1000,
    control: Annotated[bool, typer.Option("--control/--no-control", help="Score with wrong images too.")] = True,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Throw away scores that are there.")] = False,
    encoder: options.Encoder = "mini",
    preset: options.Preset = None,
    change: options.Change = [],
    encoder_option: options.EncoderOption = [],
    bank: options.BankFile = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    revision: options.Revision = None,
    verify: options.Verify = False,
    batch_size: options.BatchSize = None,
    cache: options.Cache = None,
    cache_size: options.CacheSize = options.CACHE_SIZE,
    cache_half: options.CacheHalf = False,
    json: options.Json = False,
) -> None:
    """Run metrics on benchmarks of human judgements.

    Writes NAME.json (figures, intervals, controls, signatures) and NAME.parquet (scores of every item), and prints
    tables. The same command goes on where it stopped, and scores again what was not there or has changed; one more
    --metric is scored alone; another --protocol counts finished scores again, into NAME-PROTOCOL.json.

    Exit codes: 0 all scored, 3 some items failed and say why, 2 wrong usage.
    """
    import functools
    import shlex
    import sys

    from msdscore.cli.tables import grid_table
    from msdscore.io.outputs.targets import check_folder
    from msdscore.lab.benchmarks.results.grids import result_grids
    from msdscore.lab.benchmarks.results.result import to_json
    from msdscore.lab.benchmarks.run.plan import BenchmarkPlan
    from msdscore.lab.benchmarks.run.runner import run_benchmark

    outputs = [f"{name}{end}" for name in names for end in (".json", ".parquet")]
    check_folder(output, outputs, inputs=[root, bank])
    spec = options.make_spec(context.params)
    pipeline, stamp, results = functools.cache(spec.build), spec.stamp(), []
    if not metric:
        metric = list(PAPER_METRICS if "coverage" in pipeline().config.columns else EVIDENCE_METRICS)
    for name in names:
        plan = BenchmarkPlan(
            name=name, root=root / name if (root / name).is_dir() else root, metrics=tuple(metric), protocol=protocol,
            limit=limit, seed=seed, seeds=seeds, samples=samples, control=control,
            options=dict(map(options.setting, option)), command=shlex.join(["msdscore", *sys.argv[1:]]),
        )  # fmt: skip
        file = output / f"{name}.json"
        with stoppable(), bar(name) as show:
            results.append(run_benchmark(plan, file, pipeline, stamp=stamp, overwrite=overwrite, progress=show))
    if json:
        typer.echo("[" + ",\n".join(map(to_json, results)) + "]")
    for grid in [] if json else result_grids(results):
        grid_table(grid)
    if pipeline.cache_info().currsize:
        options.print_cache_use(cache, pipeline().cache_use)
    raise typer.Exit(options.SOME_FAILED if any(result.failed for result in results) else 0)
