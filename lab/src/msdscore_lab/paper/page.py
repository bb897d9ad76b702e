"""Fill the page that compares our numbers with the paper's from the result files of the studies.

Run it as `python -m msdscore_lab.paper page --results FOLDER --output docs/lab/paper.md`; the folder contains the
result files of the studies (`kappa.json` …). Sections without a result file are not changed.
"""

import argparse
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from msdscore.errors import InputError
from msdscore.io.files import write_bytes
from msdscore_lab.benchmarks.results.grids import NONE, Grid, markdown
from msdscore_lab.paper import published
from msdscore_lab.paper.tables import QUOTED, printed

Json = Mapping[str, Any]  # a table of a result file, a row of it, or an interval
_PER_CENT = 100
_RULE = re.compile(r"^\|[ :|-]+\|$", re.MULTILINE)  # separator below the head of a table, which is shortened


def means_grid(tables: Mapping[str, Json], papers: Mapping[str, Sequence[float]], heads: Mapping[str, str]) -> Grid:
    """Return a row per variant: the mean over subtasks, the paper's, and the paired difference in the last table.

    `heads` maps table names to headings; differences are relative to the default.
    """
    rows: dict[str, list[str]] = {}
    last = list(heads)[-1]
    for name in heads:
        for row in tables[name]["rows"]:
            if row["metric"] == "msd":
                own = rows.setdefault(row["variant"], [])
                value = row[tables[name]["headline"]]
                own += [bounded(value), _difference(row)] if name == last else [share(value)]
    columns = [*heads.values(), "difference"]
    cells = [(variant, *values, _papers_mean(papers, variant)) for variant, values in rows.items()]
    return Grid(
        f"Accuracy of MSD-Score, %, mean of seven subtasks ({_size(tables[next(iter(heads))])})",
        ("choice", *columns, "paper"),
        tuple(cells),
    )


def _difference(row: Json) -> str:
    """Format the paired difference from the default, with its corrected p-value."""
    return NONE if row["difference"] is None else f"{bounded(row['difference'], '+.1f')}, p {row['p_holm']:.3f}"


def _papers_mean(papers: Mapping[str, Sequence[float]], variant: str) -> str:
    known = papers.get("Gaussian" if variant == "Gaussian, diagonal" else variant)
    return NONE if known is None else f"{sum(known) / len(known):.1f}"


def _mixtures(tables: Mapping[str, Json]) -> list[Grid]:
    heads = {"same_alpha": "same alpha", "equal_weight": "equal weight"}
    return [means_grid(tables, published.MIXTURES, heads)]


def _subtasks(table: Json, papers: Mapping[str, Sequence[float]]) -> Grid:
    """Return a row per subtask with our and the paper's accuracy of MSD for every variant of the paper."""
    rows = {row["variant"]: row for row in table["rows"] if row["metric"] == "msd"}
    names = {"Gaussian": "Gaussian, diagonal"}
    columns = [head for choice in papers for head in (names.get(choice, choice), "paper")]
    cells = [
        (subtask, *(cell for choice, values in papers.items() for cell in
                    (share(rows[names.get(choice, choice)].get(f"accuracy/{subtask}"), ".2f"), f"{values[at]:.2f}")))
        for at, subtask in enumerate(published.SUBTASKS)
    ]  # fmt: skip
    return Grid(f"Accuracy of MSD-Score by subtask, % ({_size(table)})", ("subtask", *columns), tuple(cells))


def _kappa(tables: Mapping[str, Json]) -> list[Grid]:
    return [means_grid(tables, published.KAPPA, {next(iter(tables)): "ours"})]


