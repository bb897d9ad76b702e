"""Reproduce all tables and figures of the paper: `python tools/paper_run.py --encoder NAME --data FOLDER`.

Each step is one `msdscore` command with the preset `paper`. Its files are written to the output folder, where
`paper.md` lists our numbers next to the paper's, with the command of each step. A step without data prints one line and
is not on the page. Finished steps are not repeated, so the same command resumes an interrupted run.
"""

import argparse
import json
import shlex
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from click import ClickException

import paper_page
import published
from msdscore.cli.app import app
from msdscore.errors import ConfigError, MSDScoreError
from msdscore.io.atomic import write_bytes
from msdscore.io.outputs.targets import MARK
from msdscore.lab.benchmarks.base import image_source
from msdscore.lab.benchmarks.readers.rows import captioned_images
from msdscore.lab.benchmarks.results.grids import NONE, Grid, markdown
from msdscore.lab.benchmarks.results.result import MetricResult, Result, read_result

PAGE, RECORD = "paper.md", "run.json"
CAPTIONS = "{data}/captions.jsonl"
SOME_FAILED, STOPPED = 3, 128  # exit codes: a step without a result; a signal, plus its number
HELD_OUT = 1000  # pairs of the paper's tuning
_METRICS = ("clipscore", "cosine", "coverage", "support", "bi-kl", "msd", "soft-msd")


@dataclass(frozen=True, slots=True)
class Step:
    """One table or figure of the paper: the command that creates it, and the function that renders its result.

    In the command, `{data}` and `{out}` are the folders, `{encoder}` the encoder, `{image}` and `{caption}` the first
    row of `captions.jsonl`. `output` is the result file below `{out}`, `needs` are required files, and `before` is a
    command to run first.
    """

    name: str
    title: str
    command: tuple[str, ...]
    output: str
    render: Callable[[Path], str]
    needs: tuple[str, ...] = ()
    before: tuple[str, ...] = ()

    def words(self, args: argparse.Namespace, command: Sequence[str] = ()) -> list[str]:
        """Return the command, or the one before it, with all placeholders filled."""
        placeholders = {"{data}": str(args.data), "{out}": str(args.output), "{encoder}": _local(args, args.encoder)}
        if "{image}" in self.command and _filled(CAPTIONS, placeholders).is_file():
            placeholders |= dict(zip(("{image}", "{caption}"), _example(args), strict=True))
        words = [str(_replaced(word, placeholders)) for word in command or self.command]
        own = [] if "--encoder" in words else ["--encoder", placeholders["{encoder}"]]
        if words[0] == "rank-captioners":
            return words
        words += [*own, "--preset", "paper", "--device", args.device]
        if words[0] == "explain":
            return words
        words += ["--cache", str(args.cache or args.output / "cache")]
        if words[0] == "score":
            return words
        words += ["--limit", str(args.limit)] if args.limit else []
        words += ["--samples", str(args.samples)]
        return words + _more(words[1], args)

    def missing(self, args: argparse.Namespace) -> str:
        """Return the first required file that does not exist, or an empty string."""
        placeholders = {"{data}": str(args.data), "{out}": str(args.output)}
        return next((str(path) for name in self.needs if not (path := _filled(name, placeholders)).exists()), "")


def _replaced(word: str, placeholders: Mapping[str, str]) -> str:
    for name, value in placeholders.items():
        word = word.replace(name, value)
    return word


def _filled(name: str, placeholders: Mapping[str, str]) -> Path:
    return Path(_replaced(name, placeholders))


