"""Output of commands: tables and JSON on standard output, progress on standard error; Ctrl-C and SIGTERM."""

import json
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import fields
from io import FileIO
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from msdscore.errors import shortened

if TYPE_CHECKING:  # rich takes long to import
    from rich.console import Console

STOPPED = "stopped; finished parts are saved, and the same command resumes from there"
# Control characters, which a terminal executes, and marks that change the direction of text.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
Show = Callable[..., None]  # (done, total, note="")
LOG_EVERY = 30.0  # seconds between log lines without a terminal
OneName = Annotated[str | None, typer.Argument(help="Show all fields of this entry.")]
_QUIET: ContextVar[bool] = ContextVar("quiet", default=False)


def be_quiet(wanted: bool) -> None:
    """Set `--quiet` for the rest of this command."""
    _QUIET.set(wanted)
    logging.getLogger("msdscore").setLevel(logging.ERROR if wanted else logging.NOTSET)


def visible(text: str) -> str:
    r"""Escape control characters for a terminal: captions and names are untrusted.

    >>> visible("a \x1b[31mdog")
    'a \\x1b[31mdog'
    """
    return _CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def tell(text: str) -> None:
    """Print a line on standard error unless `--quiet` is set. Errors are always printed."""
    if not _QUIET.get():
        typer.echo(visible(text), err=True)


def print_json(value: Any) -> None:
    """Print a value as one line of JSON on standard output."""
    typer.echo(json.dumps(value, ensure_ascii=False))


def entry_fields(rows: Iterable[Any], *, without: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Return the fields of registry entries as dictionaries."""
    return [
        {field.name: getattr(row, field.name) for field in fields(row) if field.name not in without} for row in rows
    ]


def print_entries(
    name: str | None,
    rows: list[dict[str, Any]],
    printed: list[dict[str, Any]],
    columns: tuple[str, ...],
    *,
    as_json: bool,
) -> None:
    """Print all fields of one row if a name was passed, else the columns of all rows; JSON always has all fields."""
    if as_json:
        print_json(rows[0] if name else rows)
    elif name:
        fields_table(printed[0])
    else:
        rows_table(printed, columns)


def rows_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    """Print one line per row, with the selected columns."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column.replace("_", " "), no_wrap=column == columns[0])
    for row in rows:
        table.add_row(*(Text(_text(row.get(column))) for column in columns))
    console().print(table)


def fields_table(row: Mapping[str, Any]) -> None:
    """Print one line per field."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in row.items():
        if value not in (None, "", {}, ()):
            table.add_row(name.replace("_", " "), Text(_text(value)))
    console().print(table)


def console() -> "Console":
    """Return the console for tables; lines are not wrapped or truncated unless it is a terminal."""
    from rich.console import Console

    screen = Console()
    return screen if screen.is_terminal else Console(width=10_000)


def _text(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1_000_000:
        return f"{value / 1e6:,.0f} M"
    if isinstance(value, list | tuple):
        return visible(", ".join(map(str, value)))
    return "" if value is None else visible(str(value))


def tell_reasons(reasons: Sequence[str], failed: int, column: str) -> None:
    """Print the first errors of failed rows, and which column contains the others."""
    for reason in reasons:
        tell(f"  {shortened(reason, 300)}")
    if failed > len(reasons):
        tell(f"  and {failed - len(reasons)} more; {column}")


@contextmanager
def bar(what: str) -> Iterator[Show]:
    """Yield a callback `(done, total, note="")` that updates a progress bar; the note is shown instead of the rate.

    Without a terminal, as in batch jobs, a line is logged every 30 seconds.
    """
    with display() as progress:
        if progress.disable:
            yield log_lines(what)
            return
        task = progress.add_task(what, total=None, text="")

        def show(done: int, total: int, note: str = "") -> None:
            progress.update(task, completed=done, total=total)
            speed = progress.tasks[0].speed
            progress.update(task, text=note or (f"{speed:.1f}/s" if speed else ""))

        yield show


def log_lines(what: str, clock: Callable[[], float] = monotonic) -> Show:
    """Return a callback `(done, total, note="")` that logs the rate and the remaining time every `LOG_EVERY` seconds.

    Rows that an earlier run finished do not count towards the rate.
    """
    started = logged = clock()
    earlier: int | None = None

    def show(done: int, total: int, note: str = "") -> None:
        nonlocal started, logged, earlier
        now = clock()
        if earlier is None:
            started, logged, earlier = now, now, done
        if now - logged < LOG_EVERY or done <= earlier:
            return
        logged, rate = now, (done - earlier) / (now - started)
        pace = note or f"{rate:.1f} per second"
        tell(f"{what}: {done:,} of {total:,}, {pace}, {duration((total - done) / rate)} left")

    return show


def duration(seconds: float) -> str:
    """Format a duration.

    >>> duration(42), duration(200), duration(9000), duration(300_000)
    ('42 s', '3 min', '2 h 30 min', '3 d 11 h')
    """
    minutes, hours = round(seconds / 60), round(seconds / 3600)
    if seconds < 100:
        return f"{seconds:.0f} s"
    if minutes < 100:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


@contextmanager
def display() -> Iterator[Any]:
    """Show a progress display on standard error, disabled without a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    with ExitStack() as stack:
        file: Any = None
        if os.name == "posix" and sys.stderr is not None and sys.stderr.isatty():
            with suppress(OSError):  # the terminal has no name here, as in some containers
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY
                raw = FileIO(os.ttyname(sys.stderr.fileno()), "w", opener=lambda name, _: os.open(name, flags))
                file = _Droppable(sys.stderr, stack.enter_context(raw))
        screen, text = Console(stderr=True, file=file), TextColumn("{task.fields[text]}")
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), text)
        disabled = _QUIET.get() or not screen.is_terminal
        yield stack.enter_context(Progress(*columns, console=screen, disable=disabled))


class _Droppable:
    """A terminal whose output is dropped while it takes none, as after Ctrl-S or when its window is stuck.

    A blocked write would hold the lock of the progress display, for which the run then waits. `raw` is the terminal,
    opened again without blocking: one that is ready for a byte may still block on a longer text.
    """

    def __init__(self, file: TextIO, raw: FileIO) -> None:
        self._file, self._raw, self._rest = file, raw, b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, text: str) -> int:
        """Write text, unless the rest of an earlier one is still to be written."""
        self._rest = self._unwritten(self._rest) or self._unwritten(text.encode(self._file.encoding, "replace"))
        return len(text)

    def flush(self) -> None:
        """Do nothing: there is no buffer."""

    def _unwritten(self, data: bytes) -> bytes:
        return data[self._raw.write(data) or 0 :]


@contextmanager
def stoppable(message: str = STOPPED) -> Iterator[None]:
    """Print `message` on interruption and exit with 128 plus the signal number."""

    def terminate(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(number)

    previous = {}
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGTERM", "SIGHUP"):  # Windows has no SIGHUP
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:  # as nohup does
                previous[number] = signal.signal(number, terminate)
    try:
        yield
    except KeyboardInterrupt as stop:
        typer.echo(message, err=True)
        raise typer.Exit(128 + (stop.args[0] if stop.args else signal.SIGINT)) from None
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def rows_file(output: Path | None) -> Iterator[Path]:
    """Yield the output file; without one, a temporary JSON lines file that is copied to standard output."""
    with TemporaryDirectory() as folder, stoppable(STOPPED if output else "stopped; without -o FILE nothing is saved"):
        target = output or Path(folder) / "rows.jsonl"
        yield target
        if output is None:
            with target.open(encoding="utf-8") as lines:
                sys.stdout.writelines(lines)
