"""`msdscore study NAME`: the paper's experiments and ours."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from msdscore.cli import options
from msdscore.cli.progress import bar, stoppable
from msdscore.lab.studies.registry import STUDIES

if TYPE_CHECKING:
    from msdscore.lab.studies.context import Study
    from msdscore.lab.studies.table import Table

HELP = "The experiments behind the score, each with tables, a figure and numbers:\n\n" + "\n\n".join(
    f"{name}: {line}" for name, (_, line) in STUDIES.items()
)


def _own(*names: str, help: str, **more: Any) -> Any:  # noqa: A002, typer's word
    """An option that some studies have."""
    return typer.Option(*names, help=help, rich_help_panel="Options of some studies", **more)


def study(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Which study; they are listed above.")],
    root: Annotated[
        Path, typer.Option("--root", "--rows", help="Folder of the data (released files or rows), or a rows file.")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="JSON file; tables (.md) and figure (.png) go beside it.")
    ] = None,
    overwrite: options.Overwrite = False,
    limit: Annotated[int | None, typer.Option(min=1, help="How many items at most.")] = None,
    seed: options.Seed = 0,
    option: options.ReaderOption = [],
    encoder: options.Encoder = "mini",
    preset: options.Preset = None,
    change: options.Change = [],
    encoder_option: options.EncoderOption = [],
    bank: options.BankFile = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    batch_size: options.BatchSize = None,
    cache: options.Cache = None,
    cache_size: options.CacheSize = options.CACHE_SIZE,
    cache_half: options.CacheHalf = False,
    json: options.Json = False,
    benchmark: Annotated[list[str], _own("--benchmark", "-b", help="See `msdscore benchmarks`. Repeatable.")] = [],
    metric: Annotated[list[str], _own("--metric", "-m", help="See `msdscore metrics`. Repeatable.")] = [],
    control: Annotated[bool | None, _own("--control/--no-control", help="Score with wrong images too.")] = None,
    samples: Annotated[int | None, _own(min=1, help="Resamples behind an interval.")] = None,
    values: Annotated[str | None, _own(help="kappa …: values to try, e.g. '10 20 40' or '3,2 5,3'.")] = None,
    buckets: Annotated[int | None, _own(min=1, help="direction: quantiles of the caption length.")] = None,
    bins: Annotated[int | None, _own(min=1, help="margin, entropy: quantiles of margin or length.")] = None,
    seeds: Annotated[int | None, _own(min=2, help="stability: drawn starts.")] = None,
    also: Annotated[list[str], _own(help="backbones, ood: further encoders. Repeatable.")] = [],
    data: Annotated[list[str], _own(help="reconstruction: captioned images, as `align train` reads.")] = [],
    images: Annotated[list[str], _own(help="reconstruction: folders of images.")] = [],
    recipe: Annotated[str | None, _own(help="reconstruction: name of a recipe, or a TOML file.")] = None,
    recipe_set: Annotated[list[str], _own(help="reconstruction: change, e.g. train.steps=100.")] = [],
    share: Annotated[float | None, _own(help="faithfulness: share of regions that is masked.")] = None,
    every_projection: Annotated[
        bool | None, _own("--every-projection", help="faithfulness: try all projections.")
    ] = None,
    marks: Annotated[
        str | None, _own(help="words: hat (marked by people), chair (absent objects) or captions.")
    ] = None,
    synonyms: Annotated[
        Path | None, _own(help="words: names of object classes, a line each, separated by commas.")
    ] = None,
) -> None:
    """Run a study, print its tables, and write them where asked."""
    from msdscore.io.outputs.targets import is_standard_output
    from msdscore.lab.studies.context import Study
    from msdscore.lab.studies.registry import run_study

    own = {
        "benchmark": benchmark, "metric": metric, "control": control, "samples": samples, "values": values,
        "buckets": buckets, "bins": bins, "seeds": seeds, "also": also, "data": data, "images": images,
        "recipe": recipe, "recipe_set": recipe_set, "share": share, "every_projection": every_projection or None,
        "marks": marks, "synonyms": synonyms,
    }  # fmt: skip
    if output is not None and is_standard_output(output):
        output, json = None, True
    asked = Study(
        root=root, spec=options.make_spec(context.params), output=output, overwrite=overwrite, limit=limit, seed=seed,
        options=dict(map(options.setting, option)), progress=bar,
    )  # fmt: skip
    _check(asked)
    with stoppable():
        tables = run_study(name, asked, **{option: value for option, value in own.items() if value not in (None, [])})
    _write(name, tables, output, as_json=json)


def _check(asked: "Study") -> None:
    """Refuse a name that cannot be written; a study takes long, so a file that is there is refused at once."""
    from msdscore.io.outputs.targets import check_target, refuse_existing, refuse_foreign

    if asked.output is None:
        return
    beside = [asked.output.with_suffix(end) for end in (".md", ".png")]
    bank = None if asked.spec.bank is None else Path(asked.spec.bank)
    check_target(asked.output, (".json",), inputs=[asked.root, bank], side=beside)
    refuse_existing([] if asked.overwrite else [asked.output, *beside])
    # Among the files of the data lies what the study reads, by whatever name.
    within = asked.root.is_dir() and asked.output.resolve().is_relative_to(asked.root.resolve())
    refuse_foreign([asked.output, *beside] if within else beside)


def _write(name: str, tables: "list[Table]", output: Path | None, *, as_json: bool) -> None:
    """Tables or JSON to standard output; numbers, tables and figure to files where asked."""
    import json

    from msdscore.io.outputs.targets import MARK, put_all
    from msdscore.lab.studies.context import forget
    from msdscore.lab.studies.table import to_figure, to_json, to_markdown

    values = {"note": MARK, **to_json(name, tables)}
    numbers = json.dumps(values, ensure_ascii=False, indent=1, allow_nan=False) + "\n"
    text = to_markdown(tables)
    if output is not None:
        beside = {output.with_suffix(".md"): f"{text}\n<!-- {MARK} -->\n".encode()}
        if figure := to_figure(tables):
            beside[output.with_suffix(".png")] = figure
        put_all({output: numbers.encode()}, side=beside, overwrite=True)
        forget(output)
    typer.echo(numbers if as_json else text, nl=not as_json)
