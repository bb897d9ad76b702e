"""Data, scorer and resumable computation of a study."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from glob import escape
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np

from msdscore.errors import ConfigError, InputError, RowError, unknown_name
from msdscore.forms.base import Form, Measurement
from msdscore.forms.paper import Paper
from msdscore.intervals import Resampling
from msdscore.io.runs import discard
from msdscore.scoring.decoder import Decoded
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.spec import ScorerSpec
from msdscore_lab.benchmarks.base import Image, Item, Pair, image_key, source_or_empty
from msdscore_lab.benchmarks.readers.rows import CaptionedImage, captioned_images
from msdscore_lab.benchmarks.registry import benchmark as find_benchmark
from msdscore_lab.benchmarks.registry import benchmarks, data_folder, load
from msdscore_lab.benchmarks.run.plan import LONG_NOTE, BenchmarkPlan, form_for
from msdscore_lab.benchmarks.run.runner import Progress, keep_answers

PAPER_FORM = "short"  # form with the paper's settings for one-sentence captions
T = TypeVar("T")
_MEMORY = 4 << 30  # bytes of vectors cached in memory between variants of a study
_SUFFIX = ".steps.parquet"
_ITEMS = 16  # per batch


def paper_form(pipeline: Pipeline, **changes: Any) -> Paper:
    """Return the settings of the paper's form, with changes.

    Raises:
        ConfigError: If the pipeline has another form.
    """
    if not isinstance(pipeline.form, Paper):
        raise ConfigError("this study needs the caption mixtures of the paper's form; add --form short")
    return replace(pipeline.form, **changes)


def require_bank(pipeline: Pipeline, part: str) -> Any:
    """Return `words`, `vocabulary` or `match` of the pipeline's bank.

    Raises:
        ConfigError: If the pipeline has no bank with this part.
    """
    value = None if pipeline.bank is None else getattr(pipeline.bank.bank, part)
    if value is None:
        raise ConfigError(
            f"this study needs the evidence form and a bank with {part}; use encoder mini and --form evidence, or "
            "build a bank with: msdscore bank IMAGES --pairs ROWS.jsonl"
        )
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """Inputs of a study: data under `root` and the scorer of `spec`, on at most `limit` items, drawn by `seed`.

    Intermediate results are stored next to `output`, if there is one. `options` are passed to the benchmark's reader;
    a benchmark without `protocol` uses its first one. `samples` is the number of resamples per interval of a benchmark,
    which is `expanded` or of plain percentiles, `control` scores it with wrong images too. `progress(title)` is a
    context manager of a function that is called with the finished and the total amount of work; `tell` prints a line
    for the user.
    """

    root: Path
    spec: ScorerSpec = field(default_factory=ScorerSpec)
    output: Path | None = None
    overwrite: bool = False
    limit: int | None = None
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    protocol: str = ""
    samples: int = 1000
    expanded: bool = True
    control: bool = True
    progress: Callable[[str], AbstractContextManager[Progress]] = lambda title: nullcontext(lambda done, total: None)
    tell: Callable[[str], None] = lambda text: None

    def __post_init__(self) -> None:
        protocols = list(dict.fromkeys(name for row in benchmarks() for name in row.protocols))
        if self.protocol and self.protocol not in protocols:
            raise unknown_name("protocol", self.protocol, protocols)

    def pipeline(self, form: str | None = None, encoder: str | None = None) -> Pipeline:
        """Build the scorer with an encoder that caches its vectors; `form` is used if the spec has none."""
        spec = replace(self.spec, form=self.spec.form or form, encoder=encoder or self.spec.encoder)
        return spec.build().remembering(_MEMORY // 2)

    def form(self, pipeline: Pipeline, name: str) -> Form:
        """Return the settings of a pipeline for a benchmark, see `form_for`; a change is reported by `tell`."""
        form = form_for(name, pipeline.form, self.spec)
        if form != pipeline.form:
            self.tell(f"{name}: {LONG_NOTE}")
        return form

    def folder(self, benchmark: str) -> Path:
        """Return the folder of a benchmark's files."""
        return data_folder(self.root, benchmark)

    def items(self, benchmark: str) -> tuple[Item, ...]:
        """Read the items of a benchmark, from released files or rows."""
        return load(benchmark, self.folder(benchmark), **self.options).items

    def present(self, benchmarks: Sequence[str]) -> list[str]:
        """Return the benchmarks whose files exist under `root`.

        Raises:
            InputError: If there is none, or the files of one are damaged.
        """
        names = []
        for name in benchmarks:
            try:
                load(name, self.folder(name))
            except InputError as error:
                if "found no such file" not in str(error):
                    raise
            else:
                names.append(name)
        if not names:
            raise InputError(f"expected one of {', '.join(benchmarks)} under {self.root}, found none")
        return names

    def pairs(self, benchmark: str) -> list[Pair]:
        """Return at most `limit` random pairs of a benchmark, in the order of the file."""
        return self.sample([item for item in self.items(benchmark) if isinstance(item, Pair)])

    def sample(self, pairs: Sequence[Pair], description: str = "") -> list[Pair]:
        """Return at most `limit` random pairs in their original order; `description` is used in the error."""
        if not pairs:
            raise InputError(f"expected at least one pair with a right and a wrong caption{description}, got none")
        if self.limit is None or self.limit >= len(pairs):
            return list(pairs)
        indices = np.random.default_rng(self.seed).choice(len(pairs), size=self.limit, replace=False)
        return [pairs[index] for index in np.sort(indices)]

    def captioned(self) -> list[CaptionedImage]:
        """Read the images with captions; raise `InputError` if there are fewer than two."""
        entries = [entry for entry in captioned_images(self.root) if entry.captions]
        if len(entries) < 2:
            raise InputError(f"expected at least 2 images with captions, got {len(entries)}")
        return entries

    def plan(self, benchmark: str, metrics: Sequence[str], **fields: Any) -> BenchmarkPlan:
        """Return the plan of a benchmark run; `fields` are other fields of `BenchmarkPlan`."""
        protocols = find_benchmark(benchmark).protocols
        defaults: dict[str, Any] = {
            "limit": self.limit, "seed": self.seed, "samples": self.samples, "control": self.control,
            "expanded": self.expanded,
            "options": self.options,
            "protocol": self.protocol if self.protocol in protocols else protocols[0],
        }  # fmt: skip
        return BenchmarkPlan(name=benchmark, root=self.folder(benchmark), metrics=tuple(metrics), **defaults | fields)

    @property
    def resampling(self) -> Resampling:
        """The resampling of intervals and tests."""
        return Resampling(samples=self.samples, seed=self.seed, expanded=self.expanded)

    @contextmanager
    def runs(self) -> Iterator[Path]:
        """Yield the folder of benchmark runs: next to the output, or a temporary one."""
        if self.output is not None:
            yield self.output.with_name(f"{self.output.stem}.runs")
            return
        with TemporaryDirectory() as folder:
            yield Path(folder)

    def run(
        self, title: str, batches: Sequence[T], measure: Callable[[int, T], Any], pipeline: Pipeline, **depends: Any
    ) -> list[Any]:
        """Return `measure(index, batch)` of every batch as plain values, which are stored next to the output.

        `depends` are additional settings that the results depend on. Stored results for other settings raise an error,
        or are discarded with `overwrite`.
        """
        work = {
            "signature": pipeline.signature, "root": str(self.root.resolve()), "limit": self.limit, "seed": self.seed,
            "options": sorted(f"{name}={value}" for name, value in self.options.items()), **depends,
        }  # fmt: skip
        path = None if self.output is None else self.output.with_name(f"{self.output.stem}.{title}{_SUFFIX}")
        if path is not None and self.overwrite:
            discard(path)
        with self.progress(title) as show:
            return keep_answers(path, work, batches, measure, progress=show)

    def rows(
        self,
        title: str,
        items: Sequence[T],
        measure: Callable[[Sequence[T]], Sequence[Any]],
        pipeline: Pipeline,
        *,
        size: int = _ITEMS,
        **depends: Any,
    ) -> list[Any]:
        """Run `measure` on batches of `size` items, and concatenate the lists that it returns."""
        answers = self.run(title, split(items, size), lambda _, batch: measure(batch), pipeline, **depends)
        return list(chain.from_iterable(answers))


