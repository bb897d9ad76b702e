"""Reproduce all tables and figures of the paper: `python -m msdscore_lab.paper run --encoder NAME --data FOLDER`.

Each step is one `msdscore` command with the form `paper`. Its files are written to the output folder, where
`paper.md` and `paper.tex` list our numbers next to the paper's, with the command of each step. A step without data
prints one line and is not on the page. Finished steps are not repeated, so the same command resumes an interrupted run.

The local aligner is trained first (step `reconstruction`, if DATA has `chat.json` and `images`), or passed with
`--aligner`; the tables of the paper that use it are then computed with it. CLIPScore always uses the plain backbone.
"""

import argparse
import json
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from click import ClickException

from msdscore.cli.app import app
from msdscore.encoders.registry import find_row, list_encoders
from msdscore.errors import ConfigError, MissingExtraError, MSDScoreError, UnknownNameError
from msdscore.io.files import write_bytes
from msdscore.io.targets import MARK
from msdscore_lab.align.recipe import Recipe, load_recipe
from msdscore_lab.benchmarks.base import image_source
from msdscore_lab.benchmarks.readers.rows import captioned_images
from msdscore_lab.benchmarks.results.grids import Grid, markdown
from msdscore_lab.benchmarks.results.tables import latex
from msdscore_lab.paper import page as paper_page
from msdscore_lab.paper import published
from msdscore_lab.paper.tables import ALIGNED, TABLES, by_captioner

PAGE, TEX, RECORD, TIMES = "paper.md", "paper.tex", "run.json", "times.json"
CAPTIONS = "{data}/captions.jsonl"
SOME_FAILED, STOPPED = 3, 128  # exit codes: a step without a result; a signal, plus its number
HELD_OUT = 1000  # pairs of the paper's tuning
_PAIRS_PER_IMAGE = 7  # of SugarCrepe in a dry run
_METRICS = ("clipscore", "cosine", "coverage", "support", "bi-kl", "msd", "soft-msd")
RANDOM = "random weights: no number on this page is a result"
MAIN, PLAIN = "{main}", "{encoder}"  # encoders of a step: with the aligner if there is one, or without


@dataclass(frozen=True, slots=True)
class Step:
    """One command of a table or figure, and the function that renders its result.

    In the command, `{data}` and `{out}` are the folders, `{encoder}` the encoder, `{main}` the one with the aligner,
    `{image}` and `{caption}` the first row of `captions.jsonl`. `output` is the result file below `{out}`, or with the
    aligner below `{out}/aligned`; `needs` are required files, and `before` is a command to run first. Steps of one
    `table` are rendered together.
    """

    name: str
    title: str
    command: tuple[str, ...]
    output: str
    render: Callable[[Path], "Rendered"] = lambda path: ([], "")
    needs: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    encoder: str = MAIN
    table: str = ""

    def folder(self, args: argparse.Namespace) -> Path:
        """Return the folder of the results: a separate one with the aligner."""
        aligned = self.encoder == MAIN and aligner(args) is not None
        output: Path = args.output
        return output / ALIGNED if aligned else output

    def words(self, args: argparse.Namespace, command: Sequence[str] = ()) -> list[str]:
        """Return the command, or the one before it, with all placeholders filled."""
        placeholders = self._placeholders(args)
        if "{image}" in self.command and Path(_replaced(CAPTIONS, placeholders)).is_file():
            placeholders |= dict(zip(("{image}", "{caption}"), _example(args), strict=True))
        words = [_replaced(word, placeholders) for word in command or self.command]
        if words[0] == "rank-captioners":
            return words
        source, options = local_encoder(args.local, _replaced(self.encoder, placeholders))
        own = [] if "--encoder" in words or not source else ["--encoder", source]
        own += [word for name, value in options.items() for word in ("--encoder-option", f"{name}={value}")]
        words += [*own, "--form", "paper", "--device", args.device]
        if words[0] == "explain":
            return words
        words += ["--cache", str(args.cache or args.output / "cache")]
        if words[0] == "score":
            return words
        words += ["--limit", str(args.limit)] if args.limit else []
        words += ["--samples", str(args.samples), "--percentile"]
        return words + _more(words[1], args)

    def missing(self, args: argparse.Namespace) -> str:
        """Return the first required file that does not exist, or an empty string."""
        placeholders = self._placeholders(args)
        paths = (_replaced(name, placeholders) for name in self.needs)
        return next((path for path in paths if not Path(path).exists()), "")

    def _placeholders(self, args: argparse.Namespace) -> dict[str, str]:
        return {
            "{data}": str(args.data), "{out}": str(self.folder(args)), "{encoder}": args.encoder,
            "{main}": str(aligner(args) or args.encoder), "{trained}": str(_trained(args)),
        }  # fmt: skip


