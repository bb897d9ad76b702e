"""Results and comparisons as plain grids of text, one per benchmark and protocol, and as Markdown."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from msdscore.benchmarks.protocols.counting import Figure, LengthAlone
from msdscore.benchmarks.results.compare import Comparison, Difference
from msdscore.benchmarks.results.result import MetricResult, Result

NONE = "–"
FEW_IMAGES = 20


@dataclass(frozen=True, slots=True)
class Grid:
    """A table of text: the first column names the row, `notes` stand below; cells (row, column) in `best` are bold."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    best: frozenset[tuple[int, int]] = frozenset()


def result_grids(results: Sequence[Result]) -> list[Grid]:
    """One grid per benchmark, protocol and set of items, so that no column mixes two ways of counting."""
    groups: dict[tuple[object, ...], list[Result]] = defaultdict(list)
    for result in results:
        options = tuple(sorted((name, str(value)) for name, value in result.options.items()))
        groups[result.title, result.protocol, result.items, result.counted, result.limit, result.seed, options].append(
            result
        )
    return [_result_grid(group) for group in groups.values()]


def comparison_grid(comparison: Comparison) -> Grid:
    """One row per figure: both values, their difference with its interval, and the tests."""
    rows = tuple(_difference_row(difference) for difference in comparison.differences)
    level = comparison.differences[0].interval.level if comparison.differences else 0.95
    columns = ("figure", "first", "second", "difference", f"{level:.0%} interval", "p", "p, Holm", "tests", "n")
    notes = [f"first: {comparison.first}; second: {comparison.second}", f"{comparison.items} items"]
    notes += [f"{comparison.missing} items without a score on one side, left out"] if comparison.missing else []
    notes += [f"{comparison.not_in_both} items that only one result has, left out"] if comparison.not_in_both else []
    return Grid(f"{comparison.benchmark}, {comparison.protocol}", columns, rows, tuple(notes))


def against_grid(result: Result, comparisons: Mapping[str, tuple[Comparison, float]], against: str) -> Grid:
    """One row per metric: its headline against the baseline's, with Holm's correction over the metrics."""
    rows = []
    for label, (comparison, adjusted) in comparisons.items():
        name, *cells = _difference_row(replace(comparison.differences[0], adjusted=adjusted))
        rows.append((label, *cells))
    name = next(iter(comparisons.values()))[0].differences[0].name if comparisons else "figure"
    columns = ("metric", name, against, "difference", "95 % interval", "p", "p, Holm", "tests", "n")
    title = f"{result.title}, {result.protocol}: metrics against {against}"
    return Grid(title, columns, tuple(rows), ("Holm's correction goes over the metrics",))


def markdown(grid: Grid) -> str:
    """A grid as a Markdown table with its notes below."""
    lines = [_line(grid.columns), _line([":---", *["---:"] * (len(grid.columns) - 1)])]
    lines += [
        _line([f"**{cell}**" if (number, at) in grid.best else cell for at, cell in enumerate(row)])
        for number, row in enumerate(grid.rows)
    ]
    notes = [f"- {note}" for note in grid.notes]
    return "\n".join([f"**{grid.title}**", "", *lines, "", *notes]).rstrip() + "\n"


def number(figure: Figure | None) -> str:
    """A figure's value as it is printed, with its spread over several draws."""
    if figure is None or figure.value != figure.value:
        return NONE
    spread = f" ± {_print(figure.spread, figure.scale)}" if figure.spread is not None else ""
    return _print(figure.value, figure.scale) + spread


def p_value(value: float) -> str:
    """A p-value in the usual form; a dash where there was nothing to test.

    >>> p_value(0.0004), p_value(0.031)
    ('<0.001', '0.031')
    """
    if value != value:
        return NONE
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _result_grid(results: Sequence[Result]) -> Grid:
    first, several, settings = results[0], len({result.encoder for result in results}) > 1, _settings(results)
    names = list(dict.fromkeys(f.name for r in results for m in r.metrics for f in m.figures)) or ["figure"]
    labels = [*(["encoder"] if several else []), *(["settings"] if settings else [])]
    columns = ("metric", *labels, names[0], "95 % interval", "wrong image", "matched length", *names[1:])
    rows = []
    for result in results:
        for metric in result.metrics:
            more = [result.encoder.split(",")[0] or NONE] if several else []
            more += [settings.get(metric.signature, NONE)] if settings else []
            rows.append((metric.label, *more, *_cells(metric, names)))
    if first.length is not None:
        alone = MetricResult(length_label(first.length), "", True, False, first.length.figures)
        rows.append((alone.label, *[NONE] * len(labels), *_cells(alone, names)))
    title = f"{first.title}, {first.protocol} ({counted(first)} items, {first.pictures} images)"
    return Grid(title, (*columns, "ties", "missing"), tuple(rows), tuple(_notes(results)))


