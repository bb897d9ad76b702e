"""Build COCO-CF from files and write it with its report."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from json import dumps
from pathlib import Path

from msdscore.cococf.build import JUDGE, BuildSettings, Built, build, model_of, part_of
from msdscore.cococf.files import contents, split_name, written
from msdscore.cococf.language import forget_likelihoods, read_likelihoods
from msdscore.cococf.quality import Pool, Quality, TextReader, judge_quality, reader_of, section
from msdscore.cococf.refine import pool_settings, pool_texts, refine
from msdscore.cococf.sources import AnnotatedPicture, read_sources
from msdscore.errors import InputError
from msdscore.io.outputs.targets import check_folder, put_all, refuse_existing, run_files

_READ = "reader.parquet"  # beside whose name the causal language model's reading is kept until the set is written


@dataclass(frozen=True, slots=True)
class Published:
    """What was built, and the report on it."""

    built: Built
    quality: Quality


def publish(
    captions: Sequence[str],
    objects: Path | None,
    classes: Path | None,
    output: Path,
    settings: BuildSettings,
    *,
    overwrite: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Published:
    """Read, build, judge and write `coco_cf_SPLIT.json`, `quality.json` and `quality.md` into a folder."""
    names = [split_name("easy"), split_name("hard"), "quality.json", "quality.md", *map(str, run_files(Path(_READ)))]
    check_folder(output, names, inputs=[*captions, objects, classes])
    if overwrite:
        forget_likelihoods(output / _READ)
    else:
        refuse_existing([output / split_name("easy"), output / split_name("hard")])
    pictures = read_sources(captions, objects=objects, classes=classes)
    built = build(pictures, pool_settings(settings), progress=progress)
    if not built.pairs:
        raise InputError(f"none of {built.pictures} pictures has a caption that can be changed; give more of them")
    judge = _judge(pictures)
    if settings.reader:
        built, quality = _refined(built, pictures, settings, judge, output, progress)
    else:
        quality = judge_quality([written(pair) for pair in built.pairs], judge)
    files = contents(built, {"captions": [str(one) for one in captions], "objects": objects and str(objects)})
    files["quality.json"] = (dumps(quality.to_dict(), ensure_ascii=False, indent=1) + "\n").encode()
    files["quality.md"] = section(quality).encode()
    put_all({output / name: content for name, content in files.items()}, overwrite=overwrite)
    forget_likelihoods(output / _READ)
    return Published(built, quality)


def _judge(pictures: Sequence[AnnotatedPicture]) -> TextReader:
    own = {one.name: [text.text for text in one.captions] for one in pictures if part_of(one) == JUDGE}
    return reader_of(model_of(pictures, JUDGE), own)


def _refined(
    pool: Built,
    pictures: Sequence[AnnotatedPicture],
    settings: BuildSettings,
    judge: TextReader,
    output: Path,
    progress: Callable[[int, int], None],
) -> tuple[Built, Quality]:
    """The pairs that a causal language model does not tell apart, and the report on them and on the pool."""
    known = read_likelihoods(pool_texts(pool), settings.reader, keep=output / _READ, progress=progress)
    kept = refine(pool, known, pictures, settings)
    if not kept.pairs:
        raise InputError(f"no pair of {len(pool.pairs)} keeps {settings.reader} in balance; give more pictures")
    before, after = (judge_quality([written(one) for one in made.pairs], judge, known=known) for made in (pool, kept))
    whole = before.rows[0]
    assert whole.reader is not None
    return kept, replace(after, reader=settings.reader, pool=Pool(whole.pairs, whole.model, whole.reader))