def _more(study: str, args: argparse.Namespace) -> list[str]:
    """Return options that only some studies have: more encoders, held-out pairs, backbones of the aligner."""
    if study in ("backbones", "ood"):
        return [word for name in args.also for word in ("--also", _local(args, name))]
    if study == "tune" and args.limit and args.limit <= HELD_OUT:
        return ["--held-out", str(args.limit // 2)]
    if study != "reconstruction":
        return []
    encoder, language = _local(args, args.encoder), _local(args, LANGUAGE)
    changes = [f"image.source={encoder}", f"text.source={encoder}"]
    changes += [] if language == LANGUAGE else [f"lm.source={language}"]
    return [word for change in (*changes, *args.recipe_set) for word in ("--recipe-set", change)]


def _local(args: argparse.Namespace, name: str) -> str:
    """Return the folder of an encoder among the local checkpoints, or its name."""
    folder = args.local and args.local / name
    return str(folder) if folder and folder.is_dir() else str(name)


def _example(args: argparse.Namespace) -> tuple[str, str]:
    """Return image and caption of the heat maps; an image inside a Parquet file is written to a file."""
    first = captioned_images(args.data / "captions.jsonl")[0]
    image = image_source(first.image)
    if isinstance(image, bytes):
        path = args.output / first.image.name
        write_bytes(path, image, folder=args.output)
        image = path
    return str(image), first.captions[0]


def bench_grid(
    path: Path, title: str, papers: Mapping[str, Mapping[str, float]], columns: Mapping[str, str] | None = None
) -> str:
    """Return the results of a benchmark run, one row per metric, and the paper's rows below; all times 100.

    `columns` maps the headings of the paper's table to names of statistics; without it all statistics are shown.
    """
    result = read_result(path)
    shown = columns or {figure.name: figure.name for figure in result.metrics[0].figures}
    rows = [(metric.label, *(_value(metric, name) for name in shown.values())) for metric in result.metrics]
    rows += [
        (f"{label} (paper)", *(f"{known[name]:.1f}" if name in known else NONE for name in shown.values()))
        for label, known in papers.items()
    ]
    return markdown(Grid(_counted(title, result), ("metric", *shown), tuple(rows), _signed(result)))


def splits_grid(path: Path, title: str) -> str:
    """Return one row per statistic, such as a split of COCO-CF, and one column per metric, as in the paper."""
    result = read_result(path)
    names = [figure.name for figure in result.metrics[0].figures]
    rows = [(name.removeprefix("accuracy/"), *(_value(metric, name) for metric in result.metrics)) for name in names]
    known = {f"accuracy/{name.partition('-')[0].lower()}": values for name, values in published.COCO_CF.items()}
    order = ("coverage", "support", "bi-kl", "clipscore", "msd", "soft-msd")
    for name, values in known.items():
        by_metric = dict(zip(order, values, strict=True))
        cells = (f"{by_metric[metric.label]:.1f}" if metric.label in by_metric else NONE for metric in result.metrics)
        rows += [(f"{name.removeprefix('accuracy/')} (paper)", *cells)] if name in names else []
    columns = ("split", *(metric.label for metric in result.metrics))
    return markdown(Grid(_counted(title, result), columns, tuple(rows), _signed(result)))


def _value(metric: MetricResult, name: str) -> str:
    figure = metric.figure(name)
    return NONE if figure is None or figure.value != figure.value else f"{figure.scale * figure.value:.1f}"


def _counted(title: str, result: Result) -> str:
    return f"{title} ({result.counted} items, {result.images} images)"


def _signed(result: Result) -> tuple[str]:
    return (f"`{result.metrics[-1].signature}`",)


def _study(name: str) -> Callable[[Path], str]:
    """Return a function that renders the tables of a study with the paper's columns, or as the study wrote them."""

    def render(path: Path) -> str:
        if name in paper_page.PARTS:
            return paper_page.part(name, json.loads(path.read_text(encoding="utf-8")), full=True)
        return path.with_suffix(".md").read_text(encoding="utf-8").replace(f"<!-- {MARK} -->", "").rstrip() + "\n"

    return render


def _drawn(path: Path) -> str:
    return f"![{path.stem}]({path.name})\n"


def _ranking(path: Path) -> str:
    """Return captioners by mean MSD, with the paper's below."""
    rankings = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))["metrics"]
    (rows,) = (one["placed"] for one in rankings if one["metric"] == "msd")
    ours = [(row["captioner"], f"{row['mean']['value']:.4f}") for row in rows]
    theirs = [(f"{name} (paper)", f"{value:.4f}") for name, value in published.RANKING.items()]
    grid = Grid("Captioners by mean MSD", ("captioner", "mean MSD"), (*ours, *theirs))
    return f"{markdown(grid)}\nFull page: [{path.name}]({path.name})\n"


def _bench(
    name: str,
    title: str,
    papers: Mapping[str, Mapping[str, float]],
    *more: str,
    out: str = "",
    columns: Mapping[str, str] | None = None,
) -> Step:
    protocol = "-paper" if "paper" in more else ""
    metrics = [word for metric in _METRICS for word in ("-m", metric)]
    folder = f"{{out}}/{out or 'bench'}"
    command = ("bench", name, "--root", "{data}", "-o", folder, "--no-control", *metrics, *more)
    file = f"{out or 'bench'}/{name}{protocol}.json"
    if name == "coco-cf":
        return Step(out or name, title, command, file, lambda path: splits_grid(path, title))
    return Step(out or name, title, command, file, lambda path: bench_grid(path, title, papers, columns))


