"""Decoding processes: identical pixels in order, errors per file, no hangs and no leftovers."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from msdscore.encoders.preprocessing import Preprocessing, read_pixels
from msdscore.errors import ImageError
from msdscore.io.images import ImageLimits
from msdscore_torch.feeding import processes as decoders
from msdscore_torch.feeding.processes import MESSAGE_FILES, NICENESS, Decoders, DecodersLostError

STEPS = Preprocessing(16, (16, 16))
READ = partial(read_pixels, steps=STEPS, limits=ImageLimits())
CELL = MESSAGE_FILES * 3 * 16 * 16
PATIENCE = 120  # seconds, for a busy machine


@pytest.fixture
def files(tmp_path):
    made = [tmp_path / f"{number:02d}.png" for number in range(21)]
    for number, path in enumerate(made):
        Image.new("RGB", (30, 20), (number, 2 * number, 255 - number)).save(path)
    return made


@pytest.fixture
def two():
    pool = Decoders(2, CELL, 8)
    yield pool
    pool.close()


def decode(pool, read, sources):
    return [one for part in pool.submit(read, sources) for one in part.result(timeout=PATIENCE)]


def check(found, files):
    for (pixels, view), path in zip(found, files, strict=True):
        expected, where = READ(path)
        assert view == where
        np.testing.assert_array_equal(pixels, expected)


def wait_until(true):
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def fragile(source):
    """Read pixels, but exit the process at one file."""
    if Path(source).stem == "13":
        os._exit(7)
    return READ(source)


def slow(source):
    time.sleep(0.05)
    return READ(source)


def failing(source):
    raise KeyError("an internal error")


def test_pixels_are_in_order_with_errors_for_unreadable_files(two, files):
    broken = files[0].with_name("broken.jpg")
    broken.write_bytes(b"not an image")
    found = decode(two, READ, [*files[:10], broken, *files[10:]])
    assert isinstance(found[10], ImageError)
    assert "broken.jpg: not an image" in str(found[10])
    check(found[:10] + found[11:], files)
    check(decode(two, READ, [path.read_bytes() for path in files]), files)


def test_pixels_beyond_the_shared_memory_are_sent_through_the_pipe(files):
    pool = Decoders(1, 3 * 16 * 16, 1)  # room for one image in all
    try:
        check(decode(pool, READ, files), files)
    finally:
        pool.close()


def test_cells_are_released_with_their_pixels(two, files):
    found = decode(two, READ, files)
    last = found[-1]
    del found
    assert len(two.free) == 7
    two.free_memory()  # not while an image is in use
    check([last], files[-1:])
    del last
    assert len(two.free) == 8
    two.free_memory()
    check(decode(two, READ, files), files)


def test_memory_is_that_of_the_pixels_in_use(files):
    pool = Decoders(1, 1 << 20, 64)
    try:
        for _ in range(20):
            check(decode(pool, READ, files), files)
        assert os.fstat(pool.file).st_blocks * 512 <= 16 * os.sysconf("SC_PAGE_SIZE")  # a page per cell, of 64
    finally:
        pool.close()


def test_file_that_kills_its_process_does_not_affect_others(two, files):
    found = decode(two, fragile, files)
    assert str(found[13]).endswith("13.png: cannot be decoded (the process that tried ended with code 7)")
    check(found[:13] + found[14:], files[:13] + files[14:])


@pytest.mark.skipif(not hasattr(os, "nice"), reason="no niceness on this system")
def test_decoders_run_at_low_priority(two, files):
    own = os.getpriority(os.PRIO_PROCESS, 0)
    decode(two, READ, files)
    # One process may have done all the work; the other one lowers its priority when it runs.
    wait_until(
        lambda: {os.getpriority(os.PRIO_PROCESS, one.process.pid) for one in two.members} == {min(own + NICENESS, 19)}
    )
    assert os.getpriority(os.PRIO_PROCESS, 0) == own


def test_killed_process_is_replaced(two, files):
    waiting = two.submit(slow, files * 3)
    waiting[0].result(timeout=PATIENCE)
    for member in list(two.members):
        member.process.send_signal(signal.SIGKILL)
    check([one for part in waiting for one in part.result(timeout=PATIENCE)], files * 3)


def test_internal_errors_are_raised(two, files):
    with pytest.raises(RuntimeError, match="00.png: KeyError: 'an internal"):
        decode(two, failing, files[:1])


class Refused:
    """An object that cannot be unpickled."""

    def __call__(self, source):
        return READ(source)

    def __reduce__(self):
        return (int, ("no number",))


def test_unpicklable_function_is_an_error_and_processes_continue(two, files):
    with pytest.raises(RuntimeError, match="cannot be sent to"):
        decode(two, lambda source: READ(source), files)
    with pytest.raises(RuntimeError, match="its work: ValueError"):
        decode(two, Refused(), files[:1])
    check(decode(two, READ, files), files)


def test_failed_start_is_reported_immediately(monkeypatch, files, tmp_path):
    for program in ("/bin/false", str(tmp_path / "none")):
        monkeypatch.setattr(sys, "executable", program)
        pool = Decoders(2, CELL, 2)
        with pytest.raises(DecodersLostError):
            decode(pool, READ, files)
        with pytest.raises(DecodersLostError):
            decode(pool, READ, files)
        pool.close()


def test_processes_are_reused_by_the_next_caller():
    first = decoders.borrow(1, CELL)
    decoders.give_back(first)
    again = decoders.borrow(1, CELL)
    assert again is first
    other = decoders.borrow(1, 2 * CELL)
    assert other is not first
    for one in (again, other):
        decoders.give_back(one)
    assert decoders.borrow(1, 2 * CELL) is other
    assert first.closed  # no longer in use
    decoders.give_back(other)
    decoders.close_all()
    assert other.closed


def test_decoding_process_does_not_import_torch():
    script = (
        "import sys, msdscore_torch.feeding.processes, msdscore.encoders.preprocessing; "
        "sys.exit(bool({'torch', 'transformers', 'pyarrow', 'jaxtyping'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


SCRIPT = """
import sys
from functools import partial
from msdscore.encoders.preprocessing import Preprocessing, read_pixels
from msdscore_torch.feeding import processes as decoders
from msdscore.io.images import ImageLimits

# No main guard: the processes do not import this script.
read = partial(read_pixels, steps=Preprocessing(16, (16, 16)), limits=ImageLimits())
pool = decoders.borrow(2, 8 * 768)
futures = pool.submit(read, sys.argv[1:] * 20)
futures[0].result()
print(*(member.process.pid for member in pool.members), flush=True)
for future in futures:
    future.result()
"""
WAITS = "import signal; signal.pause()  # however long the signal takes to come\n"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL, None])
def test_no_process_outlives_a_script(files, how):
    script = SCRIPT + WAITS if how else SCRIPT
    command = [sys.executable, "-W", "error", "-c", script, *map(str, files)]
    # A background shell makes its child processes ignore Ctrl-C.
    restore_sigint = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=restore_sigint
    )
    children = [int(number) for number in running.stdout.readline().split()]
    assert children
    if how is not None:
        running.send_signal(how)
    _, errors = running.communicate(timeout=PATIENCE)
    assert "leaked" not in errors
    assert running.returncode == (
        0 if how is None else 130 if how == signal.SIGINT and running.returncode > 0 else -how
    )
    wait_until(lambda: not any(map(is_running, children)))  # no decoding process outlives its parent


def is_running(number):
    try:
        return Path(f"/proc/{number}/stat").read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
