"""Agreement with people against the number of references, from results of `msdscore bench`.

msdscore bench NAME --root FOLDER -m msd -m ref-msd,most=1 -m ref-msd,most=2 -m ref-msd,most=3 -m ref-msd -o NAME.json
python tools/reference_curve.py NAME.json … -o docs/images/references.png
"""

import argparse
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

from msdscore.lab.benchmarks.results.result import Result, read_result

ALL = 5  # references of the sets in the figure


def points(result: Result) -> list[tuple[int, float, float, float]]:
    """Number of references, figure and interval: `msd` has none of them."""
    curve = []
    for metric in result.metrics:
        name, _, most = metric.label.partition(",most=")
        if (name == "msd" and not most) or (name == "ref-msd" and "wrong" not in metric.label):
            figure = metric.figures[-1] if result.kind == "pairs" else metric.figures[0]
            count = 0 if name == "msd" else int(most or ALL)
            low, high = (figure.interval.low, figure.interval.high) if figure.interval else (figure.value,) * 2
            curve.append((count, 100 * figure.value, 100 * low, 100 * high))
    return sorted(curve)


def main() -> None:
    """Draw the curves of all results next to each other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    asked = parser.parse_args()
    figure, axes = plt.subplots(1, len(asked.results), figsize=(3 * len(asked.results), 2.6), layout="constrained")
    for axis, path in zip([axes] if len(asked.results) == 1 else axes, asked.results, strict=True):
        result = read_result(path)
        counts, values, low, high = zip(*points(result), strict=True)
        axis.fill_between(counts, low, high, color="#1f77b4", alpha=0.15, linewidth=0)
        axis.plot(counts, values, marker="o", color="#1f77b4")
        axis.set_title(result.title, fontsize=9)
        axis.set_xlabel("references (0: msd)")
        axis.set_xticks(counts)
    figure.savefig(asked.output, dpi=110)


if __name__ == "__main__":
    main()
