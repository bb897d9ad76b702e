"""Published values from studies: each is one value in the result file of a step of `make paper`."""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import join
from typing import Any

from msdscore.errors import ConfigError
from msdscore_lab.paper import published as tables
from msdscore_lab.paper import run as paper_run
from msdscore_lab.reproduce.campaign import Campaign, Cell, incomplete
from msdscore_lab.reproduce.published import ALIGNER, PAPER, STARTS
from msdscore_lab.reproduce.tolerance import redrawn

OTHER_DEVICE = "not judged: milliseconds depend on the device"
NO_ITEMS = "not judged: the items of the published figure are not known"
_DRAWN = "the mean over captions depends on which captions and starts are drawn"


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFigure:
    """A published value, and its location in a study's result: table, values that select the row, and column.

    `open` is the reason why the value is not judged.
    """

    step: str  # step of `paper.run`
    table: str
    row: Mapping[str, Any]
    column: str  # "headline" is the headline of the table
    value: float
    reason: str
    digits: int = 1  # printed decimals
    encoder: str = "clip-l14"
    scale: float = 100.0
    open: str = ""
    label: str = ""  # row index, instead of values that select the row

    @property
    def name(self) -> str:
        """Description of the value.

        >>> FIGURES[0].name
        'vMF, fixed kappa, msd, headline'
        """
        return ", ".join([self.label or ", ".join(map(str, self.row.values())), self.column])

    def value_in(self, result: Mapping[str, Any]) -> tuple[float, float] | None:
        """Return the scaled value in a result file and its tolerance, or None if the table or row is missing."""
        for table in result["tables"]:
            for position, row in enumerate(table["rows"] if table["name"] == self.table else ()):
                known = {**row, "position": position}
                if all(known.get(name) == value for name, value in self.row.items()):
                    value = row.get(table["headline"] if self.column == "headline" else self.column)
                    interval = value if isinstance(value, Mapping) else {"value": value}
                    if interval["value"] is None:
                        return None
                    ends, n = (interval.get("low"), interval.get("high")), interval.get("n", 0)
                    share = float(interval["value"])
                    allowed = redrawn(share, ends, n, digits=self.digits, scale=self.scale)
                    return round(self.scale * share, 4), round(allowed, 4)
        return None


def _mean(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 2)


def _variants(step: str, table: str, values: Mapping[str, float], **more: Any) -> list[StudyFigure]:
    """Return one value of MSD per variant of a sweep."""
    return [
        StudyFigure(
            step=step, table=table, row={"variant": name, "metric": "msd"}, column="headline", value=value, **more
        )
        for name, value in values.items()
    ]


_MIXTURES = {name: _mean(tables.MIXTURES[name]) for name in ("vMF, fixed kappa", "vMF, adaptive kappa")}
_MIXTURES["Gaussian, diagonal"] = _mean(tables.MIXTURES["Gaussian"])
_KAPPA = {name: _mean(row) for name, row in tables.KAPPA.items()}
FIGURES: tuple[StudyFigure, ...] = (
    *_variants("mixtures", "same_alpha", _MIXTURES, digits=2, reason=STARTS),
    *_variants("kappa", "sugarcrepe", _KAPPA, digits=2, reason=STARTS),
    *(
        StudyFigure(step="stability", table="clusterings", row={"mixture": name}, column="ari", value=100 * value,
                    reason=_DRAWN)
        for name, value in (("vMF, fixed kappa", 0.534), ("Gaussian, diagonal", 0.358))
    ),
    *(
        StudyFigure(step="direction", table="caparena", row={"variant": name, "metric": "soft-msd"},
                    column="headline", value=values[0], reason=ALIGNER)
        for name, values in tables.DIRECTION.items()
    ),
    *(
        StudyFigure(step="direction", table="by_length", row={"position": at}, column="bi-kl", value=values[2],
                    reason=ALIGNER, label=f"{name} tokens")
        for at, (name, values) in enumerate(tables.BY_LENGTH.items())
    ),
    *(
        StudyFigure(step="margin", table=f"gains-{split}", row={"metrics": "soft-msd − clipscore"}, column="difference",
                    value=value, digits=2, reason=ALIGNER, open=NO_ITEMS)
        for split, value in (("easy", 4.70), ("hard", 3.18))
    ),
    *(
        StudyFigure(step="faithfulness", table="masking", column="top", value=values[0], digits=4, reason=ALIGNER,
                    scale=1.0, row={"projection": "carried", "kind": kind, "masking": "patches"})
        for kind, values in tables.FAITHFULNESS.items()
    ),
    *(
        StudyFigure(step="reconstruction", table="encoders", row={"dataset": data, "encoder": name}, column="soft-msd",
                    value=tables.RECONSTRUCTION[name][at], reason="another run of the training")
        for data, at in (("docent", 0), ("caparena", 3))
        for name in ("without reconstruction", "with reconstruction")
    ),
    StudyFigure(step="timing", table="buckets", row={"tokens": "overall"}, column="Soft-MSD",
                value=tables.LATENCY["overall"][5], digits=2, reason=OTHER_DEVICE, scale=1.0, open=OTHER_DEVICE),
)  # fmt: skip
STUDIES = tuple(dict.fromkeys(figure.step for figure in FIGURES))
NONE = "none"


