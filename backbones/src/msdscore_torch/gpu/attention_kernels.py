"""Triton kernels: attention without a mask; the positions after the last full tile are a smaller tile."""

import triton.language as tl

from msdscore_torch.gpu.kernels import kernel


@kernel
def _weighted(
    queries, keys, values, out, query_row, key_row, value_row, out_row, first, scale,
    COUNT: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, REST: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The weighted means of values of ROWS queries: softmax over tiles of keys, with a running maximum and sum."""
    rows, columns = first + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    real = rows < COUNT
    query = tl.load(queries + rows[:, None] * query_row + columns[None, :], mask=real[:, None], other=0.0)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mean = tl.zeros([ROWS, WIDTH], tl.float32)
    for part in tl.range(0, COUNT // TILE):
        numbers = part * TILE + tl.arange(0, TILE)
        key = tl.load(keys + numbers[:, None] * key_row + columns[None, :])
        value = tl.load(values + numbers[:, None] * value_row + columns[None, :])
        logits = tl.dot(query, tl.trans(key)) * scale
        higher = tl.maximum(top, tl.max(logits, 1))
        weights, shrunk = tl.exp2(logits - higher[:, None]), tl.exp2(top - higher)
        total, top = total * shrunk + tl.sum(weights, 1), higher
        mean = tl.dot(weights.to(value.dtype), value, mean * shrunk[:, None])
    if COUNT % TILE > 0:
        numbers = COUNT // TILE * TILE + tl.arange(0, REST)
        inside = numbers < COUNT
        key = tl.load(keys + numbers[:, None] * key_row + columns[None, :], mask=inside[:, None], other=0.0)
        value = tl.load(values + numbers[:, None] * value_row + columns[None, :], mask=inside[:, None], other=0.0)
        logits = tl.where(inside[None, :], tl.dot(query, tl.trans(key)) * scale, float("-inf"))
        higher = tl.maximum(top, tl.max(logits, 1))
        weights, shrunk = tl.exp2(logits - higher[:, None]), tl.exp2(top - higher)
        total = total * shrunk + tl.sum(weights, 1)
        mean = tl.dot(weights.to(value.dtype), value, mean * shrunk[:, None])
    found = (mean / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + rows[:, None] * out_row + columns[None, :], found, mask=real[:, None])


@kernel
def attention_kernel(
    queries, keys, values, out, heads,
    query_item, query_head, query_row, key_item, key_head, key_row,
    value_item, value_head, value_row, out_item, out_head, out_row, scale,
    COUNT: tl.constexpr, ROWS: tl.constexpr, LAST: tl.constexpr, TILE: tl.constexpr, REST: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """One tile of queries of one head: ROWS of them, or the up to LAST ones after the last full tile."""
    first = tl.program_id(0) * ROWS
    item = (tl.program_id(1) // heads).to(tl.int64)
    head = tl.program_id(1) % heads
    queries += item * query_item + head * query_head
    keys += item * key_item + head * key_head
    values += item * value_item + head * value_head
    out += item * out_item + head * out_head
    if first + ROWS <= COUNT:
        _weighted(
            queries, keys, values, out, query_row, key_row, value_row, out_row, first, scale,
            COUNT, ROWS, TILE, REST, WIDTH,
        )  # fmt: skip
    else:
        _weighted(
            queries, keys, values, out, query_row, key_row, value_row, out_row, first, scale,
            COUNT, LAST, TILE, REST, WIDTH,
        )  # fmt: skip
