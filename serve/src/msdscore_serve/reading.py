"""Parsing of JSON and multipart request bodies into images and captions, within limits."""

import asyncio
import sys
from base64 import b64decode
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from msdscore.errors import CaptionError, shortened, unknown_name
from msdscore.rows.rules import Row, is_blank, pair_rows
from msdscore_serve.schema import FORM, JSON, Item, Items, RewardRequest
from msdscore_serve.settings import RequestError, ServeSettings

Model = TypeVar("Model", bound=BaseModel)
_FAULTS = 20  # errors that are listed in one message
PREFIX = "sha256:"  # of the names of uploads
# A call into C holds the interpreter lock and blocks all other threads, including the one that answers health checks.
# To keep every call under 0.1 seconds, values, escapes and letters are counted before parsing, and images are decoded
# in pieces.
SIGNS = 60_000  # commas, brackets, texts and escaped quotes of a JSON body; the limits of captions need a third
ESCAPES = 300_000  # line breaks of 20 MB in base64
WIDE = 8 << 20  # bytes of text outside ASCII
PIECE = 1 << 16  # bytes that are counted or decoded at once


@dataclass(frozen=True, slots=True)
class RequestItem:
    """One image as the bytes of its file, and its captions; `error` is set if it has no bytes.

    `name` is that of the upload, if the request refers to one; `too_long` has the errors of captions by their index.
    """

    image: bytes
    captions: tuple[str, ...]
    error: str | None = None
    name: str = ""
    too_long: Mapping[int, str] = field(default_factory=dict)
    references: tuple[str, ...] = ()  # human captions

    def rows(self, *, together: bool) -> list[Row]:
        """Return one row per caption by the rules of all inputs; if `together`, they are one candidate set."""
        same = [0] * len(self.captions)
        sets = same if together else range(len(same))
        rows = pair_rows([self.image], self.captions, same, sets=sets, references=[self.references], error=self.error)
        for number, reason in self.too_long.items():
            rows[number] = rows[number]._replace(error=CaptionError(reason))
        return rows


@dataclass(frozen=True, slots=True)
class RewardItems:
    """Completions by image: `numbers[i]` has the indices of item i's completions."""

    by: str
    guard: float
    items: list[RequestItem]
    numbers: list[list[int]]


class Stored:
    """Uploaded images by their hash, so that requests can refer to them; the least recently used are dropped."""

    def __init__(self, limit: int) -> None:
        self._limit, self._images = limit, OrderedDict[str, bytes]()

    async def add(self, image: bytes) -> str:
        """Store an image; returns its name for later requests."""
        name = PREFIX + (await asyncio.to_thread(sha256, image)).hexdigest()
        self._images[name] = image
        self._images.move_to_end(name)
        while sum(map(len, self._images.values())) > self._limit and len(self._images) > 1:
            self._images.popitem(last=False)
        return name

    def get(self, name: str) -> bytes:
        """Return an image; raises `ValueError` if it is unknown."""
        if name not in self._images:
            raise ValueError("unknown image; send it to /v1/images again")
        self._images.move_to_end(name)
        return self._images[name]


async def read_items(request: Request, settings: ServeSettings, stored: Stored) -> list[RequestItem]:
    """Read the images and captions of a request: `{"image", "captions"}`, `{"items": […]}`, or one multipart image."""
    if _content_type(request, JSON, FORM) == FORM:
        file, fields = await read_form(request, "image", settings, fields=("caption", "reference"))
        captions = fields.get("caption", [])
        if file is None or not captions:
            raise RequestError(422, "expected a file named image and at least one field named caption")
        return [_with_captions(RequestItem(file, ()), captions, settings, references=fields.get("reference", ()))]
    # In a thread: the event loop answers others while a large body is read.
    return await asyncio.to_thread(_read_items, await request.body(), settings, stored)


def _read_items(content: bytes, settings: ServeSettings, stored: Stored) -> list[RequestItem]:
    body = _parse(content)
    many = isinstance(body, dict) and "items" in body
    _check_shape(body, {*Item.model_fields, *Items.model_fields}, settings)
    items = validate(Items, body).items if many else [validate(Item, body)]
    requested = [
        _with_captions(_with_image(item.image, stored), item.captions, settings, references=item.references)
        for item in items
    ]
    if not many and requested[0].error:
        raise RequestError(404 if requested[0].name else 422, requested[0].error)
    return requested


async def read_completions(request: Request, settings: ServeSettings, stored: Stored) -> RewardItems:
    """Read a reward request."""
    _content_type(request, JSON)
    return await asyncio.to_thread(_read_completions, await request.body(), settings, stored)


