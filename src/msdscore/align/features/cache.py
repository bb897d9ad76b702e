"""Frozen features on disk, made once and used in every epoch."""

import json
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from pathlib import Path

import torch
from PIL import Image

from msdscore.align.data.pairs import Pairs
from msdscore.align.data.samples import Sample, SampleReader
from msdscore.align.features.live import LiveFeatures, chunks, token_layouts
from msdscore.align.features.matrices import MatrixStore, MatrixWriter
from msdscore.align.recipe import Recipe
from msdscore.encoders.aligned.specs import plain
from msdscore.encoders.aligned.towers.base import Features, Points
from msdscore.encoders.base import TokenLayout, prepare_all
from msdscore.encoders.loading.hashing import files_sha256
from msdscore.errors import ConfigError, ImageError
from msdscore.io.atomic import in_turn, replacing

_DONE = "cache.json"  # written last: where it is, the cache is whole
_PARTS = ("local", "whole", "pooled")
_SHARE = 0.6  # of the free memory of a GPU that cached features may take

Tell = Callable[[int, int], None]


def cache_key(recipe: Recipe, pairs: Pairs, live: LiveFeatures, dtype: str) -> str:
    """One name for everything that can change a cached feature."""
    sample = recipe.sample
    parts = [
        plain(recipe.image),
        plain(recipe.text),
        recipe.heads.pool,
        [sample.views, sample.crop, sample.flip, sample.contrast, sample.brightness],
        [pairs.fingerprint, dtype, files_sha256(live.image.files), files_sha256(live.text.files)],
    ]
    return blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=10).hexdigest()


def build_cache(
    folder: Path, reader: SampleReader, live: LiveFeatures, *, dtype: str, workers: int = 1, tell: Tell | None = None
) -> None:
    """Write the features of all views and captions; what a killed run left is thrown away first.

    `workers` threads read pictures and draw their views while the towers work. Of several runs that want the same
    features one makes them, and the others wait for it.
    """
    with in_turn(folder.with_suffix(".lock")):
        if not (folder / _DONE).is_file():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            _write_cache(folder, reader, live, dtype=dtype, workers=workers, tell=tell)


def _write_cache(
    folder: Path, reader: SampleReader, live: LiveFeatures, *, dtype: str, workers: int, tell: Tell | None
) -> None:
    _check_room(folder, reader, live, dtype)
    count, views = len(reader.pairs), reader.recipe.sample.views
    pictures, texts = _Side(folder, "image", dtype), _Side(folder, "text", dtype)
    spans = MatrixWriter(folder / "text-spans", "int32")
    bad: dict[int, str] = {}
    with ThreadPoolExecutor(workers) as pool:
        for start, seen in _ahead(pool, partial(_seen, reader), count, live.chunk):
            bad |= {item: one.reason for item, one in enumerate(seen, start) if one.reason}
            for part in chunks([view for one in seen for view in one.views], live.chunk):
                pictures.append(live.image.features(prepare_all(live.image, part)))
            own = reader.pairs.items[start : start + len(seen)]
            _write_texts(texts, spans, live, [caption for pair in own for caption in pair.captions])
            if tell is not None:
                tell(start + len(seen), count)
    for writer in (pictures, texts, spans):
        writer.close()
    with replacing(folder / _DONE) as file:
        file.write(json.dumps({"dtype": dtype, "views": views, "bad": bad}).encode())


def _check_room(folder: Path, reader: SampleReader, live: LiveFeatures, dtype: str) -> None:
    """Refuse before hours of work what the disk cannot hold."""
    one = live.image.features([live.image.prepare(Image.new("RGB", (64, 64)))])
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
        self._put("local", features.local)
        if features.whole is not None:
            self._put("whole", features.whole)
        if features.pooled is not None:
            ones = features.local.mask.new_ones(len(features), 1)
            self._put("pooled", Points(features.pooled.unsqueeze(1), ones))

    def _put(self, part: str, points: Points) -> None:
        if part not in self._writers:
            self._writers[part] = self._make(part)
        self._writers[part].extend(points.vectors, points.mask)

    def close(self) -> None:
        """Finish all files."""
        for writer in self._writers.values():
            writer.close()


def _writer(folder: Path, name: str, dtype: str, part: str) -> MatrixWriter:
    return MatrixWriter(folder / f"{name}-{part}", dtype)


@dataclass(frozen=True, slots=True)
class _ReadPicture:
    """All views of one pair's picture; a bad picture leaves a grey one in its place and says why."""

    views: tuple[Image.Image, ...]
    reason: str = ""


def _seen(reader: SampleReader, item: int) -> _ReadPicture:
    reason = ""
    try:
        picture = reader.open(item)
    except ImageError as error:
        picture, reason = Image.new("RGB", (64, 64), "grey"), str(error)
    return _ReadPicture(tuple(reader.view(picture, item, view) for view in range(reader.recipe.sample.views)), reason)


def _ahead(
    pool: ThreadPoolExecutor, read: Callable[[int], _ReadPicture], count: int, size: int
) -> Iterator[tuple[int, list[_ReadPicture]]]:
    """Pictures of `size` pairs at a time, in order; the next ones are read meanwhile."""
    waiting: deque[tuple[int, list[Future[_ReadPicture]]]] = deque()
    for start in range(0, count, size):
        waiting.append((start, [pool.submit(read, item) for item in range(start, min(count, start + size))]))
        if len(waiting) > 1:
            first, futures = waiting.popleft()
            yield first, [future.result() for future in futures]
    for first, futures in waiting:
        yield first, [future.result() for future in futures]


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
        self._load()

    def _load(self) -> None:
        """Keep everything on the GPU where it takes little enough of what is free: steps then wait for no disk."""
        device = self.live.image.device
        if device.type == "cuda" and sum(store.nbytes for store in self._stores.values()) < _SHARE * _free(device):
            for name, store in self._stores.items():
                if name != "text-spans":
                    store.load(device)

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


def _free(device: torch.device) -> int:
    free, _ = torch.cuda.mem_get_info(device)
    return int(free)
