"""The plan of the paper: one step per table or figure, each a command of msdscore, and the options of a run.

Every row that the paper makes with its aligner uses the aligner of the run, if there is one. CLIPScore is always that
of the plain backbone.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from msdscore.encoders.registry import find_row, list_encoders
from msdscore.errors import ConfigError, UnknownNameError
from msdscore.io.files import write_bytes
from msdscore_lab.benchmarks.base import image_source
from msdscore_lab.benchmarks.readers.rows import CaptionedImage, captioned_images
from msdscore_lab.benchmarks.results.result import read_result

RUN, STATES = "run.json", "steps"
ALIGNED = "aligned"  # folder of the results with the aligner, which replace those with the plain encoder
MAIN, PLAIN = "{main}", "{encoder}"  # encoders of a step: with the aligner if there is one, or without
CAPTIONS, CHAT = "{data}/captions.jsonl", "{data}/chat.json"
NO_ALIGNER = Path("none")  # as --aligner: all rows use the plain encoder
PANELS = 4  # images of a figure of heat maps
HELD_OUT = 1000  # pairs of the paper's tuning

LANGUAGE = "llama-7b"  # folder of the language model among the local checkpoints
LONG = "longclip-l"  # encoder of LongCLIPScore
DOMAINS = {"remoteclip-l14": "rsicd", "biomedclip": "rocov2"}  # encoders of other domains, and their benchmarks
VLMS = ("llava-1.5-7b", "llava-onevision-7b", "llava-critic-7b", "qwen2.5-vl-7b")  # of the table of CapArena
BACKBONES = ("siglip-so400m", "blip-itm-base")  # of the figure by backbone
# Benchmarks whose CLIPScore or cosine was published by others, by encoder, with that metric.
CHECKS = {
    "clip-b32": {"sugarcrepe": "clipscore,prefix=", "flickr8k-expert": "clipscore", "pascal50s": "clipscore"},
    "clip-l14": {"sugarcrepe": "clipscore,prefix="},
}
ALSO = (*BACKBONES, *CHECKS, LONG, *DOMAINS, *VLMS)
PTB = ",tokenizer=ptb"  # the tokens of the published tools
METRICS = ("clipscore", "cosine", "coverage", "support", "bi-kl", "msd", "soft-msd")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Options of a run: encoder and aligner, data, further encoders and judges, and the limits of a trial."""

    data: Path
    output: Path
    encoder: str = "clip-l14"
    aligner: Path | None = None
    also: tuple[str, ...] = ()
    judge: tuple[str, ...] = ()
    fleur: str = ""
    local: Path | None = None
    limit: int | None = None
    samples: int = 1000
    device: str = "auto"
    cache: Path | None = None
    recipe_set: tuple[str, ...] = ()

    @property
    def trained(self) -> Path:
        """Folder of the aligners that the step `reconstruction` trains."""
        return self.output / "reconstruction.runs" / "encoders"

    @property
    def main(self) -> Path | None:
        """Folder of the aligner: the one passed, else the one trained with reconstruction; None if there is none."""
        if self.aligner is not None:
            return None if self.aligner == NO_ALIGNER else self.aligner
        trained = self.trained / "with-reconstruction"
        return trained if trained.is_dir() else None

    @property
    def record(self) -> dict[str, Any]:
        """Options that results depend on, as plain values."""
        names = ("encoder", "data", "aligner", "also", "judge", "fleur", "local", "limit", "samples", "recipe_set")
        plain: dict[str, Any] = json.loads(json.dumps({name: getattr(self, name) for name in names}, default=str))
        return plain


