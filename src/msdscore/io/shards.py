"""Folders of scores: one Parquet file per input shard with facts about it, a manifest, and the state of every shard."""

import json
import struct
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from io import SEEK_END
from typing import Any, BinaryIO

from msdscore.errors import RunError, shortened
from msdscore.io.arrow import pa, pq
from msdscore.io.files import is_address, split_query
from msdscore.io.stores import exists, in_folder, join, reading, writing
from msdscore.io.tables import ROW_GROUP
from msdscore.io.targets import REMEDY, check_manifest, dump, json_bytes, parsed

SIGNATURE_KEY = b"msdscore"  # key of the signature in the schema metadata of every Parquet output
SHARD_KEY = b"msdscore.shard"  # key of the facts below
CHECKSUM_KEY = b"msdscore.checksum"  # key of a hash of all bytes before the footer
CHECKED_BYTES = 64 << 20  # checksums of local files up to this size are verified whenever a shard is reused
FORMAT = 1
FOLDER = "_run"  # within the folder of scores, where readers of Parquet datasets do not look
MANIFEST = "manifest.json"
STATES = "shards"  # beginning of the names of the files with the state of every shard
Entry = dict[str, Any]  # the state of a shard
ERRORS = (OSError, ValueError, pa.ArrowException)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFacts:
    """Metadata of a score shard; `source` is the name of the input, `fingerprint` a hash of its content.

    `images` is a hash of the sizes and times of image files, empty if rows have none. `spec` describes the scorer if
    possible, `options` how rows were read.
    """

    source: str
    fingerprint: str
    images: str = ""
    rows: int
    failed: int
    warned: int
    signature: str
    spec: Mapping[str, Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()  # the first errors of failed rows
    format: int = FORMAT

    @property
    def is_of_tar(self) -> bool:
        """Whether the input is a tar."""
        return split_query(self.source)[0].lower().endswith(".tar")

    def metadata(self) -> dict[bytes, bytes]:
        """Serialise the facts as schema metadata, deterministically."""
        plain = {name: value for name, value in asdict(self).items() if name != "signature"}
        return {SIGNATURE_KEY: self.signature.encode(), SHARD_KEY: json_bytes(plain, sort_keys=True)}


def shard_facts(schema: pa.Schema) -> ShardFacts | None:
    """Read the facts from a schema; None if it is not that of a score shard.

    >>> shard_facts(pa.schema([("key", pa.string())])) is None
    True
    """
    metadata = schema.metadata or {}
    if SHARD_KEY not in metadata:
        return None
    try:
        facts = json.loads(metadata[SHARD_KEY])
        facts["reasons"] = tuple(facts.get("reasons", ()))
        return ShardFacts(signature=metadata.get(SIGNATURE_KEY, b"").decode(), **facts)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"damaged metadata of a score shard: {shortened(str(error))}") from error


def read_facts(name: str) -> ShardFacts | None:
    """Read the facts of a score shard; None if the file does not exist.

    Raises:
        RunError: the file exists and is not a score shard.
    """
    if not exists(name):
        return None
    try:
        with reading(name) as file:
            facts = shard_facts(pq.read_schema(file))
    except ERRORS as error:
        raise RunError(f"{shortened(name)}: exists and cannot be read as scores ({error}); {REMEDY}") from error
    if facts is None:
        raise RunError(f"{shortened(name)}: exists and is not a score shard; choose another -o")
    return facts


def is_intact(name: str, *, verify: bool = False) -> bool:
    """Whether the checksum of a score shard matches; large or remote ones are only read with `verify`."""
    try:
        with reading(name) as file:
            size = file.seek(0, SEEK_END)
            if not verify and (is_address(name) or size > CHECKED_BYTES):
                return True
            checksum = (pq.read_metadata(file).metadata or {}).get(CHECKSUM_KEY)
            file.seek(size - 8)
            footer = 8 + struct.unpack("<I", file.read(4))[0]
            file.seek(0)
            return checksum is None or _hash(file, size - footer) == checksum.decode()
    except ERRORS:
        return False


def _hash(file: BinaryIO, size: int) -> str:
    """Hash the next bytes of a file."""
    digest = blake2b(digest_size=16)
    while size > 0 and (block := file.read(min(size, 1 << 20))):
        digest.update(block)
        size -= len(block)
    return digest.hexdigest()


def write_shard(table: pa.Table, name: str, facts: ShardFacts) -> None:
    """Write a score shard atomically; equal tables and facts result in equal bytes."""
    schema = pa.schema([(entry.name, entry.type) for entry in table.schema], metadata=facts.metadata())
    with writing(name) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        writer.write_table(table.cast(schema), row_group_size=ROW_GROUP)
        file.flush()
        with open(file.name, "rb") as written:  # noqa: PTH123, its own name, under which it was opened
            checksum = _hash(written, file.tell())
        writer.add_key_value_metadata({CHECKSUM_KEY: checksum})


def claim_folder(folder: str, manifest: Mapping[str, Any], *, overwrite: bool = False) -> None:
    """Store the manifest of a folder of scores unless it has one; a folder has the scores of one scorer only.

    Raises:
        RunError: the folder has scores of another scorer, or of other options, and `overwrite` is not set.
    """
    name = join(join(folder, FOLDER), MANIFEST)
    before = _read(name)
    if before is None and not overwrite:
        _check_shards(folder, manifest)
    if before is None or (overwrite and before != dump(manifest)):
        with writing(name, keep=not overwrite) as file:
            file.write(dump(manifest))
        before = _read(name)  # of another run, if it was faster
    check_manifest(folder, parsed(name, before or b"{}"), manifest)


def _read(name: str) -> bytes | None:
    if not exists(name):
        return None
    with reading(name) as file:
        return bytes(file.read())


def _check_shards(folder: str, manifest: Mapping[str, Any]) -> None:
    """Raise if a folder without a manifest has scores of another signature."""
    for name in in_folder(folder, "*.parquet"):
        facts = None
        with suppress(*ERRORS), reading(name) as file:
            facts = shard_facts(pq.read_schema(file))
        if facts is not None:
            check_manifest(name, {"signature": facts.signature}, {"signature": manifest["signature"]})


def read_states(names: Sequence[str]) -> dict[str, Entry]:
    """Return the last state of every shard, by the name of its scores, in these files, which may be missing."""
    states: dict[str, Entry] = {}
    for name in names:
        for line in (_read(name) or b"").splitlines():
            with suppress(ValueError, KeyError, TypeError):  # the last line may be incomplete
                entry = dict(json.loads(line))
                states[str(entry["scores"])] = entry
    return states


def missing_scores(folder: str, present: Collection[str]) -> list[str]:
    """Return one line for each shard of the runs in a folder that has no scores; `present` are names of scores."""
    states = read_states(in_folder(join(folder, FOLDER), f"{STATES}*.jsonl"))
    missing = [entry for name, entry in states.items() if name not in present]
    return [f"{entry['source']}: {entry.get('error', 'not scored')}" for entry in missing]
