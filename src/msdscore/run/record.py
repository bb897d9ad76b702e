"""Record of a run over shards: totals, failed rows, and metrics for Prometheus."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, time
from typing import Any

from msdscore.errors import InputError, RunError, shortened
from msdscore.io import stores
from msdscore.io.arrow import pa, pq
from msdscore.io.files import write_bytes
from msdscore.io.shards import ERRORS, FAILED
from msdscore.run.shards import ShardOptions, ShardResult
from msdscore.scoring.spec import ScorerSpec
from msdscore.version import __version__

FOLDER = "_run"  # within the folder of scores, where readers of Parquet datasets do not look
FAILURES = pa.schema([(name, pa.string()) for name in ("file", "key", "error")])


@dataclass
class RunRecord:
    """Totals of a run over shards so far; rows per second count those that this run scored.

    `part` is that of an array job, such as 3/100, which has files of its own. `metrics` is a text file in the format
    of Prometheus, written after every shard, as its node exporter collects them.
    """

    folder: str
    shards: int
    part: str | None = None
    metrics: Path | None = None
    results: list[ShardResult] = field(default_factory=list)
    _started: float = field(default_factory=monotonic)
    _date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    def add(self, result: ShardResult) -> None:
        """Add a finished shard, and write the metrics."""
        self.results.append(result)
        self.write_metrics()

    @property
    def rate(self) -> float:
        """Rows per second that this run has scored."""
        return sum(result.rows for result in self.results if result.fresh) / max(monotonic() - self._started, 1e-9)

    def totals(self) -> dict[str, Any]:
        """Return the numbers of shards and rows so far, and of those that failed."""
        return {
            "shards": self.shards,
            "shards_done": len(self.results),
            "shards_failed": sum(result.error is not None for result in self.results),
            "shards_earlier": sum(not result.fresh and result.error is None for result in self.results),
            "rows": sum(result.rows for result in self.results),
            "rows_failed": sum(result.failed for result in self.results),
            "rows_warned": sum(result.warned for result in self.results),
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

    def write(self, spec: ScorerSpec, options: ShardOptions) -> str:
        """Write `run.json` and `failures.parquet`; return their folder."""
        folder = stores.join(self.folder, FOLDER)
        suffix = "" if self.part is None else f"-{self.part.replace('/', '-of-')}"
        is_finished = len(self.results) == self.shards
        record = {
            "version": __version__,
            "started": self._date,
            "finished": is_finished,
            **self.totals(),
            "signature": next((result.signature for result in self.results if result.signature), ""),
            "scorer": spec.to_dict(),
            "options": options.recorded(),
        }
        content = json.dumps(record, ensure_ascii=False, indent=1, default=str) + "\n"
        with stores.writing(stores.join(folder, f"run{suffix}.json")) as file:
            file.write(content.encode())
        with (
            stores.writing(stores.join(folder, f"failures{suffix}.parquet")) as file,
            pq.ParquetWriter(file, FAILURES, compression="zstd") as writer,
        ):
            for failures in _failures(self.results):
                writer.write_table(failures)
        self.write_metrics(finished=is_finished)
        return folder


def _failures(results: Sequence[ShardResult]) -> Iterator[pa.Table]:
    """Yield the failed rows of each shard; a shard that could not be scored is one row without a key."""
    for result in results:
        if result.error is not None:
            yield pa.table([[result.source], [None], [result.error]], schema=FAILURES)
        elif result.failed:
            try:
                with stores.reading(result.output) as file:
                    rows = pq.read_table(file, columns=["key", "error"], filters=[("status", "=", FAILED)])
            except ERRORS as error:
                raise InputError(f"{shortened(result.output)}: its failed rows cannot be read ({error})") from error
            files = pa.array([result.source] * len(rows), pa.string())
            yield pa.table([files, rows["key"], rows["error"]], schema=FAILURES)
