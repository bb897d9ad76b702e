"""Frozen features on disk, made once and used in every epoch."""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from pathlib import Path

import torch

from msdscore.align.features import LiveFeatures, token_layouts
from msdscore.align.pairs import Pairs
from msdscore.align.recipe import Recipe
from msdscore.align.samples import Sample, SampleReader
from msdscore.align.store import MatrixStore, MatrixWriter
from msdscore.encoders.base import TokenLayout
from msdscore.encoders.specs import plain
from msdscore.encoders.tower_files import files_sha256
from msdscore.encoders.towers import Features, Points
from msdscore.errors import ConfigError, ImageError
from msdscore.io.atomic import replacing

_DONE = "cache.json"  # written last: where it is, the cache is whole
_PARTS = ("local", "whole", "pooled")

Tell = Callable[[int, int], None]


def cache_key(recipe: Recipe, pairs: Pairs, live: LiveFeatures, dtype: str) -> str:
    """One name for everything that can change a cached feature."""
    sample = recipe.sample
    parts = [
        plain(recipe.image),
        plain(recipe.text),
        recipe.heads.pool,
        [
            sample.views,
            sample.crop,
            sample.flip,
            sample.contrast,
            sample.brightness,
            recipe.seed if sample.views > 1 else 0,
        ],
        [pairs.fingerprint, dtype, files_sha256(live.image.files), files_sha256(live.text.files)],
    ]
    return blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=10).hexdigest()


def build_cache(
    folder: Path, reader: SampleReader, live: LiveFeatures, *, dtype: str, tell: Tell | None = None
) -> None:
    """Write the features of all views and captions; what a killed run left is thrown away first."""
    if (folder / _DONE).is_file():
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    _check_room(folder, reader, live, dtype)
    count, views = len(reader.pairs), reader.recipe.sample.views
    pictures, texts = _Side(folder, "image", dtype), _Side(folder, "text", dtype)
    spans = MatrixWriter(folder / "text-spans", "int32")
    bad: dict[int, str] = {}
    for start in range(0, count, live.chunk):
        items = range(start, min(count, start + live.chunk))
        _write_pictures(pictures, reader, live, items, bad)
        _write_texts(texts, spans, live, [caption for n in items for caption in reader.pairs.items[n].captions])
        if tell is not None:
            tell(items.stop, count)
    for writer in (pictures, texts, spans):
        writer.close()
    with replacing(folder / _DONE) as file:
        file.write(json.dumps({"dtype": dtype, "views": views, "bad": bad}).encode())


def _check_room(folder: Path, reader: SampleReader, live: LiveFeatures, dtype: str) -> None:
    """Refuse before hours of work what the disk cannot hold."""
    from PIL import Image

    one = live.image.features([Image.new("RGB", (64, 64))])
    numbers = one.local.vectors.numel() + (one.whole.vectors.numel() if one.whole is not None else 0)
    needed = numbers * (4 if dtype == "float32" else 2) * len(reader.pairs) * reader.recipe.sample.views
    free = shutil.disk_usage(folder).free
    if needed > 0.95 * free:
        raise ConfigError(
            f"cached features need about {needed / 2**30:.1f} GiB and {folder} has {free / 2**30:.1f} GiB free; "
            "train without a cache, with fewer views, or put it elsewhere"
        )


class _Side:
    """Writers for the paths that one tower gives."""

    def __init__(self, folder: Path, name: str, dtype: str) -> None:
        self._make = partial(_writer, folder, name, dtype)
        self._writers: dict[str, MatrixWriter] = {}

    def append(self, features: Features) -> None:
        """Add all items of a batch, without their padding."""
        for row in range(len(features)):
            self._put("local", features.local.vectors[row][features.local.mask[row]])
            if features.whole is not None:
                self._put("whole", features.whole.vectors[row][features.whole.mask[row]])
            if features.pooled is not None:
                self._put("pooled", features.pooled[row : row + 1])

    def _put(self, part: str, matrix: torch.Tensor) -> None:
        if part not in self._writers:
            self._writers[part] = self._make(part)
        self._writers[part].append(matrix)

    def close(self) -> None:
        """Finish all files."""
        for writer in self._writers.values():
            writer.close()


