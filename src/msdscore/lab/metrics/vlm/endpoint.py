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
_REFUSED = frozenset((400, 413, 415, 422))  # this question alone: a content filter, an image that is too large
_LONGEST_WAIT = 60.0


class RefusedQuestionError(RunError):
    """The endpoint does not answer this question; it may answer others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where questions go: `url` ends before `/chat/completions`; the key comes from the environment."""

    url: str
    model: str
    key_env: str = "OPENAI_API_KEY"
    retries: int = 5
    timeout: float = 120.0

    def __post_init__(self) -> None:
        if urlsplit(self.url).scheme not in ("http", "https"):
            raise ConfigError(f"url must begin with http:// or https://, got {self.url!r}")
        if self.retries < 1:
            raise ConfigError(f"retries must be at least 1, got {self.retries}")
        require("httpx", extra=_EXTRA)

    def ask(
        self, image: Image, system: str, question: str, sampling: Sampling, *, stopped: Event | None = None
    ) -> Answer:
        """One answer; passing trouble is waited out unless `stopped`, anything else is a `RunError`."""
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
                "answers so far are kept, and the same command goes on from there"
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
            reply = httpx.post(address, json=payload, headers=headers, timeout=self.timeout)
        except httpx.TransportError as error:
            raise _PassingError(str(error) or type(error).__name__) from error
        if reply.is_success:
            try:
                content = reply.json()
                text, used = content["choices"][0]["message"]["content"] or "", content.get("usage") or {}
                # Half a surrogate pair, which JSON can spell, is no text that a file can contain.
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
    """Trouble that may pass; `asked` is how many seconds the server wants us to wait, if it says so."""

    def __init__(self, reason: str, asked: str = "") -> None:
        super().__init__(reason)
        self.asked = asked


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
    """The seconds that the server asks for, or twice as many after every try."""
    asked = getattr(state.outcome.exception(), "asked", "")
    return min(float(asked) if asked.isdigit() else 2.0 ** (state.attempt_number - 1), _LONGEST_WAIT)
