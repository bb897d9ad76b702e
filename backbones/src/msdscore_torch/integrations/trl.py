"""Reward functions for training captioners with TRL's `GRPOTrainer`, local or over HTTP."""

import json
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import numpy as np
from PIL.Image import Image

from msdscore.errors import ConfigError, RowError, RunError, unknown_name
from msdscore.forms.base import Form
from msdscore.forms.registry import columns_logged
from msdscore.io.files import pixel_key, source_key
from msdscore.io.images import ImageSource, open_image
from msdscore.rows.rules import REFERENCES, Row, RowMaker
from msdscore.scorer import Scorer
from msdscore.scoring.results import Scores, known, why_missing
from msdscore.scoring.rows import score_all
from msdscore.scoring.spec import DEFAULT_ENCODER, ScorerSpec
from msdscore.text.warnings import GUARD, GUARDED, guard_reward
from msdscore_torch.integrations.shared import ScorerLike, shared_scorer

By = Literal["msd", "match", "ref_msd"]
# Names of rewards in the logs of trainers.
_NAMES = {None: "msd_reward", "msd": "msd_reward", "match": "msd_match_reward", "ref_msd": "ref_msd_reward"}
Rewards = list[float | None]

_AGAIN = frozenset((429, 500, 502, 503, 504))  # statuses that are retried
_BODY = 16 << 20  # characters of images per request; the service accepts 64 MiB
_LARGEST = 31 << 20  # characters of one image; it must fit in a request
_IMAGES, _CAPTIONS = 32, 64  # per request and per image; the service accepts 64 of each


def completion_rows(
    prompts: Sequence[Any] | None,
    completions: Sequence[Any],
    given: Mapping[str, Any],
    *,
    by: By | None,
    column: str | None,
    caption_of: Callable[[str], str],
) -> tuple[By, list[Row]]:
    """Return the score to reward with, and one row per completion of a trainer's batch, whose columns are `given`.

    Images are in `column`, else in images or image, else in the messages of the prompts; equal ones become one object.
    """
    if column is not None and column not in given:
        raise ConfigError(f"the dataset has no column {column!r}; it has: {', '.join(sorted(given)) or 'none'}")
    named = [given.get(name) for name in ([column] if column else ("images", "image"))]
    column_of_images = next((values for values in named if values is not None), None)
    from_prompts = column_of_images is None
    images = [_of_prompt(prompt) for prompt in prompts or ()] if column_of_images is None else list(column_of_images)
    if len(images) != len(completions) or (from_prompts and not any(images) and completions):
        raise ConfigError(
            f"expected one image per completion, got {sum(map(bool, images)) if from_prompts else len(images)} for "
            f"{len(completions)}; add a column image or images to the dataset, or pass the name of its column (column=)"
        )
    lists = given.get(REFERENCES)
    by = by or ("msd" if lists is None else "ref_msd")
    if by == "ref_msd" and lists is None:
        raise ConfigError(f"by='ref_msd' needs a column {REFERENCES!r} of lists of captions in the dataset")
    maker, rows, known = RowMaker(), list[Row](), dict[object, ImageSource]()
    for number, (completion, image) in enumerate(zip(completions, images, strict=True)):
        several = isinstance(image, list | tuple) and len(image) > 1
        single = (image[0] if image else None) if isinstance(image, list | tuple) else image
        values = {"image": single, "caption": caption_of(completion_text(completion))}
        if by == "ref_msd" and lists is not None:
            values[REFERENCES] = lists[number]
        (row,) = maker.rows(values, error=f"expected one image, got {len(image)}" if several else None, split=False)
        rows.append(row if row.image is None else row._replace(image=known.setdefault(_key(row.image), row.image)))
    return by, rows


def completion_text(completion: Any) -> str:
    """Return the text of a completion: the string itself, or the last message with text.

    >>> completion_text([{"role": "assistant", "content": [{"type": "text", "text": "a dog"}]}])
    'a dog'
    """
    if isinstance(completion, str):
        return completion
    for message in reversed(completion if isinstance(completion, list | tuple) else []):
        content = message.get("content") if isinstance(message, Mapping) else None
        if isinstance(content, str):
            return content
        if isinstance(content, list | tuple):
            return "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))
    return ""


def after_thinking(text: str) -> str:
    """Return the stripped text after a model's thinking; empty if the thinking does not end.

    >>> after_thinking("<think>a dog, I guess</think> a dog on a beach "), after_thinking("<think>a dog, I")
    ('a dog on a beach', '')
    """
    return text.rpartition("</think>")[2].partition("<think>")[0].strip()


def _of_prompt(prompt: Any) -> list[Any]:
    """Return the images in the messages of a prompt."""
    messages = prompt if isinstance(prompt, list | tuple) else []
    contents = [message.get("content") for message in messages if isinstance(message, Mapping)]
    parts = [part for content in contents if isinstance(content, list | tuple) for part in content]
    images = [part.get("image") for part in parts if isinstance(part, Mapping) and part.get("type") == "image"]
    return [image for image in images if image is not None]


