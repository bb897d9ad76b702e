"""Every table and figure of the paper for any encoder: `python tools/paper_run.py --encoder NAME --data FOLDER`.

Each step is one `msdscore` command with the preset `paper`; its files go to the output folder, and `paper.md` there has
our numbers next to the paper's, the command of each step, and why a step could not run. A finished step is not run
again and a stopped one continues, so the same command goes on after any stop.
"""

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import paper_page
import published
from msdscore.errors import ConfigError, MSDScoreError
from msdscore.io.atomic import write_bytes
from msdscore.lab.benchmarks.base import image_source
from msdscore.lab.benchmarks.readers.rows import captioned_images
from msdscore.lab.benchmarks.results.grids import NONE, Grid, markdown
from msdscore.lab.benchmarks.results.result import read_result

PAGE = "paper.md"
CAPTIONS = "captions.jsonl"
SOME_FAILED = 3  # exit code of a benchmark run in which some items could not be scored
_METRICS = ("clipscore", "cosine", "coverage", "support", "bi-kl", "msd", "soft-msd")


@dataclass(frozen=True, slots=True)
class Step:
    """One table or figure of the paper: the command that makes it, and how its result becomes tables.

    `{data}` and `{out}` in the command are the folders, `{image}` and `{caption}` the first row of `captions.jsonl`;
    `output` is the result file, below `{out}`.
    """

    name: str
    title: str
    command: tuple[str, ...]
    output: str
    render: Callable[[Path], str]

    def words(self, asked: argparse.Namespace) -> list[str]:
        """The command as it is run."""
        places = {"{data}": str(asked.data), "{out}": str(asked.output)}
        if "{image}" in self.command and (asked.data / CAPTIONS).is_file():
            places |= dict(zip(("{image}", "{caption}"), _example(asked), strict=True))
        words = [places.get(word, word) for word in self.command]
        words = [word.replace("{out}", str(asked.output)).replace("{data}", str(asked.data)) for word in words]
        if words[0] == "explain":
            chosen = [] if "--encoder" in words else ["--encoder", _encoder(asked)]
            return [*words, *chosen, "--preset", "paper", "--device", asked.device]
        scoring = words[0] in ("bench", "study")
        words += ["--encoder", _encoder(asked), "--preset", "paper"] if scoring else []
        words += ["--limit", str(asked.limit)] if scoring and asked.limit else []
        sampled = words[0] == "bench" or (words[0] == "study" and words[1] in _RESAMPLED)
        words += ["--samples", str(asked.samples)] if sampled else []
        words += ["--device", asked.device, "--cache", str(asked.output / "cache")] if scoring else []
        return words


def _encoder(asked: argparse.Namespace) -> str:
    local = asked.local and asked.local / asked.encoder
    return str(local) if local and local.is_dir() else str(asked.encoder)


def _example(asked: argparse.Namespace) -> tuple[str, str]:
    """The image and the caption that heat maps are drawn of; an image inside a Parquet file gets one of its own."""
    first = captioned_images(asked.data / CAPTIONS)[0]
    image = image_source(first.image)
    if isinstance(image, bytes):
        path = asked.output / first.image.name
        write_bytes(path, image, folder=asked.output)
        image = path
    return str(image), first.captions[0]


def bench_grid(path: Path, title: str, papers: Mapping[str, Mapping[str, float]]) -> str:
    """Every figure of a benchmark run, a row per metric, and the paper's rows below; all times 100."""
    result = read_result(path)
    names = [figure.name for figure in result.metrics[0].figures]
    rows = [
        (metric.label, *(f"{figure.scale * figure.value:.1f}" for figure in metric.figures))
        for metric in result.metrics
    ]
    rows += [
        (f"{label} (paper)", *(f"{known[name]:.1f}" if name in known else NONE for name in names))
        for label, known in papers.items()
    ]
    head = f"{title} ({result.counted} items, {result.pictures} images)"
    notes = (f"`{result.metrics[-1].signature}`",)
    return markdown(Grid(head, ("metric", *names), tuple(rows), notes))


def _study(name: str) -> Callable[[Path], str]:
    """The tables of a study next to the paper's, if the paper has them, else as the study wrote them."""

    def render(path: Path) -> str:
        if name in paper_page.PARTS:
            return paper_page.part(name, json.loads(path.read_text(encoding="utf-8")))
        return path.with_suffix(".md").read_text(encoding="utf-8")

    return render


def _drawn(path: Path) -> str:
    return f"![{path.stem}]({path.name})\n"


def _written(path: Path) -> str:
    return f"[{path.name}]({path.name})\n"


def _bench(name: str, title: str, papers: Mapping[str, Mapping[str, float]], *more: str, out: str = "") -> Step:
    protocol = "-paper" if "paper" in more else ""
    metrics = [word for metric in _METRICS for word in ("-m", metric)]
    folder = f"{{out}}/{out or 'bench'}"
    command = ("bench", name, "--root", "{data}", "-o", folder, "--no-control", *metrics, *more)
    file = f"{out or 'bench'}/{name}{protocol}.json"
    return Step(out or name, title, command, file, lambda path: bench_grid(path, title, papers))


def _of(name: str, title: str, *more: str, key: str = "") -> Step:
    command = ("study", name, "--root", "{data}", "-o", f"{{out}}/{key or name}.json", *more)
    return Step(key or name, title, command, f"{key or name}.json", _study(name))


