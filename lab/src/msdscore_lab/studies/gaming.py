"""Adversarial texts that are not captions: how often each scores higher than a human caption.

Each kind of text is built for every image, from the words that the scorer finds most probable or from the human
caption. A share that is low with the right image and high with a wrong image comes from the text only.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from random import Random

import numpy as np

from msdscore.core.arrays import to_numpy
from msdscore.errors import InputError
from msdscore.io.images import ImageSource
from msdscore.rows.rules import pair_rows
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.results import Score, known
from msdscore.scoring.rows import score_all
from msdscore.scoring.vocabulary import expected_densities, image_evidence
from msdscore.text.warnings import GUARD, guard_reward
from msdscore.text.words import segment
from msdscore_lab.benchmarks.base import image_source
from msdscore_lab.benchmarks.readers.rows import CaptionedImage
from msdscore_lab.edits import KIND_OF
from msdscore_lab.stats.resample import bootstrap_share
from msdscore_lab.studies.context import Study, every_nth, require_bank, split
from msdscore_lab.studies.table import Column, Table, Value

BATCH = 8  # images
DEFAULT_IMAGES = 200
LISTED = 10  # words per list
# Image, kind of text, whether with the wrong image; whether it beats the caption by msd, match and reward; whether its
# verdict is on topic.
GamingResult = tuple[str, str, bool, bool, bool, bool, bool]


def gaming_texts(caption: str, probable: Sequence[str], evident: Sequence[str], rng: Random) -> dict[str, str]:
    """Return the text of every kind, from a human caption and vocabulary words, best first."""
    words = segment(caption)
    bare = caption.strip().rstrip(".").rstrip()
    caption_words = [word.text.lower() for word in words if word.kind == "word"]
    stems = {word.stem for word in words}
    new_words = [word for word in probable if segment(word)[0].stem not in stems]
    return {
        "the caption itself": caption,
        "ten most probable words": " ".join(probable[:LISTED]),
        "ten words of most evidence": " ".join(evident[:LISTED]),
        "ten most probable words, with commas": ", ".join(probable[:LISTED]),
        "five most probable words": " ".join(probable[:5]),
        "caption and three probable words": " ".join([bare, *new_words[:3]]),
        "caption and five probable words": " ".join([bare, *new_words[:5]]),
        "caption three times": " ".join([f"{bare}."] * 3),
        "a photo of a X and a Y …": "a photo of " + " and ".join(f"a {word}" for word in probable[:6]),
        "words of the caption sorted": " ".join(sorted(caption_words)),
        "words of the caption shuffled": " ".join(rng.sample(caption_words, len(caption_words))),
        "all object names of a list": " ".join(KIND_OF),
    }


KINDS = tuple(gaming_texts("", (), (), Random(0)))


def gaming(study: Study) -> list[Table]:
    """Measure how often texts that are not captions score higher than a human caption."""
    pipeline = study.pipeline()
    require_bank(pipeline, "vocabulary")
    return [gaming_table(study, pipeline, every_nth(study.captioned(), study.limit or DEFAULT_IMAGES))]


def gaming_table(study: Study, pipeline: Pipeline, entries: Sequence[CaptionedImage]) -> Table:
    """Return one row per kind of text: shares of images on which it beats the first caption."""
    if len(entries) < 2:
        raise InputError(f"expected at least 2 images with captions, got {len(entries)}")
    answers = study.run(
        "gaming", split(range(len(entries)), BATCH),
        lambda batch_index, batch: list(_results(pipeline, entries, batch, Random(f"{study.seed}-{batch_index}"))),
        pipeline, kinds=list(KINDS), guard=GUARD,
    )  # fmt: skip
    rows = list(chain.from_iterable(answers))
    images = len({name for name, *_ in rows})
    columns = [Column("kind", "text"), Column("n")]
    for name in ("msd", "match", "reward"):
        heads = {name: f"beats by {name}", f"{name}, wrong image": "wrong image"}
        columns += [Column(key, head, ".0f", 100) for key, head in heads.items()]
    columns.append(Column("on_topic", "on topic", ".0f", 100))
    return Table(
        name="gaming",
        title=f"Texts against the caption of a person, {images} images, per cent with 95 % interval",
        columns=columns,
        rows=[_row(kind, [row for row in rows if row[1] == kind]) for kind in KINDS] if rows else [],
        notes=[f"reward: msd, with {GUARD:g} subtracted for lists, shuffled and repeated words"],
        signature=pipeline.signature,
        facts={"images": images, "left_out": len(entries) - images},
    )


def _row(kind: str, rows: Sequence[GamingResult]) -> dict[str, Value]:
    true_rows = [row for row in rows if not row[2]]
    row: dict[str, Value] = {"kind": kind, "n": len(true_rows)}
    for column, name in enumerate(("msd", "match", "reward"), start=3):
        names, values = [result[0] for result in true_rows], np.array([float(result[column]) for result in true_rows])
        row[name] = bootstrap_share(values, clusters=names)
        row[f"{name}, wrong image"] = float(np.mean([result[column] for result in rows if result[2]]))
    return row | {"on_topic": float(np.mean([result[6] for result in true_rows]))}


def _results(
    pipeline: Pipeline, entries: Sequence[CaptionedImage], batch: Sequence[int], rng: Random
) -> Iterator[GamingResult]:
    """Score the texts of a batch of images, with the image and with the next image."""
    image_entries = list(dict.fromkeys([*batch, *((index + 1) % len(entries) for index in batch)]))
    sources = [image_source(entries[index].image) for index in image_entries]
    ranked = _ranked_words(pipeline, sources)
    cells = list[tuple[int, str, bool, str, int]]()  # entry, kind, whether the image is wrong, text, index of the image
    for index in batch:
        right, wrong = image_entries.index(index), image_entries.index((index + 1) % len(entries))
        if right not in ranked or wrong not in ranked:
            continue
        for kind, text in gaming_texts(entries[index].captions[0], *ranked[right], rng).items():
            cells += [(index, kind, image == wrong, text, image) for image in (right, wrong)]
    if not cells:
        return
    *_, texts, owner = (list(column) for column in zip(*cells, strict=True))
    scores = score_all(pipeline, pair_rows(sources, texts, owner, sets=owner))
    captions: dict[bool, Score] = {}
    for (index, kind, wrong, text, _), score in zip(cells, scores, strict=True):
        if score.error is not None:
            continue
        if kind == KINDS[0]:
            captions[wrong] = score
        yield (entries[index].id, kind, wrong, *_comparison(text, score, captions[wrong]))


def _comparison(text: str, score: Score, caption: Score) -> tuple[bool, bool, bool, bool]:
    """Return whether a text beats the caption by msd, match and reward, and whether its verdict is on topic."""
    reward, _ = guard_reward(score.msd, text, GUARD, score.warnings)
    match, caption_match = (known(side.match) or 0.0 for side in (score, caption))
    return score.msd > caption.msd, match > caption_match, (reward or 0.0) > caption.msd, score.verdict == "on topic"


def _ranked_words(pipeline: Pipeline, sources: Sequence[ImageSource]) -> dict[int, tuple[list[str], list[str]]]:
    """Return the words of the vocabulary by probability and by evidence, best first, for each readable image."""
    vocabulary = require_bank(pipeline, "vocabulary")
    images = pipeline.embedder.images(pipeline.decode(list(sources)))
    if images.batch is None:
        return {}
    evidence = image_evidence(pipeline, images, vocabulary.points, expected_densities(pipeline, vocabulary.points))
    ranked = {}
    for item, row in enumerate(images.rows):
        if row is not None:
            orders = (vocabulary.probabilities(evidence[row]), evidence[row])
            probable, evident = (
                [vocabulary.words[word] for word in np.argsort(-to_numpy(order), kind="stable").tolist()]
                for order in orders
            )
            ranked[item] = probable, evident
    return ranked
