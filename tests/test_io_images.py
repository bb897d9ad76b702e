import os
import struct
import threading
import warnings
import zlib
from contextlib import suppress
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile

from msdscore import Scorer
from msdscore.errors import ConfigError, ImageError
from msdscore.io.files import pixel_key
from msdscore.io.images import ImageLimits, file_warnings, open_image

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def corners() -> Image.Image:
    """Return a wide image: red top left, green top right, blue bottom left, white bottom right."""
    image = Image.new("RGB", (48, 32), WHITE)
    image.paste(RED, (0, 0, 24, 16))
    image.paste(GREEN, (24, 0, 48, 16))
    image.paste(BLUE, (0, 16, 24, 32))
    return image


def levels(image: Image.Image, x: int, y: int) -> tuple[int, ...]:
    pixel = image.getpixel((x, y))
    assert isinstance(pixel, tuple)
    return pixel


def seen_corners(image: Image.Image) -> list[str]:
    width, height = image.size
    places = [(2, 2), (width - 3, 2), (2, height - 3), (width - 3, height - 3)]
    names = {RED: "red", GREEN: "green", BLUE: "blue", WHITE: "white"}
    pixels = [levels(image, *place) for place in places]
    return [
        names[min(names, key=lambda known: sum(abs(a - b) for a, b in zip(known, pixel, strict=True)))]
        for pixel in pixels
    ]


def png_header(width: int, height: int) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_exif_rotation_is_applied_once(kind, orientation):
    # The stored image that shows the corners after rotation.
    stored = {
        1: lambda image: image,
        2: lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
        3: lambda image: image.transpose(Image.Transpose.ROTATE_180),
        4: lambda image: image.transpose(Image.Transpose.FLIP_TOP_BOTTOM),
        5: lambda image: image.transpose(Image.Transpose.TRANSPOSE),
        6: lambda image: image.transpose(Image.Transpose.ROTATE_90),
        7: lambda image: image.transpose(Image.Transpose.TRANSVERSE),
        8: lambda image: image.transpose(Image.Transpose.ROTATE_270),
    }[orientation](corners())
    exif = Image.Exif()
    exif[0x0112] = orientation
    upright = open_image(encoded(stored, kind, exif=exif))
    assert upright.size == (48, 32)
    assert seen_corners(upright) == ["red", "green", "blue", "white"]
    assert seen_corners(open_image(upright)) == ["red", "green", "blue", "white"]


def test_exif_after_the_pixels_of_a_png_is_applied():
    exif = Image.Exif()
    exif[0x0112] = 3
    data = encoded(corners().rotate(180), "PNG", exif=exif)
    start = data.index(b"eXIf") - 4
    size = 12 + struct.unpack(">I", data[start : start + 4])[0]
    chunk, rest = data[start : start + size], data[:start] + data[start + size :]
    end = rest.index(b"IEND") - 4
    assert seen_corners(open_image(rest[:end] + chunk + rest[end:])) == ["red", "green", "blue", "white"]


def test_invalid_exif_is_ignored():
    for exif in (
        b"Exif\0\0nonsense",
        b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\xff\xff\xff\xff\0\x06\0\0",
    ):
        assert seen_corners(open_image(encoded(corners(), "JPEG", exif=exif)))[0] == "red"


@pytest.mark.parametrize(
    ("mode", "color"),
    [("RGBA", (255, 0, 0, 0)), ("LA", (0, 0)), ("PA", (0, 0)), ("La", (0, 0)), ("RGBa", (0, 0, 0, 0))],
)
def test_transparent_pixels_are_white(mode, color):
    assert open_image(Image.new(mode, (2, 2), color)).getpixel((0, 0)) == WHITE


def test_half_transparent_red_is_pink():
    data = encoded(Image.new("RGBA", (2, 2), (255, 0, 0, 128)), "PNG")
    assert open_image(data).getpixel((0, 0)) == pytest.approx((255, 127, 127), abs=1)


@pytest.mark.parametrize("transparency", [0, bytes([0, 255])])
def test_palette_with_transparency(transparency):
    image = Image.new("P", (2, 1))
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.putpixel((1, 0), 1)
    shown = open_image(encoded(image, "PNG", transparency=transparency))
    assert [shown.getpixel((x, 0)) for x in (0, 1)] == [WHITE, BLUE]


