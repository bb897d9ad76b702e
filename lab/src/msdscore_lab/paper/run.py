"""Run the plan of the paper, write its tables, and compare them with the published values.

`python -m msdscore_lab.paper --data FOLDER` (`make paper`) runs every step as a command of msdscore with the form
`paper`, and writes `paper.md`, `paper.tex` and `paper.json` into the output folder after each: our numbers next to the
paper's, the verdict on every published value, and the command of each step. Finished steps are not repeated, so the
same command resumes an interrupted run; a step without data or weights is listed with the reason.

`--list` prints the plan: number, name, expected hours and required files. `--only` takes names or numbers, so that the
tasks of an array job can share an output folder: train the aligner (`--only reconstruction`) before the others.
"""

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import fields
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

from click import ClickException
from PIL import Image

from msdscore.cli.app import app
from msdscore.errors import ConfigError, MSDScoreError
from msdscore.io.files import write_bytes
from msdscore_lab.benchmarks.results.result import read_result
from msdscore_lab.paper.page import PAGE, write_pages
from msdscore_lab.paper.plan import (
    ALSO,
    LANGUAGE,
    MAIN,
    NO_ALIGNER,
    RUN,
    Settings,
    State,
    Step,
    chosen_steps,
    finished,
    read_state,
    steps_of,
    write_state,
)

USAGE, SOME_FAILED, STOPPED = 2, 3, 128  # exit codes: invalid; a step without a result; a signal, plus its number


def run_step(step: Step, settings: Settings) -> str:
    """Run a step unless its result exists; return an error in one line, or an empty string."""
    if finished(step, settings):
        return ""
    if reason := _waits(step, settings):
        return reason
    if missing := step.missing(settings):
        return f"{missing} does not exist"
    for words in step.commands(settings):
        if reason := _run(words):
            return reason
    _stack(step, settings)
    if not step.result(settings).is_file():
        return f"no {step.output} was written"
    return "" if finished(step, settings) else _nothing_scored(step.result(settings))


def _nothing_scored(path: Path) -> str:
    result = read_result(path)
    first = f": {result.failures[0]}" if result.failures else ""
    return f"none of {result.items} items has a score{first}".splitlines()[0]


def _waits(step: Step, settings: Settings) -> str:
    """Return why a step must wait: it uses the aligner, which can be trained but was not."""
    if step.encoder != MAIN or settings.main is not None or settings.aligner == NO_ALIGNER:
        return ""
    (training,) = (other for other in steps_of(settings) if other.name == "reconstruction")
    if training.missing(settings) or read_state(settings.output, training.name).reason:
        return ""
    return "the aligner is not trained yet: run --only reconstruction first, or pass --aligner (none: plain encoder)"


def _run(words: Sequence[str]) -> str:
    """Run an msdscore command in this process, where modules are already loaded; return an error in one line."""
    quiet, own = StringIO(), sys.argv
    sys.argv = ["msdscore", *words]  # results record the command line
    try:
        with redirect_stdout(quiet), redirect_stderr(quiet):
            code = app(list(words), standalone_mode=False)
    except (MSDScoreError, ClickException) as error:
        return (error.format_message() if isinstance(error, ClickException) else str(error)).splitlines()[0]
    except Exception as error:  # noqa: BLE001, a failed step must not stop the others
        return f"{type(error).__name__}: {error}".splitlines()[0]
    finally:
        sys.argv = own
    if code and code >= STOPPED:
        raise KeyboardInterrupt
    return ""


def _stack(step: Step, settings: Settings) -> None:
    """Join the panels of a figure of several images into one file."""
    output = step.result(settings)
    panels = [Image.open(path) for path in sorted(output.parent.glob(f"{output.stem}-[0-9].png"))]
    if not panels:
        return
    sheet = Image.new("RGB", (max(panel.width for panel in panels), sum(panel.height for panel in panels)), "white")
    top, content = 0, BytesIO()
    for panel in panels:
        sheet.paste(panel, (0, top))
        top += panel.height
    sheet.save(content, "PNG")
    write_bytes(output, content.getvalue(), folder=output.parent)