def check_studies(names: Sequence[str]) -> None:
    """Raise `ConfigError` unless all names are known."""
    for name in names:
        if name not in (*STUDIES, NONE):
            raise ConfigError(f"expected a known study, got {name!r}; known: {', '.join(STUDIES)}, none")


def run_studies(
    campaign: Campaign, names: Sequence[str], *, say: Callable[[str], None] = lambda line: None
) -> list[Cell]:
    """Run the steps of the studies and compare; a step that cannot run yields cells with the reason.

    Studies of CLIP ViT-L/14 and of encoders for other domains only run if the campaign includes clip-l14.
    """
    cells: list[Cell] = []
    if "clip-l14" not in campaign.encoders:
        return cells
    for step, encoder in dict.fromkeys((figure.step, figure.encoder) for figure in FIGURES if figure.step in names):
        chosen = [figure for figure in FIGURES if (figure.step, figure.encoder) == (step, encoder)]
        cells += _step_cells(campaign, step, encoder, chosen, say)
    return cells


def _step_cells(
    campaign: Campaign, name: str, encoder: str, figures: Sequence[StudyFigure], say: Callable[[str], None]
) -> list[Cell]:
    output = campaign.output / "studies" / encoder
    output.mkdir(parents=True, exist_ok=True)
    requested = argparse.Namespace(
        data=campaign.data, output=output, encoder=str(campaign.checkpoints.get(encoder, encoder)), local=None,
        limit=campaign.limit, samples=campaign.samples, device=campaign.device, also=[], cache=None, recipe_set=[],
        aligner=None, judge=[], fleur="", random_weights=False,
    )  # fmt: skip
    (step,) = (step for step in paper_run.STEPS if step.name == name)
    reason, result_file = paper_run.run_step(step, requested), step.folder(requested) / step.output
    if reason:
        say(f"{encoder}, study {name}: not run: {reason}")
    result: Mapping[str, Any] = {"tables": []} if reason else _read(result_file)
    command = join(["msdscore", *step.words(requested)])
    reason = reason and f"not run: {reason}"
    return [study_cell(figure, result, reason, command, campaign.limit) for figure in figures]


def _read(path: Path) -> Mapping[str, Any]:
    result: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return result


def study_cell(figure: StudyFigure, result: Mapping[str, Any], reason: str, command: str, limit: int | None) -> Cell:
    """Return one value of a study next to the published one; it is judged only if all items were scored."""
    value = figure.value_in(result)
    ours, allowed = value if value is not None else (None, None)
    cell = Cell(
        encoder=figure.encoder, benchmark=f"study {figure.step}", metric=figure.table, figure=figure.name, ours=ours,
        published=figure.value, tolerance=allowed, command=command, source=PAPER,
        reason=reason or (figure.reason if ours is not None else "no figure: the study has no such row"),
    )  # fmt: skip
    if ours is None or allowed is None:
        return cell
    difference = round(ours - figure.value, 2 if figure.scale > 1 else 4)
    cell = replace(cell, difference=difference)
    if open_reason := figure.open or (f"not judged: at most {limit} items were scored" if limit else ""):
        return replace(cell, reason=open_reason)
    if open_reason := _incomplete(result, figure.row.get("dataset", "")):
        return replace(cell, reason=open_reason)
    return replace(cell, within=abs(difference) <= allowed)


def _incomplete(result: Mapping[str, Any], dataset: str) -> str:
    """Return why a study is not judged: one of its benchmarks, or the one of the row, is not complete."""
    tables = [table for table in result["tables"] if table.get("benchmark") and table.get("counted") is not None]
    tables = [table for table in tables if dataset in ("", table["benchmark"])]
    if not tables:
        return "not judged: the study does not report its items"
    reasons = (incomplete(str(table["benchmark"]), int(table["counted"])) for table in tables)
    return next(filter(None, reasons), "")
