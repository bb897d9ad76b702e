"""Behavioural tests of the score: generated checks on real images, with a pass rate for each family.

A family of checks changes a caption or an image in one way: a wrong caption must score lower, a richer one higher, and
one with the same meaning about the same. "About the same" is within a tenth of the median gap between an image's
caption and that of another image.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import chain
from random import Random
from typing import Literal

import numpy as np
from PIL import Image, ImageOps

from msdscore.errors import InputError, RowError, unknown_name
from msdscore.forms.registry import lower_is_better
from msdscore.rows.rules import pair_rows
from msdscore.scoring.decoder import Decoded
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.rows import score_all
from msdscore_lab import edits
from msdscore_lab.benchmarks.base import image_source
from msdscore_lab.benchmarks.readers.rows import CaptionedImage
from msdscore_lab.edits import joined
from msdscore_lab.stats.resample import bootstrap_share
from msdscore_lab.studies.context import Study, every_nth, require_some, split
from msdscore_lab.studies.gaming import DEFAULT_IMAGES
from msdscore_lab.studies.table import Column, Plot, Table, Value

Expectation = Literal["first higher", "same"]
Edit = Callable[[str, edits.Known, Random], str | None]
ImageCaption = tuple[str, str]  # variant of the image, caption
# Image, family, expectation, whether with the wrong image, difference of the scores in each column.
CheckedGaps = tuple[str, str, Expectation, bool, list[float]]
ORIGINAL, WRONG = "as it is", "wrong"
TOLERANCE = 0.1  # as a share of the median gap between the image's and other captions
BATCH = 8  # images
OWN = "own against another's caption"  # the family whose gaps are the unit of "same"


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
    yield Check(OWN, "first higher", original, (ORIGINAL, wrong_caption))
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


def behaviour(study: Study, *, metric: Sequence[str] = ("similarity", "msd")) -> list[Table]:
    """Pass rates of columns of the score on images with two captions; the next image is the wrong image."""
    entries, pipeline = every_nth(study.captioned(), study.limit or DEFAULT_IMAGES), study.pipeline()
    return [pass_rates(study, pipeline, metric, entries)]


def pass_rates(study: Study, pipeline: Pipeline, names: Sequence[str], entries: Sequence[CaptionedImage]) -> Table:
    """Return one row per family of checks, with the pass rate of every column."""
    usable = [entry for entry in entries if len(entry.captions) > 1]
    if len(usable) < 2:
        raise InputError(f"expected at least 2 images with 2 captions each, got {len(usable)}")
    answers = study.run(
        "behaviours", split(range(len(usable)), BATCH),
        lambda batch_index, batch: _measure(pipeline, names, usable, batch, Random(f"{study.seed}-{batch_index}")),
        pipeline, columns=list(names),
    )  # fmt: skip
    checked: list[CheckedGaps] = list(chain.from_iterable(answers))
    images = len({name for name, *_ in checked})
    if not images:
        require_some(_decoded(pipeline, entry) for entry in usable)
        raise InputError("no image could be tested: no two consecutive images can be read")
    return _table(names, checked, images, len(entries) - images, pipeline.signature)


def _measure(
    pipeline: Pipeline, names: Sequence[str], entries: Sequence[CaptionedImage], batch: Sequence[int], rng: Random
) -> list[CheckedGaps]:
    """Score the checks of a batch of images."""
    images = _variants_of(pipeline, entries, dict.fromkeys([*batch, *((index + 1) % len(entries) for index in batch)]))
    pending: list[tuple[int, Check]] = []
    for index in batch:
        wrong = (index + 1) % len(entries)
        if (index, ORIGINAL) in images and (wrong, ORIGINAL) in images:
            images[index, WRONG] = images[wrong, ORIGINAL]
            for check in checks_of(entries[index].captions, entries[wrong].captions, rng):
                pending += [(index, test) for test in (check, check.with_wrong_image()) if test is not None]
    if not pending:
        return []
    cells = list(dict.fromkeys((index, side) for index, check in pending for side in (check.first, check.second)))
    owner = [list(images).index((index, variant)) for index, (variant, _) in cells]
    captions = [caption for _, (_, caption) in cells]
    scores = score_all(pipeline, pair_rows(list(images.values()), captions, owner, sets=range(len(cells))))
    columns = []
    for name in names:
        if name not in scores.columns:
            raise unknown_name("column", name, scores.columns)
        sign = -1 if name in lower_is_better() else 1
        columns.append(dict(zip(cells, (sign * scores.columns[name]).tolist(), strict=True)))
    return [
        (entries[index].id, check.family, check.expects, check.first[0] == WRONG,
         [column[index, check.first] - column[index, check.second] for column in columns])
        for index, check in pending
    ]  # fmt: skip


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


def _table(names: Sequence[str], checked: Sequence[CheckedGaps], images: int, left_out: int, signature: str) -> Table:
    rows: dict[str, dict[str, Value]] = {}
    for column, name in enumerate(names):
        for number, values in enumerate(_families(name, column, checked), start=1):
            row = rows.setdefault(str(values["family"]), {"number": number})
            row |= values
    columns = [Column("number", "no."), Column("family"), Column("expects", "expected"), Column("n")]
    for name in names:
        columns += [Column(name, "", ".0f", 100), Column(f"{name}, wrong image", "wrong image", ".0f", 100)]
    plot = Plot(x="number", y=list(names), title="pass rates (families by their numbers)", x_label="family",
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


def _families(name: str, column: int, rows: Sequence[CheckedGaps]) -> Iterator[dict[str, Value]]:
    """Yield the pass rate of each family, resampled by image; a missing score fails its check."""
    own = [gaps[column] for _, family, _, wrong, gaps in rows if family == OWN and not wrong]
    tolerance = TOLERANCE * abs(float(np.nanmedian(own)))
    for family, expects in dict.fromkeys((family, expects) for _, family, expects, wrong, _ in rows if not wrong):
        passed: dict[bool, list[tuple[str, float]]] = {False: [], True: []}
        for image, other, _, wrong, gaps in rows:
            if other == family:
                gap = gaps[column]
                passed[wrong].append((image, float(gap > 0 if expects == "first higher" else abs(gap) <= tolerance)))
        images, values = zip(*passed[False], strict=True)
        share = bootstrap_share(np.array(values), clusters=images)
        rate = float(np.mean([value for _, value in passed[True]])) if passed[True] else None
        yield {"family": family, "expects": expects, "n": len(images), name: share, f"{name}, wrong image": rate}
