"""The exception hierarchy of msdscore::

    MSDScoreError
    ├── ConfigError         invalid setting
    ├── UnknownNameError    unknown encoder, form or metric
    ├── MissingExtraError   an optional library is not installed
    ├── WeightsError        model weights are missing, cannot be downloaded, or are damaged
    ├── InputError          a file or table that cannot be read as rows
    ├── RunError            a finished or partial run that does not match this one
    └── RowError            an image or caption that cannot be scored; other rows are not affected
        ├── ImageError
        └── CaptionError

Messages state the expected value, the actual value, and the remedy.
"""

import difflib
import shlex
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType

_FOLDERS = (".", "./weights", "./backbones", "./serve", "./lab")  # of the distributions in a checkout


class MSDScoreError(Exception):
    """Base of all errors that a user can cause or fix."""


class ConfigError(MSDScoreError, ValueError):
    """Invalid setting."""


class UnknownNameError(MSDScoreError, LookupError):
    """A name that is not in its registry."""


class MissingExtraError(MSDScoreError, ImportError):
    """An optional library is needed and not installed."""


class WeightsError(MSDScoreError, OSError):
    """Model weights are missing, unreachable or damaged."""


class InputError(MSDScoreError, ValueError):
    """An input that cannot be read as rows."""


class RunError(MSDScoreError):
    """An output or a run folder that belongs to another run."""


class RowError(MSDScoreError):
    """A row that cannot be scored; other rows are not affected."""


class ImageError(RowError):
    """An image that cannot be read safely."""


class CaptionError(RowError):
    """A caption without scorable content."""


def shortened(text: str, limit: int = 120) -> str:
    """Shorten a name or a value for a message by omitting its middle.

    >>> shortened("a" * 50 + "dog.jpg", 20)
    'aaaaaaaaaa … dog.jpg'
    """
    if len(text) <= limit:
        return text
    end = limit // 3 + 1
    return f"{text[: limit - end - 3]} … {text[-end:]}"


def one_line(error: BaseException, limit: int = 300) -> str:
    r"""Return the message of an error in one line, or its type if it has none.

    >>> one_line(ValueError("a\n b")), one_line(KeyboardInterrupt())
    ('a b', 'KeyboardInterrupt')
    """
    return shortened(" ".join(str(error).split()), limit) or type(error).__name__


def unknown_name(kind: str, name: str, known: Iterable[str], *, near: Sequence[str] = ()) -> UnknownNameError:
    """Build the error for an unknown name, with the nearest known ones, or with the suggestions in `near`.

    >>> unknown_name("encoder", "clip-l41", ["clip-l14", "toy"])
    UnknownNameError("unknown encoder 'clip-l41'. Did you mean 'clip-l14'? Known: clip-l14, toy")
    """
    names = sorted(known)
    guesses = near or difflib.get_close_matches(name, names, n=2, cutoff=0.6)
    guess = f" Did you mean {' or '.join(map(repr, guesses))}?" if guesses else ""
    return UnknownNameError(f"unknown {kind} {shortened(name)!r}.{guess} Known: {', '.join(names) or 'none'}")


def require(module: str, *, extra: str, of: str = "msdscore") -> ModuleType:
    """Import an optional library, or raise an error that names the distribution and its extra to install."""
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise missing_extra(f"{package} is needed here", f"{of}[{extra}]" if extra else of) from error


def missing_extra(problem: str, requirement: str) -> MissingExtraError:
    """Build the error for a missing library, with the command that installs a distribution or `name[extra]`."""
    return MissingExtraError(f"{problem}; install it with: {install_line(requirement)}")


def install_line(requirement: str) -> str:
    """Return the command that installs a distribution, or one with extras, as `name[extra]`.

    If msdscore was installed from a checkout, the command builds its distributions first, as the README does: a
    registry may not have the version.

    >>> install_line("another-package")
    'pip install another-package'
    """
    line, root = f"pip install {shlex.quote(requirement)}", _checkout()
    if root is None or not requirement.startswith("msdscore"):
        return line
    return f"cd {shlex.quote(str(root))} && pip wheel --no-deps -w dist {' '.join(_FOLDERS)} && {line} -f dist"


def _checkout() -> Path | None:
    """Return the checkout that msdscore runs from, or was installed from; None without one."""
    import json  # these imports take long, and are for an error only
    from importlib.metadata import PackageNotFoundError, distribution
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    roots = [Path(__file__).parents[2]]
    try:
        if facts := distribution("msdscore").read_text("direct_url.json"):
            roots.append(Path(url2pathname(urlsplit(json.loads(facts)["url"]).path)))
    except PackageNotFoundError:
        pass
    return next((root for root in roots if all((root / name / "pyproject.toml").is_file() for name in _FOLDERS)), None)
