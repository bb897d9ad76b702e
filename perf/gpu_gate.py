"""The gate of GPU speed: throughput as shares of the encoder's peak, against stored limits; exit status 1 below one.

python perf/gpu_gate.py --json gate.json                  all sections, under three minutes on an H200
python perf/gpu_gate.py --sections eager --cores 16       some of them; --images 4096 for less precise figures
python perf/gpu_gate.py --device cpu --images 96          tries the program itself, without limits
git worktree add build/before COMMIT; PYTHONPATH=build/before/src:build/before/backbones/src python perf/gpu_gate.py
                                                          the figures of another version, with the same program

CLIP ViT-L/14 in bfloat16 with random weights, JPEG files of 640 x 480 pixels, captions of 8 to 14 words. Rates are
pairs per second between a fifth and 95 % of a run, without its start and end; `peak` is that of both towers on pixels
that are already on the GPU, before and after the other measurements. `full` decodes images on the CPU, `device` on the
GPU. Each rate has the milliseconds per batch in which the launching thread had no work (`idle`), waited for the GPU
(`wait`) and launched (`launch`, of which `cpu` is its CPU time: the rest was lost to other threads), and the CPU time
of this process per pair in microseconds (`own_us`), then that of its busiest threads that still run. Sections: eager,
compiled, mini; others (decoding alone, one file to Parquet, torchmetrics), kernels (GPU time of a run by kernel),
variants (of launching), and encoder (candidates, for at most `--budget` seconds). `--only files_device tars` measures
the runs whose names contain one of these; a section ends after `--limit` seconds.
"""

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext, suppress
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as commands do before they import torch
import torch
from encoder_candidates import OutOfTimeError, limited
from runs import (
    Cosine,
    Pooled,
    cores_rate,
    decoders_rate,
    load,
    optional,
    peak,
    prepare,
    run_file,
    run_shards,
    seconds,
    stream,
    threads_rate,
    torchmetrics_rate,
)
from synthetic_clip import make_captions, make_lists, make_tars

from msdscore.errors import ConfigError
from msdscore.scoring.pipeline import Pipeline
from msdscore_torch.feeding import processes
from msdscore_torch.gpu.launching import Launcher, is_launching, launcher, without_cudnn_attention

SECTIONS = ("mini", "eager", "compiled", "kernels", "others", "variants", "encoder")
ALL_CORES = sorted(os.sched_getaffinity(0))
SHARD_ROWS = 2048
FEW = 4  # cores of a machine with many GPUs
# Lower limits: percent of the peak for `share_`, pairs per second for `rate_`; upper ones: milliseconds for `ms_`.
LIMITS = {
    "share_files_full_16": 87.0, "share_files_device_16": 87.0, "share_files_device_4": 87.0,
    "share_tars_full_16": 84.0, "share_tars_device_16": 84.0, "share_tars_device_4": 84.0, "share_lists_full_16": 84.0,
    "rate_compiled_files_16": 2500.0, "rate_compiled_tars_16": 2450.0,
    "rate_mini_stream": 2000.0, "rate_mini_batch": 1500.0, "ms_mini_64": 21.0, "ms_mini_1": 16.0,
}  # fmt: skip
PARTS_OF_LIMITS = {"eager": "share_", "compiled": "rate_compiled", "mini": "mini"}


class Results:
    """Figures by name; printed and stored as they come."""

    def __init__(self, path: Path | None) -> None:
        self.values: dict[str, Any] = {}
        self._path, self._start = path, time.perf_counter()

    def __call__(self, name: str, value: Any, note: str = "") -> None:
        self.values[name] = value
        shown = value if isinstance(value, str) else f"{value:10.2f}"
        print(f"{time.perf_counter() - self._start:6.1f} s  {name:<30} {shown}  {note}", flush=True)
        if self._path:
            self._path.write_text(json.dumps(self.values, indent=1), encoding="utf-8")


