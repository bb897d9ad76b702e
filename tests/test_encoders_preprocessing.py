"""Preprocessing: pixels agree with transformers, and boxes invert resize and crop."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from msdscore.encoders.options import SharedOptions
from msdscore.encoders.preprocessing import Preprocessing, as_prepared, drawn, patch_layout, prepare_image, view_of
from msdscore.errors import ConfigError, WeightsError
from msdscore_torch.checkpoints import read_preprocessing
from msdscore_torch.vision.device import on_image, stack_pixels
from tiny_models import pillow_processor

CPU = torch.device("cpu")
CROPPED = Preprocessing(resize=32, crop=(32, 32))


def noise(width, height):
    return Image.fromarray(np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.mark.parametrize("size", [(64, 64), (97, 41), (41, 97), (20, 31), (500, 333)])
@pytest.mark.parametrize("shape", [(32, 32), (40, 24), (32, 48)], ids=["crop", "mixed", "pad"])
def test_pixels_equal_the_pillow_processor_of_transformers(size, shape):
    processor = pillow_processor("CLIPImageProcessor")(
        size={"shortest_edge": 32}, crop_size={"width": shape[0], "height": shape[1]}
    )
    theirs = processor(noise(*size), return_tensors="pt")["pixel_values"]
    steps = read_preprocessing(processor.to_dict())
    ours = stack_pixels([prepare_image(noise(*size), steps)], steps, CPU)
    # Same bytes; only the order of float32 scaling differs.
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-6)


def test_squashed_pixels_equal_transformers():
    processor = pillow_processor("CLIPImageProcessor")(size={"height": 24, "width": 40}, do_center_crop=False)
    theirs = processor(noise(91, 33), return_tensors="pt")["pixel_values"]
    steps = read_preprocessing(processor.to_dict())
    ready = prepare_image(noise(91, 33), steps)
    ours, views = stack_pixels([ready], steps, CPU), [ready.view]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-6)
    assert views[0].canvas == (40, 24)


def test_boxes_of_a_wide_image_are_centred():
    layout = patch_layout(view_of(CROPPED, (128, 64)), (4, 4), (8, 8))
    assert layout.size == (128, 64)
    assert layout.boxes[0].tolist() == [32, 0, 48, 16]
    assert layout.boxes[5].tolist() == [48, 16, 64, 32]
    assert layout.boxes[15].tolist() == [80, 48, 96, 64]


def test_boxes_of_a_tall_image_are_centred():
    boxes = patch_layout(view_of(CROPPED, (16, 48)), (4, 4), (8, 8)).boxes
    assert boxes[0].tolist() == [0, 16, 4, 20]
    assert boxes[15].tolist() == [12, 28, 16, 32]


def test_squashed_boxes_cover_the_whole_image():
    boxes = patch_layout(view_of(Preprocessing(resize=(32, 32), crop=None), (100, 10)), (2, 4), (8, 16)).boxes
    assert boxes[0].tolist() == [0, 0, 25, 5]
    assert boxes[7].tolist() == [75, 5, 100, 10]


def test_boxes_of_padding_have_no_area():
    layout = patch_layout(view_of(Preprocessing(resize=16, crop=(32, 32)), (16, 16)), (4, 4), (8, 8))
    shown = on_image(layout).reshape(4, 4)
    assert shown.tolist() == [[1 <= r <= 2 and 1 <= c <= 2 for c in range(4)] for r in range(4)]
    assert layout.boxes[5].tolist() == [0, 0, 8, 8]


@settings(deadline=None)
@given(st.integers(1, 3000), st.integers(1, 3000))
def test_boxes_tile_a_square_inside_the_image(width, height):
    boxes = patch_layout(view_of(CROPPED, (width, height)), (4, 4), (8, 8)).boxes
    left, top, right, bottom = boxes.T
    assert (left >= 0).all()
    assert (top >= 0).all()
    assert right.max() <= width
    assert bottom.max() <= height
    covered = ((right - left) * (bottom - top)).sum()
    side = min(width, height)
    # The long edge is rounded down to whole canvas pixels, so a cell may be up to one part in 32 longer.
    assert side * side * (1 - 1e-4) <= covered <= side * side * (1 + 1 / 32)


def test_box_of_a_coloured_spot_matches_its_position():
    image = Image.new("RGB", (128, 64), "black")
    image.paste((255, 0, 0), (48, 16, 64, 32))
    view = view_of(CROPPED, image.size)
    red = as_prepared(drawn(image, view, Image.Resampling.BOX), view).pixels[0]
    cells = red.reshape(4, 8, 4, 8).mean(axis=(1, 3)).ravel()
    assert cells.argmax() == patch_layout(view, (4, 4), (8, 8)).boxes.tolist().index([48, 16, 64, 32])
    assert cells.max() == 255


def test_extreme_aspect_ratio_does_not_exhaust_memory():
    image = Image.new("RGB", (60_000, 2), (10, 200, 30))
    view = view_of(Preprocessing(resize=224, crop=(224, 224)), image.size)
    assert view.resized == (6_720_000, 224)
    pixels = drawn(image, view, Image.Resampling.BICUBIC)
    assert pixels.shape == (224, 224, 3)
    assert pixels[100, 100].tolist() == [10, 200, 30]


def test_legacy_sizes_are_read():
    frame = read_preprocessing({"size": 224, "crop_size": 200, "image_mean": [0.5] * 3, "image_std": [0.5] * 3})
    assert (frame.resize, frame.crop) == (224, (200, 200))


@pytest.mark.parametrize("config", [{}, {"size": {"longest_edge": 3}}, {"size": 3, "image_mean": None}])
def test_unsupported_config_is_rejected(config):
    with pytest.raises(WeightsError, match="config.json is not supported"):
        read_preprocessing(config)


def test_options_of_pixels_on_the_device_need_a_filter_of_pillow():
    nearest = Preprocessing(32, (32, 32), Image.Resampling.NEAREST)
    assert SharedOptions().applied(nearest) == nearest
    for option in ("jpeg", "resize"):
        with pytest.raises(ConfigError, match=f"{option}:device needs"):
            SharedOptions(**{option: "device"}).applied(nearest)