Rendered = tuple[list[Grid], str]  # tables, and Markdown below them


def _trained(args: argparse.Namespace) -> Path:
    """Return the folder of the aligners that the step `reconstruction` trains."""
    output: Path = args.output
    return output / "reconstruction.runs" / "encoders"


def aligner(args: argparse.Namespace) -> Path | None:
    """Return the folder of the aligner: the one passed, else the one trained with reconstruction, if it exists."""
    if args.aligner is not None:
        passed: Path = args.aligner
        return passed
    own = _trained(args) / "with-reconstruction"
    return own if own.is_dir() else None


def local_encoder(local: Path | None, name: str) -> tuple[str, dict[str, Any]]:
    """Return the folder or file of an encoder among the local checkpoints, or its name, and its encoder options."""
    folder = local / name if local and name else None
    return (name, {}) if folder is None or not folder.is_dir() else folder_source(folder, name)


def _model(local: Path | None, text: str) -> str:
    """Return NAME or NAME,KEY=VALUE with the folder of the model among the local checkpoints, or its name on the hub.

    >>> _model(None, "llava-1.5-7b,prompt=judge.py:PROMPT")
    'llava-hf/llava-1.5-7b-hf,prompt=judge.py:PROMPT'
    """
    name, comma, options = text.partition(",")
    if local and (local / name).is_dir():
        return f"{local / name}{comma}{options}"
    sources = {row.name: row.source for row in list_encoders()}
    return f"{sources.get(name, name)}{comma}{options}"


def folder_source(folder: Path, name: str) -> tuple[str, dict[str, Any]]:
    """Return the source of an encoder in a folder, and its encoder options.

    Encoders that are published as a single weights file are loaded through open_clip.
    """
    try:
        row = find_row(name)
    except UnknownNameError:
        return str(folder), {}
    file = folder / str(row.options.get("file", ""))
    if not file.is_file():
        return str(folder), {}
    context = {"context": row.options["context"]} if "context" in row.options else {}
    return f"open_clip:{row.options['model']}/{file}", context


def _replaced(word: str, placeholders: Mapping[str, str]) -> str:
    for name, value in placeholders.items():
        word = word.replace(name, value)
    return word