@dataclass(frozen=True, slots=True)
class Step:
    """One command of a table or figure.

    In the command, `{data}` and `{out}` are the folders, `{encoder}` the encoder, `{main}` the one with the aligner;
    with `{image}` and `{caption}` it runs for the first rows of `captions.jsonl`, whose number is `{panel}`. `output`
    is the result file below `{out}`, or with the aligner below `{out}/aligned`; `needs` are required files; `before`
    is a command to run first. Steps of one `table` are rendered together. `hours` are expected on one H200, calculated
    and not measured.
    """

    name: str
    title: str
    command: tuple[str, ...]
    output: str
    needs: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    encoder: str = MAIN
    table: str = ""
    hours: float = 0.1

    def folder(self, settings: Settings) -> Path:
        """Return the folder of the results: a separate one with the aligner."""
        aligned = self.encoder == MAIN and settings.main is not None
        return settings.output / ALIGNED if aligned else settings.output

    def result(self, settings: Settings) -> Path:
        """Return the result file."""
        return self.folder(settings) / self.output

    @property
    def inputs(self) -> list[str]:
        """Names of the needed files and folders below the data folder, and the encoder if it is another one."""
        words = self.command
        named = [after for word, after in pairwise(words) if word == "-b"]
        benchmarks = named or (["docent"] if "docent" in words else [words[1] if words[0] == "bench" else "sugarcrepe"])
        files = [name.rpartition("}/")[2] for name in self.needs] or benchmarks
        return files + ([] if self.encoder in (MAIN, PLAIN, "") else [f"weights of {self.encoder}"])

    def commands(self, settings: Settings) -> Iterator[list[str]]:
        """Yield the commands with all placeholders filled."""
        filled = _placeholders(self, settings)
        for command in filter(None, (self.before, self.command)):
            for panel in _panels(settings) if "{image}" in command else [{}]:
                words = [_replaced(word, filled | panel) for word in command]
                yield words + self._options(words, settings)

    def missing(self, settings: Settings) -> str:
        """Return the first required file that does not exist, or an empty string."""
        filled = _placeholders(self, settings)
        paths = (_replaced(name, filled) for name in self.needs)
        return next((path for path in paths if not Path(path).exists()), "")

    def _options(self, words: Sequence[str], settings: Settings) -> list[str]:
        """Return the options of encoder, settings and statistics, which depend on the kind of command."""
        if words[0] == "rank-captioners":
            return []
        source, options = local_encoder(settings.local, _replaced(self.encoder, _placeholders(self, settings)))
        more = [] if "--encoder" in words or not source else ["--encoder", source]
        more += [word for name, value in options.items() for word in ("--encoder-option", f"{name}={value}")]
        more += ["--form", "paper", "--device", settings.device]
        if words[0] != "explain":
            more += ["--cache", str(settings.cache or settings.output / "cache")]
        if words[0] in ("bench", "study"):
            more += ["--limit", str(settings.limit)] if settings.limit else []
            more += ["--samples", str(settings.samples), "--percentile"]
        if words[0] == "study":
            more += ["--no-control", *_own_options(words[1], settings)]
        return more


@dataclass(frozen=True, slots=True)
class State:
    """Seconds of a step (None before its end), and why it has no result."""

    seconds: float | None = None
    reason: str = ""


def read_state(output: Path, name: str) -> State:
    """Return the recorded state of a step; an empty one if it was never started."""
    path = output / STATES / f"{name}.json"
    return State(**json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else State()


def write_state(output: Path, name: str, state: State) -> None:
    """Record the state of a step in a file of its own, so that tasks of an array job do not overwrite each other's."""
    path = output / STATES / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, json.dumps(asdict(state)).encode(), folder=path.parent)


def finished(step: Step, settings: Settings) -> bool:
    """Whether a step has a result; a benchmark of which no item has a score, such as a verdict, has none."""
    path = step.result(settings)
    return path.is_file() and (step.command[0] != "bench" or read_result(path).counted > 0)


def _placeholders(step: Step, settings: Settings) -> dict[str, str]:
    return {
        "{data}": str(settings.data), "{out}": str(step.folder(settings)), "{encoder}": settings.encoder,
        "{main}": str(settings.main or settings.encoder), "{trained}": str(settings.trained),
    }  # fmt: skip


def _replaced(word: str, placeholders: Mapping[str, str]) -> str:
    for name, value in placeholders.items():
        word = word.replace(name, value)
    return word


def _panels(settings: Settings) -> Iterator[dict[str, str]]:
    """Yield image and caption of every panel of the heat maps; an image inside a table is written to a file."""
    rows: Sequence[CaptionedImage] = captioned_images(settings.data / "captions.jsonl")
    for number, row in enumerate(rows[:PANELS], start=1):
        image = image_source(row.image)
        if isinstance(image, bytes):
            path = settings.output / "panels" / row.image.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(image)
            image = path
        yield {"{image}": str(image), "{caption}": row.captions[0], "{panel}": str(number)}


