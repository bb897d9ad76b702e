"""Tables of studies with the rows that the paper prints, and the sections of documentation pages."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from msdscore.errors import InputError
from msdscore.io.files import write_bytes
from msdscore_lab.benchmarks.results.grids import NONE, Grid, markdown
from msdscore_lab.paper import published
from msdscore_lab.studies.table import Column, cell, per_cent, to_grid

Json = Mapping[str, Any]  # a result file, a table or a row of it
Grids = Callable[[Mapping[str, Json]], list[Grid]]
METRICS = ("cosine", "msd", "precision", "information", "penalty", "max-sim-cal")
BOUNDED = ("cosine", "msd")  # metrics whose intervals are printed
# Row title, benchmark, statistic.
FIGURES = (
    ("SugarCrepe, mean of 7, accuracy", "sugarcrepe", "accuracy/mean"),
    ("Flickr8k-Expert, tau-c", "flickr8k-expert", "tau_c"),
    ("Composite, tau-c", "composite", "tau_c"),
    ("Pascal-50S, mean of four, accuracy", "pascal50s", "accuracy/mean"),
    ("Pascal-50S, people against machines", "pascal50s", "accuracy/HM"),
    ("THumB, total, correlation", "thumb", "total"),
    ("THumB, total, machines only", "thumb", "total/machines"),
    ("THumB, recall, machines only", "thumb", "recall/machines"),
    ("long captions, clean against hallucinating", "long-captions", "pairs"),
    ("the same, within five words of length", "long-captions", "pairs/matched length"),
    ("RSICD, drawn pairs, accuracy", "rsicd", "accuracy/all"),
)
BENCHMARKS = tuple(dict.fromkeys(name for _, name, _ in FIGURES))
QUOTED = "(quoted)"
CORRELATIONS = ("spearman", "kendall")
_RULE = re.compile(r"^\|[ :|-]+\|$", re.MULTILINE)  # separator below the head of a table, which is shortened


def printed(value: float | None, name: str, *, digits: int = 1) -> str:
    """Format a value (times 100) as the paper prints it; rank correlations of models have three decimals.

    >>> printed(-57.4, "model/spearman"), printed(63.93, "accuracy/easy", digits=2)
    ('-0.574', '63.93')
    """
    if value is None:
        return NONE
    return f"{value / 100:.3f}" if name.endswith(CORRELATIONS) else f"{value:.{digits}f}"


def generic(tables: Mapping[str, Json]) -> list[Grid]:
    """Return the tables of a study with the columns of its page."""
    return [to_grid(table) for table in tables.values() if table["columns"]]


def _subtasks(tables: Mapping[str, Json], papers: Mapping[str, Sequence[float]]) -> list[Grid]:
    """Return MSD-Score by variant on every subtask of SugarCrepe."""
    names = ("mean", *published.SUBTASKS)
    columns = [
        Column("variant", "choice"),
        *(per_cent(f"accuracy/{name}", name, ends=name == "mean") for name in names),
    ]
    columns += [per_cent("difference", signed=True), Column("p", "", "p")]
    quoted = [
        (f"{name} {QUOTED}", f"{sum(values) / len(values):.1f}", *(f"{value:.2f}" for value in values), NONE, NONE)
        for name, values in papers.items()
    ]
    titles = {"same_alpha": ", the same alpha", "equal_weight": ", equal weight of the divergences"}
    return [
        to_grid(table, columns, title=f"Accuracy of MSD-Score, %{titles.get(name, '')}", where={"metric": ["msd"]},
              quoted=quoted)
        for name, table in tables.items()
    ]  # fmt: skip


def _sweep(tables: Mapping[str, Json]) -> list[Grid]:
    """Return the headline of a sweep without a table in the paper."""
    keys = ("metric", "variant", "difference", "p")
    return [
        to_grid(table, [Column(**one) for one in table["columns"] if one["name"] in (*keys, table["headline"])])
        for table in tables.values()
    ]


def _by_set(tables: Mapping[str, Json]) -> list[Grid]:
    """Return MSD-E of every set at the value in use, and the paired differences at the others."""
    rows = {name: [row for row in table["rows"] if row["metric"] == "msd"] for name, table in tables.items()}
    first = next(iter(tables.values()))
    variants = [row["variant"] for row in next(iter(rows.values())) if row["variant"] != first["baseline"]]
    cells = []
    for name, table in tables.items():
        scale = next(column["scale"] for column in table["columns"] if column["name"] == table["headline"])
        own = {row["variant"]: row for row in rows[name]}
        figure = cell(own[table["baseline"]][table["headline"]], Column("", "", ".1f", scale, ends=False))
        changes = [own[variant]["difference"] for variant in variants]
        cells.append((name, figure, *(cell(change, Column("", "", "+.1f", scale)) for change in changes)))
    title = f"MSD-E by {first['axis']}: paired difference in points from {first['baseline']}; below 0 is worse"
    return [Grid(title, ("set", "in use", *variants), tuple(cells))]


def _stability(tables: Mapping[str, Json]) -> list[Grid]:
    quoted = [
        (f"{name} {QUOTED}", *(f"{value:.3f}" for value in values)) for name, values in published.STABILITY.items()
    ]
    columns = [Column("mixture", "distribution"), Column("ari", "index", ".3f", ends=False),
               Column("deviation", "deviation over captions", ".3f")]  # fmt: skip
    title = "Adjusted Rand index between seeds (higher is more stable)"
    return [to_grid(tables["clusterings"], columns, title=title, quoted=quoted)]


def _direction(tables: Mapping[str, Json]) -> list[Grid]:
    """Return Soft-MSD by direction on every benchmark, and the accuracy of the divergences by length."""
    grids = []
    for name, table in tables.items():
        if name == "by_length":
            continue
        heads = published.CAPARENA_COLUMNS if name == "caparena" else {table["headline"]: table["headline"]}
        columns = [Column("variant", "direction"), *(_printed_column(figure, head) for head, figure in heads.items())]
        rows = published.DIRECTION if name == "caparena" else {}
        quoted = [
            (f"{direction} {QUOTED}", *(printed(v, at) for v, at in zip(values, heads.values(), strict=True)))
            for direction, values in rows.items()
        ]
        grids.append(
            to_grid(table, columns, title=f"Soft-MSD on {name}", where={"metric": ["soft-msd"]}, quoted=quoted)
        )
    quoted = [
        (f"{name} {QUOTED}", str(pairs), f"{mean:.1f}", *(f"{value:.1f}" for value in values))
        for (name, values), (pairs, mean) in zip(published.BY_LENGTH.items(), published.BY_LENGTH_PAIRS, strict=True)
    ]
    columns = [Column("tokens"), Column("pairs"), Column("mean", "", ".1f"),
               *(per_cent(name, ends=False) for name in ("coverage", "support", "bi-kl"))]  # fmt: skip
    return [*grids, to_grid(tables["by_length"], columns, title="Accuracy by length, %", quoted=quoted)]


def _printed_column(figure: str, head: str) -> Column:
    is_correlation = figure.endswith(CORRELATIONS)
    return Column(figure, head, ".3f" if is_correlation else ".1f", 1 if is_correlation else 100, ends=False)


def _margin(tables: Mapping[str, Json]) -> list[Grid]:
    """Return the bins of each split with the paper's below, and the tests over all pairs."""
    labels = {"clipscore": "CLIPScore", "coverage": "coverage", "msd": "MSD", "soft-msd": "Soft-MSD"}
    columns = [Column("bin"), Column("margin", "mean Δcos", ".4f"), Column("uncertainty", "mean u", ".3f"),
               *(Column(name, head, ".2f", 100, ends=False) for name, head in labels.items()),
               Column("gain", "gain", "+.2f", 100)]  # fmt: skip
    grids = []
    for name in [name for name in tables if name.partition("-")[0] == "bins"]:
        split = name.partition("-")[2]
        quoted = [
            (f"{number} {QUOTED}", f"{margin:.4f}", f"{u:.3f}", *(f"{value:.2f}" for value in values), f"{gain:+.2f}")
            for number, (margin, u, *values, gain) in enumerate(published.MARGIN.get(f"{split.title()}-CF", ()))
        ]
        title = ", ".join(filter(None, ("Accuracy by cosine margin, %", split)))
        grids += [
            to_grid(tables[name], columns, title=title, quoted=quoted),
            to_grid(tables[name.replace("bins", "gains")]),
        ]
    return grids


