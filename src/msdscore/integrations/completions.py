"""What a trainer hands to a reward function: completions as captions, and the distinct pictures they belong to."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL.Image import Image

from msdscore.errors import ConfigError
from msdscore.io.hashing import pixel_key, source_key
from msdscore.io.images import ImageSource

_THINKING, _THOUGHT = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class Completions:
    """Completions that can be judged: `numbers[i]` says which one caption i is, `owner[i]` which picture it belongs to.

    The others of the `total` have a reason by their number. Pictures that are equal stand here once.
    """

    total: int
    pictures: tuple[ImageSource, ...]
    numbers: tuple[int, ...]
    captions: tuple[str, ...]
    owner: tuple[int, ...]
    reasons: Mapping[int, str]


def completions_of(
    prompts: Sequence[Any] | None,
    completions: Sequence[Any],
    images: Sequence[Any] | None,
    *,
    caption_of: Callable[[str], str],
) -> Completions:
    """Sort out a trainer's batch; without `images` the pictures are looked for in the messages of the prompts."""
    given = [_of_prompt(prompt) for prompt in prompts or ()] if images is None else list(images)
    if len(given) != len(completions) or (images is None and not any(given) and completions):
        raise ConfigError(
            f"expected one picture per completion, got {sum(map(bool, given)) if images is None else len(given)} for "
            f"{len(completions)}; give the dataset a column image or images, or name its column of pictures (column=)"
        )
    pictures: dict[object, int] = {}
    sources: list[ImageSource] = []
    judged: list[tuple[int, str, int]] = []
    reasons: dict[int, str] = {}
    for number, (completion, found) in enumerate(zip(completions, given, strict=True)):
        source = _one_picture(found)
        if isinstance(source, _Refused):
            reasons[number] = source.reason
            continue
        place = pictures.setdefault(_key(source), len(sources))
        if place == len(sources):
            sources.append(source)
        judged.append((number, caption_of(text_of(completion)), place))
    numbers, captions, owner = zip(*judged, strict=True) if judged else ((), (), ())
    return Completions(len(completions), tuple(sources), numbers, captions, owner, reasons)


def text_of(completion: Any) -> str:
    """The text of a completion: as it stands, or the last message that has one.

    >>> text_of([{"role": "assistant", "content": [{"type": "text", "text": "a dog"}]}])
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
    """What a model says after it has thought, without white space at the ends; nothing where its thinking never ends.

    >>> after_thinking("<think>a dog, I guess</think> a dog on a beach "), after_thinking("<think>a dog, I")
    ('a dog on a beach', '')
    """
    return text.rpartition(_THOUGHT)[2].partition(_THINKING)[0].strip()


@dataclass(frozen=True, slots=True)
class _Refused:
    """Why a completion has no picture to be judged with."""

    reason: str


def _one_picture(found: Any) -> ImageSource | _Refused:
    if isinstance(found, list | tuple):
        if len(found) != 1:
            return _Refused(f"expected one picture, got {len(found)}")
        found = found[0]
    if isinstance(found, Mapping):  # as Hugging Face stores pictures that are not decoded
        found = found.get("bytes") or found.get("path")
    if found is None:
        return _Refused("no picture")
    source: ImageSource = found
    return source


def _of_prompt(prompt: Any) -> list[Any]:
    """Pictures inside the messages of a prompt."""
    messages = prompt if isinstance(prompt, list | tuple) else []
    parts = [part for message in messages if isinstance(message, Mapping) for part in _parts(message.get("content"))]
    return [part["image"] for part in parts if part.get("type") == "image" and part.get("image") is not None]


def _parts(content: Any) -> list[Mapping[str, Any]]:
    return [part for part in content if isinstance(part, Mapping)] if isinstance(content, list | tuple) else []


def _key(source: ImageSource) -> object:
    """The same for equal pictures: a trainer decodes the picture of a group anew for each of its completions."""
    if isinstance(source, str | Path | bytes):
        return source_key(source)
    if isinstance(source, Image):
        try:
            return pixel_key(source)
        except (OSError, ValueError, SyntaxError):  # cannot be decoded: scoring says why
            return id(source)
    return id(source)