def _values(tables: Mapping[str, Json]) -> list[Grid]:
    """Return the sweep of a setting without a table in the paper."""
    table = next(iter(tables.values()))
    head = table["headline"]
    cells = {(row["variant"], row["metric"]): row[head] for row in table["rows"]}
    setting = next(iter(cells))[0].partition("=")[0]
    # Only Soft-MSD has a temperature.
    labels = ("soft-msd",) if setting == "temperature" else ("msd", "soft-msd")
    by_label = {label: {variant: value for (variant, own), value in cells.items() if own == label} for label in labels}
    rows = tuple((label, *map(share, values.values())) for label, values in by_label.items() if values)
    cosine = next((value for (_, label), value in cells.items() if label == "cosine"), None)
    widths = [
        value["high"] - value["low"] for own in by_label.values() for value in own.values() if value["high"] is not None
    ]
    notes = [] if cosine is None else [f"cosine: {bounded(cosine)}"]
    notes += [f"half of an interval is {_PER_CENT * max(widths) / 2:.1f} points at most"] if widths else []
    values = [variant.partition("=")[2] for variant in by_label[labels[-1]] or by_label[labels[0]]]
    return [Grid(f"{head} ({_size(table)})", (setting, *values), rows, tuple(notes))]


def _stability(tables: Mapping[str, Json]) -> list[Grid]:
    rows = [
        (row["mixture"], f"{row['ari']['value']:.3f} ± {row['deviation']:.3f}", _papers_index(row["mixture"]))
        for row in tables["clusterings"]["rows"]
    ]
    drawn, fixed, over_seeds, moved, _ = tables["scores"]["rows"]
    mean, deviation = (_PER_CENT * drawn[name] for name in ("value", "deviation"))
    facts = (
        ("accuracy, `sample`, mean ± deviation over seeds", f"{mean:.1f} ± {deviation:.1f}"),
        ("accuracy, `spread`", bounded(fixed["value"])),
        (over_seeds["figure"], f"{over_seeds['value']['value']:.4f}"),
        (moved["figure"], f"{moved['value']['value']:+.4f}"),
    )
    title = f"MSD-Score over {tables['scores']['seeds']} seeds ({tables['scores']['pairs']} pairs)"
    return [
        Grid("Adjusted Rand index between seeds, mean ± deviation over captions (higher is more stable)",
             ("distribution", "ours", "paper"), tuple(rows)),
        Grid(title, ("figure", "ours"), facts),
    ]  # fmt: skip


def _papers_index(name: str) -> str:
    known = published.STABILITY.get("Gaussian" if name.startswith("Gaussian, diagonal") else name)
    return NONE if known is None else f"{known[0]:.3f} ± {known[1]:.3f}"


def _entropy(tables: Mapping[str, Json]) -> list[Grid]:
    rows = tables["bins"]["rows"]
    heads = [name for name in rows[0] if name.startswith(("entropy, ", "hard, "))]
    cells = [
        (row["tokens"],
         *(f"{row[name]['value']:.3f}" if name.startswith("entropy") else f"{_PER_CENT * row[name]['value']:.0f} %"
           for name in sorted(heads, key=lambda name: name.partition(",")[0])))
        for row in rows
    ]  # fmt: skip
    columns = ("tokens", *sorted(heads, key=lambda name: name.partition(",")[0]))
    return [Grid("Entropy of responsibilities, nats", columns, tuple(cells))]


def _direction(tables: Mapping[str, Json]) -> list[Grid]:
    """Return Soft-MSD by direction on every benchmark in one grid, and accuracies by length."""
    rows: dict[str, list[str]] = {}
    columns = []
    for name, table in tables.items():
        if name != "by_length":
            columns.append(f"{table['benchmark']}: {table['headline']}")
            for row in table["rows"]:
                if row["metric"] == "soft-msd":
                    rows.setdefault(row["variant"], []).append(bounded(row[table["headline"]]))
    papers = {name: f"{values[0]:.1f}" for name, values in published.DIRECTION.items()}
    cells = tuple((variant, *values, papers.get(variant, NONE)) for variant, values in rows.items())
    labels = ("coverage", "support", "bi-kl")
    buckets = tuple(
        (row["tokens"], str(row["pairs"]), *(f"{_PER_CENT * row[label]['value']:.1f}" for label in labels))
        for row in tables["by_length"]["rows"]
    )
    theirs = "; ".join(f"{name}: {'/'.join(f'{x:.1f}' for x in row)}" for name, row in published.BY_LENGTH.items())
    return [
        Grid(
            "Agreement of Soft-MSD (MSD-Score), %, by direction of the divergence",
            ("direction", *columns, "paper, CapArena"),
            cells,
        ),
        Grid(
            "Accuracy of the parts of MSD-Score, %, by caption length",
            ("tokens", "pairs", *labels),
            buckets,
            (f"the paper's: {theirs}",),
        ),
    ]


