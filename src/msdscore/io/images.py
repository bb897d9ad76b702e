"""Safe image decoding: any source becomes an upright RGB image or raises `ImageError`."""

import os
import re
import stat
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from PIL import Image, UnidentifiedImageError

from msdscore.errors import ConfigError, ImageError, one_line, shortened, unknown_name
from msdscore.io.files import File, TarImage

Size: TypeAlias = tuple[int, int]  # width, height
Pixels: TypeAlias = np.ndarray[Any, np.dtype[Any]]


@runtime_checkable
class Tensor(Protocol):
    """The interface of a torch tensor; torch itself is not imported here."""

    def detach(self) -> Any:
        """Detach the values from the autograd graph."""

    def is_floating_point(self) -> bool:
        """Whether the values are floats."""


# A path, the bytes of a file or an open one, one in a tar, a `{"bytes", "path"}` cell of the datasets library, a Pillow
# image, an array or a tensor; see `open_image`.
ImageSource: TypeAlias = File | bytearray | IO[bytes] | Mapping[str, Any] | Image.Image | Pixels | Tensor

# Formats with magic bytes, decoded in process: EPS starts Ghostscript, TGA accepts nearly any bytes.
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "DIB", "TIFF", "MPO", "AVIF", "JPEG2000", "PPM", "HEIF")
_ADDRESS = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+)://|(data|file):")  # not a path
_TIFF = (b"II*\0", b"MM\0*")
_JPEG_START, _JPEG_END = b"\xff\xd8", b"\xff\xd9"
_DATA_CODES = np.isin(np.arange(256), (0x00, 0xFF))  # after 0xFF: pixels, or padding before a marker
_SEGMENTS = frozenset((0xFE, *range(0xC0, 0xD0), *range(0xDA, 0xDE), *range(0xE0, 0xF0)))
_RGB = [*b"RGB"]
_ORIENTATION = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_WHITE = (255, 255, 255, 255)
_DEEP = ("I", "F")  # and everything that starts with "I;"
_CHANNELS = (1, 3, 4)  # grey, RGB, RGBA
_HALF_LEVEL = 0.5 / 255.0  # an overshoot of resampling up to this rounds to the nearest level
_DIM = 16.0  # floats above 1 whose maximum stays below it would be black on the scale of 255
_NOISY = r"PIL\.(Image|TiffImagePlugin)$"  # modules that warn of headers, which are errors or warnings of rows here


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLimits:
    """Size limits; larger images raise `ImageError`.

    >>> ImageLimits(max_pixels=1_000_000).max_pixels
    1000000
    """

    max_pixels: int = 178_956_970  # Pillow's limit; half a GiB in RGB, above any camera in use
    max_bytes: int = 256 << 20  # of the file; ordinary photographs stay under 50 MiB
    max_aspect: int = 200  # long side over short side: encoders scale the short side to 224 and more

    def __post_init__(self) -> None:
        for name in ("max_pixels", "max_bytes", "max_aspect"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")


_DEFAULT = ImageLimits()


def open_image(source: ImageSource, *, limits: ImageLimits = _DEFAULT, name: str | None = None) -> Image.Image:
    """Decode an image, upright, in RGB mode; the first frame of an animation, transparency on white.

    Arrays are (height, width) for grey, else with 1, 3 or 4 channels last; tensors may have their channels first.
    Their values are uint8, or floats from 0 to 1. Errors refer to the image by `name`, if passed.

    Raises only `ImageError`, with one line that names the source and the cause.

    >>> open_image(np.zeros((2, 3, 3), dtype=np.uint8)).size
    (3, 2)
    """
    return open_reduced(source, None, limits=limits, name=name)[0]


def open_reduced(
    source: ImageSource,
    resized: Callable[[Size], Size] | None,
    *,
    limits: ImageLimits = _DEFAULT,
    name: str | None = None,
) -> tuple[Image.Image, Size]:
    """Decode an image as `open_image` does, a large JPEG at reduced size; return it with its full size.

    `resized` maps the upright width and height to the size that is needed. The decoder reduces by 2, 4 or 8, which
    takes less time than decoding in full, and never below the size that is needed.
    """
    name = name or source_name(source)
    try:
        return _decode(source, limits, resized)
    except ImageError as error:
        raise ImageError(f"{name}: {error}") from error
    except Image.DecompressionBombError as error:
        raise ImageError(f"{name}: more pixels than Pillow accepts, a possible decompression bomb") from error
    except Exception as error:  # decoders raise anything at all on hostile bytes
        raise ImageError(f"{name}: cannot be decoded ({one_line(error)})") from error


def read_source(source: File, *, limits: ImageLimits = _DEFAULT) -> bytes:
    """Read the bytes of an image file, undecoded; raises `ImageError` as `open_image` does."""
    try:
        return _content(source, limits)
    except ImageError as error:
        raise ImageError(f"{source_name(source)}: {error}") from error
    except (OSError, ValueError) as error:  # a path with a null byte is a ValueError
        raise ImageError(f"{source_name(source)}: cannot be read ({one_line(error)})") from error


def plain_jpeg(source: File, *, limits: ImageLimits = _DEFAULT, name: str | None = None) -> tuple[bytes, Size | None]:
    """Read a file; also return its width and height if it is a JPEG that all decoders read alike.

    Such a JPEG is upright, grey or YCbCr, not progressive and not truncated; use `open_image` for all others.
    """
    name = name or source_name(source)
    content = read_source(source, limits=limits)
    if content[:2] != _JPEG_START or content[-2:] != _JPEG_END:
        return content, None
    try:
        with _open(content, limits) as image:
            _checked(image, limits)
            # Colours are RGB if Adobe's marker says so, or if the components have these letters.
            letters = [layer[0] for layer in getattr(image, "layer", ())]
            ycc = image.info.get("adobe_transform", 1) == 1 and letters != _RGB
            has_plain_colours = image.format == "JPEG" and (image.mode == "L" or (image.mode == "RGB" and ycc))
            is_upright = "progressive" not in image.info and _orientation(image) == 1
            return content, image.size if has_plain_colours and is_upright else None
    except ImageError as error:
        raise ImageError(f"{name}: {error}") from error
    except Exception:  # noqa: BLE001, `open_image` says what is wrong with it
        return content, None


def file_warnings(content: bytes) -> tuple[str, ...]:
    """Return a warning if a JPEG has markers where a whole one has none; Pillow decodes such a file without a word.

    Bytes that are overwritten with others that happen to be valid are not found.
    """
    if content[:2] != _JPEG_START or not _has_damaged_scan(content):
        return ()
    return ("damaged JPEG: a part of its pixels is wrong",)


def _has_damaged_scan(content: bytes) -> bool:
    values = np.frombuffer(content, dtype=np.uint8)
    at = np.flatnonzero(values[:-1] == 0xFF)
    at = at[~_DATA_CODES[values[at + 1]]]  # markers, apart from stuffed and fill bytes
    end, restarts, in_scan = 2, 0, False  # of the last segment
    for start, code in zip(at.tolist(), values[at + 1].tolist(), strict=True):
        if start < end:
            continue  # within a segment
        if 0xD0 <= code <= 0xD7:  # numbered in turn, if the file has them at all
            if not in_scan or restarts < 0 or code != 0xD0 + restarts % 8:
                return True
            restarts += 1
            continue
        if code == 0xD9:
            return False
        size = int.from_bytes(content[start + 2 : start + 4], "big")
        if code not in _SEGMENTS or size < 2 or (not in_scan and start > end):
            return True
        end, restarts, in_scan = start + 2 + size, 0, code == 0xDA
    return True


def from_cell(value: Any) -> Any:
    """Return the bytes or path of a `{"bytes", "path"}` cell of the datasets library; other values unchanged.

    >>> from_cell({"bytes": None, "path": "dog.jpg"}), from_cell("dog.jpg")
    ('dog.jpg', 'dog.jpg')
    """
    return value.get("bytes") or value.get("path") if isinstance(value, Mapping) else value


def refuse_address(text: str) -> None:
    """Raise `ImageError` for a URL such as https://…, with what to pass instead."""
    if (match := _ADDRESS.match(text)) is not None:
        remedies = {"file": "pass the path without file:", "data": "decode its base64 text and pass the bytes"}
        remedy = remedies.get((match[1] or match[2]).lower(), "download it first")
        raise ImageError(f"is an address, not a file; {remedy}")


def _decode(
    source: ImageSource, limits: ImageLimits, resized: Callable[[Size], Size] | None
) -> tuple[Image.Image, Size]:
    if isinstance(source, Image.Image):
        with _first_frame(source):
            copy = _finish(_checked(source, limits))
        return copy, copy.size
    if isinstance(source, np.ndarray | Tensor):
        pixels = from_array(source) if isinstance(source, np.ndarray) else from_tensor(source)
        return _checked(pixels, limits), pixels.size
    with _open(_content(source, limits), limits) as image:
        _checked(image, limits)
        size = None if resized is None else _reduce(image, resized)
        upright = _finish(image, reuse=True)
        return upright, size or upright.size


@contextmanager
def _first_frame(image: Image.Image) -> Iterator[None]:
    """Go to the first frame of an animation, and back to the current one afterwards."""
    position = image.tell()
    if position:
        image.seek(0)
    try:
        yield
    finally:
        if position:
            image.seek(position)


def _reduce(image: Image.Image, resized: Callable[[Size], Size]) -> Size | None:
    """Set a JPEG to be decoded at the size needed; return its full upright size, None for other files."""
    if image.format != "JPEG":
        return None
    width, height = image.size
    if _orientation(image) < 5:
        image.draft(None, resized((width, height)))
        return width, height
    across, down = resized((height, width))  # rotated by 90 degrees
    image.draft(None, (down, across))
    return height, width


def _content(source: File | bytearray | IO[bytes] | Mapping[str, Any], limits: ImageLimits) -> bytes:
    """Read the bytes of a file from any kind of source."""
    if isinstance(source, Mapping):
        value = from_cell(source)
        if not isinstance(value, str | Path | bytes | bytearray) or not value:
            raise ImageError(
                f"expected a cell with bytes or a path, got the names {', '.join(map(str, source)) or 'none'}"
            )
        source = value
    if isinstance(source, TarImage):
        _check_bytes(source.size, limits)
        return source.read()
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source)
    if isinstance(source, BytesIO):
        return source.getvalue()  # independent of the position, which is at the end after `save`
    if isinstance(source, str | os.PathLike) and source != "":
        refuse_address(str(source))
        return _read(Path(source), limits)
    with suppress(OSError, ValueError, AttributeError):  # from the start, as Pillow reads; a pipe has none
        source.seek(0)  # type: ignore[union-attr]
    data = source.read(limits.max_bytes + 1) if hasattr(source, "read") else None
    if not isinstance(data, bytes):
        got = "empty text" if source == "" else "a file opened as text" if data is not None else type(source).__name__
        raise ImageError(
            "expected a path, the bytes of a file, a file opened for reading bytes, a Pillow image, an array or a "
            f"tensor, got {got}"
        )
    return data


