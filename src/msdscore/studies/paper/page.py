"""The page that sets our numbers beside the paper's, filled from the result files of the studies.

Run it as `python -m msdscore.studies.paper.page --results FOLDER --output docs/paper.md`; the folder holds what the
studies wrote, each under its own name (`kappa.json` …). A study that is missing leaves its part of the page as it is.
"""

import argparse
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msdscore.benchmarks.results.grids import NONE, Grid, markdown
from msdscore.errors import InputError
from msdscore.io.atomic import write_bytes
from msdscore.studies.paper import published

Found = Mapping[str, Any]
_PER_CENT = 100


def accuracies(variant: Found, label: str) -> list[float]:
    """Accuracies of a metric per subtask, in per cent, in the paper's order; NaN where a set has no such subtask."""
    metric = next(one for one in variant["metrics"] if one["metric"] == label)
    found = [metric["figures"].get(f"accuracy/{name}") for name in published.SUBTASKS]
    return [math.nan if one is None else _PER_CENT * one["value"] for one in found]


def subtask_grid(sweep: Found, label: str, papers: Mapping[str, Sequence[float]], *, title: str = "MSD") -> Grid:
    """A row per subtask and one for their mean; a column per choice, ours and the paper's side by side.

    Notes have the interval of each mean, and its paired difference from the choice in use.
    """
    ours = {one["name"]: accuracies(one, label) for one in sweep["variants"]}
    columns, cells = ["subtask"], []
    for name, values in ours.items():
        columns += [name] + ([f"paper, {name}"] if name in papers else [])
        cells += [values] + ([papers[name]] if name in papers else [])
    for name in papers:
        if name not in ours:
            columns, cells = [*columns, f"paper, {name}"], [*cells, papers[name]]
    rows = [(name, *(f"{values[at]:.1f}" for values in cells)) for at, name in enumerate(published.SUBTASKS)]
    rows.append(("mean", *(f"{sum(values) / len(values):.1f}" for values in cells)))
    notes = tuple(_mean(one, label) for one in sweep["variants"])
    return Grid(f"{title} ({_size(sweep)})", tuple(columns), tuple(rows), notes)


def _mean(variant: Found, label: str) -> str:
    """The mean of one choice in words."""
    metric = next(one for one in variant["metrics"] if one["metric"] == label)
    head, gap = next(iter(metric["figures"].values())), metric["difference"]
    against = "" if gap is None else f"; difference {_signed(gap)}, p {gap['p']:.3f}, Holm {gap['p_holm']:.3f}"
    return f"{variant['name']}: {_interval(head)}{against}"


def _mixtures(found: Found) -> list[Grid]:
    titles = {"same_alpha": "MSD, the same alpha", "equal_weight": "MSD, equal weight of the divergences"}
    grids = []
    for key, title in titles.items():
        grids.append(subtask_grid(found[key]["benchmarks"][0], "msd", published.MIXTURES, title=title))
    return grids


def _kappa(found: Found) -> list[Grid]:
    return [subtask_grid(found["benchmarks"][0], "msd", published.KAPPA)]


def _values(found: Found) -> list[Grid]:
    """A sweep that the paper names and has no table of."""
    sweep = found["benchmarks"][0]
    labels = [one["metric"] for one in sweep["variants"][0]["metrics"]]
    head = next(iter(sweep["variants"][0]["metrics"][0]["figures"]))
    rows = [
        (one["name"], *(_interval(metric["figures"][head]) for metric in one["metrics"])) for one in sweep["variants"]
    ]
    return [Grid(f"{head} ({_size(sweep)})", ("setting", *labels), tuple(rows))]


def _stability(found: Found) -> list[Grid]:
    rows = [
        (one["mixture"], f"{one['ari']['value']:.3f} ± {one['deviation']:.3f}", _papers_index(one["mixture"]))
        for one in found["clusterings"]
    ]
    scores = found["scores"]
    drawn = [_PER_CENT * value for value in scores["accuracy_sample"]]
    facts = (
        ("accuracy over seeds, `sample`", f"{min(drawn):.1f} to {max(drawn):.1f}"),
        ("accuracy, `spread`", _interval(scores["accuracy_spread"])),
        ("standard deviation of a score over seeds", f"{scores['deviation_over_seeds']['value']:.4f}"),
        ("standard deviation between captions", f"{scores['deviation_between_captions']:.4f}"),
    )
    return [
        Grid("Adjusted Rand index between seeds, mean ± deviation over captions", ("distribution", "ours", "paper"),
             tuple(rows)),
        Grid(f"MSD over {found['seeds']} seeds, {scores['pairs']} pairs", ("figure", "ours"), facts),
    ]  # fmt: skip


