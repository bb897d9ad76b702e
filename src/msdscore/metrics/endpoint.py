"""A client of any OpenAI-compatible chat endpoint, with retries, on the standard library alone."""

import base64
import json
import os
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from io import BytesIO
from typing import Any
from urllib.parse import urlsplit

from PIL.Image import Image

from msdscore.errors import ConfigError, RunError
from msdscore.metrics.vlm import Answer, Sampling
from msdscore.version import __version__

_AGAIN = frozenset((408, 409, 425, 429, 500, 502, 503, 504, 529))
_LONGEST_WAIT = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where questions go: `url` ends before `/chat/completions`; the key comes from the environment."""

    url: str
    model: str
    key_env: str = "OPENAI_API_KEY"
    retries: int = 5
    timeout: float = 120.0
    first_wait: float = 1.0

    def __post_init__(self) -> None:
        if urlsplit(self.url).scheme not in ("http", "https"):
            raise ConfigError(f"url must begin with http:// or https://, got {self.url!r}")
        if self.retries < 1:
            raise ConfigError(f"retries must be at least 1, got {self.retries}")

    def ask(self, image: Image, system: str, question: str, sampling: Sampling) -> Answer:
        """One answer; passing trouble is waited out, anything else is a `RunError`."""
        body = json.dumps(_payload(self.model, image, system, question, sampling)).encode()
        for attempt in range(self.retries):
            try:
                return _answer(self._post(body))
            except (urllib.error.URLError, TimeoutError, ConnectionError, _BadReplyError) as error:
                reason, wait = self._judge(error), _wait(error, self.first_wait * 2**attempt)
            if attempt + 1 < self.retries:
                time.sleep(wait)
        raise RunError(
            f"{self.url} gave no answer in {self.retries} tries ({reason}); "
            "answers so far are kept, and the same command goes on from there"
        )

    def _post(self, body: bytes) -> Any:
        headers = {"Content-Type": "application/json", "User-Agent": f"msdscore/{__version__}"}
        if key := os.environ.get(self.key_env):
            headers["Authorization"] = f"Bearer {key}"
        request = urllib.request.Request(f"{self.url.rstrip('/')}/chat/completions", body, headers)
        with urllib.request.urlopen(request, timeout=self.timeout) as reply:
            return json.loads(reply.read())

    def _judge(self, error: Exception) -> str:
        """The reason in a few words; trouble that will not pass is raised at once."""
        if isinstance(error, urllib.error.HTTPError):
            with error:
                said = " ".join(error.read(2000).decode("utf-8", "replace").split())[:200]
            if error.code not in _AGAIN:
                hint = f"; set {self.key_env}" if error.code in (401, 403) else ""
                raise RunError(f"{self.url} answered {error.code}: {said}{hint}")
            return f"{error.code} {said}"
        return str(getattr(error, "reason", error)) or type(error).__name__


class _BadReplyError(Exception):
    """A reply that is no chat completion."""


def _payload(model: str, image: Image, system: str, question: str, sampling: Sampling) -> dict[str, Any]:
    buffer = BytesIO()
    image.save(buffer, "JPEG", quality=95)
    picture = f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    content = [
        {"type": "image_url", "image_url": {"url": picture, "detail": "high"}},
        {"type": "text", "text": question},
    ]
    return {
        "model": model,
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": content}],
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.most_tokens,
    }


def _answer(reply: Any) -> Answer:
    try:
        text = reply["choices"][0]["message"]["content"] or ""
        used = reply.get("usage") or {}
        return Answer(str(text), int(used.get("prompt_tokens", 0)), int(used.get("completion_tokens", 0)))
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise _BadReplyError(f"no chat completion in the reply ({type(error).__name__})") from error


def _wait(error: Exception, otherwise: float) -> float:
    """The seconds that the server asks for, or those of our own rule."""
    asked = error.headers.get("Retry-After", "") if isinstance(error, urllib.error.HTTPError) else ""
    return min(float(asked) if asked.isdigit() else otherwise, _LONGEST_WAIT)