def _read(path: Path, limits: ImageLimits) -> bytes:
    """Read a regular file; a pipe or a device could block forever, so these raise."""
    try:
        status = path.stat()
    except FileNotFoundError as error:
        hint = "; it has backslashes, write its folders with /" if "\\" in str(path) else ""
        raise ImageError(f"no such file{hint}") from error
    except OSError as error:  # no permission, or a name that is too long; its text would repeat the name
        raise ImageError(f"cannot be read ({error.strerror})") from error
    if stat.S_ISDIR(status.st_mode):
        raise ImageError("is a folder, not an image")
    if not stat.S_ISREG(status.st_mode):
        raise ImageError("is not a regular file")
    _check_bytes(status.st_size, limits)
    return path.read_bytes()


def _check_bytes(size: int, limits: ImageLimits) -> None:
    if size == 0:
        raise ImageError("is empty")
    if size > limits.max_bytes:
        raise ImageError(f"{size} bytes, more than the limit of {limits.max_bytes} (max_bytes)")


def _open(data: bytes, limits: ImageLimits) -> Image.Image:
    """Open an image and read its header, without decoding pixels."""
    _check_bytes(len(data), limits)
    _hide_warnings()
    Image.preinit()  # only JPEG, PNG and a few more: importing all formats takes as long as a score
    with suppress(UnidentifiedImageError):
        return Image.open(BytesIO(data), formats=_known_formats())
    Image.init()
    try:
        return Image.open(BytesIO(data), formats=_known_formats())
    except UnidentifiedImageError as error:
        if data[:4] in _TIFF:
            raise ImageError(
                "a truncated TIFF, or one with an unsupported pixel type (colours with 16 or more bits, or as "
                "floats); save it with 8 bits per colour"
            ) from error
        raise ImageError(
            f"not an image of a supported format ({', '.join(_known_formats())}), or truncated within its header"
        ) from error


