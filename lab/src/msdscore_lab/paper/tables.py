"""Tables of the paper from result files: its printed rows, marked as quoted, and ours, with the paper's decimals."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from msdscore_lab.benchmarks.results.grids import NONE, Grid
from msdscore_lab.benchmarks.results.result import MetricResult, Result, read_result
from msdscore_lab.paper import published
from msdscore_lab.paper.plan import ALIGNED
from msdscore_lab.paper.sections import QUOTED, printed
from msdscore_lab.studies.table import Column, Plot, Row, Table, per_cent, to_figure

TOKENS = ("bleu-4", "cider", "meteor")  # metrics of words
JUDGE = "VLM-as-a-Judge"  # the paper's name of the metric `judge`
# Rows of the paper by metric of `bench`; FLEUR and judges have an argument.
_ROWS = {
    "bleu-4": "BLEU-4", "spice": "SPICE", "cider": "CIDEr", "meteor": "METEOR", "clipscore": "CLIPScore",
    "longclipscore": "LongCLIPScore", "fleur": "FLEUR", "judge": "judge", "msd": "MSD",
    "soft-msd": "Soft-MSD",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PaperRow:
    """Figures of one metric of ours: `row` is the row of the paper that it belongs to, `name` its name in the table."""

    row: str
    name: str
    metric: MetricResult


def results_of(out: Path, benchmark: str) -> list[tuple[str, Result]]:
    """Return the results of a benchmark: the name of a further encoder, empty for the main one, and the result.

    Results with the aligner replace those of the plain main encoder.
    """
    found: dict[str, Result] = {}
    for base in (out, out / ALIGNED):
        for path in sorted(base.glob(f"bench*/{benchmark}*.json")):
            further = path.parent.name.removeprefix("bench").removeprefix("-")
            result = read_result(path)
            if result.benchmark == benchmark:
                found[further] = result
    return sorted(found.items())


def measured(out: Path, benchmark: str) -> Iterator[PaperRow]:
    """Yield our metrics of a benchmark, with the row of the paper that each belongs to."""
    for further, result in results_of(out, benchmark):
        for metric in result.metrics:
            label = metric.label.partition(",")[0].partition(":")[0]
            if label in _ROWS and metric.figures:
                row, encoder = _ROWS[label], published.VLM_NAMES.get(further.removeprefix("judge-"), "")
                uses_encoder = label in ("judge", "soft-msd", "msd")
                title = _ROWS[label] if label in TOKENS else metric.title.partition(":")[0]
                name = _row_title(_ROWS.get(title, title))
                if label in TOKENS and "|tok:ptb" not in f"|{metric.signature}":
                    name = f"{name}, not with the paper's tokens"
                if uses_encoder:
                    name = f"{name} ({encoder or metric.encoder.partition('@')[0]})"
                yield PaperRow(f"{row}, {encoder}" if encoder and uses_encoder else row, name, metric)


def value_of(metric: MetricResult | None, name: str) -> float | None:
    """Return a figure times 100, or None."""
    figure = None if metric is None else metric.figure(name)
    return None if figure is None or figure.value != figure.value else 100 * figure.value


def caparena(out: Path) -> list[Grid]:
    """Return the table of CapArena, reference-based metrics first."""
    same = "the paper's row Soft-MSD equals its row with LLaVA-1.5-7B in all columns"
    return [
        _joined(
            "Agreement with people on CapArena", published.CAPARENA_COLUMNS, published.CAPARENA,
            list(measured(out, "caparena")), references=True,
            notes=(*_notes(out, "caparena"), same),
        )
    ]  # fmt: skip


def docent(out: Path) -> list[Grid]:
    """Return the table of DocENT."""
    rows = list(measured(out, "docent"))
    title, notes = "Mistakes, omissions and overall quality on DocENT", _notes(out, "docent")
    return [_joined(title, published.DOCENT_COLUMNS, published.DOCENT, rows, notes=notes)]


def legacy(out: Path) -> list[Grid]:
    """Return one table of the four legacy benchmarks."""
    heads = [(name, head, figure) for name, heads in published.LEGACY_COLUMNS.items() for head, figure in heads.items()]
    ours: dict[tuple[str, str], dict[str, MetricResult]] = {}
    for name in published.LEGACY_COLUMNS:
        for row in measured(out, name):
            ours.setdefault((row.row, row.name), {})[name] = row.metric
    quoted = [(f"{name} {QUOTED}", tuple(values)) for name, values in published.LEGACY.items()]
    rows = [
        (name, tuple(value_of(metrics.get(benchmark), figure) for benchmark, _, figure in heads))
        for (_, name), metrics in ours.items()
    ]
    columns = ("metric", *(f"{_SHORT[benchmark]} {head}" for benchmark, head, _ in heads))
    cells = [(name, *(printed(value, "") for value in values)) for name, values in (*quoted, *rows)]
    best = _best([values for _, values in rows], start=len(quoted))
    notes = list(dict.fromkeys(note for name in published.LEGACY_COLUMNS for note in _notes(out, name)))
    return [Grid("Legacy benchmarks, times 100", columns, tuple(cells), tuple(notes), best)]


_SHORT = {"flickr8k-expert": "Expert", "flickr8k-cf": "CF", "composite": "Composite", "pascal50s": "Pascal-50S"}
_COCO_CF = {"coverage": "KL(img‖txt)", "support": "KL(txt‖img)", "bi-kl": "Bi-KL", "clipscore": "CLIPScore",
            "msd": "MSD", "soft-msd": "Soft-MSD", "text-only": "text only"}  # fmt: skip


def coco_cf(out: Path) -> list[Grid]:
    """Return the table of COCO-CF by split, with two decimals."""
    rows, best = list[tuple[str, ...]](), set[tuple[int, int]]()
    for split, values in published.COCO_CF.items():
        rows.append((f"{split} {QUOTED}", *(f"{value:.2f}" for value in values), NONE))
        for further, result in results_of(out, "coco-cf"):
            name = f"accuracy/{split.partition('-')[0].lower()}"
            known = {metric.label: value_of(metric, name) for metric in result.metrics}
            own = [known.get(label) for label in _COCO_CF]
            best |= _best([own[:-1]], start=len(rows), across=True)  # without the text alone
            encoder = further or result.encoder.partition("@")[0]
            rows.append((f"{split} ({encoder})", *(printed(value, "", digits=2) for value in own)))
    notes = _notes(out, "coco-cf")
    return [Grid("Accuracy on COCO-CF, %", ("split", *_COCO_CF.values()), tuple(rows), notes, frozenset(best))]


def by_captioner(result: Result) -> list[Grid]:
    """Return the accuracy on COCO-CF by split and captioner, which the paper prints as a figure."""
    names = [figure.name for figure in result.metrics[0].figures]
    rows = tuple(
        (name.removeprefix("accuracy/"), *(printed(value_of(metric, name), "") for metric in result.metrics))
        for name in names
    )
    heads = ("captions", *(_COCO_CF.get(metric.label, metric.title) for metric in result.metrics))
    return [Grid("Accuracy by captioner, %", heads, rows, _result_notes(result))]


def captioner_chart(result: Result) -> bytes | None:
    """Draw the accuracies by captioner, one panel per split."""
    rows: list[Row] = [
        {"split": names[1], "captioner": names[2], "metric": _COCO_CF[metric.label], "accuracy": figure.interval}
        for metric in result.metrics
        if metric.label in _COCO_CF
        for figure in metric.figures
        if len(names := figure.name.split("/")) == 3 and figure.interval is not None
    ]
    plot = Plot(x="captioner", y=["accuracy"], series="metric", panel=["split"], y_label="accuracy, %", level=50.0)
    return to_figure([Table(name="captioners", columns=[Column("captioner"), per_cent("accuracy")], rows=rows,
                            plots=[plot])])  # fmt: skip


_COSINES = {"clipscore,prefix=": "cosine of the model's vectors", "cosine": "cosine of mean vectors"}


def sugarcrepe(out: Path) -> list[Grid]:
    """Return the accuracy on SugarCrepe by subtask, with two decimals; the paper prints that of MSD, twice."""
    names = [f"accuracy/{name}" for name in published.SUBTASKS]
    rows: list[tuple[str, ...]] = [
        (f"MSD, table of {table} {QUOTED}", f"{sum(values) / len(values):.2f}", *(f"{value:.2f}" for value in values))
        for table, values in (("concentrations", published.KAPPA["kappa=20"]),
                              ("distributions", published.MIXTURES["vMF, fixed kappa"]))
    ]  # fmt: skip
    start, ours = len(rows), list[list[float | None]]()
    for further, result in results_of(out, "sugarcrepe"):
        for metric in result.metrics:
            values = [value_of(metric, name) for name in ("accuracy/mean", *names)]
            ours.append(values)
            name = _COSINES.get(metric.label, metric.title)
            name += f", {further} {result.encoder.partition('@')[0]}" if further else ""
            rows.append((name, *(printed(value, "", digits=2) for value in values)))
    columns = ("metric", "mean", *published.SUBTASKS)
    return [
        Grid("Accuracy on SugarCrepe, %", columns, tuple(rows), _notes(out, "sugarcrepe"), _best(ours, start=start))
    ]


_OOD = {"ROCOv2, BiomedCLIP": ("rocov2", "biomedclip"), "RSICD, RemoteCLIP": ("rsicd", "remoteclip-l14")}


def ood(out: Path) -> list[Grid]:
    """Return the table of other domains, each with the encoder of its domain."""
    rows: list[tuple[str, ...]] = []
    for name, values in published.OOD.items():
        benchmark, encoder = _OOD[name]
        rows.append((f"{name} {QUOTED}", *(f"{value:.1f}" for value in values)))
        for further, result in results_of(out, benchmark):
            if further == encoder:
                known = {metric.label: metric for metric in result.metrics}
                head = result.metrics[0].figures[0].name
                own = (value_of(known.get(label), head) for label in ("clipscore", "msd", "soft-msd"))
                rows.append((name, *(printed(value, "") for value in own)))
    notes = tuple(dict.fromkeys(note for benchmark, _ in _OOD.values() for note in _notes(out, benchmark)))
    return [Grid("Accuracy in other domains, %", ("set", "CLIPScore", "MSD", "Soft-MSD"), tuple(rows), notes)]


TABLES: Mapping[str, Callable[[Path], list[Grid]]] = {
    "CapArena": caparena, "DocENT": docent, "Legacy benchmarks": legacy, "SugarCrepe": sugarcrepe, "COCO-CF": coco_cf,
    "Out of domain": ood,
}  # fmt: skip


def _joined(
    title: str,
    columns: Mapping[str, str],
    quoted: Mapping[str, Mapping[str, float]],
    ours: Sequence[PaperRow],
    *,
    notes: tuple[str, ...],
    references: bool = False,
) -> Grid:
    """Return the paper's rows in its order, each followed by ours, then our other metrics.

    With `references`, the second column says whether a metric needs them.
    """
    figures = tuple(columns.values())
    own = [(row.row, row.name, tuple(value_of(row.metric, figure) for figure in figures)) for row in ours]
    rows: list[tuple[str, str, tuple[float | None, ...]]] = []  # row of the paper, name, values
    for name, values in quoted.items():
        rows.append((name, f"{_row_title(name)} {QUOTED}", tuple(values.get(figure) for figure in figures)))
        rows += [row for row in own if row[0] == name]
    rows += [row for row in own if row[0] not in quoted]
    needs = ("No", "Yes")
    cells = tuple(
        (
            name,
            *([needs[row in published.REFERENCES]] if references else []),
            *(printed(value, figure) for value, figure in zip(row_values, figures, strict=True)),
        )
        for row, name, row_values in rows
    )
    own_rows = [index for index, (_, name, _) in enumerate(rows) if not name.endswith(QUOTED)]
    best = _best([rows[index][2] for index in own_rows])
    best = frozenset((own_rows[row], column + references) for row, column in best)
    return Grid(title, ("metric", *(("Need Ref?",) if references else ()), *columns), cells, notes, best)


def _row_title(row: str) -> str:
    """Return the name of a row as the paper prints it.

    >>> _row_title("judge, LLaVA-1.5-7B"), _row_title("FLEUR")
    ('VLM-as-a-Judge (LLaVA-1.5-7B)', 'FLEUR')
    """
    metric, comma, encoder = row.replace("judge", JUDGE).partition(", ")
    return f"{metric} ({encoder})" if comma else metric


def _best(
    rows: Sequence[Sequence[float | None]], *, start: int = 0, across: bool = False
) -> frozenset[tuple[int, int]]:
    """Return the cells with the highest value of each column, or with `across` of each row.

    >>> sorted(_best([(1.0, 4.0), (2.0, None)]))
    [(0, 2), (1, 1)]
    """
    cells = {
        (row, at): value for row, values in enumerate(rows) for at, value in enumerate(values) if value is not None
    }
    best = set()
    for line in {cell[0 if across else 1] for cell in cells}:
        same = {cell: value for cell, value in cells.items() if cell[0 if across else 1] == line}
        highest = max(same.values())
        best |= {(row + start, at + 1) for (row, at), value in same.items() if value == highest}
    return frozenset(best)


def _notes(out: Path, benchmark: str) -> tuple[str, ...]:
    """Return the notes of a table: its marks, and the size and signatures of each result."""
    notes = [f"{QUOTED}: printed in the paper; bold: best of ours"]
    return (*notes, *(note for _, result in results_of(out, benchmark) for note in _result_notes(result)))


def _result_notes(result: Result) -> tuple[str, ...]:
    """Return size and signature of a result; CLIPScore has a signature of its own, that of the plain encoder."""
    known = {metric.label: metric.signature for metric in result.metrics}
    signatures = dict.fromkeys((known.get("clipscore", result.metrics[-1].signature), result.metrics[-1].signature))
    size = f"{result.title}: {result.counted} items, {result.images} images"
    return (", ".join([size, *(f"`{signature}`" for signature in signatures)]),)