def _more(study: str, args: argparse.Namespace) -> list[str]:
    """Return options that only some studies have: more encoders, held-out pairs, backbones of the aligner."""
    if study == "backbones":
        contrastive = [name for name in args.also if name not in (*VLMS, *DOMAINS, LONG)]
        return [word for name in contrastive for word in ("--also", local_encoder(args.local, name)[0])]
    pairs = args.limit or (_PAIRS_PER_IMAGE * args.items if args.random_weights else 0)
    if study == "tune" and 0 < pairs < 2 * HELD_OUT:
        return ["--held-out", str(pairs // 2)]
    if study != "reconstruction":
        return []
    encoder, language = (local_encoder(args.local, name)[0] for name in (args.encoder, LANGUAGE))
    changes = [f"image.source={encoder}", f"text.source={encoder}"]
    changes += [] if language == LANGUAGE else [f"lm.source={language}"]
    return [word for change in (*changes, *args.recipe_set) for word in ("--recipe-set", change)]


def _example(args: argparse.Namespace) -> tuple[str, str]:
    """Return image and caption of the heat maps; an image inside a Parquet file is written to a file."""
    first = captioned_images(args.data / "captions.jsonl")[0]
    image = image_source(first.image)
    if isinstance(image, bytes):
        path = args.output / first.image.name
        write_bytes(path, image, folder=args.output)
        image = path
    return str(image), first.captions[0]


def _study(name: str) -> Callable[[Path], Rendered]:
    """Return a function that renders the tables of a study with the paper's columns, or as the study wrote them."""

    def render(path: Path) -> Rendered:
        if name in paper_page.PARTS:
            grids, signatures = paper_page.study_grids(name, json.loads(path.read_text(encoding="utf-8")), full=True)
            return grids, "\n".join(f"`{signature}`\n" for signature in signatures)
        return [], path.with_suffix(".md").read_text(encoding="utf-8").replace(f"<!-- {MARK} -->", "").rstrip() + "\n"

    return render


def _drawn(path: Path) -> Rendered:
    return [], f"![{path.stem}]({path.name})\n"


def _ranking(path: Path) -> Rendered:
    """Return captioners by mean MSD, with the paper's below."""
    rankings = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))["metrics"]
    (rows,) = (one["placed"] for one in rankings if one["metric"] == "msd")
    ours = [(row["captioner"], f"{row['mean']['value']:.4f}") for row in rows]
    theirs = [(f"{name} (quoted)", f"{value:.4f}") for name, value in published.RANKING.items()]
    grid = Grid("Captioners by mean MSD", ("captioner", "mean MSD"), (*ours, *theirs))
    return [grid], f"Full page: [{path.name}]({path.name})\n"


def _bench(
    name: str, *more: str, table: str, metrics: Sequence[str] = _METRICS, encoder: str = MAIN, suffix: str = ""
) -> Step:
    """Return a step that runs a benchmark with the protocol of the paper, into the folder `bench` + suffix."""
    chosen = [word for metric in metrics for word in ("-m", metric)]
    folder = f"bench{suffix}"
    command = ("bench", name, "--root", "{data}", "-o", f"{{out}}/{folder}", "--no-control", "--protocol", "paper",
               *chosen, *more)  # fmt: skip
    file = f"{folder}/{name}{'-paper' if name in ('caparena', 'docent') else ''}.json"
    return Step(f"{name}{suffix}", TABLES[table][0], command, file, encoder=encoder, table=table)


def _of(name: str, title: str, *more: str, needs: tuple[str, ...] = (), encoder: str = PLAIN) -> Step:
    data = () if "--rows" in more else ("--root", "{data}")
    command = ("study", name, *data, "-o", f"{{out}}/{name}.json", *more)
    return Step(name, title, command, f"{name}.json", _study(name), needs, encoder=encoder)


