"""The Parquet file of scores: reusable columns, and the remaining metrics of a new run."""

import json
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
from msdscore_lab.benchmarks.base import Item, image_key, image_names
from msdscore_lab.benchmarks.results.result import belongs_to

_KEY = b"msdscore.run"


@dataclass(frozen=True, slots=True)
class Reusable:
    """Columns of an earlier run, the labels of the remaining metrics, and the signatures of the stored ones."""

    columns: Mapping[str, list[Any]]
    remaining: tuple[str, ...]
    signatures: Mapping[str, str]


def images_fingerprint(items: Sequence[Item]) -> str:
    """Return a hash of the sizes and times of all image files, or of the tables that images are in."""
    names, images = image_names(item.image for item in items), {image_key(item.image): item.image for item in items}
    files = [image if isinstance(image, Path) else image.file for image in images.values()]
    with ThreadPoolExecutor(8) as pool:  # files may be on a slow or remote disk
        states = dict(zip(map(names.__getitem__, images), pool.map(size_and_time, files), strict=True))
    return blake2b(json.dumps(states, sort_keys=True).encode(), digest_size=16).hexdigest()


def find_reusable(path: Path, base: Mapping[str, Any], signatures: Mapping[str, str]) -> Reusable:
    """Return the reusable columns and the remaining ones of the requested metrics (label and signature).

    Raises:
        RunError: If the file belongs to another benchmark, other settings or other images.
    """
    if not path.exists():
        return Reusable({}, tuple(signatures), {})
    table, metadata = _read(path, base)
    known: dict[str, str] = metadata["metrics"]
    for label, signature in signatures.items():
        if known.get(label, signature) != signature:
            raise RunError(f"{path}: {label} was scored as {known[label]}, now {signature}; {REMEDY}")
    names = [name for name in table.column_names if any(belongs_to(name, label) for label in known)]
    columns = {name: table.column(name).to_pylist() for name in ("error", *names)}
    return Reusable(columns, tuple(label for label in signatures if label not in known), known)


def _read(path: Path, base: Mapping[str, Any]) -> tuple[pa.Table, dict[str, Any]]:
    """Read a table of scores with its settings; raise `RunError` if it is damaged or belongs to another run."""
    try:
        table = pq.read_table(path)
        metadata: dict[str, Any] = json.loads(table.schema.metadata[_KEY])
    except (OSError, TypeError, KeyError, ValueError) as error:
        raise RunError(f"{path}: is damaged; {REMEDY}") from error
    if metadata["base"].get("images") != base["images"]:
        raise RunError(f"{path}: images were added, removed or replaced since they were scored; {REMEDY}")
    check_manifest(path, metadata["base"], base)
    if len(table) != base["count"] or "error" not in table.column_names:
        raise RunError(f"{path}: has other rows or columns than the run wrote; {REMEDY}")
    return table, metadata


def write(path: Path, table: pa.Table, base: Mapping[str, Any], signatures: Mapping[str, str]) -> None:
    """Write the table atomically, with its settings as metadata."""
    settings = {"base": base, "metrics": dict(signatures)}
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
