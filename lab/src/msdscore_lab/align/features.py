"""Features of the frozen towers, and the input batch of the loss.

Features are computed on demand, or once for all epochs and stored on disk.
"""

import json
import shutil
from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO, TypeVar

import numpy as np
import torch
from filelock import FileLock
from PIL import Image
from torch import Tensor

from msdscore.core.arrays import Int
from msdscore.core.embeddings import widen
from msdscore.encoders.base import Features, TokenLayout, prepare_all
from msdscore.encoders.hashing import files_sha256
from msdscore.errors import ConfigError, ImageError, RunError
from msdscore.io.files import text_key, write_bytes
from msdscore.text.words import WORD, Span, stem
from msdscore_lab.align.data.samples import Sample, SampleReader, make_view, ordered_results
from msdscore_lab.align.recipe import Recipe
from msdscore_lab.pairs import Pairs
from msdscore_torch.aligned.towers import ImageTower, TextTower, plain

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32, "int32": torch.int32}
_DONE = "cache.json"  # written last, when the cache is complete
_PARTS = ("local", "whole", "pooled")
_GPU_MEMORY_SHARE = 0.6  # largest share of the free GPU memory for cached features

OnProgress = Callable[[int, int], None]
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """Frozen features of a step's samples, and other inputs of the loss terms.

    Captions are ordered by image, the same number per image.
    """

    images: Features | None  # None if the image network is trained too
    texts: Features
    negatives: Features | None
    negative_owner: Int[Tensor, " negatives"]  # index of the caption of every hard negative
    captions: tuple[str, ...]
    items: Int[Tensor, " batch"]
    token_words: Int[Tensor, "captions points"]  # the word id of every token
    image_words: Int[Tensor, "batch words"]  # word ids of all captions of an image; -1: padding

    @property
    def captions_per_image(self) -> int:
        """The number of captions per image."""
        return len(self.texts) // len(self.items)


class TowerFeatures:
    """Features computed on demand, in batches of `chunk` items."""

    def __init__(self, image: ImageTower, text: TextTower, chunk: int) -> None:
        self.image, self.text, self.chunk = image, text, chunk

    def images(self, samples: Sequence[Sample]) -> Features:
        """Features of the samples' views."""
        images = [sample.image for sample in samples if sample.image is not None]
        return join_features(
            [self.image.features(prepare_all(self.image.prepare, part)) for part in chunks(images, self.chunk)]
        )

    def texts(self, samples: Sequence[Sample]) -> Features:
        """Features of the samples' captions."""
        return self.encode([caption for sample in samples for caption in sample.captions])

    def encode(self, texts: Sequence[str]) -> Features:
        """Features of any texts."""
        return join_features([self.text.features(part) for part in chunks(texts, self.chunk)])


def chunks(items: Sequence[Item], size: int) -> list[Sequence[Item]]:
    """Split items into batches of `size`; the last one may be shorter."""
    return [items[start : start + size] for start in range(0, len(items), size)]


def join_features(parts: Sequence[Features]) -> Features:
    """Concatenate batches, padded to the longest item."""
    if len(parts) == 1:
        return parts[0]
    wholes = [part.whole for part in parts if part.whole is not None]
    pooled = [part.pooled for part in parts if part.pooled is not None]
    width = max(part.mask.shape[1] for part in parts)
    return Features(
        torch.cat([widen(part.points, width) for part in parts]),
        torch.cat([widen(part.mask, width) for part in parts]),
        torch.cat(pooled) if pooled else None,
        tuple(layout for part in parts for layout in part.layout),
        join_features(wholes) if wholes else None,
    )


def token_layouts(features: Features) -> tuple[TokenLayout, ...]:
    """The layouts of captions."""
    return tuple(layout for layout in features.layout if isinstance(layout, TokenLayout))


def make_batch(samples: Sequence[Sample], source: TowerFeatures, *, device: torch.device) -> TrainingBatch:
    """Run the frozen towers over samples, without gradients."""
    images, texts = source.images(samples), source.texts(samples)
    captions = tuple(caption for sample in samples for caption in sample.captions)
    negatives = [caption_negatives for sample in samples for caption_negatives in sample.negatives]
    negative_rows = [(row, text) for row, caption_negatives in enumerate(negatives) for text in caption_negatives]
    words = [
        [stem(word) for word in words_at(caption, layout.spans)]
        for caption, layout in zip(captions, token_layouts(texts), strict=True)
    ]
    return TrainingBatch(
        images=images,
        texts=texts,
        negatives=source.encode([text for _, text in negative_rows]) if negative_rows else None,
        negative_owner=torch.tensor([row for row, _ in negative_rows], dtype=torch.int64, device=device),
        captions=captions,
        items=torch.tensor([sample.item for sample in samples], device=device),
        token_words=_word_ids(words, device, width=texts.mask.shape[1]),
        image_words=_word_ids([sorted(sample.words) for sample in samples], device),
    )


