"""Results as text tables and Markdown: per benchmark, comparisons, an overview."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from msdscore.errors import InputError
from msdscore_lab.benchmarks.protocols.counting import Figure
from msdscore_lab.benchmarks.results.compare import Difference, MetricComparison
from msdscore_lab.benchmarks.results.result import MetricResult, Result

NONE = "–"
FEW_IMAGES = 20
_MORE = "more figures: msdscore table FILE.json --columns all"


@dataclass(frozen=True, slots=True)
class Grid:
    """A table of text: the first column is the row name, `notes` are below; cells (row, column) in `best` are bold."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    best: frozenset[tuple[int, int]] = frozenset()


def result_grids(results: Sequence[Result], *, every: bool = True) -> list[Grid]:
    """Return one grid per benchmark, protocol and set of items, with `every` figure or only the headline."""
    return [_result_grid(group, every=every) for group in _groups(results)]


def _groups(results: Sequence[Result]) -> list[list[Result]]:
    """Return the results in groups, so that no column mixes protocols or sets of items."""
    groups: dict[tuple[object, ...], list[Result]] = defaultdict(list)
    for result in results:
        options = tuple(sorted((name, str(value)) for name, value in result.options.items()))
        same = (result.title, result.protocol, result.items, result.counted, result.limit, result.seed, options)
        groups[same].append(result)
    return list(groups.values())


def comparison_grid(comparison: MetricComparison) -> Grid:
    """Return one row per figure: both values, their difference with its interval, and p."""
    rows = tuple(map(_difference_row, comparison.differences))
    columns = ("figure", "first", "second", "difference", "95 % interval", "p", "n")
    notes = [f"first: {comparison.first}; second: {comparison.second}", f"{comparison.items} items"]
    notes += [f"{comparison.missing} items without a score on one side, left out"] if comparison.missing else []
    notes += [f"{comparison.not_in_both} items that only one result has, left out"] if comparison.not_in_both else []
    notes += [_tested(comparison, "p and intervals of the figures after the first are corrected for all of them")]
    return Grid(f"{comparison.benchmark}, {comparison.protocol}", columns, rows, tuple(notes))


def against_grid(result: Result, comparisons: Mapping[str, MetricComparison], against: str) -> Grid:
    """Return one row per metric: its headline against the baseline's."""
    rows, notes, name, against = [], list[str](), "figure", result.metric(against).title
    for label, comparison in comparisons.items():
        name, *cells = _difference_row(comparison.differences[0])
        rows.append((result.metric(label).title, *cells))
        notes = [_tested(comparison, "p and intervals are corrected for all metrics")]
    columns = ("metric", name, against, "difference", "95 % interval", "p", "n")
    return Grid(f"{result.title}, {result.protocol}: metrics against {against}", columns, tuple(rows), tuple(notes))


def _tested(comparison: MetricComparison, family: str) -> str:
    return f"{family} (largest t of {comparison.samples:,} draws of signs per image)"


def markdown(grid: Grid) -> str:
    """Return a grid as a Markdown table followed by its notes."""
    lines = [_line(grid.columns), _line([":---", *["---:"] * (len(grid.columns) - 1)])]
    lines += [
        _line(f"**{cell}**" if (index, column) in grid.best else cell for column, cell in enumerate(row))
        for index, row in enumerate(grid.rows)
    ]
    notes = [f"- {note}" for note in grid.notes]
    return "\n".join([f"**{grid.title}**", "", *lines, "", *notes]).rstrip() + "\n"


def number(figure: Figure | None) -> str:
    """Format a figure's value, with its standard deviation over several draws."""
    if figure is None or figure.value != figure.value:
        return NONE
    spread = f" ± {_format(figure.spread, figure.scale)}" if figure.spread is not None else ""
    return _format(figure.value, figure.scale) + spread


def p_value(value: float) -> str:
    """Format a p-value; a dash if it is NaN.

    >>> p_value(0.0004), p_value(0.031)
    ('<0.001', '0.031')
    """
    if value != value:
        return NONE
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _figure_names(metrics: Sequence[MetricResult]) -> list[str]:
    return list(dict.fromkeys(figure.name for metric in metrics for figure in metric.figures))


