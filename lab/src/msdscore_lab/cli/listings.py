"""`msdscore metrics` and `benchmarks`: list the registries of the laboratory."""

from pathlib import Path
from typing import Annotated

import typer

from msdscore.cli import options
from msdscore.cli.progress import OneName, entry_fields, print_entries, print_json
from msdscore_lab.cli.options import ReaderOption

BenchmarkName = Annotated[str, typer.Argument(help="Name of a benchmark.")]
benchmarks = typer.Typer(help="List the benchmarks, show all fields of one, or list its items.")


def metrics(name: OneName = None, json: options.Json = False) -> None:
    """List the metrics, or show all fields of one."""
    from msdscore_lab.metrics.registry import METRICS, list_metrics

    rows = entry_fields([METRICS.find(name)] if name else list_metrics(), without=("loader",))
    print_entries(name, rows, rows, ("name", "title", "needs", "argument", "extra"), as_json=json)


@benchmarks.callback(invoke_without_command=True)
def listing(context: typer.Context, json: options.Json = False) -> None:
    """List the benchmarks."""
    from msdscore_lab.benchmarks.registry import benchmarks as known

    if context.invoked_subcommand is None:
        rows = entry_fields(known())
        print_entries(None, rows, rows, ("name", "kind", "size", "licence", "protocols", "source"), as_json=json)


@benchmarks.command()
def show(name: BenchmarkName, json: options.Json = False) -> None:
    """Show all fields of a benchmark: expected files, protocols and citation."""
    from msdscore_lab.benchmarks.registry import benchmark

    row = benchmark(name)
    hidden = ("reader", "rows", "rows_name", "figures", "credits", "statistics")
    print_entries(name, entry_fields([row]), entry_fields([row], without=hidden), (), as_json=json)


@benchmarks.command()
def items(
    name: BenchmarkName,
    root: Annotated[Path, typer.Option("--root", help="Folder of the data, as for `msdscore bench`.")],
    option: ReaderOption = [],
) -> None:
    """List the items as JSON lines (id, image, captions), in the order of a score file."""
    from msdscore_lab.benchmarks.base import image_key, image_names
    from msdscore_lab.benchmarks.registry import data_folder, load

    listed = load(name, data_folder(root, name), **dict(options.parsed(option))).items
    names = image_names(item.image for item in listed)
    for item in listed:
        row = {"id": item.id, "image": names[image_key(item.image)], "captions": item.captions}
        print_json(row)