@pytest.mark.parametrize(("mode", "key"), [("L", 7), ("RGB", (7, 7, 7))])
def test_colour_key_transparency(mode, key):
    image = Image.new(mode, (2, 1), key)
    image.putpixel((1, 0), 0 if mode == "L" else (0, 0, 0))
    shown = open_image(encoded(image, "PNG", transparency=key))
    assert [shown.getpixel((x, 0)) for x in (0, 1)] == [WHITE, (0, 0, 0)]


@pytest.mark.parametrize("mode", ["1", "L", "P", "YCbCr", "HSV", "LAB", "CMYK", "RGBX"])
def test_white_of_every_mode_is_white(mode):
    white = Image.new("RGB", (4, 4), WHITE)
    image = Image.new("LAB", (4, 4), (255, 128, 128)) if mode == "LAB" else white.convert(mode)
    assert open_image(image).getpixel((1, 1)) == pytest.approx(WHITE, abs=1)


@pytest.mark.parametrize("color", [RED, GREEN, BLUE, WHITE, (0, 0, 0)])
def test_cmyk_jpeg_has_correct_colours(color):
    data = encoded(Image.new("RGB", (16, 16), color).convert("CMYK"), "JPEG", quality=95)
    assert b"Adobe" in data  # the marker for inverted CMYK
    assert open_image(data).getpixel((8, 8)) == pytest.approx(color, abs=3)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_16_bit_grey_is_scaled(kind):
    values = np.array([[0, 257 * 100, 65535]], dtype=np.uint16)
    shown = open_image(encoded(Image.fromarray(values), kind))
    assert [levels(shown, x, 0)[0] for x in range(3)] == [0, 100, 255]


def test_16_bit_pgm_is_scaled():
    data = b"P5\n3 1\n65535\n" + np.array([0, 25700, 65535], dtype=">u2").tobytes()
    assert [levels(open_image(data), x, 0)[0] for x in range(3)] == [0, 100, 255]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([[0, 100, 255]], dtype=np.int32), [0, 100, 255]),
        (np.array([[0, 25700, 65535]], dtype=np.int32), [0, 100, 255]),
        (np.array([[0, 2048, 4095]], dtype=np.uint16), [0, 128, 255]),  # 12 bits stored in 16
        (np.array([[0, 512, 1023]], dtype=np.uint16), [0, 128, 255]),
        (np.array([[0, 128, 255]], dtype=np.uint16), [0, 128, 255]),
        (np.array([[0.0, 0.5, 1.0]], dtype=np.float32), [0, 128, 255]),
        (np.array([[0.0, 100.0, 255.0]], dtype=np.float32), [0, 100, 255]),
        (np.array([[-0.001, 0.5, 1.001]], dtype=np.float32), [0, 128, 255]),  # overshoot of resampling
    ],
)
def test_deep_grey_is_scaled_by_its_range(values, expected):
    image = Image.fromarray(values)
    for shown in (open_image(image), open_image(encoded(image, "TIFF"))):
        assert [levels(shown, x, 0)[0] for x in range(3)] == expected


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (np.array([[np.nan, 0.5, 1.0]], dtype=np.float32), "NaN or infinite"),
        (np.array([[np.inf, 0.5, 1.0]], dtype=np.float32), "NaN or infinite"),
        (np.array([[0.0, 0.5, 1e6]], dtype=np.float32), "got 0 to 1e.06"),
        (np.array([[-1.0, 0.0, 1.0]], dtype=np.float32), "got -1 to 1;"),
        (np.array([[0.0, 0.5, 1.5]], dtype=np.float32), "got 0 to 1.5;"),  # black on the scale of 255
        (np.array([[-1000, 0, 1000]], dtype=np.int32), "65535, got -1000 to 1000"),
        (np.array([[0, 70000, 70000]], dtype=np.int32), "got 0 to 70000"),
    ],
)
def test_ambiguous_pixel_values_are_rejected(values, reason):
    for source in (Image.fromarray(values), encoded(Image.fromarray(values), "TIFF")):
        with pytest.raises(ImageError, match=reason):
            open_image(source)