def measure_readable(
    pipeline: Pipeline, images: Sequence[Image], texts: Sequence[str], pairs: Sequence[tuple[int, int]]
) -> tuple[list[int], Measurement[Any] | None]:
    """Measure the pairs (indices of image and text) that can be read; return their positions and the measurement.

    The measurement is None if no pair can be read.
    """
    embedded = pipeline.embedder.images(pipeline.decode([source_or_empty(image) for image in images]))
    captions = pipeline.embedder.texts(texts)
    readable = [
        index
        for index, (image, text) in enumerate(pairs)
        if embedded.rows[image] is not None and captions.rows[text] is not None
    ]
    if not readable:
        return [], None
    owner, text_of = zip(*(pairs[index] for index in readable), strict=True)
    return readable, pipeline.measure(embedded, captions, owner, text_of)


def discard_intermediate(output: Path) -> None:
    """Discard the stored intermediate results of a written output."""
    for folder in output.parent.glob(f"{escape(output.stem)}.*{_SUFFIX}.parts"):
        discard(folder.with_suffix(""))


def split(items: Sequence[T], size: int) -> list[Sequence[T]]:
    """Split items into batches of at most `size`.

    >>> split("abc", 2)
    ['ab', 'c']
    """
    return [items[start : start + size] for start in range(0, len(items), size)]


def every_nth(items: Sequence[T], limit: int | None) -> list[T]:
    """Return at most `limit` items, equally spaced in the list.

    >>> every_nth("abcdef", 3)
    ['a', 'c', 'e']
    """
    return list(items if limit is None else items[:: max(1, len(items) // limit)][:limit])


def pair_batches(pairs: Sequence[Pair]) -> list[Sequence[Pair]]:
    """Split pairs into batches, sorted by image."""
    return split(sorted(pairs, key=lambda pair: image_key(pair.image)), _ITEMS)


def require_some(decoded: Iterable[Decoded | RowError]) -> None:
    """Raise `InputError` with the first error if no image can be read."""
    errors: list[RowError] = []
    for item in decoded:
        if not isinstance(item, RowError):
            return
        errors.append(item)
    if errors:
        raise InputError(f"none of {len(errors)} images can be read; the first: {errors[0]}")
