"""Throughput of the service with several clients, by number of threads, side by side.

Run with: python perf/service.py [--clients 8] [--seconds 8] [--rounds 3] [--threads 1].

Two services take turns, so that both see the same load of the machine: one with its default threads, and one with
`--threads`. A client sends the next request when it has the answer: a new caption of an image that was uploaded
before, or a new image with its caption.
"""

import argparse
import base64
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from io import BytesIO
from itertools import count
from statistics import median

import httpx
from PIL import Image

from msdscore import sample_image

WORDS = ["cup", "spoon", "table", "dog", "cat", "pizza", "laptop", "grass", "man", "woman", "plate", "bowl", "book"]
ROUTES = ("/v1/score", "/v1/explain?fields=words")
NAMES = ("requests/s", "CPU ms/request")
numbers = count()


@contextmanager
def service(*options: str) -> Iterator[str]:
    """Start a service and yield its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "msdscore", "serve", "--port", str(port), *options]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                httpx.get(f"{address}/readyz").raise_for_status()
                break
            except httpx.HTTPError:
                time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait(timeout=60)


def known_images(client: httpx.Client) -> Callable[[], object]:
    """Return a request for a new caption of an uploaded image."""
    file = sample_image("coffee").read_bytes()
    name = client.post("/v1/images", files={"image": ("a.jpg", file)}).json()["image"]
    return lambda: {"image": name, "captions": [caption()]}


def new_images(client: httpx.Client) -> Callable[[], object]:
    """Return a request for a new image of 640 by 480 pixels."""
    noise = Image.effect_noise((640, 480), 60).convert("RGB")

    def body() -> object:
        noise.putpixel((0, 0), (number := next(numbers)) % 250)
        noise.putpixel((1, 0), (number // 250, 0, 0))
        buffer = BytesIO()
        noise.save(buffer, "PNG", compress_level=0)
        return {"image": base64.b64encode(buffer.getvalue()).decode(), "captions": [caption()]}

    return body


def caption() -> str:
    """Return a caption that was not used before."""
    number = next(numbers)
    first, second = WORDS[number % len(WORDS)], WORDS[number // len(WORDS) % len(WORDS)]
    return f"a cup of coffee with a {first} and a {second} on table number {number}"


def requests_per_second(
    address: str, route: str, kind: Callable[[httpx.Client], Callable[[], object]], clients: int, seconds: float
) -> tuple[float, float]:
    """Return the rate of answered requests, and the milliseconds of CPU time that the service spent on each."""
    with httpx.Client(base_url=address, timeout=60) as client:
        body, until = kind(client), time.monotonic() + seconds

        def work(_: int) -> int:
            done = 0
            while time.monotonic() < until:
                client.post(route, json=body()).raise_for_status()
                done += 1
            return done

        started, before = time.monotonic(), cpu_seconds(client)
        with ThreadPoolExecutor(clients) as pool:
            done = sum(pool.map(work, range(clients)))
        rate = done / (time.monotonic() - started)
        return rate, 1000 * (cpu_seconds(client) - before) / done


def cpu_seconds(client: httpx.Client) -> float:
    """Return the CPU time of the service so far."""
    lines = client.get("/metrics").text.splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith("process_cpu_seconds_total ")))


def main() -> None:
    """Print the rates of both services, by route and kind of image."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", default="1")
    parser.add_argument("--route", default="all")
    options = parser.parse_args()
    settings = {"default": (), f"--threads {options.threads}": ("--threads", options.threads)}
    with ExitStack() as stack:
        addresses = {name: stack.enter_context(service(*given)) for name, given in settings.items()}
        for route in ROUTES if options.route == "all" else (options.route,):
            for kind in (known_images, new_images):
                rates: dict[str, list[tuple[float, float]]] = {name: [] for name in addresses}
                for _ in range(options.rounds):
                    for name, address in addresses.items():
                        rate = requests_per_second(address, route, kind, options.clients, options.seconds)
                        rates[name].append(rate)
                found = {
                    name: dict(
                        zip(NAMES, (round(median(values), 1) for values in zip(*pairs, strict=True)), strict=True)
                    )
                    for name, pairs in rates.items()
                }
                print(json.dumps({"route": route, "images": kind.__name__, "clients": options.clients, **found}))


if __name__ == "__main__":
    main()
