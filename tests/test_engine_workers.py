"""Shards on several processes: identical bytes, also after killed workers."""

import itertools
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from command_line import completed, invoke, msdscore
from msdscore import __version__, threads
from msdscore.encoders.cached import CacheSettings
from msdscore.errors import ConfigError, RunError, UnknownNameError
from msdscore.run import shards as shards_of_run
from msdscore.run import workers as workers_of_shards
from msdscore.run.folder import ShardJob, ShardResult, read_facts
from msdscore.run.ray_data import RayOptions
from msdscore.run.shards import ShardOptions, ShardWorker
from msdscore.run.workers import default_workers, plan_jobs, score_jobs, score_on_workers, spec_of_worker
from msdscore.scoring.spec import ScorerSpec
from tar_shards import jpeg, sample, tar_of, write_tar

TOY = ScorerSpec(encoder="toy", device="cpu")


def write_shards(folder, count=4, rows=5):
    for number in range(count):
        write_tar(folder / f"{number:05d}.tar", rows, first=number * rows)
    return str(folder / f"{{00000..{count - 1:05d}}}.tar")


def contents(folder):
    """Return the files of a folder except hidden ones, which a killed writer may leave behind."""
    return {path.name: path.read_bytes() for path in sorted(Path(folder).glob("[!._]*"))}


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [1, 2])
def test_killed_worker_loses_and_repeats_nothing(tmp_path, at_once):
    pattern = write_shards(tmp_path / "in", count=5)
    alone, several = plan_jobs([pattern], str(tmp_path / "alone")), plan_jobs([pattern], str(tmp_path / "several"))
    assert all(result.fresh for result in score_jobs(TOY, alone, ShardOptions()))
    results = score_on_workers(TOY, several, ShardOptions(), workers=2, at_once=at_once)
    found = [next(results)]
    multiprocessing.active_children()[0].kill()
    found += results
    assert sorted(result.output for result in found) == [job.output for job in several]
    assert all(result.error is None and result.rows == 5 for result in found)
    assert contents(tmp_path / "alone") == contents(tmp_path / "several")
    assert not multiprocessing.active_children()


class Deadly(ScorerSpec):
    """A scorer that exits its process at a certain caption."""

    def build(self):
        pipeline = super().build()
        encode = pipeline.encoder.encode_texts

        def encode_or_die(texts):
            if any("deadly" in text for text in texts):
                os._exit(3)
            return encode(texts)

        pipeline.encoder.encode_texts = encode_or_die
        return pipeline


@pytest.mark.slow
def test_shard_that_kills_its_workers_does_not_affect_others(tmp_path):
    write_shards(tmp_path, count=4)
    tar_of(tmp_path / "00001.tar", *sample("0", jpg=jpeg("red"), txt=b"a deadly caption"))
    jobs = plan_jobs([str(tmp_path / "*.tar")], str(tmp_path / "out"))
    spec = Deadly(encoder="toy", device="cpu")
    found = {
        result.source: result.error for result in score_on_workers(spec, jobs, ShardOptions(), workers=2, at_once=2)
    }
    assert [found[job.source] is None for job in jobs] == [True, False, True, True]
    assert "its worker process ended (exit code 3)" in found[jobs[1].source]


class Threads(ScorerSpec):
    """A scorer that records the number of threads with which it is built."""

    seen: ClassVar[list[int]] = []

    def build(self):
        Threads.seen.append(torch.get_num_threads())
        return super().build()


def test_number_of_threads_is_equal_in_all_workers_and_restored(tmp_path):
    """The last bits of sums depend on the number of threads."""
    before, source = torch.get_num_threads(), str(write_tar(tmp_path / "0.tar", 2))
    for count in (1, 4):
        torch.set_num_threads(count)
        list(score_jobs(Threads(encoder="toy"), [ShardJob(source, str(tmp_path / f"{count}.parquet"))], ShardOptions()))
        assert torch.get_num_threads() == count
    if torch.get_num_threads() != before:
        torch.set_num_threads(before)
    assert Threads.seen == [workers_of_shards.THREADS] * 2


