"""The registry of encoders, metrics and benchmarks: rows by name."""

import re
import sys
import tomllib
import warnings
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from pkgutil import resolve_name
from traceback import extract_tb
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from msdscore.errors import ConfigError, MSDScoreError, missing_extra, unknown_name

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_IMPORT = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")


class PluginWarning(UserWarning):
    """A plugin that could not be loaded; everything else works."""


class Named(Protocol):
    """A row of a table."""

    @property
    def name(self) -> str:
        """The lookup name."""


Row = TypeVar("Row", bound=Named)


class Registry(Generic[Row]):
    """Rows of one kind by name: built in, added in this process, and those of installed packages.

    A package's entry point in the group `msdscore.KINDs` is a row, several rows, or a function that returns them.
    A name such as `module:attribute` is imported: a row, or an object that `adapt` converts to one.
    """

    def __init__(
        self,
        kind: str,
        row: type[Row],
        built_in: Callable[[], Iterable[Row]],
        adapt: Callable[[str, Any], Row | None] = lambda name, target: None,
    ) -> None:
        self.kind, self.group = kind, f"msdscore.{kind}s"
        self._row, self._built_in, self._adapt = row, built_in, adapt
        self._added: dict[str, Row] = {}

    def add(self, row: Row) -> None:
        """Add a row for this process.

        Raises:
            ConfigError: another row has that name.
        """
        taken = self.own().get(row.name)
        if taken is not None and taken != row:
            article = "an" if self.kind[0] in "aeio" else "a"
            raise ConfigError(f"{article} {self.kind} named {row.name!r} exists; register yours under another name")
        self._added[row.name] = row

    def own(self) -> dict[str, Row]:
        """Return the rows by name, without those of plugins."""
        return {row.name: row for row in self._built_in()} | self._added

    def rows(self) -> dict[str, Row]:
        """Return all rows by name; plugins that fail to load, or whose name is taken, are skipped with a warning."""
        from importlib.metadata import entry_points  # imports the library for e-mail; built-in rows do not need it

        known = self.own()
        for point in sorted(entry_points(group=self.group), key=lambda point: point.name):
            try:
                rows = self._rows_of(point)
            except Exception as error:  # noqa: BLE001 - a plugin is other people's code and must not stop the rest
                reason = f"{type(error).__name__}: {error}"
                warning = f"{self.kind} plugin {point.name!r} ({point.value}) is ignored: {reason}"
                warnings.warn(warning, PluginWarning, stacklevel=3)
                continue
            for row in rows:
                if row.name in known:
                    warning = f"a plugin's {self.kind} {row.name!r} is ignored: the name is taken"
                    warnings.warn(warning, PluginWarning, stacklevel=3)
                known.setdefault(row.name, row)
        return known

    def find(self, name: str) -> Row:
        """Return the row of a name; plugins are searched only if no other row has it.

        Raises:
            UnknownNameError: no row has that name.
        """
        row = self.own().get(name) or (known := self.rows()).get(name) or self.imported(name)
        if row is None:
            raise unknown_name(self.kind, name, known)
        return row

    def imported(self, name: str) -> Row | None:
        """Return the row of a name such as `module:attribute`; None for other names, and if no such module exists.

        Raises:
            ConfigError: the module cannot be imported, or the attribute is missing or of another type.
        """
        target = import_object(name, self.kind)
        if target is None or isinstance(target, self._row):
            return target
        row = self._adapt(name, target)
        if row is None:
            raise ConfigError(f"{name}: expected a {self._row.__name__}, got {type(target).__name__}")
        return row

    def _rows_of(self, point: "EntryPoint") -> list[Row]:
        loaded = point.load()
        if callable(loaded):
            loaded = loaded()
        rows = list(loaded) if isinstance(loaded, Iterable) else [loaded]
        for row in rows:
            if not isinstance(row, self._row):
                raise TypeError(f"expected {self._row.__name__} objects, got {type(row).__name__}")
        return rows


def names_object(name: str) -> bool:
    """Whether a name has the form `module:attribute`.

    >>> names_object("mine.encoders:load"), names_object("open_clip:ViT-B-32/openai"), names_object("mini")
    (True, False, False)
    """
    return _IMPORT.fullmatch(name) is not None


def import_object(name: str, kind: str) -> Any:
    """Import the object that `module:attribute` names, also from the working directory; None if no such module exists.

    Raises:
        ConfigError: importing the module fails, it has no such attribute, or the name is that of a file.
    """
    module, _, path = name.partition(":")
    if module.endswith(".py"):
        file = Path(module)
        raise ConfigError(
            f"{kind} {name!r}: expected module:attribute, got a file name; "
            f"use {file.stem}:{path or 'NAME'} in the folder {str(file.parent)!r}"
        )
    if not names_object(name):
        return None
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # the installed command starts without it, python -m with it
    try:
        return resolve_name(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            return None
        raise ConfigError(
            f"the {kind} {name!r} cannot be imported ({error}); install the packages that its module imports"
        ) from error
    except Exception as error:
        raise ConfigError(f"the {kind} {name!r} cannot be imported ({error_summary(error)})") from error


def error_summary(error: Exception) -> str:
    """Return type, message and line of an error in a user's module."""
    frames = extract_tb(error.__traceback__)
    location = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{location}"


def packaged_rows(package: str, kind: str, row: Callable[..., Row], functions: Sequence[str] = ()) -> tuple[Row, ...]:
    """Read the rows of a package's `table.toml`; the fields in `functions` are relative to the package."""
    rows = []
    for fields in tomllib.loads(files(package).joinpath("table.toml").read_text("utf-8"))[kind]:
        fields |= {name: f"{package}.{fields[name]}" for name in functions if name in fields}
        rows.append(row(**{name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}))
    return tuple(rows)


def resolve(target: str, owner: str) -> Callable[..., Any]:
    """Import the callable that `module:name` names; `owner` is used in the error message.

    Raises:
        ConfigError: no such callable exists.
    """
    try:
        loaded = resolve_name(target)
    except (ImportError, AttributeError, ValueError) as error:
        if isinstance(error, MSDScoreError):
            raise
        if isinstance(error, ModuleNotFoundError) and error.name in ("torch", "msdscore_torch"):
            raise missing_extra(f"{owner} needs torch", "msdscore[hf]") from error
        raise ConfigError(f"the loader {target!r} of {owner} cannot be imported ({error})") from error
    if not callable(loaded):
        raise ConfigError(f"the loader {target!r} of {owner} should be a callable")
    return loaded
