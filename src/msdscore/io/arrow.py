"""PyArrow, for files and tables of rows; importing this module without it raises `MissingExtraError`.

One image and its captions are scored without it: only modules of files, tables and runs import this one.
"""

from typing import TYPE_CHECKING, Any

from msdscore.errors import require

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
else:
    pa, pc, pq = (require(f"pyarrow{name}", extra="files") for name in ("", ".compute", ".parquet"))
    require("pyarrow.ipc", extra="files")  # used as pa.ipc

__all__ = ["pa", "pc", "pq", "python_rows"]


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