class Meter:
    """What one run does: when captions are scored, and on what the launching thread spends its time."""

    def __init__(self) -> None:
        self._times: list[tuple[float, int]] = []
        self._spent: dict[str, float] = dict.fromkeys(("idle", "wait", "launch", "cpu"), 0.0)
        self._batches, self._last = 0, time.perf_counter()

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Context in which runs are measured."""
        score = Pipeline.completed

        def scored(*args: Any, **keywords: Any) -> Any:
            rows = score(*args, **keywords)
            self._times.append((time.perf_counter(), len(rows)))
            return rows

        with patch.object(Pipeline, "completed", scored), self._launches():
            start, self._own, before = time.perf_counter(), time.process_time(), thread_times()
            yield
            self._own = time.process_time() - self._own
            self.seconds = time.perf_counter() - start
            after = thread_times()
            self._threads = {name: spent - before.get(name, 0.0) for name, spent in after.items()}

    @contextmanager
    def _launches(self) -> Iterator[None]:
        launch = Launcher._launch

        def timed(thread: Any, *arguments: Any) -> Any:
            start = time.perf_counter()
            while len(thread._pending) >= thread.in_flight:
                thread._pending.popleft()()
            ready, cpu = time.perf_counter(), time.thread_time()
            try:
                return launch(thread, *arguments)
            finally:
                end = time.perf_counter()
                spent = start - self._last, ready - start, end - ready, time.thread_time() - cpu
                self._spent = {name: self._spent[name] + part for name, part in zip(self._spent, spent, strict=True)}
                self._batches, self._last = self._batches + 1, end

        with patch.object(Launcher, "_launch", timed):
            yield

    def rate(self) -> float:
        """Pairs per second between a fifth and 95 % of the run."""
        total, done = sum(rows for _, rows in self._times), 0
        inside = []
        for moment, rows in sorted(self._times):
            done += rows
            if 0.2 * total <= done <= 0.95 * total:
                inside.append((moment, done))
        if len(inside) < 4:  # too few batches
            return total / self.seconds
        (first, before), (last, after) = inside[0], inside[-1]
        return (after - before) / (last - first)

    def note(self) -> str:
        """The whole run, and the time of the launching thread per batch."""
        total = sum(rows for _, rows in self._times)
        parts = [f"whole {total / self.seconds:.0f}/s", f"own_us {1e6 * self._own / total:.0f}"]
        if self._batches:
            parts += [f"{name} {1e3 * spent / self._batches:.1f}" for name, spent in self._spent.items()]
        busiest = sorted(self._threads.items(), key=lambda part: -part[1])[:4]
        parts += [f"{name} {1e6 * spent / total:.0f} us" for name, spent in busiest]
        return ", ".join(parts)


def thread_times() -> dict[str, float]:
    """CPU seconds of the running threads of this process, by the first part of their names."""
    names, times = {thread.native_id: thread.name for thread in threading.enumerate()}, dict[str, float]()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            name = names.get(int(task.name), "without Python").split("_")[0].rstrip("0123456789-")
            times[name] = times.get(name, 0.0) + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return times


class Gate:
    """One machine, its files and encoders, and the figures so far."""

    def __init__(self, folder: Path, device: str, count: int, results: Results) -> None:
        self.folder, self.device, self.results = folder, device, results
        self.size = 256 if device == "cuda" else 16
        self.paths, captions = prepare(folder, device, count, results, tars=False)
        rows = SHARD_ROWS if device == "cuda" else 32
        make_tars(folder, self.paths, captions, rows)
        make_lists(folder, self.paths, captions, rows)
        self._seed, self.budget = 0, 0.0
        self.only: tuple[str, ...] = ()
        self._encoders: dict[str, Any] = {}

    def wanted(self, *names: str) -> bool:
        """Whether any of the runs with these names is to be measured."""
        return not self.only or any(part in name for part in self.only for name in names)

    def pipelines(self, backend: str = "") -> dict[str, Pipeline]:
        """Pipelines that decode on the CPU and on the GPU, with one model."""
        if backend not in self._encoders:
            start = time.perf_counter()
            self._encoders[backend] = load(self.folder, self.device, **({"compile": backend} if backend else {}))
            self.results("seconds_load", time.perf_counter() - start)
        encoder = self._encoders[backend]
        on_device = copy(encoder)
        on_device.preprocessing = replace(encoder.preprocessing, jpeg_on_device=True)
        made = {"full": Pipeline(encoder, batch_size=self.size), "device": Pipeline(on_device, batch_size=self.size)}
        return made if has_nvjpeg(self.device) else {"full": made["full"]}

    def peak(self, pipeline: Pipeline, name: str) -> float:
        """Measure the peak of the encoder of a pipeline."""
        with without_cudnn_attention():
            value = peak(pipeline.encoder, self.size, self.device, 12 if self.device == "cuda" else 1)
        self.results(name, value)
        return value

    def files(self, pipeline: Pipeline, name: str, count: int | None = None) -> float | None:
        """Measure a stream of files."""
        if not self.wanted(name):
            return None
        self._seed += 1
        paths = self.paths[:count]
        return self.run(name, lambda: stream(pipeline, paths, make_captions(len(paths), seed=self._seed)))

    def shards(self, pipeline: Pipeline, name: str, pattern: str) -> float | None:
        """Measure shards to Parquet; nothing without pyarrow."""
        if not self.wanted(name):
            return None
        with optional(self.results, name):
            work = partial(run_shards, pipeline, self.folder, self.folder / "scores", pattern=pattern)
            return self.run(name, work)
        return None

    def run(self, name: str, work: Callable[[], object]) -> float:
        """Measure one run."""
        meter = Meter()
        with meter.attached():
            work()
        self.results(name, meter.rate(), meter.note())
        return meter.rate()

    def warm_up(self, pipeline: Pipeline) -> float:
        """Start decoding processes and compile kernels; return the seconds until the first batches are scored."""
        part = self.paths[: 4 * self.size]
        self._seed += 1
        return seconds(lambda: stream(pipeline, part, make_captions(len(part), seed=self._seed)), self.device)


def has_nvjpeg(device: str) -> bool:
    """Whether JPEG files can be decoded on the device."""
    from msdscore_torch.vision.nvjpeg import library

    try:
        return device == "cuda" and library() is not None
    except ConfigError as error:
        print(error)
        return False


def use_cores(count: int) -> None:
    """Bind this process and its children to that many cores; decoding processes are started anew if that changes."""
    chosen = set(ALL_CORES[:count])
    if chosen == os.sched_getaffinity(0):
        return
    processes.close_all()
    torch.set_num_threads(count)
    tasks = [int(task.name) for task in Path("/proc/self/task").iterdir()]
    with suppress(OSError):  # not every kernel lists children
        for task in tuple(tasks):
            tasks += map(int, Path(f"/proc/self/task/{task}/children").read_text().split())
    for task in tasks:
        with suppress(ProcessLookupError):
            os.sched_setaffinity(task, chosen)


def decoding(pipelines: dict[str, Pipeline], number: int) -> dict[str, Pipeline]:
    """The pipelines to measure with that many cores: few decode on the GPU only."""
    return {name: one for name, one in pipelines.items() if number > FEW or name == "device" or len(pipelines) == 1}


def eager(gate: Gate, numbers: list[int]) -> None:
    """Shares of the eager encoder's peak: files, tars and lists, many and few cores, MSD and cosine."""
    pipelines = gate.pipelines()
    for name, pipeline in pipelines.items():
        if gate.wanted(f"files_{name}", f"tars_{name}"):
            gate.results(f"seconds_first_{name}", gate.warm_up(pipeline))
    peaks, rates = [gate.peak(pipelines["full"], "peak_before")], dict[str, float | None]()
    for number in numbers:
        use_cores(number)
        for name, pipeline in decoding(pipelines, number).items():
            if not gate.wanted(f"files_{name}_{number}", f"tars_{name}_{number}"):
                continue
            gate.warm_up(pipeline)
            rates[f"files_{name}_{number}"] = gate.files(pipeline, f"files_{name}_{number}")
            rates[f"tars_{name}_{number}"] = gate.shards(pipeline, f"tars_{name}_{number}", "*.tar")
        if number > FEW and gate.wanted(f"lists_full_{number}"):
            rates[f"lists_full_{number}"] = gate.shards(pipelines["full"], f"lists_full_{number}", "list-*.jsonl")
    kind, pipeline = list(pipelines.items())[-1]
    if gate.wanted("cosine"):
        cosine = Cosine(Pooled(pipeline.encoder), batch_size=gate.size)
        gate.warm_up(cosine)
        plain, msd = gate.files(cosine, f"cosine_{kind}"), gate.files(pipeline, f"cosine_msd_{kind}")
        if plain and msd:
            gate.results("percent_msd_over_cosine", 100 * (plain / msd - 1))
    peaks.append(gate.peak(pipelines["full"], "peak_after"))
    top = statistics.mean(peaks)
    for name, rate in rates.items():
        if rate:
            gate.results(f"share_{name}", 100 * rate / top)


