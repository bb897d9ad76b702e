"""Requests read within their limits: JSON or multipart in, pictures as bytes and captions out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from msdscore.serve.schema import Item, Items, RewardRequest, decode_picture
from msdscore.serve.settings import ServeSettings

if TYPE_CHECKING:
    from starlette.datastructures import FormData
    from starlette.requests import Request

Model = TypeVar("Model", bound=BaseModel)


class RefusedError(Exception):
    """A request that is refused with a status and one line."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


@dataclass(frozen=True, slots=True)
class Asked:
    """One picture as the bytes of its file, and what was said about it."""

    picture: bytes
    captions: tuple[str, ...]


async def read_items(request: "Request", settings: ServeSettings) -> list[Asked]:
    """Pictures and captions of a request: `{"image", "captions"}`, `{"items": […]}`, or one multipart picture."""
    kind = _content_type(request)
    if kind == "multipart/form-data":
        return [_checked(await _form_item(request, settings), settings)]
    if kind != "application/json":
        raise RefusedError(415, f"expected application/json or multipart/form-data, got {kind or 'no content type'}")
    body = await request.body()
    many = b'"items"' in body
    items = _validated(Items, body).items if many else [_validated(Item, body)]
    if len(items) > settings.max_items:
        raise RefusedError(413, f"expected at most {settings.max_items} pictures per request, got {len(items)}")
    return [_checked(Asked(decode_picture(item.image), tuple(item.captions)), settings) for item in items]


async def read_completions(request: "Request", settings: ServeSettings) -> tuple[list[Asked], list[list[int]]]:
    """The completions of a reward request by picture, and for each picture the numbers of its completions."""
    if _content_type(request) != "application/json":
        raise RefusedError(415, "expected application/json")
    asked = _validated(RewardRequest, await request.body())
    image_of = list(range(len(asked.completions))) if asked.image_of is None else asked.image_of
    if len(image_of) != len(asked.completions):
        raise RefusedError(422, f"expected one image_of per completion, got {len(image_of)}")
    if image_of and max(image_of) >= len(asked.images):
        raise RefusedError(422, f"image_of names picture {max(image_of)}, and there are {len(asked.images)}")
    if len(asked.images) > settings.max_items:
        raise RefusedError(413, f"expected at most {settings.max_items} pictures per request, got {len(asked.images)}")
    numbers: list[list[int]] = [[] for _ in asked.images]
    for completion, picture in enumerate(image_of):
        numbers[picture].append(completion)
    found = [
        Asked(_picture(image), tuple(asked.completions[number] or "" for number in own))
        for image, own in zip(asked.images, numbers, strict=True)
    ]
    return [_checked(one, settings) if one.captions else one for one in found], numbers


def _content_type(request: "Request") -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def _form_item(request: "Request", settings: ServeSettings) -> Asked:
    from starlette.exceptions import HTTPException

    try:
        form: FormData = await request.form(
            max_files=1, max_fields=settings.max_captions, max_part_size=settings.max_body
        )
    except HTTPException as error:
        raise RefusedError(422, f"the multipart body cannot be read ({error.detail})") from error
    try:
        picture = form.get("image")
        captions = [value for name in ("caption", "captions") for value in form.getlist(name) if isinstance(value, str)]
        if picture is None or isinstance(picture, str) or not captions:
            raise RefusedError(422, "expected a file named image and at least one field named caption")
        return Asked(await picture.read(), tuple(captions))
    finally:
        await form.close()


def _validated(model: type[Model], body: bytes) -> Model:
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "body"
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise RefusedError(422, f"{place}: {first['msg']}{more}") from error


def _picture(text: str) -> bytes:
    try:
        return decode_picture(text)
    except ValueError as error:
        raise RefusedError(422, str(error)) from error


def _checked(asked: Asked, settings: ServeSettings) -> Asked:
    _require_few(asked.captions, settings)
    return asked


def _require_few(captions: Sequence[str], settings: ServeSettings) -> None:
    if len(captions) > settings.max_captions:
        raise RefusedError(413, f"expected at most {settings.max_captions} captions per picture, got {len(captions)}")
    longest = max(map(len, captions), default=0)
    if longest > settings.max_characters:
        raise RefusedError(413, f"expected captions of at most {settings.max_characters} characters, got {longest}")


def request_body(*models: str, multipart: bool) -> dict[str, Any]:
    """The OpenAPI description of a body that is read by hand."""
    refs = [{"$ref": f"#/components/schemas/{model}"} for model in models]
    content: dict[str, Any] = {"application/json": {"schema": refs[0] if len(refs) == 1 else {"anyOf": refs}}}
    if multipart:
        content["multipart/form-data"] = {
            "schema": {
                "type": "object",
                "required": ["image", "caption"],
                "properties": {
                    "image": {"type": "string", "format": "binary"},
                    "caption": {"type": "array", "items": {"type": "string"}, "minItems": 1},
                },
            }
        }
    return {"requestBody": {"required": True, "content": content}}
