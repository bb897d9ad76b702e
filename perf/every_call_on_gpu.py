"""Run every public call once on a GPU, with `mini` and with a CLIP of random weights; exit with 1 if one fails.

    PYTHONPATH=src:weights/src python perf/every_call_on_gpu.py
    PYTHONPATH=src:weights/src python perf/every_call_on_gpu.py --only references --encoders clip

It prints one line per case with its seconds. If a case takes longer than `--stacks` seconds, the stacks of all threads
are printed; after three times as many, the program ends. It makes its own images and weights, and needs no network:
torch, transformers, tokenizers, pyarrow and Pillow; a case whose library is missing (fastapi and uvicorn for the
service, ray, pandas) is skipped by name. `--encoders toy --device cpu --images 64 --rows 200` tries the program itself.
"""

import argparse
import faulthandler
import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from synthetic_clip import SMALL, make_captions, make_checkpoint, make_rows, make_tars

from msdscore import Scorer, ScorerSpec, load_encoder
from msdscore.encoders.cached import CacheSettings

ROWS, THREADS = 512, 8
Case = Callable[["Data"], object]


class Data:
    """Inputs of the cases, and one scorer."""

    def __init__(self, folder: Path, spec: ScorerSpec, rows: int) -> None:
        self.folder, self.spec, self.rows = folder, spec, rows
        self.paths = sorted((folder / "images").iterdir())
        self.captions = make_captions(len(self.paths))
        self.scorer = Scorer.from_spec(spec)


def check(scores: object) -> None:
    """Raise unless all scores are finite."""
    failed = [score.error for score in scores if score.error]  # type: ignore[attr-defined]
    if failed:
        raise RuntimeError(f"{len(failed)} rows failed: {failed[0]}")


def score(data: Data) -> None:
    check([data.scorer.score(data.paths[0], data.captions[0])])


def rank(data: Data) -> None:
    check(data.scorer.rank(data.paths[0], data.captions[:64]))


def rank_images(data: Data) -> None:
    check(data.scorer.rank_images(data.paths[:16], data.captions[0]))


def compare(data: Data) -> None:
    data.scorer.score(None, data.captions[0], data.captions[1:6])


def batch(data: Data) -> None:
    check(data.scorer.score_batch(data.paths[:ROWS], data.captions[:ROWS]))


def table(data: Data) -> None:
    import pyarrow as pa

    rows = pa.table({"image": [str(path) for path in data.paths[:64]], "caption": data.captions[:64]})
    scored = data.scorer.score_table(rows)
    assert scored["error"].null_count == len(scored)


def stream(data: Data) -> None:
    check(list(data.scorer.stream(zip(data.paths[:ROWS], data.captions[:ROWS], strict=True))))


def abandoned_stream(data: Data) -> None:
    next(iter(data.scorer.stream(zip(data.paths[:ROWS], data.captions[:ROWS], strict=True))))


def references(data: Data) -> None:
    """Thousands of rows with five references each: streams in several threads share texts and the GPU."""
    captions = make_captions(6 * data.rows, seed=1)

    def rows(first: int) -> object:
        for number in range(first, data.rows, 2):
            image = data.paths[number % len(data.paths)]
            own = captions[6 * number + 1 : 6 * number + 6]
            # Every seventh row has the references of another one: both are new to two threads at once.
            own = captions[1:6] if number % 7 == 0 else own
            yield {"image": image, "caption": captions[6 * number], "references": own}

    with ThreadPoolExecutor(2) as pool:
        for scores in pool.map(lambda first: list(data.scorer.stream(rows(first))), range(2)):
            check(scores)


def many_threads(data: Data) -> None:
    """Every thread has calls of its own on one scorer."""

    def call(number: int) -> None:
        image, captions = data.paths[number], data.captions[number : number + 5]
        data.scorer.rank(image, captions, references=data.captions[50:55])
        check(data.scorer.score_batch(data.paths[number : number + 5], captions))

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(call, range(4 * THREADS)))


