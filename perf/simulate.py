"""Simulation of many GPUs from the measured rate of one: workers that fail, are slow and share one store.

python perf/simulate.py [--workers 64] [--rows 1e9] [--rate 1900] [--store 10] [--price 3]

First the bill: GPU hours, their price at `--price` per hour, and what all workers read, compared with what the store
sends. Then every free worker takes the next shard, as `msdscore score --workers` and Ray do. Its rate is, by
default, that of tars to Parquet on an H200 without `compile` (84 to 89 % of the encoder's 2,180 to 2,250 pairs per
second: docs/performance.md, "On one GPU"); pass `--rate 2026` for a compiled encoder. A worker that fails loses its
shard and restarts; slow workers run at half the rate; the store provides `--store` GB/s in total. Shards are
independent, so nothing else is shared. The table shows the hours of a run, its efficiency relative to the ideal, and
where the other time was spent.
"""

import argparse
import heapq
import random
from dataclasses import dataclass

START = 45.0  # seconds until a worker has loaded its encoder and compiled its kernels
PAIR = 67e3  # bytes of an image and its caption
REQUEST = 0.2  # seconds until a slow store returns the first byte of a shard


@dataclass
class World:
    workers: int
    rows: float
    rate: float  # pairs per second of one worker
    store: float  # bytes per second for all
    shard: int = 10_000
    hours_between_failures: float = 0.0  # of one worker; 0: it never fails
    laggards: float = 0.0  # fraction of the workers that run at half the rate


def simulate(world, seed=0):
    """Return the hours of the run, and worker-seconds by activity."""
    chance = random.Random(seed)
    rates = [world.rate * (0.5 if number < world.laggards * world.workers else 1.0) for number in range(world.workers)]
    left, end = int(-(-world.rows // world.shard)), 0.0
    spent = dict.fromkeys(("work", "store", "lost", "start", "lag"), 0.0)
    free = [(START, number) for number in range(world.workers)]
    spent["start"] += START * world.workers
    while left:
        now, number = heapq.heappop(free)
        left -= 1
        work = world.shard / rates[number]
        # The next shard is read while this one is scored; only the remaining read time is waited for.
        needed = REQUEST + world.shard * PAIR / (world.store / world.workers)
        duration = max(work, needed)
        fails = world.hours_between_failures and chance.random() < duration / (3600 * world.hours_between_failures)
        if fails:
            lost = chance.random() * duration
            spent["lost"] += lost
            spent["start"] += START
            left += 1
            heapq.heappush(free, (now + lost + START, number))
            continue
        spent["work"] += world.shard / world.rate
        spent["lag"] += work - world.shard / world.rate
        spent["store"] += duration - work
        end = max(end, now + duration)
        heapq.heappush(free, (now + duration, number))
    spent["idle"] = world.workers * end - sum(spent.values())
    return end / 3600, spent


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--rows", type=float, default=1e9)
    parser.add_argument("--rate", type=float, default=1900)
    parser.add_argument("--store", type=float, default=10.0, help="GB/s that the store can send")
    parser.add_argument("--price", type=float, default=3.0, help="of one GPU for one hour")
    args = parser.parse_args()
    plain = {"workers": args.workers, "rows": args.rows, "rate": args.rate, "store": 1e9 * args.store}
    cases = {
        "nothing goes wrong": {},
        "each worker fails once in 4 hours": {"hours_between_failures": 4.0},
        "one in twenty at half the rate": {"laggards": 0.05},
        "store of half the bandwidth": {"store": 5e8 * args.store},
        "all of these": {"hours_between_failures": 4.0, "laggards": 0.05, "store": 5e8 * args.store},
        "shards of 1,000,000 rows, all of these": {
            "hours_between_failures": 4.0, "laggards": 0.05, "store": 5e8 * args.store, "shard": 1_000_000,
        },
    }  # fmt: skip
    ideal = args.rows / args.rate / args.workers / 3600
    hours, demand = args.rows / args.rate / 3600, args.workers * args.rate * PAIR / 1e9
    print(
        f"{args.rows:.0e} pairs / {args.rate:g} per second = {hours:.1f} GPU hours, which cost {hours * args.price:.0f}"
    )
    limit = "the store is the limit" if demand > args.store else "the GPUs are the limit"
    print(f"{args.workers} workers: {ideal:.2f} hours at best; demand {demand:.1f} GB/s of {args.store:g}: {limit}\n")
    columns = ("", "hours", "of the ideal", "store", "failures", "starts", "laggards", "idle at the end")
    print(f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}", sep="\n")
    for name, changed in cases.items():
        world = World(**plain | changed)
        hours, spent = simulate(world)
        total = world.workers * hours * 3600
        shares = " | ".join(f"{100 * spent[kind] / total:.1f} %" for kind in ("store", "lost", "start", "lag", "idle"))
        print(f"| {name} | {hours:.2f} | {100 * ideal / hours:.1f} % | {shares} |")


if __name__ == "__main__":
    main()