def _result_grid(results: Sequence[Result], *, every: bool) -> Grid:
    first, metrics = results[0], [metric for result in results for metric in result.metrics]
    headline, *others = _figure_names(metrics) or ["figure"]
    names = [headline, *(others if every else ())]
    # Columns that identify a metric besides its title, by signature.
    labels: dict[str, dict[str, str]] = {}
    if len({result.encoder for result in results}) > 1:
        labels["encoder"] = {metric.signature: metric.encoder or NONE for metric in metrics}
    if settings := _settings(results):
        labels["settings"] = settings
    rows = [
        (metric.title, *(label.get(metric.signature, NONE) for label in labels.values()), *_cells(metric, names))
        for metric in metrics
    ]
    if first.length is not None:
        rows.append((first.length.label, *[NONE] * len(labels), *_cells(first.length, names)))
    head, *rest = (_figure_title(metrics, name) for name in names)
    columns = ("metric", *labels, head, *_BESIDES, *rest)
    notes = [*_notes(results), *([f"{len(others)} {_MORE}"] if others and not every else [])]
    title = f"{first.title}, {first.protocol} ({counted(first)} items, {first.images} images)"
    return Grid(title, columns, tuple(rows), tuple(notes), _best_cells(metrics, names, len(labels)))


_BESIDES = ("95 % interval", "wrong image", "matched length", "ties", "missing")  # columns after the headline


def _figure_title(metrics: Sequence[MetricResult], name: str) -> str:
    """Return the name of a figure, marked if lower values are better."""
    figure = next((figure for metric in metrics if (figure := metric.figure(name))), None)
    return f"{name} ↓" if figure and figure.direction < 0 else name


def _best_cells(metrics: Sequence[MetricResult], names: Sequence[str], labels: int) -> frozenset[tuple[int, int]]:
    """Return the cells of the best value of each figure, if several metrics have it."""
    best = set()
    for index, name in enumerate(names):
        known = {row: figure for row, metric in enumerate(metrics) if (figure := metric.figure(name))}
        column = 1 + labels + (0 if index == 0 else index + len(_BESIDES))
        best |= {(row, column) for row in _best(known) if len(known) > 1}
    return frozenset(best)


def _best(figures: Mapping[int, Figure]) -> list[int]:
    """Return the keys of the best value of a figure; none if all are NaN, or the figure has no better direction."""
    values = {key: figure.direction * figure.value for key, figure in figures.items() if figure.value == figure.value}
    best = max(values.values(), default=None)
    return [key for key, value in values.items() if value == best and figures[key].direction]


def counted(result: Result) -> str:
    """Return the number of evaluated items, and of all items if it differs."""
    return str(result.items) if result.counted == result.items else f"{result.counted} of {result.items}"


def differing_parts(signatures: Iterable[str]) -> dict[str, str]:
    """Return, by signature, the parts that not all signatures share.

    >>> differing_parts(["msd|k:5|v:1", "msd|k:8|v:1"])
    {'msd|k:5|v:1': 'k:5', 'msd|k:8|v:1': 'k:8'}
    """
    parts = {signature: signature.split("|") for signature in signatures}
    shared = set.intersection(*map(set, parts.values()))
    return {
        signature: " ".join(part for part in signature_parts if part not in shared)
        for signature, signature_parts in parts.items()
    }


def _settings(results: Sequence[Result]) -> dict[str, str]:
    """Return, by signature, the settings that differ between metrics of the same label and encoder."""
    groups: dict[tuple[str, str], set[str]] = defaultdict(set)
    for result in results:
        for metric in result.metrics:
            groups[metric.title, result.encoder].add(metric.signature)
    return {
        signature: settings
        for signatures in groups.values()
        if len(signatures) > 1
        for signature, settings in differing_parts(signatures).items()
    }


def _cells(metric: MetricResult, names: Sequence[str]) -> list[str]:
    headline = metric.figure(names[0])
    wrong = next((figure for figure in metric.control if figure.name == names[0]), None)
    # The control may have more ties: clipped scores can all be equal with the wrong image.
    tied = f" ({wrong.ties} ties)" if headline and wrong and wrong.ties != headline.ties else ""
    interval = NONE  # with too few images
    if headline and (ends := headline.interval) is not None and ends.low == ends.low:
        interval = f"[{_format(ends.low, headline.scale)}, {_format(ends.high, headline.scale)}]"
    rest = [number(metric.figure(name)) for name in names[1:]]
    counts = [str(headline.ties) if headline else NONE, str(metric.missing)]
    return [number(headline), interval, number(wrong) + tied, number(metric.matched), *counts, *rest]


def _format(value: float, scale: int) -> str:
    return f"{value * scale:.1f}" if scale > 1 else f"{value:.2f}"


