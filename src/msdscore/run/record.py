"""Record of a run over shards: the state of every shard, totals, failed rows, and metrics for Prometheus."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, time
from typing import Any

from msdscore.errors import InputError, RunError, shortened
from msdscore.io import stores
from msdscore.io.arrow import pa, pc, pq
from msdscore.io.files import base_name, is_address, write_bytes
from msdscore.io.shards import ERRORS, FOLDER, STATES, Entry, read_states
from msdscore.io.targets import json_bytes
from msdscore.run.shards import ShardJob, ShardOptions, ShardResult
from msdscore.scoring.spec import ScorerSpec
from msdscore.version import __version__

COUNTS = ("shards", "shards_done", "shards_failed", "rows", "rows_failed", "rows_warned")
FAILURES = pa.schema([(name, pa.string()) for name in ("file", "key", "error")])
LEAST_SECONDS = (1.0, 60.0)  # between two records of a run, in a folder and under an address


@dataclass
class RunRecord:
    """State of the shards of a folder, which every call updates: it is true after a crash, and of all calls together.

    Every finished shard is a line that is appended to `_run/shards.jsonl`; `_run/run.json` has the totals. Nothing is
    written before a shard has a result, and a shard that is refused keeps the state of its scores. `part` is that of an
    array job, such as 3/100, which has files of its own. `metrics` is a text file in the format of Prometheus, written
    after every shard, as its node exporter collects them.
    """

    folder: str
    jobs: Sequence[ShardJob]
    spec: ScorerSpec
    options: ShardOptions
    part: str | None = None
    metrics: Path | None = None
    results: list[ShardResult] = field(default_factory=list)
    _states: dict[str, Entry] | None = None  # by name of the scores
    _totals: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))
    _unwritten: list[Entry] = field(default_factory=list)
    _fresh_rows: int = 0
    _started: float = field(default_factory=monotonic)
    _written: float = -LEAST_SECONDS[1]
    _date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    def add(self, result: ShardResult) -> None:
        """Record the result of a shard."""
        self.results.append(result)
        self._fresh_rows += result.rows if result.fresh else 0
        if result.error is None or not stores.exists(result.output):
            if self._states is None:
                self._open()
            self._set(base_name(result.output), _entry(result))
            if monotonic() - self._written >= LEAST_SECONDS[is_address(self.folder)]:
                self._write_run(finished=False)
            elif not is_address(self.folder):
                self._write_states()
        self.write_metrics()

    @property
    def rate(self) -> float:
        """Rows per second that this call has scored."""
        return self._fresh_rows / max(monotonic() - self._started, 1e-9)

    def totals(self) -> dict[str, Any]:
        """Return the numbers of shards and rows, and of those that failed, of all calls together."""
        earlier = sum(not result.fresh and result.error is None for result in self.results)
        return {
            **self._totals,
            "shards_earlier": earlier,
            "seconds": round(monotonic() - self._started, 3),
            "rows_per_second": round(self.rate, 3),
        }

    def write_metrics(self, *, finished: bool = False) -> None:
        """Write the totals for Prometheus, if requested."""
        if self.metrics is None:
            return
        values = {**self.totals(), "finished": int(finished), "updated_seconds": round(time(), 3)}
        lines = [f"# TYPE msdscore_run_{name} gauge\nmsdscore_run_{name} {value}\n" for name, value in values.items()]
        try:
            write_bytes(self.metrics, "".join(lines).encode(), folder=self.metrics.parent)
        except OSError as error:
            raise RunError(f"{self.metrics}: cannot be written ({error.strerror or error}); omit --metrics") from error

    def finish(self) -> str:
        """Write the totals and `failures.parquet`, unless every shard was refused; return their folder."""
        folder = stores.join(self.folder, FOLDER)
        if self._states is None:
            return folder
        finished = self._totals["shards_done"] == self._totals["shards"]
        self._write_run(finished=finished)
        with (
            stores.writing(self._file("failures", "parquet")) as file,
            pq.ParquetWriter(file, FAILURES, compression="zstd") as writer,
        ):
            for failures in _failures(self.folder, self._states):
                writer.write_table(failures)
        self.write_metrics(finished=finished)
        return folder

    def _open(self) -> None:
        """Read the states that earlier calls wrote, and add the shards of this call."""
        self._states = {}
        for name, entry in read_states([self._file(STATES, "jsonl")]).items():
            self._count(entry, 1)
            self._states[name] = entry
        for job in self.jobs:
            if (name := base_name(job.output)) not in self._states:
                self._set(name, {"scores": name, "source": job.source})

    def _set(self, name: str, entry: Entry) -> None:
        assert self._states is not None
        before = self._states.get(name)
        if entry != before:
            self._count(before or {}, -1 if before else 0)
            self._count(entry, 1)
            self._states[name] = entry
            self._unwritten.append(entry)

    def _count(self, entry: Mapping[str, Any], sign: int) -> None:
        self._totals["shards"] += sign
        self._totals["shards_done"] += sign * ("rows" in entry or "error" in entry)
        self._totals["shards_failed"] += sign * ("error" in entry)
        for name, value in (("rows", "rows"), ("rows_failed", "failed"), ("rows_warned", "warned")):
            self._totals[name] += sign * entry.get(value, 0)

    def _file(self, name: str, suffix: str) -> str:
        part = "" if self.part is None else f"-{self.part.replace('/', '-of-')}"
        return stores.join(stores.join(self.folder, FOLDER), f"{name}{part}.{suffix}")

    def _write_states(self) -> None:
        """Append the new states, in one write; an object of a store is written as a whole."""
        assert self._states is not None
        name, is_local = self._file(STATES, "jsonl"), not is_address(self.folder)
        entries = self._unwritten if is_local else list(self._states.values())
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

    def _write_run(self, *, finished: bool) -> None:
        self._write_states()
        record = {
            "version": __version__,
            "started": self._date,
            "finished": finished,
            **self.totals(),
            "signature": next((result.signature for result in self.results if result.signature), ""),
            "scorer": self.spec.to_dict(),
            "options": self.options.recorded(),
        }
        content = json.dumps(record, ensure_ascii=False, indent=1, default=str) + "\n"
        with stores.writing(self._file("run", "json")) as file:
            file.write(content.encode())
        self._written = monotonic()


def _entry(result: ShardResult) -> Entry:
    entry: Entry = {"scores": base_name(result.output), "source": result.source}
    if result.error is not None:
        return entry | {"error": result.error.removeprefix(f"{shortened(result.source)}: ")}
    return entry | {"rows": result.rows, "failed": result.failed, "warned": result.warned}


def _failures(folder: str, states: Mapping[str, Entry]) -> Iterator[pa.Table]:
    """Yield the failed rows of each shard; a shard that could not be scored is one row without a key."""
    for name, entry in states.items():
        output = stores.join(folder, name)
        if "error" in entry:
            yield pa.table([[entry["source"]], [None], [entry["error"]]], schema=FAILURES)
        elif entry.get("failed"):
            try:
                with stores.reading(output) as file:
                    rows = pq.read_table(file, columns=["key", "error"], filters=pc.field("error").is_valid())
            except FileNotFoundError:  # deleted since
                continue
            except ERRORS as error:
                raise InputError(f"{shortened(output)}: its failed rows cannot be read ({error})") from error
            files = pa.array([entry["source"]] * len(rows), pa.string())
            yield pa.table([files, rows["key"], rows["error"]], schema=FAILURES)
