"""Rewards for training captioners: functions in the form that TRL's `GRPOTrainer` calls, here or over HTTP."""

import json
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any, Literal
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request as WebRequest
from urllib.request import urlopen

from msdscore.errors import ConfigError, RowError, RunError, unknown_name
from msdscore.integrations.completions import Completions, after_thinking, completions_of
from msdscore.integrations.scorers import ScorerLike, shared_scorer
from msdscore.io.images import ImageSource, open_image
from msdscore.scorer import Scorer
from msdscore.scoring.config import Paper
from msdscore.scoring.measurement import Numbers
from msdscore.scoring.spec import DEFAULT_ENCODER, ScorerSpec
from msdscore.scoring.stream import Request, score_requests

By = Literal["msd", "match"]
Rewards = list[float | None]

_AGAIN = frozenset((429, 500, 502, 503, 504))
_BODY = 16 << 20  # characters of pictures per request; the service takes 32 MiB
_LARGEST = 31 << 20  # characters of one picture; it must find room in a request
_PICTURES, _CAPTIONS = 32, 64  # per request and per picture; the service takes 64 of each
_WATCHED = ("msd", "precision", "information", "coverage", "support", "length")


class MSDReward:
    """A reward function that scores completions as captions of their pictures.

    Given a name or a `ScorerSpec`, it is length-neutral: under the paper's form the weight between coverage and support
    is fixed, since a policy would learn to move a weight that depends on the length. A `Scorer` is used as it is. `by`
    is the number handed out, `words` how many of the least supported words go to the trainer's table of completions,
    `column` the dataset's column of images where it is not `image` or `images`, `caption_of` what of a completion
    is the caption; by default what comes after a model's thinking.

    >>> from PIL import Image
    >>> reward = MSDReward("toy")
    >>> red = Image.new("RGB", (64, 64), "red")
    >>> good, bad, none = reward(completions=["a red square", "a blue square", ""], images=[red, red, red])
    >>> good > bad, none
    (True, None)
    """

    def __init__(
        self,
        scorer: ScorerLike = DEFAULT_ENCODER,
        *,
        by: By = "msd",
        words: int = 3,
        column: str | None = None,
        caption_of: Callable[[str], str] = after_thinking,
    ) -> None:
        if by not in ("msd", "match"):
            raise unknown_name("reward", str(by), ("msd", "match"))
        self._given = scorer if isinstance(scorer, Scorer) else length_neutral(scorer)
        self._by = by
        self._words = words
        self._column = column
        self._caption_of = caption_of
        self.__name__ = "msd_reward" if by == "msd" else "msd_match_reward"

    @property
    def signature(self) -> str:
        """Everything that can change a reward, in one line."""
        return shared_scorer(self._given).signature

    def __call__(self, prompts: Sequence[Any] | None = None, completions: Sequence[Any] = (), **given: Any) -> Rewards:
        """One reward per completion; None for what cannot be judged."""
        images = _images(given, self._column)
        read = completions_of(prompts, completions, images, caption_of=self._caption_of)
        scored = self._scored(read)
        _tell(given, read, scored)
        rewards: Rewards = [None] * read.total
        for number, row in scored.items():
            rewards[number] = getattr(row, self._by) if isinstance(row, Numbers) else None
        return rewards

    def _scored(self, read: Completions) -> dict[int, Numbers | RowError]:
        """Numbers or a reason by the number of the completion; each distinct picture goes through the encoder once."""
        if not read.captions:
            return {}
        request = Request(read.pictures, read.captions, read.owner)
        pipeline = shared_scorer(self._given).pipeline
        (rows,) = score_requests(pipeline, [request], worst=self._words)
        return dict(zip(read.numbers, rows, strict=True))


