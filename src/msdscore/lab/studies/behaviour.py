"""Behavioural tests of metrics: generated checks on real images, each family with a pass rate.

A family of checks changes a caption or an image in one way: a caption that became wrong must score lower, a richer one
higher, and one with the same meaning about the same. "About the same" is within a tenth of the median gap between an
image's own caption and that of another image.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from random import Random
from typing import Literal

import numpy as np
from PIL import Image, ImageOps

from msdscore.errors import ConfigError, InputError, RowError
from msdscore.lab import edits
from msdscore.lab.benchmarks.base import image_source
from msdscore.lab.benchmarks.readers.rows import CaptionedImage
from msdscore.lab.benchmarks.run.cases import make_vectors
from msdscore.lab.metrics.base import Cases, Metric
from msdscore.lab.metrics.registry import load_metrics
from msdscore.lab.stats.resample import bootstrap_share
from msdscore.lab.studies.context import Study, every_nth, require_some, split
from msdscore.lab.studies.gaming import MOST_IMAGES, gaming_table
from msdscore.lab.studies.table import Column, Plot, Table, Value
from msdscore.scoring.decoder import Decoded
from msdscore.scoring.pipeline import Pipeline
from msdscore.text.words import joined

Expectation = Literal["first higher", "same"]
Edit = Callable[[str, edits.Known, Random], str | None]
Shown = tuple[str, str]  # variant of the image, caption
# Image, family, expectation, whether with the wrong image, difference of the scores.
CheckedGap = tuple[str, str, Expectation, bool, float]
AS_IT_IS, WRONG = "as it is", "wrong"
TOLERANCE = 0.1  # share of the median gap between own and other captions
BATCH = 8  # images


@dataclass(frozen=True, slots=True)
class Check:
    """Two combinations of image variant and caption, and the expected relation of their scores."""

    family: str
    expects: Expectation
    first: Shown
    second: Shown

    def with_wrong_image(self) -> "Check | None":
        """Return the same check of captions with another image; None if it is not a check of captions."""
        if self.expects == "same" or self.first[0] != AS_IT_IS:
            return None
        return Check(self.family, self.expects, (WRONG, self.first[1]), (WRONG, self.second[1]))


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
    """Yield all checks of one image, from its captions and those of another image."""
    first, second, stranger = own[0], own[1], other[0]
    known = edits.words_of(own)
    whole = (AS_IT_IS, first)
    yield Check("own against another's caption", "first higher", whole, (AS_IT_IS, stranger))
    yield Check("true detail added", "first higher", (AS_IT_IS, joined([first, second])), whole)
    yield Check("false detail added", "first higher", whole, (AS_IT_IS, joined([first, stranger])))
    yield Check("paragraph against sentence", "first higher", (AS_IT_IS, joined(own)), whole)
    yield Check("paraphrase against another's caption", "first higher", (AS_IT_IS, second), (AS_IT_IS, stranger))
    for family, change in _WRONG_WORDS:
        # Not every caption has a colour or a number, so all captions of the image are tried.
        edited = next(((text, new) for text in own if (new := change(text, known, chance))), None)
        if edited is not None:
            yield Check(family, "first higher", (AS_IT_IS, edited[0]), (AS_IT_IS, edited[1]))
    for family, change in _SAME_WORDS:
        changed = change(first, known, chance)
        if changed and changed != first:
            yield Check(family, "same", whole, (AS_IT_IS, changed))
    if misspelt := edits.typo(first, known, chance):
        yield Check("one typo, against another's caption", "first higher", (AS_IT_IS, misspelt), (AS_IT_IS, stranger))
    for variant in ("JPEG 75", "mirrored"):
        yield Check(f"image {variant}", "same", whole, (variant, first))
    yield Check("image cropped, against another's caption", "first higher", ("cropped", first), ("cropped", stranger))


def variants(image: Image.Image) -> dict[str, Image.Image]:
    """Return the image unchanged, saved as JPEG, mirrored, and cropped to the middle nine tenths."""
    buffer = BytesIO()
    image.save(buffer, "JPEG", quality=75)
    saved = Image.open(BytesIO(buffer.getvalue())).convert("RGB")
    edge = (image.width // 20, image.height // 20)
    cut = image.crop((*edge, image.width - edge[0], image.height - edge[1]))
    return {AS_IT_IS: image, "JPEG 75": saved, "mirrored": ImageOps.mirror(image), "cropped": cut}


def behaviour(study: Study, *, metric: Sequence[str] = ("cosine", "max-sim", "msd")) -> list[Table]:
    """Pass rates of metrics on images with at least two captions each; the next image is the wrong one."""
    metrics = load_metrics(metric)
    for checked in metrics:
        if checked.needs("pairs") or checked.needs("references") or checked.row.scope == "corpus":
            raise ConfigError(f"metric {checked.label} does not score single captions, which behaviour tests need")
    entries = every_nth(study.captioned(), study.limit or MOST_IMAGES)
    pipeline = study.pipeline()
    tables = [pass_rates(study, pipeline, metrics, entries)]
    has_vocabulary = pipeline.bank is not None and pipeline.bank.bank.vocabulary is not None
    return [*tables, gaming_table(study, pipeline, entries)] if has_vocabulary else tables


def pass_rates(study: Study, pipeline: Pipeline, metrics: Sequence[Metric], entries: Sequence[CaptionedImage]) -> Table:
    """Return one row per family of checks, with the pass rate of every metric."""
    usable = [entry for entry in entries if len(entry.captions) > 1]
    if len(usable) < 2:
        raise InputError(f"expected at least 2 images with 2 captions each, got {len(usable)}")
    labels = [checked.label for checked in metrics]
    answers = study.run(
        "behaviours", split(range(len(usable)), BATCH),
        lambda number, batch: _measure(pipeline, metrics, usable, batch, Random(f"{study.seed}-{number}")),
        pipeline, metrics=labels,
    )  # fmt: skip
    gaps = {label: [row for answer in answers for row in answer[at]] for at, label in enumerate(labels)}
    images = len({name for name, *_ in next(iter(gaps.values()), [])})
    if metrics and not images:
        require_some(_decoded(pipeline, entry) for entry in usable)
        raise InputError("no image could be tested: there are no two consecutive images that can both be read")
    return _table(gaps, images, len(entries) - images, pipeline.signature)


def _measure(
    pipeline: Pipeline,
    metrics: Sequence[Metric],
    entries: Sequence[CaptionedImage],
    batch: Sequence[int],
    chance: Random,
) -> list[list[CheckedGap]]:
    """Score the checks of a batch of images, one list per metric."""
    images: dict[tuple[int, str], Image.Image] = {}
    for number in dict.fromkeys([*batch, *((number + 1) % len(entries) for number in batch)]):
        decoded = _decoded(pipeline, entries[number])
        if not isinstance(decoded, RowError) and decoded.image is not None:
            images |= {(number, name): image for name, image in variants(decoded.image).items()}
    pending: list[tuple[int, Check]] = []
    for number in batch:
        stranger = (number + 1) % len(entries)
        if (number, AS_IT_IS) in images and (stranger, AS_IT_IS) in images:
            images[number, WRONG] = images[stranger, AS_IT_IS]
            for check in checks_of(entries[number].captions, entries[stranger].captions, chance):
                pending += [(number, test) for test in (check, check.with_wrong_image()) if test is not None]
    shown = list(dict.fromkeys((number, side) for number, check in pending for side in (check.first, check.second)))
    if not shown:
        return [[] for _ in metrics]
    cases, answers = _cases(pipeline, images, shown), []
    for metric in metrics:
        values = metric.score(cases).values[:, 0] * (1 if metric.higher_is_better else -1)
        score = dict(zip(shown, values.tolist(), strict=True))
        answers.append([
            (entries[number].id, check.family, check.expects, check.first[0] == WRONG,
             score[number, check.first] - score[number, check.second])
            for number, check in pending
        ])  # fmt: skip
    return answers


def _decoded(pipeline: Pipeline, entry: CaptionedImage) -> Decoded | RowError:
    try:
        return pipeline.decode([image_source(entry.image)], keep=True)[0]
    except RowError as error:  # a row of a table without an image
        return error


def _cases(
    pipeline: Pipeline, variants_of: dict[tuple[int, str], Image.Image], shown: Sequence[tuple[int, Shown]]
) -> Cases:
    """Return one case per image variant and caption."""
    used = list(dict.fromkeys((number, variant) for number, (variant, _) in shown))
    texts = tuple(dict.fromkeys(caption for _, (_, caption) in shown))
    owner_of, text_of = ({key: at for at, key in enumerate(keys)} for keys in (used, texts))
    images = tuple(variants_of[key] for key in used)
    bare = Cases(
        ids=tuple(str(at) for at in range(len(shown))),
        texts=texts,
        captions=np.array([[text_of[caption]] for _, (_, caption) in shown], dtype=np.int64),
        images=images,
        owner=np.array([owner_of[number, variant] for number, (variant, _) in shown], dtype=np.int64),
        group=np.arange(len(shown)),
        control=np.zeros(len(shown), dtype=bool),
        references=((),) * len(shown),
        whole=False,
    )
    vectors, _ = make_vectors(bare, pipeline.decode(list(images)), pipeline, mixtures=True)
    return replace(bare, vectors=vectors)


def _table(gaps: dict[str, list[CheckedGap]], images: int, left_out: int, signature: str) -> Table:
    rows: dict[str, dict[str, Value]] = {}
    for label, checked in gaps.items():
        for number, values in enumerate(_families(label, checked), start=1):
            row = rows.setdefault(str(values["family"]), {"number": number})
            row |= values
    columns = [Column("number", "no."), Column("family"), Column("expects", "expected"), Column("n")]
    for label in gaps:
        columns += [Column(label, "", ".0f", 100), Column(f"{label}, wrong image", "wrong image", ".0f", 100)]
    plot = Plot(x="number", y=list(gaps), title="pass rates (families by their numbers)", x_label="family",
                y_label="per cent")  # fmt: skip
    return Table(
        name="families",
        title=f"Pass rates over {images} images, per cent with 95 % interval",
        columns=columns,
        rows=list(rows.values()),
        notes=[f"{left_out} images left out",
               "a pass rate that is reached with the wrong image too comes from the text",
               f'"same" means within {TOLERANCE:.0%} of the median gap between own and other captions'],
        signature=signature,
        facts={"images": images, "left_out": left_out},
        plots=[plot],
    )  # fmt: skip


def _families(label: str, rows: Sequence[CheckedGap]) -> Iterator[dict[str, Value]]:
    """Yield the pass rate of each family, resampled by image; a missing score fails its check."""
    gaps = [gap for _, family, _, wrong, gap in rows if family == "own against another's caption" and not wrong]
    near = TOLERANCE * abs(float(np.nanmedian(gaps)))
    for family, expects in dict.fromkeys((family, expects) for _, family, expects, wrong, _ in rows if not wrong):
        passed: dict[bool, list[tuple[str, float]]] = {False: [], True: []}
        for name, other, _, wrong, gap in rows:
            if other == family:
                passed[wrong].append((name, float(gap > 0 if expects == "first higher" else abs(gap) <= near)))
        names, values = zip(*passed[False], strict=True)
        share = bootstrap_share(np.array(values), clusters=names)
        rate = float(np.mean([value for _, value in passed[True]])) if passed[True] else None
        yield {"family": family, "expects": expects, "n": len(names), label: share, f"{label}, wrong image": rate}
