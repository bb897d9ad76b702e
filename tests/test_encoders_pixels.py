"""Optional cheaper preprocessing: JPEG decoding at reduced size, resizing and decoding on the device."""

from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

from counting import results_of
from msdscore.core.arrays import to_numpy
from msdscore.encoders import preprocessing
from msdscore.encoders.base import Prepared
from msdscore.encoders.cached import CachedEncoder, CacheSettings
from msdscore.encoders.preprocessing import Preprocessing, prepare_image, view_of
from msdscore.encoders.registry import load_encoder
from msdscore.errors import ConfigError, ImageError
from msdscore.io.images import ImageLimits, open_image, open_reduced, plain_jpeg
from msdscore.scoring.decoder import Decoded
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.rows import Batch
from msdscore_torch.vision import device as on_device
from msdscore_torch.vision import nvjpeg
from msdscore_torch.vision.device import stack_pixels
from tiny_clip import make_tiny_clip

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return str(make_tiny_clip(tmp_path_factory.mktemp("clip") / "tiny"))


def photograph(width, height):
    """Return smooth shapes with noise, red on the left."""
    noise = np.random.RandomState(width)
    coarse = Image.fromarray(noise.randint(0, 255, (6, 8, 3), dtype=np.uint8)).resize((width, height), 3)
    mixed = np.asarray(coarse) + noise.normal(0, 8, (height, width, 3))
    mixed[:, : width // 2, 0] += 80
    return Image.fromarray(mixed.clip(0, 255).astype(np.uint8))


def jpeg(image, **settings):
    file = BytesIO()
    image.save(file, "JPEG", quality=90, **settings)
    return file.getvalue()


@pytest.mark.parametrize(("needed", "decoded"), [(33, 34), (34, 67), (67, 133), (134, 266), (300, 266)])
def test_jpeg_is_decoded_at_the_smallest_sufficient_size(needed, decoded):
    content = jpeg(photograph(400, 266))
    image, size = open_reduced(content, lambda size: (needed * size[0] // size[1], needed))
    assert size == (400, 266)
    assert image.height == decoded


def test_rotated_jpeg_has_its_upright_size():
    exif = Image.Exif()
    exif[0x0112] = 6
    asked = []
    image, size = open_reduced(jpeg(photograph(400, 200), exif=exif), lambda size: asked.append(size) or (50, 60))
    assert asked == [size] == [(200, 400)]
    assert image.size == (50, 100)  # a quarter: an eighth would be 25 wide
    pixels = np.asarray(image).astype(float)
    assert pixels[:50, :, 0].mean() > pixels[50:, :, 0].mean() + 30  # red was on the left


def test_other_images_are_decoded_in_full_and_limits_apply_to_the_full_size():
    file = BytesIO()
    photograph(400, 200).save(file, "PNG")
    for source in (file.getvalue(), photograph(400, 200)):
        image, size = open_reduced(source, lambda _: (10, 10))
        assert image.size == size == (400, 200)
    with pytest.raises(ImageError, match="more than the limit of 50000"):
        open_reduced(jpeg(photograph(400, 200)), lambda _: (10, 10), limits=ImageLimits(max_pixels=50_000))
    with pytest.raises(ImageError, match="cannot be decoded"):
        open_reduced(jpeg(photograph(400, 200))[:900], lambda _: (10, 10))


@pytest.mark.parametrize(("how", "side"), [("reduced", 2), ("smallest", 1)])
def test_reduced_images_have_close_scores_and_original_boxes(clip, tmp_path, how, side):
    path = tmp_path / "large.jpg"
    path.write_bytes(jpeg(photograph(640, 480)))
    whole, reduced = (Pipeline(load_encoder(clip, device="cpu", jpeg=jpeg)) for jpeg in ("full", how))
    assert f",jpeg:{how}," in reduced.signature
    assert "jpeg" not in whole.signature
    before, after = (pipeline.embedder.images(pipeline.decode([path])).vectors for pipeline in (whole, reduced))
    decoded, _ = open_reduced(path, lambda _: (80 * side, 60 * side))  # 32 rows are needed
    steps = whole.encoder.preprocessing
    assert np.array_equal(reduced.decode([path])[0].prepared.pixels, prepare_image(decoded, steps).pixels)
    assert after.layout[0].size == (640, 480)
    np.testing.assert_allclose(after.layout[0].boxes, before.layout[0].boxes)
    assert not torch.equal(before.points, after.points)
    torch.testing.assert_close(after.points, before.points, rtol=0, atol=0.05)
    (kept,) = reduced.decode([path], keep=True)
    assert kept.image.size == (640, 480)
    assert np.array_equal(kept.prepared.pixels, reduced.decode([path])[0].prepared.pixels)


def test_all_decoding_paths_reduce_equally(clip, tmp_path):
    paths = [tmp_path / f"{side}.jpg" for side in (300, 500)]
    for path in paths:
        path.write_bytes(jpeg(photograph(int(path.stem), 300)))
    encoder, captions = load_encoder(clip, device="cpu", jpeg="reduced"), ["a cat", "the dog"]
    asked = [Batch(paths, captions, range(2))]
    alone = Pipeline(encoder).score(Pipeline(encoder).decode(paths), captions, range(2))
    threads, processes = (
        [one for found in results_of(Pipeline(encoder, decoders=count), asked) for one in found] for count in (0, 1)
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
    image = photograph(*size)
    usual = stack_pixels([prepare_image(image, steps)], steps, CPU)
    there = Preprocessing(steps.resize, steps.crop, on_device=True)
    ready = prepare_image(image, there)
    assert ready.view == prepare_image(image, steps).view
    found = stack_pixels([ready], there, CPU)
    # The weights equal Pillow's; version 13 resizes some images vertically first.
    assert 255 * (found - usual).abs().max() <= 2.01
    assert 255 * (found - usual).abs().mean() < 0.3


def test_large_images_are_reduced_before_the_transfer():
    there = Preprocessing(32, (32, 32), on_device=True)
    assert prepare_image(Image.new("RGB", (1025, 1024)), there).pixels.shape == (3, 32, 32)
    assert prepare_image(Image.new("RGB", (1024, 1024)), there).pixels.shape == (3, 1024, 1024)


def test_resizing_on_the_device_is_in_the_signature_and_changes_little(clip, tmp_path):
    images = [photograph(120, 80), photograph(32, 32), photograph(64, 100)]
    usual, there = (load_encoder(clip, device="cpu", resize=how) for how in ("pillow", "device"))
    assert there.signature == usual.signature.replace(",dtype", ",resize:device,dtype")
    before, after = (one.encode_images([one.prepare(image) for image in images]) for one in (usual, there))
    torch.testing.assert_close(after.points, before.points, rtol=0, atol=0.02)
    for left, right in zip(before.layout, after.layout, strict=True):
        np.testing.assert_allclose(left.boxes, right.boxes)


def test_invalid_options_are_rejected(clip):
    with pytest.raises(ConfigError, match="jpeg.*got 'half'"):
        load_encoder(clip, jpeg="half")
    with pytest.raises(ConfigError, match="resize must .*'device'"):
        load_encoder(clip, resize="gpu")


def test_open_image_decodes_in_full():
    assert open_image(jpeg(photograph(400, 266))).size == (400, 266)


@pytest.mark.parametrize("resample", sorted(on_device.FILTERS))
def test_batched_resizing_equals_pillow(resample):
    steps = Preprocessing(48, (48, 48), resample)
    images = [photograph(*size) for size in ((500, 333), (480, 360), (385, 257), (512, 384))]
    batch = torch.randint(0, 255, (4, 3, 384, 512), dtype=torch.uint8)  # pixels outside of an image have no weight
    for row, image in zip(batch, images, strict=True):
        row[:, : image.height, : image.width] = torch.from_numpy(np.array(image)).permute(2, 0, 1)
    views = [view_of(steps, image.size) for image in images]
    found = on_device.resize(batch, views, steps)
    for row, image in zip(found, images, strict=True):
        usual = torch.from_numpy(prepare_image(image, steps).pixels)
        assert (row.int() - usual.int()).abs().max() <= 1
        assert (row != usual).float().mean() < 1e-3  # sums that end on a half


@pytest.fixture
def files(tmp_path):
    """Write JPEG files of several kinds, and one that is not a JPEG."""
    turned = Image.Exif()
    turned[0x0112] = 6
    contents = {
        "plain.jpg": jpeg(photograph(400, 300)),
        "grey.jpg": jpeg(photograph(300, 200).convert("L")),
        "progressive.jpg": jpeg(photograph(333, 500), progressive=True),
        "turned.jpg": jpeg(photograph(400, 200), exif=turned),
        "cmyk.jpg": jpeg(photograph(300, 300).convert("CMYK")),
        "rgb.jpg": jpeg(photograph(320, 240), keep_rgb=True),
        "cut.jpg": jpeg(photograph(400, 300))[:5000],
        "empty.jpg": b"",
    }
    file = BytesIO()
    photograph(400, 300).save(file, "PNG")
    contents["other.png"] = file.getvalue()
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    return [tmp_path / name for name in contents]


def test_device_decodes_only_supported_files(files):
    sizes = {path.name: size_of(path) for path in files if path.stat().st_size}
    assert sizes == {
        "plain.jpg": (400, 300),
        "grey.jpg": (300, 200),
        **dict.fromkeys(("progressive.jpg", "turned.jpg", "cmyk.jpg", "rgb.jpg", "cut.jpg", "other.png")),
    }


def size_of(path):
    content, size = plain_jpeg(path)
    assert content == path.read_bytes()
    return size


def test_device_decoding_has_close_scores_and_equal_errors(clip, files):
    captions, owner = ["a cat on the mat"] * len(files), range(len(files))
    usual, there = (load_encoder(clip, device="cpu", jpeg=how) for how in ("full", "device"))
    assert there.signature == usual.signature.replace(",dtype", ",jpeg:device,dtype")
    asked = [Batch(files, captions, owner)]
    before = Pipeline(usual).score(Pipeline(usual).decode(files), captions, owner)
    alone = Pipeline(there).score(Pipeline(there).decode(files), captions, owner)
    threads, processes = (
        [one for found in results_of(Pipeline(there, decoders=count), asked) for one in found] for count in (0, 1)
    )
    for path, first, *others in zip(files, before, alone, threads, processes, strict=True):
        if path.name in ("cut.jpg", "empty.jpg"):
            assert {str(error) for error in others} == {str(first)}
        else:
            assert others[0] == others[1] == others[2]
            msd, other = first.values["msd"], others[0].values["msd"]
            assert other == pytest.approx(msd, abs=2e-3), path.name
            pillow = path.name in ("progressive.jpg", "turned.jpg", "cmyk.jpg", "rgb.jpg", "other.png")
            assert not pillow or other == pytest.approx(msd, abs=1e-6)


def test_files_rejected_by_the_device_are_decoded_by_pillow(clip, files, monkeypatch):
    plain, other = files[0], files[1].read_bytes()
    broken = other[:2] + bytes(len(other) - 4) + other[-2:]
    pipeline = Pipeline(load_encoder(clip, device="cpu", jpeg="device"))
    usual = Pipeline(load_encoder(clip, device="cpu"))
    first, reason = pipeline.decode([plain, broken])
    assert first.prepared.pixels.shape == (3, 32, 32)
    assert str(reason) == str(usual.decode([broken])[0])
    # Rejected only by the device decoder: the bytes that were read are decoded with Pillow.
    monkeypatch.setattr("msdscore_torch.vision.device.decode_jpegs", lambda files, *_: [None] * len(files))
    unread = Decoded(Prepared(np.frombuffer(other, dtype=np.uint8), first.prepared.view))
    (again,) = pipeline.decoder.decode_on_device(["no-such-file.jpg"], [unread])
    assert np.array_equal(again.prepared.pixels, usual.decode([other])[0].prepared.pixels)


def test_large_files_are_decoded_in_small_batches(clip, files, monkeypatch):
    calls, resize = [], on_device.resize
    monkeypatch.setattr(on_device, "resize", lambda some, *more: calls.append(len(some)) or resize(some, *more))
    pipeline, asked = Pipeline(load_encoder(clip, device="cpu", jpeg="device")), [files[0]] * 5
    together = pipeline.decode(asked)
    monkeypatch.setattr(on_device, "TOGETHER", 2 * 512 * 384)
    apart = pipeline.decode(asked)
    assert calls == [5, 2, 2, 1]
    for left, right in zip(together, apart, strict=True):
        assert np.array_equal(left.prepared.pixels, right.prepared.pixels)
    monkeypatch.setattr(preprocessing, "DEVICE_JPEG_PIXELS", 400 * 300 - 1)
    pipeline.decode(asked)
    assert len(calls) == 4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU with nvJPEG")
def test_gpu_decodes_close_pixels_and_rejects_single_files(clip, files):
    pytest.importorskip("nvidia", reason="needs nvidia-nvjpeg-cu12 or nvidia-nvjpeg")
    usual = Pipeline(load_encoder(clip, device="cpu"))
    there = Pipeline(load_encoder(clip, device="cuda", jpeg="device"))
    plain = files[0].read_bytes()
    broken = plain[:700] + b"\xff\xd9"
    sources = [*files, *[jpeg(photograph(200 + number, 150 + number)) for number in range(60)], broken, plain]
    for source, left, right in zip(sources, usual.decode(sources), there.decode(sources), strict=True):
        if isinstance(left, ImageError):
            assert str(left) == str(right)
        elif source is broken:  # missing blocks are black on the GPU, and another colour with some versions of Pillow
            assert right.prepared.pixels.shape == left.prepared.pixels.shape
        else:
            moved = left.prepared.pixels.astype(int) - to_numpy(right.prepared.pixels).astype(int)
            assert np.abs(moved).mean() < 2


def test_missing_nvjpeg_is_reported(monkeypatch):
    monkeypatch.setattr(nvjpeg, "NAMES", ("libnvjpeg.so.none",))
    nvjpeg.library.cache_clear()
    with pytest.raises(ConfigError, match="pip install nvidia-nvjpeg-cu12"):
        nvjpeg.library()


def test_device_decoded_files_are_cached(clip, files, tmp_path):
    encoder = load_encoder(clip, device="cpu", jpeg="device")
    kept = CacheSettings(folder=str(tmp_path / "cache"))
    pipelines = [Pipeline(CachedEncoder(encoder, kept)) for _ in range(2)]
    first, second = (one.embedder.images(one.decode(files[:3])).vectors for one in pipelines)
    assert torch.equal(first.points, second.points)
    assert pipelines[1].cache_use.images_made == 0


def test_mini_decodes_on_the_device_too(files):
    captions, owner = ["a red wall"] * 3, range(3)
    usual = Pipeline(load_encoder("mini", device="cpu"))
    encoder = load_encoder("mini", device="cpu", jpeg="device")
    before = usual.score(usual.decode(files[:3]), captions, owner)
    for count in (0, 1):
        there = Pipeline(encoder, decoders=count)
        assert there.signature != usual.signature
        (after,) = results_of(there, [Batch(files[:3], captions, owner)])
        for left, right in zip(before, after, strict=True):
            assert left.values["msd"] == pytest.approx(right.values["msd"], abs=0.02)


def test_images_of_the_device_are_joined_by_the_batch_that_they_were_decoded_in():
    """Views of one batch, in any order and repeated, of several batches, single ones and slices of larger ones."""
    first, second = (torch.randint(0, 256, (count, 3, 4, 5), dtype=torch.uint8) for count in (3, 2))
    single = torch.randint(0, 256, (3, 4, 5), dtype=torch.uint8)
    wide = torch.randint(0, 256, (7, 3, 4, 9), dtype=torch.uint8)[2, :, :, 3:8]
    shifted = torch.randint(0, 256, (150,), dtype=torch.uint8)[7:67].view(3, 4, 5)
    for images in (
        list(first),
        [first[2], first[0], first[0]],
        [*second, *first],
        [first[1], second[1], single, first[0], wide, second[0], shifted],
    ):
        assert torch.equal(on_device.joined(images, torch.device("cpu")), torch.stack(images))
