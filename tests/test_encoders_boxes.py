"""Boxes of patches: a spot painted into a box changes the input of exactly that patch."""

import pytest
import torch
from PIL import Image, ImageDraw

import tiny_models
import tiny_openclip
from msdscore.encoders.base import prepare_and_encode
from msdscore.encoders.registry import load_encoder
from tiny_clip import make_tiny_clip

GREY = (110, 120, 130)


def rows_of(maps):
    """Return one row per patch of a single square."""
    return maps[0].flatten(1).T


def mosaic_of(maps, layout, canvas):
    """Return one row per patch of the tiles, in row order on the canvas, without padding."""
    down, across = canvas[1] // 30, canvas[0] // 30
    tiles = maps.reshape(down, across, *maps.shape[1:]).permute(2, 0, 3, 1, 4)
    grid = tiles.flatten(3, 4).flatten(1, 2)
    top, left = ((have - keep) // 2 for have, keep in zip(grid.shape[1:], layout.grid, strict=True))
    rows, columns = layout.grid
    return grid[:, top : top + rows, left : left + columns].flatten(1).T


# The layer that reads the pixels, and a function from its output to one row per point.
CASES = {
    "clip": (make_tiny_clip, "vision_model.embeddings.patch_embedding", lambda out, _: rows_of(out)),
    "siglip": (tiny_models.make_siglip, "vision_model.embeddings.patch_embedding", lambda out, _: rows_of(out)),
    "siglip2": (tiny_models.make_siglip2, "vision_model.embeddings.patch_embedding", lambda out, _: out[0]),
    "blip": (tiny_models.make_blip, "vision_model.embeddings.patch_embedding", lambda out, _: rows_of(out)),
    "open_clip": (tiny_openclip.make_folder, "visual.conv1", lambda out, _: rows_of(out)),
    "biomed": (tiny_openclip.make_biomed, "visual.trunk.patch_embed.proj", lambda out, _: rows_of(out)),
    "llava": (tiny_models.make_llava, "embeddings.patch_embedding", lambda out, _: rows_of(out)),
    "padded": (
        lambda folder: tiny_models.make_llava(folder, do_pad=True),
        "embeddings.patch_embedding",
        lambda out, _: rows_of(out),
    ),
    "qwen": (tiny_models.make_qwen, "visual.patch_embed", lambda out, _: out.reshape(-1, 4 * out.shape[-1])),
}
SIZES = [(97, 41), (41, 97), (64, 64)]


@pytest.fixture(scope="module", params=CASES)
def case(request, tmp_path_factory):
    make, layer, rows = CASES[request.param]
    encoder = load_encoder(str(make(tmp_path_factory.mktemp("boxes") / request.param)), device="cpu")
    return encoder, layer, rows


def raw_input(encoder, layer, image):
    """Return the output of the first layer, before patches are mixed."""
    found = [module for name, module in encoder.model.named_modules() if name.endswith(layer)]
    seen = []
    handle = found[0].register_forward_hook(lambda _module, _inputs, output: seen.append(output.detach()))
    try:
        out = prepare_and_encode(encoder, [image])
    finally:
        handle.remove()
    return torch.cat(seen), out


def painted(size, box):
    """Return an image with a black spot in the middle of a box."""
    image = Image.new("RGB", size, GREY)
    left, top, right, bottom = box.tolist()
    inset = ((right - left) * 0.2, (bottom - top) * 0.2)
    spot = (left + inset[0], top + inset[1], right - inset[0] - 1, bottom - inset[1] - 1)
    ImageDraw.Draw(image).rectangle([round(value) for value in spot], fill=(0, 0, 0))
    return image


@pytest.mark.parametrize("size", SIZES)
def test_a_spot_in_a_box_changes_that_patch_most(case, size):
    encoder, layer, rows = case
    before, out = raw_input(encoder, layer, Image.new("RGB", size, GREY))
    (layout,) = out.layout
    real = out.mask[0][: len(layout.boxes)].nonzero().flatten()
    plain = rows(before, layout)
    for patch in real[:: max(1, len(real) // 7)].tolist():
        after, _ = raw_input(encoder, layer, painted(size, layout.boxes[patch]))
        change = (rows(after, layout) - plain).norm(dim=-1)
        assert int(change.argmax()) == patch


@pytest.fixture(scope="module")
def tiles(tmp_path_factory):
    folder = tiny_models.make_onevision(tmp_path_factory.mktemp("boxes") / "tiles")
    return load_encoder(str(folder), device="cpu")


@pytest.mark.parametrize(("size", "canvas"), [((90, 40), (90, 60)), ((40, 90), (60, 90)), ((58, 57), (60, 60))])
def test_a_spot_in_a_box_changes_that_patch_of_the_mosaic_most(tiles, size, canvas):
    layer = "embeddings.patch_embedding"
    before, out = raw_input(tiles, layer, Image.new("RGB", size, GREY))
    (layout,) = out.layout
    assert len(before) == canvas[0] * canvas[1] // 900
    real = out.mask[0].nonzero().flatten()
    plain = mosaic_of(before, layout, canvas)
    for patch in real[:: max(1, len(real) // 9)].tolist():
        after, _ = raw_input(tiles, layer, painted(size, layout.boxes[patch]))
        change = (mosaic_of(after, layout, canvas) - plain).norm(dim=-1)
        assert int(change.argmax()) == patch


def test_boxes_of_a_pooled_mosaic_span_the_image(tiles):
    """36 tiles of 3 x 3 patches are pooled by a factor of two per side."""
    (layout,) = prepare_and_encode(tiles, [Image.new("RGB", (180, 180))]).layout
    assert layout.grid == (9, 9)
    assert layout.boxes[0].tolist() == [0, 0, 16, 16]
    # The last patch of a tile ends 6 pixels before the tile does.
    assert layout.boxes[-1].tolist() == [158, 158, 174, 174]


def test_cropped_border_belongs_to_no_patch(tmp_path):
    encoder = load_encoder(str(tiny_models.make_siglip(tmp_path / "siglip")), device="cpu")
    (layout,) = prepare_and_encode(encoder, [Image.new("RGB", (60, 30))]).layout
    assert layout.grid == (3, 3)
    assert layout.boxes[-1].tolist() == [32, 16, 48, 24]