def _known_formats() -> list[str]:
    return [name for name in _FORMATS if name in Image.OPEN]


def _checked(image: Image.Image, limits: ImageLimits) -> Image.Image:
    width, height = image.size
    if width < 1 or height < 1:
        raise ImageError("has no pixels")
    if width * height > limits.max_pixels:
        raise ImageError(f"{width}x{height} pixels, more than the limit of {limits.max_pixels} (max_pixels)")
    if max(width, height) > limits.max_aspect * min(width, height):
        raise ImageError(f"{width}x{height} pixels is thinner than 1:{limits.max_aspect} (max_aspect)")
    return image


def _finish(image: Image.Image, *, reuse: bool = False) -> Image.Image:
    """Decode and convert an image to upright RGB, without metadata; with `reuse` its pixels need not be copied."""
    image.load()
    # After loading: a PNG may have its EXIF after the pixels, and Pillow rotates a TIFF while loading.
    step = _UPRIGHT.get(_orientation(image))
    upright = to_rgb(image) if step is None else to_rgb(image).transpose(step)
    # Pixels only: no open file, and no EXIF that would rotate the image a second time.
    if upright is not image:
        plain = upright
    elif reuse:
        # Not copied: nobody else refers to these pixels, and a copy would block all decoding threads.
        plain = image._new(image.im)
    else:
        plain = image.copy()
    plain.info = {}
    return plain


