"""The Parquet file of scores: reusable rows and columns, and the remaining work of a new run."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from msdscore.errors import RunError
from msdscore.io.files import replacing, size_and_time
from msdscore.io.targets import REMEDY, check_manifest
from msdscore_lab.benchmarks.base import Image, Item, cluster, image_key, image_names, wrong_image_by_key
from msdscore_lab.benchmarks.results.result import ScorerRecord, belongs_to

_KEY = b"msdscore.run"


# By item: the name of its wrong image, and a stamp of both images' files.
Sources = list[tuple[str, str]]
# Indices of items, and labels of the metrics that have to score them.
MetricTask = tuple[tuple[int, ...], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Reusable:
    """Columns of an earlier run to reuse (None for rows that are not reused), and the remaining tasks."""

    columns: Mapping[str, list[Any]]
    tasks: tuple[MetricTask, ...]
    signatures: Mapping[str, str]


def sources_of(items: Sequence[Item], *, seed: int, control: bool) -> Sources:
    """Return the name of the wrong image and the stamp of the image files of every item."""
    names = image_names(item.image for item in items)
    images = {image_key(item.image): item.image for item in items}
    with ThreadPoolExecutor(8) as pool:  # files may be on a slow or remote disk
        stamps = dict(zip(images, pool.map(image_state, images.values()), strict=True))
    wrong_images = wrong_image_by_key(items, seed) if control else {}
    wrong_key = {key: image_key(wrong_images[key]) if control else "" for key in images}
    by_image = {
        key: (names.get(wrong_key[key], ""), f"{stamps[key]} {stamps.get(wrong_key[key], '')}") for key in images
    }
    stamps_of_cluster: dict[str, dict[str, None]] = defaultdict(
        dict
    )  # scores of one prompt depend on all of its images
    for item in items:
        stamps_of_cluster[cluster(item)][by_image[image_key(item.image)][1]] = None
    return [(by_image[image_key(item.image)][0], " ".join(stamps_of_cluster[cluster(item)])) for item in items]


def image_state(image: Image) -> str:
    """Return a stamp of an image: size and time of its file, or of the table that it is in."""
    return size_and_time(image if isinstance(image, Path) else image.file)


def find_reusable(path: Path, base: Mapping[str, Any], signatures: Mapping[str, str], sources: Sources) -> Reusable:
    """Return the reusable columns and the remaining tasks for the requested metrics (label and signature).

    Rows, including failed ones, are reused if their image files have not changed.

    Raises:
        RunError: If the file belongs to another benchmark or other settings.
    """
    all_rows = tuple(range(len(sources)))
    if not path.exists():
        return Reusable({}, ((all_rows, tuple(signatures)),), {})
    table, metadata = _read(path, base, len(sources))
    known: dict[str, str] = metadata["metrics"]
    for label, signature in signatures.items():
        if known.get(label, signature) != signature:
            raise RunError(f"{path}: {label} was scored as {known[label]}, now {signature}; {REMEDY}")
    earlier = zip(*(table.column(name).to_pylist() for name in ("stranger", "stamp")), strict=True)
    unchanged = [then == now for then, now in zip(earlier, sources, strict=True)]
    stale = tuple(row for row in all_rows if not unchanged[row])
    new = tuple(label for label in signatures if label not in known)
    tasks = ((stale, tuple(signatures)), (tuple(row for row in all_rows if unchanged[row]), new))
    labels = {label: sign for label, sign in known.items() if label in signatures or not stale}
    names = [name for name in table.column_names if any(belongs_to(name, label) for label in labels)]
    columns = {}
    for name in ("error", *names):
        values = zip(table.column(name).to_pylist(), unchanged, strict=True)
        columns[name] = [value if reused else None for value, reused in values]
    return Reusable(columns, tuple(task for task in tasks if all(task)), labels)


def _read(path: Path, base: Mapping[str, Any], count: int) -> tuple[pa.Table, dict[str, Any]]:
    """Read a table of scores with its settings; raise `RunError` if it is damaged or belongs to another run."""
    try:
        table = pq.read_table(path)
        metadata: dict[str, Any] = json.loads(table.schema.metadata[_KEY])
    except (OSError, TypeError, KeyError, ValueError) as error:
        raise RunError(f"{path}: is damaged; {REMEDY}") from error
    check_manifest(path, metadata["base"], base)
    if len(table) != count or not {"error", "stranger", "stamp"} <= set(table.column_names):
        raise RunError(f"{path}: has other rows or columns than the run wrote; {REMEDY}")
    return table, metadata


def recorded_scorer(path: Path, stamp: str | None) -> ScorerRecord | None:
    """Return the scorer of an earlier run with the same stamp; None if it is unknown."""
    if stamp is None or not is_score_file(path):
        return None
    stored = json.loads(pq.read_schema(path).metadata[_KEY]).get("scorer") or {}
    return ScorerRecord(**stored["record"]) if stored.get("stamp") == stamp else None


def write(
    path: Path,
    table: pa.Table,
    base: Mapping[str, Any],
    signatures: Mapping[str, str],
    scorer: Mapping[str, Any] | None = None,
) -> None:
    """Write the table atomically, with its settings as metadata."""
    settings = {"base": base, "metrics": dict(signatures), "scorer": scorer}
    content = json.dumps(settings, ensure_ascii=False).encode()
    metadata = {b"msdscore": " ".join(signatures.values()).encode(), _KEY: content}
    try:
        with replacing(path) as file:
            pq.write_table(table.replace_schema_metadata(metadata), file, compression="zstd")
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error.strerror or error}); finished parts are kept") from error


def is_score_file(path: Path) -> bool:
    """Return whether a Parquet file was written by a run, with its settings as metadata."""
    try:
        return _KEY in (pq.read_schema(path).metadata or {})
    except (OSError, ValueError):
        return False


def fingerprint(items: Sequence[Item]) -> str:
    """Return a hash of all items: ids, image names, captions, references."""
    digest, names = blake2b(digest_size=16), image_names(item.image for item in items)
    for item in items:
        content = "\n".join([item.id, names[image_key(item.image)], *item.captions, *item.references, ""])
        digest.update(content.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()
