"""Benchmarks by name: list them, look one up, read its files."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from msdscore.errors import InputError, unknown_name
from msdscore.registry import Registry, packaged_rows, resolve
from msdscore_lab.benchmarks.base import Benchmark, ItemSet
from msdscore_lab.benchmarks.readers.rows import find_rows

_FUNCTIONS = ("reader", "rows", "figures", "credits", "statistics")


@cache
def built_in() -> tuple[Benchmark, ...]:
    """Return the benchmarks of `table.toml`."""
    return packaged_rows("msdscore_lab.benchmarks", "benchmark", Benchmark, _FUNCTIONS)


BENCHMARKS = Registry("benchmark", Benchmark, lambda: built_in())


def benchmarks() -> Iterator[Benchmark]:
    """Yield all known benchmarks, the built-in ones first, then those of installed packages by name."""
    yield from BENCHMARKS.rows().values()


def benchmark(name: str) -> Benchmark:
    """Return the row of a benchmark by name.

    >>> benchmark("sugarcrepe").kind
    'pairs'
    """
    row = BENCHMARKS.find(name)
    return row if row.name == name else replace(row, name=name)  # results store the name that was passed


def load(name: str, root: str | Path, **options: Any) -> ItemSet[Any]:
    """Read a benchmark's released files under `root`; `options` are passed to its reader (split, seed …)."""
    reader, path = _reader(benchmark(name), Path(root))
    _, *parameters = signature(reader).parameters.values()
    if not any(option.kind is Parameter.VAR_KEYWORD for option in parameters):
        names = [option.name for option in parameters]
        for option in options:
            if option not in names:
                raise unknown_name(f"option of {name}", option, names)
    items: ItemSet[Any] = reader(path, **options)
    if not items.items:
        raise InputError(f"{name}: the files under {root} contain no items")
    return items


def data_folder(root: Path, name: str) -> Path:
    """Return the folder of a benchmark's files: `root/NAME` if it exists, else `root`."""
    return root / name if (root / name).is_dir() else root


def reader_options(name: str, root: str | Path) -> tuple[str, ...]:
    """Return the options of the reader of the files under `root`."""
    return tuple(signature(_reader(benchmark(name), Path(root))[0]).parameters)[1:]


def _reader(row: Benchmark, root: Path) -> tuple[Callable[..., ItemSet[Any]], Path]:
    """Return the reader of the rows form with its file if there is one, else that of the released files."""
    rows = find_rows(root, row.rows_name or row.name) if row.rows else None
    if rows is None and root.is_file():
        raise InputError(f"{root}: expected a folder, or a .jsonl file of rows")
    return resolve(row.rows if rows else row.reader, f"benchmark {row.name!r}"), rows or root
