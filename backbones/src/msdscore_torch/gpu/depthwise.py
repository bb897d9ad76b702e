"""Triton kernels: depth-wise convolutions of maps in rows of channels, and the first convolution of an image network.

One program computes some positions of one block of channels, always in the same order of taps, so an item's bits do
not depend on its batch. Sums are float32 whatever the maps are.
"""

import triton.language as tl

from msdscore_torch.gpu.kernels import kernel


@kernel
def _places(first, rows, columns, strip, TILE: tl.constexpr):
    """The image of the first of TILE positions; and of each its distance from that image, its row and its column.

    Positions are counted in strips of columns: those of one tile are near each other, and share most of their inputs.
    """
    image = first // (rows * columns)
    position = first - image * (rows * columns) + tl.arange(0, TILE)
    member = position // (rows * columns)
    inner = position - member * (rows * columns)
    strips = inner // (rows * strip)
    inside = inner - strips * (rows * strip)
    row = inside // strip
    return image, member, row, strips * strip + inside - row * strip


@kernel
def _relu6(x):
    return tl.clamp(x, 0.0, 6.0, propagate_nan=tl.PropagateNan.ALL)


@kernel
def depthwise_kernel(
    x, weight, bias, out, positions, height, width, rows, columns, channels, strip, above, left,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, TILE: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """ReLU6, convolution of each channel, bias, ReLU6; `above` and `left` are the padding before the first pixel."""
    blocks = tl.cdiv(channels, CHANNELS)
    first = tl.program_id(0) // blocks * TILE
    channel = tl.program_id(0) % blocks * CHANNELS + tl.arange(0, CHANNELS)
    image, member, row, column = _places(first, rows, columns, strip, TILE)
    used = channel < channels
    real = first + tl.arange(0, TILE) < positions
    x += tl.cast(image, tl.int64) * height * width * channels
    out += tl.cast(image, tl.int64) * rows * columns * channels
    top, begin = row * STRIDE - above, column * STRIDE - left
    pixel = (member * height + top) * width + begin
    total = tl.zeros([TILE, CHANNELS], tl.float32) + tl.load(bias + channel, mask=used, other=0.0)[None, :]
    for down in tl.static_range(KERNEL):
        for across in tl.static_range(KERNEL):
            inside = real & (top + down >= 0) & (top + down < height)
            inside = inside & (begin + across >= 0) & (begin + across < width)
            offset = (pixel + down * width + across) * channels
            value = tl.load(x + offset[:, None] + channel[None, :], mask=inside[:, None] & used[None, :], other=0.0)
            tap = tl.load(weight + (down * KERNEL + across) * channels + channel, mask=used, other=0.0)
            total += _relu6(value.to(tl.float32)) * tap[None, :]
    offset = ((member * rows + row) * columns + column) * channels
    tl.store(out + offset[:, None] + channel[None, :], _relu6(total), mask=real[:, None] & used[None, :])


@kernel
def first_kernel(
    pixels, weight, bias, out, positions, height, width, rows, columns, strip, above, left,
    image_step, plane_step, row_step, column_step, scale, shift,
    KERNEL: tl.constexpr, STRIDE: tl.constexpr, TILE: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Convolution, bias and ReLU6 of `scale * pixels - shift` with three planes and any strides."""
    first = tl.program_id(0) * TILE
    channel = tl.arange(0, CHANNELS)
    image, member, row, column = _places(first, rows, columns, strip, TILE)
    real = first + tl.arange(0, TILE) < positions
    pixels += tl.cast(image, tl.int64) * image_step
    out += tl.cast(image, tl.int64) * rows * columns * CHANNELS
    top, begin = row * STRIDE - above, column * STRIDE - left
    pixel = member * image_step + top * row_step + begin * column_step
    total = tl.zeros([TILE, CHANNELS], tl.float32) + tl.load(bias + channel)[None, :]
    for down in tl.static_range(KERNEL):
        for across in tl.static_range(KERNEL):
            inside = real & (top + down >= 0) & (top + down < height)
            inside = inside & (begin + across >= 0) & (begin + across < width)
            for plane in tl.static_range(3):
                offset = pixel + down * row_step + across * column_step + plane * plane_step
                value = tl.load(pixels + offset, mask=inside, other=0).to(tl.float32)
                value = tl.where(inside, value * scale - shift, 0.0)  # padding is zero after normalisation
                tap = tl.load(weight + ((down * KERNEL + across) * 3 + plane) * CHANNELS + channel)
                total += value[:, None] * tap[None, :]
    offset = ((member * rows + row) * columns + column) * CHANNELS
    tl.store(out + offset[:, None] + channel[None, :], _relu6(total), mask=real[:, None])
