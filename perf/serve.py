"""Load test of the service: gain of batching, saturation, memory.

Run with: python perf/serve.py [--encoder toy] [--requests 20000]
Results are independent of the machine: throughput with and without batching, response statuses at saturation, and the
server's memory early and late in a long run.
"""

import argparse
import asyncio
import base64
import json
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from urllib.request import urlopen

from PIL import Image

IMAGES = 16  # number of distinct images


@contextmanager
def service(*options: str) -> Iterator[tuple[int, int]]:
    """Start a service in a child process; yield its port and process id."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "msdscore", "serve", "--port", str(port), *options]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            _wait(port, process)
            yield port, process.pid
        finally:
            process.terminate()


def _wait(port: int, process: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < until:
        try:
            urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2).close()
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the service did not start")


def bodies() -> list[bytes]:
    """Return requests with an image and two captions each."""
    requests = []
    for number in range(IMAGES):
        file = BytesIO()
        Image.new("RGB", (96, 96), (number * 15, 255 - number * 15, 90)).save(file, "JPEG")
        payload = {
            "image": base64.b64encode(file.getvalue()).decode(),
            "captions": ["a red square", f"number {number}"],
        }
        body = json.dumps(payload).encode()
        head = (
            "POST /v1/rank HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        requests.append(head.encode() + body)
    return requests


async def load(port: int, requests: int, clients: int) -> tuple[Counter[int], float]:
    """Send requests from concurrent clients; return their statuses and the seconds."""
    statuses: Counter[int] = Counter()
    payloads, turn = bodies(), iter(range(requests))

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in turn:
            writer.write(payloads[number % IMAGES])
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))[15:])
            await reader.readexactly(length)
            statuses[int(head[9:12])] += 1
        writer.close()

    started = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return statuses, time.perf_counter() - started


def memory(process: int) -> float:
    """Return the memory of a process in MiB."""
    lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


def gain(encoder: str, requests: int) -> None:
    rates = {}
    for batch in ("1", "64"):
        with service("--encoder", encoder, "--max-batch", batch, "--cache", "0") as (port, _):
            asyncio.run(load(port, 50, 4))
            statuses, seconds = asyncio.run(load(port, requests, 64))
            assert set(statuses) == {200}, statuses
            rates[batch] = requests / seconds
    print(f"batched against one at a time, 64 clients: {rates['64'] / rates['1']:.2f} times the requests per second")


def saturation(encoder: str, requests: int) -> None:
    with service("--encoder", encoder, "--max-queue", "8", "--cache", "0") as (port, _):
        statuses, _ = asyncio.run(load(port, requests, 64))
        print(f"64 clients, queue of 8: {dict(statuses)}")
        assert set(statuses) <= {200, 503}, statuses
        after, _ = asyncio.run(load(port, 20, 1))
        assert set(after) == {200}, after


def flatness(encoder: str, requests: int) -> None:
    with service("--encoder", encoder) as (port, process):
        asyncio.run(load(port, requests // 10, 16))
        early = memory(process)
        statuses, _ = asyncio.run(load(port, requests - requests // 10, 16))
        late = memory(process)
        print(
            f"memory after {requests // 10} requests {early:.0f} MiB, after {requests} {late:.0f} MiB; {dict(statuses)}"
        )
        assert set(statuses) == {200}, statuses
        assert late < early * 1.05 + 8, "memory grows with the requests"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--encoder", default="toy")
    parser.add_argument("--requests", type=int, default=20_000)
    args = parser.parse_args()
    gain(args.encoder, max(64, args.requests // 20))
    saturation(args.encoder, max(64, args.requests // 20))
    flatness(args.encoder, args.requests)


if __name__ == "__main__":
    main()
