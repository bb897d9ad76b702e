"""Requests read within their limits: JSON or multipart in, pictures as bytes and captions out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from msdscore.serve.requests.guard import RefusedError
from msdscore.serve.requests.schema import Item, Items, RewardRequest, decode_picture
from msdscore.serve.settings import ServeSettings

if TYPE_CHECKING:
    from starlette.datastructures import FormData
    from starlette.requests import Request

Model = TypeVar("Model", bound=BaseModel)
JSON, FORM = "application/json", "multipart/form-data"


@dataclass(frozen=True, slots=True)
class Asked:
    """One picture as the bytes of its file, and what was said about it."""

    picture: bytes
    captions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AskedRewards:
    """Completions by picture: `numbers[i]` are those of picture i; `reasons` has one per completion, if it has none."""

    items: list[Asked]
    numbers: list[list[int]]
    reasons: list[str | None]


@dataclass(frozen=True, slots=True)
class Upload:
    """A file and the text fields that came with it."""

    name: str
    content: bytes
    fields: dict[str, list[str]]


async def read_items(request: "Request", settings: ServeSettings) -> list[Asked]:
    """Pictures and captions of a request: `{"image", "captions"}`, `{"items": […]}`, or one multipart picture."""
    if _kind(request, JSON, FORM) == FORM:
        form = await read_upload(request, "image", settings)
        captions = [*form.fields.get("caption", ()), *form.fields.get("captions", ())]
        if not captions:
            raise RefusedError(422, "expected a file named image and at least one field named caption")
        return [_checked(Asked(form.content, tuple(captions)), settings)]
    body = _parsed(await request.body())
    many = isinstance(body, dict) and "items" in body
    items = _validated(Items, body).items if many else [_validated(Item, body)]
    if len(items) > settings.max_items:
        raise RefusedError(413, f"expected at most {settings.max_items} pictures per request, got {len(items)}")
    return [_checked(Asked(_picture(item.image), tuple(item.captions)), settings) for item in items]


async def read_completions(request: "Request", settings: ServeSettings) -> AskedRewards:
    """The completions of a reward request by picture; one that is too long has a reason, the others are judged."""
    _kind(request, JSON)
    asked = _validated(RewardRequest, _parsed(await request.body()))
    completions = [text or "" for text in asked.completions]
    image_of = list(range(len(completions))) if asked.image_of is None else asked.image_of
    if len(image_of) != len(completions):
        raise RefusedError(422, f"expected one image_of per completion, got {len(image_of)} for {len(completions)}")
    if max(image_of) >= len(asked.images):
        raise RefusedError(422, f"image_of names picture {max(image_of)}, and there are {len(asked.images)}")
    if len(asked.images) > settings.max_items:
        raise RefusedError(413, f"expected at most {settings.max_items} pictures, got {len(asked.images)}")
    reasons = [_too_long(text, settings) for text in completions]
    numbers: list[list[int]] = [[] for _ in asked.images]
    for completion, picture in enumerate(image_of):
        if reasons[completion] is None:
            numbers[picture].append(completion)
    used = [picture for picture, own in enumerate(numbers) if own]
    found = [
        Asked(_picture(asked.images[picture]), tuple(completions[number] for number in numbers[picture]))
        for picture in used
    ]
    return AskedRewards([_checked(one, settings) for one in found], [numbers[picture] for picture in used], reasons)


async def read_upload(request: "Request", name: str, settings: ServeSettings) -> Upload:
    """The file of that name in a multipart body, and its text fields; all of it stays in memory."""
    from starlette.datastructures import UploadFile

    _kind(request, FORM)
    form = await _form(request, settings)
    try:
        file: UploadFile | str | None = form.get(name)
        if not isinstance(file, UploadFile):
            raise RefusedError(422, f"expected a file named {name}")
        fields = {key: [value for value in form.getlist(key) if isinstance(value, str)] for key in form if key != name}
        return Upload(file.filename or "", await file.read(), fields)
    finally:
        await form.close()


async def _form(request: "Request", settings: ServeSettings) -> "FormData":
    from starlette.formparsers import MultiPartException, MultiPartParser

    charset = request.headers["content-type"].lower().partition("charset=")[2].strip(' "')
    if charset and not charset.startswith("utf-8"):
        raise RefusedError(415, "expected multipart/form-data in UTF-8")
    parser = MultiPartParser(
        request.headers,
        request.stream(),
        max_files=1,
        max_fields=settings.max_captions + 8,
        max_part_size=settings.max_body,
    )
    # Starlette would write larger files to disk; the body is within its limit, and no picture leaves memory.
    parser.spool_max_size = settings.max_body + 1
    try:
        return await parser.parse()
    except MultiPartException as error:
        raise RefusedError(422, f"the multipart body cannot be read ({error.message})") from error


def _kind(request: "Request", *known: str) -> str:
    """The content type, which must be one of those known."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in known:
        raise RefusedError(415, f"expected {' or '.join(known)}, got {kind[:80] or 'no content type'}")
    return kind


def _parsed(body: bytes) -> Any:
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise RefusedError(422, f"the body is no JSON ({error})") from error


def _validated(model: type[Model], body: Any) -> Model:
    try:
        return model.model_validate(body, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "body"
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise RefusedError(422, f"{place[:200]}: {first['msg']}{more}") from error


def _picture(text: str) -> bytes:
    try:
        return decode_picture(text)
    except ValueError as error:
        raise RefusedError(422, f"image: {error}") from error


def _checked(asked: Asked, settings: ServeSettings) -> Asked:
    _require_few(asked.captions, settings)
    return asked


def _require_few(captions: Sequence[str], settings: ServeSettings) -> None:
    if len(captions) > settings.max_captions:
        raise RefusedError(413, f"expected at most {settings.max_captions} captions per picture, got {len(captions)}")
    reason = next(filter(None, (_too_long(caption, settings) for caption in captions)), None)
    if reason is not None:
        raise RefusedError(413, reason)


def _too_long(caption: str, settings: ServeSettings) -> str | None:
    size = len(caption.encode("utf-8", "surrogatepass"))
    return (
        f"expected captions of at most {settings.max_tokens} bytes, got {size}" if size > settings.max_tokens else None
    )
