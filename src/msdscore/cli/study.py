"""`msdscore study NAME`: the paper's experiments and ours."""

import functools
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from msdscore.cli import options
from msdscore.cli.options import INPUT, OUTPUT, option_in
from msdscore.cli.progress import bar, stoppable, tell
from msdscore.lab.studies.registry import STUDIES

if TYPE_CHECKING:
    from msdscore.lab.studies.context import Study
    from msdscore.lab.studies.table import Table

SOME = "Options of some studies"
HELP = "The experiments on the score, each with tables, a figure and numbers:\n\n" + "\n\n".join(
    f"{name}: {line}" for name, (_, line) in STUDIES.items()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataOptions:
    """Data of a study, and its outputs."""

    root: Annotated[
        Path, option_in(INPUT, "--root", "--rows", help="Folder of the data (released files or rows), or a rows file.")
    ]
    option: options.ReaderOption = field(default_factory=list)
    limit: Annotated[int | None, option_in(INPUT, min=1, help="Largest number of items.")] = None
    protocol: Annotated[
        str, option_in(INPUT, help="How to count, on benchmarks that have it, e.g. paper; see `msdscore benchmarks`.")
    ] = ""
    seed: options.Seed = 0
    output: Annotated[
        Path | None,
        option_in(OUTPUT, "--output", "-o", help="JSON file; tables (.md) and figure (.png) go next to it."),
    ] = None
    overwrite: options.Overwrite = False
    json: options.Json = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SomeOptions:
    """Options of some studies; a study rejects those of others."""

    benchmark: Annotated[
        list[str], option_in(SOME, "--benchmark", "-b", help="See `msdscore benchmarks`. Repeatable.")
    ] = field(default_factory=list)
    metric: Annotated[list[str], option_in(SOME, "--metric", "-m", help="See `msdscore metrics`. Repeatable.")] = field(
        default_factory=list
    )
    control: Annotated[bool | None, option_in(SOME, "--control/--no-control", help="Score with wrong images too.")] = (
        None
    )
    samples: Annotated[int | None, option_in(SOME, min=1, help="Resamples per interval.")] = None
    values: Annotated[str | None, option_in(SOME, help="kappa …: values to try, e.g. '10 20 40' or '3,2 5,3'.")] = None
    buckets: Annotated[int | None, option_in(SOME, min=1, help="direction: quantiles of the caption length.")] = None
    edges: Annotated[
        str | None, option_in(SOME, help="direction: lengths in tokens instead, e.g. '13 15 86 147 227'.")
    ] = None
    held_out: Annotated[int | None, option_in(SOME, min=1, help="tune: pairs to choose settings on.")] = None
    bins: Annotated[int | None, option_in(SOME, min=1, help="margin, entropy: quantiles of margin or length.")] = None
    seeds: Annotated[int | None, option_in(SOME, min=2, help="stability: drawn starts; references: draws.")] = None
    also: Annotated[list[str], option_in(SOME, help="backbones, ood: further encoders. Repeatable.")] = field(
        default_factory=list
    )
    data: Annotated[list[str], option_in(SOME, help="reconstruction: captioned images, as `align train` reads.")] = (
        field(default_factory=list)
    )
    images: Annotated[list[str], option_in(SOME, help="reconstruction: folders of images.")] = field(
        default_factory=list
    )
    recipe: Annotated[str | None, option_in(SOME, help="reconstruction: name of a recipe, or a TOML file.")] = None
    recipe_set: Annotated[list[str], option_in(SOME, help="reconstruction: change, e.g. train.steps=100.")] = field(
        default_factory=list
    )
    share: Annotated[float | None, option_in(SOME, help="faithfulness: share of regions that is masked.")] = None
    every_projection: Annotated[
        bool | None, option_in(SOME, "--every-projection", help="faithfulness: try all projections.")
    ] = None
    marks: Annotated[
        str | None, option_in(SOME, help="words: hat or docent (marked by people), chair (absent objects) or captions.")
    ] = None
    references: Annotated[
        Path | None, option_in(SOME, help="references: captions by people, joined by image, as `bench` reads them.")
    ] = None
    synonyms: Annotated[
        Path | None, option_in(SOME, help="words: names of object classes, a line each, separated by commas.")
    ] = None

    def given(self) -> dict[str, Any]:
        """Return the options that were passed."""
        values = asdict(self) | {"every_projection": self.every_projection or None}
        return {name: value for name, value in values.items() if value not in (None, [])}


def study(
    name: Annotated[str, typer.Argument(help="Which study; they are listed above.")],
    data: DataOptions,
    scorer: options.ScorerOptions,
    batch: options.BatchOptions,
    some: SomeOptions,
) -> None:
    """Run a study, print its tables, and write them to the output."""
    from msdscore.io.outputs.targets import is_standard_output
    from msdscore.lab.studies.context import Study
    from msdscore.lab.studies.registry import run_study

    output, as_json = data.output, data.json
    if output is not None and is_standard_output(output):
        output, as_json = None, True
    requested = Study(
        root=data.root, spec=scorer.spec(batch), output=output, overwrite=data.overwrite, limit=data.limit,
        seed=data.seed, options=dict(options.parsed(data.option)), protocol=data.protocol, progress=bar,
        tell=functools.cache(tell),
    )  # fmt: skip
    _check(requested)
    with stoppable():
        tables = run_study(name, requested, **some.given())
    _write(name, tables, output, as_json=as_json)


def _check(requested: "Study") -> None:
    """Raise for an output that cannot be written or exists: a study takes long, so this is checked before it starts."""
    from msdscore.io.outputs.targets import check_target, refuse_existing, refuse_foreign

    if requested.output is None:
        return
    side = [requested.output.with_suffix(end) for end in (".md", ".png")]
    bank = None if requested.spec.bank is None else Path(requested.spec.bank)
    check_target(requested.output, (".json",), inputs=[requested.root, bank], side=side)
    refuse_existing([] if requested.overwrite else [requested.output, *side])
    # The folder of the data contains the files that the study reads, whatever their names.
    within = requested.root.is_dir() and requested.output.resolve().is_relative_to(requested.root.resolve())
    refuse_foreign([requested.output, *side] if within else side)


def _write(name: str, tables: "list[Table]", output: Path | None, *, as_json: bool) -> None:
    """Print tables or JSON; write numbers, tables and figure to files if there is an output."""
    import json

    from msdscore.io.outputs.targets import MARK, put_all
    from msdscore.lab.studies.context import forget
    from msdscore.lab.studies.table import to_figure, to_json, to_markdown

    values = {"note": MARK, **to_json(name, tables)}
    numbers = json.dumps(values, ensure_ascii=False, indent=1, allow_nan=False) + "\n"
    text = to_markdown(tables)
    if output is not None:
        side = {output.with_suffix(".md"): f"{text}\n<!-- {MARK} -->\n".encode()}
        if figure := to_figure(tables):
            side[output.with_suffix(".png")] = figure
        put_all({output: numbers.encode()}, side=side, overwrite=True)
        forget(output)
    typer.echo(numbers if as_json else text, nl=not as_json)
