"""Report of a reproduction in Markdown and JSON."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from msdscore.io.files import write_bytes
from msdscore_lab.benchmarks.registry import benchmark
from msdscore_lab.benchmarks.results.grids import NONE, Grid, markdown
from msdscore_lab.benchmarks.run.runner import versions
from msdscore_lab.reproduce.campaign import Cell, summary

PAGE, DATA = "reproduce.md", "reproduce.json"
_COLUMNS = ("encoder", "metric", "figure", "ours", "95 % interval", "published", "difference", "tolerance", "within")


def write_pages(cells: Sequence[Cell], folder: Path) -> None:
    """Write both files atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {"summary": summary(cells), "versions": versions(), "cells": [cell.to_dict() for cell in cells]}
    text = json.dumps(content, ensure_ascii=False, indent=1, allow_nan=False) + "\n"
    write_bytes(folder / DATA, text.encode(), folder=folder)
    write_bytes(folder / PAGE, to_markdown(cells).encode(), folder=folder)


def to_markdown(cells: Sequence[Cell]) -> str:
    """Return the summary, one table per benchmark, the reasons of the tolerances, and the command of every run."""
    counts = summary(cells)
    judged = counts["within"] + counts["outside"]
    head = (
        f"{counts['within']} of {judged} judged figures are within their tolerance; {counts['not_judged']} are "
        f"reported without a verdict, {counts['missing']} are missing. Figures are per cent, or correlations times 100."
    )
    names = list(dict.fromkeys(cell.benchmark for cell in cells))
    tables = [markdown(_table(name, [cell for cell in cells if cell.benchmark == name])) for name in names]
    parts = ["# Published figures and ours", head, markdown(_verdicts(cells)), _missed(cells), "## Figures", *tables,
             _reasons(cells), _runs(cells)]  # fmt: skip
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


VERDICTS = ("reproduced", "not reproduced", "not judged", "not run")


def verdict(cell: Cell) -> str:
    """Return the verdict of a cell, one of `VERDICTS`; only figures on complete data are judged."""
    if cell.ours is None:
        return "not run"
    return "not judged" if cell.within is None else "reproduced" if cell.within else "not reproduced"


def _verdicts(cells: Sequence[Cell]) -> Grid:
    """Return the number of published figures by benchmark and verdict."""
    known = [cell for cell in cells if cell.published is not None]
    benchmarks = list(dict.fromkeys(cell.benchmark for cell in known))
    counts = Counter((cell.benchmark, verdict(cell)) for cell in known)
    rows = tuple((name, *(str(counts[name, outcome]) for outcome in VERDICTS)) for name in benchmarks)
    return Grid("Verdicts", ("benchmark or study", *VERDICTS), rows)


def _missed(cells: Sequence[Cell]) -> str:
    """Return the figures that were not reproduced."""
    missed = [cell for cell in cells if verdict(cell) == "not reproduced"]
    lines = [f"- {cell.name}: {cell.ours:.2f}, published {cell.published:.2f}, ±{cell.tolerance:g}" for cell in missed]
    return "\n".join(["Not reproduced:", "", *lines]) if lines else ""


def _table(name: str, cells: Sequence[Cell]) -> Grid:
    rows = tuple(
        (cell.encoder, cell.metric, cell.figure, _number(cell.ours), _interval(cell), _number(cell.published),
         NONE if cell.difference is None else f"{cell.difference:+.2f}",
         NONE if cell.tolerance is None else f"±{cell.tolerance:g}", _verdict(cell))
        for cell in cells
    )  # fmt: skip
    notes = dict.fromkeys(
        f"{cell.encoder}: {cell.reason}" for cell in cells if cell.within is None and cell.published is not None
    )
    title = name if name.startswith("study ") else benchmark(name).title
    return Grid(title, _COLUMNS, rows, tuple(notes))


def _verdict(cell: Cell) -> str:
    return NONE if cell.within is None else "yes" if cell.within else "**no**"


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def _interval(cell: Cell) -> str:
    return NONE if cell.low is None or cell.high is None else f"[{cell.low:.2f}, {cell.high:.2f}]"


def _reasons(cells: Sequence[Cell]) -> str:
    judged = [cell for cell in cells if cell.within is not None]
    lines = dict.fromkeys(f"- ±{cell.tolerance:g}, {cell.source}: {cell.reason}." for cell in judged)
    return "\n".join(["## Sources and tolerances", "", *lines]) if lines else ""


def _runs(cells: Sequence[Cell]) -> str:
    """Return the command of every run with the signatures of its metrics."""
    lines = ["## Runs", "", "The signature contains every setting that affects a score."]
    for command in dict.fromkeys(cell.command for cell in cells):
        signatures = dict.fromkeys(cell.signature for cell in cells if cell.command == command and cell.signature)
        lines += ["", "```console", f"$ {command}", "```", "", *(f"- `{signature}`" for signature in signatures)]
    return "\n".join(lines)
