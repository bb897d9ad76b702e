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
from msdscore.lab.metrics.vlm.model import Answer, Sampling
from msdscore.version import __version__

_EXTRA = "judge"
_AGAIN = frozenset((408, 409, 425, 429, 500, 502, 503, 504, 529))
_REFUSED = frozenset((400, 413, 415, 422))  # errors of one request: a content filter, an image that is too large
_LONGEST_WAIT, _TIMEOUT = 60.0, 120.0  # seconds


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
        require("httpx", extra=_EXTRA)

    def ask(
        self, image: Image, system: str, question: str, sampling: Sampling, *, stopped: Event | None = None
    ) -> Answer:
        """Return one answer; retry after temporary errors unless `stopped`, and raise `RunError` for others."""
        end = stopped or Event()
        tenacity: Any = require("tenacity", extra=_EXTRA)
        tries = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(_PassingError),
            stop=tenacity.stop_after_attempt(self.retries),
            wait=_wait,
            sleep=lambda seconds: end.wait(seconds) if stopped else time.sleep(seconds),
            reraise=True,
        )
        try:
            answer: Answer = tries(self._post, _payload(self.model, image, system, question, sampling), end)
        except _PassingError as error:
            raise RunError(
                f"{self.url} gave no answer in {self.retries} tries ({error}); "
                "answers so far are saved, and the same command resumes from there"
            ) from error
        return answer

    def _post(self, payload: dict[str, Any], stopped: Event) -> Answer:
        if stopped.is_set():
            raise RunError("stopped")
        httpx: Any = require("httpx", extra=_EXTRA)
        headers = {"User-Agent": f"msdscore/{__version__}"}
        if key := os.environ.get(self.key_env):
            headers["Authorization"] = f"Bearer {key}"
        address = f"{self.url.rstrip('/')}/chat/completions"
        try:
            reply = httpx.post(address, json=payload, headers=headers, timeout=_TIMEOUT)
        except httpx.TransportError as error:
            raise _PassingError(str(error) or type(error).__name__) from error
        if reply.is_success:
            try:
                content = reply.json()
                text, used = content["choices"][0]["message"]["content"] or "", content.get("usage") or {}
                # Half a surrogate pair, which JSON can encode, cannot be written to a file.
                said = str(text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
                return Answer(said, int(used.get("prompt_tokens", 0)), int(used.get("completion_tokens", 0)))
            except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
                raise _PassingError(f"no chat completion in the reply ({type(error).__name__})") from error
        said = " ".join(reply.text[:2000].split())[:200]
        if reply.status_code in _AGAIN:
            raise _PassingError(f"{reply.status_code} {said}", reply.headers.get("Retry-After", ""))
        hint = f"; set {self.key_env}" if reply.status_code in (401, 403) else ""
        kind = RefusedQuestionError if reply.status_code in _REFUSED else RunError
        raise kind(f"{self.url} answered {reply.status_code}: {said}{hint}")


class _PassingError(Exception):
    """A temporary error; `wait` is the number of seconds that the server asks us to wait, if any."""

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


def _wait(state: Any) -> float:
    """Return the seconds that the server requests, else twice as many after every attempt."""
    wait = getattr(state.outcome.exception(), "wait", "")
    return min(float(wait) if wait.isdigit() else 2.0 ** (state.attempt_number - 1), _LONGEST_WAIT)
