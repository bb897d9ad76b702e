"""Command-line entry point: lazily loaded commands and one-line errors."""

import codecs
import json
import os
import signal
import sys
from contextlib import suppress
from importlib import import_module
from importlib.metadata import entry_points
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from msdscore.cli.options import flattened
from msdscore.cli.progress import be_quiet, visible
from msdscore.errors import MSDScoreError, missing_extra, shortened
from msdscore.version import __version__

# A command is defined in the module of the same name, which is imported when the command is called or its help is
# shown. Commands import their dependencies when they are called, so that help is fast.
_COMMANDS = ("score", "select", "explain", "report", "demo", "doctor", "encoders")
_MODULES = {"encoders": "doctor", "demo": "explain"}  # commands in a module with another name
_ALIASES = {"rank": "score"}  # `score IMAGE CAPTION CAPTION` ranks captions, as `Scorer.rank` does
# Other distributions add commands by entry points of this group; those of this project are known without
# them, so that the error message can say what to install.
_GROUP = "msdscore.commands"
_LABORATORY = ("bench", "compare", "table", "metrics", "benchmarks", "study", "rank-captioners", "caption", "align",
               "cococf", "bank", "cite")  # fmt: skip
_INSTALLED_BY = {"serve": "msdscore[serve]"} | dict.fromkeys(_LABORATORY, "msdscore-lab")


class _FlagsWithoutType:
    """Help that shows flags without a type: Typer prints `<bool>` after them, as if they took a value."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help without a metavar after flags."""
        for parameter in self.get_params(ctx):  # type: ignore[attr-defined]
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
        super().format_help(ctx, formatter)  # type: ignore[misc]


class _Command(_FlagsWithoutType, TyperCommand):
    pass


class _Group(_FlagsWithoutType, TyperGroup):
    pass


class _Program(_Group):
    """Group of all commands, each imported on first use."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "commands": dict.fromkeys(_COMMANDS)})

    def invoke(self, ctx: Any) -> Any:
        """Run a command; Ctrl-C before it has begun to write, or after its end, is one line."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            if ctx.invoked_subcommand == "serve":  # which is stopped by Ctrl-C
                raise
            typer.echo("stopped; nothing was lost, run the same command again to continue", err=True)
            raise typer.Exit(128 + signal.SIGINT) from None

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the built-in commands, then those of installed distributions."""
        added = {entry.name for entry in entry_points(group=_GROUP)}
        ordered = [name for name in _INSTALLED_BY if name in added]
        return [*_COMMANDS, *ordered, *sorted(added.difference(ordered, _COMMANDS))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command with this name, or None if it does not exist.

        Raises:
            MissingExtraError: If the command belongs to a distribution that is not installed.
        """
        cmd_name = _ALIASES.get(cmd_name, cmd_name)
        if self.commands.get(cmd_name) is None:
            if cmd_name in _COMMANDS:
                module = f"msdscore.cli.{_MODULES.get(cmd_name, cmd_name)}"
                self.commands[cmd_name] = _load_command(cmd_name, module, cmd_name)
            else:
                for entry in entry_points(group=_GROUP, name=cmd_name):
                    panel = f"Commands of {entry.dist.name}" if entry.dist else None
                    self.commands[cmd_name] = _load_command(cmd_name, entry.module, entry.attr, panel)
                if cmd_name in _INSTALLED_BY and cmd_name not in self.commands:
                    raise missing_extra(f"the command {cmd_name!r} is not installed", _INSTALLED_BY[cmd_name])
        return super().get_command(ctx, cmd_name)


def _load_command(name: str, module_name: str, attribute: str, panel: str | None = None) -> Any:
    module = import_module(module_name)
    command, wrapper = getattr(module, attribute), typer.Typer()
    if isinstance(command, typer.Typer):
        for nested in command.registered_commands:
            nested.cls = _Command
            assert nested.callback is not None, "registered by a decorator"
            nested.callback = flattened(nested.callback)
        wrapper.add_typer(command, name=name, cls=_Group, rich_help_panel=panel)
    else:
        listing = getattr(module, "HELP", None)  # valid names, shown if the command is called without arguments
        # Paragraphs without line breaks: a terminal wraps them at its width.
        text = "\n\n".join(" ".join(paragraph.split()) for paragraph in (command.__doc__ or "").split("\n\n"))
        wrapper.command(
            name, cls=_Command, help=listing or text, no_args_is_help=listing is not None, rich_help_panel=panel
        )(flattened(command))
    return typer.main.get_group(wrapper).commands[name]


app = typer.Typer(
    cls=_Program,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Score image captions without references, and show which words the image does not support.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"msdscore {__version__}")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only results and errors.")] = False,
) -> None:
    """Options of the whole program."""
    be_quiet(quiet)


def main() -> None:
    """Run the command line; user errors print one line and exit with code 2."""
    # Characters that standard output cannot encode are escaped as in JSON, \u00e9, instead of raising an error.
    codecs.register_error("msdscore", _escaped)
    _fill_closed()
    if os.environ.get("COLUMNS", "").strip("0") == "":  # of a terminal without a size: nothing would be printed
        os.environ.pop("COLUMNS", None)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="msdscore")
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except MSDScoreError as error:
        typer.echo(f"msdscore: {visible(shortened(str(error), 2000))}", err=True)
        sys.exit(2)
    except UnicodeEncodeError as error:
        name = error.object.encode("utf-8", "backslashreplace").decode()
        typer.echo(f"msdscore: {shortened(name)}: the name is not valid UTF-8; rename the file", err=True)
        sys.exit(2)
    except BrokenPipeError:
        _close_output()
        sys.exit(141)
    except OSError as error:  # missing folder, no permission, full disk: a traceback would not help
        _close_output()
        name = "standard output, or a file" if error.filename is None else shortened(str(error.filename))
        message = error.strerror or str(error)
        typer.echo(f"msdscore: {name}: {message}; check the path, its permissions and the free disk space", err=True)
        sys.exit(2)


def _fill_closed() -> None:
    """Open the null device for closed standard streams, so that no other file gets their descriptors."""
    while (descriptor := os.open(os.devnull, os.O_RDONLY)) <= 2:
        pass
    os.close(descriptor)
    if sys.stdout is None:  # printing to a closed standard output is an error
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115, stays open until the process exits


def _escaped(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def _close_output() -> None:
    """Redirect standard output to the null device, so that the flush at exit does not fail again."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