def _papers_index(name: str) -> str:
    known = published.STABILITY.get("Gaussian" if name.startswith("Gaussian, diagonal") else name)
    return NONE if known is None else f"{known[0]:.3f} ± {known[1]:.3f}"


def _entropy(found: Found) -> list[Grid]:
    names = list(found["bins"][0]["entropy"])
    rows = [
        (
            f"{one['shortest']} to {one['longest']}",
            str(one["captions"]),
            *(f"{one['entropy'][name]['value']:.3f}" for name in names),
            *(f"{_PER_CENT * one['hard'][name]['value']:.0f} %" for name in names),
        )
        for one in found["bins"]
    ]
    heads = (*(f"entropy, {name}" for name in names), *(f"hard, {name}" for name in names))
    return [Grid("Entropy of responsibilities, nats", ("tokens", "captions", *heads), tuple(rows))]


def _direction(found: Found) -> list[Grid]:
    grids = []
    for sweep in found["benchmarks"]:
        head = next(iter(sweep["variants"][0]["metrics"][0]["figures"]))
        rows = [
            (
                one["name"],
                _interval(one["metrics"][0]["figures"][head]),
                f"{_PER_CENT * one['metrics'][0]['wrong_image'].get(head, float('nan')):.1f}",
                f"{published.DIRECTION[one['name']]:.1f}" if one["name"] in published.DIRECTION else NONE,
            )
            for one in sweep["variants"]
        ]
        columns = ("Soft-MSD", f"{sweep['benchmark']}: {head}", "wrong image", "paper, CapArena")
        grids.append(Grid(f"Direction ({_size(sweep)})", columns, tuple(rows)))
    labels = ("coverage", "support", "bi-kl")
    buckets = [
        (f"{one['shortest']:g} to {one['longest']:g}", str(one["pairs"]),
         *(_interval(one["accuracy"][label]) for label in labels))
        for one in found["by_length"]
    ]  # fmt: skip
    grids.append(Grid("Ours, by length in words", ("words", "pairs", *labels), tuple(buckets)))
    theirs = tuple((name, *(f"{value:.1f}" for value in values)) for name, values in published.BY_LENGTH.items())
    grids.append(Grid("The paper's, by length in tokens", ("tokens", *labels), theirs))
    return grids


def _margin(found: Found) -> list[Grid]:
    labels = ("cosine", "coverage", "msd", "soft-msd")
    columns = ("bin", "mean margin", "mean u", *labels, "soft-msd − cosine")
    grids = []
    for sweep in found["benchmarks"]:
        rows = [
            (str(at), f"{one['margin']:.4f}", f"{one['uncertainty']:.3f}",
             *(f"{_PER_CENT * one['accuracy'][label]['value']:.1f}" for label in labels), _signed(one["gain"]))
            for at, one in enumerate(sweep["bins"])
        ]  # fmt: skip
        gains = [
            f"{gain['first']} − {gain['second']}: {_signed(gain['difference'])}, "
            + ", ".join(f"{name} p {value:.3f}" for name, value in gain["p"].items())
            for gain in sweep["gains"]
        ]
        grids.append(Grid(f"Ours, {sweep['benchmark']} ({_size(sweep)})", columns, tuple(rows), tuple(gains)))
    for name, bins in published.MARGIN.items():
        theirs = tuple(
            (str(at), f"{one[0]:.4f}", f"{one[1]:.3f}", *(f"{value:.1f}" for value in one[2:6]), f"{one[6]:+.1f}")
            for at, one in enumerate(bins)
        )
        grids.append(Grid(f"The paper's, {name}", columns, theirs))
    return grids


def _transfer(found: Found) -> list[Grid]:
    labels = list(found["results"][0]["metrics"])
    rows = [
        (
            f"{one['dataset']}, {one['encoder']}",
            *(_interval(one["metrics"][label]) for label in labels),
            f"{_signed(one['gains']['soft-msd'])} (p {one['gains']['soft-msd']['p_holm']:.3f})",
        )
        for one in found["results"]
    ]
    return [Grid("Ours", ("set and encoder", *labels, "soft-msd − cosine (p, Holm)"), tuple(rows))]


def _ood(found: Found) -> list[Grid]:
    theirs = tuple((name, *(f"{value:.1f}" for value in values)) for name, values in published.OOD.items())
    return [*_transfer(found), Grid("The paper's", ("set and encoder", "cosine", "msd", "soft-msd"), theirs)]


def _faithfulness(found: Found) -> list[Grid]:
    regions = ("top", "random", "bottom")
    rows = [
        (f"{row['kind']}, {row['masking']}", *(f"{row[region]['value']:+.4f}" for region in regions))
        for row in found["masking"][0]["rows"]
    ]
    rows += [
        (f"paper, {kind}", *(f"{value:+.4f}" for value in values)) for kind, values in published.FAITHFULNESS.items()
    ]
    title = f"Effect of masking 10 % of the regions on d ({found['masking'][0]['pairs']} pairs)"
    return [Grid(title, ("captions", *regions), tuple(rows))]