def _full_direction(tables: Mapping[str, Json]) -> list[Grid]:
    """Return Soft-MSD on CapArena by direction, and by caption length."""
    table = tables["caparena"]
    names = tuple(published.CAPARENA_COLUMNS.values())
    rows = [
        (row["variant"], *(_printed(row.get(name), name) for name in names))
        for row in table["rows"]
        if row["metric"] == "soft-msd"
    ]
    rows += [
        (f"{name} {QUOTED}", *(_printed({"value": value / 100}, at) for at, value in zip(names, values, strict=True)))
        for name, values in published.DIRECTION.items()
    ]
    labels = ("coverage", "support", "bi-kl")
    buckets = [
        (row["tokens"], str(row["pairs"]), f"{row['mean']:.1f}", *(share(row[label]) for label in labels))
        for row in tables["by_length"]["rows"]
    ]
    buckets += [
        (f"{name} {QUOTED}", str(pairs), f"{mean:.1f}", *(f"{value:.1f}" for value in values))
        for (name, values), (pairs, mean) in zip(published.BY_LENGTH.items(), published.BY_LENGTH_PAIRS, strict=True)
    ]
    return [
        Grid(f"Soft-MSD ({_size(table)})", ("direction", *published.CAPARENA_COLUMNS), tuple(rows)),
        Grid("Accuracy by length", ("tokens", "pairs", "mean", *labels), tuple(buckets)),
    ]


def _margin(tables: Mapping[str, Json]) -> list[Grid]:
    """Return the bins of each split, or of the first benchmark, with the paper's gains on its dataset."""
    labels = ("clipscore", "msd", "soft-msd")
    columns = ("mean margin", *labels, "soft-msd − clipscore", "paper: Easy, Hard")
    grids = []
    for name in [name for name in tables if name.partition("-")[0] == "bins"]:
        rows = tuple(
            (f"{row['margin']:.4f}", *(share(row[label]) for label in labels), bounded(row["gain"], "+.1f"),
             ", ".join(f"{bins[row['bin']][6]:+.1f}" for bins in published.MARGIN.values()))
            for row in tables[name]["rows"]
        )  # fmt: skip
        gain, split = tables[name.replace("bins", "gains")]["rows"][0], name.partition("-")[2]
        tests = "; ".join(
            f"{key.removeprefix('p, ')}: p {value:.3g}"
            for key, value in gain.items()
            if key.startswith("p, ") and value is not None
        )
        plain = gain.get("difference, plain percentiles")
        tests = "; ".join(
            filter(None, (plain and f"plain percentiles {bounded(plain, '+.1f').partition(' ')[2]}", tests))
        )
        notes = (f"over all pairs {gain['metrics']}: {bounded(gain['difference'], '+.1f')} ({tests})",)
        title = "Accuracy of MSD-Score, %, by cosine margin" + (f", {split}" if split else "")
        grids.append(Grid(f"{title} ({_size(tables[name])})", columns, rows, notes))
    return grids


