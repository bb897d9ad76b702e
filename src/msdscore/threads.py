"""Threads of this process: how many compute, and how they wait for work.

Both are settings of the whole process, since those of torch and of OpenMP are. The number of threads changes no score
beyond rounding.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from math import ceil
from pathlib import Path, PurePosixPath

from msdscore.errors import ConfigError

_chosen: int | None = None  # by `use`
_QUOTA_V2 = "cpu.max"  # "200000 100000": microseconds of CPU time per period, or "max"
_QUOTA_V1, _PERIOD_V1 = "cpu.cfs_quota_us", "cpu.cfs_period_us"


def wait_passively() -> None:
    """Let idle OpenMP threads sleep instead of spinning, unless `OMP_WAIT_POLICY` is set.

    Spinning threads take the cores of other processes, and of other libraries in this one. OpenMP reads the variable
    when it is loaded: this has no effect after torch was imported.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def use_one_blas_thread() -> None:
    """Let NumPy compute each product in one thread, unless `OPENBLAS_NUM_THREADS` is set.

    The products of a score take about a millisecond: on busy cores a second thread is waited for much longer than that
    (docs/performance.md). This has no effect after NumPy was imported, so only commands call it.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def available(root: Path = Path("/")) -> int:
    """Number of cores that this process may use: by its affinity, and by the CPU quota of its cgroups below a root.

    >>> available() >= 1
    True
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota(root)
    return cores if quota is None else max(1, min(cores, ceil(quota)))


@cache
def _quota(root: Path) -> float | None:
    """Return the smallest of the `quotas`, read once: every call of a graph asks for the number of threads."""
    return min(quotas(root), default=None)


def count() -> int:
    """Number of threads that a computation on the CPU uses: of `use`, of `OMP_NUM_THREADS`, else `available`."""
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return _chosen or (int(given) if given.isdecimal() and int(given) else available())


def use(threads: int | None) -> None:
    """Set the number of threads of this process; None limits that of torch to `count`.

    Call it before an encoder is loaded, whose sessions are created with `count` threads, and again afterwards if the
    encoder imports torch.

    Raises:
        ConfigError: not a whole number of at least 1.
    """
    global _chosen
    if threads is not None:
        if type(threads) is not int or threads < 1:
            raise ConfigError(f"threads must be a whole number of at least 1, got {threads!r}")
        _chosen = threads
    torch = sys.modules.get("torch")
    if torch is None:
        return
    current = torch.get_num_threads()
    # A smaller number may have been set on purpose, and is not raised unless one is requested.
    if current != threads and (threads is not None or current > count()):
        torch.set_num_threads(threads or count())


@contextmanager
def restored() -> Iterator[None]:
    """Context that restores the number of threads at its end."""
    global _chosen
    torch = sys.modules.get("torch")
    before = _chosen, None if torch is None else torch.get_num_threads()
    try:
        yield
    finally:
        _chosen, current = before
        if torch is not None and torch.get_num_threads() != current:
            torch.set_num_threads(current)


def quotas(root: Path = Path("/")) -> Iterator[float]:
    """Yield the limits of the cgroups of this process, in cores; those of all parents apply too."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        # In a container the path may be that of the host, of which only the root is visible.
        path = PurePosixPath(group.removeprefix("/"))
        for folder in (root / "sys/fs/cgroup" / controllers / part for part in (path, *path.parents)):
            try:
                if controllers:
                    quota, period = ((folder / name).read_text() for name in (_QUOTA_V1, _PERIOD_V1))
                else:
                    quota, period = (folder / _QUOTA_V2).read_text().split()
                if quota.strip() != "max" and int(quota) > 0 and int(period) > 0:
                    yield int(quota) / int(period)
            except (OSError, ValueError):
                continue
