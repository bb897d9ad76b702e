"""Triton kernels: a fit per item, terms against two mixtures, means over a background; none synchronises with the host.

One program processes one item at a time, with tiles whose shape follows from that item's size, so results do not depend
on the batch. Tensor cores take half precision: a float32 is split into a large and a small half, which together have
22 of its 24 bits, and products are summed in float32. Points in half precision are used unsplit, in one product
instead of three, and only the large halves of their Gram matrix stay in shared memory during EM.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import triton
import triton.language as tl

# Maximum number of components; their large and small halves fill the sixteen rows that tensor cores need.
MOST = tl.constexpr(8)
# Starting points: one per component, and as many in reserve.
STARTS = tl.constexpr(16)
# Powers of two that prevent underflow of the small halves of unit vectors and of shares in half precision.
POINT_SCALE = tl.constexpr(64.0)
SHARE_SCALE = tl.constexpr(1024.0)
# Maximum number of points for which both halves of the Gram matrix fit into shared memory.
ROOM_FOR_SMALL = tl.constexpr(64)


class Shape(NamedTuple):
    """Tile sizes for items of one size class, chosen by measurement (docs/performance.md)."""

    most_points: int  # of the class; the maximum is `fused.MOST_POINTS`
    tile: int  # edge of a tile of the Gram matrix
    strip: int  # rows of the Gram matrix that a step of EM reads at a time
    depth: int  # coordinates read at a time
    warps: int
    stages: int
    programs: int  # per multiprocessor
    resident: bool = False  # the Gram matrix stays in shared memory during EM


# For points in half precision, whose Gram matrix is no more precise than its large halves.
HALF_SHAPES = (
    # Too short for shared memory: one step of the tensor cores takes more rows than there are points.
    Shape(16, tile=16, strip=16, depth=64, warps=1, stages=3, programs=16),
    Shape(64, tile=64, strip=64, depth=64, warps=4, stages=3, programs=4, resident=True),
    Shape(256, tile=128, strip=64, depth=128, warps=8, stages=2, programs=1, resident=True),
    Shape(1024, tile=64, strip=16, depth=32, warps=4, stages=2, programs=1),
)
SHAPES = (
    Shape(16, tile=16, strip=16, depth=64, warps=1, stages=3, programs=16),
    Shape(64, tile=64, strip=64, depth=32, warps=4, stages=3, programs=4),
    Shape(256, tile=64, strip=32, depth=64, warps=4, stages=3, programs=2),
    Shape(1024, tile=64, strip=16, depth=32, warps=4, stages=2, programs=1),
)


# Arguments whose value must not lead to another compilation, which takes seconds. Strides and numbers of channels do:
# multiples of 16 have wide loads.
_COUNTS = ("batch", "width", "positions", "height", "columns", "rows", "strip", "above", "left")


def kernel(function: Callable[..., Any]) -> Any:
    """Compile a function with Triton, without the wrapper of a type checker, which would hide its source."""
    named = inspect.signature(function).parameters
    return triton.jit(inspect.unwrap(function), do_not_specialize=[name for name in _COUNTS if name in named])


@kernel
def fit_kernel(
    points, mask, seeds, means, log_weights, gram, shares,
    batch, width, dim, point_stride, item_stride, edge, components, iterations, kappa, log_share,
    SEEDED: tl.constexpr, NEAR_TIE: tl.constexpr, DEAD_MASS: tl.constexpr, TINY: tl.constexpr,
    RESIDENT: tl.constexpr, LOWER: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr, STRIP: tl.constexpr,
    DEPTH: tl.constexpr,
):  # fmt: skip
    """Fit every item whose last real point is in (LOWER, BLOCK]; each program has memory for one Gram matrix.

    With RESIDENT the large halves of the Gram matrix are loaded once; without, both are loaded in every step.
    """
    program = tl.program_id(0)
    gram += program.to(tl.int64) * 2 * edge * edge
    shares += program * 2 * MOST * BLOCK
    position = tl.arange(0, BLOCK)
    for item in range(program, batch, tl.num_programs(0)):
        item_mask = mask + tl.cast(item, tl.int64) * width
        end = _end(item_mask, width, BLOCK)
        if (end > LOWER) & (end <= BLOCK):
            real = tl.load(item_mask + position, mask=position < width, other=0) != 0
            x = points + tl.cast(item, tl.int64) * item_stride
            # Scratch memory is written and read by different threads: none may run ahead into its next use.
            tl.debug_barrier()
            _gram(x, item_mask, gram, end, dim, point_stride, edge, TILE, DEPTH)
            tl.debug_barrier()
            first, reserve = _start(seeds, gram, real, item, components, edge, SEEDED, NEAR_TIE, BLOCK)
            if RESIDENT:
                length = _maximise_resident(
                    gram, shares, log_weights + item * components, real, first, reserve,
                    tl.cdiv(end, TILE) * TILE, edge, components, iterations, kappa, log_share, DEAD_MASS, TINY, BLOCK,
                )  # fmt: skip
            else:
                length = _maximise(
                    gram, shares, log_weights + item * components, real, first, reserve, end, edge,
                    components, iterations, kappa, log_share, DEAD_MASS, TINY, BLOCK, STRIP,
                )  # fmt: skip
            tl.debug_barrier()
            _combine(
                x, item_mask, shares, length, means + tl.cast(item, tl.int64) * components * dim,
                end, dim, point_stride, components, BLOCK, STRIP, DEPTH,
            )  # fmt: skip


@kernel
def _end(item_mask, width, BLOCK: tl.constexpr):
    """The index after the item's last real point."""
    end = tl.full([], 0, tl.int32)
    for begin in range(0, width, BLOCK):
        position = begin + tl.arange(0, BLOCK)
        real = tl.load(item_mask + position, mask=position < width, other=0) != 0
        end = tl.maximum(end, tl.max(tl.where(real, position + 1, 0), axis=0))
    return end


