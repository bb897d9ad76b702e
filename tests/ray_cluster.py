"""A Ray cluster of this machine for tests."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

# Without lowered priority, because test machines are busy. All clusters of a process need the same settings: with
# others, the actors of the second cluster never start (Ray 2.60).
SETTINGS = {"RAY_worker_niceness": "0", "RAY_AUTH_MODE": "disabled", "RAY_DEDUP_LOGS": "0"}


@contextmanager
def local_cluster() -> Iterator[None]:
    """Context with a cluster of two cores."""
    import ray

    before = {name: os.environ.get(name) for name in SETTINGS}
    os.environ.update(SETTINGS)
    try:
        ray.init(
            num_cpus=2,
            object_store_memory=100 << 20,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
        )
        yield
    finally:
        ray.shutdown()
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
