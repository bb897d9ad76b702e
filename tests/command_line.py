"""The command line, run in this process, because a new one takes seconds."""

import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from msdscore.cli.app import app, main


def invoke(*words, **options):
    """Run a command; its result has `exit_code`, `stdout`, `stderr`, `output` (both) and `exception`."""
    return CliRunner().invoke(app, [str(word) for word in words], **options)


def output_of(*words):
    """Return what a command prints on standard output; it must succeed."""
    result = invoke(*words)
    assert result.exit_code == 0, f"{result.output}{result.exception}"
    return result.stdout


def msdscore(*arguments, **options):
    """Run the program with its one-line errors; in a subprocess if there are options, such as `cwd`."""
    if options:
        command = [sys.executable, "-m", "msdscore", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False, **options)
    out, errors, code = StringIO(), StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(errors):
        patch.setattr(sys, "argv", ["msdscore", *map(str, arguments)])
        try:
            main()
        except SystemExit as end:
            code = end.code
    return SimpleNamespace(returncode=code or 0, stdout=out.getvalue(), stderr=errors.getvalue())


def completed(*arguments, code=0, **options):
    """Run the program, which must end with this code."""
    answer = msdscore(*arguments, **options)
    assert answer.returncode == code, answer.stderr
    return answer


def refused(*arguments, **options):
    """Return the one-line error of a call that must be rejected."""
    answer = completed(*arguments, code=2, **options)
    assert (answer.stdout, answer.stderr.count("\n")) == ("", 1), answer.stderr
    return answer.stderr
