import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from msdscore.errors import ConfigError, RunError
from msdscore.io.runs import discard, finished_run, open_run
from msdscore.io.targets import Summary

MANIFEST = {"input": "abc", "config": {"kappa": 20.0, "preset": "short"}, "chunk": 4}


def part(number: int, rows: int = 4) -> pa.Table:
    first = number * rows
    return pa.table(
        {"index": list(range(first, first + rows)), "caption": [f"é{i}" for i in range(first, first + rows)]}
    )


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def complete(output: Path, parts: int = 3, **options: Any) -> Summary:
    with open_run(output, MANIFEST) as run:
        for number in range(parts):
            run.write(number, part(number))
        return run.finish(**options)


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".csv", ".json"])
def test_parts_are_merged_into_one_output(tmp_path, suffix):
    output = tmp_path / "deep" / "folder" / f"out{suffix}"
    assert complete(output, rows=12) == Summary(rows=12, failed=0)
    assert names(output.parent) == [f"out{suffix}", f"out{suffix}.run.json"]
    assert "é11" in (output.read_bytes().decode("utf-8") if suffix != ".parquet" else str(pq.read_table(output)))
    assert finished_run(output, MANIFEST) == Summary(rows=12, failed=0)
    with pytest.raises(RunError, match="already finished"):
        open_run(output, MANIFEST)


def test_parts_are_merged_in_index_order(tmp_path):
    with open_run(tmp_path / "out.parquet", MANIFEST) as run:
        for number in (2, 0, 11, 1, *range(3, 11)):
            run.write(number, part(number))
        assert list(run.keys()) == list(range(12))
        assert [table.column("index")[0].as_py() for table in run.tables(["index"])] == list(range(0, 48, 4))
        run.finish()
    assert pq.read_table(tmp_path / "out.parquet").column("index").to_pylist() == list(range(48))


def test_finish_writes_transformed_tables_metadata_and_failed_rows(tmp_path):
    def double(table: pa.Table) -> pa.Table:
        return table.append_column("twice", pc.multiply(table.column("index"), 2))

    output = tmp_path / "out.parquet"
    with open_run(output, MANIFEST) as run:
        run.write(0, part(0).append_column("error", pa.array([None, "bad", None, "bad"])))
        run.write(1, part(1).append_column("error", pa.nulls(4)))
        doubled = (double(table) for table in run.tables())
        assert run.finish(doubled, metadata={"msdscore": "sig"}) == Summary(8, 2, ("row 1: bad", "row 3: bad"))
    table = pq.read_table(output)
    assert table.column("twice").to_pylist() == list(range(0, 16, 2))
    assert table.column("error").to_pylist() == [None, "bad", None, "bad", None, None, None, None]
    assert table.schema.metadata[b"msdscore"] == b"sig"
    assert finished_run(output, MANIFEST) == Summary(8, 2, ("row 1: bad", "row 3: bad"))
    assert json.loads((tmp_path / "out.parquet.run.json").read_text())["manifest"] == MANIFEST


def test_small_parts_are_merged_into_few_row_groups(tmp_path):
    with open_run(tmp_path / "out.parquet", MANIFEST) as run:
        for number in range(20):
            run.write(number, part(number))
        run.finish()
    assert pq.read_metadata(tmp_path / "out.parquet").num_row_groups == 1


