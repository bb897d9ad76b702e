"""An orderly stop: Ctrl-C and SIGTERM end a command alike, with one line that says what is kept."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import typer

KEPT = "stopped; finished parts are kept, and the same command goes on from there"


class _TerminatedError(KeyboardInterrupt):
    """The system or a scheduler asked the command to end."""


@contextmanager
def stoppable(message: str = KEPT) -> Iterator[None]:
    """Say `message` if the block is stopped; the exit code is 128 and the signal's number."""
    ours = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, _terminate) if ours else None
    try:
        yield
    except KeyboardInterrupt as stop:
        typer.echo(message, err=True)
        number = signal.SIGTERM if isinstance(stop, _TerminatedError) else signal.SIGINT
        raise typer.Exit(128 + number) from None
    finally:
        if ours:
            signal.signal(signal.SIGTERM, before)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise _TerminatedError
