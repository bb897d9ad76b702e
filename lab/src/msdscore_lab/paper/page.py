"""The page of a run: tables in the paper's order, verdicts on its values, our choices, and failed steps."""

import json
import shlex
from collections.abc import Iterator
from dataclasses import replace
from os.path import relpath
from pathlib import Path

from msdscore.io.files import write_bytes
from msdscore_lab.benchmarks.results.grids import Grid, markdown
from msdscore_lab.benchmarks.results.result import read_result
from msdscore_lab.benchmarks.results.tables import latex
from msdscore_lab.benchmarks.run.runner import versions
from msdscore_lab.paper import published
from msdscore_lab.paper.compare import VERDICTS, comparison_grid, summary, verdicts
from msdscore_lab.paper.plan import Settings, Step, finished, read_state, steps_of
from msdscore_lab.paper.sections import choices_grid, contradictions_grid, study_grids, text_table
from msdscore_lab.paper.tables import TABLES, by_captioner, captioner_chart

PAGE, TEX, DATA = "paper.md", "paper.tex", "paper.json"


def write_pages(settings: Settings) -> None:
    """Write the page in Markdown, its tables in LaTeX, and the verdicts in JSON, from all finished steps."""
    answers, banner = verdicts(settings), _banner(settings)
    parts, tables = [_head(settings), banner and f"**{banner}**\n"], list[str]()
    counts = summary(answers)
    parts += ["## Published values\n", ", ".join(f"{counts[outcome]} {outcome}" for outcome in VERDICTS) + ".\n"]
    parts += [f"- {one.name}: {one.ours:.4g}, published {one.published.value:g}, ±{one.tolerance:.3g}"
              for one in answers if one.outcome == "not reproduced"]  # fmt: skip
    for title, steps in _titled(settings):
        commands = [f"`{shlex.join(['msdscore', *words])}`\n" for step in steps for words in step.commands(settings)]
        grids, below = _rendered(title, steps[0], settings)
        grids = [_marked(grid, banner, settings) for grid in grids]
        parts += [f"## {title}\n", *commands, *map(markdown, grids), below]
        tables += map(latex, grids)
    parts += ["## All published values\n", markdown(comparison_grid(answers)), "## Our choices\n",
              text_table(choices_grid()), text_table(contradictions_grid()), *_not_run(settings)]  # fmt: skip
    hidden = f"{settings.local}/" if settings.local else ""
    text = "\n".join(filter(None, parts))
    content = {"summary": counts, "versions": versions(), "values": [answer.to_dict() for answer in answers]}
    data = json.dumps(content, ensure_ascii=False, indent=1, allow_nan=False) + "\n"
    for name, body in ((PAGE, text.replace(hidden, "") if hidden else text), (TEX, "\n".join(tables)), (DATA, data)):
        write_bytes(settings.output / name, body.encode(), folder=settings.output)


def _head(settings: Settings) -> str:
    """Return the head of the page: encoder, and which rows use the aligner."""
    if settings.main is None:
        note = f"**Without the local aligner**: all rows use plain {settings.encoder}, unlike the paper's."
    else:
        note = f"Rows use the local aligner `{settings.main.name}`, except those named in our choices; CLIPScore uses "
        note += f"plain {settings.encoder}."
    return f"# The paper with {settings.encoder}\n\nForm `paper`; decimals as the paper prints them. {note}\n"


def _banner(settings: Settings) -> str:
    return f"a trial on at most {settings.limit} items, no result" if settings.limit else ""


def _marked(grid: Grid, banner: str, settings: Settings) -> Grid:
    """Return a grid with the banner in its title, and with the name of the aligner instead of its path."""
    path, name = (str(settings.main), settings.main.name) if settings.main else ("", "")
    rows = tuple(tuple(cell.replace(path, name) if path else cell for cell in row) for row in grid.rows)
    return replace(grid, title=f"{grid.title} ({banner})" if banner else grid.title, rows=rows)


def _titled(settings: Settings) -> Iterator[tuple[str, list[Step]]]:
    """Yield the finished steps of each table or figure, in the paper's order."""
    steps = [step for step in steps_of(settings) if finished(step, settings)]
    for title in dict.fromkeys(step.title for step in steps):
        yield title, [step for step in steps if step.title == title]


def _rendered(title: str, step: Step, settings: Settings) -> tuple[list[Grid], str]:
    """Return the tables of a section, and the Markdown below them."""
    path = step.result(settings)
    if title in TABLES:
        return TABLES[title](settings.output), ""
    if step.name == "ranking":
        return [_ranking(path)], ""
    if path.suffix == ".png":
        return [], _image(path, settings)
    if step.command[0] == "bench":
        result = read_result(path)
        if step.name != "coco-cf-captioners":
            return [], ""  # a check, whose values are among the published ones
        chart = path.with_suffix(".png")
        if not chart.is_file() and (content := captioner_chart(result)):
            write_bytes(chart, content, folder=chart.parent)
        return by_captioner(result), _image(chart, settings)
    return study_grids(step.name, json.loads(path.read_text(encoding="utf-8"))), _image(
        path.with_suffix(".png"), settings
    )


def _image(path: Path, settings: Settings) -> str:
    link = Path(relpath(path, settings.output)).as_posix()
    return f"![{path.stem}]({link})\n" if path.is_file() else ""


def _ranking(path: Path) -> Grid:
    """Return captioners by mean MSD, with the paper's below."""
    rankings = json.loads(path.read_text(encoding="utf-8"))["metrics"]
    (rows,) = (one["placed"] for one in rankings if one["metric"] == "msd")
    ours = [(row["captioner"], f"{row['mean']['value']:.4f}") for row in rows]
    theirs = [(f"{name} (quoted)", f"{value:.4f}") for name, value in published.RANKING.items()]
    return Grid("Captioners by mean MSD", ("captioner", "mean MSD"), (*ours, *theirs))


def _not_run(settings: Settings) -> list[str]:
    """Return the failed steps with their reasons, and the names of those that were not started."""
    states = {step.name: read_state(settings.output, step.name).reason
              for step in steps_of(settings) if not finished(step, settings)}  # fmt: skip
    failed = [f"- {name}: {reason}" for name, reason in states.items() if reason]
    waiting = [name for name, reason in states.items() if not reason]
    lines = [*failed, *([f"- not started: {', '.join(waiting)}"] if waiting else [])]
    return ["## Not run\n", "\n".join(lines) + "\n"] if lines else []
