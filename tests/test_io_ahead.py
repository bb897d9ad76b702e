"""Reading rows in another process."""

import os
import signal
from functools import partial
from pathlib import Path

import pytest

from msdscore.errors import InputError
from msdscore.rows.files import open_rows
from msdscore_torch.feeding.processes import Decoders, DecodersLostError
from msdscore_torch.feeding.rows import ROWS, read_ahead, row_process
from tar_shards import write_tar

COUNT = 3 * ROWS + 7


@pytest.fixture(scope="module")
def tar(tmp_path_factory):
    return write_tar(tmp_path_factory.mktemp("tar") / "rows.tar", rows=COUNT)


def rows_here(path):
    with open_rows(path) as source:
        return list(source.read())


def test_rows_equal_those_of_this_process(tar, tmp_path):
    assert list(read_ahead(partial(open_rows, tar))) == rows_here(tar)
    exact = write_tar(tmp_path / "exact.tar", rows=ROWS)
    assert list(read_ahead(partial(open_rows, exact))) == rows_here(exact)


def test_dead_process_is_replaced_without_lost_or_repeated_rows(tar):
    rows = read_ahead(partial(open_rows, tar))
    first = [next(rows) for _ in range(ROWS)]
    for member in row_process().members:
        os.kill(member.process.pid, signal.SIGKILL)
    assert [*first, *rows] == rows_here(tar)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_sources_of_abandoned_runs_are_closed(tar):
    for _ in range(12):
        next(read_ahead(partial(open_rows, tar)))
    assert list(read_ahead(partial(open_rows, tar))) == rows_here(tar)
    (member,) = row_process().members
    files = [file.readlink() for file in Path(f"/proc/{member.process.pid}/fd").iterdir()]
    assert 0 < files.count(tar) <= 8


def test_rows_are_read_in_process_if_no_process_can_be_started(tar, monkeypatch):
    def refuse(*_):
        raise DecodersLostError

    rows = read_ahead(partial(open_rows, tar))
    first = next(rows)
    monkeypatch.setattr(Decoders, "submit", refuse)
    assert [first, *rows] == rows_here(tar)
    assert list(read_ahead(partial(open_rows, tar))) == rows_here(tar)


def test_unreadable_file_is_a_one_line_error(tmp_path):
    (tmp_path / "no.tar").write_bytes(b"no tar")
    with pytest.raises(InputError, match=r"no\.tar: not an uncompressed"):
        list(read_ahead(partial(open_rows, tmp_path / "no.tar")))