LANGUAGE = "llama-7b"  # folder of the language model among the local checkpoints
LONG = "longclip-l"  # encoder of LongCLIPScore
DOMAINS = {"remoteclip-l14": "rsicd", "biomedclip": "rocov2"}  # encoders of other domains, and their benchmarks
VLMS = ("llava-1.5-7b", "llava-onevision-7b", "llava-critic-7b", "qwen2.5-vl-7b")  # of the table of CapArena
_MAPS = ("explain", "{image}", "{caption}", "--map", "carried")
_CAPTIONERS = "{data}/captioners.jsonl"
_LEGACY = ("flickr8k-expert", "flickr8k-cf", "composite", "pascal50s")
STEPS = (
    _of("reconstruction", "Reconstruction", "-b", "docent", "-b", "caparena", "--protocol", "paper", "--data",
        "{data}/chat.json", "--images", "{data}/images", needs=("{data}/chat.json", "{data}/images")),
    _bench("caparena", table="caparena"),
    _bench("caparena", table="caparena", metrics=("bleu-4", "cider", "meteor"), encoder="", suffix="-references"),
    _bench("caparena", table="caparena", metrics=("spice",), encoder="", suffix="-spice"),
    _bench("docent", table="docent"),
    *(_bench(name, table="legacy") for name in _LEGACY),
    _bench("sugarcrepe", table="sugarcrepe", metrics=("clipscore", "clipscore,prefix=", *_METRICS[1:], "rank-agg"),
           encoder=PLAIN),
    _of("backbones", "SugarCrepe by backbone (figure)", "-b", "sugarcrepe"),
    _bench("coco-cf", table="coco-cf"),
    Step("captioners", "COCO-CF by captioner (figure)",
         ("bench", "coco-cf", "--root", "{data}", "-o", "{out}/captioners", "--no-control", "-m", "clipscore", "-m",
          "msd", "-m", "soft-msd", "--option", "by=captioner"), "captioners/coco-cf.json", by_captioner),
    _of("mixtures", "Distributions"),
    _of("kappa", "Concentration", "--values", "10 20 40"),
    _of("stability", "Seed stability (figure)"),
    _of("entropy", "Entropy of responsibilities (figure)"),
    _of("direction", "KL direction, and by length in tokens", "-b", "sugarcrepe", "-b", "caparena", "--protocol",
        "paper", "--edges", "13 15 86 147 227", encoder=MAIN),
    _of("margin", "Cosine margin on COCO-CF, with intervals and McNemar's test", "-b", "coco-cf", encoder=MAIN),
    _of("sensitivity", "Sensitivity of kappa-hat to the mean resultant length"),
    *(_bench(data, table="ood", metrics=("clipscore", "msd", "soft-msd"), encoder=name, suffix=f"-{name}")
      for name, data in DOMAINS.items()),
    _of("faithfulness", "Faithfulness of the maps, in the paper's form", encoder=MAIN),
    _of("words", "Spans of DocENT: AUC of the token terms", "--marks", "docent", encoder=MAIN),
    *(_of(name, f"Hyperparameters: {name}") for name in
      ("alpha", "components", "iterations", "xi", "l0", "tau-l", "beta")),
    _of("tune", "Hyperparameters tuned on held-out pairs"),
    _of("timing", "Latency", "--rows", CAPTIONS, needs=(CAPTIONS,)),
    Step("maps", "Heat map of the token terms (figure)", (*_MAPS, "-o", "{out}/maps.png"), "maps.png", _drawn,
         (CAPTIONS,)),
    Step("maps-reconstruction", "Heat maps with and without reconstruction (figure)",
         (*_MAPS, "--encoder", "{trained}/with-reconstruction", "--also", "{trained}/without-reconstruction", "-o",
          "{out}/maps-reconstruction.png"), "maps-reconstruction.png", _drawn,
         (CAPTIONS, "{trained}/with-reconstruction", "{trained}/without-reconstruction")),
    Step("ranking", "Captioners by mean MSD",
         ("rank-captioners", "{out}/captioners.parquet", "--rows", _CAPTIONERS, "-o", "{out}/ranking.html"),
         "ranking.html", _ranking, (_CAPTIONERS,), ("score", _CAPTIONERS, "-o", "{out}/captioners.parquet")),
)  # fmt: skip


def steps_of(args: argparse.Namespace) -> tuple[Step, ...]:
    """Return all steps: those of other domains only with their encoder; further encoders and judges on CapArena."""
    steps = [step for step in STEPS if step.encoder not in DOMAINS or step.encoder in args.also]
    more: list[Step] = []
    for name in args.also:
        if name == LONG:
            metrics: tuple[str, ...] = ("longclipscore",)
        elif name in VLMS:
            metrics = ("msd", "soft-msd")
        else:
            continue
        more.append(_bench("caparena", table="caparena", metrics=metrics, encoder=name, suffix=f"-{name}"))
    for text in args.judge:
        metric = f"judge:{_model(args.local, text)},backend=local,setup=caparena"
        suffix = f"-judge-{text.partition(',')[0].replace('/', '-')}"  # a folder name
        more.append(_bench("caparena", table="caparena", metrics=(metric,), encoder="", suffix=suffix))
    if args.fleur:
        metric = f"fleur:{_model(args.local, args.fleur)}"
        more += [
            _bench(data, table=data, metrics=(metric,), encoder="", suffix="-fleur") for data in ("caparena", "docent")
        ]
    place = next(at for at, step in enumerate(steps) if step.table == "docent")
    return (*steps[:place], *more, *steps[place:])