def test_workers_on_one_gpu_share_it_and_the_cores(monkeypatch):
    monkeypatch.setattr(workers_of_shards, "gpu_count", lambda: 1)
    monkeypatch.setattr(threads, "available", lambda: 16)
    spec = ScorerSpec(encoder="toy")
    assert default_workers(spec) == 1
    placed = [spec_of_worker(spec, number, 2) for number in range(2)]
    assert [(one.device, one.decoders) for one in placed] == [("cuda:0", 8)] * 2
    assert spec_of_worker(ScorerSpec(encoder="toy", decoders=3), 0, 2).decoders == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"least": 3, "most": 2}, "actor, .*got 3 to 2"),
        ({"least": 0}, "actor, .*got 0 to None"),
        ({"gpus": 1.5}, "GPU .*got 1 and 1.5"),
        ({"cpus": -1.0}, "GPU .*got -1 and 0"),
    ],
)
def test_options_of_ray_are_checked(options, message):
    for valid in ({"least": 2, "most": 2}, {"cpus": 0.0, "gpus": 0.25}, {"gpus": 2.0}):
        RayOptions(**valid)
    with pytest.raises(ConfigError, match=message):
        RayOptions(**options)


@pytest.mark.parametrize("at_once", [1, 2])
def test_unreadable_shard_does_not_stop_others(tmp_path, at_once):
    write_shards(tmp_path, count=4)
    (tmp_path / "00001.tar").write_bytes(b"no tar")
    jobs = plan_jobs([str(tmp_path / "{00000..00004}.tar")], str(tmp_path / "out"))
    found = list(score_jobs(TOY, jobs, ShardOptions(), at_once=at_once))
    assert [result.error is None for result in found] == [True, False, True, True, False]
    assert "not an uncompressed tar shard" in found[1].error
    assert "00004.tar: no such file" in found[4].error
    with pytest.raises(UnknownNameError, match="unknown encoder 'nosuch'"):
        list(score_jobs(ScorerSpec(encoder="nosuch"), jobs, ShardOptions(overwrite=True), at_once=at_once))


@pytest.mark.parametrize(("at_once", "decoders"), [(2, None), (3, 2)])
def test_overlapping_shards_have_identical_bytes_in_order(tmp_path, at_once, decoders):
    pattern = write_shards(tmp_path / "in", count=5, rows=40)
    alone, together = (plan_jobs([pattern], str(tmp_path / name)) for name in ("alone", "together"))
    list(score_jobs(TOY, alone, ShardOptions()))
    (tmp_path / "together").mkdir()
    (tmp_path / "together" / "00001.parquet").write_bytes((tmp_path / "alone" / "00001.parquet").read_bytes())
    spec, before = replace(TOY, decoders=decoders), torch.get_num_threads()
    found = list(score_jobs(spec, together, ShardOptions(), at_once=at_once))
    assert [result.output for result in found] == [job.output for job in together]
    assert [result.fresh for result in found] == [True, False, True, True, True]
    assert contents(tmp_path / "alone") == contents(tmp_path / "together")
    assert torch.get_num_threads() == before


def test_at_most_one_shard_is_read_ahead(tmp_path, monkeypatch):
    jobs, seen, second = [ShardJob(name, name) for name in "abc"], [], Event()

    def score_slowly(spec, source, output, options, *, build, watch):
        seen.append(f"{source} begins")
        second.set() if source == "b" else None
        assert list(watch(iter([1, 2]))) == [1, 2]
        seen.append(f"{source} is read")
        assert source != "a" or second.wait(timeout=60)
        return ShardResult(source, output)

    monkeypatch.setattr(shards_of_run, "score_shard", score_slowly)
    assert [one.source for one in score_jobs(TOY, jobs, ShardOptions(), at_once=2)] == ["a", "b", "c"]
    assert [one for one in seen if "begins" in one] == ["a begins", "b begins", "c begins"]
    assert seen.index("b is read") < seen.index("c begins")


