"""Run the steps of the plan, each a command of msdscore with the form `paper`."""

import json
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import BytesIO, StringIO
from pathlib import Path

from PIL import Image

from msdscore.cli.app import app
from msdscore.errors import ConfigError, MSDScoreError
from msdscore.io.files import write_bytes
from msdscore_lab.benchmarks.results.result import read_result
from msdscore_lab.paper.page import PAGE, write_pages
from msdscore_lab.paper.plan import (
    MAIN,
    NO_ALIGNER,
    RUN,
    Settings,
    State,
    Step,
    finished,
    read_state,
    steps_of,
    write_state,
)

SOME_FAILED, STOPPED = 3, 128  # exit codes: a step without a result; a signal, plus its number


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
    except MSDScoreError as error:
        return str(error).splitlines()[0]
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


def check_record(settings: Settings) -> None:
    """Raise `ConfigError` if the output folder has results of other options."""
    record, path = settings.record, settings.output / RUN
    before = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else record
    if different := [name for name in record if before.get(name) != record[name]]:
        raise ConfigError(
            f"{settings.output}: contains results with {different[0]} {before.get(different[0])!r}, now "
            f"{record[different[0]]!r}; choose another -o"
        )


def run_steps(steps: Sequence[Step], settings: Settings) -> int:
    """Run the steps and write the pages after each; return 0, or exit code 3 if a step could not run."""
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
