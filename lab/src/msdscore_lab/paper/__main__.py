"""The program of the paper: `python -m msdscore_lab.paper --help`."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from msdscore.cli import options
from msdscore.cli.options import INPUT, OUTPUT, SCORING, SPEED, flattened, option
from msdscore.errors import ConfigError, MSDScoreError
from msdscore_lab.cli.options import STATISTICS
from msdscore_lab.paper.plan import ALSO, LANGUAGE, Settings, chosen_steps
from msdscore_lab.paper.run import check_record, listing, run_steps
from msdscore_lab.paper.sections import fill_page

USAGE = 2  # exit code of invalid options
app = typer.Typer(
    add_completion=False, pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperOptions:
    """Options of a run; an option has the name of its setting."""

    data: Path | None = option(INPUT, None, help="Folder of the benchmarks, one folder each or together.")
    output: Path = option(OUTPUT, Path("build/paper"), "--output", "-o", help="Folder for results and pages.")
    encoder: str = option(SCORING, "clip-l14", "--encoder", "-e", help="Short name, hub name or folder.")
    aligner: Path | None = option(
        SCORING, None, help="Folder of an exported aligner, or none; default: train one if the data has chat.json."
    )
    also: list[str] = option(SCORING, [], help=f"Another encoder; of the paper: {', '.join(ALSO)}. Repeatable.")
    judge: list[str] = option(
        SCORING, [], help="A model that judges pairs of CapArena, with options of the metric after commas. Repeatable."
    )
    fleur: str = option(SCORING, "", help="A LLaVA checkpoint for FLEUR on CapArena and DocENT, as NAME[,prompt=FILE].")
    local: Path | None = option(INPUT, None, help=f"Folder of checkpoints, named as their encoders, and {LANGUAGE}.")
    limit: int | None = option(INPUT, None, min=1, help="Number of items of each benchmark, for a trial.")
    samples: int = option(STATISTICS, 1000, min=1, help="Number of resamples for intervals.")
    device: options.Device = "auto"
    cache: Path | None = option(SPEED, None, help="Folder for cached embeddings; default: cache/ in the output.")
    recipe_set: list[str] = option(
        SCORING, [], help="Change of the aligner's recipe, e.g. train.steps=100. Repeatable."
    )

    def settings(self) -> Settings:
        """Return the options as settings; raise `ConfigError` for an output folder with results of other options."""
        if self.data is None or not self.data.is_dir():
            raise ConfigError(f"--data: expected a folder of benchmarks, but {self.data} does not exist")
        settings = Settings(
            data=self.data, output=self.output, encoder=self.encoder, aligner=self.aligner, also=tuple(self.also),
            judge=tuple(self.judge), fleur=self.fleur, local=self.local, limit=self.limit, samples=self.samples,
            device=self.device, cache=self.cache, recipe_set=tuple(self.recipe_set),
        )  # fmt: skip
        check_record(settings)
        return settings


def run(
    context: typer.Context,
    chosen: PaperOptions,
    plan: bool = option(OUTPUT, False, "--list", help="Print the plan and exit."),
    only: list[str] = option(INPUT, [], help="Only this step, by name or number in the plan. Repeatable."),
) -> None:
    """Run the plan of the paper, write its tables, and compare them with the published values.

    Every step runs as a command of msdscore with the form `paper`; after each, `paper.md`, `paper.tex` and `paper.json`
    are written into the output folder: our numbers next to the paper's, the verdict on every published value, and the
    command of each step. Finished steps are not repeated, so the same command resumes an interrupted run; a step
    without data or weights is listed with the reason.

    --list prints number, name, expected hours and required files of every step. With --only, the tasks of an array job
    can share an output folder: train the aligner (--only reconstruction) before the others.

    Exit codes: 0 all steps have a result, 3 some could not run, 2 invalid usage.
    """
    if context.invoked_subcommand is not None:
        return
    settings = chosen.settings()
    steps = chosen_steps(settings, only)
    if plan:
        typer.echo(listing(settings), nl=False)
        return
    raise typer.Exit(run_steps(steps, settings))


app.callback(invoke_without_command=True)(flattened(run))


@app.command()
def fill(
    page: Annotated[Path, typer.Argument(help="Markdown page with marked sections.")],
    results: Annotated[Path, typer.Option(help="Folder of the result files.")],
) -> None:
    """Fill the sections of a page, marked by `<!-- study NAME: begin -->` and `end`, from the files NAME.json."""
    fill_page(page, results)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code; user errors print one line."""
    try:
        app(arguments, prog_name="python -m msdscore_lab.paper")
    except (MSDScoreError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        return USAGE
    except SystemExit as end:
        return int(end.code or 0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
