"""Processes that decode: the same pixels in order, reasons per file, and no way to hang or to leave something behind."""

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

from msdscore.encoders.vision.canvas import Preprocessing, read_pixels
from msdscore.errors import ImageError
from msdscore.io import decoders
from msdscore.io.decoders import NICENESS, TOGETHER, Decoders, DecodersLostError
from msdscore.io.images import ImageLimits

STEPS = Preprocessing(16, (16, 16))
READ = partial(read_pixels, steps=STEPS, limits=ImageLimits())
CELL = TOGETHER * 3 * 16 * 16
PATIENCE = 120  # seconds, for a machine that has other things to do


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


def asked(pool, read, sources):
    return [one for part in pool.submit(read, sources) for one in part.result(timeout=PATIENCE)]


def check(found, files):
    for (pixels, view), path in zip(found, files, strict=True):
        expected, where = READ(path)
        assert view == where
        np.testing.assert_array_equal(pixels, expected)


def eventually(true):
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def fragile(source):
    """Reads as usual, but ends its process at one file."""
    if Path(source).stem == "13":
        os._exit(7)
    return READ(source)


def slow(source):
    time.sleep(0.05)
    return READ(source)


def mistaken(source):
    raise KeyError("a mistake of ours")


def test_pixels_come_in_order_with_a_reason_for_what_cannot_be_read(two, files):
    broken = files[0].with_name("broken.jpg")
    broken.write_bytes(b"no picture")
    found = asked(two, READ, [*files[:10], broken, *files[10:]])
    assert isinstance(found[10], ImageError)
    assert "broken.jpg: not an image" in str(found[10])
    check(found[:10] + found[11:], files)
    check(asked(two, READ, [path.read_bytes() for path in files]), files)


def test_pixels_beyond_the_shared_memory_come_through_the_pipe(files):
    pool = Decoders(1, 3 * 16 * 16, 1)  # room for one image in all
    try:
        check(asked(pool, READ, files), files)
    finally:
        pool.close()


def test_cells_are_free_again_when_their_pixels_are_gone(two, files):
    found = asked(two, READ, files)
    kept = found[-1]
    del found
    assert len(two._free) == 7
    two.rest()  # not while an image is in use
    check([kept], files[-1:])
    del kept
    assert len(two._free) == 8
    two.rest()
    check(asked(two, READ, files), files)


def test_a_file_that_ends_its_process_has_a_reason_and_no_other_file_has(two, files):
    found = asked(two, fragile, files)
    assert str(found[13]).endswith("13.png: cannot be decoded (the process that tried ended with code 7)")
    check(found[:13] + found[14:], files[:13] + files[14:])


@pytest.mark.skipif(not hasattr(os, "nice"), reason="no niceness on this system")
def test_decoders_leave_the_cores_to_the_caller(two, files):
    own = os.getpriority(os.PRIO_PROCESS, 0)
    asked(two, READ, files)
    # One process may have done all the work; the other one steps back as soon as it runs.
    eventually(
        lambda: {os.getpriority(os.PRIO_PROCESS, one.process.pid) for one in two._members} == {min(own + NICENESS, 19)}
    )
    assert os.getpriority(os.PRIO_PROCESS, 0) == own


def test_a_process_that_is_killed_is_replaced(two, files):
    waiting = two.submit(slow, files * 3)
    waiting[0].result(timeout=PATIENCE)
    for member in list(two._members):
        member.process.send_signal(signal.SIGKILL)
    check([one for part in waiting for one in part.result(timeout=PATIENCE)], files * 3)


def test_a_mistake_of_ours_is_raised(two, files):
    with pytest.raises(RuntimeError, match="failed on .*00.png: KeyError: 'a mistake of ours'"):
        asked(two, mistaken, files[:1])


class Refused:
    """Something that no other process can have."""

    def __call__(self, source):
        return READ(source)

    def __reduce__(self):
        return (int, ("no number",))


def test_a_way_to_read_that_cannot_be_sent_is_an_error_and_the_processes_go_on(two, files):
    with pytest.raises(RuntimeError, match="cannot be sent to a decoding process"):
        asked(two, lambda source: READ(source), files)
    with pytest.raises(RuntimeError, match="cannot read its work: ValueError"):
        asked(two, Refused(), files[:1])
    check(asked(two, READ, files), files)


def test_a_process_that_cannot_be_started_is_reported_at_once(monkeypatch, files, tmp_path):
    for program in ("/bin/false", str(tmp_path / "none")):
        monkeypatch.setattr(sys, "executable", program)
        pool = Decoders(2, CELL, 2)
        with pytest.raises(DecodersLostError):
            asked(pool, READ, files)
        with pytest.raises(DecodersLostError):
            asked(pool, READ, files)
        pool.close()


def test_processes_are_reused_by_the_next_caller():
    first = decoders.borrow(1, CELL, 4)
    decoders.give_back(first)
    again = decoders.borrow(1, CELL, 4)
    assert again is first
    other = decoders.borrow(1, CELL, 5)
    assert other is not first
    for one in (again, other):
        decoders.give_back(one)
    assert decoders.borrow(1, CELL, 5) is other
    assert first._closed  # nobody used it any more
    decoders.give_back(other)
    decoders.close_all()
    assert other._closed


def test_a_decoding_process_imports_no_torch():
    script = (
        "import sys, msdscore.io.decoders, msdscore.encoders.vision.canvas; "
        "sys.exit(bool({'torch', 'transformers', 'pyarrow', 'jaxtyping'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


SCRIPT = """
import sys
from functools import partial
from msdscore.encoders.vision.canvas import Preprocessing, read_pixels
from msdscore.io import decoders
from msdscore.io.images import ImageLimits

# No main guard: the processes do not import this script.
read = partial(read_pixels, steps=Preprocessing(16, (16, 16)), limits=ImageLimits())
pool = decoders.borrow(2, 8 * 768, 4)
futures = pool.submit(read, sys.argv[1:] * 20)
futures[0].result()
print(*(member.process.pid for member in pool._members), flush=True)
for future in futures:
    future.result()
"""
WAITS = "import signal; signal.pause()  # however long the signal takes to come\n"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL, None])
def test_nothing_is_left_of_a_script_that_ends_in_any_way(files, how):
    script = SCRIPT + WAITS if how else SCRIPT
    command = [sys.executable, "-W", "error", "-c", script, *map(str, files)]
    # A shell in the background lets those that it starts ignore Ctrl-C.
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed)
    children = [int(number) for number in running.stdout.readline().split()]
    assert children
    if how is not None:
        running.send_signal(how)
    _, errors = running.communicate(timeout=PATIENCE)
    assert "leaked" not in errors
    assert running.returncode == (
        0 if how is None else 130 if how == signal.SIGINT and running.returncode > 0 else -how
    )
    eventually(lambda: not any(map(is_running, children)))  # no decoding process outlives the one that started it


def is_running(number):
    try:
        return Path(f"/proc/{number}/stat").read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
