"""`msdscore study NAME`: experiments of the paper and of this project."""

import functools
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from msdscore.cli import options
from msdscore.cli.options import INPUT, OUTPUT, option
from msdscore.cli.progress import bar, stoppable, tell
from msdscore_lab.cli import options as lab_options
from msdscore_lab.studies.registry import STUDIES, SWEPT

if TYPE_CHECKING:
    from msdscore_lab.studies.context import Study
    from msdscore_lab.studies.table import Table

SOME = "Options of some studies"
HELP = "Run an experiment; it writes tables, a figure and JSON:\n\n" + "\n\n".join(
    f"{name}: {line}" for name, (_, line) in STUDIES.items()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataOptions:
    """Data and outputs of a study."""

    root: Path = option(
        INPUT, ..., "--root", "--rows", help="Folder of the data (released files or rows), or a rows file."
    )
    reader_option: lab_options.ReaderOption = field(default_factory=list)
    limit: int | None = option(INPUT, None, min=1, help="Maximum number of items.")
    protocol: str = option(
        INPUT, "", help="Evaluation protocol of the benchmarks that have it, e.g. paper; see `msdscore benchmarks`."
    )
    samples: lab_options.Samples = 1000
    percentile: lab_options.Percentile = False
    control: lab_options.Control = True
    seed: lab_options.Seed = 0
    output: Path | None = option(
        OUTPUT, None, "--output", "-o", help="JSON file; tables (.md) and a figure (.png) are written next to it."
    )
    overwrite: options.Overwrite = False
    json: options.Json = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyOptions:
    """Options of some studies; a study rejects options that it does not have."""

    benchmark: list[str] = option(SOME, [], "--benchmark", "-b", help="See `msdscore benchmarks`. Repeatable.")
    metric: list[str] = option(SOME, [], "--metric", "-m", help="See `msdscore metrics`. Repeatable.")
    values: str | None = option(SOME, None, help="sweep: values to try, e.g. '10 20 40' or '3,2 5,3'.")
    edges: str | None = option(SOME, None, help="direction: bin edges in tokens, e.g. '13 15 86 147 227'.")
    held_out: int | None = option(SOME, None, min=1, help="tune: number of pairs to tune on.")
    bins: int | None = option(SOME, None, min=1, help="margin, entropy: number of quantiles.")
    seeds: int | None = option(SOME, None, min=2, help="stability: random starts; references: random draws.")
    also: list[str] = option(SOME, [], help="backbones: further encoders. Repeatable.")
    data: list[str] = option(SOME, [], help="reconstruction: captioned images, as `align train` reads.")
    images: list[str] = option(SOME, [], help="reconstruction: folders of images.")
    recipe: str | None = option(SOME, None, help="reconstruction: name of a recipe, or a TOML file.")
    recipe_set: list[str] = option(SOME, [], help="reconstruction: change a setting, e.g. train.steps=100.")
    marks: str | None = option(
        SOME, None, help="words: source of labels: docent (experts), chair (absent objects), captions or changed."
    )
    references: Path | None = option(
        SOME, None, help="references: file of reference captions by image, as for `bench`."
    )
    synonyms: Path | None = option(
        SOME, None, help="words: synonyms of object classes, one class per line, separated by commas."
    )


def study(
    name: Annotated[str, typer.Argument(help="Name of a study, listed above.")],
    data: DataOptions,
    scorer: options.ScorerOptions,
    batch: options.BatchOptions,
    chosen: StudyOptions,
    parameter: Annotated[str | None, typer.Argument(help=f"sweep: {', '.join(SWEPT)}.")] = None,
) -> None:
    """Run a study, print its tables, and write them to the output."""
    from msdscore.io.targets import is_standard_output
    from msdscore_lab.studies.context import Study
    from msdscore_lab.studies.registry import run_study

    output, as_json = data.output, data.json
    if output is not None and is_standard_output(output):
        output, as_json = None, True
    requested = Study(
        root=data.root, spec=scorer.spec(batch), output=output, overwrite=data.overwrite, limit=data.limit,
        seed=data.seed, options=dict(options.parsed(data.reader_option)), protocol=data.protocol, samples=data.samples,
        expanded=not data.percentile, control=data.control, progress=bar, tell=functools.cache(tell),
    )  # fmt: skip
    _check(requested)
    with stoppable():
        passed = {option: value for option, value in asdict(chosen).items() if value not in (None, [], False)}
        passed |= {} if parameter is None else {"parameter": parameter}
        tables = run_study(name, requested, **passed)
    _write(name, tables, output, as_json=as_json)


def _check(requested: "Study") -> None:
    """Raise early if the output exists or cannot be written, because a study takes long."""
    from msdscore.io.targets import check_target, refuse_existing, refuse_foreign

    if requested.output is None:
        return
    side = [requested.output.with_suffix(end) for end in (".md", ".png")]
    bank = None if requested.spec.bank is None else Path(requested.spec.bank)
    check_target(requested.output, (".json",), inputs=[requested.root, bank], side=side)
    refuse_existing([] if requested.overwrite else [requested.output, *side])
    # Any file in the data folder may be an input of the study.
    within = requested.root.is_dir() and requested.output.resolve().is_relative_to(requested.root.resolve())
    refuse_foreign([requested.output, *side] if within else side)


def _write(name: str, tables: "list[Table]", output: Path | None, *, as_json: bool) -> None:
    """Print tables or JSON, and write JSON, tables and figure if there is an output."""
    import json

    from msdscore.io.targets import MARK, put_all
    from msdscore_lab.studies.context import discard_intermediate
    from msdscore_lab.studies.table import to_figure, to_json, to_markdown

    values = {"note": MARK, **to_json(name, tables)}
    numbers = json.dumps(values, ensure_ascii=False, indent=1, allow_nan=False) + "\n"
    text = to_markdown(tables)
    if output is not None:
        side = {output.with_suffix(".md"): f"{text}\n<!-- {MARK} -->\n".encode()}
        if figure := to_figure(tables):
            side[output.with_suffix(".png")] = figure
        put_all({output: numbers.encode()}, side=side, overwrite=True)
        discard_intermediate(output)
    typer.echo(numbers if as_json else text, nl=not as_json)
