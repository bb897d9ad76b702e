"""COCO-CF on disk in the authors' schema, with the change recorded, beside a report on its quality."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from json import dumps
from pathlib import Path
from typing import Any, get_args

from msdscore.benchmarks.readers.files import field, read_json
from msdscore.cococf.build import (
    JUDGE,
    BuildSettings,
    Built,
    CounterfactualPair,
    build,
    model_of,
    part_of,
    pool_settings,
    pool_texts,
    refine,
)
from msdscore.cococf.changes import SPLITS, Split
from msdscore.cococf.language import forget_likelihoods, read_likelihoods
from msdscore.cococf.quality import Pool, Quality, TextReader, WrittenPair, judge_quality, reader_of, section
from msdscore.cococf.sources import AnnotatedImage, read_sources
from msdscore.errors import InputError
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
        file for path in paths for file in ([path / split_name(one) for one in SPLITS] if path.is_dir() else [path])
    ]
    found: list[WrittenPair] = []
    for file in files:
        if not file.is_file():
            raise InputError(f"{file}: no such file; expected the folder that msdscore cococf build wrote")
        content = read_json(file, (dict, list))
        rows = field(content, "data", where=str(file)) if isinstance(content, dict) else content
        split = next((one for one in get_args(Split) if one in file.stem), "")
        found += [_written(row, split, f"{file} row {number}") for number, row in enumerate(rows)]
    if not found:
        raise InputError(f"{files[0]}: expected pairs of captions, got none")
    return found


def written(pair: CounterfactualPair) -> WrittenPair:
    """A pair as its file holds it."""
    made = pair.made
    return WrittenPair(
        pair.image.name, made.positive, made.negative, pair.split, made.subset, pair.source, made.positive_spans,
        made.negative_spans,
    )  # fmt: skip


def _document(built: Built, split: Split, made_from: Mapping[str, Any]) -> dict[str, Any]:
    pairs = built.of(split)
    meta = {
        "gen_captions": dict(sorted(Counter(pair.source for pair in pairs).items())),
        "subsets": dict(sorted(Counter(pair.made.subset for pair in pairs).items())),
        "split": split,
        "settings": asdict(built.settings),
        "made_from": dict(made_from),
        "version": __version__,
    }
    return {"meta": meta, "data": [_row(number, pair) for number, pair in enumerate(pairs)]}


def _row(number: int, pair: CounterfactualPair) -> dict[str, Any]:
    made = pair.made
    change = {
        "action": made.action,
        "kind": made.kind,
        "removed": list(made.removed),
        "inserted": list(made.inserted),
        "caption_spans": [list(span) for span in made.positive_spans],
        "negative_spans": [list(span) for span in made.negative_spans],
    }
    return {
        "id": f"{pair.split}/{number}",
        "image_id": pair.image.number,
        "image_path": pair.image.name,
        "caption": made.positive,
        "negative_caption": made.negative,
        "captioner": pair.source,
        "subset": made.subset,
        "change": change,
    }


def _written(row: dict[str, Any], split: str, where: str) -> WrittenPair:
    image = str(field(row, "image_path", where=where))
    change = row.get("change") or {}
    spans = [tuple((int(a), int(b)) for a, b in change.get(f"{one}_spans", ())) for one in ("caption", "negative")]
    return WrittenPair(
        image,
        str(field(row, "caption", where=where)),
        str(field(row, "negative_caption", "neg_caption", where=where)),
        split,
        str(row.get("subset", "")),
        str(row.get("captioner", "")),
        *spans,
    )


def _dump(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, ensure_ascii=False, indent=1) + "\n").encode()


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
    images = read_sources(captions, objects=objects, classes=classes)
    built = build(images, pool_settings(settings), progress=progress)
    if not built.pairs:
        raise InputError(f"none of {built.images} images has a caption that can be changed; give more of them")
    judge = _judge(images)
    if settings.reader:
        built, quality = _refined(built, images, settings, judge, output, progress)
    else:
        quality = judge_quality([written(pair) for pair in built.pairs], judge)
    files = contents(built, {"captions": [str(one) for one in captions], "objects": objects and str(objects)})
    files["quality.json"] = (dumps(quality.to_dict(), ensure_ascii=False, indent=1) + "\n").encode()
    files["quality.md"] = section(quality).encode()
    put_all({output / name: content for name, content in files.items()}, overwrite=overwrite)
    forget_likelihoods(output / _READ)
    return Published(built, quality)


def _judge(images: Sequence[AnnotatedImage]) -> TextReader:
    own = {one.name: [text.text for text in one.captions] for one in images if part_of(one) == JUDGE}
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
    known = read_likelihoods(pool_texts(pool), settings.reader, keep=output / _READ, progress=progress)
    kept = refine(pool, known, images, settings)
    if not kept.pairs:
        raise InputError(f"no pair of {len(pool.pairs)} keeps {settings.reader} in balance; give more images")
    before, after = (judge_quality([written(one) for one in made.pairs], judge, known=known) for made in (pool, kept))
    whole = before.rows[0]
    assert whole.reader is not None
    return kept, replace(after, reader=settings.reader, pool=Pool(whole.pairs, whole.model, whole.reader))