def test_tiff_with_float_colours_is_rejected():
    fields = [(256, 1, 1), (257, 1, 1), (258, 3, 134), (259, 1, 1), (262, 1, 2), (273, 1, 146), (277, 1, 3),
              (278, 1, 1), (279, 1, 12), (339, 3, 140)]  # fmt: skip
    entries = b"".join(struct.pack("<HHII", tag, 3, count, value) for tag, count, value in fields)
    ends = struct.pack("<I6H3f", 0, 32, 32, 32, 3, 3, 3, 0.1, 0.2, 0.3)
    with pytest.raises(ImageError, match="truncated TIFF"):
        open_image(struct.pack("<2sHIH", b"II", 42, 8, len(fields)) + entries + ends)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_first_frame_of_animations_is_used(kind):
    frames = [Image.new("RGB", (8, 8), color) for color in (RED, GREEN, BLUE)]
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:])
    assert open_image(data).getpixel((4, 4)) == pytest.approx(RED, abs=3)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "WEBP"])
def test_image_of_one_pixel(kind):
    assert open_image(encoded(Image.new("RGB", (1, 1), RED), kind)).size == (1, 1)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
@pytest.mark.parametrize("kept", [0.02, 0.3, 0.7])
def test_truncated_files_are_rejected(kind, kept):
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    data = encoded(Image.fromarray(noise), kind)
    with pytest.raises(ImageError, match=r"^image of \d+ bytes: (can)?not") as caught:
        open_image(data[: int(len(data) * kept)])
    assert "\n" not in str(caught.value)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["JPEG", "PNG", "GIF", "TIFF", "WEBP"]),
    st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=20),
)
def test_damaged_bytes_give_an_image_or_an_image_error(kind, damage):
    data = bytearray(encoded(corners(), kind))
    for place, value in damage:
        data[place % len(data)] = value
    with suppress(ImageError):
        assert open_image(bytes(data)).mode == "RGB"


def test_decompression_bomb_is_rejected_by_its_header():
    with pytest.raises(ImageError, match="decompression bomb"):
        open_image(png_header(100_000, 100_000))


def test_sizes_that_pillow_warns_about_are_rejected():
    data = png_header(10_000, 10_000)
    with pytest.raises(ImageError, match=r"10000x10000 .*\(max_pixels\)"):
        open_image(data, limits=ImageLimits(max_pixels=1_000_000))
    with pytest.raises(ImageError, match="cannot be decoded"):  # allowed by size, and then it has too few pixels
        open_image(data)


def test_image_limits():
    with pytest.raises(ImageError, match=r"limit of 10 \(max_bytes\)"):
        open_image(encoded(corners(), "PNG"), limits=ImageLimits(max_bytes=10))
    with pytest.raises(ImageError, match=r"4x2000 .*\(max_aspect\)"):
        open_image(Image.new("RGB", (4, 2000)))
    with pytest.raises(ConfigError, match="max_pixels .*got 0"):
        ImageLimits(max_pixels=0)


def test_files_that_are_not_images_are_rejected(tmp_path):
    (tmp_path / "text.jpg").write_text("not an image\n" * 50)
    (tmp_path / "empty.png").touch()
    with pytest.raises(ImageError, match=r"text\.jpg: not an image"):
        open_image(tmp_path / "text.jpg")
    with pytest.raises(ImageError, match=r"empty\.png: is empty"):
        open_image(str(tmp_path / "empty.png"))
    with pytest.raises(ImageError, match=r"missing\.png: no such file"):
        open_image(tmp_path / "missing.png")
    with pytest.raises(ImageError, match="is a folder, not an image"):
        open_image(tmp_path)
    with pytest.raises(ImageError, match="/dev/null: is not a regular"):
        open_image("/dev/null")
    with pytest.raises(ImageError, match="cannot be decoded"):
        open_image("a\0b.png")