def _of(name: str, title: str, *more: str, needs: tuple[str, ...] = ()) -> Step:
    data = () if "--rows" in more else ("--root", "{data}")
    command = ("study", name, *data, "-o", f"{{out}}/{name}.json", *more)
    return Step(name, title, command, f"{name}.json", _study(name), needs)


LANGUAGE = "llama-7b"  # folder of the language model among the local checkpoints
_MAPS = ("explain", "{image}", "{caption}", "--map", "carried")
_TRAINED = "{out}/reconstruction.runs/encoders"  # the aligners of the step `reconstruction`
_CAPTIONERS = "{data}/captioners.jsonl"
STEPS = (
    _bench("caparena", "CapArena", published.CAPARENA, "--protocol", "paper", columns=published.CAPARENA_COLUMNS),
    _bench("docent", "DocENT", published.DOCENT, "--protocol", "paper", columns=published.DOCENT_COLUMNS),
    *(_bench(name, title, published.LEGACY[name], columns=published.LEGACY_COLUMNS.get(name, published.TAUS))
      for name, title in (("flickr8k-expert", "Flickr8k-Expert"), ("flickr8k-cf", "Flickr8k-CF"),
                          ("composite", "Composite"), ("pascal50s", "Pascal-50S"))),
    _of("backbones", "SugarCrepe by backbone (figure)", "-b", "sugarcrepe"),
    _bench("coco-cf", "COCO-CF by split", {}),
    _bench("coco-cf", "COCO-CF by captioner (figure)", {}, "--option", "by=captioner", out="captioners"),
    _of("mixtures", "Distributions"),
    _of("kappa", "Concentration", "--values", "10 20 40"),
    _of("stability", "Seed stability (figure)"),
    _of("entropy", "Entropy of responsibilities (figure)"),
    _of("direction", "KL direction, and by length in tokens", "-b", "sugarcrepe", "-b", "caparena", "--protocol",
        "paper", "--edges", "13 15 86 147 227"),
    _of("margin", "Cosine margin on COCO-CF, with intervals and McNemar's test", "-b", "coco-cf"),
    _of("sensitivity", "Sensitivity of kappa-hat to the mean resultant length"),
    _of("ood", "Out of domain"),
    _of("faithfulness", "Faithfulness of the maps, in the paper's form"),
    *(_of(name, f"Hyperparameters: {name}") for name in
      ("alpha", "components", "iterations", "xi", "l0", "tau-l", "beta")),
    _of("tune", "Hyperparameters tuned on held-out pairs"),
    _of("timing", "Latency", "--rows", CAPTIONS, needs=(CAPTIONS,)),
    _of("reconstruction", "Reconstruction", "-b", "docent", "-b", "caparena", "--protocol", "paper", "--data",
        "{data}/chat.json", "--images", "{data}/images", needs=("{data}/chat.json", "{data}/images")),
    Step("maps", "Heat map of the token terms (figure)", (*_MAPS, "-o", "{out}/maps.png"), "maps.png", _drawn,
         (CAPTIONS,)),
    Step("maps-reconstruction", "Heat maps with and without reconstruction (figure)",
         (*_MAPS, "--encoder", f"{_TRAINED}/with-reconstruction", "--also",
          f"{_TRAINED}/without-reconstruction", "-o", "{out}/maps-reconstruction.png"),
         "maps-reconstruction.png", _drawn,
         (CAPTIONS, f"{_TRAINED}/with-reconstruction", f"{_TRAINED}/without-reconstruction")),
    Step("ranking", "Captioners by mean MSD",
         ("rank-captioners", "{out}/captioners.parquet", "--rows", _CAPTIONERS, "-o", "{out}/ranking.html"),
         "ranking.html", _ranking, (_CAPTIONERS,), ("score", _CAPTIONERS, "-o", "{out}/captioners.parquet")),
)  # fmt: skip


def steps_of(args: argparse.Namespace) -> tuple[Step, ...]:
    """Return all steps; CapArena also with every additional encoder."""
    more = [
        _bench("caparena", f"CapArena with {name}", {}, "--protocol", "paper", "--encoder", _local(args, name),
               out=f"caparena-{Path(name).name}", columns=published.CAPARENA_COLUMNS)
        for name in args.also
    ]  # fmt: skip
    return (STEPS[0], *more, *STEPS[1:])


def run_step(step: Step, args: argparse.Namespace) -> str:
    """Run a step unless its result exists; return an error in one line, or an empty string."""
    if (args.output / step.output).is_file():
        return ""
    if missing := step.missing(args):
        return f"{missing} does not exist"
    for command in filter(None, (step.before, step.command)):
        if reason := _run(step.words(args, command)):
            return reason
    return "" if (args.output / step.output).is_file() else f"no {step.output} was written"