def _orientation(image: Image.Image) -> int:
    _hide_warnings()
    try:
        value = image.getexif().get(_ORIENTATION, 1)
    except Exception:  # noqa: BLE001, an image with broken EXIF is still an image, and upright as far as known
        return 1
    return value if isinstance(value, int) else 1


def _hide_warnings() -> None:
    """Hide Pillow's warnings of headers in this process: filters of a thread do not exist."""
    # The caller may have added others or reset them; adding a filter makes every warning of the process appear again.
    first = warnings.filters[0][3] if warnings.filters else None
    if getattr(first, "pattern", first) != _NOISY:
        warnings.filterwarnings("ignore", module=_NOISY)


def source_name(source: ImageSource) -> str:
    """Return the name of an image in error messages."""
    if isinstance(source, Mapping) and isinstance(source.get("path"), str):
        return shortened(source["path"]) or "image"
    if isinstance(source, str | Path | TarImage):
        return shortened(str(source)) or "image"
    if isinstance(source, bytes | bytearray):
        return f"image of {len(source)} bytes"
    return "image in memory"


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert to RGB: deep greys are scaled to 8 bit, transparency is composited on white.

    White is the background of nearly every page and viewer; dropping the alpha channel instead would show the
    hidden colours of the file, often black.

    >>> to_rgb(Image.new("RGBA", (1, 1), (255, 0, 0, 0))).getpixel((0, 0))
    (255, 255, 255)
    """
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode in _DEEP or image.mode.startswith("I;"):
        return Image.fromarray(_deep_grey(np.asarray(image))).convert("RGB")
    if not image.has_transparency_data:
        return image.convert("RGB")
    # Premultiplied modes only convert to their plain twins.
    plain = image.convert({"La": "LA", "RGBa": "RGBA"}.get(image.mode, image.mode))
    layer = plain.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", layer.size, _WHITE), layer).convert("RGB")


def from_tensor(tensor: Tensor) -> Image.Image:
    """Convert a tensor to an image; channels are first (as in torch) or last.

    Raises:
        ImageError: the shape or the values are not those of an image.
    """
    plain = tensor.detach().cpu()
    # numpy has no bfloat16.
    values: Pixels = (plain.float() if tensor.is_floating_point() else plain).numpy()
    if values.ndim != 3:
        return from_array(values)
    first, last = values.shape[0] in _CHANNELS, values.shape[2] in _CHANNELS
    if first and last:
        raise ImageError(f"shape {values.shape} may have channels first or last; pass a numpy array, channels last")
    if not (first or last):
        raise ImageError(f"expected a tensor of shape (3, height, width) or (height, width, 3), got {values.shape}")
    return from_array(np.moveaxis(values, 0, 2) if first else values)


def from_array(values: Pixels) -> Image.Image:
    """Convert an array, (height, width) or with 1, 3 or 4 channels last; uint8, or floats from 0 to 1.

    >>> from_array(np.full((1, 1, 3), 0.5)).getpixel((0, 0))
    (128, 128, 128)
    """
    if values.size == 0:
        raise ImageError("has no pixels")
    if np.ma.is_masked(values):
        raise ImageError("has masked pixels; replace them first, as by array.filled(0)")
    if values.ndim not in (2, 3) or (values.ndim == 3 and values.shape[2] not in _CHANNELS):
        expected = "expected an array of shape (height, width), (height, width, 3) or (height, width, 4)"
        batch = "; pass the images of a batch one by one" if values.ndim == 4 else ""
        is_first = values.ndim == 3 and values.shape[0] in _CHANNELS
        first = "; channels come last: array.transpose(1, 2, 0)" if is_first else ""
        raise ImageError(f"{expected}, got {values.shape}{batch}{first}")
    if values.dtype != np.uint8:
        if not np.issubdtype(values.dtype, np.floating):
            raise ImageError(f"expected uint8 values from 0 to 255 or floats from 0 to 1, got {values.dtype}")
        low, high = _finite_range(values)
        if low < -_HALF_LEVEL or high > 1.0 + _HALF_LEVEL:
            got = f"got {low:.4g} to {high:.4g}; undo a normalisation, or pass levels as uint8"
            raise ImageError(f"expected floats from 0 to 1, {got}")
        values = _scaled(values, 1.0)
    levels = np.ascontiguousarray(values)
    return to_rgb(Image.fromarray(levels[:, :, 0] if levels.ndim == 3 and levels.shape[2] == 1 else levels))


def _deep_grey(values: Pixels) -> Pixels:
    """Scale 16 or 32 bits per pixel to 8, with the bit depth inferred from the values."""
    low, high = _finite_range(values)
    if np.issubdtype(values.dtype, np.floating):
        if low >= -_HALF_LEVEL and high <= 1.0 + _HALF_LEVEL:
            return _scaled(values, 1.0)
        if low >= 0.0 and _DIM <= high <= 255.0:
            return _scaled(values, 255.0)
        raise ImageError(f"expected float pixels from 0 to 1 or from 0 to 255, got {low:.4g} to {high:.4g}; rescale it")
    if low < 0 or high > 65535:
        raise ImageError(f"expected pixels from 0 to 65535, got {low:.0f} to {high:.0f}; rescale it")
    # 8, 10 and 12 bits are often stored in 16; read as 16 they would be black.
    return _scaled(values, next(top for top in (255.0, 1023.0, 4095.0, 65535.0) if high <= top))


def _finite_range(values: Pixels) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    if not (np.isfinite(low) and np.isfinite(high)):  # a NaN anywhere makes both NaN
        raise ImageError("contains NaN or infinite pixels; replace them first")
    return low, high


def _scaled(values: Pixels, top: float) -> Pixels:
    levels: Pixels = np.clip(np.rint(values.astype(np.float64) * (255.0 / top)), 0, 255).astype(np.uint8)
    return levels


# Photographs that come with the package, for examples and the demo; NOTICE names their authors and licences.
_PHOTOGRAPHS = Path(__file__).parents[1] / "photographs"
_SAMPLES = {
    "cat": "chelsea",
    **{name: name for name in ("coffee", "flower", "photographer", "temple", "towers")},
}


def sample_image(name: str) -> Path:
    """Return the path of a sample photograph: cat, coffee, flower, photographer, temple or towers.

    >>> sample_image("cat").suffix
    '.jpg'

    Raises:
        UnknownNameError: there is no such photograph.
    """
    if name not in _SAMPLES:
        raise unknown_name("sample image", name, _SAMPLES)
    return _PHOTOGRAPHS / f"{_SAMPLES[name]}.jpg"