def _notes(results: Sequence[Result]) -> Iterable[str]:
    for result in results:
        yield from (f"{note}: {count}" for note, count in result.notes.items())
        if 1 < result.images < FEW_IMAGES:
            yield f"only {result.images} images: intervals are rough"
        if result.seeds > 1:
            yield f"mean of {result.seeds} draws; ± is their standard deviation"
        if result.failed:
            yield f"{result.failed} items could not be scored, for example: {result.failures[0]}"
        for metric in result.metrics:
            skipped = metric.figures[0].skipped if metric.figures else 0
            tail = f"; {skipped} left out by the protocol" if skipped else ""
            yield f"{metric.title}: `{metric.signature}`{tail}"


def _difference_row(difference: Difference) -> tuple[str, ...]:
    interval, gap = difference.interval, difference.first - difference.second
    low, high, gap = (value * difference.scale for value in (interval.low, interval.high, gap))
    return (
        difference.name,
        *(NONE if side != side else _format(side, difference.scale) for side in (difference.first, difference.second)),
        NONE if gap != gap else f"{gap:+.1f}",
        NONE if low != low else f"[{low:+.1f}, {high:+.1f}]",
        p_value(difference.p_value),
        str(difference.n),
    )


Column = tuple[str, str]  # benchmark, protocol
Row = tuple[str, str]  # metric, and its signature without the benchmark's part


Cells = dict[Row, dict[Column, Figure]]  # headline figures


def _column(result: Result) -> Column:
    return result.benchmark, result.protocol


def overview(results: Sequence[Result]) -> Grid:
    """Return one row per metric and encoder, one column per benchmark with its headline figure."""
    columns, cells = list(dict.fromkeys(map(_column, results))), _headlines(results)
    rows = [
        (name, *(number(row_cells.get(column)) for column in columns))
        for name, row_cells in zip(_names(cells), cells.values(), strict=True)
    ]
    rows += _length_rows(results, columns)
    notes = [f"{result.title}: {counted(result)} items, {result.images} images" for result in results]
    titles = [_title(next(result for result in results if _column(result) == column)) for column in columns]
    return Grid("Headline figures", ("metric", *titles), tuple(rows), tuple(notes), _best_headlines(cells, columns))


def _best_headlines(cells: Cells, columns: Sequence[Column]) -> frozenset[tuple[int, int]]:
    """Return the cells with the best headline of each benchmark."""
    best = set()
    for column_index, column in enumerate(columns, start=1):
        known = {row: row_cells[column] for row, row_cells in enumerate(cells.values()) if column in row_cells}
        best |= {(row, column_index) for row in _best(known)}
    return frozenset(best)


def _length_rows(results: Sequence[Result], columns: Sequence[Column]) -> list[tuple[str, ...]]:
    """Return the row of the length baseline, if a result has it."""
    lengths = {_column(result): result.length for result in results if result.length is not None}
    if not lengths:
        return []
    directions = {baseline.label for baseline in lengths.values()}
    label = directions.pop() if len(directions) == 1 else "length alone (better direction)"
    return [(label, *(number(lengths[column].figures[0]) if column in lengths else NONE for column in columns))]


def _headlines(results: Sequence[Result]) -> Cells:
    """Return the headline figure of every metric, by benchmark."""
    cells: Cells = defaultdict(dict)
    for result in results:
        for metric in result.metrics:
            if metric.figures:
                row_cells, column = cells[metric.title, metric.signature.partition("|bench:")[0]], _column(result)
                if column in row_cells and row_cells[column].value != metric.figures[0].value:
                    raise InputError(
                        f"two results of {result.benchmark} have figures of {metric.title}; expected one of them"
                    )
                row_cells[column] = metric.figures[0]
    return cells


def _names(rows: Iterable[Row]) -> list[str]:
    """Return the names of the metrics, with the differing settings if one has several signatures."""
    signatures: dict[str, list[str]] = defaultdict(list)
    for label, signature in rows:
        signatures[label].append(signature)
    settings = {
        (label, key): part
        for label, label_signatures in signatures.items()
        for key, part in differing_parts(label_signatures).items()
    }
    return [
        f"{label} ({settings[label, signature]})" if settings[label, signature] else label for label, signature in rows
    ]


def _title(result: Result) -> str:
    name = next((metric.figures[0].name for metric in result.metrics if metric.figures), "")
    return f"{result.title} {name}" + ("" if result.protocol == "official" else f", {result.protocol}")