def _read_completions(content: bytes, settings: ServeSettings, stored: Stored) -> RewardItems:
    given = _parse(content)
    _check_shape(given, RewardRequest.model_fields, settings)
    body = validate(RewardRequest, given)
    image_of = _image_of(body)
    by = body.by or ("msd" if body.references is None else "ref_msd")
    references: Sequence[Sequence[str]] = [()] * len(body.images)
    if by == "ref_msd":
        if body.references is None:
            raise RequestError(422, "by: ref_msd needs references, a list of human captions per image")
        references = body.references
        if len(references) != len(body.images):
            lengths = f"{len(references)} for {len(body.images)}"
            raise RequestError(422, f"expected one list of references per image, got {lengths}")
    completions: dict[int, list[int]] = {}
    for number, image in enumerate(image_of):
        completions.setdefault(image, []).append(number)
    items = []
    for image, numbers in completions.items():
        captions = [body.completions[number] or "" for number in numbers]
        item = _with_image(body.images[image], stored)
        items.append(_with_captions(item, captions, settings, references=references[image]))
    return RewardItems(by, body.guard, items, list(completions.values()))


def _image_of(body: RewardRequest) -> list[int]:
    """Return the index of the image of each completion."""
    images, completions = len(body.images), len(body.completions)
    if body.image_of is None:
        if completions != images:
            raise RequestError(422, f"expected one image per completion or `image_of`, got {images} for {completions}")
        return list(range(completions))
    given = len(body.image_of)
    if given != completions:
        raise RequestError(422, f"expected one entry of image_of per completion, got {given} for {completions}")
    if max(body.image_of) >= images:
        raise RequestError(422, f"image_of refers to image {max(body.image_of)}, expected an index below {images}")
    return body.image_of


async def read_form(
    request: Request, name: str, settings: ServeSettings, *, fields: Sequence[str] = ()
) -> tuple[bytes | None, dict[str, list[str]]]:
    """Read a multipart body in memory: the content of the file field, if any, and the text fields.

    Raises for a field that is neither `name` nor one of `fields`.
    """
    _content_type(request, FORM)
    most_fields = 2 * settings.max_captions + 8  # captions, references, and others
    limits = {"max_files": 1, "max_fields": most_fields, "max_part_size": settings.max_body}
    parser = _FormParser(request.headers, request.stream(), **limits)
    try:
        form = await parser.parse()
    except UnicodeDecodeError as error:
        raise RequestError(422, "the multipart body cannot be read (a text field is not valid UTF-8)") from error
    except MultiPartException as error:
        if error.message.startswith("Too many fields"):
            raise RequestError(413, f"expected at most {most_fields} form fields; send fewer captions") from error
        raise RequestError(422, f"the multipart body cannot be read ({error.message})") from error
    try:
        if not parser.ended:  # its last field would be lost
            raise RequestError(422, "the multipart body cannot be read (its closing boundary is missing)")
        reject_unknown("form field", form, (name, *fields))
        file, texts = form.get(name), dict[str, list[str]]()
        for key, value in form.multi_items():
            if isinstance(value, str):
                texts.setdefault(key, []).append(value)
        return (await file.read() if isinstance(file, UploadFile) else None), texts
    finally:
        for opened in parser._files_to_close_on_error:  # also a file without an end
            opened.close()


class _FormParser(MultiPartParser):
    """A parser of Starlette that accepts only UTF-8, notes the closing boundary, and never writes to disk."""

    spool_max_size = sys.maxsize  # the body is limited
    ended = False  # the closing boundary was read

    def on_part_end(self) -> None:
        if self._current_part.file is None:
            self._current_part.data.decode()  # Starlette would read other text as Latin-1
        super().on_part_end()

    def on_end(self) -> None:
        super().on_end()
        self.ended = True


def decode_image(text: str) -> bytes:
    """Decode an image from base64, in one line or several, or from a data: URL.

    >>> decode_image("data:image/png;base64,aGk="), decode_image("aG\\nk=\\n")
    (b'hi', b'hi')
    """
    head, comma, rest = text.partition(",")
    if text.startswith("data:"):
        if not comma or not head.endswith(";base64"):
            raise ValueError("expected a data: URL in base64, as in data:image/png;base64,…")
        text = rest
    try:
        return b"".join(_decoded_pieces(text))
    except ValueError as error:
        raise ValueError(f"expected the bytes of an image in base64 ({error})") from error


def _decoded_pieces(text: str) -> Iterator[bytes]:
    pad, rest = text.find("="), ""
    if pad >= 0 and text[pad:].strip("= \t\r\n"):
        raise ValueError("data after the padding")
    for start in range(0, len(text), PIECE):
        rest += "".join(text[start : start + PIECE].split())
        whole = len(rest) // 4 * 4
        yield b64decode(rest[:whole], validate=True)
        rest = rest[whole:]
    yield b64decode(rest, validate=True)


def _with_image(image: str | None, stored: Stored) -> RequestItem:
    """Return an item with an image, or with the error of one that cannot be decoded from base64."""
    item = RequestItem(b"", ())
    try:
        if image is None:
            raise ValueError("expected an image, got null")
        if image.startswith(PREFIX):
            item = replace(item, name=image)
            return replace(item, image=stored.get(image))
        return replace(item, image=decode_image(image))
    except ValueError as error:
        return replace(item, error=f"image: {error}")


