"""The evidence page: the score, its parts and its rivals on human judgements, with intervals, tests and controls.

Run it as `python tools/evidence_page.py --data FOLDER --output docs/evidence.md`; the folder holds any of the
benchmarks below, in their released form or in the rows form.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from msdscore.benchmarks.results.compare import Comparison, compare_sides, is_subset, side_of
from msdscore.benchmarks.results.grids import NONE, Grid, markdown, number, p_value, result_grids
from msdscore.benchmarks.results.overview import LEVEL, Opened, overview
from msdscore.benchmarks.results.result import MetricResult, Result
from msdscore.benchmarks.run.plan import BenchmarkPlan
from msdscore.benchmarks.run.runner import run_benchmark
from msdscore.encoders.base import Encoder
from msdscore.encoders.cached import CachedEncoder, CacheSettings
from msdscore.encoders.registry import load_encoder
from msdscore.errors import InputError
from msdscore.io.atomic import write_bytes
from msdscore.scorer import Scorer
from msdscore.scoring.config import Paper
from msdscore.scoring.spec import DEFAULT_ENCODER, ScorerSpec
from msdscore.stats.resample import Resampling, holm
from msdscore.studies.behaviour import behaviour
from msdscore.studies.context import Study
from msdscore.studies.table import to_markdown
from msdscore.studies.transfer import is_present
from msdscore.studies.words import words

BASELINE = "cosine"
SCORES = (BASELINE, "msd", "soft-msd")
SHARED = (*SCORES, "max-sim")
PAPERS_PARTS = ("coverage", "support", "bi-kl")
PAPER = "short"  # the preset of the paper's settings for captions of a sentence
PAPERS_OWN = ("sugarcrepe", "flickr8k-expert")  # benchmarks of the paper, also run with its settings
TRIVIAL = ("length", "shorter", "random", "constant")
METRICS = {
    "sugarcrepe": (*SHARED, "clipscore", *TRIVIAL),
    "flickr8k-expert": (*SHARED, "clipscore", "soft-msd,set=image", *TRIVIAL),
    # Length alone has a row of its own on every benchmark.
    "thumb": (*SHARED, "random"),
    "composite": (*SHARED, "random"),
    "pascal50s": (*SHARED, "random"),
    "long-captions": (*SHARED, "random"),
    "rsicd": (*SHARED, "random"),
}
CHECKED = (BASELINE, "max-sim", "msd")
BEGIN, END = "<!-- generated: begin -->", "<!-- generated: end -->"
_TITLE = "# Evidence\n\n"
_MARKS = f"† differs from {BASELINE} (p < {LEVEL}, Holm over the metrics of a benchmark)"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One benchmark's result under some settings, and every metric that reads pictures against the baseline."""

    settings: str
    result: Result
    comparisons: tuple[Comparison, ...]


def collect(
    data: Path, results: Path, encoder: Encoder, *, preset: str | None, samples: int, limit: int | None
) -> list[Evidence]:
    """Run and compare on every benchmark that is there, under the settings asked for and under those of the paper."""
    own, paper = Scorer(encoder, preset), Scorer(encoder, PAPER)
    found = []
    for name, metrics in METRICS.items():
        if not is_present(name, data):
            sys.stderr.write(f"{name}: not under {data}, left out\n")
            continue
        plan = BenchmarkPlan(name=name, root=data, metrics=metrics, samples=samples, limit=limit)
        found.append(_one(plan, results / f"{name}.json", own, preset or "the encoder's own settings"))
        if name in PAPERS_OWN and own.config != paper.config:
            plain = replace(plan, metrics=tuple(label for label in metrics if label in SCORES))
            found.append(_one(plain, results / f"{name}-paper.json", paper, "the paper's settings"))
    if not found:
        raise InputError(f"expected one of {', '.join(METRICS)} under {data}, found none")
    return found


