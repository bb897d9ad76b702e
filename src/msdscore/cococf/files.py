"""COCO-CF on disk in the authors' schema, with the change recorded, beside a report on its quality."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from json import dumps
from pathlib import Path
from typing import Any, get_args

from msdscore.benchmarks.readers.files import Record, read_json, records
from msdscore.cococf.build import (
    JUDGE,
    BuildSettings,
    Built,
    CounterfactualPair,
    build,
    model_of,
    part_of,
    pool_settings,
    refine,
)
from msdscore.cococf.changes import SPLITS, Split
from msdscore.cococf.language import read_likelihoods
from msdscore.cococf.quality import Pool, Quality, TextReader, WrittenPair, judge_quality, reader_of, section
from msdscore.cococf.sources import AnnotatedImage, read_sources
from msdscore.errors import InputError
from msdscore.io.outputs.run import discard
from msdscore.io.outputs.targets import check_folder, put_all, refuse_existing, run_files
from msdscore.version import __version__


def split_name(split: Split) -> str:
    """The file of a split."""
    return f"coco_cf_{split}.json"


def contents(built: Built, made_from: Mapping[str, Any]) -> dict[str, bytes]:
    """The files of a benchmark by name."""
    return {split_name(split): _dump(_document(built, split, made_from)) for split in SPLITS}


def read_written(paths: Sequence[Path]) -> list[WrittenPair]:
    """The rows of COCO-CF files, ours or the authors'; a folder stands for the files of both splits in it."""
    files = [
        file
        for path in paths
        for file in ([path / split_name(split_of) for split_of in SPLITS] if path.is_dir() else [path])
    ]
    pairs: list[WrittenPair] = []
    for file in files:
        if not file.is_file():
            raise InputError(f"{file}: no such file; expected the folder that msdscore cococf build wrote")
        content = read_json(file, (dict, list))
        rows = Record("", content, str(file)).get("data") if isinstance(content, dict) else content
        split = next((split_of for split_of in get_args(Split) if split_of in file.stem), "")
        pairs += [_written(row, split) for row in records(rows, file)]
    if not pairs:
        raise InputError(f"{files[0]}: expected pairs of captions, got none")
    return pairs


def written(pair: CounterfactualPair) -> WrittenPair:
    """A pair as its file holds it."""
    change = pair.change
    return WrittenPair(
        pair.image.name, change.positive, change.negative, pair.split, change.subset, pair.source,
        change.positive_spans, change.negative_spans,
    )  # fmt: skip


def _document(built: Built, split: Split, made_from: Mapping[str, Any]) -> dict[str, Any]:
    pairs = built.of(split)
    meta = {
        "gen_captions": dict(sorted(Counter(pair.source for pair in pairs).items())),
        "subsets": dict(sorted(Counter(pair.change.subset for pair in pairs).items())),
        "split": split,
        "settings": asdict(built.settings),
        "made_from": dict(made_from),
        "version": __version__,
    }
    return {"meta": meta, "data": [_row(number, pair) for number, pair in enumerate(pairs)]}


def _row(number: int, pair: CounterfactualPair) -> dict[str, Any]:
    changed = pair.change
    change = {
        "action": changed.action,
        "kind": changed.kind,
        "removed": list(changed.removed),
        "inserted": list(changed.inserted),
        "caption_spans": [list(span) for span in changed.positive_spans],
        "negative_spans": [list(span) for span in changed.negative_spans],
    }
    return {
        "id": f"{pair.split}/{number}",
        "image_id": pair.image.number,
        "image_path": pair.image.name,
        "caption": changed.positive,
        "negative_caption": changed.negative,
        "captioner": pair.source,
        "subset": changed.subset,
        "change": change,
    }


def _written(row: Record, split: str) -> WrittenPair:
    image, positive, negative = row.get("image_path"), row.get("caption"), row.get("negative_caption", "neg_caption")
    subset, captioner, change = (row.fields.get(name) for name in ("subset", "captioner", "change"))
    try:
        spans = [
            tuple((int(start), int(end)) for start, end in (change or {}).get(f"{side}_spans", ()))
            for side in ("caption", "negative")
        ]
    except (AttributeError, TypeError, ValueError) as error:
        raise InputError(f"{row.where}: expected a change with spans of two characters' places ({error})") from error
    return WrittenPair(str(image), str(positive), str(negative), split, str(subset or ""), str(captioner or ""), *spans)


def _dump(content: Mapping[str, Any]) -> bytes:
    return (dumps(content, ensure_ascii=False, indent=1) + "\n").encode()


_READ = "reader.parquet"  # beside whose name the causal language model's reading is kept until the set is written


def publish(
    captions: Sequence[str],
    objects: Path | None,
    classes: Path | None,
    output: Path,
    settings: BuildSettings,
    *,
    overwrite: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Quality:
    """Read, build, judge and write `coco_cf_SPLIT.json`, `quality.json` and `quality.md` into a folder."""
    names = [split_name("easy"), split_name("hard"), "quality.json", "quality.md", *map(str, run_files(Path(_READ)))]
    check_folder(output, names, inputs=[*captions, objects, classes])
    if overwrite:
        discard(output / _READ)
    else:
        refuse_existing([output / split_name("easy"), output / split_name("hard")])
    images = read_sources(captions, objects=objects, classes=classes)
    built = build(images, pool_settings(settings), progress=progress)
    if not built.pairs:
        raise InputError(f"none of {built.images} images has a caption that can be changed; give more of them")
    judge = _judge(images)
    if settings.reader:
        built, quality = _refined(built, images, settings, judge, output, progress)
    else:
        quality = judge_quality([written(pair) for pair in built.pairs], judge)
    files = contents(built, {"captions": [str(source) for source in captions], "objects": objects and str(objects)})
    files["quality.json"] = _dump(quality.to_dict())
    files["quality.md"] = section(quality).encode()
    put_all({output / name: content for name, content in files.items()}, overwrite=overwrite)
    discard(output / _READ)
    return quality


def _judge(images: Sequence[AnnotatedImage]) -> TextReader:
    own = {image.name: [text.text for text in image.captions] for image in images if part_of(image) == JUDGE}
    return reader_of(model_of(images, JUDGE), own)


def _refined(
    pool: Built,
    images: Sequence[AnnotatedImage],
    settings: BuildSettings,
    judge: TextReader,
    output: Path,
    progress: Callable[[int, int], None],
) -> tuple[Built, Quality]:
    """The pairs that a causal language model does not tell apart, and the report on them and on the pool."""
    texts = [text for pair in pool.pairs for text in (pair.change.positive, pair.change.negative)]
    known = read_likelihoods(texts, settings.reader, keep=output / _READ, progress=progress)
    kept = refine(pool, known, images, settings)
    if not kept.pairs:
        raise InputError(f"no pair of {len(pool.pairs)} keeps {settings.reader} in balance; give more images")
    before, after = (
        judge_quality([written(pair) for pair in built.pairs], judge, known=known) for built in (pool, kept)
    )
    whole = before.rows[0]
    assert whole.reader is not None
    return kept, replace(after, reader=settings.reader, pool=Pool(whole.pairs, whole.model, whole.reader))