def test_interrupted_run_resumes(tmp_path):
    output = tmp_path / "out.jsonl"
    with open_run(output, MANIFEST) as run:
        run.write(0, part(0))
        run.write(2, part(2))
    assert finished_run(output, MANIFEST) is None
    folder = tmp_path / "out.jsonl.parts"
    (folder / ".part-000001.parquet.0123.tmp").write_bytes(b"half a part")
    (folder / "part-000003.parquet").write_bytes((folder / "part-000000.parquet").read_bytes()[:-6])
    (folder / "part-000004.parquet").touch()
    with open_run(output, MANIFEST) as run:
        assert list(run.keys()) == [0, 2]
        assert ".part-000001.parquet.0123.tmp" not in names(folder)
        with pytest.raises(RunError, match="part 1 is missing"):
            run.finish()
        for number in (1, 3, 4):
            run.write(number, part(number))
        with pytest.raises(RunError, match="20 rows, expected 21"):
            run.finish(rows=21)
        run.finish(rows=20)
    assert [json.loads(line)["index"] for line in output.read_text().splitlines()] == list(range(20))


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"input": "abd"}, "its input was changed or touched after it was scored"),
        ({"config": {"kappa": 25.0, "preset": "short"}}, r"another config\.kappa \(20\.0, now 25\.0\)"),
        ({"config": {"kappa": 20.0}}, r'another config\.preset \("short", now nothing\)'),
        ({"new": [1]}, r"another new \(nothing, now \[1\]\)"),
    ],
)
def test_run_with_other_settings_is_rejected(tmp_path, change, line):
    other = {**MANIFEST, **change}
    with open_run(tmp_path / "half.parquet", MANIFEST) as run:
        run.write(0, part(0))
    complete(tmp_path / "whole.parquet")
    expected = rf"{line}; .*--overwrite$"
    with pytest.raises(RunError, match=rf"half\.parquet\.parts: .*{expected}"):
        open_run(tmp_path / "half.parquet", other)
    with pytest.raises(RunError, match=rf"whole\.parquet: .*{expected}"):
        finished_run(tmp_path / "whole.parquet", other)
    with pytest.raises(RunError, match=expected):
        open_run(tmp_path / "whole.parquet", other)
    with open_run(tmp_path / "half.parquet", MANIFEST) as run:  # lock and parts are unchanged
        assert list(run.keys()) == [0]


def test_foreign_outputs_are_rejected(tmp_path):
    (tmp_path / "mine.csv").write_text("precious")
    with pytest.raises(RunError, match=r"mine\.csv: exists, but"):
        open_run(tmp_path / "mine.csv", MANIFEST)
    assert names(tmp_path) == ["mine.csv"]
    with pytest.raises(ConfigError, match="unknown kind of output"):
        open_run(tmp_path / "out.txt", MANIFEST)


@pytest.mark.parametrize("edit", [lambda content: content + b"more\n", lambda content: content.replace(b"1", b"9", 1)])
def test_edited_output_is_detected_also_of_equal_length(tmp_path, edit):
    complete(tmp_path / "out.csv")
    (tmp_path / "out.csv").write_bytes(edit((tmp_path / "out.csv").read_bytes()))
    with pytest.raises(RunError, match=r"out\.csv: was changed after"):
        finished_run(tmp_path / "out.csv", MANIFEST)


def test_discard_starts_again(tmp_path):
    complete(tmp_path / "out.csv")
    discard(tmp_path / "out.csv")
    assert names(tmp_path) == []
    with open_run(tmp_path / "out.csv", MANIFEST) as run:
        run.write(0, part(0))
        with pytest.raises(RunError, match="is using it"):
            discard(tmp_path / "out.csv")
    discard(tmp_path / "out.csv")
    discard(tmp_path / "never.csv")
    assert names(tmp_path) == []


def test_deleted_output_is_written_again(tmp_path):
    complete(tmp_path / "out.csv")
    (tmp_path / "out.csv").unlink()
    assert finished_run(tmp_path / "out.csv", MANIFEST) is None
    assert complete(tmp_path / "out.csv") == Summary(12, 0)


def test_crashes_during_completion(tmp_path):
    output, folder = tmp_path / "out.jsonl", tmp_path / "out.jsonl.parts"
    run = open_run(output, MANIFEST)
    run.write(0, part(0))
    run.close()
    complete(tmp_path / "same.jsonl", parts=1)
    output.write_bytes((tmp_path / "same.jsonl").read_bytes())  # complete, but without run metadata
    assert finished_run(output, MANIFEST) is None
    with open_run(output, MANIFEST) as run:
        run.finish()
    assert len(output.read_text().splitlines()) == 4
    # Run metadata written, folder not yet removed.
    open_run(output, MANIFEST, again=True).close()
    (folder / "part-000000.parquet").touch()
    assert finished_run(output, MANIFEST) == Summary(4, 0)
    assert not folder.exists()
    # Folder partially removed: the origin of its parts is unknown.
    open_run(output, MANIFEST, again=True).close()
    (folder / "manifest.json").unlink()
    pq.write_table(part(7), folder / "part-000000.parquet")
    output.unlink()
    with open_run(output, MANIFEST) as run:
        assert list(run.keys()) == []