def _faithfulness(tables: Mapping[str, Json]) -> list[Grid]:
    regions = ("top", "random", "bottom")
    columns = [Column("kind", "captions"), Column("masking", "masked"), Column("projection", "map"),
               *(Column(name, "", "+.4f", ends=False) for name in regions)]  # fmt: skip
    quoted = [
        (f"{kind} {QUOTED}", "patches", "carried", *(f"{value:+.4f}" for value in values))
        for kind, values in published.FAITHFULNESS.items()
    ]
    title = f"Effect of masking 10 % of the regions on d, nats ({tables['masking']['pairs']} pairs)"
    where = {"projection": ("influence", "carried")}
    return [to_grid(tables["masking"], columns, title=title, where=where, quoted=quoted)]


def _timing(tables: Mapping[str, Json]) -> list[Grid]:
    names = ("features", "EM/KL", "CLIPScore", "MSD", "Soft-MSD")
    columns = [Column("tokens"), Column("pairs"), *(Column(name, "", ".2f", ends=False) for name in names)]
    quoted = [
        (f"{name} {QUOTED}", str(pairs), *(f"{value:.2f}" for value in values))
        for name, (pairs, *values) in published.LATENCY.items()
    ]
    return [to_grid(tables["buckets"], columns, title="Milliseconds per pair", quoted=quoted)]