def _own_options(study: str, settings: Settings) -> list[str]:
    """Return options that only some studies have: more encoders, held-out pairs, backbones of the aligner."""
    if study == "backbones":
        names = [settings.encoder] if settings.main else []  # the plain encoder next to the aligner
        names += [name for name in settings.also if name not in (*VLMS, *DOMAINS, *CHECKS, LONG)]
        return [word for name in names for word in ("--also", local_encoder(settings.local, name)[0])]
    if study == "tune" and settings.limit and settings.limit < 2 * HELD_OUT:
        return ["--held-out", str(settings.limit // 2)]
    if study != "reconstruction":
        return []
    encoder, language = (local_encoder(settings.local, name)[0] for name in (settings.encoder, LANGUAGE))
    changes = [f"image.source={encoder}", f"text.source={encoder}"]
    changes += [] if language == LANGUAGE else [f"lm.source={language}"]
    return [word for change in (*changes, *settings.recipe_set) for word in ("--recipe-set", change)]


def local_encoder(local: Path | None, name: str) -> tuple[str, dict[str, Any]]:
    """Return the folder or file of an encoder among the local checkpoints, or its name, and its encoder options.

    Encoders that are published as a single weights file are loaded through open_clip.
    """
    folder = local / name if local and name else None
    if folder is None or not folder.is_dir():
        return name, {}
    try:
        options = find_row(name).options
    except UnknownNameError:
        return str(folder), {}
    file = folder / str(options.get("file", ""))
    if not file.is_file():
        return str(folder), {}
    return f"open_clip:{options['model']}/{file}", {name: options[name] for name in ("context",) if name in options}


def model_source(local: Path | None, text: str) -> str:
    """Return NAME or NAME,KEY=VALUE with the folder of the model among the local checkpoints, or its name on the hub.

    >>> model_source(None, "llava-1.5-7b,prompt=judge.py:PROMPT")
    'llava-hf/llava-1.5-7b-hf,prompt=judge.py:PROMPT'
    """
    name, comma, options = text.partition(",")
    if local and (local / name).is_dir():
        return f"{local / name}{comma}{options}"
    sources = {row.name: row.source for row in list_encoders()}
    return f"{sources.get(name, name)}{comma}{options}"


def _bench(
    name: str, *more: str, table: str = "", metrics: Sequence[str] = METRICS, suffix: str = "", folder: str = "",
    **fields: Any,
) -> Step:  # fmt: skip
    """Return a step that runs a benchmark with the protocol of the paper; rows of a table are in folders `bench…`."""
    chosen, folder = [word for metric in metrics for word in ("-m", metric)], folder or f"bench{suffix}"
    command = ("bench", name, "--root", "{data}", "-o", f"{{out}}/{folder}", "--no-control", "--protocol", "paper",
               *chosen, *more)  # fmt: skip
    file = f"{folder}/{name}{'-paper' if name in ('caparena', 'docent') else ''}.json"
    return Step(f"{name}{suffix}", fields.pop("title", table), command, file, table=table, **fields)


def _study(name: str, title: str, *more: str, **fields: Any) -> Step:
    data = () if "--rows" in more else ("--root", "{data}")
    return Step(name, title, ("study", name, *data, "-o", f"{{out}}/{name}.json", *more), f"{name}.json", **fields)


def _sweep(name: str, title: str, *more: str) -> Step:
    step = _study(name, title, *more)
    return replace(step, command=("study", "sweep", *step.command[1:]))


_CAPTIONERS = "{data}/captioners.jsonl"
_MAPS = ("explain", "{image}", "{caption}", "--map", "carried", "--overwrite")
_BOTH = ("{trained}/with-reconstruction", "{trained}/without-reconstruction")
STEPS = (
    _study("reconstruction", "Reconstruction", "-b", "docent", "-b", "caparena", "--protocol", "paper", "--data",
           CHAT, "--images", "{data}/images", needs=(CHAT, "{data}/images"), encoder=PLAIN, hours=3.5),
    _bench("caparena", table="CapArena", hours=0.3),
    _bench("caparena", table="CapArena", metrics=[f"{name}{PTB}" for name in ("bleu-4", "cider", "meteor")],
           encoder="", suffix="-references", hours=0.5),
    _bench("caparena", table="CapArena", metrics=("spice",), encoder="", suffix="-spice", hours=2),
    _bench("docent", table="DocENT"),
    *(_bench(name, table="Legacy benchmarks", hours=0.3)
      for name in ("flickr8k-expert", "flickr8k-cf", "composite", "pascal50s")),
    _bench("sugarcrepe", table="SugarCrepe", metrics=("clipscore", "clipscore,prefix=", *METRICS[1:], "rank-agg")),
    _study("backbones", "SugarCrepe by backbone (figure)", "-b", "sugarcrepe", hours=0.3),
    _bench("coco-cf", table="COCO-CF", hours=0.5),
    _bench("coco-cf", "--option", "by=captioner", title="COCO-CF by captioner (figure)", suffix="-captioners",
           folder="captioners", hours=0.2),
    _sweep("mixture", "Distributions"),
    _sweep("kappa", "Concentration", "--values", "10 20 40"),
    _study("stability", "Seed stability (figure)", hours=0.5),
    _study("entropy", "Entropy of responsibilities (figure)"),
    _study("direction", "KL direction, and by length in tokens", "-b", "sugarcrepe", "-b", "caparena", "--protocol",
           "paper", "--edges", "13 15 86 147 227", hours=0.5),
    _study("margin", "Cosine margin on COCO-CF, with intervals and McNemar's test", "-b", "coco-cf", hours=0.3),
    *(_bench(data, table="Out of domain", metrics=("clipscore", "msd", "soft-msd"), encoder=name, suffix=f"-{name}")
      for name, data in DOMAINS.items()),
    _study("faithfulness", "Faithfulness of the maps, in the paper's form", hours=1),
    _study("words", "Spans of DocENT: AUC of the token terms", "--marks", "docent"),
    *(_sweep(name, f"Hyperparameters: {name}")
      for name in ("alpha", "components", "iterations", "xi", "l0", "tau-l", "beta")),
    _study("tune", "Hyperparameters tuned on held-out pairs", hours=0.2),
    _study("timing", "Latency", "--rows", CAPTIONS, needs=(CAPTIONS,), hours=0.5),
    Step("maps", "Heat maps of the token terms (figure)", (*_MAPS, "-o", "{out}/maps-{panel}.png"), "maps.png",
         (CAPTIONS,)),
    Step("maps-reconstruction", "Heat maps with and without reconstruction (figure)",
         (*_MAPS, "--encoder", _BOTH[0], "--also", _BOTH[1], "-o", "{out}/maps-reconstruction-{panel}.png"),
         "maps-reconstruction.png", (CAPTIONS, *_BOTH)),
    Step("ranking", "Captioners by mean MSD",
         ("rank-captioners", "{out}/captioners.parquet", "--rows", _CAPTIONERS, "-o", "{out}/ranking.json"),
         "ranking.json", (_CAPTIONERS,), ("score", _CAPTIONERS, "-o", "{out}/captioners.parquet")),
)  # fmt: skip


def steps_of(settings: Settings) -> tuple[Step, ...]:
    """Return all steps: those of further encoders and judges only if they were requested, after those of CapArena."""
    steps = [step for step in STEPS if step.encoder not in DOMAINS or step.encoder in settings.also]
    place = next(at for at, step in enumerate(steps) if step.name == "docent")
    steps[place:place] = [*_further(settings), *_judges(settings)]
    steps += [
        _bench(data, "--encoder-option", "crop=torchvision", metrics=(metric,), encoder=name, suffix=f"-{name}",
               folder=f"checks-{name}", title=f"Published figures of {name}")
        for name in settings.also
        for data, metric in CHECKS.get(name, {}).items()
    ]  # fmt: skip
    can_train = settings.aligner is None and Path(CHAT.replace("{data}", str(settings.data))).is_file()
    if settings.main is not None or can_train:  # as the authors' scripts, which do not load an aligner here
        steps.append(_bench("sugarcrepe", table="SugarCrepe", suffix="-plain", encoder=PLAIN))
    return tuple(steps)


def _further(settings: Settings) -> Iterator[Step]:
    """Yield CapArena with further encoders."""
    for name in settings.also:
        if name == LONG or name in VLMS:
            metrics = ("longclipscore",) if name == LONG else ("msd", "soft-msd")
            yield _bench("caparena", table="CapArena", metrics=metrics, encoder=name, suffix=f"-{name}", hours=0.5)


def _judges(settings: Settings) -> Iterator[Step]:
    """Yield judges of CapArena, and FLEUR on CapArena and DocENT."""
    for text in settings.judge:
        metric = f"judge:{model_source(settings.local, text)},backend=local,setup=caparena"
        suffix = f"-judge-{text.partition(',')[0].replace('/', '-')}"  # a folder name
        yield _bench("caparena", table="CapArena", metrics=(metric,), encoder="", suffix=suffix, hours=3)
    if settings.fleur:
        metric = f"fleur:{model_source(settings.local, settings.fleur)}"
        for data, table in (("caparena", "CapArena"), ("docent", "DocENT")):
            yield _bench(data, table=table, metrics=(metric,), encoder="", suffix="-fleur", hours=0.4)


def chosen_steps(settings: Settings, only: Sequence[str]) -> list[Step]:
    """Return the steps by name or number in the plan, all without any.

    Raises:
        ConfigError: If there is no such step.
    """
    steps = steps_of(settings)
    by_name = {step.name: step for step in steps} | {str(at): step for at, step in enumerate(steps, start=1)}
    for name in only:
        if name not in by_name:
            names = ", ".join(step.name for step in steps)
            raise ConfigError(f"--only: expected one of {names}, or a number from 1 to {len(steps)}, got {name!r}")
    chosen = {by_name[name].name for name in only}
    return [step for step in steps if not only or step.name in chosen]