def test_postscript_is_rejected():
    with pytest.raises(ImageError, match="not an image"):
        open_image(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n")


def test_invalid_sources_are_rejected(tmp_path):
    with pytest.raises(ImageError, match="image in memory: has no pixels"):
        open_image(Image.new("RGB", (0, 5)))
    for odd, got in ((None, "NoneType"), (StringIO("x"), "a file opened as text"), ([1], "list"), ("", "empty text")):
        with pytest.raises(ImageError, match=f"^image.*: expected .*got {got}$"):
            open_image(odd)  # type: ignore[arg-type]
    with pytest.raises(ImageError, match="a.org/b.jpg: .*download it"):
        open_image("https://a.org/b.jpg")
    with pytest.raises(ImageError, match="///a/b.jpg: .*without file:"):
        open_image("file:///a/b.jpg")
    with pytest.raises(ImageError, match="decode its base64"):
        open_image("data:image/png;base64,AAAA")
    with pytest.raises(ImageError, match="^x+ … x+: .*name too long") as caught:
        open_image("x" * 5000)
    assert len(str(caught.value)) < 200
    given = corners()
    shown = open_image(given)
    shown.putpixel((0, 0), BLUE)
    assert given.getpixel((0, 0)) == RED
    path = tmp_path / "corners.png"
    given.save(path)
    with Image.open(path) as lazy:
        assert pixel_key(open_image(lazy)) == pixel_key(given)


def test_array_file_and_bytes_give_the_same_pixels(tmp_path):
    path = tmp_path / "corners.png"
    corners().save(path)
    data, pixels = path.read_bytes(), np.asarray(corners())
    written = BytesIO()
    corners().save(written, "PNG")  # its position is the end
    with path.open("rb") as opened:
        sources = [path, str(path), data, bytearray(data), BytesIO(data), written, opened, corners(), pixels]
        assert len({pixel_key(open_image(source)) for source in sources}) == 1


def test_arrays_and_tensors_of_every_accepted_kind_give_the_same_pixels():
    pixels = np.asarray(corners())
    unit = pixels / 255.0
    opaque = np.dstack([pixels, np.full(pixels.shape[:2], 255, dtype=np.uint8)])
    first = torch.from_numpy(pixels.copy()).permute(2, 0, 1)
    arrays = [pixels, unit, unit.astype(np.float32), unit.astype(np.float16), opaque, opaque / 255.0, pixels[:, ::1]]
    tensors = [
        first,
        first / 255,
        first.permute(1, 2, 0),
        (first / 255).bfloat16(),
        first.float().div(255).requires_grad_(),
    ]
    assert len({pixel_key(open_image(source)) for source in [*arrays, *tensors]}) == 1
    grey = np.arange(30, dtype=np.uint8).reshape(5, 6)
    greys = [
        grey,
        grey[:, :, None],
        torch.from_numpy(grey),
        torch.from_numpy(grey)[None],
        np.repeat(grey[:, :, None], 3, 2),
    ]
    assert len({pixel_key(open_image(source)) for source in greys}) == 1
    assert open_image(np.zeros((2, 2, 4), dtype=np.uint8)).getpixel((0, 0)) == WHITE


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (np.zeros((3, 8, 9), dtype=np.uint8), r"got \(3, 8, 9\); channels come last: array.transpose\(1, 2, 0\)"),
        (np.zeros((1, 8, 9, 3), dtype=np.uint8), "pass the images of a batch one by one"),
        (np.zeros(8, dtype=np.uint8), r"expected an array of shape \(height, width\), .*, got \(8,\)"),
        (np.zeros((8, 9, 2), dtype=np.uint8), r"got \(8, 9, 2\)"),
        (np.zeros((0, 9, 3), dtype=np.uint8), "has no pixels"),
        (np.zeros((8, 9, 3), dtype=np.int64), "expected uint8 values from 0 to 255 or floats from 0 to 1, got int64"),
        (np.full((8, 9, 3), 255.0), "expected floats from 0 to 1, got 255 to 255; .* pass levels as uint8"),
        (np.linspace(-2.1, 2.6, 12).reshape(2, 2, 3), r"got -2\.1 to 2\.6; undo a normalisation"),
        (np.full((8, 9, 3), np.nan), "NaN or infinite"),
        (torch.zeros(5, 8, 9), r"a tensor of shape \(3, height, width\) or \(height, width, 3\), got \(5, 8, 9\)"),
        (torch.zeros(3, 8, 3), r"shape \(3, 8, 3\) may have channels first or last"),
        (torch.zeros(1, 3, 8, 9), "pass the images of a batch one by one"),
        (torch.zeros(3, 8, 9, dtype=torch.int32), "got int32"),
        (torch.zeros(3, 1, 900), r"900x1 pixels is thinner"),
    ],
)
def test_wrong_layouts_and_ranges_are_rejected(source, reason):
    with pytest.raises(ImageError, match=f"^image in memory: .*{reason}"):
        open_image(source)


