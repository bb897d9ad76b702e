"""Shards on a local Ray cluster, with a killed actor."""

import logging
import os
import signal
import sys
import warnings
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from threading import Event, Thread

import pyarrow as pa
import pytest
import torch

from msdscore.encoders.cached import CacheSettings, CacheUse
from msdscore.errors import ConfigError
from msdscore.run.shards import ShardOptions
from msdscore.run.workers import plan_jobs, score_jobs
from msdscore.scoring.spec import ScorerSpec
from ray_cluster import local_cluster
from tar_shards import write_tar

ray = pytest.importorskip("ray", reason="Ray is not installed (pip install 'msdscore[ray]')")
psutil = pytest.importorskip("psutil")
cloudpickle = pytest.importorskip("ray.cloudpickle")

from ray.util.annotations import RayDeprecationWarning  # noqa: E402

from msdscore.run import ray_data  # noqa: E402
from msdscore.run.ray_data import RayOptions, ShardActor, result_of, score_on_ray  # noqa: E402

# Warnings of Ray about its settings.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
]
TOY = ScorerSpec(encoder="toy", device="cpu")
SIZES = (
    5,
    400,
    400,
    400,
    400,
    400,
    5,
)  # the first finishes early, and most others are unfinished when an actor is killed


@pytest.fixture(scope="module")
def cluster():
    """Start one cluster for all tests."""
    with local_cluster():
        yield


@pytest.fixture(autouse=True)
def threads():
    """Restore the number of threads, which in-process actors change and which affects the last digits."""
    before = torch.get_num_threads()
    yield
    if torch.get_num_threads() != before:
        torch.set_num_threads(before)


