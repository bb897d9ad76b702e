"""What all studies share: their options, where they write, and how they go on after a stop."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from msdscore.cli import options
from msdscore.cli.cache import DEFAULT_SIZE, Cache, CacheHalf, CacheSize, cache_settings
from msdscore.cli.grouped import as_shown, options_of
from msdscore.cli.progress import bar
from msdscore.cli.stopping import stoppable

if TYPE_CHECKING:
    from msdscore.encoders.cached import CachedEncoder
    from msdscore.scoring.pipeline import Pipeline
    from msdscore.scoring.spec import ScorerSpec
    from msdscore.studies.kept import Steps
    from msdscore.studies.outcome import Outcome

_MEMORY = 4 << 30  # bytes of vectors that a study keeps for its next variant


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyOptions:
    """The options that every study takes, under the names of the command line."""

    root: Annotated[
        Path, typer.Option("--root", "--rows", help="Folder of the data (released files or rows), or a rows file.")
    ]
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="JSON file; tables (.md) and figure (.png) go beside it.")
    ] = None
    overwrite: options.Overwrite = False
    limit: Annotated[int | None, typer.Option(min=1, help="How many items at most.")] = None
    seed: Annotated[int, typer.Option(help="Of every draw.")] = 0
    option: Annotated[
        list[str], typer.Option("--option", help="Of the benchmark's reader, e.g. images=val2017. Repeatable.")
    ] = ()  # type: ignore[assignment]
    encoder: options.Encoder = "mini"
    preset: options.Preset = None
    change: options.Change = ()  # type: ignore[assignment]
    encoder_option: options.EncoderOption = ()  # type: ignore[assignment]
    bank: options.BankFile = None
    device: options.Device = "auto"
    dtype: options.Dtype = "auto"
    batch_size: options.BatchSize = None
    cache: Cache = None
    cache_size: CacheSize = DEFAULT_SIZE
    cache_half: CacheHalf = False
    json: options.Json = False

    @property
    def reader_options(self) -> dict[str, Any]:
        """The options of the benchmark's reader by name."""
        return dict(map(options.setting, self.option))

    def items(self, benchmark: str) -> "tuple[Any, ...]":
        """The items of a benchmark under the folder asked for, or under its own in it; released files or rows."""
        from msdscore.benchmarks.registry import load

        return load(benchmark, self.folder_of(benchmark), **self.reader_options).items

    def folder_of(self, benchmark: str) -> Path:
        """Where a benchmark lies: in a folder of its name, or in the one asked for."""
        own = self.root / benchmark
        return own if own.is_dir() else self.root

    def spec(self, preset: str | None = None, encoder: str | None = None) -> "ScorerSpec":
        """The scorer asked for; `preset` is used where none was."""
        return options.make_spec(
            encoder or self.encoder,
            self.preset or preset,
            list(self.change),
            encoder_options=list(self.encoder_option),
            bank=self.bank,
            batch_size=self.batch_size,
            max_pixels=None,
            device=self.device,
            dtype=self.dtype,
        )

    def pipeline(self, preset: str | None = None) -> "Pipeline":
        """The same, loaded, with an encoder that remembers what it has seen."""
        pipeline = self.spec(preset).build()
        pipeline.encoder = self.remembering(pipeline.encoder)
        return pipeline

    def remembering(self, encoder: Any) -> "CachedEncoder":
        """An encoder that keeps its vectors in memory, and in the folder asked for."""
        from msdscore.encoders.cached import CachedEncoder

        disk = cache_settings(self.cache, self.cache_size, self.cache_half)
        return CachedEncoder(encoder, memory=_MEMORY, disk=disk)

    @contextmanager
    def steps(self, study: str, pipeline: "Pipeline", **work: Any) -> "Iterator[Steps]":
        """Steps that are kept beside the output; `work` names what the answers depend on beside the common options."""
        from msdscore.studies.kept import kept_steps

        known = {
            "signature": pipeline.signature,
            "root": str(self.root.resolve()),
            "limit": self.limit,
            "seed": self.seed,
            "options": sorted(self.option),
        }
        with kept_steps(self.output, study, known | work, overwrite=self.overwrite) as found:
            yield found


def as_command(run: "Callable[..., Outcome]") -> Callable[..., None]:
    """A command of a study: its own options after the first parameter, then the common ones; it writes what comes."""
    own = list(inspect.signature(run).parameters.values())[1:]
    hints = inspect.get_annotations(run, eval_str=False)

    def command(**given: Any) -> None:
        asked = StudyOptions(**{field.name: given.pop(field.name) for field in fields(StudyOptions)})
        if asked.output is not None and str(asked.output) in ("-", "/dev/stdout"):
            asked = replace(asked, output=None, json=True)
        _check(asked)
        with stoppable():
            outcome = run(asked, **given)
        _write(outcome, asked)

    mine = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[one.name]) for one in own]
    return as_shown(command, run, [*mine, *options_of(StudyOptions)])


@contextmanager
def shown(what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on standard error."""
    with bar(what) as show:
        yield show


def _check(asked: StudyOptions) -> None:
    """Refuse a name that cannot be written; a study takes long, so a file that is there is refused at once."""
    from msdscore.io.outputs.targets import check_target, refuse_existing, refuse_foreign

    if asked.output is None:
        return
    beside = [asked.output.with_suffix(end) for end in (".md", ".png")]
    check_target(asked.output, (".json",), inputs=[asked.root, asked.bank], side=beside)
    refuse_existing([] if asked.overwrite else [asked.output, *beside])
    # Among the files of the data lies what the study reads, by whatever name.
    within = asked.root.is_dir() and asked.output.resolve().is_relative_to(asked.root.resolve())
    refuse_foreign([asked.output, *beside] if within else beside)


def _write(outcome: "Outcome", asked: StudyOptions) -> None:
    """Tables or JSON to standard output; numbers, tables and figure to files where asked."""
    import json

    from msdscore.io.outputs.targets import MARK, put_all
    from msdscore.studies.charts import draw
    from msdscore.studies.kept import forget

    values = {"note": MARK, **outcome.to_dict()}
    numbers = json.dumps(values, ensure_ascii=False, indent=1, allow_nan=False) + "\n"
    if asked.output is not None:
        beside = {asked.output.with_suffix(".md"): f"{outcome.text}\n<!-- {MARK} -->\n".encode()}
        if outcome.charts:
            beside[asked.output.with_suffix(".png")] = draw(outcome.charts)
        put_all({asked.output: numbers.encode()}, side=beside, overwrite=True)
        forget(asked.output)
    typer.echo(numbers if asked.json else outcome.text, nl=not asked.json)
