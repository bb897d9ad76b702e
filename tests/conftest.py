"""What all tests share: shapes in annotations are checked while they run, and examples are the same in every run."""

import os

# As many threads as shards are scored with: setting another number later changes last digits for the whole process.
os.environ.setdefault("OMP_NUM_THREADS", "2")
# Threads that wait do not spin: two processes of two threads each share two cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import pytest
from hypothesis import settings
from jaxtyping import install_import_hook

install_import_hook("msdscore.core", "beartype.beartype")

# Timing is not a property of the code under test on a shared machine.
settings.register_profile("msdscore", deadline=None, derandomize=True)
settings.load_profile("msdscore")


@pytest.fixture(autouse=True, scope="session")
def _home(tmp_path_factory):
    """What is kept between runs stays out of the user's own folder."""
    os.environ["MSDSCORE_HOME"] = str(tmp_path_factory.mktemp("home"))