def _key(source: ImageSource) -> object:
    """Return a key that is the same for equal images, which a trainer decodes again for each completion."""
    if isinstance(source, str | Path | bytes):
        return source_key(source)
    with suppress(OSError, ValueError, SyntaxError):  # cannot be decoded: scoring reports the error
        return pixel_key(source) if isinstance(source, Image) else id(source)
    return id(source)


class MSDReward:
    """A reward function that scores completions as captions of their images.

    With a name or a `ScorerSpec`, it is length-neutral: under the paper's forms the weight between coverage and support
    is fixed, since a policy would learn to move a weight that depends on the length. A `Scorer`, a `Form` with its
    settings and a `gate` among the changes of the spec are used unchanged.

    Args:
        scorer: An encoder's name, a `ScorerSpec` or a `Scorer`.
        by: The score to return; by default `ref_msd` if the dataset has a column `references` (a list of human captions
            per row), else `msd`. With `msd` or `match` the column is not read.
        words: Number of least supported words in the trainer's table of completions.
        column: The dataset's column of images, if it is not `image` or `images`.
        caption_of: Extracts the caption from a completion; by default the text after a model's thinking.
        guard: Subtracted from the reward of lists of words, shuffled or repeated words and captions with invisible or
            look-alike characters; 0 turns it off.

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
        by: By | None = None,
        words: int = 3,
        column: str | None = None,
        caption_of: Callable[[str], str] = after_thinking,
        guard: float = GUARD,
    ) -> None:
        _check(by, guard)
        self._given = scorer if isinstance(scorer, Scorer) else length_neutral(scorer)
        self._by, self._words, self._column, self._caption_of = by, words, column, caption_of
        self._guard, self.__name__ = guard, _NAMES[by]

    @property
    def signature(self) -> str:
        """Everything that can change a reward, in one line."""
        return shared_scorer(self._given).signature

    def __call__(self, prompts: Sequence[Any] | None = None, completions: Sequence[Any] = (), **given: Any) -> Rewards:
        """Return one reward per completion; None for those that cannot be scored."""
        by, rows = completion_rows(
            prompts, completions, given, by=self._by, column=self._column, caption_of=self._caption_of
        )
        scores = score_all(shared_scorer(self._given).pipeline, rows, worst=self._words)
        rewards: Rewards = [None] * len(rows)
        reasons, lowered = dict[int, str](), dict[int, Sequence[str]]()
        for number, score in enumerate(scores):
            value = known(getattr(score, by))
            rewards[number], warnings = guard_reward(value, score.caption, self._guard, score.warnings)
            lowered[number] = warnings if self._guard else ()
            if rewards[number] is None:
                reasons[number] = score.error or why_missing(by, score.warnings) or f"no {by}"
        _log(given, len(rows), reasons, lowered, scores)
        return rewards


def msd_reward(prompts: Sequence[Any] | None = None, completions: Sequence[Any] = (), **given: Any) -> Rewards:
    """`MSDReward` with the embedded encoder, as a plain function: `GRPOTrainer(reward_funcs=msd_reward, …)`."""
    return MSDReward()(prompts, completions, **given)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteReward:
    """Reward function that calls `/v1/reward` of a service (`msdscore serve`), so that trainers need no encoder.

    `url` is that of the service, as in http://localhost:8000. A busy or restarting service is retried. `by`, `column`,
    `caption_of` and `guard` are those of `MSDReward`.
    """

    url: str
    token: str | None = None
    by: By | None = None
    retries: int = 6
    timeout: float = 120.0
    column: str | None = None
    caption_of: Callable[[str], str] = after_thinking
    guard: float = GUARD

    def __post_init__(self) -> None:
        if urlsplit(self.url).scheme not in ("http", "https"):
            raise ConfigError(f"url must begin with http:// or https://, got {self.url!r}")
        if self.retries < 1:
            raise ConfigError(f"retries must be at least 1, got {self.retries}")
        _check(self.by, self.guard)

    @property
    def __name__(self) -> str:
        return _NAMES[self.by]

    def __call__(self, prompts: Sequence[Any] | None = None, completions: Sequence[Any] = (), **given: Any) -> Rewards:
        """Return one reward per completion; None for those that cannot be scored."""
        by, rows = completion_rows(
            prompts, completions, given, by=self.by, column=self.column, caption_of=self.caption_of
        )
        rewards: Rewards = [None] * len(rows)
        reasons = {number: str(row.error) for number, row in enumerate(rows) if row.error is not None}
        lowered = dict[int, Sequence[str]]()
        for chosen, body in _bodies(rows, with_references=by == "ref_msd"):
            answer = self._post({**body, "by": by, "guard": self.guard})  # the service applies the guard
            lists = (answer[name] for name in ("rewards", "reasons", "warnings", "guarded"))
            for number, reward, reason, warnings, guarded in zip(chosen, *lists, strict=True):
                rewards[number], lowered[number] = reward, warnings if guarded else ()
                reasons |= {number: reason} if reason else {}
        _log(given, len(rows), reasons, lowered)
        return rewards

    def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        address = f"{self.url.rstrip('/')}/v1/reward"
        reason = ""
        for attempt in range(self.retries):
            if attempt:
                time.sleep(min(2.0 ** (attempt - 1), 30.0))
            try:
                request = Request(address, json.dumps(body).encode(), headers)
                with urlopen(request, timeout=self.timeout) as reply:
                    answer: dict[str, Any] = json.load(reply)
                    return answer
            except HTTPError as error:
                reason = f"{error.code} {error.read(500).decode(errors='replace')}"
                if error.code not in _AGAIN:
                    raise RunError(f"{address} answered {reason}") from error
            except (URLError, TimeoutError, ConnectionError) as error:
                reason = str(error)
        raise RunError(f"{address} returned no rewards in {self.retries} tries ({reason})")


def _check(by: By | None, guard: float) -> None:
    """Raise for an unknown score, and unless the guard is a finite number of at least 0."""
    if by not in _NAMES:
        raise unknown_name("reward", str(by), get_args(By))
    if not 0 <= guard < float("inf"):
        raise ConfigError(f"guard must be a finite number of at least 0, got {guard}; 0 turns it off")


def length_neutral(given: ScorerSpec | str) -> ScorerSpec:
    """Return the spec with a fixed weight of coverage, unless it sets one or its form has no such weight.

    >>> length_neutral(ScorerSpec(encoder="toy", form="short")).changes
    (('gate', 'fixed'),)
    """
    spec = ScorerSpec(encoder=given) if isinstance(given, str) else given
    if isinstance(spec.form, Form) or "gate" in dict(spec.changes) or not hasattr(shared_scorer(spec).form, "gate"):
        return spec
    return replace(spec, changes=tuple(sorted({**dict(spec.changes), "gate": "fixed"}.items())))


def _log(
    given: Mapping[str, Any],
    total: int,
    reasons: Mapping[int, str],
    lowered: Mapping[int, Sequence[str]],
    scores: Scores | None = None,
) -> None:
    """Log to the trainer's table why completions have no reward or a lower one, and shares and means to its curves.

    With the `scores` of the completions, their least supported words and the means are logged too.
    """
    guarded = [", ".join(text for text in lowered.get(number, ()) if text in GUARDED) for number in range(total)]
    table = {"not_judged": [reasons.get(number, "") for number in range(total)], "guarded": guarded}
    curves = {"judged": 1 - len(reasons) / total, "guarded": sum(map(bool, guarded)) / total} if total else {}
    if scores is not None:
        table["least_supported"] = [", ".join(words) for words in scores.worst]
        scored = np.array([error is None for error in scores.errors], dtype=bool)
        for name in (*columns_logged(), "length"):
            values = scores.columns[name][scored] if name in scores.columns else np.zeros(0)
            values = values[~np.isnan(values)]
            curves |= {name: float(values.mean())} if len(values) else {}
    if log_extra := given.get("log_extra"):
        for name, column in table.items():
            log_extra(name, column)
    if log_metric := given.get("log_metric"):
        for name, value in curves.items():
            log_metric(f"msd/{name}", value)


def _bodies(rows: Sequence[Row], *, with_references: bool) -> Iterator[tuple[list[int], dict[str, Any]]]:
    """Yield requests within the limits of the service, each with the indices of its rows."""
    chosen: list[tuple[str, list[int]]] = []
    for content, part in chain(_parts(rows), [("", [])]):
        full = len(chosen) == _IMAGES or sum(len(data) for data, _ in chosen) + len(content) > _BODY
        if chosen and (full or not part):
            numbers = [number for _, own in chosen for number in own]
            body: dict[str, Any] = {
                "images": [data for data, _ in chosen],
                "completions": [rows[number].caption for number in numbers],
                "image_of": [index for index, (_, own) in enumerate(chosen) for _ in own],
            }
            if with_references:
                body["references"] = [rows[own[0]].references or [] for _, own in chosen]
            yield numbers, body
            chosen = []
        chosen.append((content, part))


def _parts(rows: Sequence[Row]) -> Iterator[tuple[str, list[int]]]:
    """Yield every image with the indices of some of its rows, which share their references.

    An image is sent as its file or losslessly encoded; one that cannot be read or sent is empty, and is rejected.
    """
    groups: dict[tuple[int, tuple[str, ...] | None], list[int]] = {}
    for number, row in enumerate(rows):
        if row.error is None:
            groups.setdefault((id(row.image), row.references), []).append(number)
    for numbers in groups.values():
        image = rows[numbers[0]].image
        try:
            content = "" if image is None else b64encode(_file_of(image)).decode()
        except (OSError, RowError):
            content = ""
        for start in range(0, len(numbers), _CAPTIONS):
            yield content if len(content) <= _LARGEST else "", numbers[start : start + _CAPTIONS]


def _file_of(source: ImageSource) -> bytes:
    if isinstance(source, bytes | bytearray):
        return bytes(source)
    if isinstance(source, str | Path):
        return Path(source).read_bytes()
    buffer = BytesIO()
    open_image(source).save(buffer, "PNG")
    return buffer.getvalue()
