"""How long one pair takes, stage by stage and by the length of its caption: alone, and in company.

Latency is what a user waits for who asks for one pair; the paper's table gives it by the length of the caption. Pairs
scored together cost less each, which the last column shows.
"""

import math
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TypeVar

import torch

from msdscore.io.images import ImageSource
from msdscore.scoring.measurement import numbers
from msdscore.scoring.pipeline import Pipeline
from msdscore.stats.resample import Interval, bootstrap_mean
from msdscore.studies.outcome import Chart, ChartLine, Progress, spelled

MOST_PICTURES = 50
BUCKETS = (10, 20, 40, 80)  # most tokens of a bucket; the last one has no end
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class PairTime:
    """Milliseconds of the stages of one pair that is scored alone."""

    decode: float
    image: float
    text: float
    scoring: float

    @property
    def total(self) -> float:
        """All stages."""
        return sum(asdict(self).values())


STAGES = (*(field.name for field in fields(PairTime)), "total")


@dataclass(frozen=True, slots=True)
class BucketTimes:
    """Pairs whose captions have `least` to `most` tokens; `together` is the scoring per pair of all of them at once."""

    least: int
    most: int | None
    stages: Mapping[str, Interval]
    together: float

    @property
    def name(self) -> str:
        """The range of tokens."""
        return f"{self.least}+" if self.most is None else f"{self.least}-{self.most}"


@dataclass(frozen=True, slots=True)
class Timing:
    """Times by length, with what they were measured on."""

    buckets: tuple[BucketTimes, ...]
    machine: str
    signature: str

    def to_dict(self) -> dict[str, object]:
        """Plain values."""
        rows = [
            {
                "tokens": one.name,
                "milliseconds": {stage: spelled(found) for stage, found in one.stages.items()},
                "scoring_together": one.together,
            }
            for one in self.buckets
        ]
        return {"machine": self.machine, "signature": self.signature, "buckets": rows}


def timing(
    pipeline: Pipeline, pairs: Sequence[tuple[ImageSource, str]], *, progress: Progress = lambda done, total: None
) -> Timing:
    """Time every pair alone, then those of each length together; the first pair warms up and is timed again."""
    grouped: dict[int, list[tuple[tuple[ImageSource, str], PairTime]]] = {}
    for number, pair in enumerate([pairs[0], *pairs]):
        length, taken = _time(pipeline, pair)
        if number:
            grouped.setdefault(sum(length > most for most in BUCKETS), []).append((pair, taken))
        progress(number, len(pairs))
    buckets = tuple(_bucket(pipeline, number, grouped[number]) for number in sorted(grouped))
    return Timing(buckets, _machine(pipeline.encoder.device), pipeline.signature)


def _time(pipeline: Pipeline, pair: tuple[ImageSource, str]) -> tuple[int, PairTime]:
    source, caption = pair
    device = pipeline.encoder.device
    decode, decoded = _milliseconds(lambda: pipeline.decode([source]), device)
    image, seen = _milliseconds(lambda: pipeline.embed_images(decoded).require(), device)
    text, read = _milliseconds(lambda: pipeline.embed_texts([caption]).require(), device)
    scoring, found = _milliseconds(lambda: numbers(pipeline.measure(seen, read, [0], [0]), pipeline.config)[0], device)
    return found.length, PairTime(decode, image, text, scoring)


def _bucket(pipeline: Pipeline, number: int, timed: Sequence[tuple[tuple[ImageSource, str], PairTime]]) -> BucketTimes:
    sources, captions = zip(*(pair for pair, _ in timed), strict=True)
    seen = pipeline.embed_images(pipeline.decode(sources)).require()
    read = pipeline.embed_texts(captions).require()
    every = range(len(timed))
    together = min(
        _milliseconds(lambda: pipeline.measure(seen, read, every, every), pipeline.encoder.device)[0] for _ in range(2)
    )
    stages = {stage: bootstrap_mean([getattr(taken, stage) for _, taken in timed]) for stage in STAGES}
    least = BUCKETS[number - 1] + 1 if number else 1
    return BucketTimes(least, BUCKETS[number] if number < len(BUCKETS) else None, stages, together / len(timed))


def _milliseconds(work: Callable[[], Found], device: torch.device) -> tuple[float, Found]:
    """How long the work takes until the device is done with it, and what it gives."""
    start = time.perf_counter()
    found = work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return 1e3 * (time.perf_counter() - start), found


def _machine(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    return f"{platform.machine()} CPU, {torch.get_num_threads()} threads, torch {torch.__version__}"


def section(result: Timing) -> str:
    """The table in Markdown."""
    lines = [
        "Milliseconds per pair, mean with 95 % interval: one pair at a time, and scoring of a row's pairs at once. "
        f"Measured on {result.machine}.",
        "",
        f"`{result.signature}`",
        "",
        "| tokens | pairs | decode | image encoder | text encoder | scoring | all | scoring, together |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in result.buckets:
        cells = " | ".join(_cell(one.stages[stage]) for stage in STAGES)
        lines.append(f"| {one.name} | {one.stages['total'].n} | {cells} | {one.together:.2f} |")
    return "\n".join(lines) + "\n"


def _cell(found: Interval) -> str:
    if math.isnan(found.low):
        return f"{found.value:.2f}"
    return f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]"


def charts(result: Timing) -> tuple[Chart, ...]:
    """The stages by the length of the caption."""
    lines = tuple(
        ChartLine.of(stage, {one.name: one.stages[stage] for one in result.buckets}, scale=1) for stage in STAGES
    )
    return (
        Chart(
            title="one pair at a time", x_label="tokens of the caption", y_label="milliseconds", lines=lines
        ),
    )  # fmt: skip
