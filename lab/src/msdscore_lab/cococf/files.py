"""Read and write COCO-CF in the authors' schema, with the recorded changes and a quality report."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from json import dumps
from pathlib import Path
from typing import Any

from msdscore.errors import InputError
from msdscore.io.targets import check_folder, put_all, refuse_existing
from msdscore.version import __version__
from msdscore_lab.benchmarks.readers.files import RawRow, read_json, records
from msdscore_lab.cococf.build import JUDGE, BuildSettings, build, quarter_model, requested
from msdscore_lab.cococf.changes import SPLITS, Counterfactual
from msdscore_lab.cococf.quality import Quality, judge_quality, section
from msdscore_lab.cococf.sources import image_number, read_sources

_NAMES = {split: f"coco_cf_{split}.json" for split in SPLITS}
_KINDS = {"obj": "object", "att": "attribute", "rel": "relation"}


def read_cococf(paths: Sequence[Path]) -> list[Counterfactual]:
    """Read COCO-CF files of msdscore or of the authors; for a folder, the files of both splits."""
    files = [
        file for path in paths for file in ([path / name for name in _NAMES.values()] if path.is_dir() else [path])
    ]
    pairs: list[Counterfactual] = []
    for file in files:
        if not file.is_file():
            raise InputError(f"{file}: no such file; expected the folder that msdscore cococf build wrote")
        content = read_json(file, (dict, list))
        rows = RawRow("", content, str(file)).get("data") if isinstance(content, dict) else content
        split = next((name for name in SPLITS if name in file.stem), "")
        pairs += [_read_row(row, split) for row in records(rows, file)]
    if not pairs:
        raise InputError(f"{files[0]}: expected pairs of captions, got none")
    return pairs


def _read_row(row: RawRow, split: str) -> Counterfactual:
    image, positive, negative = row.get("image_path"), row.get("caption"), row.get("negative_caption", "neg_caption")
    subset, captioner, change = (row.fields.get(name) for name in ("subset", "captioner", "change"))
    try:
        positive_spans, negative_spans = (
            tuple((int(start), int(end)) for start, end in (change or {}).get(f"{side}_spans", ()))
            for side in ("caption", "negative")
        )
    except (AttributeError, TypeError, ValueError) as error:
        raise InputError(f"{row.where}: expected a change with spans of two character positions ({error})") from error
    return Counterfactual(
        str(positive), str(negative), str(subset or ""), positive_spans, negative_spans,
        image=str(image), source=str(captioner or ""), split=split,
    )  # fmt: skip


def _document(
    pairs: Sequence[Counterfactual], split: str, settings: BuildSettings, made_from: Mapping[str, Any]
) -> dict[str, Any]:
    split_pairs = [pair for pair in pairs if pair.split == split]
    meta = {
        "gen_captions": dict(sorted(Counter(pair.source for pair in split_pairs).items())),
        "subsets": dict(sorted(Counter(pair.subset for pair in split_pairs).items())),
        "split": split,
        "settings": asdict(settings),
        "made_from": dict(made_from),
        "version": __version__,
    }
    data = [
        {
            "id": f"{split}/{index}",
            "image_id": image_number(pair.image),
            "image_path": pair.image,
            "caption": pair.positive,
            "negative_caption": pair.negative,
            "captioner": pair.source,
            "subset": pair.subset,
            "change": {
                "action": pair.subset[:-4],
                "kind": _KINDS[pair.subset[-3:]],
                "removed": pair.removed,
                "inserted": pair.inserted,
                "caption_spans": pair.positive_spans,
                "negative_spans": pair.negative_spans,
            },
        }
        for index, pair in enumerate(split_pairs)
    ]
    return {"meta": meta, "data": data}


def build_files(
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
    check_folder(output, [*_NAMES.values(), "quality.json", "quality.md"], inputs=[*captions, objects, classes])
    refuse_existing([] if overwrite else [output / name for name in _NAMES.values()])
    images = read_sources(captions, objects=objects, classes=classes)
    pairs = build(images, settings, progress=progress)
    judge = quarter_model(images, JUDGE)
    quality = replace(judge_quality(pairs, judge), requested=requested(images, settings))
    made_from = {"captions": [str(source) for source in captions], "objects": objects and str(objects)}
    contents = {name: _document(pairs, split, settings, made_from) for split, name in _NAMES.items()}
    contents["quality.json"] = quality.to_dict()
    files = {name: f"{dumps(value, ensure_ascii=False, indent=1)}\n" for name, value in contents.items()}
    files["quality.md"] = section(quality)
    put_all({output / name: text.encode() for name, text in files.items()}, overwrite=overwrite)
    return quality