@kernel
def _halves(number):
    """The large and the small half of a float32."""
    large = number.to(tl.float16)
    return large, (number - large.to(tl.float32)).to(tl.float16)


@kernel
def _gram(x, item_mask, gram, end, dim, point_stride, edge, TILE: tl.constexpr, DEPTH: tl.constexpr):
    """Inner products of all real points, zero for padding; the upper triangle of tiles mirrors the lower one."""
    for top in range(0, end, TILE):
        row = top + tl.arange(0, TILE)
        row_real = tl.load(item_mask + row, mask=row < end, other=0) != 0
        for left in range(0, top + 1, TILE):
            column = left + tl.arange(0, TILE)
            column_real = tl.load(item_mask + column, mask=column < end, other=0) != 0
            tile = tl.zeros([TILE, TILE], tl.float32)
            for begin in range(0, dim, DEPTH):
                axis = begin + tl.arange(0, DEPTH)
                rows_inside = (row < end)[:, None] & (axis < dim)[None, :]
                columns_inside = (column < end)[None, :] & (axis < dim)[:, None]
                row_x = tl.load(x + row[:, None] * point_stride + axis[None, :], mask=rows_inside, other=0.0)
                column_x = tl.load(x + column[None, :] * point_stride + axis[:, None], mask=columns_inside, other=0.0)
                if row_x.dtype == tl.float32:
                    row_large, row_small = _halves(row_x * POINT_SCALE)
                    column_large, column_small = _halves(column_x * POINT_SCALE)
                    tile = tl.dot(row_large, column_small, tile)
                    tile = tl.dot(row_small, column_large, tile)
                    tile = tl.dot(row_large, column_large, tile)
                else:
                    tile = tl.dot(row_x, column_x, tile)
            if x.dtype.element_ty == tl.float32:
                tile = tile / (POINT_SCALE * POINT_SCALE)
            tile = tl.where(row_real[:, None] & column_real[None, :], tile, 0.0)
            _store_tile(gram, edge, row, column, tile)
            if left < top:
                _store_tile(gram, edge, column, row, tl.trans(tile))


@kernel
def _store_tile(gram, edge, row, column, tile):
    """Store a tile as its halves: first the large ones of the whole matrix, then the small ones."""
    large, small = _halves(tile)
    offsets = row[:, None] * edge + column[None, :]
    tl.store(gram + offsets, large)
    tl.store(gram + edge * edge + offsets, small)


@kernel
def _load_gram(gram, edge, offsets, valid):
    """Elements of the Gram matrix in float32, zero if not `valid`."""
    large = tl.load(gram + offsets, mask=valid, other=0.0)
    small = tl.load(gram + edge * edge + offsets, mask=valid, other=0.0)
    return large.to(tl.float32) + small.to(tl.float32)


