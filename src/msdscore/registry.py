"""Rows by name: the one registry class of encoders, metrics and benchmarks."""

import tomllib
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.resources import files
from typing import Any, Generic, Protocol, TypeVar

from msdscore.errors import ConfigError, MSDScoreError, unknown_name


class PluginWarning(UserWarning):
    """A plugin that could not be read; everything else works."""


class Named(Protocol):
    """A row of a table."""

    @property
    def name(self) -> str:
        """What it is asked for by."""


Row = TypeVar("Row", bound=Named)


class Registry(Generic[Row]):
    """Rows of one kind by name: built in, added in this process, and those of installed packages.

    A package names in the entry-point group `msdscore.KINDs` a row, several rows, or a function that gives them.
    """

    def __init__(self, kind: str, row: type[Row], built_in: Callable[[], Iterable[Row]]) -> None:
        self.kind, self.group = kind, f"msdscore.{kind}s"
        self._row, self._built_in = row, built_in
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
        """Rows by name, without those of plugins."""
        return {row.name: row for row in self._built_in()} | self._added

    def rows(self) -> dict[str, Row]:
        """All rows by name; a plugin that cannot be read, or whose name is taken, is warned about and left out."""
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

    def find(self, name: str, *, near: Sequence[str] = ()) -> Row:
        """The row of a name; plugins are looked at where no other row has it.

        Raises:
            UnknownNameError: there is none.
        """
        row = self.own().get(name) or (known := self.rows()).get(name)
        if row is None:
            raise unknown_name(self.kind, name, known, near=near)
        return row

    def _rows_of(self, point: EntryPoint) -> list[Row]:
        given = point.load()
        if callable(given):
            given = given()
        rows = list(given) if isinstance(given, Iterable) else [given]
        for row in rows:
            if not isinstance(row, self._row):
                raise TypeError(f"expected {self._row.__name__} objects, got {type(row).__name__}")
        return rows


def read_table(package: str, kind: str, row: Callable[..., Row], functions: Sequence[str]) -> tuple[Row, ...]:
    """The rows of a package's `table.toml`; fields that name `functions` are written from the package on."""
    rows = []
    for fields in tomllib.loads(files(package).joinpath("table.toml").read_text("utf-8"))[kind]:
        fields |= {name: f"{package}.{fields[name]}" for name in functions if name in fields}
        rows.append(row(**{name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}))
    return tuple(rows)


def resolve(target: str, owner: str) -> Callable[..., Any]:
    """The callable that `module:name` names; `owner` is whose it is, for the message.

    Raises:
        ConfigError: there is no such callable.
    """
    module, _, path = target.partition(":")
    try:
        found: Any = reduce(getattr, path.split("."), import_module(module))
    except (ImportError, AttributeError, ValueError) as error:
        if isinstance(error, MSDScoreError):
            raise
        raise ConfigError(f"the loader {target!r} of {owner} cannot be imported ({error})") from error
    if not callable(found):
        raise ConfigError(f"the loader {target!r} of {owner} should be a callable")
    return found
