"""The former name of `msdscore.run`; imports of its modules keep working, with one warning."""

import sys
import warnings
from importlib import import_module

_MOVED = {
    "plan": "plan", "local": "rows", "earlier": "rows", "assemble": "table", "shard_table": "table",
    "shard": "shards", "jobs": "workers", "workers": "workers", "ray_data": "ray_data",
}  # fmt: skip


def _keep_old_names() -> None:
    for old, new in _MOVED.items():
        sys.modules[f"{__name__}.{old}"] = import_module(f"msdscore.run.{new}")


warnings.warn("msdscore.engine is now msdscore.run", DeprecationWarning, stacklevel=2)
_keep_old_names()