@kernel
def _start(
    seeds, gram, real, item, components, edge,
    SEEDED: tl.constexpr, NEAR_TIE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Initial points of components and their reserve: passed in, or farthest first as in `mixture.spread`."""
    component = tl.arange(0, MOST)
    if SEEDED:
        pointers = seeds + item * 2 * components + component
        first = tl.load(pointers, mask=component < components, other=0).to(tl.int32)
        reserve = tl.load(pointers + components, mask=component < components, other=0).to(tl.int32)
    else:
        position, slot = tl.arange(0, BLOCK), tl.arange(0, STARTS)
        pick = _first_of(real, BLOCK)
        chosen = tl.where(slot == 0, pick, 0)
        nearest = _load_gram(gram, edge, pick * edge + position, position < edge)
        for turn in range(1, 2 * components):
            open_points = tl.where(real, nearest, float("inf"))
            pick = _first_of(open_points <= tl.min(open_points, axis=0) + NEAR_TIE, BLOCK)
            chosen = tl.where(slot == turn, pick, chosen)
            nearest = tl.maximum(nearest, _load_gram(gram, edge, pick * edge + position, position < edge))
        # With fewer real points than seeds the list repeats from the start.
        size = tl.maximum(tl.sum(real.to(tl.int32), axis=0), 1)
        first = tl.sum(tl.where((component % size)[:, None] == slot[None, :], chosen[None, :], 0), axis=1)
        later = (component + components) % size
        reserve = tl.sum(tl.where(later[:, None] == slot[None, :], chosen[None, :], 0), axis=1)
    return first, reserve


@kernel
def _first_of(true, BLOCK: tl.constexpr):
    """The index of the first true element, zero if there is none."""
    first = tl.min(tl.where(true, tl.arange(0, BLOCK), BLOCK), axis=0)
    return tl.where(first < BLOCK, first, 0)


@kernel
def _maximise(
    gram, shares, log_weights, real, first, reserve, end, edge, components, iterations, kappa, log_share,
    DEAD_MASS: tl.constexpr, TINY: tl.constexpr, BLOCK: tl.constexpr, STRIP: tl.constexpr,
):  # fmt: skip
    """`mixture.fit` for one item: stores log weights, leaves shares in scratch memory, returns their lengths.

    A component's shares are scaled to a maximum of SHARE_SCALE; cosines are invariant to it.
    """
    component, position = tl.arange(0, MOST), tl.arange(0, BLOCK)
    used, inside = component < components, (position < edge)[None, :]
    size = tl.maximum(tl.sum(real.to(tl.int32), axis=0), 1).to(tl.float32)
    pull = _load_gram(gram, edge, first[:, None] * edge + position[None, :], inside)
    log_weight = tl.where(used, log_share, float("-inf"))
    length, dead = tl.full([MOST], 1.0, tl.float32), component < 0
    _store_shares(shares, tl.where(first[:, None] == position[None, :], 1.0, 0.0), BLOCK)
    for _ in range(iterations):
        logits = log_weight[:, None] + pull * (kappa / length)[:, None]
        share = tl.exp(logits - tl.max(logits, axis=0)[None, :])
        share = tl.where(real[None, :], share / tl.sum(share, axis=0)[None, :], 0.0)
        mass, most = tl.sum(share, axis=1), tl.max(share, axis=1)
        scale = SHARE_SCALE / tl.where(most > 0.0, most, 1.0)
        share = share * scale[:, None]
        tl.debug_barrier()
        _store_shares(shares, share, BLOCK)
        tl.debug_barrier()
        # Columns beyond the last tile were never written.
        pull = tl.where(real[None, :], _product(shares, gram, end, edge, BLOCK, STRIP), 0.0)
        length = tl.maximum(tl.sqrt(tl.maximum(tl.sum(share * pull, axis=1), 0.0)), TINY * scale)
        dead = (mass < DEAD_MASS) & used
        # Nothing is loaded for living components.
        spare = _load_gram(gram, edge, reserve[:, None] * edge + position[None, :], dead[:, None] & inside)
        pull, length = tl.where(dead[:, None], spare, pull), tl.where(dead, 1.0, length)
        weight = tl.where(used, tl.where(dead, 1.0, mass) / size, 0.0)
        log_weight = tl.log(weight / tl.sum(weight, axis=0))
    tl.store(log_weights + component, log_weight, mask=used)
    tl.debug_barrier()
    one_hot = tl.where(reserve[:, None] == position[None, :], 1.0, 0.0).to(tl.float16)
    tl.store(_share_pointers(shares, 0, BLOCK), one_hot, mask=dead[:, None])
    tl.store(_share_pointers(shares, MOST, BLOCK), tl.zeros_like(one_hot), mask=dead[:, None])
    return length


@kernel
def _maximise_resident(
    gram, shares, log_weights, real, first, reserve, bound, edge, components, iterations, kappa, log_share,
    DEAD_MASS: tl.constexpr, TINY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """`_maximise` with the Gram matrix loaded once; rows are points here, columns components.

    If the small halves do not fit next to the large ones, only the lengths after the last step use them. Nothing is
    loaded in the loop, so that all of it has the layout of its product.
    """
    component, position = tl.arange(0, MOST), tl.arange(0, BLOCK)
    used, inside = component < components, position < bound
    size = tl.maximum(tl.sum(real.to(tl.int32), axis=0), 1).to(tl.float32)
    # Nothing was written beyond the bound. It is a whole number of tiles, so that loads remain wide.
    offsets, valid = position[:, None] * edge + position[None, :], inside[:, None] & inside[None, :]
    large = tl.load(gram + offsets, mask=valid, other=0.0)
    small = large
    if BLOCK <= ROOM_FOR_SMALL:
        small = tl.load(gram + edge * edge + offsets, mask=valid, other=0.0)
    share = tl.where(position[:, None] == first[None, :], 1.0, 0.0)
    one_hot = tl.where(position[:, None] == reserve[None, :], 1.0, 0.0)
    pull, spare = _gram_times(large, small, share, BLOCK), _gram_times(large, small, one_hot, BLOCK)
    log_weight = tl.where(used, log_share, float("-inf"))
    length, scale, dead = tl.full([MOST], 1.0, tl.float32), tl.full([MOST], 1.0, tl.float32), component < 0
    for _ in range(iterations):
        logits = log_weight[None, :] + pull * (kappa / length)[None, :]
        share = tl.exp(logits - tl.max(logits, axis=1)[:, None])
        share = tl.where(real[:, None], share / tl.sum(share, axis=1)[:, None], 0.0)
        mass, most = tl.reduce((share, share), 0, _sum_and_largest)
        scale = SHARE_SCALE / tl.where(most > 0.0, most, 1.0)
        share = share * scale[None, :]
        pull = tl.where(real[:, None], _gram_times(large, small, share, BLOCK), 0.0)
        length = _length(share, pull, TINY * scale)
        dead = (mass < DEAD_MASS) & used
        pull, length = tl.where(dead[None, :], spare, pull), tl.where(dead, 1.0, length)
        weight = tl.where(used, tl.where(dead, 1.0, mass) / size, 0.0)
        log_weight = tl.log(weight / tl.sum(weight, axis=0))
    tl.store(log_weights + component, log_weight, mask=used)
    if BLOCK > ROOM_FOR_SMALL:
        rest = tl.load(gram + edge * edge + offsets, mask=valid, other=0.0)
        whole = pull + tl.where(real[:, None], _gram_times(rest, rest, share, BLOCK), 0.0)
        length = tl.where(dead | (iterations == 0), length, _length(share, whole, TINY * scale))
    share_large, share_small = _halves(tl.where(dead[None, :], one_hot, share))
    rows = shares + component[None, :] * BLOCK + position[:, None]
    tl.store(rows, share_large)
    tl.store(rows + MOST * BLOCK, share_small)
    return length


@kernel
def _gram_times(large, small, share, BLOCK: tl.constexpr):
    """The Gram matrix times shares, whose halves are joined; its small halves are used if they fit."""
    share_large, share_small = _halves(share)
    both = tl.reshape(tl.join(share_large, share_small), [BLOCK, 2 * MOST])
    sums = tl.dot(large, both)
    if BLOCK <= ROOM_FOR_SMALL:
        sums = tl.dot(small, both, sums)
    return tl.sum(tl.reshape(sums, [BLOCK, MOST, 2]), axis=2)


@kernel
def _length(share, pull, least):
    """Lengths of the weighted sums of points."""
    return tl.maximum(tl.sqrt(tl.maximum(tl.sum(share * pull, axis=0), 0.0)), least)


@kernel
def _sum_and_largest(left_sum, left_largest, right_sum, right_largest):
    return left_sum + right_sum, tl.maximum(left_largest, right_largest)


@kernel
def _share_pointers(shares, begin, BLOCK: tl.constexpr):
    """Pointers to the large halves (`begin` 0) or the small ones (`begin` MOST) of shares in scratch memory."""
    return shares + (tl.arange(0, MOST) + begin)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]


@kernel
def _store_shares(shares, share, BLOCK: tl.constexpr):
    """Store shares in scratch memory: rows of large halves, then rows of small ones."""
    large, small = _halves(share)
    tl.store(_share_pointers(shares, 0, BLOCK), large)
    tl.store(_share_pointers(shares, MOST, BLOCK), small)


@kernel
def _product(shares, gram, end, edge, BLOCK: tl.constexpr, STRIP: tl.constexpr):
    """Shares times the Gram matrix, a strip of it at a time."""
    half, position = tl.arange(0, 2 * MOST), tl.arange(0, BLOCK)
    total = tl.zeros([2 * MOST, BLOCK], tl.float32)
    for begin in range(0, end, STRIP):
        strip = begin + tl.arange(0, STRIP)
        share = tl.load(shares + half[:, None] * BLOCK + strip[None, :])
        offsets = strip[:, None] * edge + position[None, :]
        large = tl.load(gram + offsets, mask=(position < edge)[None, :], other=0.0)
        small = tl.load(gram + edge * edge + offsets, mask=(position < edge)[None, :], other=0.0)
        total = tl.dot(share, small, total)
        total = tl.dot(share, large, total)
    return tl.sum(tl.reshape(total, [2, MOST, BLOCK]), axis=0)


@kernel
def _combine(
    x, item_mask, shares, length, means, end, dim, point_stride, components,
    BLOCK: tl.constexpr, STRIP: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Means as sums of points, weighted by the shares in scratch memory and divided by their length."""
    component, half = tl.arange(0, MOST), tl.arange(0, 2 * MOST)
    for begin in range(0, dim, 2 * DEPTH):
        axis = begin + tl.arange(0, 2 * DEPTH)
        total = tl.zeros([2 * MOST, 2 * DEPTH], tl.float32)
        for top in range(0, end, STRIP):
            strip = top + tl.arange(0, STRIP)
            share = tl.load(shares + half[:, None] * BLOCK + strip[None, :])
            inside = (strip < end)[:, None] & (axis < dim)[None, :]
            rows = tl.load(x + strip[:, None] * point_stride + axis[None, :], mask=inside, other=0.0)
            # Padding inside the item may contain anything, including NaN, which a product with zero would not remove.
            real = tl.load(item_mask + strip, mask=strip < end, other=0) != 0
            large, small = _halves(tl.where(real[:, None], rows.to(tl.float32) * POINT_SCALE, 0.0))
            if rows.dtype == tl.float32:
                total = tl.dot(share, small, total)
            total = tl.dot(share, large, total)
        mean = tl.sum(tl.reshape(total, [2, MOST, 2 * DEPTH]), axis=0) / (length * POINT_SCALE)[:, None]
        valid = (component < components)[:, None] & (axis < dim)[None, :]
        tl.store(means + component[:, None] * dim + axis[None, :], mean, mask=valid)


@kernel
def log_ratio_kernel(
    points, mask, source, own_means, own_weights, target, other_means, other_weights, given, result,
    width, dim, point_stride, item_stride, own_components, other_components, own_kappa, other_kappa,
    GIVEN: tl.constexpr, TILE: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Log density of the points of item `source` under mixture `target`, minus the own one, for one row of the result.

    With GIVEN the own log density is loaded instead of computed.
    """
    pair = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1) * TILE + tl.arange(0, TILE)
    item, opposite = tl.load(source + pair).to(tl.int64), tl.load(target + pair).to(tl.int64)
    real = tl.load(mask + item * width + row, mask=row < width, other=0) != 0
    # The first half of the columns are the components of the own mixture, the second half those of the other.
    column = tl.arange(0, 2 * MOST)
    second = column - MOST
    own, other = column < own_components, (second >= 0) & (second < other_components)
    row_pointers = points + item * item_stride + row[:, None] * point_stride
    own_means += item * own_components * dim
    other_means += opposite * other_components * dim
    cosines = tl.zeros([TILE, 2 * MOST], tl.float32)
    for begin in range(0, dim, DEPTH):
        axis = begin + tl.arange(0, DEPTH)
        inside = (axis < dim)[:, None]
        x = tl.load(row_pointers + axis[None, :], mask=real[:, None] & (axis < dim)[None, :], other=0.0)
        means = tl.load(other_means + second[None, :] * dim + axis[:, None], mask=other[None, :] & inside, other=0.0)
        if not GIVEN:
            means += tl.load(own_means + column[None, :] * dim + axis[:, None], mask=own[None, :] & inside, other=0.0)
        cosines = _with_product(x, means, cosines)
    cosines /= POINT_SCALE * POINT_SCALE
    other_weight = tl.load(other_weights + opposite * other_components + second, mask=other, other=float("-inf"))
    other_density = _log_sum_exp(other_kappa * cosines + other_weight.to(tl.float32)[None, :])
    if GIVEN:
        own_density = tl.load(given + item * width + row, mask=real, other=0.0)
    else:
        own_weight = tl.load(own_weights + item * own_components + column, mask=own, other=float("-inf"))
        own_density = _log_sum_exp(own_kappa * cosines + own_weight.to(tl.float32)[None, :])
    ratio = tl.where(real, other_density - own_density, 0.0)
    tl.store(result + pair * width + row, ratio, mask=row < width)


@kernel
def _with_product(points, means, total):
    """Add the product of points and means, each times POINT_SCALE; half precision has no small halves."""
    large, small = _halves(points.to(tl.float32) * POINT_SCALE)
    mean_large, mean_small = _halves(means.to(tl.float32) * POINT_SCALE)
    if means.dtype == tl.float32:
        total = tl.dot(large, mean_small, total)
    if points.dtype == tl.float32:
        total = tl.dot(small, mean_large, total)
    return tl.dot(large, mean_large, total)


@kernel
def expected_kernel(
    points, mask, means, weights, result,
    items, width, dim, point_stride, item_stride, components, kappa,
    TILE: tl.constexpr, DEPTH: tl.constexpr, ROOM: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Mean log density of one item's points over all background items, a GROUP at a time with ROOM columns each."""
    item = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1) * TILE + tl.arange(0, TILE)
    real = tl.load(mask + item * width + row, mask=row < width, other=0) != 0
    row_pointers = points + item * item_stride + row[:, None] * point_stride
    column = tl.arange(0, GROUP * ROOM)
    member, component = column // ROOM, column % ROOM
    total = tl.zeros([TILE], tl.float32)
    for first in range(0, items, GROUP):
        used = (first + member < items) & (component < components)
        index = (first + member) * components + component
        cosines = tl.zeros([TILE, GROUP * ROOM], tl.float32)
        for begin in range(0, dim, DEPTH):
            axis = begin + tl.arange(0, DEPTH)
            x = tl.load(row_pointers + axis[None, :], mask=real[:, None] & (axis < dim)[None, :], other=0.0)
            inside = used[None, :] & (axis < dim)[:, None]
            mean = tl.load(means + index[None, :] * dim + axis[:, None], mask=inside, other=0.0)
            cosines = _with_product(x, mean, cosines)
        cosines /= POINT_SCALE * POINT_SCALE
        weight = tl.load(weights + index, mask=used, other=0.0).to(tl.float32)
        # Columns without a component add nothing. An item beyond the last one stays finite here, and is excluded below.
        empty = (first + member < items) & (component >= components)
        logits = kappa * cosines + tl.where(empty, float("-inf"), weight)[None, :]
        density = _log_sum_exp(tl.reshape(logits, [TILE * GROUP, ROOM]))
        exists = (first + tl.arange(0, GROUP) < items)[None, :]
        total += tl.sum(tl.where(exists, tl.reshape(density, [TILE, GROUP]), 0.0), axis=1)
    tl.store(result + item * width + row, tl.where(real, total / items, 0.0), mask=row < width)


@kernel
def _log_sum_exp(logits):
    """Log-sum-exp over the columns; those of weight zero are minus infinity and add nothing."""
    top = tl.max(logits, axis=1)
    return top + tl.log(tl.sum(tl.exp(logits - top[:, None]), axis=1))
