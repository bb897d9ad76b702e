"""What all tests share: shapes in annotations are checked while they run, and examples are the same in every run."""

import os

# One thread per process from the start: two processes share two cores, and last digits depend on the number of threads.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402
from jaxtyping import install_import_hook  # noqa: E402

install_import_hook("msdscore.core", "beartype.beartype")

# Timing is not a property of the code under test on a shared machine.
settings.register_profile("msdscore", deadline=None, derandomize=True)
settings.load_profile("msdscore")


@pytest.fixture(autouse=True, scope="session")
def _home(tmp_path_factory):
    """What is kept between runs stays out of the user's own folder."""
    os.environ["MSDSCORE_HOME"] = str(tmp_path_factory.mktemp("home"))