_RESAMPLED = frozenset(
    ("mixtures", "kappa", "alpha", "components", "iterations", "xi", "l0", "tau-l", "beta", "tune", "direction",
     "margin", "backbones", "ood", "reconstruction")
)  # fmt: skip
_MAPS = ("explain", "{image}", "{caption}", "--map", "carried")
_TRAINED = "{out}/reconstruction.runs"  # the aligners of the step `reconstruction`
STEPS = (
    _bench("caparena", "CapArena", published.CAPARENA, "--protocol", "paper"),
    _bench("docent", "DocENT", published.DOCENT, "--protocol", "paper"),
    *(_bench(name, title, published.LEGACY[name]) for name, title in (
        ("flickr8k-expert", "Flickr8k-Expert"), ("flickr8k-cf", "Flickr8k-CF"), ("composite", "Composite"),
        ("pascal50s", "Pascal-50S"))),
    _of("backbones", "SugarCrepe by backbone (figure)", "-b", "sugarcrepe"),
    _bench("coco-cf", "COCO-CF by split", published.COCO_CF_FIGURES),
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
    Step("timing", "Latency", ("study", "timing", "--rows", f"{{data}}/{CAPTIONS}", "-o", "{out}/timing.json"),
         "timing.json", _study("timing")),
    Step("reconstruction", "Reconstruction", ("study", "reconstruction", "--root", "{data}", "-o",
         "{out}/reconstruction.json", "-b", "docent", "-b", "caparena", "--protocol", "paper", "--data",
         "{data}/chat.json", "--images", "{data}/images"), "reconstruction.json", _study("reconstruction")),
    Step("maps", "Heat map of the token terms (figure)", (*_MAPS, "-o", "{out}/maps.png"), "maps.png", _drawn),
    Step("maps-reconstruction", "Heat maps with and without reconstruction (figure)",
         (*_MAPS, "--encoder", f"{_TRAINED}/with-reconstruction/encoder", "--also",
          f"{_TRAINED}/without-reconstruction/encoder", "-o", "{out}/maps-reconstruction.png"),
         "maps-reconstruction.png", _drawn),
    Step("ranking", "Captioners by mean MSD", ("rank-captioners", "{data}/captioners.parquet", "-o",
         "{out}/ranking.html"), "ranking.html", _written),
)  # fmt: skip


def run_step(step: Step, asked: argparse.Namespace) -> str:
    """Run a step unless its result is there; an empty text, or why there is no result."""
    if (asked.output / step.output).is_file():
        return ""
    if "{image}" in step.command and not (asked.data / CAPTIONS).is_file():
        return f"expected {asked.data / CAPTIONS} (rows with image and caption), there is none"
    done = subprocess.run(
        [sys.executable, "-m", "msdscore", *step.words(asked)], capture_output=True, text=True, check=False
    )
    if done.returncode in (0, SOME_FAILED) and (asked.output / step.output).is_file():
        return ""
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return lines[-1] if lines else f"exit code {done.returncode}"


def page(asked: argparse.Namespace, reasons: Mapping[str, str]) -> str:
    """One section per table or figure, in the paper's order."""
    parts = [
        f"# The paper with {asked.encoder}\n\nAccuracies, agreements and correlations times 100. Preset `paper`.\n"
    ]
    for step in STEPS:
        if step.name in reasons:
            parts.append(f"## {step.title}\n\n`{shlex.join(['msdscore', *step.words(asked)])}`\n")
            path = asked.output / step.output
            parts.append(f"Not run: {reasons[step.name]}\n" if reasons[step.name] else step.render(path))
    return "\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is asked for; the exit code is 3 if a step could not run."""
    parser = argparse.ArgumentParser(prog="python tools/paper_run.py", description=__doc__)
    parser.add_argument("--encoder", "-e", required=True, help="short name, hub name or folder")
    parser.add_argument(
        "--data", type=Path, required=True, help="folder of the benchmarks, one folder each or together"
    )
    parser.add_argument("--output", "-o", type=Path, default=Path("build/paper"))
    parser.add_argument("--local", type=Path, help="folder with checkpoints in folders named as their encoders")
    parser.add_argument("--only", action="append", default=[], help="only this step; repeatable")
    parser.add_argument("--limit", type=int, help="number of items of each benchmark")
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--device", default="auto")
    asked = parser.parse_args(arguments)
    try:
        if not asked.data.is_dir():
            raise ConfigError(f"--data: expected a folder of benchmarks, there is none at {asked.data}")
        known = [step.name for step in STEPS]
        for name in asked.only:
            if name not in known:
                raise ConfigError(f"--only: expected one of {', '.join(known)}, got {name!r}")
    except MSDScoreError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    asked.output.mkdir(parents=True, exist_ok=True)
    reasons: dict[str, str] = {}
    for step in STEPS:
        if not asked.only or step.name in asked.only:
            sys.stderr.write(f"{step.name}\n")
            reasons[step.name] = run_step(step, asked)
            write_bytes(asked.output / PAGE, page(asked, reasons).encode(), folder=asked.output)
    sys.stdout.write(f"{asked.output / PAGE}: {sum(not why for why in reasons.values())} of {len(reasons)} steps\n")
    return SOME_FAILED if any(reasons.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