def run_step(step: Step, args: argparse.Namespace) -> str:
    """Run a step unless its result exists; return an error in one line, or an empty string."""
    output = step.folder(args) / step.output
    if output.is_file():
        return ""
    if missing := step.missing(args):
        return f"{missing} does not exist"
    for command in filter(None, (step.before, step.command)):
        if reason := _run(step.words(args, command)):
            return reason
    return "" if output.is_file() else f"no {step.output} was written"


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


def write_pages(args: argparse.Namespace, reasons: Mapping[str, str]) -> None:
    """Write the page in Markdown and its tables in LaTeX, one section per table or figure in the paper's order."""
    head = f"# The paper with {args.encoder}\n\nForm `paper`; numbers and decimals as the paper prints them. "
    head += f"{_aligner_note(args)}\n"
    parts, tables = [f"{head}\n**{RANDOM}.**\n" if args.random_weights else head], list[str]()
    finished = [step for step in steps_of(args) if reasons.get(step.name) == ""]
    for table in dict.fromkeys(step.table or step.name for step in finished):
        steps = [step for step in finished if (step.table or step.name) == table]
        commands = [step.words(args, words) for step in steps for words in filter(None, (step.before, step.command))]
        parts.append("\n".join([f"## {steps[0].title}\n", *(f"`{shlex.join(['msdscore', *c])}`\n" for c in commands)]))
        if table in TABLES:
            grids, below = TABLES[table][1](args.output), ""
        else:
            grids, below = steps[0].render(steps[0].folder(args) / steps[0].output)
        parts += [markdown(grid) for grid in grids] + ([below] if below else [])
        tables += [latex(grid) for grid in grids]
    left_out = [f"- {name}: {reason}\n" for name, reason in reasons.items() if reason]
    parts += [f"## Not run\n\n{''.join(left_out)}"] if left_out else []
    text, hidden = "\n".join(parts), f"{args.local}/" if args.local else ""
    write_bytes(args.output / PAGE, (text.replace(hidden, "") if hidden else text).encode(), folder=args.output)
    note = f"% {RANDOM}\n" if args.random_weights else ""
    write_bytes(args.output / TEX, (note + "\n".join(tables)).encode(), folder=args.output)


def _aligner_note(args: argparse.Namespace) -> str:
    """Return which encoder the rows of Soft-MSD use: the paper's use a trained aligner."""
    folder = aligner(args)
    if folder is None:
        return f"**Without the local aligner**: all rows use plain {args.encoder}, unlike the paper's Soft-MSD."
    return f"Soft-MSD uses the local aligner `{folder.name}` in the main tables, CLIPScore plain {args.encoder}."


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m msdscore_lab.paper run", description=__doc__)
    parser.add_argument("--encoder", "-e", default="clip-l14", help="short name, hub name or folder (clip-l14)")
    parser.add_argument("--data", type=Path, help="folder of the benchmarks, one folder each or together")
    parser.add_argument("--output", "-o", type=Path, default=Path("build/paper"))
    parser.add_argument("--aligner", type=Path, help="folder of an exported aligner of the encoder; default: train it")
    known = ", ".join((LONG, *DOMAINS, *VLMS))
    parser.add_argument(
        "--also", action="append", default=[], help=f"another encoder, repeatable; of the paper: {known}"
    )
    parser.add_argument(
        "--judge",
        action="append",
        default=[],
        help="a model that judges pairs of CapArena, with options of the metric after commas; repeatable",
    )
    parser.add_argument(
        "--fleur", default="", help="a LLaVA checkpoint for FLEUR on CapArena and DocENT, as NAME[,prompt=FILE]"
    )
    parser.add_argument("--local", type=Path, help=f"folder of checkpoints, named as their encoders, and {LANGUAGE}")
    parser.add_argument("--only", action="append", default=[], help="only this step; repeatable")
    parser.add_argument("--limit", type=int, help="number of items of each benchmark")
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--cache", type=Path, help="folder of cached embeddings (OUTPUT/cache)")
    parser.add_argument(
        "--random-weights", action="store_true", help="draw all weights and images at random: a dry run"
    )
    parser.add_argument(
        "--items", type=int, default=48, help="images per benchmark of a dry run (48); 1073: 7511 pairs"
    )
    parser.add_argument(
        "--recipe-set", action="append", default=[], help="change of the aligner's recipe, e.g. train.steps=100"
    )
    return parser