def _localisation(found: Found) -> list[Grid]:
    ways = ("terms", "occlusion", "wrong_picture", "chance")
    rows = [
        (f"{row['subset']}, first {row['depth']}", str(row["items"]), *(_interval(row[way]) for way in ways))
        for row in found["rows"]
    ]
    return [Grid("The changed word among the first", ("subset", "captions", *ways), tuple(rows))]


def _words(found: Found) -> list[Grid]:
    rows = [
        (
            row["name"],
            str(row["n"]),
            _interval(row["true"]),
            _interval(row["wrong"]),
            f"{_PER_CENT * row['chance']:.1f}",
        )
        for row in found["rows"]
    ]
    columns = ("figure", "n", "terms", "wrong picture", "chance")
    return [Grid(f"Invented words ({found['captions']} captions)", columns, tuple(rows))]


PARTS: Mapping[str, Callable[[Found], list[Grid]]] = {
    "mixtures": _mixtures,
    "kappa": _kappa,
    "alpha": _values,
    "components": _values,
    "iterations": _values,
    "stability": _stability,
    "entropy": _entropy,
    "direction": _direction,
    "margin": _margin,
    "reconstruction": _transfer,
    "backbones": _transfer,
    "ood": _ood,
    "faithfulness": _faithfulness,
    "localisation": _localisation,
    "words": _words,
}


def part(study: str, found: Found) -> str:
    """The tables of one study in Markdown, with the settings they were made with."""
    signature = _signature(found)
    return "\n".join([*map(markdown, PARTS[study](found)), *([f"`{signature}`\n"] if signature else [])])


def fill(page: str, parts: Mapping[str, str]) -> str:
    """The page with new parts between their marks; every part must have its place.

    >>> fill("a <!-- study kappa: begin --> old <!-- study kappa: end --> z", {"kappa": "new"}).split()[6:-6]
    ['new']
    """
    for study, text in parts.items():
        marks = re.compile(rf"(<!-- study {study}: begin -->).*?(<!-- study {study}: end -->)", re.DOTALL)
        if not marks.search(page):
            raise InputError(f"the page has no place for study {study}; expected <!-- study {study}: begin --> and end")
        head, tail = marks.split(page, maxsplit=1)[0], marks.split(page, maxsplit=1)[3]
        page = f"{head}<!-- study {study}: begin -->\n\n{text.strip()}\n\n<!-- study {study}: end -->{tail}"
    return page


def _signature(found: Found) -> str:
    """The first signature of a result that names settings of the score, else any."""
    signatures = list(_signatures(found))
    return next((one for one in signatures if "kappa:" in one), signatures[0] if signatures else "")


def _signatures(found: Any) -> Any:
    if isinstance(found, Mapping):
        if isinstance(found.get("signature"), str):
            yield found["signature"]
        for value in found.values():
            yield from _signatures(value)
    elif isinstance(found, list):
        for value in found:
            yield from _signatures(value)


def _interval(value: Found) -> str:
    return _bounded(value, ".1f")


def _signed(value: Found) -> str:
    return _bounded(value, "+.1f")


def _bounded(value: Found, form: str) -> str:
    """A share in per cent with its interval, which few pictures may not have."""
    low, high = value["low"], value["high"]
    ends = "" if low is None or high is None else f" [{_PER_CENT * low:{form}}, {_PER_CENT * high:{form}}]"
    return f"{_PER_CENT * value['value']:{form}}{ends}"


def _size(sweep: Found) -> str:
    return f"{sweep['benchmark']}, {sweep['counted']} items, {sweep['pictures']} pictures"


def main(arguments: Sequence[str] | None = None) -> None:
    """Read what there is, and fill the page."""
    parser = argparse.ArgumentParser(prog="python -m msdscore.studies.paper.page", description=__doc__)
    parser.add_argument("--results", type=Path, required=True, help="folder of the studies' result files")
    parser.add_argument("--output", "-o", type=Path, default=Path("docs/paper.md"))
    asked = parser.parse_args(arguments)
    there = [study for study in PARTS if (asked.results / f"{study}.json").is_file()]
    if not there:
        raise InputError(f"{asked.results}: expected result files of studies, such as kappa.json, found none")
    parts = {study: part(study, json.loads((asked.results / f"{study}.json").read_text("utf-8"))) for study in there}
    page = fill(asked.output.read_text(encoding="utf-8"), parts)
    write_bytes(asked.output, page.encode(), folder=asked.output.parent)


if __name__ == "__main__":
    main()