def _full_margin(tables: Mapping[str, Json]) -> list[Grid]:
    """Return the bins of each split with the paper's below, and the tests over all pairs."""
    labels = ("clipscore", "coverage", "msd", "soft-msd")
    columns = ("bin", "mean Δcos", "mean u", "CLIPScore", "coverage", "MSD", "Soft-MSD", "gain")
    grids = []
    for grid, name in zip(_margin(tables), [name for name in tables if name.startswith("bins")], strict=True):
        rows = [
            (str(row["bin"]), f"{row['margin']:.4f}", f"{row['uncertainty']:.3f}",
             *(share(row[label], ".2f") for label in labels), bounded(row["gain"], "+.2f"))
            for row in tables[name]["rows"]
        ]  # fmt: skip
        known = published.MARGIN.get(f"{name.partition('-')[2].title()}-CF", ())
        rows += [
            (f"{number} {QUOTED}", f"{margin:.4f}", f"{u:.3f}", *(f"{value:.2f}" for value in values), f"{gain:+.2f}")
            for number, (margin, u, *values, gain) in enumerate(known)
        ]
        grids.append(Grid(grid.title, columns, tuple(rows), grid.notes))
    return grids


def _transfer(tables: Mapping[str, Json]) -> list[Grid]:
    rows = tables["encoders"]["rows"]
    labels = [name for name, value in rows[0].items() if isinstance(value, Mapping) and " − " not in name]
    gain = f"soft-msd − {labels[0]}"
    cells = tuple(
        (f"{row['dataset']}, {row['encoder']}", *(bounded(row[label]) for label in labels),
         f"{bounded(row[gain], '+.1f')} (p {row[f'{gain}, p_holm']:.3f})")
        for row in rows
    )  # fmt: skip
    return [Grid("Accuracy of MSD-Score, %", ("set and encoder", *labels, f"{gain} (p, Holm)"), cells)]


def _full_backbones(tables: Mapping[str, Json]) -> list[Grid]:
    """Return all subtasks for each encoder and metric."""
    table = next(table for name, table in tables.items() if name != "encoders")
    figures = ("accuracy/mean", *(f"accuracy/{name}" for name in published.SUBTASKS))
    rows = tuple((row["variant"], row["metric"], *(share(row.get(name)) for name in figures)) for row in table["rows"])
    columns = ("encoder", "metric", *(name.removeprefix("accuracy/") for name in figures))
    return [*_transfer(tables), Grid(f"By subtask ({_size(table)})", columns, rows)]


def _ood(tables: Mapping[str, Json]) -> list[Grid]:
    (ours,) = _transfer(tables)
    theirs = "; ".join(f"{name} {'/'.join(f'{x:.1f}' for x in values)}" for name, values in published.OOD.items())
    return [replace(ours, notes=(f"the paper's, in these columns: {theirs}",))]


def _full_ood(tables: Mapping[str, Json]) -> list[Grid]:
    theirs = tuple((name, *(f"{value:.1f}" for value in values)) for name, values in published.OOD.items())
    return [*_transfer(tables), Grid("The paper's", ("set and encoder", "clipscore", "msd", "soft-msd"), theirs)]


def _faithfulness(tables: Mapping[str, Json]) -> list[Grid]:
    regions, masking = ("top", "random", "bottom"), tables["masking"]
    rows = [
        (f"{row['kind']}, {row['masking']}", row["projection"], *(f"{row[region]['value']:+.4f}" for region in regions))
        for row in masking["rows"]
        if row["projection"] in ("influence", "carried")
    ]
    rows += [
        (f"{kind} {QUOTED}", "carried", *(f"{value:+.4f}" for value in values))
        for kind, values in published.FAITHFULNESS.items()
    ]
    title = f"Effect of masking 10 % of the regions on d, nats ({masking['pairs']} pairs)"
    return [Grid(title, ("captions", "map", *regions), tuple(rows))]


