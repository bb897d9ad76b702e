"""A client of any OpenAI-compatible chat endpoint, with retries."""

import base64
import os
import time
from dataclasses import dataclass
from io import BytesIO
from threading import Event
from typing import Any
from urllib.parse import urlsplit

from PIL.Image import Image

from msdscore.errors import ConfigError, RunError, require
from msdscore.version import __version__
from msdscore_lab.metrics.vlm.model import Sampling

_EXTRA = "judge"
_TEMPORARY_STATUS = frozenset((408, 409, 425, 429, 500, 502, 503, 504, 529))
_REJECTED_STATUS = frozenset((400, 413, 415, 422))  # the request was rejected: content filter, or image too large
_MAX_WAIT, _TIMEOUT = 60.0, 120.0  # seconds


class RefusedQuestionError(RunError):
    """The endpoint rejects this request; it may accept others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A chat endpoint: `url` ends before `/chat/completions`; the key is read from the environment."""

    url: str
    model: str
    key_env: str = "OPENAI_API_KEY"
    retries: int = 5

    def __post_init__(self) -> None:
        if urlsplit(self.url).scheme not in ("http", "https"):
            raise ConfigError(f"url must begin with http:// or https://, got {self.url!r}")
        if self.retries < 1:
            raise ConfigError(f"retries must be at least 1, got {self.retries}")
        require("httpx", extra=_EXTRA, of="msdscore-lab")

    def ask(self, image: Image, system: str, question: str, sampling: Sampling, *, stopped: Event | None = None) -> str:
        """Return one answer; retry after temporary errors unless `stopped`, and raise `RunError` for others."""
        stop_event = stopped or Event()
        tenacity: Any = require("tenacity", extra=_EXTRA, of="msdscore-lab")
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(_TemporaryError),
            stop=tenacity.stop_after_attempt(self.retries),
            wait=_wait,
            sleep=lambda seconds: stop_event.wait(seconds) if stopped else time.sleep(seconds),
            reraise=True,
        )
        try:
            answer: str = retrying(self._post, _payload(self.model, image, system, question, sampling), stop_event)
        except _TemporaryError as error:
            raise RunError(
                f"{self.url} did not answer in {self.retries} attempts ({error}); "
                "answers so far are stored; run the same command to resume"
            ) from error
        return answer

    def _post(self, payload: dict[str, Any], stopped: Event) -> str:
        if stopped.is_set():
            raise RunError("stopped")
        httpx: Any = require("httpx", extra=_EXTRA, of="msdscore-lab")
        headers = {"User-Agent": f"msdscore/{__version__}", **self._authorization()}
        address = f"{self.url.rstrip('/')}/chat/completions"
        try:
            reply = httpx.post(address, json=payload, headers=headers, timeout=_TIMEOUT)
        except httpx.TransportError as error:
            raise _TemporaryError(str(error) or type(error).__name__) from error
        if reply.is_success:
            try:
                text = reply.json()["choices"][0]["message"]["content"] or ""
                # JSON can encode an unpaired surrogate, which cannot be written to a file.
                return _joined(text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
                raise _TemporaryError(f"no chat completion in the reply ({type(error).__name__})") from error
        message = " ".join(reply.text[:2000].split())[:200]
        if reply.status_code in _TEMPORARY_STATUS:
            raise _TemporaryError(f"{reply.status_code} {message}", reply.headers.get("Retry-After", ""))
        hint = f"; set {self.key_env}" if reply.status_code in (401, 403) else ""
        kind = RefusedQuestionError if reply.status_code in _REJECTED_STATUS else RunError
        raise kind(f"{self.url} answered {reply.status_code}: {message}{hint}")

    def _authorization(self) -> dict[str, str]:
        key = os.environ.get(self.key_env, "").strip()
        if not (key.isascii() and key.isprintable()):  # the error of a library would contain the key
            raise ConfigError(f"{self.key_env} has characters that a key cannot have, such as line ends; set it again")
        return {"Authorization": f"Bearer {key}"} if key else {}


class _TemporaryError(Exception):
    """A temporary error; `wait` is the `Retry-After` header, if any."""

    def __init__(self, message: str, wait: str = "") -> None:
        super().__init__(message)
        self.wait = wait


def _payload(model: str, image: Image, system: str, question: str, sampling: Sampling) -> dict[str, Any]:
    buffer = BytesIO()
    image.save(buffer, "JPEG", quality=95)
    encoded = f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    content = [
        {"type": "image_url", "image_url": {"url": encoded, "detail": "high"}},
        {"type": "text", "text": question},
    ]
    return {
        "model": model,
        "messages": [
            *([{"role": "system", "content": system}] if system else []),
            {"role": "user", "content": content},
        ],
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.most_tokens,
    }


def _joined(content: Any) -> str:
    """Return the text of a message, which some servers send in parts."""
    parts = [part["text"] for part in content] if isinstance(content, list) else [content]
    return "".join(parts)


def _wait(state: Any) -> float:
    """Return the seconds to wait: as requested by the server, else exponential backoff."""
    wait = getattr(state.outcome.exception(), "wait", "")
    return min(float(wait) if wait.isdecimal() else 2.0 ** (state.attempt_number - 1), _MAX_WAIT)