def page(evidence: Sequence[Evidence], command: str, more: Sequence[str] = ()) -> str:
    """The generated part of the page; `more` are sections of other studies."""
    first = evidence[0].result
    versions = ", ".join(f"{name} {number}" for name, number in first.versions.items())
    parts = [
        BEGIN,
        f"Made by `{command}` with encoder `{first.encoder}` ({versions}).",
        "All values times 100. Intervals are 95 % bootstrap intervals over whole pictures; *wrong image* is the same "
        "figure when every item is scored with another picture of the benchmark (chance is 50 for accuracies and 0 "
        "for correlations): what remains above chance is read from the text alone. *Matched length* is the headline "
        "among captions of about equal length, and *length alone* is what counting words reaches.",
        "## All benchmarks",
        *(markdown(_overview(evidence, settings)) for settings in dict.fromkeys(one.settings for one in evidence)),
        *more,
        *(section(one) for one in evidence),
        END,
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _overview(evidence: Sequence[Evidence], settings: str) -> Grid:
    """One column per benchmark under one choice of settings, with the verdicts of the comparisons as marks."""
    chosen = [one for one in evidence if one.settings == settings]
    marked = {one.result.benchmark: _different(one) for one in chosen}
    grid = overview([Opened(one.result, Path()) for one in chosen], marked=marked)
    return replace(grid, title=f"Headline figures, {settings}", notes=(*grid.notes, _MARKS))


def _different(one: Evidence) -> set[str]:
    adjusted = holm([found.differences[0].tests[0].p_value for found in one.comparisons]).tolist()
    return {_label(found) for found, p in zip(one.comparisons, adjusted, strict=True) if p < LEVEL}


def section(one: Evidence) -> str:
    """The part of one benchmark: figures, controls by subset, and paired tests."""
    grids = result_grids([one.result])
    parts = [f"## {one.result.title}, {one.settings}", verdicts(one), *map(markdown, grids)]
    if one.result.kind == "pairs" and one.result.metrics[0].control:
        parts.append(markdown(_subset_controls(one.result)))
    parts.append(markdown(_tests(one)))
    return "\n\n".join(part.strip() for part in parts)


def verdicts(one: Evidence) -> str:
    """Whether each rival differs from the baseline, in words, after Holm's correction over the rivals."""
    adjusted = holm([found.differences[0].tests[0].p_value for found in one.comparisons])
    return "\n".join(
        _verdict(found, p) + _controls(one.result, found)
        for found, p in zip(one.comparisons, adjusted.tolist(), strict=True)
    )


def _controls(result: Result, found: Comparison) -> str:
    """What both sides reach with the wrong pictures: a gain that stands there too was read from the text."""
    name = found.differences[0].name
    both = [
        next((f for f in result.metric(label).control if f.name == name), None) for label in (_label(found), BASELINE)
    ]
    return f" (wrong image: {number(both[0])} against {number(both[1])})" if all(both) else ""


def _verdict(found: Comparison, adjusted: float) -> str:
    head = found.differences[0]
    low, high, difference = (100 * x for x in (head.interval.low, head.interval.high, head.first - head.second))
    word = "no significant difference" if adjusted >= 0.05 else "better" if difference > 0 else "worse"
    return (
        f"- {_label(found)} against {BASELINE}: {difference:+.1f} [{low:+.1f}, {high:+.1f}] {head.name}, "
        f"p {p_value(head.tests[0].p_value)}, Holm {p_value(adjusted)}: **{word}**"
    )


def _label(found: Comparison) -> str:
    return found.first.split(" (")[0]


def write_into(text: str, output: Path) -> None:
    """Put the generated part into the page; what people wrote around it stays."""
    old = output.read_text(encoding="utf-8") if output.is_file() else f"{_TITLE}{BEGIN}{END}\n"
    head, _, rest = old.partition(BEGIN)
    tail = rest.partition(END)[2] if END in rest else "\n"
    output.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(output, (head + text.rstrip() + tail).encode(), folder=output.parent)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, gather, write."""
    parser = argparse.ArgumentParser(prog="python tools/evidence_page.py", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the benchmarks")
    parser.add_argument("--output", "-o", type=Path, default=Path("docs/evidence.md"))
    parser.add_argument("--encoder", "-e", default=DEFAULT_ENCODER)
    parser.add_argument("--preset", default=None, help="short, long or authors; without it, the encoder's own settings")
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--limit", type=int, default=None)
    parser.add_argument("--results", type=Path, default=None, help="folder that keeps scores, so that runs resume")
    parser.add_argument("--cache", type=Path, default=None, help="folder that keeps embeddings")
    parser.add_argument(
        "--synonyms", type=Path, default=None, help="names of object classes, for words of long captions"
    )
    parser.add_argument("--captions", type=Path, default=None, help="rows of {image, captions}, for tests of behaviour")
    asked = parser.parse_args(arguments)
    disk = None if asked.cache is None else CacheSettings(folder=str(asked.cache))
    encoder = CachedEncoder(load_encoder(asked.encoder), memory=sys.maxsize, disk=disk)
    with TemporaryDirectory() as temporary:
        how = {"preset": asked.preset, "samples": asked.samples, "limit": asked.limit}
        found = collect(asked.data, asked.results or Path(temporary), encoder, **how)
    write_into(page(found, _command(asked), _more(asked)), asked.output)


def _more(asked: argparse.Namespace) -> list[str]:
    """The sections of other studies that there is data for."""
    cache = None if asked.cache is None else CacheSettings(folder=str(asked.cache))
    spec = ScorerSpec(encoder=asked.encoder, config=asked.preset, cache=cache)
    study = Study(root=asked.data, spec=spec, limit=asked.limit)
    sections = []
    if is_present("long-captions", asked.data):
        tables = words(study, marks="chair", synonyms=asked.synonyms)
        sections.append(f"## Words that long captions invent\n\n{to_markdown(tables)}")
    if asked.captions:
        tables = behaviour(replace(study, root=asked.captions), metric=CHECKED)
        sections.append(f"## Behaviour\n\n{to_markdown(tables)}")
    return sections


def _command(asked: argparse.Namespace) -> str:
    words = ["python tools/evidence_page.py --data DATA", f"--encoder {asked.encoder}"]
    words += [f"--preset {asked.preset}"] if asked.preset else []
    words += [f"--limit {asked.limit}"] if asked.limit else []
    words += ["--synonyms SYNONYMS"] if asked.synonyms else []
    words += ["--captions CAPTIONS"] if asked.captions else []
    return " ".join([*words, f"--samples {asked.samples}"])


def _one(plan: BenchmarkPlan, output: Path, scorer: Scorer, settings: str) -> Evidence:
    form = scorer.config
    parts = PAPERS_PARTS if isinstance(form, Paper) else ("precision", "information")
    paired = ("rank-agg",) if isinstance(form, Paper) and plan.name == "sugarcrepe" else ()
    metrics = (*plan.metrics, *parts, *paired, *(("max-sim-cal",) if form.needs_bank else ()))
    plan = replace(plan, metrics=metrics)
    result = run_benchmark(plan, output, lambda: scorer.pipeline, progress=_tell(f"{plan.name}, {settings}"))
    how, base = Resampling(samples=plan.samples), side_of(result, BASELINE, output.parent)
    rivals = [side_of(result, label, output.parent) for label in metrics if label not in (BASELINE, *TRIVIAL)]
    return Evidence(settings, result, tuple(compare_sides(rival, base, how=how) for rival in rivals))


def _tell(name: str) -> Callable[[int, int], None]:
    def show(done: int, total: int) -> None:
        sys.stderr.write(f"\r{name}: {done} of {total}" + ("\n" if done == total else ""))

    return show


def _tests(one: Evidence) -> Grid:
    """The headline of every comparison, and its subsets that differ after Holm's correction."""
    rows = []
    for found in one.comparisons:
        head = found.differences[0]
        ahead = [d.name.partition("/")[2] for d in found.differences[1:] if is_subset(d.name) and d.adjusted < 0.05]
        better = [name for name in ahead if _sign(found, name) > 0]
        worse = [name for name in ahead if _sign(found, name) < 0]
        rows.append((
            _label(found),
            f"{(head.first - head.second) * 100:+.1f}",
            f"[{head.interval.low * 100:+.1f}, {head.interval.high * 100:+.1f}]",
            "; ".join(f"{test.method} {p_value(test.p_value)}" for test in head.tests),
            ", ".join(better) or NONE,
            ", ".join(worse) or NONE,
        ))  # fmt: skip
    columns = ("metric", "difference", "95 % interval", "p", "better in (Holm)", "worse in (Holm)")
    return Grid(f"Paired tests against {BASELINE}", columns, tuple(rows))


def _sign(found: Comparison, subset: str) -> float:
    return next(d.first - d.second for d in found.differences if d.name.endswith(f"/{subset}"))


def _subset_controls(result: Result) -> Grid:
    """True and wrong pictures in every subset."""
    names = [figure.name for figure in result.metrics[0].figures]
    rows = [(metric.label, *(_both(metric, name) for name in names)) for metric in result.metrics]
    return Grid("With the true picture / with the wrong one", ("metric", *names), tuple(rows))


def _both(metric: MetricResult, name: str) -> str:
    wrong = next((figure for figure in metric.control if figure.name == name), None)
    true = metric.figure(name)
    return " / ".join(NONE if f is None or f.value != f.value else f"{f.value * f.scale:.1f}" for f in (true, wrong))


if __name__ == "__main__":
    main()