def actors():
    """Return the processes of the actors that score shards."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if "ShardActor" in " ".join(process.cmdline()) and process.uids().real == os.getuid():
                found.append(process.pid)
    return found


def sent_by(actor, batch):
    """Return the one result that an actor sends for a batch of one job."""
    (row,) = actor(batch).to_pylist()
    return result_of(row["result"])


def kill_one(folder, before, there, ended):
    """Kill an actor as soon as a shard is finished; append the number of finished shards to `there`."""
    while not ended.wait(0.02):
        new = [pid for pid in actors() if pid not in before]
        if new and (done := len(list(folder.glob("*.parquet")))):
            os.kill(new[0], signal.SIGKILL)
            there.append(done)
            return


def test_identical_bytes_as_one_process_after_a_killed_actor(cluster, tmp_path):
    for number, rows in enumerate(SIZES):
        write_tar(tmp_path / "in" / f"{number:05d}.tar", rows, first=number * 1000)
    pattern = f"{tmp_path}/in/{{00000..{len(SIZES):05d}}}.tar"
    alone, several = plan_jobs([pattern], f"{tmp_path}/alone"), plan_jobs([pattern], f"{tmp_path}/several")
    list(score_jobs(TOY, alone, ShardOptions()))
    there = []
    # Results arrive late and in groups, so the killer watches the files.
    ended = Event()
    killer = Thread(target=kill_one, args=(tmp_path / "several", actors(), there, ended))
    killer.start()
    try:
        found = list(score_on_ray(TOY, several, ShardOptions(), RayOptions(least=2, most=2, cpus=0.5)))
    finally:
        ended.set()
        killer.join()
    assert there, "no actor was killed"
    assert there[0] < len(SIZES) - 1, "the actor must be killed during the run"
    assert sorted(result.output for result in found) == [job.output for job in several]
    (gone,) = [result for result in found if result.error]
    assert gone.error.endswith(f"{len(SIZES):05d}.tar: no such file")
    assert sum(result.rows for result in found) == sum(SIZES)
    files = [
        {path.name: path.read_bytes() for path in Path(tmp_path, name).glob("*.parquet")}
        for name in ("alone", "several")
    ]
    assert files[0] == files[1]
    assert len(files[0]) == len(SIZES)


class Deadly(ScorerSpec):
    """A scorer that exits every process that builds it."""

    def build(self, bank=None):
        signal.raise_signal(signal.SIGKILL)


def test_shard_that_kills_every_actor_does_not_affect_others(cluster, tmp_path):
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # actors cannot import the tests
    for number in range(2):
        write_tar(tmp_path / f"{number}.tar", 5)
    jobs = plan_jobs([f"{tmp_path}/{{0..1}}.tar"], f"{tmp_path}/out")
    list(score_jobs(TOY, jobs[:1], ShardOptions()))  # a finished shard does not need the scorer
    with warnings.catch_warnings():
        warnings.simplefilter("error", RayDeprecationWarning)
        found = list(score_on_ray(Deadly(encoder="toy", device="cpu"), jobs, ShardOptions(), RayOptions(tries=0)))
    errors = {result.output: result.error for result in found}
    assert errors[jobs[0].output] is None
    assert "1.tar: was lost every time that it was tried" in errors[jobs[1].output]
    assert len(found) == 2


def test_results_have_the_use_of_the_cache(cluster, tmp_path):
    jobs = plan_jobs([str(write_tar(tmp_path / "0.tar"))], str(tmp_path / "out"))
    cached = replace(TOY, cache=CacheSettings(folder=str(tmp_path / "cache")))
    (first,) = score_on_ray(cached, jobs, ShardOptions(), RayOptions(cpus=0.5))
    (again,) = score_on_ray(cached, jobs, ShardOptions(overwrite=True), RayOptions(cpus=0.5))
    assert (first.cache, again.cache) == (CacheUse(6, 6, 6, 6), CacheUse(6, 0, 6, 0))


def test_actor_reports_errors_of_scorer_and_shard(tmp_path):
    import pyarrow as pa

    (job,) = plan_jobs([str(write_tar(tmp_path / "0.tar"))], str(tmp_path))
    batch = pa.table({"source": [job.source], "output": [job.output]})
    with pytest.raises(ConfigError, match="unknown encoder 'nosuch'"):
        sent_by(ShardActor(ScorerSpec(encoder="nosuch"), ShardOptions()), batch)
    result = sent_by(ShardActor(TOY, "no options"), batch)
    assert result.rows == 0
    assert "AttributeError" in result.error
    assert list(score_on_ray(TOY, [], ShardOptions())) == []


def test_missing_cluster_is_reported_immediately(monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("Ray would retry for minutes"))
    for address in ("127.0.0.1:1", "ray://127.0.0.1:1"):
        with pytest.raises(ConfigError, match=rf"at {address} \(.*refused"):
            list(score_on_ray(TOY, [], ShardOptions(), RayOptions(address=address)))


@pytest.mark.parametrize(
    ("spec", "requested", "message"),
    [
        (TOY, RayOptions(cpus=64), "64 cores and 0 GPUs, .* 2 and 0"),
        (ScorerSpec(encoder="toy", device="cuda"), RayOptions(), "1 cores and 1 GPUs, .* 2 and 0"),
    ],
)
def test_actors_that_exceed_the_machine_are_rejected(monkeypatch, spec, requested, message):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for name, value in {
        "is_initialized": False,
        "init": None,
        "shutdown": None,
        "cluster_resources": {"CPU": 2},
    }.items():
        monkeypatch.setattr(ray, name, lambda value=value, **_: value)
    with pytest.raises(ConfigError, match=message):
        list(score_on_ray(spec, [], ShardOptions(), requested))


def test_relative_paths_are_resolved_by_the_driver(tmp_path, monkeypatch):
    (tmp_path / "driver").mkdir()
    (tmp_path / "cluster").mkdir()
    write_tar(tmp_path / "driver" / "in" / "00000.tar", rows=2)
    monkeypatch.chdir(tmp_path / "driver")
    jobs = plan_jobs(["in/00000.tar"], "scores")
    monkeypatch.chdir(tmp_path / "cluster")
    actor = ShardActor(TOY, ShardOptions(), folder=str(tmp_path / "driver"))
    batch = pa.Table.from_pylist([asdict(job) for job in jobs])
    assert sent_by(actor, batch).error is None
    assert (tmp_path / "driver" / "scores" / "00000.parquet").exists()
    assert not list((tmp_path / "cluster").iterdir())
    lost = ShardActor(TOY, ShardOptions(), folder=str(tmp_path / "elsewhere"))
    with pytest.raises(ConfigError, match="a path relative to"):
        sent_by(lost, batch)


@pytest.mark.parametrize(
    ("reason", "message"),
    [("UNAUTHENTICATED: Invalid token", "asks for a token"), ("Connection refused", "no Ray cluster at auto")],
)
def test_missing_token_is_reported_without_the_logs_of_ray(monkeypatch, capfd, reason, message):
    def refuse(**_):
        os.write(2, b"a page of native logs")
        raise RuntimeError(reason)

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(ConfigError, match=f"{message}.*RAY_AUTH_TOKEN"):
        list(score_on_ray(TOY, [], ShardOptions(), RayOptions(address="auto")))
    os.write(2, b"our line")
    assert capfd.readouterr().err == "our line"


def test_tracebacks_of_lost_actors_are_not_logged(caplog):
    data = pytest.importorskip("ray.data")
    with ray_data.quiet_context(data):
        logging.getLogger("ray.data").error("a traceback of 70 lines")
    assert not caplog.records