def _run(words: Sequence[str]) -> str:
    """Run an msdscore command in this process, where modules are already loaded; return an error in one line."""
    quiet = StringIO()
    try:
        with redirect_stdout(quiet), redirect_stderr(quiet):
            code = app(list(words), standalone_mode=False)
    except (MSDScoreError, ClickException) as error:
        return (error.format_message() if isinstance(error, ClickException) else str(error)).splitlines()[0]
    except Exception as error:  # noqa: BLE001, a failed step must not stop the others
        return f"{type(error).__name__}: {error}".splitlines()[0]
    if code and code >= STOPPED:
        raise KeyboardInterrupt
    return ""


def page(args: argparse.Namespace, reasons: Mapping[str, str]) -> str:
    """Return the page, with one section per existing table or figure in the paper's order."""
    parts = [f"# The paper with {args.encoder}\n\nAccuracies, agreements and correlations times 100. Preset `paper`.\n"]
    for step in steps_of(args):
        if reasons.get(step.name) == "":
            commands = [step.words(args, command) for command in filter(None, (step.before, step.command))]
            parts.append("\n".join([f"## {step.title}\n", *(f"`{shlex.join(['msdscore', *c])}`\n" for c in commands)]))
            shown = step.render(args.output / step.output)
            parts.append(shown.replace(f"{args.local}/", "") if args.local else shown)
    left_out = [name for name, reason in reasons.items() if reason]
    return "\n".join([*parts, *([f"Not run: {', '.join(left_out)}.\n"] if left_out else [])])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python tools/paper_run.py", description=__doc__)
    parser.add_argument("--encoder", "-e", required=True, help="short name, hub name or folder")
    parser.add_argument(
        "--data", type=Path, required=True, help="folder of the benchmarks, one folder each or together"
    )
    parser.add_argument("--output", "-o", type=Path, default=Path("build/paper"))
    parser.add_argument("--also", action="append", default=[], help="another encoder to compare with; repeatable")
    parser.add_argument("--local", type=Path, help=f"folder of checkpoints, named as their encoders, and {LANGUAGE}")
    parser.add_argument("--only", action="append", default=[], help="only this step; repeatable")
    parser.add_argument("--limit", type=int, help="number of items of each benchmark")
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--cache", type=Path, help="folder of cached embeddings (OUTPUT/cache)")
    parser.add_argument(
        "--recipe-set", action="append", default=[], help="change of the aligner's recipe, e.g. train.steps=100"
    )
    return parser


def _check(args: argparse.Namespace) -> None:
    """Raise `ConfigError` for an invalid option, or an output folder with results of other options."""
    if not args.data.is_dir():
        raise ConfigError(f"--data: expected a folder of benchmarks, but {args.data} does not exist")
    known = [step.name for step in steps_of(args)]
    for name in args.only:
        if name not in known:
            raise ConfigError(f"--only: expected one of {', '.join(known)}, got {name!r}")
    names = ("encoder", "data", "also", "local", "limit", "samples", "recipe_set")
    chosen = {name: json.loads(json.dumps(getattr(args, name), default=str)) for name in names}
    record = args.output / RECORD
    before = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else chosen
    if different := [name for name in names if before.get(name) != chosen[name]]:
        raise ConfigError(
            f"{args.output}: contains results with {different[0]} {before.get(different[0])!r}, now "
            f"{chosen[different[0]]!r}; choose another -o"
        )
    args.output.mkdir(parents=True, exist_ok=True)
    write_bytes(record, json.dumps(chosen, indent=1).encode(), folder=args.output)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the requested steps; return exit code 3 if a step could not run."""
    args = _parser().parse_args(arguments)
    try:
        _check(args)
    except MSDScoreError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    reasons: dict[str, str] = {}
    for step in steps_of(args):
        if not args.only or step.name in args.only:
            start = time.monotonic()
            try:
                reasons[step.name] = run_step(step, args)
            except KeyboardInterrupt:
                sys.stderr.write(f"{step.name}: stopped; the same command resumes here\n")
                return STOPPED + signal.SIGINT
            outcome = f"not run: {reasons[step.name]}" if reasons[step.name] else f"{time.monotonic() - start:.0f} s"
            sys.stderr.write(f"{step.name}: {outcome}\n")
            write_bytes(args.output / PAGE, page(args, reasons).encode(), folder=args.output)
    sys.stdout.write(f"{args.output / PAGE}: {sum(not why for why in reasons.values())} of {len(reasons)} steps\n")
    return SOME_FAILED if any(reasons.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