def _writer(folder: Path, name: str, dtype: str, part: str) -> MatrixWriter:
    return MatrixWriter(folder / f"{name}-{part}", dtype)


def _write_pictures(
    side: _Side, reader: SampleReader, live: LiveFeatures, items: Sequence[int], bad: dict[int, str]
) -> None:
    """All views of some pairs; a bad picture leaves a grey one in its place and is marked."""
    from PIL import Image

    for item in items:
        try:
            picture = reader.open(item)
        except ImageError as error:
            bad[item] = str(error)
            picture = Image.new("RGB", (64, 64), "grey")
        views = [reader.view(picture, item, view) for view in range(reader.recipe.sample.views)]
        side.append(live.image.features(views))


def _write_texts(side: _Side, spans: MatrixWriter, live: LiveFeatures, captions: Sequence[str]) -> None:
    features = live.negatives(captions)
    side.append(features)
    for layout in token_layouts(features):
        spans.append(torch.tensor(layout.spans, dtype=torch.int32).reshape(-1, 2))


@dataclass(frozen=True, slots=True)
class CachedFeatures:
    """Features from a cache, moved to the device of the training; unknown texts go to the text tower."""

    folder: Path
    pairs: Pairs
    live: LiveFeatures
    views: int = field(init=False)
    bad: dict[int, str] = field(init=False)
    _stores: dict[str, MatrixStore] = field(init=False, repr=False)
    _first: list[int] = field(init=False, repr=False)  # number of each pair's first caption

    def __post_init__(self) -> None:
        state = json.loads((self.folder / _DONE).read_text(encoding="utf-8"))
        names = [f"{side}-{part}" for side in ("image", "text") for part in _PARTS]
        found = {
            name: MatrixStore(self.folder / name, state["dtype"])
            for name in names
            if (self.folder / f"{name}.npy").is_file()
        }
        found["text-spans"] = MatrixStore(self.folder / "text-spans", "int32")
        first, total = [], 0
        for pair in self.pairs.items:
            first.append(total)
            total += len(pair.captions)
        object.__setattr__(self, "views", int(state["views"]))
        object.__setattr__(self, "bad", {int(item): reason for item, reason in state["bad"].items()})
        object.__setattr__(self, "_stores", found)
        object.__setattr__(self, "_first", first)

    def usable(self) -> frozenset[int]:
        """Numbers of the pairs whose picture could be read."""
        return frozenset(range(len(self.pairs))) - self.bad.keys()

    def images(self, samples: Sequence[Sample]) -> Features:
        """Features of the samples' views."""
        numbers = [sample.item * self.views + sample.view for sample in samples]
        return self._features("image", numbers, ())

    def texts(self, samples: Sequence[Sample]) -> Features:
        """Features of the samples' captions."""
        numbers = [self._first[sample.item] + choice for sample in samples for choice in sample.choices]
        spans, mask = self._stores["text-spans"].take(numbers)
        layout = tuple(
            TokenLayout(tuple((int(a), int(b)) for a, b in row[real].tolist()))
            for row, real in zip(spans, mask, strict=True)
        )
        return self._features("text", numbers, layout)

    def negatives(self, texts: Sequence[str]) -> Features:
        """Features of any texts."""
        return self.live.negatives(texts)

    def _features(self, side: str, numbers: Sequence[int], layout: tuple[TokenLayout, ...]) -> Features:
        local = self._points(f"{side}-local", numbers)
        whole = self._points(f"{side}-whole", numbers) if f"{side}-whole" in self._stores else None
        pooled = self._points(f"{side}-pooled", numbers) if f"{side}-pooled" in self._stores else None
        return Features(local, whole, None if pooled is None else pooled.vectors[:, 0], layout)

    def _points(self, name: str, numbers: Sequence[int]) -> Points:
        vectors, mask = self._stores[name].take(numbers)
        device = self.live.image.device
        return Points(vectors.to(device).float(), mask.to(device))