def _timing(tables: Mapping[str, Json]) -> list[Grid]:
    names = ("features", "EM/KL", "CLIPScore", "MSD", "Soft-MSD")
    rows = [
        (row["tokens"], str(row["pairs"]), *(f"{row[name]['value']:.2f}" for name in names))
        for row in tables["buckets"]["rows"]
    ]
    rows += [
        (f"{name} {QUOTED}", str(pairs), *(f"{value:.2f}" for value in values))
        for name, (pairs, *values) in published.LATENCY.items()
    ]
    machine = tables["buckets"]["machine"]
    return [Grid("Milliseconds per pair", ("tokens", "pairs", *names), tuple(rows), (f"measured on {machine}",))]


_RECONSTRUCTED_ROWS = (
    ("plain", "clipscore"), ("without reconstruction", "soft-msd"), ("with reconstruction", "soft-msd"),
)  # fmt: skip
_RECONSTRUCTED = {
    "docent": ("overall_quality/binary accuracy", "overall_quality/spearman", "overall_quality/kendall"),
    "caparena": ("agreement/all", "model/spearman", "model/kendall"),
}


def _reconstruction(tables: Mapping[str, Json]) -> list[Grid]:
    """Return CLIPScore of the plain encoder, Soft-MSD of both aligners, and the paper's rows."""
    rows: dict[str, list[str]] = {}
    for variant, metric in _RECONSTRUCTED_ROWS:
        for name, figures in _RECONSTRUCTED.items():
            matches = [
                row
                for row in (tables[name]["rows"] if name in tables else ())
                if (row["variant"], row["metric"]) == (variant, metric)
            ]
            label = "CLIPScore" if variant == "plain" else variant
            rows.setdefault(label, []).extend(_printed(matches[0].get(f), f) if matches else NONE for f in figures)
    theirs = {
        f"{name} {QUOTED}": [f"{value:.1f}" if value > 1 else f"{value:.3f}" for value in values]
        for name, values in published.RECONSTRUCTION.items()
    }
    columns = (
        "variant",
        *(f"{name} {head}" for name in ("DocENT", "CapArena") for head in ("Overall", "Spearman", "Kendall")),
    )
    return [Grid("Reconstruction", columns, tuple((name, *cells) for name, cells in (rows | theirs).items()))]


SWEEPS = {"alpha", "components", "iterations", "xi", "l0", "tau-l", "beta"}
PARTS: Mapping[str, Callable[[Mapping[str, Json]], list[Grid]]] = {
    **dict.fromkeys(sorted(SWEEPS), _values),
    "mixtures": _mixtures,
    "kappa": _kappa,
    "stability": _stability,
    "entropy": _entropy,
    "direction": _direction,
    "margin": _margin,
    "reconstruction": _reconstruction,
    "backbones": _transfer,
    "ood": _ood,
    "faithfulness": _faithfulness,
    "timing": _timing,
}


# Replace or follow the parts above on a page with all columns of the paper's tables.
FULL: Mapping[str, Callable[[Mapping[str, Json]], list[Grid]]] = {
    "mixtures": lambda tables: [_subtasks(tables["same_alpha"], published.MIXTURES), *_mixtures(tables)],
    "kappa": lambda tables: [_subtasks(next(iter(tables.values())), published.KAPPA), *_kappa(tables)],
    "direction": _full_direction,
    "margin": _full_margin,
    "backbones": _full_backbones,
    "ood": _full_ood,
}


def part(study: str, result: Json, *, full: bool = False) -> str:
    """Return the tables of a study in Markdown, with their settings; if `full`, with all columns of the paper."""
    grids, signatures = study_grids(study, result, full=full)
    return "\n".join([*map(markdown, grids), *(f"`{signature}`\n" for signature in signatures)])


def study_grids(study: str, result: Json, *, full: bool) -> tuple[list[Grid], list[str]]:
    """Return the tables of a study and the signatures of its results."""
    tables: dict[str, Json] = {}
    for table in result["tables"]:
        tables.setdefault(table["name"], table)
    grids = (FULL if full and study in FULL else PARTS)[study](tables)
    if study == "reconstruction":  # the encoders of its rows differ
        rows = [row for table in result["tables"] if table["name"] in _RECONSTRUCTED for row in table["rows"]]
        shown = [row for row in rows if (row["variant"], row["metric"]) in _RECONSTRUCTED_ROWS]
        return grids, list(dict.fromkeys(row["signature"] for row in shown))
    # A full page lists the settings of every benchmark, whose components may differ.
    parts = [[table] for table in result["tables"]] if full else [result["tables"]]
    signatures = dict.fromkeys(filter(None, map(_signature, parts)))
    return grids, list(signatures)