def msd_reward(prompts: Sequence[Any] | None = None, completions: Sequence[Any] = (), **given: Any) -> Rewards:
    """`MSDReward` with the embedded encoder, as a plain function: `GRPOTrainer(reward_funcs=msd_reward, …)`."""
    return MSDReward()(prompts, completions, **given)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteReward:
    """The same through `/v1/reward` of a service (`msdscore serve`), so that trainers need no encoder of their own.

    `url` is the service's, as in http://localhost:8000. A service that is busy or restarting is waited for.
    """

    url: str
    token: str | None = None
    retries: int = 6
    timeout: float = 120.0
    column: str | None = None
    caption_of: Callable[[str], str] = after_thinking
    __name__ = "msd_reward"  # as trainers call it in their logs

    def __post_init__(self) -> None:
        if urlsplit(self.url).scheme not in ("http", "https"):
            raise ConfigError(f"url must begin with http:// or https://, got {self.url!r}")
        if self.retries < 1:
            raise ConfigError(f"retries must be at least 1, got {self.retries}")

    def __call__(self, prompts: Sequence[Any] | None = None, completions: Sequence[Any] = (), **given: Any) -> Rewards:
        """One reward per completion; None for what cannot be judged."""
        images = _images(given, self.column)
        read = completions_of(prompts, completions, images, caption_of=self.caption_of)
        rewards: Rewards = [None] * read.total
        for chosen, body in _bodies(read):
            for place, reward in zip(chosen, self._post(body)["rewards"], strict=True):
                rewards[read.numbers[place]] = reward
        return rewards

    def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        place = f"{self.url.rstrip('/')}/v1/reward"
        said = ""
        for attempt in range(self.retries):
            if attempt:
                time.sleep(min(2.0 ** (attempt - 1), 30.0))
            try:
                asked = WebRequest(place, json.dumps(body).encode(), headers)
                with urlopen(asked, timeout=self.timeout) as reply:
                    answer: dict[str, Any] = json.load(reply)
                    return answer
            except HTTPError as error:
                said = f"{error.code} {error.read(500).decode(errors='replace')}"
                if error.code not in _AGAIN:
                    raise RunError(f"{place} answered {said}") from error
            except (URLError, TimeoutError, ConnectionError) as error:
                said = str(error)
        raise RunError(f"{place} gave no rewards in {self.retries} tries ({said})")


def length_neutral(given: ScorerSpec | str) -> ScorerSpec:
    """The description with a fixed weight of coverage, unless it chooses one itself or its form has no such weight."""
    spec = ScorerSpec(encoder=given) if isinstance(given, str) else given
    form = spec.config or shared_scorer(spec).config
    if spec.config is not None or "gate" in dict(spec.changes) or not isinstance(form, Paper):
        return spec
    return replace(spec, changes=tuple(sorted({**dict(spec.changes), "gate": "fixed"}.items())))


def _images(given: dict[str, Any], column: str | None) -> Sequence[Any] | None:
    """The trainer's column of pictures; None where it has none."""
    if column is not None:
        if column not in given:
            raise ConfigError(f"the dataset has no column {column!r}; it has: {', '.join(sorted(given)) or 'none'}")
        found: Sequence[Any] = given[column]
        return found
    return given.get("images") if given.get("images") is not None else given.get("image")


def _tell(given: dict[str, Any], read: Completions, scored: dict[int, Numbers | RowError]) -> None:
    """Words and reasons for the trainer's table of completions, means for its curves."""
    numbers = {number: row for number, row in scored.items() if isinstance(row, Numbers)}
    why = {number: str(row) for number, row in scored.items() if isinstance(row, RowError)} | dict(read.reasons)
    if log_extra := given.get("log_extra"):
        listed = {number: ", ".join(row.worst) for number, row in numbers.items()}
        log_extra("least_supported", [listed.get(number, "") for number in range(read.total)])
        log_extra("not_judged", [why.get(number, "") for number in range(read.total)])
    if (log_metric := given.get("log_metric")) and read.total:
        log_metric("msd/judged", len(numbers) / read.total)
        for name in _WATCHED if numbers else ():
            values = [value for row in numbers.values() if (value := getattr(row, name)) is not None]
            if values:
                log_metric(f"msd/{name}", sum(values) / len(values))


def _bodies(read: Completions) -> Iterator[tuple[list[int], dict[str, Any]]]:
    """Requests within the service's limits, each with the places of its captions."""
    held: list[list[int]] = [[] for _ in read.pictures]
    for place, picture in enumerate(read.owner):
        held[picture].append(place)
    chosen: list[tuple[str, list[int]]] = []
    for picture, places in enumerate(held):
        content = _encoded(read.pictures[picture])
        for start in range(0, len(places), _CAPTIONS):
            if chosen and (len(chosen) == _PICTURES or sum(len(data) for data, _ in chosen) + len(content) > _BODY):
                yield _body(read, chosen)
                chosen = []
            chosen.append((content, places[start : start + _CAPTIONS]))
    if chosen:
        yield _body(read, chosen)


def _body(read: Completions, chosen: Sequence[tuple[str, list[int]]]) -> tuple[list[int], dict[str, Any]]:
    places = [place for _, own in chosen for place in own]
    image_of = [number for number, (_, own) in enumerate(chosen) for _ in own]
    completions = [read.captions[place] for place in places]
    return places, {"images": [data for data, _ in chosen], "completions": completions, "image_of": image_of}


def _encoded(source: ImageSource) -> str:
    """The picture as its file or without loss; what cannot be read or sent goes empty, to be refused."""
    try:
        content = b64encode(_file_of(source)).decode()
    except (OSError, RowError):
        return ""
    return content if len(content) <= _LARGEST else ""


def _file_of(source: ImageSource) -> bytes:
    if isinstance(source, bytes | bytearray):
        return bytes(source)
    if isinstance(source, str | Path):
        return Path(source).read_bytes()
    place = BytesIO()
    open_image(source).save(place, "PNG")
    return place.getvalue()