def _word_ids(rows: Sequence[Sequence[str]], device: torch.device, *, width: int = 1) -> Int[Tensor, "rows width"]:
    row_length = max(width, *map(len, rows)) if rows else width
    keys = [[*map(text_key, row), *[-1] * (row_length - len(row))] for row in rows]
    return torch.tensor(keys, dtype=torch.int64, device=device)


class MatrixWriter:
    """Appends matrices of one width to a file; `close` writes their offsets."""

    def __init__(self, path: Path, dtype: str) -> None:
        self._path, self._dtype = path, DTYPES[dtype]
        self._file: BinaryIO = path.with_suffix(".bin").open("wb")
        self._ends = [0]
        self._width = 0

    def extend(self, vectors: Tensor, mask: Tensor) -> None:
        """Add the real rows of every item of a padded batch; an item may have no rows.

        Raises:
            ConfigError: If the values overflow the dtype of the store.
        """
        # Converted on the GPU, because the copy to the CPU takes most of the time.
        rows = vectors.detach()[mask].to(self._dtype).cpu().contiguous()
        if rows.is_floating_point() and not bool(torch.isfinite(rows).all()):
            raise ConfigError(f"features overflow {self._dtype}; cache them as bfloat16 or float32 (cache_dtype)")
        self._width = self._width or vectors.shape[2]
        self._file.write(rows.view(torch.uint8).numpy().tobytes())
        self._ends += (self._ends[-1] + mask.sum(dim=1).cumsum(dim=0)).tolist()

    def close(self) -> None:
        """Finish both files."""
        self._file.close()
        np.save(self._path.with_suffix(".npy"), np.array([self._width, *self._ends], dtype=np.int64))


class MatrixStore:
    """Reads matrices by index; the file is memory-mapped, unless `values` are moved to another device."""

    def __init__(self, path: Path, dtype: str) -> None:
        header = np.load(path.with_suffix(".npy"))
        self.width, self.ends = int(header[0]), header[1:]
        count = int(self.ends[-1]) * self.width
        size = path.with_suffix(".bin").stat().st_size
        if size != count * DTYPES[dtype].itemsize:
            raise RunError(f"{path.with_suffix('.bin')}: is truncated; delete the folder and cache the features again")
        values = torch.from_file(str(path.with_suffix(".bin")), shared=False, size=count, dtype=DTYPES[dtype])
        self.values = values.view(-1, self.width) if count else values.view(0, max(1, self.width))

    def take(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return matrices as one padded batch, with its mask, on the device of the store."""
        index = np.asarray(indices)
        starts, heights = self.ends[index], self.ends[index + 1] - self.ends[index]
        offsets = np.arange(heights.max())
        real = offsets < heights[:, None]
        rows = torch.from_numpy(np.where(real, starts[:, None] + offsets, 0)).to(self.values.device)
        mask = torch.from_numpy(real).to(self.values.device)
        if not mask.any():
            return self.values.new_zeros(*mask.shape, self.width), mask
        return self.values[rows].masked_fill_(~mask.unsqueeze(-1), 0), mask


def cache_key(recipe: Recipe, pairs: Pairs, live: TowerFeatures, dtype: str) -> str:
    """Return a hash of everything that can change a cached feature."""
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
    folder: Path, reader: SampleReader, live: TowerFeatures, *, dtype: str, workers: int, on_progress: OnProgress
) -> None:
    """Write the features of all views and captions; incomplete files of a killed run are removed first.

    `workers` threads decode images and draw their views while the towers compute. If several runs need the
    same features, one computes them and the others wait.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):
        if (folder / _DONE).is_file():
            return
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        _check_disk_space(folder, reader, live, dtype)
        bad = _write_features(folder, reader, live, dtype, workers, on_progress)
        state = {"dtype": dtype, "views": reader.recipe.sample.views, "bad": bad}
        write_bytes(folder / _DONE, json.dumps(state).encode(), folder=folder)


def _check_disk_space(folder: Path, reader: SampleReader, live: TowerFeatures, dtype: str) -> None:
    """Raise `ConfigError` if the disk is too small for the cache."""
    probe = live.image.features([live.image.prepare(Image.new("RGB", (64, 64)))])
    values_per_image = probe.points.numel() + (probe.whole.points.numel() if probe.whole is not None else 0)
    needed = values_per_image * DTYPES[dtype].itemsize * len(reader.pairs) * reader.recipe.sample.views
    free = shutil.disk_usage(folder).free
    if needed > 0.95 * free:
        raise ConfigError(
            f"cached features need about {needed / 2**30:.1f} GiB and {folder} has {free / 2**30:.1f} GiB free; "
            "train without a cache, with fewer views, or choose another folder"
        )