def _signature(tables: Sequence[Json]) -> str:
    """Return the first signature with mixture settings, or the first one."""
    signatures = list(_signatures(tables))
    return next((text for text in signatures if "kappa:" in text), signatures[0] if signatures else "")


def fill(page: str, parts: Mapping[str, str]) -> str:
    """Return the page with new sections between their markers; raise if a marker is missing.

    >>> fill("a <!-- study kappa: begin --> old <!-- study kappa: end --> z", {"kappa": "new"}).split()[6:-6]
    ['new']
    """
    for study, content in parts.items():
        text = _RULE.sub(lambda match: match[0].replace(" ", ""), content)
        marks = re.compile(rf"(<!-- study {study}: begin -->).*?(<!-- study {study}: end -->)", re.DOTALL)
        if not marks.search(page):
            raise InputError(f"the page has no section for study {study}; add <!-- study {study}: begin --> and end")
        head, tail = marks.split(page, maxsplit=1)[0], marks.split(page, maxsplit=1)[3]
        page = f"{head}<!-- study {study}: begin -->\n\n{text.strip()}\n\n<!-- study {study}: end -->{tail}"
    return page


def _signatures(tables: Sequence[Json]) -> Iterator[str]:
    """Return the signatures of tables and rows, those of the default first (it has no difference from itself)."""
    for table in tables:
        rows = sorted(table["rows"], key=lambda row: row.get("difference", 0) is not None)
        yield from filter(None, (table["signature"], *(row.get("signature") for row in rows)))


def bounded(value: Json | None, form: str = ".1f", scale: float = _PER_CENT) -> str:
    """Format a value with its interval, which may be missing for few images; in per cent unless `scale` is 1."""
    low, high = (value or {}).get("low"), (value or {}).get("high")
    ends = "" if low is None or high is None else f" [{scale * low:{form}}, {scale * high:{form}}]"
    return share(value, form, scale) + ends


def share(value: Json | None, form: str = ".1f", scale: float = _PER_CENT) -> str:
    """Format a value without its interval, in per cent (a correlation times 100) unless `scale` is 1."""
    return NONE if value is None or value["value"] is None else f"{scale * value['value']:{form}}"


def _printed(value: Json | None, name: str) -> str:
    """Format a figure as the paper's tables do: per cent with one decimal, correlations with three."""
    known = None if value is None or value["value"] is None else _PER_CENT * value["value"]
    return printed(known, name, fractions=[name] if name.endswith(("spearman", "kendall")) else ())


def _size(table: Json) -> str:
    return f"{table['benchmark']}, {table['counted']} items, {table['images']} images"


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the existing result files and fill the page."""
    parser = argparse.ArgumentParser(prog="python -m msdscore_lab.paper page", description=__doc__)
    parser.add_argument("--results", type=Path, required=True, help="folder of the studies' result files")
    parser.add_argument("--output", "-o", type=Path, default=Path("docs/lab/paper.md"))
    args = parser.parse_args(arguments)
    text = args.output.read_text(encoding="utf-8")
    placed = [study for study in PARTS if f"<!-- study {study}: begin -->" in text]
    present = [study for study in placed if (args.results / f"{study}.json").is_file()]
    if not present:
        raise InputError(f"{args.results}: expected result files of studies, such as kappa.json, found none")
    parts = {study: part(study, json.loads((args.results / f"{study}.json").read_text("utf-8"))) for study in present}
    page = fill(text, parts)
    write_bytes(args.output, page.encode(), folder=args.output.parent)