def _check(args: argparse.Namespace) -> None:
    """Raise `ConfigError` for an invalid option, or an output folder with results of other options."""
    if args.data is None or not args.data.is_dir():
        raise ConfigError(f"--data: expected a folder of benchmarks, but {args.data} does not exist")
    known = [step.name for step in steps_of(args)]
    for name in args.only:
        if name not in known:
            raise ConfigError(f"--only: expected one of {', '.join(known)}, got {name!r}")
    names = ["encoder", "data", "aligner", "also", "judge", "fleur", "local", "limit", "samples", "random_weights"]
    names += ["recipe_set"]
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


def _rehearse(args: argparse.Namespace) -> None:
    """Write checkpoints of the real shapes with random weights, and benchmarks of drawn scenes, for a dry run.

    A checkpoint whose library is missing is reported; its steps then fail with the same reason.
    """
    from msdscore_lab.paper.rehearsal import FULL, write_checkpoint
    from msdscore_lab.paper.rehearsal_data import write_benchmarks

    folder, times = args.output / "random", args.output / TIMES
    args.local, args.data = folder / "checkpoints", folder / "data"
    if args.items < load_recipe(Recipe, "paper").train.batch:
        args.recipe_set = [f"train.batch={args.items}", *args.recipe_set]
    folder.mkdir(parents=True, exist_ok=True)
    if not args.data.is_dir():
        sys.stderr.write("drawing benchmarks\n")
        with timed(times, "drawing benchmarks"):
            write_benchmarks(args.data, images=args.items, size=(640, 480))
    device = "cuda" if args.device.startswith("cuda") else "cpu"
    trained = (LANGUAGE,) if not args.only or "reconstruction" in args.only else ()
    models = (text.partition(",")[0] for text in (*args.judge, args.fleur))
    for name in dict.fromkeys((args.encoder, *args.also, *models, *trained)):
        if name in FULL and not (args.local / name).is_dir():
            sys.stderr.write(f"drawing weights of {name}\n")
            try:
                with timed(times, f"drawing weights of {name}"):
                    write_checkpoint(args.local / name, name, device=device)
            except MissingExtraError as error:
                sys.stderr.write(f"{name}: {error}\n")


@contextmanager
def timed(path: Path, name: str) -> Iterator[None]:
    """Add the seconds of a step to a JSON file; they are null while it runs, and `runs` counts interrupted runs too."""
    times = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    runs, start = times.get(name, {}).get("runs", 0) + 1, time.monotonic()

    def write(seconds: float | None) -> None:
        content = json.dumps({**times, name: {"seconds": seconds, "runs": runs}}, indent=1)
        write_bytes(path, content.encode(), folder=path.parent)

    write(None)
    yield
    write(round(time.monotonic() - start, 1))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the requested steps; return exit code 3 if a step could not run."""
    args = _parser().parse_args(arguments)
    try:
        if args.random_weights:
            _rehearse(args)
        _check(args)
    except MSDScoreError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    reasons: dict[str, str] = {}
    for step in steps_of(args):
        if not args.only or step.name in args.only:
            start = time.monotonic()
            finished = (step.folder(args) / step.output).is_file()
            try:
                with nullcontext() if finished else timed(args.output / TIMES, step.name):
                    reasons[step.name] = run_step(step, args)
            except KeyboardInterrupt:
                sys.stderr.write(f"{step.name}: stopped; the same command resumes here\n")
                return STOPPED + signal.SIGINT
            outcome = f"not run: {reasons[step.name]}" if reasons[step.name] else f"{time.monotonic() - start:.0f} s"
            sys.stderr.write(f"{step.name}: {outcome}\n")
            write_pages(args, reasons)
    sys.stdout.write(f"{args.output / PAGE}: {sum(not why for why in reasons.values())} of {len(reasons)} steps\n")
    return SOME_FAILED if any(reasons.values()) else 0