def compiled(gate: Gate, numbers: list[int]) -> None:
    """Pairs per second of the compiled encoder, in batches of 256, or of 512 if images are decoded on the GPU."""
    backend = "inductor" if gate.device == "cuda" else "eager"
    pipelines = gate.pipelines(backend)
    if "device" in pipelines:  # where cores do not limit it, larger batches cost the host less
        pipelines["device"] = Pipeline(pipelines["device"].encoder, batch_size=2 * gate.size)
    for name, pipeline in pipelines.items():
        gate.results(f"seconds_first_compiled_{name}", gate.warm_up(pipeline))
    gate.peak(pipelines["full"], "peak_compiled")
    for number in numbers:
        best: dict[str, list[float]] = {"files": [], "tars": []}
        use_cores(number)
        for name, pipeline in decoding(pipelines, number).items():
            gate.warm_up(pipeline)
            if files := gate.files(pipeline, f"compiled_files_{name}_{number}"):
                best["files"].append(files)
            if tars := gate.shards(pipeline, f"compiled_tars_{name}_{number}", "*.tar"):
                best["tars"].append(tars)
        for kind, rates in best.items():
            if rates:
                gate.results(f"rate_compiled_{kind}_{number}", max(rates))
    gate.peak(pipelines["full"], "peak_compiled_after")


