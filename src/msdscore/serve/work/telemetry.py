"""What the service counts, in the form that Prometheus reads."""

from typing import Any

from msdscore.errors import require


class Telemetry:
    """Counters of one service; each has a registry of its own, so that two services in one process do not mix."""

    def __init__(self) -> None:
        self._library: Any = require("prometheus_client", extra="serve")
        self._registry = self._library.CollectorRegistry()
        kinds, own = self._library, {"registry": self._registry}
        self._requests = kinds.Counter("msdscore_requests", "Requests answered.", ["path", "status"], **own)
        self._seconds = kinds.Histogram("msdscore_request_seconds", "Time to answer.", ["path"], **own)
        self._batch = kinds.Histogram(
            "msdscore_batch_captions", "Captions per call of the encoder.", buckets=(1, 2, 4, 8, 16, 32, 64), **own
        )
        self._busy = kinds.Counter("msdscore_worker_seconds", "Time that the worker spent on batches.", **own)
        self._failed = kinds.Counter("msdscore_captions_failed", "Captions without a score.", **own)
        self._waiting = kinds.Gauge("msdscore_queue", "Requests that wait.", **own)

    def answered(self, path: str, status: int, seconds: float) -> None:
        """Count one answer."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def worked(self, captions: int, seconds: float) -> None:
        """Count one call of the encoder."""
        self._batch.observe(captions)
        self._busy.inc(seconds)

    def failed(self, captions: int) -> None:
        """Count captions that could not be scored."""
        self._failed.inc(captions)

    def text(self, waiting: int) -> tuple[bytes, str]:
        """All numbers as Prometheus reads them, and the content type of that form."""
        self._waiting.set(waiting)
        return self._library.generate_latest(self._registry), self._library.CONTENT_TYPE_LATEST