def test_corrupted_part_is_not_merged(tmp_path):
    with open_run(tmp_path / "out.csv", MANIFEST) as run:
        run.write(0, part(0, rows=1000))
        path = tmp_path / "out.csv.parts" / "part-000000.parquet"
        data = bytearray(path.read_bytes())
        data[len(data) // 4] ^= 0xFF
        path.write_bytes(data)
        with pytest.raises(RunError, match=r"000000\.parquet: is damaged"):
            run.finish()
        run.write(0, part(0))
        run.finish()


def test_run_resumes_after_ctrl_c_while_merging(tmp_path):
    def interrupted(table: pa.Table) -> pa.Table:
        if table.column("index")[0].as_py() == 4:
            raise KeyboardInterrupt
        return table

    output = tmp_path / "out.jsonl"
    with open_run(output, MANIFEST) as run:
        for number in range(3):
            run.write(number, part(number))
        with pytest.raises(KeyboardInterrupt):
            run.finish(interrupted(table) for table in run.tables())
    assert names(tmp_path) == ["out.jsonl.parts"]
    with open_run(output, MANIFEST) as run:
        assert list(run.keys()) == [0, 1, 2]
        run.finish()
    assert len(output.read_text().splitlines()) == 12


def test_output_is_locked_until_any_thread_closes_it(tmp_path):
    run = open_run(tmp_path / "out.csv", MANIFEST)
    with pytest.raises(RunError, match=rf"out\.csv\.parts: process {os.getpid()} is"):
        open_run(tmp_path / "out.csv", MANIFEST)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(run.close).result()
    open_run(tmp_path / "out.csv", MANIFEST).close()


def test_unwritable_path_is_a_one_line_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"out\.csv: .*Not a directory"):
        open_run(tmp_path / "file" / "out.csv", MANIFEST)


def test_a_deleted_folder_of_parts_is_named(tmp_path):
    with open_run(tmp_path / "out.jsonl", {}) as run:
        run.write(0, pa.table({"a": [1]}))
        shutil.rmtree(tmp_path / "out.jsonl.parts")
        for step in (lambda: run.write(1, pa.table({"a": [1]})), run.finish):
            with pytest.raises(RunError, match=r"out\.jsonl\.parts: was deleted during the run"):
                step()


def test_unwritable_part_is_a_one_line_error(tmp_path):
    with open_run(tmp_path / "out.csv", MANIFEST) as run:
        (tmp_path / "out.csv.parts" / "part-000000.parquet").mkdir()
        with pytest.raises(RunError, match=r"cannot write part 0 \(.*\)"):
            run.write(0, part(0))


WRITER = """
import sys
from pathlib import Path
import numpy, pyarrow
from msdscore.io.runs import open_run

with open_run(Path(sys.argv[1]), {"input": "abc"}) as run:
    for number in range(len(list(run.keys())), 10_000):
        noise = numpy.random.default_rng(number).random(20_000)
        run.write(number, pyarrow.table({"part": [number] * 20_000, "noise": noise}))
        print(number, flush=True)
"""


