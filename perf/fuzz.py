"""Fuzzing with corrupted images and unusual captions, and a soak test of the service.

    python perf/fuzz.py score --count 50000     # through the scorer: a score or an error for each input
    python perf/fuzz.py serve --count 50000     # through the service, including malformed bodies
    python perf/fuzz.py soak --minutes 60       # memory of a service under constant load

A hang of two minutes, an exception or a server error stops the run with a traceback.
"""

import argparse
import faulthandler
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "tests")]

PATIENCE = 120.0  # timeout of a batch in seconds
BATCH = 64


def mutations(count: int, seed: int) -> Iterator[tuple[bytes, str]]:
    """Yield mutated images of six formats (one in ten unchanged) with random captions."""
    from test_serve_fuzz import caption, images, mutated

    draw, good = random.Random(seed), images()
    for number in range(count):
        yield mutated(draw, draw.choice(good)) if number % 10 else draw.choice(good), caption(draw)


def _kind(error: str) -> str:
    """Return an error message without its details."""
    return (
        "caption: nothing to score"
        if error.startswith("the caption")
        else error.split("(")[0].split(": ", 1)[-1][:60].strip()
    )


def score(count: int, seed: int) -> dict[str, object]:
    """Stream every pair through a scorer; count errors by their first words."""
    from msdscore import Scorer

    outcomes: Counter[str] = Counter()
    rows = ({"image": image, "caption": caption} for image, caption in mutations(count, seed))
    done = 0
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    for result in Scorer("toy").stream(rows):
        done += 1
        outcomes["scored" if result.error is None else _kind(result.error)] += 1
        if done % BATCH == 0:
            faulthandler.dump_traceback_later(PATIENCE, exit=True)
            print(f"\r{done} of {count}", end="", file=sys.stderr)
    faulthandler.cancel_dump_traceback_later()
    assert done == count
    return {"pairs": done, "scored": outcomes.pop("scored", 0), "errors": dict(outcomes.most_common(8))}


def serve(count: int, seed: int) -> dict[str, object]:
    """Send every pair to a service in this process; no response may be a server error."""
    from serving import client

    statuses: Counter[int] = Counter()
    with client(raises=True, max_body=1 << 20, max_tokens=4000) as calls:
        for number, (image, caption) in enumerate(mutations(count, seed)):
            faulthandler.dump_traceback_later(PATIENCE, exit=True)
            path = "/v1/explain" if number % 30 == 0 else ("/v1/score", "/v1/rank")[number % 2]
            answer = calls.post(path, files={"image": image}, data={"caption": [caption]})
            statuses[answer.status_code] += 1
            assert answer.status_code == 200, (number, answer.text)
            if number % BATCH == 0:
                print(f"\r{number} of {count}", end="", file=sys.stderr)
    faulthandler.cancel_dump_traceback_later()
    return {"requests": count, "statuses": dict(statuses)}


def soak(minutes: float, rate: float) -> dict[str, object]:
    """Return the resident memory of a service in MiB, per minute, under requests with new images and captions."""
    import base64
    from urllib.request import Request, urlopen

    from serve import service

    memory, sent, draw = [], 0, mutations(10**9, 1)
    with service("--encoder", "toy", "--cache", "16") as (port, process):
        start = time.monotonic()
        while (passed := time.monotonic() - start) < 60 * minutes:
            image, caption = next(draw)
            body = json.dumps({"image": base64.b64encode(image).decode(), "captions": [caption, "a red dog"]}).encode()
            request = Request(f"http://127.0.0.1:{port}/v1/rank", body, {"Content-Type": "application/json"})
            with urlopen(request, timeout=PATIENCE) as answer:
                assert answer.status == 200
            sent += 1
            if passed > 60 * len(memory):
                status = Path(f"/proc/{process}/status").read_text()
                memory.append(int(status.split("VmRSS:")[1].split()[0]) // 1024)
                print(f"\r{len(memory)} minutes, {memory[-1]} MiB", end="", file=sys.stderr)
            time.sleep(max(0.0, sent / rate - passed))
    return {"minutes": minutes, "requests": sent, "memory": memory[:: max(1, len(memory) // 12)], "last": memory[-1]}


def main() -> None:
    """Run a part and print its result as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("score", "serve", "soak"))
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--rate", type=float, default=10.0, help="Requests per second of the soak.")
    args = parser.parse_args()
    if args.part == "soak":
        print(json.dumps(soak(args.minutes, args.rate)))
    else:
        print(json.dumps({"score": score, "serve": serve}[args.part](args.count, args.seed)))


if __name__ == "__main__":
    main()
