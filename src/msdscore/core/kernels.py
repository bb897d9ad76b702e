"""Triton kernels: a whole fit an item, and terms against two mixtures, each without a wait for the host.

One program works on one item at a time, with tiles whose shape follows from that item's own size, so no number depends
on the batch. Products are made in three passes of the matrix units, which keeps the accuracy of float32.
"""

import inspect
from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

# Rows of a component-by-point tile: the smallest that the matrix units take, and the most components there are.
ROWS = tl.constexpr(16)
# The same for a start, which holds a reserve point for every component.
STARTS = tl.constexpr(32)
EXACT = tl.constexpr("tf32x3")


def _kernel(function: Callable[..., Any]) -> Any:
    """Compile a function; a wrapper that checks its annotations would hide its source and names."""
    return triton.jit(inspect.unwrap(function))


@_kernel
def fit_kernel(
    points, mask, seeds, means, log_weights, gram, shares,
    batch, width, dim, point_stride, item_stride, gram_stride, components, iterations, kappa, log_share,
    SEEDED: tl.constexpr, NEAR_TIE: tl.constexpr, DEAD_MASS: tl.constexpr, TINY: tl.constexpr,
    LOWER: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Fit every item whose last real point lies in (LOWER, BLOCK]; each program has a Gram matrix of its own."""
    program = tl.program_id(0)
    gram += program.to(tl.int64) * gram_stride * gram_stride
    shares += program * ROWS * BLOCK
    place = tl.arange(0, BLOCK)
    for item in range(program, batch, tl.num_programs(0)):
        there = mask + tl.cast(item, tl.int64) * width
        end = _end(there, width, BLOCK)
        if (end > LOWER) & (end <= BLOCK):
            real = tl.load(there + place, mask=place < width, other=0) != 0
            x = points + tl.cast(item, tl.int64) * item_stride
            # Writes to the scratch of the item before must not overtake its last reads, nor ours our reads.
            tl.debug_barrier()
            _gram(x, there, gram, end, dim, point_stride, gram_stride, TILE, DEPTH)
            tl.debug_barrier()
            first, reserve = _start(seeds, gram, real, item, components, gram_stride, SEEDED, NEAR_TIE, BLOCK)
            _maximise(
                gram, shares, log_weights + item * components, real, first, reserve, end, gram_stride,
                components, iterations, kappa, log_share, DEAD_MASS, TINY, BLOCK, STEP,
            )  # fmt: skip
            tl.debug_barrier()
            _combine(
                x, there, shares, means + tl.cast(item, tl.int64) * components * dim, end, dim, point_stride,
                components, BLOCK, STEP, DEPTH,
            )  # fmt: skip


@_kernel
def _end(there, width, BLOCK: tl.constexpr):
    """The end of the item's last real point."""
    end = tl.full([], 0, tl.int32)
    for begin in range(0, width, BLOCK):
        place = begin + tl.arange(0, BLOCK)
        real = tl.load(there + place, mask=place < width, other=0) != 0
        end = tl.maximum(end, tl.max(tl.where(real, place + 1, 0), axis=0))
    return end


@_kernel
def _gram(x, there, gram, end, dim, point_stride, gram_stride, TILE: tl.constexpr, DEPTH: tl.constexpr):
    """Inner products of all real points, zero for padding; the upper triangle of tiles mirrors the lower one."""
    for top in range(0, end, TILE):
        row = top + tl.arange(0, TILE)
        row_real = tl.load(there + row, mask=row < end, other=0) != 0
        for left in range(0, top + 1, TILE):
            column = left + tl.arange(0, TILE)
            column_real = tl.load(there + column, mask=column < end, other=0) != 0
            tile = tl.zeros([TILE, TILE], tl.float32)
            for begin in range(0, dim, DEPTH):
                axis = begin + tl.arange(0, DEPTH)
                one = tl.load(
                    x + row[:, None] * point_stride + axis[None, :],
                    mask=(row < end)[:, None] & (axis < dim)[None, :], other=0.0,
                )  # fmt: skip
                two = tl.load(
                    x + column[None, :] * point_stride + axis[:, None],
                    mask=(column < end)[None, :] & (axis < dim)[:, None], other=0.0,
                )  # fmt: skip
                tile = tl.dot(one.to(tl.float32), two.to(tl.float32), tile, input_precision=EXACT)
            tile = tl.where(row_real[:, None] & column_real[None, :], tile, 0.0)
            tl.store(gram + row[:, None] * gram_stride + column[None, :], tile)
            if left < top:
                tl.store(gram + column[:, None] * gram_stride + row[None, :], tl.trans(tile))


@_kernel
def _start(
    seeds, gram, real, item, components, gram_stride,
    SEEDED: tl.constexpr, NEAR_TIE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The points that components begin from and their reserve: given, or farthest first as `starts.spread`."""
    component = tl.arange(0, ROWS)
    if SEEDED:
        given = seeds + item * 2 * components + component
        first = tl.load(given, mask=component < components, other=0).to(tl.int32)
        reserve = tl.load(given + components, mask=component < components, other=0).to(tl.int32)
    else:
        place, slot = tl.arange(0, BLOCK), tl.arange(0, STARTS)
        pick = _first_of(real, BLOCK)
        chosen = tl.where(slot == 0, pick, 0)
        nearest = tl.load(gram + pick * gram_stride + place, mask=place < gram_stride, other=0.0)
        for turn in range(1, 2 * components):
            still = tl.where(real, nearest, float("inf"))
            pick = _first_of(still <= tl.min(still, axis=0) + NEAR_TIE, BLOCK)
            chosen = tl.where(slot == turn, pick, chosen)
            row = tl.load(gram + pick * gram_stride + place, mask=place < gram_stride, other=0.0)
            nearest = tl.maximum(nearest, row)
        # With fewer real points than seeds the list begins again from its front.
        size = tl.maximum(tl.sum(real.to(tl.int32), axis=0), 1)
        first = tl.sum(tl.where((component % size)[:, None] == slot[None, :], chosen[None, :], 0), axis=1)
        later = (component + components) % size
        reserve = tl.sum(tl.where(later[:, None] == slot[None, :], chosen[None, :], 0), axis=1)
    return first, reserve


@_kernel
def _first_of(true, BLOCK: tl.constexpr):
    """The number of the first true element, zero if there is none."""
    first = tl.min(tl.where(true, tl.arange(0, BLOCK), BLOCK), axis=0)
    return tl.where(first < BLOCK, first, 0)


@_kernel
def _maximise(
    gram, shares, log_weights, real, first, reserve, end, gram_stride, components, iterations, kappa, log_share,
    DEAD_MASS: tl.constexpr, TINY: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """`mixture._maximise` for one item; writes log weights, and coefficients of the means into the scratch."""
    component, place = tl.arange(0, ROWS), tl.arange(0, BLOCK)
    used, inside = component < components, (place < gram_stride)[None, :]
    here = component[:, None] * BLOCK + place[None, :]
    size = tl.maximum(tl.sum(real.to(tl.int32), axis=0), 1).to(tl.float32)
    pull = tl.load(gram + first[:, None] * gram_stride + place[None, :], mask=inside, other=0.0)
    share = tl.where(first[:, None] == place[None, :], 1.0, 0.0)
    log_weight = tl.where(used, log_share, float("-inf"))
    length, dead = tl.full([ROWS], 1.0, tl.float32), component < 0
    if BLOCK == STEP:
        whole = tl.load(gram + place[:, None] * gram_stride + place[None, :])
    for _ in range(iterations):
        logits = log_weight[:, None] + pull * (kappa / length)[:, None]
        share = tl.exp(logits - tl.max(logits, axis=0)[None, :])
        share = tl.where(real[None, :], share / tl.sum(share, axis=0)[None, :], 0.0)
        mass = tl.sum(share, axis=1)
        if BLOCK == STEP:
            pull = tl.dot(share, whole, input_precision=EXACT)
        else:
            tl.store(shares + here, share)
            tl.debug_barrier()
            pull = _product(shares, gram, end, gram_stride, BLOCK, STEP)
            tl.debug_barrier()
        # Columns beyond the last tile were never written.
        pull = tl.where(real[None, :], pull, 0.0)
        length = tl.sqrt(tl.maximum(tl.sum(share * pull, axis=1), TINY * TINY))
        dead = (mass < DEAD_MASS) & used
        # Nothing is read for the living.
        spare = tl.load(
            gram + reserve[:, None] * gram_stride + place[None, :], mask=dead[:, None] & inside, other=0.0
        )  # fmt: skip
        pull, length = tl.where(dead[:, None], spare, pull), tl.where(dead, 1.0, length)
        weight = tl.where(used, tl.where(dead, 1.0, mass) / size, 0.0)
        log_weight = tl.log(weight / tl.sum(weight, axis=0))
    lone = tl.where(reserve[:, None] == place[None, :], 1.0, 0.0)
    tl.store(shares + here, tl.where(dead[:, None], lone, share / length[:, None]))
    tl.store(log_weights + component, log_weight, mask=used)


@_kernel
def _product(shares, gram, end, gram_stride, BLOCK: tl.constexpr, STEP: tl.constexpr):
    """Shares times the Gram matrix, a strip of it at a time."""
    component, place = tl.arange(0, ROWS), tl.arange(0, BLOCK)
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    for begin in range(0, end, STEP):
        strip = begin + tl.arange(0, STEP)
        share = tl.load(shares + component[:, None] * BLOCK + strip[None, :])
        rows = tl.load(
            gram + strip[:, None] * gram_stride + place[None, :], mask=(place < gram_stride)[None, :], other=0.0
        )  # fmt: skip
        total = tl.dot(share, rows, total, input_precision=EXACT)
    return total


@_kernel
def _combine(
    x, there, shares, means, end, dim, point_stride, components,
    BLOCK: tl.constexpr, STEP: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Means as sums of points, weighted by the coefficients in the scratch."""
    component = tl.arange(0, ROWS)
    for begin in range(0, dim, DEPTH):
        axis = begin + tl.arange(0, DEPTH)
        mean = tl.zeros([ROWS, DEPTH], tl.float32)
        for top in range(0, end, STEP):
            strip = top + tl.arange(0, STEP)
            weight = tl.load(shares + component[:, None] * BLOCK + strip[None, :])
            rows = tl.load(
                x + strip[:, None] * point_stride + axis[None, :],
                mask=(strip < end)[:, None] & (axis < dim)[None, :], other=0.0,
            )  # fmt: skip
            # Padding inside the item may hold anything, even what zero times it would not silence.
            real = tl.load(there + strip, mask=strip < end, other=0) != 0
            rows = tl.where(real[:, None], rows.to(tl.float32), 0.0)
            mean = tl.dot(weight, rows, mean, input_precision=EXACT)
        inside = (component < components)[:, None] & (axis < dim)[None, :]
        tl.store(means + component[:, None] * dim + axis[None, :], mean, mask=inside)


@_kernel
def terms_kernel(
    points, mask, sizes, source, own_means, own_weights, target, other_means, other_weights, result,
    width, dim, point_stride, item_stride, own_components, other_components, own_kappa, other_kappa,
    TILE: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Shares of KL(own‖other) of the points of item `source`, against mixture `target`, for one row of the result."""
    pair = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1) * TILE + tl.arange(0, TILE)
    item, rival = tl.load(source + pair).to(tl.int64), tl.load(target + pair).to(tl.int64)
    real = tl.load(mask + item * width + row, mask=row < width, other=0) != 0
    # The first half of the columns are the own components, the second half the other mixture's.
    column = tl.arange(0, ROWS)
    second = column - ROWS // 2
    mine, theirs = column < own_components, (second >= 0) & (second < other_components)
    own_means += item * own_components * dim
    other_means += rival * other_components * dim
    cosines = tl.zeros([TILE, ROWS], tl.float32)
    for begin in range(0, dim, DEPTH):
        axis = begin + tl.arange(0, DEPTH)
        inside = (axis < dim)[:, None]
        x = tl.load(
            points + item * item_stride + row[:, None] * point_stride + axis[None, :],
            mask=real[:, None] & (axis < dim)[None, :], other=0.0,
        )  # fmt: skip
        own = tl.load(own_means + column[None, :] * dim + axis[:, None], mask=mine[None, :] & inside, other=0.0)
        other = tl.load(other_means + second[None, :] * dim + axis[:, None], mask=theirs[None, :] & inside, other=0.0)
        cosines = tl.dot(x.to(tl.float32), own + other, cosines, input_precision=EXACT)
    own_weight = tl.load(own_weights + item * own_components + column, mask=mine, other=float("-inf"))
    other_weight = tl.load(other_weights + rival * other_components + second, mask=theirs, other=float("-inf"))
    own_density = _log_sum_exp(own_kappa * cosines + own_weight[None, :])
    other_density = _log_sum_exp(other_kappa * cosines + other_weight[None, :])
    size = tl.maximum(tl.load(sizes + item), 1).to(tl.float32)
    share = tl.where(real, (own_density - other_density) / size, 0.0)
    tl.store(result + pair * width + row, share, mask=row < width)


@_kernel
def _log_sum_exp(logits):
    """Over the columns; those of weight zero are minus infinity and add nothing."""
    top = tl.max(logits, axis=1)
    return top + tl.log(tl.sum(tl.exp(logits - top[:, None]), axis=1))
