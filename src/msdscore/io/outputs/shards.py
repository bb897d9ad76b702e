"""Score shards: one Parquet file of scores per input shard, whose schema says what it holds and how it was made."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from msdscore.errors import RunError, shortened
from msdscore.io.outputs.files import write_tables
from msdscore.io.outputs.manifest import REMEDY
from msdscore.io.stores import exists, reading, writing

SIGNATURE_KEY = b"msdscore"  # of the signature, in the schema metadata of every Parquet output
SHARD_KEY = b"msdscore.shard"  # of the facts below
FORMAT = 1
SCORED, FAILED = "scored", "failed"  # the two values of the column status
ERRORS = (OSError, ValueError, pa.ArrowException)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFacts:
    """What a score shard says of itself; `source` is the input as it was named, `fingerprint` stands for its content.

    `spec` describes the scorer where it can be described, `options` how rows were read.
    """

    source: str
    fingerprint: str
    rows: int
    failed: int
    warned: int
    signature: str
    spec: Mapping[str, Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()  # the first reasons of failed rows
    format: int = FORMAT

    def metadata(self) -> dict[bytes, bytes]:
        """The facts as schema metadata; the same facts are the same bytes."""
        plain = {name: value for name, value in asdict(self).items() if name != "signature"}
        dumped = json.dumps(plain, ensure_ascii=False, sort_keys=True)
        return {SIGNATURE_KEY: self.signature.encode(), SHARD_KEY: dumped.encode()}


def facts_of(schema: pa.Schema) -> ShardFacts | None:
    """The facts in a schema; None where it is not that of a score shard.

    >>> facts_of(pa.schema([("key", pa.string())])) is None
    True
    """
    metadata = schema.metadata or {}
    if SHARD_KEY not in metadata:
        return None
    found = json.loads(metadata[SHARD_KEY])
    found["reasons"] = tuple(found.get("reasons", ()))
    return ShardFacts(signature=metadata.get(SIGNATURE_KEY, b"").decode(), **found)


def read_facts(name: str) -> ShardFacts | None:
    """The facts of a score shard; None where there is no such file.

    Raises:
        RunError: a file is there and is no score shard.
    """
    if not exists(name):
        return None
    try:
        with reading(name) as file:
            facts = facts_of(pq.read_schema(file))
    except ERRORS as error:
        raise RunError(f"{shortened(name)}: exists and cannot be read as scores ({error}); {REMEDY}") from error
    if facts is None:
        raise RunError(f"{shortened(name)}: exists and holds something else than scores; choose another -o")
    return facts


def write_shard(table: pa.Table, name: str, facts: ShardFacts) -> None:
    """Put a score shard in place, whole or not at all; equal tables and facts give equal bytes."""
    metadata = {key.decode(): value.decode() for key, value in facts.metadata().items()}
    try:
        with writing(name) as file:
            write_tables([table], file, ".parquet", metadata=metadata)
    except OSError as error:
        raise RunError(
            f"{shortened(name)}: cannot be written ({error.strerror or error}); choose another -o"
        ) from error
