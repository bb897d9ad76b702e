"""Cheaper pixels, asked for by name: JPEG files decoded at reduced size, and resizing where the network runs."""

from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

from msdscore.encoders.registry import load_encoder
from msdscore.encoders.vision import canvas
from msdscore.encoders.vision.canvas import prepared_pixels
from msdscore.encoders.vision.preprocessing import Preprocessing, prepare_picture, stack_pixels
from msdscore.errors import ConfigError, ImageError
from msdscore.io.images import ImageLimits, open_image, open_reduced
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.stream import Request, score_requests
from tiny_clip import make_tiny_clip

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return str(make_tiny_clip(tmp_path_factory.mktemp("clip") / "tiny"))


def photograph(width, height):
    """Soft shapes with grain, red on the left."""
    noise = np.random.RandomState(width)
    coarse = Image.fromarray(noise.randint(0, 255, (6, 8, 3), dtype=np.uint8)).resize((width, height), 3)
    mixed = np.asarray(coarse) + noise.normal(0, 8, (height, width, 3))
    mixed[:, : width // 2, 0] += 80
    return Image.fromarray(mixed.clip(0, 255).astype(np.uint8))


def jpeg(picture, **settings):
    file = BytesIO()
    picture.save(file, "JPEG", quality=90, **settings)
    return file.getvalue()


@pytest.mark.parametrize(("needed", "decoded"), [(33, 34), (34, 67), (67, 133), (134, 266), (300, 266)])
def test_a_jpeg_is_decoded_no_larger_than_needed_and_never_smaller(needed, decoded):
    content = jpeg(photograph(400, 266))
    picture, size = open_reduced(content, lambda size: (needed * size[0] // size[1], needed))
    assert size == (400, 266)
    assert picture.height == decoded


def test_a_turned_jpeg_keeps_its_upright_size():
    exif = Image.Exif()
    exif[0x0112] = 6
    asked = []
    picture, size = open_reduced(jpeg(photograph(400, 200), exif=exif), lambda size: asked.append(size) or (50, 60))
    assert asked == [size] == [(200, 400)]
    assert picture.size == (50, 100)  # a quarter: an eighth would be 25 wide
    pixels = np.asarray(picture).astype(float)
    assert pixels[:50, :, 0].mean() > pixels[50:, :, 0].mean() + 30  # red was on the left


def test_other_files_and_pictures_in_memory_are_whole_and_limits_see_the_whole():
    file = BytesIO()
    photograph(400, 200).save(file, "PNG")
    for source in (file.getvalue(), photograph(400, 200)):
        picture, size = open_reduced(source, lambda _: (10, 10))
        assert picture.size == size == (400, 200)
    with pytest.raises(ImageError, match="more than the limit of 50000"):
        open_reduced(jpeg(photograph(400, 200)), lambda _: (10, 10), limits=ImageLimits(max_pixels=50_000))
    with pytest.raises(ImageError, match="cannot be decoded"):
        open_reduced(jpeg(photograph(400, 200))[:900], lambda _: (10, 10))


@pytest.mark.parametrize(("how", "side"), [("reduced", 2), ("smallest", 1)])
def test_reduced_pictures_score_nearly_as_whole_ones_with_boxes_of_the_original(clip, tmp_path, how, side, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        canvas, "prepared_pixels", lambda *some, **more: drawn.append(some) or prepared_pixels(*some, **more)
    )
    path = tmp_path / "large.jpg"
    path.write_bytes(jpeg(photograph(640, 480)))
    whole, reduced = (Pipeline(load_encoder(clip, device="cpu", jpeg=jpeg)) for jpeg in ("full", how))
    assert f",jpeg:{how}," in reduced.signature
    assert "jpeg" not in whole.signature
    before, after = (pipeline.embed_images(pipeline.decode([path])).vectors for pipeline in (whole, reduced))
    assert drawn[0][0].height == 60 * side  # 32 are needed
    assert after.layout[0].size == (640, 480)
    torch.testing.assert_close(after.layout[0].boxes, before.layout[0].boxes)
    assert not torch.equal(before.points, after.points)
    torch.testing.assert_close(after.points, before.points, rtol=0, atol=0.05)
    (kept,) = reduced.decode([path], keep=True)
    assert kept.picture.size == (640, 480)
    torch.testing.assert_close(kept.prepared.pixels, reduced.decode([path])[0].prepared.pixels, rtol=0, atol=0)


def test_every_way_through_the_pipeline_reduces_alike(clip, tmp_path):
    paths = [tmp_path / f"{side}.jpg" for side in (300, 500)]
    for path in paths:
        path.write_bytes(jpeg(photograph(int(path.stem), 300)))
    encoder, captions = load_encoder(clip, device="cpu", jpeg="reduced"), ["a cat", "the dog"]
    asked = [Request(paths, captions, range(2))]
    alone = Pipeline(encoder).score(Pipeline(encoder).decode(paths), captions, range(2))
    threads, processes = (
        [one for found in score_requests(Pipeline(encoder, decoders=count), asked) for one in found] for count in (0, 1)
    )
    assert alone == threads == processes


@pytest.mark.parametrize("size", [(64, 64), (97, 41), (41, 97), (20, 31), (500, 333), (40, 24)])
@pytest.mark.parametrize(
    "steps",
    [
        Preprocessing(32, (32, 32)),
        Preprocessing(32, (40, 24)),
        Preprocessing((24, 40), None),
        Preprocessing(48, (64, 64)),
    ],
    ids=["crop", "mixed", "squash", "pad"],
)
def test_pixels_of_the_device_are_near_pillows(size, steps):
    picture = photograph(*size)
    usual = stack_pixels([prepare_picture(picture, steps)], steps, CPU)
    there = Preprocessing(steps.resize, steps.crop, on_device=True)
    ready = prepare_picture(picture, there)
    assert ready.view == prepare_picture(picture, steps).view
    found = stack_pixels([ready], there, CPU)
    # Pillow's weights are whole numbers, and from version 13 on it may take the height first.
    assert 255 * (found - usual).abs().max() <= 3.01
    assert 255 * (found - usual).abs().mean() < 0.3


def test_large_pictures_are_not_sent_whole():
    there = Preprocessing(32, (32, 32), on_device=True)
    assert prepare_picture(Image.new("RGB", (1025, 1024)), there).pixels.shape == (3, 32, 32)
    assert prepare_picture(Image.new("RGB", (1024, 1024)), there).pixels.shape == (3, 1024, 1024)


def test_resizing_on_the_device_is_named_and_changes_little(clip, tmp_path):
    pictures = [photograph(120, 80), photograph(32, 32), photograph(64, 100)]
    usual, there = (load_encoder(clip, device="cpu", resize=how) for how in ("pillow", "device"))
    assert there.signature == usual.signature.replace(",dtype", ",resize:device,dtype")
    before, after = (one.encode_images([one.prepare(picture) for picture in pictures]) for one in (usual, there))
    torch.testing.assert_close(after.points, before.points, rtol=0, atol=0.02)
    for left, right in zip(before.layout, after.layout, strict=True):
        torch.testing.assert_close(left.boxes, right.boxes)


def test_what_is_not_offered_is_refused(clip):
    with pytest.raises(ConfigError, match="jpeg must be 'full' or 'reduced' or 'smallest', got 'half'"):
        load_encoder(clip, jpeg="half")
    with pytest.raises(ConfigError, match="resize must be 'pillow' or 'device'"):
        load_encoder(clip, resize="gpu")
    with pytest.raises(ConfigError, match="leave out resize='device'"):
        load_encoder("mini", resize="device")


def test_open_image_still_decodes_in_full():
    assert open_image(jpeg(photograph(400, 266))).size == (400, 266)