def test_overlapping_shards_stop_when_the_run_is_cancelled(tmp_path, monkeypatch):
    jobs, taken = [ShardJob(str(number), str(number)) for number in range(50)], []

    def endless(spec, source, output, options, *, build, watch):
        for row in watch(itertools.count() if source == "1" else iter([0])):
            taken.append(row)
        return ShardResult(source, output)

    monkeypatch.setattr(shards_of_run, "score_shard", endless)
    results = score_jobs(TOY, jobs, ShardOptions(), at_once=2)
    assert next(results).source == "0"
    results.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("msdscore-shard")]


def test_shards_overlap_only_on_a_gpu_without_a_cache(tmp_path, monkeypatch):
    cached = replace(TOY, device="cuda", cache=CacheSettings(folder=str(tmp_path)))
    monkeypatch.setattr(workers_of_shards, "gpu_count", lambda: 1)
    specs = [TOY, replace(TOY, device="cuda:1"), ScorerSpec(encoder="toy"), cached]
    assert [workers_of_shards.shards_at_once(spec) for spec in specs] == [1, 2, 2, 1]


def test_invalid_scorer_stops_all_workers(tmp_path):
    job = ShardJob(str(write_tar(tmp_path / "0.tar")), str(tmp_path / "0.parquet"))
    with pytest.raises(UnknownNameError, match="unknown encoder 'nosuch'"):
        ShardWorker(ScorerSpec(encoder="nosuch"), ShardOptions())(job)
    with pytest.raises(ConfigError, match="workers must be at least 1"):
        next(score_on_workers(TOY, [job], ShardOptions(), workers=0))
    assert default_workers(TOY) >= 1


def test_the_command_scores_shards_into_a_folder(tmp_path):
    pattern, out = write_shards(tmp_path / "in", count=3), tmp_path / "scores"
    command = ["score", pattern, "-o", str(out), "-e", "toy", "--workers", "1", "--json"]
    made = completed(*command)
    answer = json.loads(made.stdout)
    assert (answer["shards"], answer["earlier"], answer["rows"], answer["failed"]) == (3, 0, 15, 0)
    names = ["00000.parquet", "00001.parquet", "00002.parquet", "_run"]
    assert [path.name for path in sorted(out.iterdir())] == names
    assert json.loads(invoke(*command).stdout)["earlier"] == 3
    first, second = str(tmp_path / "in" / "00000.tar"), str(tmp_path / "in" / "gone.tar")
    broken = invoke("score", first, second, "-o", str(out), "-e", "toy", "--workers", "1")
    assert broken.exit_code == 3
    assert "gone.tar: no such file" in broken.stderr
    lines = broken.stderr.splitlines()
    assert f"2 shards (1 of them already finished), 5 rows, 0 failed -> {out}" in lines
    assert lines[lines.index("1 shards could not be scored:") + 1].endswith("gone.tar: no such file")


def test_part_option_and_shared_cache(tmp_path):
    pattern, out = write_shards(tmp_path / "in", count=3), tmp_path / "scores"
    command = ["score", pattern, "-o", str(out), "-e", "toy", "--workers", "1", "--cache", str(tmp_path / "cache")]
    counts = [json.loads(invoke(*command, "--json", "--part", f"{n}/2").stdout) for n in range(2)]
    assert [(answer["shards"], answer["rows"]) for answer in counts] == [(2, 10), (1, 5)]
    assert len(list(out.glob("*.parquet"))) == 3
    again = invoke(*command, "--set", "kappa=30.0", "--overwrite", "--json")
    assert json.loads(again.stdout)["cache"] == {"images": 15, "images_made": 0, "texts": 15, "texts_made": 0}
    assert "15 of 15 images (100.0 %)" in again.stderr


