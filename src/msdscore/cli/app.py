"""The command line: its commands, and errors in one line."""

import codecs
import json
import os
import sys
from contextlib import suppress
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from msdscore.cli.align import align
from msdscore.cli.bank import bank
from msdscore.cli.bench import bench
from msdscore.cli.caption import caption
from msdscore.cli.cococf import cococf
from msdscore.cli.demo import demo
from msdscore.cli.doctor import doctor
from msdscore.cli.explain import explain
from msdscore.cli.listings import benchmarks, encoders, metrics
from msdscore.cli.progress import be_quiet
from msdscore.cli.rank_captioners import rank_captioners
from msdscore.cli.report import report
from msdscore.cli.results import compare, table
from msdscore.cli.score import score
from msdscore.cli.select import select
from msdscore.cli.serve import serve
from msdscore.cli.study import HELP as STUDY_HELP
from msdscore.cli.study import study
from msdscore.errors import MSDScoreError, shortened
from msdscore.version import __version__


class _FlagsWithoutType:
    """Help in which flags stand alone: typer writes `<bool>` behind them, as if they took a value."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, with nothing behind the flags."""
        for parameter in self.get_params(ctx):  # type: ignore[attr-defined]
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
        super().format_help(ctx, formatter)  # type: ignore[misc]


class _Command(_FlagsWithoutType, TyperCommand):
    pass


class _Group(_FlagsWithoutType, TyperGroup):
    pass


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Judge image captions without references, and see which words the picture does not support.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
# Command modules import what they need when they are called, so that help answers at once.
app.command()(score)
app.command()(select)
app.command()(explain)
app.command()(report)
app.command()(demo)
app.command()(serve)
app.command()(doctor)
app.command()(encoders)
app.command()(bank)
app.command()(bench)
app.command()(compare)
app.command()(table)
app.command()(metrics)
app.command()(caption)
app.command()(rank_captioners)
app.command(no_args_is_help=True, help=STUDY_HELP)(study)
app.add_typer(benchmarks, name="benchmarks", cls=_Group)
app.add_typer(align, name="align", cls=_Group)
app.add_typer(cococf, name="cococf", cls=_Group)
for _commands in (app, benchmarks, align, cococf):
    for _command in _commands.registered_commands:
        _command.cls = _Command


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"msdscore {__version__}")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Only results and errors: no progress, no notes.")
    ] = False,
) -> None:
    """Options of the whole program."""
    be_quiet(quiet)


def main() -> None:
    """Run the command line; a user's mistake is one line and exit code 2."""
    _escape_what_cannot_be_printed()
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except MSDScoreError as error:
        typer.echo(f"msdscore: {shortened(str(error), 2000)}", err=True)
        sys.exit(2)
    except UnicodeEncodeError as error:
        name = error.object.encode("utf-8", "backslashreplace").decode()
        typer.echo(f"msdscore: {shortened(name)}: a name that is not UTF-8; rename it", err=True)
        sys.exit(2)
    except BrokenPipeError:
        _close_output()
        sys.exit(141)
    except OSError as error:  # a folder that is not there, no rights, a full disk: nothing a traceback would mend
        _close_output()
        name = "standard output, or a file" if error.filename is None else shortened(str(error.filename))
        reason = error.strerror or str(error)
        typer.echo(f"msdscore: {name}: {reason}; check the path, its rights and the disk", err=True)
        sys.exit(2)


def _escape_what_cannot_be_printed() -> None:
    r"""Have characters that standard output cannot hold written as JSON writes them, \u00e9, in place of an error."""
    codecs.register_error("msdscore", lambda error: (_escaped(error), error.end))  # type: ignore[attr-defined]
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="msdscore")


def _escaped(error: UnicodeError) -> str:
    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1]


def _close_output() -> None:
    """Keep Python from writing the rest, and failing again, when it ends."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