_RECONSTRUCTED = {
    "docent": ("overall_quality/binary accuracy", "overall_quality/spearman", "overall_quality/kendall"),
    "caparena": ("agreement/all", "model/spearman", "model/kendall"),
}


def _reconstruction(tables: Mapping[str, Json]) -> list[Grid]:
    """Return CLIPScore of the plain encoder, Soft-MSD of both aligners, and the paper's rows."""
    rows = []
    for variant in published.RECONSTRUCTION:
        key = ("plain", "clipscore") if variant == "CLIPScore" else (variant, "soft-msd")
        cells = []
        for name, figures in _RECONSTRUCTED.items():
            found = (
                [row for row in tables[name]["rows"] if (row["variant"], row["metric"]) == key]
                if name in tables
                else []
            )
            cells += [cell(found[0].get(at), _printed_column(at, "")) if found else NONE for at in figures]
        rows.append((variant, *cells))
    for variant, values in published.RECONSTRUCTION.items():
        rows.append((f"{variant} {QUOTED}", *(f"{value:.1f}" if value > 1 else f"{value:.3f}" for value in values)))
    heads = [f"{name} {head}" for name in ("DocENT", "CapArena") for head in ("Overall", "Spearman", "Kendall")]
    return [Grid("Reconstruction", ("variant", *heads), tuple(rows))]


STUDIES: Mapping[str, Grids] = {
    "mixture": partial(_subtasks, papers=published.MIXTURES),
    "kappa": partial(_subtasks, papers=published.KAPPA),
    **dict.fromkeys(("alpha", "components", "iterations", "xi", "l0", "tau-l", "beta"), _sweep),
    **dict.fromkeys(("balance", "delta"), _by_set),
    "stability": _stability,
    "direction": _direction,
    "margin": _margin,
    "reconstruction": _reconstruction,
    "faithfulness": _faithfulness,
    "timing": _timing,
}


def study_grids(name: str, result: Json) -> list[Grid]:
    """Return the tables of a study, with the paper's rows if it prints some."""
    tables: dict[str, Json] = {}
    for table in result["tables"]:
        tables.setdefault(table["name"], table)
    return STUDIES.get(name, generic)(tables)


