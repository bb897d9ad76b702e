"""Photographs and captions for tests that need real ones; they are not part of the repository.

`MSDSCORE_TEST_DATA` is their folder; the default is `shared/data` next to the repository. Tests whose files are missing
are skipped.
"""

import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("MSDSCORE_TEST_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")


def needs(*names):
    """Mark a test that needs these files of the folder."""
    missing = [name for name in names if not (FOLDER / name).is_file()]
    return pytest.mark.skipif(bool(missing), reason=f"needs {missing} in {FOLDER}; set MSDSCORE_TEST_DATA")
