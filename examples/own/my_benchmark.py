"""A benchmark: ratings in a CSV file of its own format."""

import csv

from msdscore_lab.benchmarks.base import Benchmark, ItemSet, Rated


def read(root):
    with (root / "stars.csv").open(encoding="utf-8", newline="") as file:
        return ItemSet(
            tuple(
                Rated(id=str(number), image=root / row["file"], caption=row["text"], ratings=(float(row["stars"]),))
                for number, row in enumerate(csv.DictReader(file))
            )
        )


STARS = Benchmark(name="stars", kind="rated", reader="my_benchmark:read")