def test_threads_do_not_change_process_state():
    before = (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES)
    hostile = [png_header(10_000, 10_000), encoded(corners(), "JPEG", exif=b"Exif\0\0MM\0*\0\0"), b"text"]
    escaped: list[BaseException] = []

    def work() -> None:
        for data in hostile * 10:
            try:
                open_image(data, limits=ImageLimits(max_pixels=10_000))
            except ImageError:
                pass
            except BaseException as error:  # noqa: BLE001, any error must fail the test
                escaped.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert escaped == []
    assert before == (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES)


def test_error_contains_the_path_as_passed():
    with pytest.raises(ImageError, match=r"^pictures/dög\.png: no such"):
        open_image(Path("pictures/dög.png"))


@pytest.mark.skipif(os.name == "nt", reason="a backslash is a path separator there")
def test_windows_paths_are_reported():
    with pytest.raises(ImageError, match="it has backslashes"):
        open_image("photos\\dog.jpg")


def test_first_frame_is_used_and_the_position_of_an_open_animation_is_kept():
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "lime", "blue")]
    stream = BytesIO()
    frames[0].save(stream, "GIF", save_all=True, append_images=frames[1:])
    with Image.open(stream) as animation:
        animation.seek(2)
        assert open_image(animation).getpixel((0, 0)) == (255, 0, 0)
        assert animation.tell() == 2


def test_masked_pixels_are_rejected():
    values = np.ma.masked_array(np.zeros((4, 4), np.uint8), mask=np.eye(4, dtype=bool))
    with pytest.raises(ImageError, match="masked"):
        open_image(values)
    assert open_image(np.ma.masked_array(np.zeros((4, 4), np.uint8))).size == (4, 4)


def noisy_jpeg(**options):
    stream = BytesIO()
    Image.effect_noise((200, 150), 60).convert("RGB").save(stream, "JPEG", **options)
    return stream.getvalue()


@pytest.mark.parametrize(
    "options",
    [{}, {"progressive": True}, {"restart_marker_blocks": 3}, {"restart_marker_rows": 1, "progressive": True},
     {"optimize": True, "subsampling": 0, "quality": 100}, {"comment": b"\xff\xd0 in a comment \xff\x02"}],
)  # fmt: skip
def test_overwritten_bytes_of_a_jpeg_give_a_warning(options):
    content = noisy_jpeg(**options)
    assert file_warnings(content) == file_warnings(content + b"behind the end") == ()
    middle = len(content) // 2
    random = np.random.default_rng(0).bytes(2048)
    damaged = content[:middle] + random + content[middle + len(random) :]
    assert "damaged" in file_warnings(damaged)[0]
    with suppress(ImageError):  # Pillow decodes most of them
        open_image(damaged)


def test_other_formats_and_short_files_have_no_warnings_about_the_file():
    for content in (b"", b"\xff\xd8", b"\x89PNG", b"RIFF\xff\xd8"):
        assert file_warnings(content) in ((), ("damaged JPEG: a part of its pixels is wrong",))


def test_a_damaged_jpeg_is_scored_with_a_warning(tmp_path):
    content = bytearray(noisy_jpeg())
    content[5000:5002] = b"\xff\xd1"  # a restart in a file without them, which decoders skip
    (tmp_path / "a.jpg").write_bytes(content)
    for source in (tmp_path / "a.jpg", bytes(content)):
        assert any("damaged JPEG" in text for text in Scorer("toy").score(source, "a red square").warnings)


def test_an_open_file_may_be_scored_twice(tmp_path):
    Image.new("RGB", (8, 8), "red").save(tmp_path / "red.png")
    with (tmp_path / "red.png").open("rb") as file:
        first, second = open_image(file), open_image(file)
    assert first.tobytes() == second.tobytes()


def test_odd_metadata_is_no_error_if_warnings_are(tmp_path):
    exif = Image.Exif()
    exif[0x9286], exif[0x0112] = b"\xff" * 5, 99
    Image.new("RGB", (48, 32), "red").save(tmp_path / "odd.jpg", exif=exif.tobytes()[:-9])
    open_image(tmp_path / "odd.jpg")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # after the first image
        assert open_image(tmp_path / "odd.jpg").size == (48, 32)
