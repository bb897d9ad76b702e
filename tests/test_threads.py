"""Number of threads from affinity, quotas and options; idle threads that wait passively."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from command_line import invoke
from msdscore import ConfigError, Scorer, ScorerSpec, threads


@pytest.fixture(autouse=True)
def same_threads():
    with threads.restored():
        yield


def write(folder, files):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return list(threads.quotas(folder))


def test_quotas_of_a_group_and_its_parents(tmp_path):
    group = "sys/fs/cgroup/jobs/one"
    files = {
        "proc/self/cgroup": "0::/jobs/one\n",
        f"{group}/cpu.max": "150000 100000\n",
        "sys/fs/cgroup/jobs/cpu.max": "max 100000\n",
        "sys/fs/cgroup/cpu.max": "400000 100000\n",
    }
    assert write(tmp_path, files) == [1.5, 4.0]


def test_quota_of_the_first_version_of_cgroups(tmp_path):
    group = "sys/fs/cgroup/cpu,cpuacct"
    files = {
        "proc/self/cgroup": "5:memory:/docker/1\n4:cpu,cpuacct:/docker/1\n",  # the path of the host, not visible here
        f"{group}/cpu.cfs_quota_us": "250000\n",
        f"{group}/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/memory/cpu.cfs_quota_us": "100\n",
        "sys/fs/cgroup/memory/cpu.cfs_period_us": "100\n",
    }
    assert write(tmp_path, files) == [2.5]
    assert write(tmp_path, {f"{group}/cpu.cfs_quota_us": "-1\n"}) == []


@pytest.mark.parametrize("content", ["", "max\n", "many 100000\n", "100000 0\n"])
def test_unreadable_quota_is_ignored(tmp_path, content):
    assert write(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": content}) == []


@pytest.mark.parametrize(("quota", "expected"), [("max", 8), ("250000", 3), ("10000", 1), ("6400000", 8)])
def test_available_cores_are_limited_by_affinity_and_quota(monkeypatch, tmp_path, quota, expected):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    write(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": f"{quota} 100000\n"})
    assert threads.available(tmp_path) == expected


@pytest.mark.parametrize(("given", "expected"), [("5,2", 5), ("", threads.available()), ("many", threads.available())])
def test_number_of_threads_is_that_of_openmp_or_of_the_cores(given, expected):
    code = "from msdscore import threads; print(threads.count()); threads.use(2); print(threads.count())"
    environment = {**os.environ, "OMP_NUM_THREADS": given}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(expected), "2"]


def test_torch_is_limited_to_the_quota_but_never_raised(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for before, after in ((threads.available() + 2, threads.available()), (1, 1)):
        torch.set_num_threads(before)
        Scorer("toy")
        assert torch.get_num_threads() == after


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "2", True])
def test_invalid_number_is_rejected(wrong):
    with pytest.raises(ConfigError, match=repr(wrong)):
        Scorer("toy", threads=wrong)


def test_number_of_threads_is_set_by_scorer_spec_and_command(tmp_path):
    for number, build in ((3, Scorer), (1, lambda name, threads: ScorerSpec(encoder=name, threads=threads).build())):
        build("toy", threads=number)
        assert torch.get_num_threads() == number
    Scorer(Scorer("toy").encoder, threads=2)
    assert torch.get_num_threads() == 2
    assert invoke("doctor", "-e", "toy", "--threads", "3").exit_code == 0
    assert torch.get_num_threads() == 3


def test_number_of_threads_does_not_identify_a_scorer():
    spec = ScorerSpec(encoder="mini")
    other = replace(spec, threads=1)
    assert (spec, spec.record()) == (other, other.record())


COMMAND = (
    "import sys; sys.argv = ['msdscore', '--version']\nimport runpy\ntry:\n"
    "  runpy.run_module('msdscore', run_name='__main__')\nexcept SystemExit: pass"
)


@pytest.mark.parametrize(
    ("code", "name", "before", "after"),
    [
        ("import msdscore", "OMP_WAIT_POLICY", None, "None"),
        ("from msdscore import Scorer", "OMP_WAIT_POLICY", None, "PASSIVE"),
        ("from msdscore import Scorer", "OMP_WAIT_POLICY", "ACTIVE", "ACTIVE"),
        (COMMAND, "OMP_WAIT_POLICY", None, "PASSIVE"),
        ("from msdscore import Scorer", "OPENBLAS_NUM_THREADS", None, "None"),  # of the user's own products
        (COMMAND, "OPENBLAS_NUM_THREADS", None, "1"),
        (COMMAND, "OPENBLAS_NUM_THREADS", "3", "3"),
    ],
)
def test_variables_of_thread_libraries_are_set_unless_set_otherwise(code, name, before, after):
    environment = {key: value for key, value in os.environ.items() if key != name}
    environment |= {} if before is None else {name: before}
    script = f"{code}\nimport os\nprint(os.environ.get({name!r}))"
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == after


def test_one_blas_thread_is_set_before_numpy_is_imported():
    code = "import sys, msdscore.__main__; print('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