def listing(settings: Settings) -> str:
    """Return the plan as text: number, name, hours, state and needed files of every step."""
    lines, steps = ["no.  hours  step                          state     needs"], steps_of(settings)
    for number, step in enumerate(steps, start=1):
        state = read_state(settings.output, step.name)
        is_finished = finished(step, settings)
        measured = is_finished and state.seconds is not None
        hours = f"{(state.seconds or 0) / 3600:.2f}" if measured else f"~{step.hours:g}"
        stage = "finished" if is_finished else "not run" if state.reason else "open"
        lines.append(f"{number:3}  {hours:>5}  {step.name:28}  {stage:8}  {', '.join(step.inputs)}")
    total = sum(step.hours for step in steps)
    return "\n".join([*lines, f"~: expected on one H200, calculated and not measured; {total:.0f} h in all", ""])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m msdscore_lab.paper", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, help="folder of the benchmarks, one folder each or together")
    add("--output", "-o", type=Path, default=Path("build/paper"))
    add("--list", action="store_true", help="print the plan and exit")
    add("--only", action="append", default=[], help="only this step, by name or number; repeatable")
    add("--encoder", "-e", default="clip-l14", help="short name, hub name or folder (clip-l14)")
    add("--aligner", type=Path, help="folder of an exported aligner, or none; default: train one if DATA has chat.json")
    add("--also", action="append", default=[], help=f"another encoder, repeatable; of the paper: {', '.join(ALSO)}")
    add("--judge", action="append", default=[],
        help="a model that judges pairs of CapArena, with options of the metric after commas; repeatable")  # fmt: skip
    add("--fleur", default="", help="a LLaVA checkpoint for FLEUR on CapArena and DocENT, as NAME[,prompt=FILE]")
    add("--local", type=Path, help=f"folder of checkpoints, named as their encoders, and {LANGUAGE}")
    add("--limit", type=int, help="number of items of each benchmark, for a trial")
    add("--samples", type=int, default=1000, help="resamples per interval (1000)")
    add("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    add("--cache", type=Path, help="folder of cached embeddings (OUTPUT/cache)")
    add("--recipe-set", action="append", default=[], help="change of the aligner's recipe, e.g. train.steps=100")
    return parser


def _settings(args: argparse.Namespace) -> Settings:
    """Return the options as settings; raise `ConfigError` for an output folder with results of other options."""
    if args.data is None or not args.data.is_dir():
        raise ConfigError(f"--data: expected a folder of benchmarks, but {args.data} does not exist")
    values = {field.name: getattr(args, field.name) for field in fields(Settings)}
    plain: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    settings = Settings(**plain)
    record, path = settings.record, settings.output / RUN
    before = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else record
    if different := [name for name in record if before.get(name) != record[name]]:
        raise ConfigError(
            f"{settings.output}: contains results with {different[0]} {before.get(different[0])!r}, now "
            f"{record[different[0]]!r}; choose another -o"
        )
    return settings


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the requested steps; return exit code 3 if a step could not run."""
    args = _parser().parse_args(arguments)
    try:
        settings = _settings(args)
        steps = chosen_steps(settings, args.only)
    except MSDScoreError as error:
        sys.stderr.write(f"error: {error}\n")
        return USAGE
    if args.list:
        sys.stdout.write(listing(settings))
        return 0
    settings.output.mkdir(parents=True, exist_ok=True)
    write_bytes(settings.output / RUN, json.dumps(settings.record, indent=1).encode(), folder=settings.output)
    failed = 0
    for step in steps:
        try:
            failed += bool(_timed(step, settings))
        except KeyboardInterrupt:
            sys.stderr.write(f"{step.name}: stopped; the same command resumes here\n")
            return STOPPED + signal.SIGINT
        write_pages(settings)
    sys.stdout.write(f"{settings.output / PAGE}: {len(steps) - failed} of {len(steps)} steps\n")
    return SOME_FAILED if failed else 0


def _timed(step: Step, settings: Settings) -> str:
    """Run a step, and record its seconds and its error; those of a finished step are not changed."""
    if finished(step, settings):
        return ""
    start = time.monotonic()
    write_state(settings.output, step.name, State())
    reason = run_step(step, settings)
    seconds = round(time.monotonic() - start, 1)
    write_state(settings.output, step.name, State(seconds, reason))
    sys.stderr.write(f"{step.name}: {f'not run: {reason}' if reason else f'{seconds:.0f} s'}\n")
    return reason
