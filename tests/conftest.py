"""Shared test configuration: runtime checks of shape annotations, and deterministic hypothesis examples."""

import os

# The number of threads that shards are scored with; changing it later would change the last digits in this process.
os.environ.setdefault("OMP_NUM_THREADS", "2")
# Waiting threads must not spin, because two processes with two threads each share two cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest
from hypothesis import settings
from jaxtyping import install_import_hook

install_import_hook("msdscore.core", "beartype.beartype")

# No deadline: timing is unreliable on a shared machine.
settings.register_profile("msdscore", deadline=None, derandomize=True)
settings.load_profile("msdscore")


@pytest.fixture(autouse=True, scope="session")
def _home(tmp_path_factory):
    """Redirect the user folder to a temporary one."""
    os.environ["MSDSCORE_HOME"] = str(tmp_path_factory.mktemp("home"))