def _write_features(
    folder: Path, reader: SampleReader, live: TowerFeatures, dtype: str, workers: int, on_progress: OnProgress
) -> dict[int, str]:
    """Write the features of all pairs; return the errors of unreadable images, by index of the pair."""
    writers: dict[str, MatrixWriter] = {"text-spans": MatrixWriter(folder / "text-spans", "int32")}

    def write(side: str, features: Features) -> None:
        parts = {"local": features, "whole": features.whole, "pooled": None}
        if features.pooled is not None:
            ones = features.mask.new_ones(len(features), 1)
            parts["pooled"] = Features(features.pooled.unsqueeze(1), ones)
        for part, points in parts.items():
            if points is not None:
                name = f"{side}-{part}"
                writers[name] = writers.get(name) or MatrixWriter(folder / name, dtype)
                writers[name].extend(points.points, points.mask)

    bad, start = dict[int, str](), 0
    jobs = [partial(_decode, reader, item) for item in range(len(reader.pairs))]
    with ThreadPoolExecutor(workers) as pool:
        for decoded in ordered_results(pool, chunks(jobs, live.chunk), ahead=1):
            bad |= {item: error for item, (_, error) in enumerate(decoded, start) if error}
            for part in chunks([view for views, _ in decoded for view in views], live.chunk):
                write("image", live.image.features(prepare_all(live.image.prepare, part)))
            pairs = reader.pairs.items[start : start + len(decoded)]
            texts = live.encode([caption for pair in pairs for caption in pair.captions])
            write("text", texts)
            for layout in token_layouts(texts):
                spans = torch.tensor(layout.spans, dtype=torch.int32).reshape(1, -1, 2)
                writers["text-spans"].extend(spans, torch.ones(spans.shape[:2], dtype=torch.bool))
            start += len(decoded)
            on_progress(start, len(reader.pairs))
    for writer in writers.values():
        writer.close()
    return bad


def _decode(reader: SampleReader, item: int) -> tuple[list[Image.Image], str]:
    """Return all views of one pair's image; for an unreadable one grey views, and the error."""
    views, sample = range(reader.recipe.sample.views), reader.recipe.sample
    try:
        return reader.views(item, views), ""
    except ImageError as error:
        grey, captions = Image.new("RGB", (64, 64), "grey"), reader.pairs.items[item].captions
        return [make_view(grey, sample, captions, item=item, view=view) for view in views], str(error)


class CachedFeatures(TowerFeatures):
    """Features from a cache, on the training device; unknown texts are encoded by the text tower."""

    def __init__(self, folder: Path, pairs: Pairs, live: TowerFeatures) -> None:
        super().__init__(live.image, live.text, live.chunk)
        state = json.loads((folder / _DONE).read_text(encoding="utf-8"))
        self.bad = {int(item): str(reason) for item, reason in state["bad"].items()}
        self._views = int(state["views"])
        names = [f"{side}-{part}" for side in ("image", "text") for part in _PARTS]
        self._stores = {
            name: MatrixStore(folder / name, state["dtype"]) for name in names if (folder / f"{name}.npy").is_file()
        }
        self._spans = MatrixStore(folder / "text-spans", "int32")
        # The index of each pair's first caption.
        self._first = [0, *accumulate(len(pair.captions) for pair in pairs.items)]
        device = live.image.device
        # Moved to the GPU if enough memory is free, so that steps do not wait for the disk.
        needed = sum(store.values.nbytes for store in self._stores.values())
        if device.type == "cuda" and needed < _GPU_MEMORY_SHARE * torch.cuda.mem_get_info(device)[0]:
            for store in self._stores.values():
                store.values = store.values.to(device)

    def images(self, samples: Sequence[Sample]) -> Features:
        """Features of the samples' views."""
        return self._features("image", [sample.item * self._views + sample.view for sample in samples], ())

    def texts(self, samples: Sequence[Sample]) -> Features:
        """Features of the samples' captions."""
        indices = [self._first[sample.item] + choice for sample in samples for choice in sample.choices]
        spans, mask = self._spans.take(indices)
        layout = tuple(
            TokenLayout(tuple((int(start), int(end)) for start, end in row[real].tolist()))
            for row, real in zip(spans, mask, strict=True)
        )
        return self._features("text", indices, layout)

    def _features(self, side: str, indices: Sequence[int], layout: tuple[TokenLayout, ...]) -> Features:
        device = self.image.device
        parts = {}
        for part in _PARTS:
            if f"{side}-{part}" in self._stores:
                vectors, mask = self._stores[f"{side}-{part}"].take(indices)
                parts[part] = Features(vectors.to(device).float(), mask.to(device))
        pooled = parts["pooled"].points[:, 0] if "pooled" in parts else None
        return replace(parts["local"], pooled=pooled, layout=layout, whole=parts.get("whole"))


def words_at(caption: str, spans: Sequence[Span]) -> tuple[str, ...]:
    """Return the whole word around each span, in lower case; empty for a span that begins outside of words.

    >>> words_at("A sky-blue Kayak", [(0, 1), (2, 5), (5, 6), (11, 13), (13, 16)])
    ('a', 'sky', '', 'kayak', 'kayak')
    """
    matches = list(WORD.finditer(caption))
    starts = [match.start() for match in matches]
    words = []
    for begin, end in spans:
        # The span of a token may start with the space before its word.
        first = begin + len(caption[begin:end]) - len(caption[begin:end].lstrip())
        nearest = matches[bisect_right(starts, first) - 1] if starts and starts[0] <= first else None
        words.append(nearest.group().casefold() if nearest is not None and first < nearest.end() else "")
    return tuple(words)