def mini(gate: Gate, numbers: list[int]) -> None:
    """Latency and throughput of `mini`, with random weights if its own are not here."""
    from mini_on_gpu import SMALL, latency
    from random_mini import add_random_mini

    add_random_mini(gate.folder / "weights")
    from msdscore import Scorer

    use_cores(numbers[0])
    paths, count = gate.paths, min(SMALL, len(gate.paths))
    captions = make_captions(len(paths), seed=99)
    with optional(gate.results, "mini"):
        scorer = Scorer("mini", device=gate.device)
        for turn in ("first", "batch"):
            spent = seconds(lambda: scorer.score_batch(paths[:count], captions[:count]), gate.device)
            gate.results(f"rate_mini_{turn}", count / spent)
        rows = list(zip(paths, make_captions(len(paths), seed=98), strict=True))
        rate = gate.run("mini_stream", lambda: sum(score.error is None for score in scorer.stream(rows)))
        gate.results("rate_mini_stream", rate)
        for number in (1, 64):
            value = latency(scorer, paths, captions, number, 20 if gate.device == "cuda" else 1)
            gate.results(f"ms_mini_{number}", value)


def kernels(gate: Gate, numbers: list[int]) -> None:
    """GPU time by kernel of runs over files, eager and compiled: milliseconds and launches per batch."""
    from torch.profiler import ProfilerActivity, profile

    use_cores(numbers[0])
    activity = ProfilerActivity.CUDA if gate.device == "cuda" else ProfilerActivity.CPU
    for backend in ("inductor", "") if gate.device == "cuda" else ("",):
        for kind, pipeline in gate.pipelines(backend).items():
            name = f"kernels_{kind}_{backend or 'eager'}"
            if not gate.wanted(name):
                continue
            gate.warm_up(pipeline)
            paths = gate.paths[: 12 * gate.size]
            with profile(activities=[activity]) as recorded:
                stream(pipeline, paths, make_captions(len(paths), seed=96))
            spans: dict[str, list[float]] = {}
            times = []
            for event in recorded.profiler.kineto_results.events():
                if gate.device == "cpu" or "CUDA" in str(event.device_type()):
                    start, length = event.start_ns() / 1e6, event.duration_ns() / 1e6
                    spans.setdefault(event.name()[:110], []).append(length)
                    times.append((start, start + length))
            batches = -(-len(paths) // gate.size)
            busy, whole = union(times)
            note = f"of {whole / batches:.1f} ms, idle {100 * (1 - busy / whole):.1f} %"
            gate.results(f"ms_{name}", busy / batches, note)
            for kernel, lengths in sorted(spans.items(), key=lambda part: -sum(part[1]))[:32]:
                shown = f"{sum(lengths) / batches:8.3f} ms {len(lengths) / batches:6.1f} x"
                print(f"    {shown}  {kernel}", flush=True)


def union(times: list[tuple[float, float]]) -> tuple[float, float]:
    """Length of the union of intervals, and from the first start to the last end."""
    total, reached = 0.0, -math.inf
    for start, end in sorted(times):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total, reached - min(start for start, _ in times)


def others(gate: Gate, numbers: list[int]) -> None:
    """Decoding without an encoder, one file of rows, and CLIPScore of torchmetrics."""
    pipeline, results = gate.pipelines()["full"], gate.results
    if gate.device == "cpu":
        pipeline = Pipeline(pipeline.encoder, batch_size=gate.size, decoders=2)
    results("decode_cores", cores_rate(gate.paths, pipeline.encoder.preprocessing))
    rate, start = decoders_rate(pipeline, gate.paths)
    results("decode_processes", rate)
    results("seconds_decoders_start", start)
    results("decode_threads", threads_rate(pipeline, gate.paths[:2048]))
    gate.warm_up(pipeline)
    with optional(results, "file_to_parquet"):
        gate.run("file_to_parquet", partial(run_file, pipeline, gate.folder, gate.folder / "scores.parquet"))
    with optional(results, "torchmetrics"):
        captions = make_captions(512, seed=97)[: len(gate.paths)]
        results(
            "torchmetrics", torchmetrics_rate(gate.folder / "clip", gate.paths[: len(captions)], captions, gate.device)
        )


# Ways of launching, tried with decoding on the CPU.
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "three_in_flight": {"in_flight": 3},
    "numbers_in_launching_thread": {"finishes": True},
    "switch_interval_half_ms": {"interval": 5e-4},
    "switch_interval_50_us": {"interval": 5e-5},
    "batch_512": {"batch": 512},
    "plain_again": {},
}