def counted(result: Result) -> str:
    """How many items the figures rest on, and of how many where that is not all of them."""
    return str(result.items) if result.counted == result.items else f"{result.counted} of {result.items}"


def length_label(alone: LengthAlone) -> str:
    """The name of the row of what length alone reaches."""
    return f"length alone ({'longer' if alone.longer_wins else 'shorter'} wins)"


def told_apart(signatures: Iterable[str]) -> dict[str, str]:
    """By signature its parts that not all of them have.

    >>> told_apart(["msd|k:5|v:1", "msd|k:8|v:1"])
    {'msd|k:5|v:1': 'k:5', 'msd|k:8|v:1': 'k:8'}
    """
    parts = {signature: signature.split("|") for signature in signatures}
    shared = set.intersection(*map(set, parts.values()))
    return {signature: " ".join(part for part in own if part not in shared) for signature, own in parts.items()}


def _settings(results: Sequence[Result]) -> dict[str, str]:
    """By signature what tells metrics of one label and encoder apart; empty where nothing has to be told."""
    groups: dict[tuple[str, str], set[str]] = defaultdict(set)
    for result in results:
        for metric in result.metrics:
            groups[metric.label, result.encoder].add(metric.signature)
    return {
        k: own for signatures in groups.values() if len(signatures) > 1 for k, own in told_apart(signatures).items()
    }


def _cells(metric: MetricResult, names: Sequence[str]) -> list[str]:
    head = metric.figure(names[0])
    wrong = next((figure for figure in metric.control if figure.name == names[0]), None)
    # The control has ties of its own: a clipped score may tell nothing apart with the wrong image.
    tied = f" ({wrong.ties} ties)" if head and wrong and wrong.ties != head.ties else ""
    interval = NONE  # where too few images, or a single one, are behind it
    if head and head.interval is not None and head.interval.low == head.interval.low:
        interval = f"[{_print(head.interval.low, head.scale)}, {_print(head.interval.high, head.scale)}]"
    rest = [number(metric.figure(name)) for name in names[1:]]
    counts = [str(head.ties) if head else NONE, str(metric.missing)]
    return [number(head), interval, number(wrong) + tied, number(metric.matched), *rest, *counts]


def _print(value: float, scale: int) -> str:
    return f"{value * scale:.1f}" if scale > 1 else f"{value:.2f}"


def _notes(results: Sequence[Result]) -> Iterable[str]:
    for result in results:
        yield from (f"{note.what}: {note.count}" for note in result.notes)
        if 1 < result.pictures < FEW_IMAGES:
            yield f"only {result.pictures} images: intervals are rough"
        if result.seeds > 1:
            yield f"mean of {result.seeds} draws; ± is their standard deviation"
        if result.failed:
            yield f"{result.failed} items could not be scored, for example: {result.failures[0]}"
        for metric in result.metrics:
            skipped = metric.figures[0].skipped if metric.figures else 0
            tail = f"; {skipped} left out by the protocol" if skipped else ""
            used = "".join(f"; {name} {value:g}" for name, value in (metric.facts or {}).items())
            yield f"{metric.label}: `{metric.signature}`{tail}{used}"


def _difference_row(difference: Difference) -> tuple[str, ...]:
    interval, gap = difference.interval, difference.first - difference.second
    low, high, gap = (value * difference.scale for value in (interval.low, interval.high, gap))
    return (
        difference.name,
        *(NONE if side != side else _print(side, difference.scale) for side in (difference.first, difference.second)),
        NONE if gap != gap else f"{gap:+.1f}",
        NONE if low != low else f"[{low:+.1f}, {high:+.1f}]",
        p_value(difference.tests[0].p_value),
        p_value(difference.adjusted),
        "; ".join(f"{test.method} {p_value(test.p_value)}" for test in difference.tests),
        str(difference.n),
    )
