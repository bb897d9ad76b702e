"""Behavioural tests of metrics: generated checks on real images, with a pass rate for each family.

A family of checks changes a caption or an image in one way: a wrong caption must score lower, a richer one higher, and
one with the same meaning about the same. "About the same" is within a tenth of the median gap between an image's
caption and that of another image.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from random import Random
from typing import Literal

import numpy as np
from PIL import Image, ImageOps

from msdscore.errors import ConfigError, InputError, RowError
from msdscore.scoring.decoder import Decoded
from msdscore.scoring.pipeline import Pipeline
from msdscore_lab import edits
from msdscore_lab.benchmarks.base import image_source
from msdscore_lab.benchmarks.readers.rows import CaptionedImage
from msdscore_lab.benchmarks.run.cases import make_vectors
from msdscore_lab.edits import joined
from msdscore_lab.metrics.base import Cases, Metric
from msdscore_lab.metrics.registry import load_metrics
from msdscore_lab.stats.resample import bootstrap_share
from msdscore_lab.studies.context import Study, every_nth, require_some, split
from msdscore_lab.studies.gaming import DEFAULT_IMAGES, gaming_table
from msdscore_lab.studies.table import Column, Plot, Table, Value

Expectation = Literal["first higher", "same"]
Edit = Callable[[str, edits.Known, Random], str | None]
ImageCaption = tuple[str, str]  # variant of the image, caption
# Image, family, expectation, whether with the wrong image, difference of the scores.
CheckedGap = tuple[str, str, Expectation, bool, float]
ORIGINAL, WRONG = "as it is", "wrong"
TOLERANCE = 0.1  # as a share of the median gap between the image's and other captions
BATCH = 8  # images


@dataclass(frozen=True, slots=True)
class Check:
    """Two combinations of image variant and caption, and the expected relation of their scores."""

    family: str
    expects: Expectation
    first: ImageCaption
    second: ImageCaption

    def with_wrong_image(self) -> "Check | None":
        """Return the same check with a wrong image; None for checks that change the image or expect equality."""
        if self.expects == "same" or self.first[0] != ORIGINAL:
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


def checks_of(captions: Sequence[str], other_captions: Sequence[str], rng: Random) -> Iterator[Check]:
    """Yield all checks of one image, from its captions and those of another image."""
    first, second, wrong_caption = captions[0], captions[1], other_captions[0]
    known = edits.words_of(captions)
    original = (ORIGINAL, first)
    yield Check("own against another's caption", "first higher", original, (ORIGINAL, wrong_caption))
    yield Check("true detail added", "first higher", (ORIGINAL, joined([first, second])), original)
    yield Check("false detail added", "first higher", original, (ORIGINAL, joined([first, wrong_caption])))
    yield Check("paragraph against sentence", "first higher", (ORIGINAL, joined(captions)), original)
    yield Check("paraphrase against another's caption", "first higher", (ORIGINAL, second), (ORIGINAL, wrong_caption))
    for family, change in _WRONG_WORDS:
        # Try all captions of the image, since not every caption has a colour or a number.
        edited = next(((text, changed_text) for text in captions if (changed_text := change(text, known, rng))), None)
        if edited is not None:
            yield Check(family, "first higher", (ORIGINAL, edited[0]), (ORIGINAL, edited[1]))
    for family, change in _SAME_WORDS:
        changed = change(first, known, rng)
        if changed and changed != first:
            yield Check(family, "same", original, (ORIGINAL, changed))
    if misspelt := edits.typo(first, known, rng):
        yield Check(
            "one typo, against another's caption", "first higher", (ORIGINAL, misspelt), (ORIGINAL, wrong_caption)
        )
    for variant in ("JPEG 75", "mirrored"):
        yield Check(f"image {variant}", "same", original, (variant, first))
    yield Check(
        "image cropped, against another's caption", "first higher", ("cropped", first), ("cropped", wrong_caption)
    )


def variants(image: Image.Image) -> dict[str, Image.Image]:
    """Return the image unchanged, saved as JPEG, mirrored, and cropped to the middle nine tenths."""
    buffer = BytesIO()
    image.save(buffer, "JPEG", quality=75)
    saved = Image.open(BytesIO(buffer.getvalue())).convert("RGB")
    margin = (image.width // 20, image.height // 20)
    cropped = image.crop((*margin, image.width - margin[0], image.height - margin[1]))
    return {ORIGINAL: image, "JPEG 75": saved, "mirrored": ImageOps.mirror(image), "cropped": cropped}


def behaviour(study: Study, *, metric: Sequence[str] = ("cosine", "max-sim", "msd")) -> list[Table]:
    """Pass rates of metrics on images with at least two captions; the next image is the wrong image."""
    metrics = load_metrics(metric)
    for checked in metrics:
        if checked.needs("pairs") or checked.needs("references") or checked.row.scope == "corpus":
            raise ConfigError(f"metric {checked.label} does not score single captions, which this study needs")
    entries = every_nth(study.captioned(), study.limit or DEFAULT_IMAGES)
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
        lambda batch_index, batch: _measure(pipeline, metrics, usable, batch, Random(f"{study.seed}-{batch_index}")),
        pipeline, metrics=labels,
    )  # fmt: skip
    gaps = {label: [row for answer in answers for row in answer[index]] for index, label in enumerate(labels)}
    images = len({name for name, *_ in next(iter(gaps.values()), [])})
    if metrics and not images:
        require_some(_decoded(pipeline, entry) for entry in usable)
        raise InputError("no image could be tested: no two consecutive images can be read")
    return _table(gaps, images, len(entries) - images, pipeline.signature)


def _measure(
    pipeline: Pipeline,
    metrics: Sequence[Metric],
    entries: Sequence[CaptionedImage],
    batch: Sequence[int],
    rng: Random,
) -> list[list[CheckedGap]]:
    """Score the checks of a batch of images, one list per metric."""
    images = _variants_of(pipeline, entries, dict.fromkeys([*batch, *((index + 1) % len(entries) for index in batch)]))
    pending: list[tuple[int, Check]] = []
    for index in batch:
        wrong = (index + 1) % len(entries)
        if (index, ORIGINAL) in images and (wrong, ORIGINAL) in images:
            images[index, WRONG] = images[wrong, ORIGINAL]
            for check in checks_of(entries[index].captions, entries[wrong].captions, rng):
                pending += [(index, test) for test in (check, check.with_wrong_image()) if test is not None]
    image_captions = list(
        dict.fromkeys((index, side) for index, check in pending for side in (check.first, check.second))
    )
    if not image_captions:
        return [[] for _ in metrics]
    cases, answers = _cases(pipeline, images, image_captions), []
    for metric in metrics:
        values = metric.score(cases).values[:, 0] * (1 if metric.higher_is_better else -1)
        score = dict(zip(image_captions, values.tolist(), strict=True))
        answers.append([
            (entries[index].id, check.family, check.expects, check.first[0] == WRONG,
             score[index, check.first] - score[index, check.second])
            for index, check in pending
        ])  # fmt: skip
    return answers


def _variants_of(
    pipeline: Pipeline, entries: Sequence[CaptionedImage], indices: Iterable[int]
) -> dict[tuple[int, str], Image.Image]:
    """Return the variants of the readable images, by index and name of the variant."""
    images: dict[tuple[int, str], Image.Image] = {}
    for index in indices:
        decoded = _decoded(pipeline, entries[index])
        if not isinstance(decoded, RowError) and decoded.image is not None:
            images |= {(index, name): image for name, image in variants(decoded.image).items()}
    return images


def _decoded(pipeline: Pipeline, entry: CaptionedImage) -> Decoded | RowError:
    try:
        return pipeline.decode([image_source(entry.image)], keep=True)[0]
    except RowError as error:  # a table row without an image
        return error


def _cases(
    pipeline: Pipeline,
    variants_of: dict[tuple[int, str], Image.Image],
    image_captions: Sequence[tuple[int, ImageCaption]],
) -> Cases:
    """Return one case per image variant and caption."""
    used = list(dict.fromkeys((image_index, variant) for image_index, (variant, _) in image_captions))
    texts = tuple(dict.fromkeys(caption for _, (_, caption) in image_captions))
    owner_of, text_of = ({key: index for index, key in enumerate(keys)} for keys in (used, texts))
    images = tuple(variants_of[key] for key in used)
    cases = Cases(
        ids=tuple(str(index) for index in range(len(image_captions))),
        texts=texts,
        captions=np.array([[text_of[caption]] for _, (_, caption) in image_captions], dtype=np.int64),
        images=images,
        owner=np.array(
            [owner_of[image_index, variant] for image_index, (variant, _) in image_captions], dtype=np.int64
        ),
        group=np.arange(len(image_captions)),
        control=np.zeros(len(image_captions), dtype=bool),
        references=((),) * len(image_captions),
        whole=False,
    )
    vectors, _ = make_vectors(cases, pipeline.decode(list(images)), pipeline, mixtures=True)
    return replace(cases, vectors=vectors)


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
    tolerance = TOLERANCE * abs(float(np.nanmedian(gaps)))
    for family, expects in dict.fromkeys((family, expects) for _, family, expects, wrong, _ in rows if not wrong):
        passed: dict[bool, list[tuple[str, float]]] = {False: [], True: []}
        for name, other, _, wrong, gap in rows:
            if other == family:
                passed[wrong].append((name, float(gap > 0 if expects == "first higher" else abs(gap) <= tolerance)))
        names, values = zip(*passed[False], strict=True)
        share = bootstrap_share(np.array(values), clusters=names)
        rate = float(np.mean([value for _, value in passed[True]])) if passed[True] else None
        yield {"family": family, "expects": expects, "n": len(names), label: share, f"{label}, wrong image": rate}