def measure(data: Data) -> None:
    pipeline = data.scorer.pipeline
    images = pipeline.embedder.images(pipeline.decode(data.paths[:8])).require()
    pipeline.measure(images, pipeline.embedder.texts(data.captions[:8]).require(), range(8), range(8))


def explain(data: Data) -> None:
    data.scorer.explain(data.paths[0], data.captions[0], data.captions[1:4]).save(data.folder / "explanation.html")


def explain_several(data: Data) -> None:
    data.scorer.explain(data.paths[0], data.captions[:4])


def explain_batch(data: Data) -> None:
    data.scorer.explain_batch(data.paths[:16], data.captions[:16])


def file(data: Data) -> None:
    summary = data.scorer.score_file(data.folder / "rows.jsonl", data.folder / f"{time.time_ns()}.parquet")
    assert summary.failed == 0, summary


def reward(data: Data) -> None:
    from msdscore_torch.integrations.trl import MSDReward

    images = [str(path) for path in data.paths[:16]]
    assert None not in MSDReward(data.spec)(completions=data.captions[:16], image=images)


def torchmetrics(data: Data) -> None:
    importlib.import_module("torchmetrics")
    from msdscore_torch.integrations.torchmetrics import MSDScore

    metric = MSDScore(data.spec)
    metric.update(data.paths[:16], data.captions[:16])
    metric.compute()


def cache(data: Data) -> None:
    """Twice with a cache on disk: the second run encodes nothing."""
    settings = CacheSettings(folder=str(data.folder / f"cache-{time.time_ns()}"))
    for _ in range(2):
        scorer = Scorer.from_spec(replace(data.spec, cache=settings))
        check(scorer.score_batch(data.paths[:64], data.captions[:64], references=[data.captions[:3]] * 64))
    assert scorer.pipeline.cache_use.images_made == 0, scorer.pipeline.cache_use


class Wrapped:
    """An encoder of the user around another one, with a lock of its own."""

    def __init__(self, encoder: object) -> None:
        self._encoder, self._lock = encoder, threading.Lock()

    def __getattr__(self, name: str) -> object:
        return getattr(self._encoder, name)

    def encode_images(self, images: object) -> object:
        with self._lock:
            return self._encoder.encode_images(images)  # type: ignore[attr-defined]

    def encode_texts(self, texts: object) -> object:
        with self._lock:
            return self._encoder.encode_texts(texts)  # type: ignore[attr-defined]


def own_encoder(data: Data) -> None:
    scorer = Scorer(Wrapped(load_encoder(data.spec.encoder, device=data.spec.device)), data.scorer.form)
    own = replace_scorer(data, scorer)
    batch(own)
    many_threads(own)


def replace_scorer(data: Data, scorer: Scorer) -> Data:
    other = object.__new__(Data)
    other.__dict__ = data.__dict__ | {"scorer": scorer}
    return other


def shards(data: Data) -> None:
    from msdscore.run.shards import ShardOptions
    from msdscore.run.workers import plan_jobs, score_on_workers

    tars = sorted(str(path) for path in data.folder.glob("*.tar"))
    jobs = plan_jobs(tars, str(data.folder / f"shards-{time.time_ns()}"))
    for workers in (1, 2):
        for done in score_on_workers(data.spec, jobs, ShardOptions(overwrite=True), workers=workers):
            assert done.error is None, done.error


def ray(data: Data) -> None:
    importlib.import_module("ray.data")
    from msdscore.run.ray_data import RayOptions, score_on_ray
    from msdscore.run.shards import ShardOptions
    from msdscore.run.workers import plan_jobs

    tars = sorted(str(path) for path in data.folder.glob("*.tar"))
    jobs = plan_jobs(tars, str(data.folder / f"ray-{time.time_ns()}"))
    for done in score_on_ray(data.spec, jobs, ShardOptions(), RayOptions(most=1)):
        assert done.error is None, done.error


def _options(data: Data) -> list[str]:
    form = ["--form", data.spec.form] if data.spec.form else []
    return ["-e", data.spec.encoder, "--device", data.spec.device, *form]