def headline_grid(results: Mapping[str, Json]) -> Grid:
    """Return a grid with one row per statistic, one column per metric, and the wrong-image control."""
    rows, signature = [], ""
    value, with_ends = per_cent("", ends=False), per_cent("")
    for title, benchmark, name in FIGURES:
        if benchmark not in results:
            continue
        metrics = {metric["label"]: metric for metric in results[benchmark]["metrics"]}
        figures = {label: _figure(metrics.get(label), "figures", name) for label in METRICS}
        wrong = [cell(_figure(metrics.get(label), "control", name), value) for label in BOUNDED]
        cells = [cell(figures[label], with_ends if label in BOUNDED else value) for label in METRICS]
        rows.append((title, str((figures["cosine"] or {}).get("n", NONE)), *cells, " / ".join(wrong)))
        signature = signature or metrics.get("msd", {}).get("signature", "").partition("|bench:")[0]
    names = ("precision", "information", "penalty", "max-sim-cal")
    columns = ("set", "n", "cosine", "**MSD-E**", *names, "wrong image: cosine / MSD-E")
    title = "Agreement with people, times 100; higher is better, 95 % intervals"
    return Grid(title, columns, tuple(rows), (f"`{signature}`",))


def _figure(metric: Json | None, kind: str, name: str) -> Json | None:
    """Return a statistic of a metric by name, with its interval."""
    match = next((figure for figure in (metric or {}).get(kind) or () if figure["name"] == name), None)
    return None if match is None else {"low": None, "high": None, **(match.get("interval") or {}), **match}


def choices_grid() -> Grid:
    """Return what the paper leaves open, with our choices."""
    return Grid("What the paper leaves open", ("subject", "our choice", "reason"), published.CHOICES)


def contradictions_grid() -> Grid:
    """Return where the paper contradicts itself."""
    heads = ("the paper", "but", "here")
    return Grid("Where the paper contradicts itself", heads, published.CONTRADICTIONS)


def text_table(grid: Grid) -> str:
    """Return a grid of sentences as Markdown, aligned at the left."""
    return markdown(grid).replace("---:", ":---")


FIXED = {"choices": choices_grid, "contradictions": contradictions_grid}  # sections without a result file


def sections(names: Iterable[str], folder: Path) -> dict[str, str]:
    """Return the content of the sections for which the folder has result files."""
    files = {name: folder / f"{name}.json" for name in (*names, *BENCHMARKS)}
    present: dict[str, Json] = {
        name: json.loads(path.read_text(encoding="utf-8")) for name, path in files.items() if path.is_file()
    }
    if not present:
        raise InputError(f"{folder}: expected result files such as sugarcrepe.json or kappa.json, found none")
    filled = {}
    for name in names:
        if name in FIXED:
            filled[name] = text_table(FIXED[name]())
        elif name == "benchmarks" and any(other in present for other in BENCHMARKS):
            filled[name] = markdown(headline_grid(present))
        elif name in present:
            filled[name] = "\n".join(map(markdown, study_grids(name, present[name])))
    return filled


_SECTION = re.compile(r"(<!-- study ([\w-]+): begin -->).*?(<!-- study \2: end -->)", re.DOTALL)


def filled_page(page: str, parts: Mapping[str, str]) -> str:
    """Return a page with new sections between their markers.

    >>> filled_page("a <!-- study kappa: begin --> old <!-- study kappa: end --> z", {"kappa": "new"}).split()[6:-6]
    ['new']
    """

    def section(match: re.Match[str]) -> str:
        if match[2] not in parts:
            return match[0]
        text = _RULE.sub(lambda rule: rule[0].replace(" ", ""), parts[match[2]])
        return f"{match[1]}\n\n{text.strip()}\n\n{match[3]}"

    return _SECTION.sub(section, page)


def fill_page(page: Path, results: Path) -> None:
    """Fill the marked sections of a Markdown page from the result files of a folder."""
    text = page.read_text(encoding="utf-8")
    parts = sections([match[2] for match in _SECTION.finditer(text)], results)
    write_bytes(page, filled_page(text, parts).encode(), folder=page.parent)