def test_several_files_of_rows_hint_at_a_cache(tmp_path):
    Image.new("RGB", (32, 32), "red").save(tmp_path / "red.png")
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text('{"image": "red.png", "caption": "a red square"}\n')
    files = [str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")]
    command = ["score", *files, "-e", "toy", "--workers", "1", "-o", str(tmp_path / "scores")]
    assert "--cache DIR encodes each image once" in invoke(*command).stderr
    again = invoke(*command, "--cache", str(tmp_path / "cache"), "--overwrite")
    assert "--cache DIR" not in again.stderr
    assert "1 of 2 images (50.0 %)" in again.stderr


def test_a_folder_may_have_a_dot_in_its_name(tmp_path):
    tar, there = write_tar(tmp_path / "0.tar"), tmp_path / "scores.v2"
    there.mkdir()
    for folder in (f"{tmp_path}/scores.v1/", str(there)):
        completed("score", str(tar), "-o", folder, "-e", "toy", "--workers", "1")
        assert pq.read_metadata(f"{folder}/0.parquet").num_rows == 6


def test_the_command_scores_one_tar_into_a_file(tmp_path):
    tar = write_tar(tmp_path / "0.tar")
    completed("score", str(tar), "-o", str(tmp_path / "0.jsonl"), "-e", "toy")
    rows = [json.loads(line) for line in (tmp_path / "0.jsonl").read_text().splitlines()]
    completed("score", str(tar), "-o", str(tmp_path / "out"), "-e", "toy", "--copy-column", "sha256")
    table = pq.read_table(tmp_path / "out" / "0.parquet")
    assert [row["msd"] for row in rows] == table["msd"].to_pylist()
    assert rows[0]["image"] == "000000000.jpg"
    assert rows[0]["sha256"] == table["sha256"][0].as_py()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a.tar", "b.tar"], "shards are scored into a folder; pass one: -o DIR"),
        (["{0..3}.tar", "-o", "out.parquet"], "shards are scored into a folder"),
        (["rows.jsonl", "-o", "out.jsonl", "--workers", "2"], "shards are scored into a folder"),
        (["a.tar", "-o", "out", "--engine", "spark"], "unknown engine 'spark'"),
        (["a.tar", "-o", "out", "--address", "auto"], "--address is for a Ray cluster; add --engine ray"),
        (["a.tar", "-o", "out", "--part", "4/4"], "expected a part from 0/100 to 99/100, got '4/4'"),
        (["a.tar", "-o", "out", "--input-format", "tar"], "--input-format is for files of rows"),
        (["a.jpg", "a dog", "-o", "out"], "unknown kind of output"),
        (["*.tar", "-o", "out"], "no shards found"),
    ],
)
def test_invalid_usage_is_a_one_line_error(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    made = invoke("score", *arguments, "-e", "toy")
    told = made.stderr if made.exception is None or isinstance(made.exception, SystemExit) else str(made.exception)
    assert message in told


KILLED = """
import os, sys
from msdscore.run.shards import ShardOptions
from msdscore.run.workers import plan_jobs, score_on_workers
from msdscore.scoring.spec import ScorerSpec

class Slow(ScorerSpec):
    def build(self):
        import time
        open(os.environ["BEGUN"], "a").write(f"{os.getpid()}\\n")
        time.sleep(5)
        return super().build()

if __name__ == "__main__":
    spec = Slow(encoder="toy", device="cpu")
    list(score_on_workers(spec, plan_jobs([sys.argv[1]], sys.argv[2]), ShardOptions(), workers=2))
"""


@pytest.mark.slow
def test_workers_stop_when_the_command_is_killed(tmp_path):
    pattern, start = write_shards(tmp_path / "in", count=2), tmp_path / "begun"
    (tmp_path / "killed.py").write_text(KILLED)
    command = [sys.executable, str(tmp_path / "killed.py"), pattern, str(tmp_path / "out")]
    with subprocess.Popen(command, env=os.environ | {"BEGUN": str(start)}) as process:
        until = time.monotonic() + 60
        while time.monotonic() < until and (not start.exists() or len(set(start.read_text().split())) < 2):
            time.sleep(0.05)
        process.kill()
    workers = [int(number) for number in set(start.read_text().split())]
    time.sleep(1)
    assert len(workers) == 2
    for worker in workers:
        state = Path(f"/proc/{worker}/stat")
        assert not state.exists() or state.read_text().split()[2] == "Z"
    time.sleep(3)
    assert not contents(tmp_path / "out")


@pytest.mark.parametrize("device", ["/dev/null", "/dev/full"])
def test_a_device_is_not_a_folder(tmp_path, device):
    write_shards(tmp_path, count=1)
    result = invoke("score", str(tmp_path / "00000.tar"), "-o", device, "--encoder", "toy")
    assert f"{device}: unknown kind of output; expected a name ending in" in str(result.exception)


def test_a_run_records_its_totals_and_failures(tmp_path):
    write_tar(tmp_path / "a.tar")
    (tmp_path / "b.tar").write_bytes(b"no tar")
    tar_of(tmp_path / "c.tar", *sample("broken", jpg=b"no image", txt=b"a red square"))
    out = tmp_path / "scores"
    command = ("score", tmp_path / "{a,b,c}.tar", "-o", out, "-e", "toy", "--workers", 1)
    completed(*command, code=3)
    record = json.loads((out / "_run/run.json").read_text())
    assert (record["shards"], record["shards_failed"], record["rows"], record["rows_failed"]) == (3, 1, 7, 1)
    assert record["finished"]
    assert record["rows_per_second"] > 0
    assert record["signature"].startswith("msd|enc:toy")
    assert record["options"]["worst"] == 3
    failures = pq.read_table(out / "_run/failures.parquet").to_pylist()
    assert [(Path(row["file"]).name, row["key"]) for row in failures] == [("b.tar", None), ("c.tar", "broken")]
    assert all(row["error"] for row in failures)
    assert pq.ParquetDataset(out).read().num_rows == 7  # the record is not read as scores
    completed(*command, "--part", "1/3", code=3)
    assert json.loads((out / "_run/run-1-of-3.json").read_text())["shards"] == 1


def test_the_record_of_a_folder_survives_kills_and_refused_calls(tmp_path):
    pattern, out = write_shards(tmp_path / "in", count=3, rows=40), tmp_path / "scores"
    run = ("score", pattern, "-o", out, "-e", "toy", "--workers", "1")
    command = [sys.executable, "-m", "msdscore", *map(str, run)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        until = time.monotonic() + 60
        while time.monotonic() < until and not (out / "_run/run.json").exists():
            time.sleep(0.001)
        process.kill()
    record = json.loads((out / "_run/run.json").read_text())
    assert record["shards"] == 3
    assert 1 <= record["shards_done"] <= 3
    assert msdscore(*run).returncode == 0
    whole = (out / "_run/run.json").read_bytes()
    assert {"shards": 3, "shards_done": 3, "rows": 120, "finished": True}.items() <= json.loads(whole).items()
    times = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert msdscore(*run).returncode == 0  # writes nothing: the folder may be read-only
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == times
    refused = msdscore(*run, "--set", "kappa=30")
    assert refused.returncode == 2
    assert "scores: belongs to a run with another signature (kappa:20, now kappa:30)" in refused.stderr
    assert (out / "_run/run.json").read_bytes() == whole
    os.utime(tmp_path / "in/00001.tar", (0, 0))  # refused alone
    assert msdscore(*run).returncode == 3
    after = json.loads((out / "_run/run.json").read_text())
    assert (after["shards_failed"], after["rows"]) == (0, 120)
    (tmp_path / "in/00003.tar").write_bytes(b"no tar")
    assert msdscore("score", tmp_path / "in/00003.tar", *run[2:]).returncode == 3
    after = json.loads((out / "_run/run.json").read_text())
    assert (after["shards"], after["shards_failed"], after["rows"]) == (4, 1, 120)


def test_select_names_shards_without_scores(tmp_path):
    pattern, out = write_shards(tmp_path / "in", count=4), tmp_path / "scores"
    (tmp_path / "in/00003.tar").write_bytes(b"no tar")
    assert msdscore("score", pattern, "-o", out, "-e", "toy", "--workers", "1").returncode == 3
    (out / "00001.parquet").unlink()
    rule = ("-o", tmp_path / "kept.parquet", "--keep", "5")
    answer = msdscore("select", out, *rule)
    assert "2 shards of these folders have no scores" in answer.stderr
    assert "no scores of" in answer.stderr and "00001.tar: not scored" in answer.stderr  # noqa: PT018
    assert "00003.tar: " in answer.stderr
    answer = msdscore("select", out, *rule, "--json")
    assert [Path(line.partition(": ")[0]).name for line in json.loads(answer.stdout)["missing"]] == [
        "00001.tar", "00003.tar",
    ]  # fmt: skip


@pytest.mark.parametrize("change", ["settings", "version"])
def test_a_folder_never_mixes_versions_or_settings(tmp_path, monkeypatch, change):
    pattern, out = write_shards(tmp_path / "in", count=3), tmp_path / "scores"
    (tmp_path / "in/00002.tar").rename(tmp_path / "later")
    jobs = plan_jobs([str(tmp_path / "in/*.tar")], str(out))
    list(score_on_workers(TOY, jobs, ShardOptions(), workers=1))
    (tmp_path / "later").rename(tmp_path / "in/00002.tar")
    if change == "version":
        for module in ("spec", "pipeline"):
            monkeypatch.setattr(f"msdscore.scoring.{module}.__version__", "9.9.9")
        spec, message = TOY, f"another signature .*v:{__version__}, now v:9.9.9"
    else:
        spec, message = replace(TOY, changes={"kappa": 30.0}), r"another signature \(kappa:20, now kappa:30\)"
    with pytest.raises(RunError, match=message):
        list(score_on_workers(spec, plan_jobs([pattern], str(out)), ShardOptions(), workers=1))
    assert not (out / "00002.parquet").exists()
    list(score_on_workers(spec, plan_jobs([pattern], str(out)), ShardOptions(overwrite=True), workers=1))
    assert len({read_facts(str(path)).signature for path in out.glob("*.parquet")}) == 1


def test_a_folder_of_shards_is_not_its_own_output(tmp_path):
    write_shards(tmp_path, count=1)
    result = invoke("score", str(tmp_path), "-o", str(tmp_path), "-e", "toy")
    assert "is the folder of the shards" in str(result.exception)


def test_an_error_of_all_shards_is_one_line(tmp_path):
    for number in range(7):
        pq.write_table(pa.table({"image": ["x"], "words": ["y"]}), tmp_path / f"{number}.parquet")
    command = ("score", tmp_path / "{0..6}.parquet", "-o", tmp_path / "scores", "-e", "toy", "--workers", 1)
    lines = completed(*command, code=3).stderr.splitlines()
    (line,) = (line for line in lines if "no caption column" in line)
    assert "0.parquet and 6 more: no caption column" in line


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    source = write_tar(tmp_path / "00000.tar")
    (tmp_path / "scores").mkdir()
    (tmp_path / "scores" / "_run").write_text("a file")
    with pytest.raises(RunError, match=r"_run/manifest\.json: cannot be written"):
        list(score_jobs(TOY, plan_jobs([str(source)], str(tmp_path / "scores")), ShardOptions()))
