"""`msdscore select`: select the best rows of scored files, in the formats of curation tools."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from msdscore.cli import options
from msdscore.cli.options import OUTPUT, option
from msdscore.cli.progress import bar, print_json, stoppable, tell
from msdscore.errors import require

if TYPE_CHECKING:
    from msdscore.select.rule import Rule
    from msdscore.select.run import Selected

RULE = "Rule"
# A column and a number; a column may have any name.
_BOUND = re.compile(
    r"(.*[^\s=:])\s*[=:]\s*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|[+-]?inf|nan)", re.IGNORECASE
)
_SHOWN = 5  # shards without scores that are printed


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOptions:
    """Selection rule."""

    keep: str | None = option(RULE, None, help="Share (0.3, 100%) or number (1000) of best rows to keep.")
    by: str = option(RULE, "msd", help="Column to rank rows by.")
    minimum: list[str] = option(RULE, [], "--min", help="Lower bound, e.g. match=0.5 or match:0.5. Repeatable.")
    maximum: list[str] = option(RULE, [], "--max", help="Upper bound, e.g. support=2. Repeatable.")
    drop_warning: list[str] = option(
        RULE, [], "--drop-warning", help="Drop rows with a warning that has this text, e.g. 'not English'. Repeatable."
    )
    per: str | None = option(RULE, None, help="Apply --keep to each group of this column.")

    def rule(self) -> "Rule":
        """Return the rule that the options describe."""
        from msdscore.select.rule import Quota, Rule

        quota = None if self.keep is None else Quota.parse(self.keep)
        return Rule(
            by=self.by, keep=quota, minima=_bounds(self.minimum), maxima=_bounds(self.maximum), per=self.per,
            without=tuple(self.drop_warning),
        )  # fmt: skip

    def __str__(self) -> str:
        parts = [f"{name} at least {value:g}" for name, value in _bounds(self.minimum)]
        parts += [f"{name} at most {value:g}" for name, value in _bounds(self.maximum)]
        parts += [f"no warning {text}" for text in self.drop_warning]
        parts += [] if self.keep is None else [f"best {self.keep} by {self.by}"]
        return ", ".join(parts) + (f" of every {self.per}" if self.per else "")


def select(
    scores: Annotated[list[str], typer.Argument(help="Score shards, folders of them, or outputs of `msdscore score`.")],
    *,
    output: str = option(
        OUTPUT,
        ...,
        "--output",
        "-o",
        help="keep.npy (DataComp's sorted uids), keys.txt, kept.parquet or a folder for new shards; - prints keys.",
    ),
    chosen: RuleOptions,
    report: Path | None = option(
        OUTPUT, None, help="Page (.html) with histograms, rows near the threshold and agreement with cosine."
    ),
    show: int = option(OUTPUT, 8, min=1, help="Number of rows per section of the page."),
    overwrite: options.Overwrite = False,
    json: options.Json = False,
) -> None:
    """Select the best rows of scored files; only the scores are read.

    Bounds (--min, --max) are applied first; --keep then selects the best of the remaining rows, exactly, over any
    number of files. Rows that could not be scored are dropped. Ties are resolved in favour of the first rows.
    """
    require("duckdb", extra="select")  # before anything needs PyArrow, which another extra has too
    from msdscore.io.targets import check_target, is_standard_output, put, refuse_existing
    from msdscore.select.run import select as run

    rule = chosen.rule()
    if report is not None:
        check_target(report, (".html", ".htm"), inputs=[*scores, output])
        # The page of a finished selection is compared; the same command may run twice.
        refuse_existing([] if overwrite or Path(output).exists() else [report])
    with stoppable("stopped; finished shards remain, and nothing else is written"), bar("selecting") as bar_of:
        selected = run(scores, rule, output, overwrite=overwrite, show=show if report else 0, progress=bar_of)
    if report is not None and selected.survey is not None:
        from msdscore.io.files import base_name
        from msdscore.report.selection import selection_page

        put(report, selection_page(selected, rule, title=base_name(output)).encode(), overwrite=overwrite)
    for line in selected.missing[:_SHOWN]:
        tell(f"  no scores of {line}")
    if selected.missing:
        tell(f"{len(selected.missing)} shards of these folders have no scores and are left out; score them, or go on")
    if not is_standard_output(output):
        _show(selected, str(chosen), as_json=json)


def _show(selected: "Selected", rule: str, *, as_json: bool) -> None:
    """Print the result on standard output; JSON omits the statistics of the page."""
    from dataclasses import asdict, fields

    agreement = None if selected.survey is None else selected.survey.agreement
    if as_json:
        values = {field.name: getattr(selected, field.name) for field in fields(selected) if field.name != "survey"}
        values |= {} if agreement is None else {"cosine": asdict(agreement)}
        print_json({"rule": rule, **values})
        return
    share = 100 * selected.kept / selected.rows if selected.rows else 0.0
    lines = [f"{selected.kept:,} of {selected.rows:,} rows ({share:.1f} %) -> {selected.output}",
             f"{rule}; {selected.valid:,} rows have a valid score within the bounds"]  # fmt: skip
    lines += [] if selected.threshold is None else [f"lowest selected value: {selected.threshold:.6g}"]
    lines += (
        [f"{selected.duplicates:,} uids or keys are duplicates and were written once"] if selected.duplicates else []
    )
    if agreement is not None:
        shares = 100 * agreement.share, 100 * agreement.expected
        lines.append("cosine selects {:.1f} % of them too (chance: {:.1f} %)".format(*shares))
    typer.echo("\n".join([*lines, selected.signature]))


def _bounds(texts: list[str]) -> tuple[tuple[str, float], ...]:
    """Parse bounds such as `match=0.5` or `match:0.5`: a shell takes `match>0.5` for a file called 0.5."""
    from msdscore.errors import ConfigError

    bounds = []
    for text in texts:
        match = _BOUND.fullmatch(text.strip())
        if match is None:
            raise ConfigError(f"expected a bound such as match=0.5, got {text!r}")
        bounds.append((match[1], float(match[2])))
    return tuple(bounds)