def command(data: Data) -> None:
    """The command line in a process of its own."""
    rows = data.folder / "references.jsonl"
    with rows.open("w", encoding="utf-8") as target:
        for path, caption in zip(data.paths[:128], data.captions[:128], strict=True):
            target.write(json.dumps({"image": str(path), "caption": caption, "references": data.captions[:5]}) + "\n")
    output = data.folder / f"{time.time_ns()}.parquet"
    spec = _options(data)
    subprocess.run([sys.executable, "-m", "msdscore", "-q", "score", str(rows), "-o", str(output), *spec], check=True)


def service(data: Data) -> None:
    """Start the server as a process, and send requests from several threads."""
    importlib.import_module("fastapi")
    importlib.import_module("uvicorn")
    import base64

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spec = _options(data)
    command = [sys.executable, "-m", "msdscore", "serve", "--port", str(port), *spec]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def post(number: int) -> None:
        image = base64.b64encode(data.paths[number].read_bytes()).decode()
        body = json.dumps({"image": image, "captions": data.captions[number : number + 4]}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/score", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.status == 200

    try:
        for _ in range(240):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5).close()
                break
            except OSError:
                if server.poll() is not None:
                    raise RuntimeError(f"the server ended with code {server.returncode}") from None
                time.sleep(0.25)
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(post, range(4 * THREADS)))
    finally:
        server.terminate()
        server.wait(30)


CASES: tuple[Case, ...] = (
    score, rank, rank_images, compare, batch, table, stream, abandoned_stream, measure, references, many_threads,
    explain, explain_several, explain_batch,
    file, reward, torchmetrics, cache, own_encoder, command, shards, service, ray,
)  # fmt: skip


def attempt(name: str, case: Callable[[], object], seconds: float) -> bool:
    """Run one case and print its line; return whether it did not fail."""
    faulthandler.dump_traceback_later(seconds, exit=False)
    # A hang ends the program: a case cannot be stopped from outside.
    timer = threading.Timer(3 * seconds, lambda: (print(f"{name}: hangs", flush=True), os._exit(1)))
    timer.daemon = True
    timer.start()
    start, outcome = time.perf_counter(), "ok"
    try:
        case()
    except ModuleNotFoundError as error:
        outcome = f"skipped: {error}"
    except Exception:  # noqa: BLE001, the next case is run
        outcome = "failed"
        traceback.print_exc()
    finally:
        timer.cancel()
        faulthandler.cancel_dump_traceback_later()
    print(f"{name:32} {time.perf_counter() - start:8.2f} s  {outcome}", flush=True)
    return outcome != "failed"


def encoder_spec(kind: str, folder: Path, device: str) -> ScorerSpec:
    """The scorer of one kind; a CLIP is written with random weights."""
    if kind != "clip":
        return ScorerSpec(encoder=kind, device=device, form="short" if kind == "toy" else None)
    checkpoint = folder / "clip"
    if not checkpoint.exists():
        make_checkpoint(checkpoint, device, SMALL)
    return ScorerSpec(encoder=str(checkpoint), device=device, form="short")


def main() -> None:
    """Run all cases with all encoders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoders", nargs="+", default=["mini", "clip"], choices=["mini", "clip", "toy"])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", nargs="+", default=[case.__name__ for case in CASES])
    parser.add_argument("--stacks", type=float, default=60.0, help="seconds after which the stacks are printed")
    parser.add_argument("--images", type=int, default=ROWS)
    parser.add_argument("--rows", type=int, default=3000, help="rows with five references each")
    args = parser.parse_args()
    good = True
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        paths, captions = make_rows(folder, args.images, tars=False)
        make_tars(folder, paths, captions, rows=max(1, args.images // 4))
        for kind in args.encoders:
            known: list[Data] = []
            start = partial(
                lambda kind, known: known.append(Data(folder, encoder_spec(kind, folder, args.device), args.rows)),
                kind,
                known,
            )
            if not attempt(f"{kind}: load", start, args.stacks):
                good = False
                continue
            for case in CASES:
                if case.__name__ in args.only:
                    good &= attempt(f"{kind}: {case.__name__}", partial(case, known[0]), args.stacks)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
