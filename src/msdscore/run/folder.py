"""Folders of scores: one Parquet file per input shard with facts about it, a manifest, and the record of the run.

The folder `_run` has the manifest, which every worker compares before it writes; the state of every shard, a line that
is appended when it is done; the totals of all calls; and the failed rows.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any

from msdscore.core.evidence import VERDICT_AT
from msdscore.encoders.cached import CacheUse
from msdscore.errors import InputError, RunError, shortened
from msdscore.io import stores
from msdscore.io.arrow import pa, pc, pq
from msdscore.io.files import base_name, is_address, split_query
from msdscore.io.tables import ROW_GROUP
from msdscore.io.targets import REMEDY, RUN_NOTES, check_manifest, dump, json_bytes, parsed
from msdscore.rows.rules import ColumnNames
from msdscore.version import __version__

SIGNATURE_KEY = b"msdscore"  # key of the signature in the schema metadata of every Parquet output
SHARD_KEY = b"msdscore.shard"  # key of the facts below
CHECKED_BYTES = 64 << 20  # local files up to this size are read whenever a shard is reused
FOLDER = "_run"  # within the folder of scores, where readers of Parquet datasets do not look
MANIFEST = "manifest.json"
STATES = "shards"  # beginning of the names of the files with the state of every shard
FAILURES = ("file", "key", "error")  # columns of the failed rows
LEAST_SECONDS = (1.0, 60.0)  # between two records of a run, in a folder and under an address
WRITING_SHARE = 0.05  # of the time, at most, is spent on writing totals
ERRORS = (OSError, ValueError, pa.ArrowException)
Entry = dict[str, Any]  # the state of a shard


@dataclass(frozen=True, slots=True)
class ShardJob:
    """An input shard and the file of its scores."""

    source: str
    output: str


@dataclass(frozen=True, slots=True)
class ShardResult:
    """Outcome of one shard; a `fresh` one was scored by this call, one with an `error` could not be scored at all.

    `cache` has the statistics of a cache on disk.
    """

    source: str
    output: str
    rows: int = 0
    failed: int = 0
    warned: int = 0
    fresh: bool = False
    signature: str = ""
    reasons: tuple[str, ...] = ()
    error: str | None = None
    cache: CacheUse | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is recorded with scores: in the schema of a score shard, or in the notes next to a single file.

    `source` is the name of the input, as it was passed. `manifest` has the signature and everything else that a run
    must share to reuse the scores, `images` a hash of the sizes and times of image files (empty if rows have none).
    `spec` describes the scorer if possible, `signed` is the signature with the number of references.
    """

    source: str = ""
    manifest: Mapping[str, Any] = field(default_factory=dict)
    images: str = ""
    rows: int = 0
    failed: int = 0
    warned: int = 0
    spec: Mapping[str, Any] | None = None
    reasons: tuple[str, ...] = ()  # the first errors of failed rows
    signed: str = ""

    @property
    def signature(self) -> str:
        """The signature of the scores; empty if it is unknown."""
        return str(self.manifest.get("signature", ""))

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the input; empty if it is unknown."""
        return str(self.manifest.get("input", ""))

    @property
    def columns(self) -> ColumnNames:
        """The names of the columns that were read."""
        return ColumnNames(**self.manifest.get("columns", {}))

    @property
    def folder(self) -> Path | None:
        """The folder of images that the input was scored with."""
        return Path(self.manifest["images"]) if self.manifest.get("images") else None

    @property
    def verdict_at(self) -> tuple[float, float]:
        """The limits of verdicts."""
        low, high = self.manifest.get("verdict_at", VERDICT_AT)
        return low, high

    @property
    def is_of_tar(self) -> bool:
        """Whether the input is a tar."""
        return split_query(self.source)[0].lower().endswith(".tar")

    def metadata(self) -> dict[bytes, bytes]:
        """Serialise the facts as schema metadata, deterministically."""
        return {SIGNATURE_KEY: self.signature.encode(), SHARD_KEY: json_bytes(asdict(self), sort_keys=True)}


def shard_facts(schema: pa.Schema) -> Facts | None:
    """Read the facts from a schema; None if it is not that of a score shard.

    >>> shard_facts(pa.schema([("key", pa.string())])) is None
    True
    """
    metadata = schema.metadata or {}
    if SHARD_KEY not in metadata:
        return None
    try:
        facts = json.loads(metadata[SHARD_KEY])
        return Facts(**{**facts, "reasons": tuple(facts["reasons"])})
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"damaged metadata of a score shard: {shortened(str(error))}") from error


def file_facts(path: Path) -> Facts:
    """Read the facts from the notes next to a scored file; empty if there are none."""
    try:
        notes = json.loads(path.with_name(path.name + RUN_NOTES).read_text(encoding="utf-8"))
        facts = Facts(
            source=str(notes.get("source") or ""),
            manifest=notes["manifest"],
            signed=str(notes.get("signed", notes["manifest"]["signature"])),
        )
        _ = facts.columns, facts.folder, facts.verdict_at
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Facts()
    return facts


def read_facts(name: str) -> Facts | None:
    """Read the facts of a score shard; None if the file does not exist.

    Raises:
        RunError: the file exists and is not a score shard.
    """
    if not stores.exists(name):
        return None
    try:
        with stores.reading(name) as file:
            facts = shard_facts(pq.read_schema(file))
    except ERRORS as error:
        raise RunError(f"{shortened(name)}: exists and cannot be read as scores ({error}); {REMEDY}") from error
    if facts is None:
        raise RunError(f"{shortened(name)}: exists and is not a score shard; choose another -o")
    return facts


def is_intact(name: str) -> bool:
    """Whether the checksums of a score shard match; large or remote ones are not read."""
    try:
        if not is_address(name) and Path(name).stat().st_size <= CHECKED_BYTES:
            with stores.reading(name) as file:
                pq.ParquetFile(file, page_checksum_verification=True).read()
    except ERRORS:
        return False
    return True


def write_shard(table: pa.Table, name: str, facts: Facts) -> None:
    """Write a score shard atomically; equal tables and facts result in equal bytes."""
    schema = pa.schema([(entry.name, entry.type) for entry in table.schema], metadata=facts.metadata())
    with stores.writing(name) as file:
        pq.write_table(table.cast(schema), file, compression="zstd", row_group_size=ROW_GROUP, write_page_checksum=True)


def claim_folder(folder: str, manifest: Mapping[str, Any], *, overwrite: bool = False) -> None:
    """Store the manifest of a folder of scores unless it has one; a folder has the scores of one scorer only.

    Raises:
        RunError: the folder has scores of another scorer, or of other options, and `overwrite` is not set.
    """
    name = stores.join(stores.join(folder, FOLDER), MANIFEST)
    before = stores.content(name)
    if before is None or (overwrite and before != dump(manifest)):
        with stores.writing(name, keep=not overwrite) as file:
            file.write(dump(manifest))
        before = stores.content(name)  # of another run, if it was faster
    check_manifest(folder, parsed(name, before or b"{}"), manifest)


def read_states(names: Sequence[str]) -> dict[str, Entry]:
    """Return the last state of every shard, by the name of its scores, in these files, which may be missing."""
    states: dict[str, Entry] = {}
    for name in names:
        for line in (stores.content(name) or b"").splitlines():
            with suppress(ValueError, KeyError, TypeError):  # the last line may be incomplete
                entry = dict(json.loads(line))
                states[str(entry["scores"])] = entry
    return states


def missing_scores(folder: str, present: Collection[str]) -> list[str]:
    """Return one line for each shard of the runs in a folder that has no scores; `present` are names of scores."""
    states = read_states(stores.in_folder(stores.join(folder, FOLDER), f"{STATES}*.jsonl"))
    missing = [entry for name, entry in states.items() if name not in present]
    return [f"{entry['source']}: {entry.get('error', 'not scored')}" for entry in missing]


@dataclass
class RunRecord:
    """State of the shards of a folder, which every call updates: it is true after a crash, and of all calls together.

    Every finished shard is a line that is appended to `_run/shards.jsonl`; `_run/run.json` has the totals. Nothing is
    written before a shard has a result, nor if all shards were finished before: the folder may then be read-only. A
    shard that is refused keeps the state of its scores. `scorer` and `options` are recorded as they are. `part` is that
    of an array job, such as 3/100, which has files of its own.
    """

    folder: str
    jobs: Sequence[ShardJob]
    scorer: Mapping[str, Any]
    options: Mapping[str, Any]
    part: str | None = None
    results: list[ShardResult] = field(default_factory=list)
    _states: dict[str, Entry] | None = None  # by name of the scores
    _unwritten: list[Entry] = field(default_factory=list)
    _is_new: bool = False  # there is more to record than a finished run has recorded
    _fresh_rows: int = 0
    _started: float = field(default_factory=monotonic)
    _next: float = 0.0  # time of the next record
    _date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    def add(self, result: ShardResult) -> None:
        """Record the result of a shard."""
        self.results.append(result)
        self._fresh_rows += result.rows if result.fresh else 0
        if result.error is None or not stores.exists(result.output):
            states = self._opened()
            self._set(states, base_name(result.output), _entry(result))
            self._is_new |= result.fresh
            if not is_address(self.folder):
                self._write_states(states)
        if monotonic() >= self._next:
            began = monotonic()
            self._write_totals(finished=False)
            least = LEAST_SECONDS[is_address(self.folder)]
            self._next = monotonic() + max(least, (monotonic() - began) / WRITING_SHARE)

    @property
    def rate(self) -> float:
        """Rows per second that this call has scored."""
        return self._fresh_rows / max(monotonic() - self._started, 1e-9)

    def totals(self) -> dict[str, Any]:
        """Return the numbers of shards and rows, and of those that failed, of all calls together."""
        states = list((self._states or {}).values())
        return {
            "shards": len(states),
            "shards_done": sum("rows" in entry or "error" in entry for entry in states),
            "shards_failed": sum("error" in entry for entry in states),
            "rows": sum(entry.get("rows", 0) for entry in states),
            "rows_failed": sum(entry.get("failed", 0) for entry in states),
            "rows_warned": sum(entry.get("warned", 0) for entry in states),
            "shards_earlier": sum(not result.fresh and result.error is None for result in self.results),
            "seconds": round(monotonic() - self._started, 3),
            "rows_per_second": round(self.rate, 3),
        }

    def finish(self) -> str:
        """Write the totals and `failures.parquet`, unless every shard was refused; return their folder."""
        if self._states is not None:
            entries = self._states.values()
            if self._is_new:
                schema = pa.schema([(name, pa.string()) for name in FAILURES])
                with (
                    stores.writing(self._file("failures", "parquet")) as file,
                    pq.ParquetWriter(file, schema, compression="zstd") as writer,
                ):
                    for failures in _failures(self.folder, self._states, schema):
                        writer.write_table(failures)
            # Last: of a finished run nothing is missing.
            self._write_totals(finished=all("rows" in entry or "error" in entry for entry in entries))
        return stores.join(self.folder, FOLDER)

    def _opened(self) -> dict[str, Entry]:
        """Return the states of all shards: at first those that earlier calls wrote, and the shards of this call."""
        if self._states is None:
            self._states = read_states([self._file(STATES, "jsonl")])
            self._is_new = not self._was_finished()
            for job in self.jobs:
                if (name := base_name(job.output)) not in self._states:
                    self._set(self._states, name, {"scores": name, "source": job.source})
        return self._states

    def _set(self, states: dict[str, Entry], name: str, entry: Entry) -> None:
        if entry != states.get(name):
            states[name] = entry
            self._unwritten.append(entry)
            self._is_new = True

    def _was_finished(self) -> bool:
        name, failures = self._file("run", "json"), self._file("failures", "parquet")
        try:
            if stores.exists(name) and stores.exists(failures):
                with stores.reading(name) as file:
                    return bool(json.loads(file.read())["finished"])
        except (*ERRORS, KeyError, TypeError):  # of an earlier version, or damaged
            pass
        return False

    def _file(self, name: str, suffix: str) -> str:
        part = "" if self.part is None else f"-{self.part.replace('/', '-of-')}"
        return stores.join(stores.join(self.folder, FOLDER), f"{name}{part}.{suffix}")

    def _write_states(self, states: Mapping[str, Entry]) -> None:
        """Append the new states, in one write; an object of a store is written as a whole."""
        name, is_local = self._file(STATES, "jsonl"), not is_address(self.folder)
        entries = self._unwritten if is_local else list(states.values())
        # An empty line first: the last line of a run that crashed may be incomplete.
        content = b"".join([b"\n", *(json_bytes(entry) + b"\n" for entry in entries)])
        if not self._unwritten:
            return
        self._unwritten = []
        if not is_local:
            with stores.writing(name) as file:
                file.write(content)
            return
        try:
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            with Path(name).open("ab") as file:
                file.write(content)
        except OSError as error:
            raise RunError(f"{shortened(name)}: cannot be written ({error.strerror}); finished shards stay") from error

    def _write_totals(self, *, finished: bool) -> None:
        """Write what is new of states and totals."""
        if self._states is not None and self._is_new:
            self._write_states(self._states)
            record = {
                "version": __version__,
                "started": self._date,
                "finished": finished,
                **self.totals(),
                "signature": next((result.signature for result in self.results if result.signature), ""),
                "scorer": self.scorer,
                "options": self.options,
            }
            content = json.dumps(record, ensure_ascii=False, indent=1, default=str) + "\n"
            with stores.writing(self._file("run", "json")) as file:
                file.write(content.encode())


def _entry(result: ShardResult) -> Entry:
    entry: Entry = {"scores": base_name(result.output), "source": result.source}
    if result.error is not None:
        return entry | {"error": result.error.removeprefix(f"{shortened(result.source)}: ")}
    return entry | {"rows": result.rows, "failed": result.failed, "warned": result.warned}


def _failures(folder: str, states: Mapping[str, Entry], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the failed rows of each shard; a shard that could not be scored is one row without a key."""
    for name, entry in states.items():
        output = stores.join(folder, name)
        if "error" in entry:
            yield pa.table([[entry["source"]], [None], [entry["error"]]], schema=schema)
        elif entry.get("failed"):
            try:
                with stores.reading(output) as file:
                    rows = pq.read_table(file, columns=["key", "error"], filters=pc.field("error").is_valid())
            except FileNotFoundError:  # deleted since
                continue
            except ERRORS as error:
                raise InputError(f"{shortened(output)}: its failed rows cannot be read ({error})") from error
            files = pa.array([entry["source"]] * len(rows), pa.string())
            yield pa.table([files, rows["key"], rows["error"]], schema=schema)
