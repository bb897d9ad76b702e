"""PyArrow, for files and tables of rows; without it, the first use raises `MissingExtraError`.

One image and its captions are scored without it, so its modules are imported from here.
"""

from typing import TYPE_CHECKING, Any

from msdscore.errors import missing_extra

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    HAS_ARROW: bool
else:

    class _Missing(type):
        """A class whose attributes are classes too, for annotations and `except`; none of them can be called."""

        def __getattr__(cls, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return _Missing(name, (Exception,), {})

        def __call__(cls, *_: Any, **__: Any) -> Any:
            raise missing_extra("pyarrow is needed here", "msdscore[files]")

    try:
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.ipc  # noqa: F401, used as pa.ipc
        import pyarrow.parquet as pq

        HAS_ARROW = True
    except ModuleNotFoundError as error:
        if error.name != "pyarrow":
            raise
        HAS_ARROW = False
        pa = pc = pq = _Missing("pyarrow", (Exception,), {})

__all__ = ["HAS_ARROW", "pa", "pc", "pq", "python_rows"]


def python_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Convert rows to Python values; times in nanoseconds become text, durations in nanoseconds numbers.

    Times outside Python's range of years become numbers too.
    """
    for index, entry in enumerate(table.schema):
        if getattr(entry.type, "unit", None) == "ns":
            kind = pa.int64() if pa.types.is_duration(entry.type) else pa.string()
            table = table.set_column(index, entry.name, table.column(index).cast(kind))
    try:
        return list(table.to_pylist())
    except OverflowError:
        for index, entry in enumerate(table.schema):
            if pa.types.is_temporal(entry.type):
                kind = pa.int32() if entry.type.bit_width == 32 else pa.int64()
                table = table.set_column(index, entry.name, table.column(index).cast(kind))
        return list(table.to_pylist())
