"""Sections of the evidence page: agreement of the default form with people, and studies of its words and maps.

`make evidence` writes the result files (`sugarcrepe.json`, `form.json` …) and fills the page.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from msdscore_lab.benchmarks.results.grids import NONE, Grid

Json = Mapping[str, Any]  # a result file, a table or a row of it, or an interval
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
_PER_CENT = 100


def headline_grid(results: Mapping[str, Json]) -> Grid:
    """Return a grid with one row per statistic, one column per metric, and the wrong-image control."""
    rows, signature = [], ""
    for title, benchmark, name in FIGURES:
        if benchmark not in results:
            continue
        metrics = {metric["label"]: metric for metric in results[benchmark]["metrics"]}
        figures = {label: _figure(metrics.get(label), "figures", name) for label in METRICS}
        wrong = [share(_figure(metrics.get(label), "control", name)) for label in BOUNDED]
        cells = [(bounded if label in BOUNDED else share)(figures[label]) for label in METRICS]
        rows.append((title, str((figures["cosine"] or {}).get("n", NONE)), *cells, " / ".join(wrong)))
        signature = signature or metrics.get("msd", {}).get("signature", "").partition("|bench:")[0]
    names = ("precision", "information", "penalty", "max-sim-cal")
    columns = ("set", "n", "cosine", "**MSD-E**", *names, "wrong image: cosine / MSD-E")
    return Grid(
        "Agreement with people, times 100; higher is better, 95 % intervals", columns, tuple(rows), (f"`{signature}`",)
    )


def bounded(value: Json | None, form: str = ".1f", scale: float = _PER_CENT) -> str:
    """Format a value with its interval, which may be missing for few images; in per cent unless `scale` is 1."""
    low, high = (value or {}).get("low"), (value or {}).get("high")
    ends = "" if low is None or high is None else f" [{scale * low:{form}}, {scale * high:{form}}]"
    return share(value, form, scale) + ends


def share(value: Json | None, form: str = ".1f", scale: float = _PER_CENT) -> str:
    """Format a value without its interval, in per cent (a correlation times 100) unless `scale` is 1."""
    return NONE if value is None or value["value"] is None else f"{scale * value['value']:{form}}"


def _figure(metric: Json | None, kind: str, name: str) -> Json | None:
    """Return a statistic of a metric by name, with its interval."""
    figures = (metric or {}).get(kind) or ()
    match = next((figure for figure in figures if figure["name"] == name), None)
    return None if match is None else {**(match.get("interval") or {}), **match}


def _form(tables: Mapping[str, Json]) -> list[Grid]:
    """Return the paired difference of every variant, and the balance chosen on the other datasets."""
    rows = tables["ablation"]["rows"]
    changes = [name for name, value in rows[0].items() if isinstance(value, Mapping)]
    cells = tuple(
        (row["set"], f"{row['evidence']:.1f}", *(bounded(row[name], "+.1f", 1) for name in changes)) for row in rows
    )
    title = "MSD-E with one part changed: paired difference in points; below 0, the change is worse"
    return [Grid(title, ("set", "in use", *changes), cells, tuple(_settings(tables)))]


def _settings(tables: Mapping[str, Json]) -> Iterator[str]:
    """Return the mean gain by setting, and the value chosen on the other datasets."""
    for setting in dict.fromkeys(row["setting"] for row in tables["left_out"]["rows"]):
        means = [row for row in tables[setting]["rows"] if row["set"] == "mean"]
        curve = ", ".join(f"{row[setting]:g}: {row['gain']:+.1f}" for row in means)
        left_out = [row for row in tables["left_out"]["rows"] if row["setting"] == setting]
        chosen, gains = ([row[key] for row in left_out] for key in ("chosen", "gain"))
        yield f"mean gain over cosine along {setting}: {curve}"
        yield (
            f"{setting} chosen with one set left out: {min(chosen):g} to {max(chosen):g}, "
            f"points over cosine on the set left out: {min(gains):+.1f} to {max(gains):+.1f}"
        )


def _words(tables: Mapping[str, Json]) -> list[Grid]:
    """Return the rates of true and absent words below each p-value, and the calibration error."""
    table, bins = tables["p_values"], tables["bins"]
    rows = [row for row in table["rows"] if row["words"] == "all"]
    kinds = [row["true"]["value"] for row in table["rows"] if row["words"] != "all"]
    cells = tuple((f"{row['level']:g}", *(bounded(row[side]) for side in ("true", "once", "absent"))) for row in rows)
    worst = max(bins["rows"], key=lambda row: abs(row["predicted"] - row["observed"]["value"]))
    spread = f"; by kind of word {_PER_CENT * min(kinds):.1f} to {_PER_CENT * max(kinds):.1f} at 0.1" if kinds else ""
    notes = (
        f"{rows[0]['n']} true words{spread}; AUC of the p-value {_PER_CENT * table['auc']:.1f} (higher is better)",
        f"probabilities are off by {bounded(bins['error'])} points on average (lower is better), most where "
        f"{worst['predicted']:.2f} is predicted and {worst['observed']['value']:.2f} observed",
    )
    columns = ("level", "true words below it, %", "words of one caption, %", "likely and absent, %")
    return [Grid(f"Words with a p-value below a level, % (MSD-E, {table['images']} images)", columns, cells, notes)]


# Sections whose tables have one row per row of a study's table: its name, a title, and the key of each column.
_MAP_COLUMNS = {"map": "map", "n": "n", "highest patch in a box": "pointing", "mass in the boxes": "mass"}
TABLES: Mapping[str, Sequence[tuple[str, str, Mapping[str, str]]]] = {
    "changed": [(
        "changed",
        "P-values of changed words of SugarCrepe and of the words they replace, % (MSD-E)",
        {"subset": "subset", "pairs": "n", "changed word below 0.1": "changed", "original below 0.1": "original",
         "changed below original": "lower", "AUC": "auc"},
    )],
    "chair": [(
        "rows",
        "Invented objects in {captions} long captions, %; higher is better (MSD-E)",
        {"figure": "name", "n": "n", "terms": "true", "wrong image": "wrong", "chance": "chance"},
    )],
    "boxes": [
        ("words", "Maps of words that name an annotated object of COCO, %; higher is better (MSD-E)", _MAP_COLUMNS),
        ("captions", "Maps of whole captions of COCO, %; higher is better (MSD-E)", _MAP_COLUMNS),
    ],
    "suggestions": [(
        "rows",
        "Suggestions for the replaced word of SugarCrepe captions, %; higher is better (MSD-E)",
        {"subset": "subset", "captions": "n", "replaced word in doubt": "doubtful", "and has suggestions": "named",
         "of these, with the original": "right"},
    )],
}  # fmt: skip


def _table_grids(study: str, tables: Mapping[str, Json]) -> list[Grid]:
    """Return the grids of a study in `TABLES`."""
    return [
        Grid(
            title.format_map(tables[name]),
            tuple(columns),
            tuple(tuple(_cell(row[key]) for key in columns.values()) for row in tables[name]["rows"]),
        )
        for name, title, columns in TABLES[study]
    ]


def _cell(value: Any) -> str:
    """Format a value of a result file: a share in per cent, with its interval if it has one; others as they are."""
    if isinstance(value, Mapping):
        return bounded(value)
    return f"{_PER_CENT * value:.1f}" if isinstance(value, float) else str(value)


def _localisation(tables: Mapping[str, Json]) -> list[Grid]:
    keys = ("terms", "occlusion", "wrong_image", "chance")
    rows = tuple(
        (f"{row['subset']}, first {row['depth']}", str(row["items"]), bounded(row["terms"]),
         *(share(row[key]) for key in keys[1:]))
        for row in tables["rows"]["rows"]
    )  # fmt: skip
    columns = ("subset", "captions", "terms", "occlusion", "wrong image", "chance")
    title = "The changed word of SugarCrepe captions among the least supported, %; higher is better (MSD-E)"
    return [Grid(title, columns, rows)]


def _missing(tables: Mapping[str, Json]) -> list[Grid]:
    rows = tuple(
        (str(row["n"]), f"{row['words']:.1f}", *(bounded(row[key]) for key in ("right", "first", "frequent")))
        for row in tables["rows"]["rows"]
    )
    columns = ("images", "words per caption", "confirmed", "the first of them", "as many frequent words")
    return [Grid("Missing words that another caption of the image has, %; higher is better (MSD-E)", columns, rows)]


def _match(tables: Mapping[str, Json]) -> list[Grid]:
    rows = tuple(
        (str(row["captions"]), str(row["n"]), bounded(row["error"]), bounded(row["reached"]))
        for row in tables["lengths"]["rows"]
    )
    bins = tables["bins"]
    notes = (
        "median match: " + ", ".join(f"{name} {value:.2f}" for name, value in bins["medians"].items()),
        "AUC of own captions against: "
        + ", ".join(f"{name} {_PER_CENT * value:.1f}" for name, value in bins["areas"].items()),
    )
    columns = ("captions joined", "n", "error in points (lower is better)", "own at 0.5 or more, % (higher is better)")
    return [Grid(f"Calibration of `match` (MSD-E, {bins['images']} images)", columns, rows, notes)]


EVIDENCE: Mapping[str, Callable[[Mapping[str, Json]], list[Grid]]] = {
    "form": _form,
    "words": _words,
    "changed": partial(_table_grids, "changed"),
    "localisation": _localisation,
    "chair": partial(_table_grids, "chair"),
    "boxes": partial(_table_grids, "boxes"),
    "suggestions": partial(_table_grids, "suggestions"),
    "missing": _missing,
    "match": _match,
}
