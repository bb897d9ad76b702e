"""PyArrow, for files and tables of rows; without it, the first use raises `MissingExtraError`.

One image and its captions are scored without it, so its modules are imported from here.
"""

from typing import TYPE_CHECKING, Any

from msdscore.errors import MissingExtraError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
else:

    class _Missing(type):
        """A class whose attributes are classes too, for annotations and `except`; none of them can be called."""

        def __getattr__(cls, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return _Missing(name, (Exception,), {})

        def __call__(cls, *_: Any, **__: Any) -> Any:
            raise MissingExtraError("pyarrow is needed here; install it with: pip install 'msdscore[files]'")

    try:
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.ipc  # noqa: F401, used as pa.ipc
        import pyarrow.parquet as pq
    except ModuleNotFoundError as error:
        if error.name != "pyarrow":
            raise
        pa = pc = pq = _Missing("pyarrow", (Exception,), {})

__all__ = ["pa", "pc", "pq"]
