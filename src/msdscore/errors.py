"""Every error that msdscore raises on purpose.

Our exception hierarchy::

    MSDScoreError
    ├── ConfigError         a setting that cannot work
    ├── UnknownNameError    an encoder, preset or metric that does not exist
    ├── MissingExtraError   an optional library is not installed
    ├── WeightsError        model weights are not here and cannot be fetched, or are damaged
    ├── InputError          a file or table that cannot be read as rows
    ├── RunError            a finished or half-finished run that does not fit this one
    └── RowError            one picture or caption that cannot be scored; the rest goes on
        ├── ImageError
        └── CaptionError

Messages say what was expected, what came, and what to do.
"""

import difflib
from collections.abc import Iterable, Sequence
from importlib import import_module
from types import ModuleType


class MSDScoreError(Exception):
    """Base of all errors that a user can cause or mend."""


class ConfigError(MSDScoreError, ValueError):
    """A setting that cannot work."""


class UnknownNameError(MSDScoreError, LookupError):
    """A name that is not in the registry it was looked up in."""


class MissingExtraError(MSDScoreError, ImportError):
    """An optional library is needed and not installed."""


class WeightsError(MSDScoreError, OSError):
    """Model weights are missing, unreachable or damaged."""


class InputError(MSDScoreError, ValueError):
    """An input that cannot be read as rows."""


class RunError(MSDScoreError):
    """An output or a run folder that belongs to other work."""


class RowError(MSDScoreError):
    """One row that cannot be scored; other rows are not touched by it."""


class ImageError(RowError):
    """A picture that cannot be read safely."""


class CaptionError(RowError):
    """A caption that holds nothing to score."""


def shortened(text: str, limit: int = 120) -> str:
    """A name or a value for a message, without the middle of one that is very long.

    >>> shortened("a" * 50 + "dog.jpg", 20)
    'aaaaaaaaaa … dog.jpg'
    """
    if len(text) <= limit:
        return text
    end = limit // 3 + 1
    return f"{text[: limit - end - 3]} … {text[-end:]}"


def unknown_name(kind: str, name: str, known: Iterable[str], *, near: Sequence[str] = ()) -> UnknownNameError:
    """The error for a name that does not exist, with the nearest known ones, or those that a caller knows to be `near`.

    >>> unknown_name("encoder", "clip-l41", ["clip-l14", "toy"])
    UnknownNameError("unknown encoder 'clip-l41'. Did you mean 'clip-l14'? Known: clip-l14, toy")
    """
    names = sorted(known)
    guesses = near or difflib.get_close_matches(name, names, n=2, cutoff=0.6)
    guess = f" Did you mean {' or '.join(map(repr, guesses))}?" if guesses else ""
    return UnknownNameError(f"unknown {kind} {shortened(name)!r}.{guess} Known: {', '.join(names) or 'none'}")


def require(module: str, *, extra: str) -> ModuleType:
    """Import an optional library, or say which extra installs it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise
        package = module.partition(".")[0]
        raise MissingExtraError(
            f"{package} is needed here; install it with: pip install 'msdscore[{extra}]'"
        ) from error