def test_sigkill_preserves_finished_parts(tmp_path):
    output = tmp_path / "out.parquet"
    reported = 0
    for _ in range(2):
        child = subprocess.Popen([sys.executable, "-c", WRITER, str(output)], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        reported = max(int(child.stdout.readline()) for _ in range(3))
        with pytest.raises(RunError, match=f"process {child.pid} is"):
            open_run(output, {"input": "abc"})
        time.sleep(0.004)  # probably while it writes the next part
        child.send_signal(signal.SIGKILL)
        child.communicate()
        assert child.returncode == -signal.SIGKILL
    with open_run(output, {"input": "abc"}) as run:  # the lock was released with its owner
        done = list(run.keys())
        assert done == list(range(len(done)))
        assert len(done) > reported >= 5
        assert [path.name for path in run.output.parent.glob("*.parts/.*")] == []
        assert run.finish().rows == len(done) * 20_000
    parts = pq.read_table(output, columns=["part"]).column("part")
    assert parts.to_pylist() == [number for number in done for _ in range(20_000)]


UNLOCKABLE = """
import errno, fcntl, signal, sys
from pathlib import Path
import pyarrow
from msdscore.io.runs import open_run

def refuse(file, operation):
    raise OSError(getattr(errno, sys.argv[2]), "as this file system does")

fcntl.flock = refuse
run = open_run(Path(sys.argv[1]), {})
run.write(0, pyarrow.table({"a": [1]})) if not list(run.keys()) else run.finish()
signal.raise_signal(signal.SIGKILL)
"""


def unlockable(output: Path, error: str) -> subprocess.CompletedProcess[str]:
    """Write a part where files cannot be locked and end without closing the run; the second call finishes it."""
    command = [sys.executable, "-W", "error", "-c", UNLOCKABLE, str(output), error]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.skipif(os.name == "nt", reason="Windows always locks files")
def test_killed_run_resumes_where_locks_are_not_implemented(tmp_path):
    output = tmp_path / "out.parquet"
    for _ in range(2):
        answer = unlockable(output, "ENOSYS")
        assert (answer.returncode, answer.stderr) == (-signal.SIGKILL, "")
    assert pq.read_table(output)["a"].to_pylist() == [1]
    assert names(tmp_path) == ["out.parquet", "out.parquet.run.json"]


@pytest.mark.skipif(os.name == "nt", reason="Windows always locks files")
def test_run_that_cannot_be_locked_leaves_nothing(tmp_path):
    assert "out.parquet.parts/lock: cannot be locked" in unlockable(tmp_path / "out.parquet", "ENOLCK").stderr
    assert names(tmp_path) == []


def test_names_of_maximum_length(tmp_path):
    output = tmp_path / ("x" * 235 + ".csv")
    assert complete(output) == Summary(12, 0)


def test_foreign_folder_of_parts_is_rejected(tmp_path):
    folder = tmp_path / "out.csv.parts"
    folder.mkdir()
    (folder / "part-000000.parquet").write_text("precious")
    for attempt in (lambda: open_run(tmp_path / "out.csv", MANIFEST), lambda: discard(tmp_path / "out.csv")):
        with pytest.raises(RunError, match=r"csv\.parts: was not created"):
            attempt()
    assert names(folder) == ["part-000000.parquet"]


def test_foreign_files_among_the_parts_are_preserved(tmp_path):
    with open_run(tmp_path / "out.csv", MANIFEST) as run:
        run.write(0, part(0))
        (tmp_path / "out.csv.parts" / "notes.txt").write_text("precious")
        (tmp_path / "out.csv.parts" / "part-000009.parquet").mkdir()
        run.finish()
    assert names(tmp_path / "out.csv.parts") == ["notes.txt", "part-000009.parquet"]


def test_link_instead_of_the_folder_of_parts_is_rejected(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out.csv.parts").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match=r"csv\.parts: .*a link or a file"):
        open_run(tmp_path / "out.csv", MANIFEST)
    assert names(tmp_path / "elsewhere") == []


@pytest.mark.parametrize("content", ['{"mine": 1}', "no JSON", "[]"])
def test_foreign_run_metadata_is_not_replaced(tmp_path, content):
    notes = tmp_path / "out.csv.run.json"
    notes.write_text(content)
    for attempt in (lambda: open_run(tmp_path / "out.csv", MANIFEST), lambda: discard(tmp_path / "out.csv")):
        with pytest.raises(RunError, match=r"\.run\.json: was not written"):
            attempt()
    assert notes.read_text() == content
    assert names(tmp_path) == [notes.name]


def test_output_created_during_a_run_is_not_replaced(tmp_path):
    with open_run(tmp_path / "out.csv", MANIFEST) as run:
        run.write(0, part(0))
        (tmp_path / "out.csv").write_text("precious")
        with pytest.raises(RunError, match=r"out\.csv: appeared or changed"):
            run.finish()
    assert (tmp_path / "out.csv").read_text() == "precious"


def test_failed_final_check_writes_no_output(tmp_path):
    def refuse() -> None:
        raise RunError("the input was changed")

    with open_run(tmp_path / "out.csv", MANIFEST) as run:
        run.write(0, part(0))
        with pytest.raises(RunError, match="the input was changed"):
            run.finish(check=refuse)
        assert not (tmp_path / "out.csv").exists()
        assert list(run.keys()) == [0]


def test_missing_parts_are_computed_and_surplus_parts_dropped(tmp_path):
    with open_run(tmp_path / "out.parquet", MANIFEST) as run:
        for number, key, value in run.missing([("a", 0), ("b", 1), ("c", 2)]):
            run.write(number, part(value), key=key)
        assert run.keys() == {0: "a", 1: "b", 2: "c"}
        missing = run.missing([("a", 0), ("d", 5)])
        assert next(missing) == (1, "d", 5)
        run.write(1, part(5), key="d")
        assert len(run.keys()) == 3  # a crash here loses nothing
        assert list(missing) == []
        assert run.keys() == {0: "a", 1: "d"}
        assert list(run.tables()) == [part(0), part(5)]
