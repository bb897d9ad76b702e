"""Build COCO-CF from files and write it with its report."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from json import dumps
from pathlib import Path

from msdscore.cococf.build import BuildSettings, Built, build, model_of, third_of
from msdscore.cococf.files import contents, split_name, written
from msdscore.cococf.quality import Quality, judge_quality, reader_of, section
from msdscore.cococf.sources import read_sources
from msdscore.errors import InputError
from msdscore.io.outputs.targets import put_all, refuse_existing

_JUDGE = 2  # the third of the pictures whose captions no choice was made with


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
    if not overwrite:
        refuse_existing([output / split_name("easy"), output / split_name("hard")])
    pictures = read_sources(captions, objects=objects, classes=classes)
    built = build(pictures, settings, progress=progress)
    if not built.pairs:
        raise InputError(f"none of {built.pictures} pictures has a caption that can be changed; give more of them")
    reader = reader_of(
        model_of(pictures, _JUDGE),
        {one.name: [text.text for text in one.captions] for one in pictures if third_of(one) == _JUDGE},
    )
    quality = judge_quality([written(pair) for pair in built.pairs], reader)
    files = contents(built, {"captions": [str(one) for one in captions], "objects": objects and str(objects)})
    files["quality.json"] = (dumps(quality.to_dict(), ensure_ascii=False, indent=1) + "\n").encode()
    files["quality.md"] = section(quality).encode()
    put_all({output / name: content for name, content in files.items()}, overwrite=overwrite)
    return Published(built, quality)