def variants(gate: Gate, numbers: list[int]) -> None:
    """Throughput with other ways of launching."""
    pipeline = gate.pipelines()["full"]
    use_cores(numbers[0])
    gate.peak(pipeline, "peak_variants")
    for name, settings in VARIANTS.items():
        chosen = Pipeline(pipeline.encoder, batch_size=settings.get("batch", gate.size))
        with launching(**settings):
            gate.warm_up(chosen)
            gate.files(chosen, f"variant_{name}", 6144)


@contextmanager
def launching(*, in_flight: int = 2, finishes: bool = False, interval: float = 5e-3, batch: int = 0) -> Iterator[None]:
    """Context with another way of launching."""
    thread, before, usual = launcher(torch.device("cuda", 0)), launcher(torch.device("cuda", 0)).in_flight, 5e-3
    thread.in_flight = in_flight
    sys.setswitchinterval(interval)
    try:
        with patch.object(Launcher, "complete", finishing()) if finishes else nullcontext():
            yield
    finally:
        thread.in_flight = before
        sys.setswitchinterval(usual)


def finishing() -> Callable[..., Any]:
    """`Launcher.complete`, but numbers are computed in the launching thread, after the next batch has been launched."""
    unfinished: list[tuple[Any, Future[Any]]] = []
    waiting, lock = [0], threading.Lock()

    def finish() -> None:
        work, done = unfinished.pop(0)
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001, it is raised in the caller
            done.set_exception(error)

    def complete(thread: Any, section: Callable[[], Callable[[], Any]]) -> Any:
        if is_launching():
            return section()()
        done: Future[Any] = Future()

        def run() -> None:
            with lock:
                waiting[0] -= 1
            unfinished.append((section(), done))
            while len(unfinished) > 1 or (unfinished and not waiting[0]):
                finish()

        with lock:
            waiting[0] += 1
        thread.submit(run).result()
        return done.result()

    return complete


def encoder(gate: Gate, numbers: list[int]) -> None:
    """Faster ways of running the towers."""
    from encoder_candidates import compare

    compare(gate.device, gate.results, only=None, limit=45, budget=gate.budget)


def judge(results: Results, sections: list[str]) -> bool:
    """Print figures beyond their limits; return whether there are none."""
    good = True
    measured = [PARTS_OF_LIMITS[section] for section in sections if section in PARTS_OF_LIMITS]
    for name, limit in LIMITS.items():
        value = results.values.get(name)
        if value is None or not any(part in name for part in measured):
            continue
        met = value <= limit if name.startswith("ms_") else value >= limit
        print(f"{'ok  ' if met else 'FAIL'} {name}: {value:.1f}, limit {limit:.1f}")
        good = good and met
    return good


def main() -> None:
    """Measure the sections, and judge them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sections", nargs="*", choices=SECTIONS, default=["mini", "eager", "compiled"])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--images", type=int)
    parser.add_argument("--cores", type=int, nargs="*", help="numbers of cores; default: 16 and 4, as far as there are")
    parser.add_argument("--only", nargs="*", default=[], help="parts of the names of the runs to measure")
    parser.add_argument("--limit", type=int, default=120, help="seconds of one section")
    parser.add_argument("--budget", type=float, default=120.0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results, here = Results(args.json), len(ALL_CORES)
    numbers = args.cores or sorted({min(16, here), min(FEW, here)}, reverse=True)
    with tempfile.TemporaryDirectory() as folder:
        gate = Gate(Path(folder), args.device, args.images or (8192 if args.device == "cuda" else 96), results)
        gate.budget, gate.only = args.budget, tuple(args.only)
        for section in args.sections:
            try:
                with limited(args.limit):
                    globals()[section](gate, numbers)
            except OutOfTimeError as error:
                results(f"section_{section}", str(error))
            if args.device == "cuda":
                torch.cuda.empty_cache()
    if not judge(results, args.sections) and args.device == "cuda":
        sys.exit(1)


if __name__ == "__main__":
    main()