def _with_captions(
    item: RequestItem, captions: Sequence[str], settings: ServeSettings, *, references: Sequence[str]
) -> RequestItem:
    """Return an item with captions and references; raise for too many of them, and for too long references.

    Each caption that is too long has an error, and is shortened.
    """
    said = [text for text in references if not is_blank(text)]
    for kind, texts in (("captions", captions), ("references", said)):
        if len(texts) > settings.max_captions:
            raise RequestError(413, f"expected at most {settings.max_captions} {kind} per image, got {len(texts)}")
    for reason in _too_long("references", said, settings.max_tokens).values():
        raise RequestError(413, reason)
    too_long = _too_long("captions", captions, settings.max_tokens)
    shown = tuple(shortened(text) if number in too_long else text for number, text in enumerate(captions))
    return replace(item, captions=shown, too_long=too_long, references=tuple(references))


def _too_long(kind: str, texts: Sequence[str], most: int) -> dict[int, str]:
    """Return the errors of texts with too many bytes by their index."""
    sizes = [len(text.encode("utf-8", "surrogatepass")) for text in texts]
    return {at: f"expected {kind} of at most {most} bytes, got {size}" for at, size in enumerate(sizes) if size > most}


def _content_type(request: Request, *known: str) -> str:
    """Return the content type; raise unless it is one of these."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in known:
        raise RequestError(415, f"expected {' or '.join(known)}, got {kind[:80] or 'no content type'}")
    return kind


def _parse(body: bytes) -> Any:
    if any(count > SIGNS for count in _signs(body)):
        raise RequestError(413, f"expected a JSON body of at most {SIGNS} values; send fewer")
    escapes = wide = 0
    for start in range(0, len(body), PIECE):
        piece = body[start : start + PIECE]
        escapes, wide = escapes + piece.count(b"\\"), wide + (0 if piece.isascii() else len(piece))
    if escapes > ESCAPES:
        raise RequestError(413, f"expected a JSON body of at most {ESCAPES} escapes; send base64 in one line")
    if wide > WIDE:
        raise RequestError(413, f"expected a JSON body with at most {WIDE >> 20} MiB of text outside ASCII; send less")
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise RequestError(422, f"the body is not valid JSON ({error})") from error


def _signs(body: bytes) -> Iterator[int]:
    """Yield the running count of texts, and of structural characters between them, of a JSON body.

    They are counted before parsing: a few megabytes of `1,1,1,…` become gigabytes of values and validation errors.
    """
    count = start = 0
    while start < len(body):
        quote = body.find(b'"', start, start + PIECE)
        end = min(start + PIECE, len(body)) if quote < 0 else quote
        count += sum(body.count(sign, start, end) for sign in (b",", b"[", b"{"))
        yield count
        if quote < 0:
            start = end
            continue
        while True:  # to the end of this string
            count += 1
            yield count
            last, quote = quote, body.find(b'"', quote + 1)
            if quote < 0 or body[quote - 1 : quote] != b"\\":
                break
            text = body[last + 1 : quote]
            if (len(text) - len(text.rstrip(b"\\"))) % 2 == 0:
                break
        start = len(body) if quote < 0 else quote + 1


def reject_unknown(kind: str, names: Iterable[str], known: Collection[str], *, where: str = "") -> None:
    """Raise for the first name that is not known, with the nearest known one: a misspelt one must not be ignored."""
    for name in names:
        if name not in known:
            raise RequestError(422, f"{where}{unknown_name(kind, name, known)}")


def _check_shape(body: Any, known: Collection[str], settings: ServeSettings, *, where: str = "") -> None:
    """Raise for unknown keys and for lists that are too long, before each of their values is validated."""
    if not isinstance(body, dict):
        return
    reject_unknown("key", body, known, where=where)
    limits = {
        "items": (settings.max_items, "images per request"),
        "images": (settings.max_items, "images per request"),
        "captions": (settings.max_captions, "captions per image"),
        "completions": (settings.max_items * settings.max_captions, "completions"),
        "image_of": (settings.max_items * settings.max_captions, "entries of image_of"),
    }
    for name, (most, noun) in limits.items():
        if isinstance(values := body.get(name), list) and len(values) > most:
            raise RequestError(413, f"expected at most {most} {noun}, got {len(values)}")
    items = body.get("items")
    for number, item in enumerate(items if isinstance(items, list) else ()):
        _check_shape(item, Item.model_fields, settings, where=f"items.{number}: ")


def validate(model: type[Model], body: Any) -> Model:
    """Parse a body or form; raises with the first errors."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        messages = [
            f"{('.'.join(map(str, fault['loc'])) or 'body')[:200]}: {fault['msg']}" for fault in faults[:_FAULTS]
        ]
        more = f"; and {len(faults) - _FAULTS} more" if len(faults) > _FAULTS else ""
        raise RequestError(422, "; ".join(messages) + more) from error
