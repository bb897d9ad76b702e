"""Metrics tested as people test software: small generated tests on real pictures, each with a pass rate.

A family of checks changes a caption or a picture and says what a sound metric does: a caption that became wrong must
score lower, one that became richer higher, one that means the same about the same. What "about the same" is, the metric
says itself: a tenth of the median gap between a picture's own caption and another picture's.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from io import BytesIO
from random import Random
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from msdscore.benchmarks.base import picture
from msdscore.benchmarks.readers.captioned import CaptionedPicture
from msdscore.benchmarks.run.vectors import make_vectors
from msdscore.errors import ConfigError, InputError, RowError
from msdscore.metrics.base import Cases, Metric
from msdscore.scoring.embedded import Decoded, require_some
from msdscore.scoring.pipeline import Pipeline
from msdscore.stats.resample import Interval, Resampling, bootstrap_share
from msdscore.studies import edits
from msdscore.studies.kept import Steps, every_time
from msdscore.studies.outcome import Chart, ChartLine, Progress

Floats = npt.NDArray[np.float64]
Expectation = Literal["first higher", "same"]
Edit = Callable[[str, edits.Known, Random], str | None]
Shown = tuple[str, str]  # variant of the picture, caption
CheckedGap = tuple[str, "Check", float]  # picture, test, difference of the scores
AS_IT_IS, WRONG = "as it is", "wrong"
TOLERANCE = 0.1  # of the median gap between own and other captions
_PICTURES = 8  # worked on together
MOST_PICTURES = 200  # that a study draws where it is not told


@dataclass(frozen=True, slots=True)
class Check:
    """One check: two ways to show a caption with a picture, and what is expected of their scores."""

    family: str
    expects: Expectation
    first: Shown
    second: Shown

    def with_wrong_picture(self) -> "Check | None":
        """The same test of captions with another picture; None where that would mean nothing."""
        if self.expects == "same" or self.first[0] != AS_IT_IS:
            return None
        return Check(self.family, self.expects, (WRONG, self.first[1]), (WRONG, self.second[1]))


@dataclass(frozen=True, slots=True)
class FamilyResult:
    """The pass rate of one family with one metric, and the same with wrong pictures where that means something."""

    family: str
    expects: Expectation
    n: int
    passed: Interval
    wrong: float | None


@dataclass(frozen=True, slots=True)
class Behaviour:
    """The pass rates of every metric by label, in the order of the families."""

    results: dict[str, tuple[FamilyResult, ...]]
    pictures: int
    left_out: int
    signature: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


_WRONG_WORDS: tuple[tuple[str, Edit], ...] = (
    ("wrong colour", edits.other_colour),
    ("wrong object", edits.other_object),
    ("wrong count", edits.other_number),
    ("negation", edits.negated),
    ("nonsense word", edits.nonsense),
    ("empty phrases", edits.with_empty_words),
)
_SAME_WORDS: tuple[tuple[str, Edit], ...] = (("case and full stop", edits.bare), ("A photo of", edits.prefixed))


def checks_of(own: Sequence[str], other: Sequence[str], chance: Random) -> Iterator[Check]:
    """All tests of one picture from its own captions and those of another picture."""
    first, second, stranger = own[0], own[1], other[0]
    known = edits.words_of(own)
    whole = (AS_IT_IS, first)
    yield Check("own against another's caption", "first higher", whole, (AS_IT_IS, stranger))
    yield Check("true detail added", "first higher", (AS_IT_IS, edits.joined([first, second])), whole)
    yield Check("false detail added", "first higher", whole, (AS_IT_IS, edits.joined([first, stranger])))
    yield Check("paragraph against sentence", "first higher", (AS_IT_IS, edits.joined(own)), whole)
    yield Check("paraphrase against another's caption", "first higher", (AS_IT_IS, second), (AS_IT_IS, stranger))
    for family, change in _WRONG_WORDS:
        # Not every caption names a colour or a number: any of the picture's captions will do.
        made = next(((text, new) for text in own if (new := change(text, known, chance))), None)
        if made is not None:
            yield Check(family, "first higher", (AS_IT_IS, made[0]), (AS_IT_IS, made[1]))
    for family, change in _SAME_WORDS:
        changed = change(first, known, chance)
        if changed and changed != first:
            yield Check(family, "same", whole, (AS_IT_IS, changed))
    if misspelt := edits.typo(first, known, chance):
        yield Check("one typo, against another's caption", "first higher", (AS_IT_IS, misspelt), (AS_IT_IS, stranger))
    for variant in ("JPEG 75", "mirrored"):
        yield Check(f"picture {variant}", "same", whole, (variant, first))
    yield Check("picture cropped, against another's caption", "first higher", ("cropped", first), ("cropped", stranger))


def variants(image: Image.Image) -> dict[str, Image.Image]:
    """The picture as it is, saved as JPEG, mirrored, and cropped to the middle nine tenths."""
    buffer = BytesIO()
    image.save(buffer, "JPEG", quality=75)
    saved = Image.open(BytesIO(buffer.getvalue())).convert("RGB")
    edge = (image.width // 20, image.height // 20)
    cut = image.crop((*edge, image.width - edge[0], image.height - edge[1]))
    return {AS_IT_IS: image, "JPEG 75": saved, "mirrored": ImageOps.mirror(image), "cropped": cut}


def behaviour(
    pipeline: Pipeline,
    metrics: Sequence[Metric],
    entries: Sequence[CaptionedPicture],
    *,
    seed: int = 0,
    steps: Steps = every_time,
    progress: Progress = lambda done, total: None,
) -> Behaviour:
    """Pass rates of metrics on pictures with at least two captions each; the next picture is the stranger."""
    for metric in metrics:
        if metric.needs("pairs") or metric.needs("references") or metric.row.scope == "corpus":
            raise ConfigError(f"metric {metric.label} scores no caption by itself; behaviour tests cannot ask it")
    usable = [entry for entry in entries if len(entry.captions) > 1]
    if len(usable) < 2:
        raise InputError(f"expected at least 2 pictures with 2 captions each, got {len(usable)}")
    found: dict[str, list[CheckedGap]] = {metric.label: [] for metric in metrics}
    for number, start in enumerate(range(0, len(usable), _PICTURES)):
        some = list(range(start, min(start + _PICTURES, len(usable))))
        made = partial(_measure, pipeline, metrics, usable, some, Random(f"{seed}-{number}"))
        for label, rows in zip(found, steps(number, made), strict=True):
            found[label] += [(name, Check(family, expects, *map(tuple, sides)), gap)
                             for name, family, expects, sides, gap in rows]  # fmt: skip
        progress(some[-1] + 1, len(usable))
    done = len({name for name, _, _ in next(iter(found.values()), [])})
    if metrics and not done:
        require_some(_decoded(pipeline, entry) for entry in usable)
        raise InputError("no picture could be tested: of no two that follow each other both can be read")
    results = {label: tuple(_families(rows)) for label, rows in found.items()}
    return Behaviour(results, done, len(entries) - done, pipeline.signature)


def _measure(
    pipeline: Pipeline,
    metrics: Sequence[Metric],
    entries: Sequence[CaptionedPicture],
    some: Sequence[int],
    chance: Random,
) -> list[list[tuple[Any, ...]]]:
    """Score the tests of a few pictures: for every metric (picture, what was tested, difference of the scores)."""
    pictures: dict[tuple[int, str], Image.Image] = {}
    for place in dict.fromkeys([*some, *((place + 1) % len(entries) for place in some)]):
        decoded = _decoded(pipeline, entries[place])
        if not isinstance(decoded, RowError) and decoded.picture is not None:
            pictures |= {(place, name): image for name, image in variants(decoded.picture).items()}
    asked: list[tuple[int, Check]] = []
    for place in some:
        stranger = (place + 1) % len(entries)
        if (place, AS_IT_IS) in pictures and (stranger, AS_IT_IS) in pictures:
            pictures[place, WRONG] = pictures[stranger, AS_IT_IS]
            made = list(checks_of(entries[place].captions, entries[stranger].captions, chance))
            asked += [(place, test) for one in made for test in (one, one.with_wrong_picture()) if test is not None]
    shown = list(dict.fromkeys((place, side) for place, test in asked for side in (test.first, test.second)))
    if not shown:
        return [[] for _ in metrics]
    cases, found = _cases(pipeline, pictures, shown), []
    for metric in metrics:
        values = metric.score(cases).values[:, 0] * (1 if metric.higher_is_better else -1)
        score = dict(zip(shown, values.tolist(), strict=True))
        gaps = [score[place, test.first] - score[place, test.second] for place, test in asked]
        found.append([
            (entries[place].id, test.family, test.expects, (test.first, test.second), gap)
            for (place, test), gap in zip(asked, gaps, strict=True)
        ])  # fmt: skip
    return found


def _decoded(pipeline: Pipeline, entry: CaptionedPicture) -> Decoded | RowError:
    try:
        return pipeline.decode([picture(entry.image)], keep=True)[0]
    except RowError as error:  # a row of a table without a picture
        return error


def _cases(
    pipeline: Pipeline, pictures: dict[tuple[int, str], Image.Image], shown: Sequence[tuple[int, Shown]]
) -> Cases:
    """One case per picture variant and caption."""
    used = list(dict.fromkeys((place, variant) for place, (variant, _) in shown))
    texts = tuple(dict.fromkeys(caption for _, (_, caption) in shown))
    number, text = {key: at for at, key in enumerate(used)}, {caption: at for at, caption in enumerate(texts)}
    owner = np.array([number[place, variant] for place, (variant, _) in shown], dtype=np.int64)
    images = tuple(pictures[key] for key in used)
    bare = Cases(
        ids=tuple(str(at) for at in range(len(shown))),
        texts=texts,
        captions=np.array([[text[caption]] for _, (_, caption) in shown], dtype=np.int64),
        pictures=images,
        owner=owner,
        group=np.arange(len(shown)),
        control=np.zeros(len(shown), dtype=bool),
        references=((),) * len(shown),
        whole=False,
    )
    vectors, _ = make_vectors(bare, pipeline.decode(list(images)), pipeline, mixtures=True)
    return replace(bare, vectors=vectors)


def _families(rows: Sequence[CheckedGap]) -> Iterator[FamilyResult]:
    """Pass rates family by family, resampled by picture; a missing score fails its test."""
    true = [row for row in rows if row[1].first[0] != WRONG]
    gaps = [gap for _, test, gap in true if test.family == "own against another's caption"]
    near = TOLERANCE * abs(float(np.nanmedian(gaps)))
    for family in dict.fromkeys(test.family for _, test, _ in true):
        mine = [(name, test, gap) for name, test, gap in true if test.family == family]
        wrong = [_passes(test, gap, near) for _, test, gap in rows if test.family == family and test.first[0] == WRONG]
        values = np.array([_passes(test, gap, near) for _, test, gap in mine])
        passed = bootstrap_share(values, clusters=[name for name, _, _ in mine], how=Resampling())
        yield FamilyResult(family, mine[0][1].expects, len(mine), passed, float(np.mean(wrong)) if wrong else None)


def _passes(test: Check, gap: float, near: float) -> float:
    return float(gap > 0 if test.expects == "first higher" else abs(gap) <= near)


def section(result: Behaviour) -> str:
    """One table in Markdown: a row per family, a column per metric, with wrong pictures in brackets."""
    labels = list(result.results)
    lines = [
        f"Pass rates in per cent over {result.pictures} pictures ({result.left_out} left out), with 95 % interval; in "
        "brackets the rate with the wrong picture: what it shares with the right one is read from the text alone. "
        f'"Same" means within {TOLERANCE:.0%} of the median gap between own and other captions.',
        "",
        f"`{result.signature}`",
        "",
        f"| family | expected | n | {' | '.join(labels)} |",
        f"|---|---|---|{'---|' * len(labels)}",
    ]
    for row in zip(*result.results.values(), strict=True):
        cells = " | ".join(map(_cell, row))
        lines.append(f"| {row[0].family} | {row[0].expects} | {row[0].n} | {cells} |")
    return "\n".join(lines) + "\n"


def _cell(one: FamilyResult) -> str:
    wrong = "" if one.wrong is None else f" ({100 * one.wrong:.0f})"
    return f"{100 * one.passed.value:.0f} [{100 * one.passed.low:.0f}, {100 * one.passed.high:.0f}]{wrong}"


def charts(result: Behaviour) -> tuple[Chart, ...]:
    """Pass rates of all families, metric by metric."""
    lines = tuple(
        ChartLine.of(label, {str(place): one.passed for place, one in enumerate(families, start=1)})
        for label, families in result.results.items()
    )
    title = "pass rates (families in the order of the table)"
    return (Chart(title=title, x_label="family", y_label="per cent", lines=lines),)
