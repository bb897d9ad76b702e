"""`msdscore bench`: metrics on benchmarks of human judgements, with intervals and the wrong-image control."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from msdscore.cli import options
from msdscore.cli.progress import bar, stoppable

if TYPE_CHECKING:
    from msdscore.benchmarks.results.result import Result

PAPER_METRICS = ("cosine", "coverage", "support", "bi-kl", "msd", "soft-msd", "length")
EVIDENCE_METRICS = ("cosine", "precision", "information", "msd", "soft-msd", "length")
SOME_FAILED = 3


def bench(
    names: Annotated[list[str], typer.Argument(help="Benchmarks; see `msdscore benchmarks`.")],
    root: Annotated[
        Path, typer.Option("--root", help="Folder of the released files, or one that holds NAME/; or a rows file.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for NAME.json and NAME.parquet.")] = Path(
        "results"
    ),
    metric: Annotated[
        list[str],
        typer.Option(
            "--metric",
            "-m",
            help="NAME or NAME:ARGUMENT; see `msdscore metrics`. Repeatable; those of the form if not given.",
        ),
    ] = [],  # noqa: B006, typer copies it
    protocol: Annotated[str, typer.Option(help="How to count; see `msdscore benchmarks show NAME`.")] = "official",
    option: Annotated[list[str], typer.Option("--option", help="Of the reader, e.g. split=valid.")] = [],  # noqa: B006
    limit: Annotated[int | None, typer.Option(min=1, help="Only so many items, spread evenly.")] = None,
    seed: Annotated[int, typer.Option(help="Of wrong pictures and resampling.")] = 0,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Draw a benchmark that draws so often: mean and spread.")
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Resamples behind an interval.")] = 1000,
    control: Annotated[bool, typer.Option("--control/--no-control", help="Score with wrong pictures too.")] = True,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Throw away scores that are there.")] = False,
    encoder: options.Encoder = "mini",
    preset: options.Preset = None,
    change: options.Change = [],  # noqa: B006
    encoder_option: options.EncoderOption = [],  # noqa: B006
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

    from msdscore.benchmarks.run.plan import BenchmarkPlan
    from msdscore.io.outputs.targets import check_folder

    outputs = [f"{name}{end}" for name in names for end in (".json", ".parquet")]
    check_folder(output, outputs, inputs=[root, bank])
    spec = options.make_spec(
        encoder, preset, change, encoder_options=encoder_option, bank=bank, batch_size=batch_size,
        cache=options.cache_settings(cache, cache_size, cache_half), device=device, dtype=dtype, revision=revision,
        verify=verify,
    )  # fmt: skip
    pipeline = functools.cache(spec.build)
    if not metric:
        metric = list(PAPER_METRICS if "coverage" in pipeline().config.columns else EVIDENCE_METRICS)
    plans = [
        BenchmarkPlan(
            name=name, root=root / name if (root / name).is_dir() else root, metrics=tuple(metric), protocol=protocol,
            limit=limit, seed=seed, seeds=seeds, samples=samples, control=control,
            options=dict(map(options.setting, option)), command=shlex.join(["msdscore", *sys.argv[1:]]),
        )
        for name in names
    ]  # fmt: skip
    results = [_run(plan, output, pipeline, stamp=spec.stamp(), overwrite=overwrite) for plan in plans]
    show_results(results, as_json=json)
    if pipeline.cache_info().currsize:
        options.print_cache_use(cache, pipeline().cache_use)
    raise typer.Exit(SOME_FAILED if any(result.failed for result in results) else 0)


def _run(plan: Any, output: Path, pipeline: Any, *, stamp: str | None, overwrite: bool) -> "Result":
    from msdscore.benchmarks.run.runner import run_benchmark

    with stoppable(), bar(plan.name) as show:
        result = output / f"{plan.name}.json"
        return run_benchmark(plan, result, pipeline, stamp=stamp, overwrite=overwrite, progress=show)


def show_results(results: "list[Result]", *, as_json: bool) -> None:
    """Tables of results on standard output, or the results themselves."""
    from msdscore.benchmarks.results.grids import result_grids
    from msdscore.benchmarks.results.result import to_json
    from msdscore.cli.tables import grid_table

    if as_json:
        typer.echo("[" + ",\n".join(to_json(result) for result in results) + "]")
        return
    for grid in result_grids(results):
        grid_table(grid)
