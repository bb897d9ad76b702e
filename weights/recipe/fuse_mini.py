"""Derive graphs of `mini` that run faster than the exported ones and compute the same vectors.

The exported graphs define the function: they are part of the encoder's signature. The fused ones refer to the same
bytes of weights, and `export_mini` compares both. Needs onnx.
"""

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

CONTRIB = "com.microsoft"  # ONNX Runtime's own operators
GRID, COARSE = 12, 9  # cells per side of the grid of patches, and of the maps at stride 32
FINE = 120  # channels of the map at stride 16, in front of the coarse ones
EPSILON = 1e-5  # of the heads' layer norms


class Editor:
    """A graph, its lookups and its changes; `tidy` sorts the nodes and removes what no output needs."""

    def __init__(self, model: Any) -> None:
        self.model, self.graph, self._numbers = model, model.graph, count()

    def maker(self, name: str) -> Any:
        """The node that computes a value; None for inputs and initialisers."""
        return next((node for node in self.graph.node if name in node.output), None)

    def users(self, name: str, kind: str = "") -> list[Any]:
        """The nodes that read a value."""
        return [node for node in self.graph.node if name in node.input and kind in ("", node.op_type)]

    def add(self, kind: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node; returns the name of its output, or a list of their names."""
        names = [f"fused.{next(self._numbers)}" for _ in range(outputs)]
        domain = CONTRIB if kind == "Gelu" else ""
        self.graph.node.append(helper.make_node(kind, inputs, names, domain=domain, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, values: npt.ArrayLike, dtype: type[np.generic] = np.float32) -> str:
        """Add an initialiser whose values are stored in the graph."""
        name = f"fused.{next(self._numbers)}"
        self.graph.initializer.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def replace(self, old: str, new: str) -> None:
        """Let every node that reads a value read another one; an output of the graph retains its name."""
        for node in self.users(old):
            node.input[:] = [new if name == old else name for name in node.input]
        if old in {output.name for output in self.graph.output}:
            maker = self.maker(old)
            maker.output[:] = [f"{name}.unused" if name == old else name for name in maker.output]
            maker = self.maker(new)
            for node in self.users(new):
                node.input[:] = [old if name == new else name for name in node.input]
            maker.output[:] = [old if name == new else name for name in maker.output]

    def tidy(self) -> None:
        """Sort the nodes, and remove nodes and initialisers that are not needed."""
        makers = {name: node for node in self.graph.node for name in node.output}
        ordered: dict[int, Any] = {}
        needed: set[str] = set()

        def visit(name: str) -> None:
            needed.add(name)
            node = makers.get(name)
            if node is not None and id(node) not in ordered:
                for source in node.input:
                    visit(source)
                ordered[id(node)] = node

        for output in self.graph.output:
            visit(output.name)
        nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in ordered.values()]
        stored = [tensor for tensor in self.graph.initializer if tensor.name in needed]
        del self.graph.node[:], self.graph.initializer[:]
        self.graph.node.extend(nodes)
        self.graph.initializer.extend(stored)


def fused(path: Path) -> bytes:
    """The faster graph that computes the same function as the exported graph of a file."""
    edit = Editor(onnx.load(path, load_external_data=False))
    edit.model.opset_import.append(helper.make_opsetid(CONTRIB, 1))
    omit_mask(edit)
    fuse_gelu(edit)
    shorten_units(edit)
    project_before_resizing(edit)
    widen_last(edit)
    content: bytes = edit.model.SerializeToString(deterministic=True)
    return content


def omit_mask(edit: Editor) -> None:
    """Omit the product with the mask of patches, which are all real."""
    last = edit.maker("points")
    if last.op_type == "Mul":
        edit.replace("points", last.input[0])
        edit.tidy()


def fuse_gelu(edit: Editor) -> None:
    """Replace x · ½(1 + erf(x/√2)) in five nodes by one."""
    for erf in [node for node in edit.graph.node if node.op_type == "Erf"]:
        x = edit.maker(erf.input[0]).input[0]
        name = erf.output[0]
        for kind in ("Add", "Mul", "Mul"):
            (user,) = edit.users(name, kind)
            name = user.output[0]
        edit.replace(name, edit.add("Gelu", x))
    edit.tidy()


def shorten_units(edit: Editor) -> None:
    """Divide a vector by its length only, not by its largest coordinate before: no vector of `mini` is that long."""
    for largest in [node for node in edit.graph.node if node.op_type == "Abs"]:
        (x,) = largest.input
        (scaled,) = (node.output[0] for node in edit.users(x, "Div"))
        edit.replace(scaled, x)
    edit.tidy()


def project_before_resizing(edit: Editor) -> None:
    r"""Apply the first layers of the heads of patches on the 9 × 9 grid of their maps, not on the 12 × 12 of patches.

    Resizing R is linear, so it commutes with a layer W. Of the features x = (a, R b), with layer norm of gain g and
    shift h: :math:`W\,norm(x) = R W_b (g_b b) / \sigma + (W_a (g_a a) - \mu W g) / \sigma + W h`.
    """
    norms = [node for node in edit.graph.node if node.op_type == "LayerNormalization" and ".image." in node.input[1]]
    if not norms:
        return
    (cells,) = {edit.maker(_features(edit, norm)).input[0] for norm in norms}
    resized = list(edit.maker(cells).input)
    resize = edit.constant(np.kron(_bilinear(), _bilinear()))
    for number, norm in enumerate(norms):
        fine, *coarse = resized[3 * number : 3 * number + 3]
        _project(edit, norm, fine, [edit.maker(name).input[0] for name in coarse], resize)
    edit.tidy()


def _features(edit: Editor, norm: Any) -> str:
    """The reshaped features of all heads, which are transposed and split in front of a layer norm."""
    split = edit.maker(norm.input[0])
    name: str = edit.maker(split.input[0]).input[0]
    return name


def _bilinear() -> npt.NDArray[np.float64]:
    """Weights of linear interpolation from `COARSE` to `GRID` cells per side, with aligned borders."""
    at = np.clip((np.arange(GRID) + 0.5) * COARSE / GRID - 0.5, 0, COARSE - 1)
    return np.maximum(1 - np.abs(at[:, np.newaxis] - np.arange(COARSE)), 0)


def _project(edit: Editor, norm: Any, fine: str, coarse: Sequence[str], resize: str) -> None:
    """Replace a layer norm and the layers that read it; the formula is above."""
    low = _points(edit, edit.add("Concat", *coarse, axis=1), COARSE**2)
    high = _points(edit, fine, GRID**2)
    mean, deviation = _moments(edit, low, high, resize, channels=_length(edit, norm.input[1]))
    cut = edit.constant([FINE, _length(edit, norm.input[1]) - FINE], np.int64)
    gain, _ = (edit.add("Split", name, cut, axis=0, outputs=2) for name in norm.input[1:3])
    scaled = edit.add("Mul", low, gain[1])
    # Division by the deviation is one of the small factors of each product, not of the result.
    up = edit.add("Div", resize, deviation)
    rest = edit.add("Concat", mean, edit.add("Mul", high, gain[0]), axis=2)
    rest = edit.add("Concat", edit.add("Div", rest, deviation), edit.add("Div", deviation, deviation), axis=2)
    first = edit.constant([0], np.int64)
    rows = edit.add("Concat", *(edit.add("Unsqueeze", name, first) for name in norm.input[1:3]), axis=0)
    rows_fine, rows_coarse = edit.add("Split", rows, cut, axis=1, outputs=2)
    for layer in edit.users(norm.output[0], "MatMul"):
        weights = [_widened(edit, part, layer.input[1]) for part in _halves(edit, layer.input[1], cut)]
        sums = edit.add("Add", edit.add("MatMul", rows_fine, weights[0]), edit.add("MatMul", rows_coarse, weights[1]))
        of_gain, of_shift = edit.add("Split", sums, edit.constant([1, 1], np.int64), axis=0, outputs=2)
        output = layer.output[0]
        for bias in edit.users(output, "Add"):
            # A bias is an initialiser; the other sum is that of both layers.
            (other,) = (name for name in bias.input if name != output)
            if other.endswith(".bias"):
                of_shift, output = edit.add("Add", of_shift, other), bias.output[0]
        others = edit.add("Concat", edit.add("Neg", of_gain), weights[0], of_shift, axis=0)
        projected = edit.add("MatMul", up, edit.add("MatMul", scaled, weights[1]))
        edit.replace(output, edit.add("Add", projected, edit.add("MatMul", rest, others)))


def _length(edit: Editor, name: str) -> int:
    """The length of a vector of weights, by the initialiser that it is widened from."""
    sizes = {tensor.name: tensor.dims for tensor in edit.graph.initializer}
    (length,) = sizes[edit.maker(name).input[0]]
    return int(length)


def _points(edit: Editor, maps: str, cells: int) -> str:
    """Maps (batch, channels, rows, columns) as points (batch, cells, channels)."""
    flat = edit.add("Reshape", maps, edit.constant([0, -1, cells], np.int64))
    name: str = edit.add("Transpose", flat, perm=[0, 2, 1])
    return name


def _moments(edit: Editor, low: str, high: str, resize: str, *, channels: int) -> tuple[str, str]:
    """Mean and standard deviation over the channels of every patch, without the resized maps.

    The squared length of a resized point is a form of the products between the points that it is interpolated from.
    """
    last, share = edit.constant([-1], np.int64), edit.constant(1 / channels)
    # Sums over channels as products: ONNX Runtime would transpose the map back, and sum in another order per batch.
    ones = edit.constant(np.ones((FINE, 1)))
    sums = edit.add("MatMul", resize, edit.add("ReduceSum", low, last, keepdims=1))
    mean = edit.add("Mul", edit.add("Add", sums, edit.add("MatMul", high, ones)), share)
    products = edit.add("MatMul", low, edit.add("Transpose", low, perm=[0, 2, 1]))
    form = edit.add("Mul", edit.add("MatMul", resize, products), resize)
    squares = edit.add("MatMul", edit.add("Mul", high, high), ones)
    squares = edit.add("Add", edit.add("ReduceSum", form, last, keepdims=1), squares)
    variance = edit.add("Sub", edit.add("Mul", squares, share), edit.add("Mul", mean, mean))
    return mean, edit.add("Sqrt", edit.add("Add", variance, edit.constant(EPSILON)))


def _halves(edit: Editor, weight: str, cut: str) -> list[str]:
    """The bytes of a transposed weight, in front of and behind the fine channels."""
    cast = edit.maker(edit.maker(edit.maker(weight).input[0]).input[0])
    halves: list[str] = edit.add("Split", cast.input[0], cut, axis=1, outputs=2)
    return halves


def _widened(edit: Editor, half: str, weight: str) -> str:
    """Bytes of a half of a weight, as numbers and transposed."""
    scaled = edit.maker(edit.maker(weight).input[0])
    wide = edit.add("Mul", edit.add("Cast", half, to=TensorProto.FLOAT), scaled.input[1])
    name: str = edit.add("Transpose", wide, perm=[1, 0])
    return name


def widen_last(edit: Editor) -> None:
    """Transpose bytes before they are widened: a graph opens faster, and with less memory."""
    for turn in [node for node in edit.graph.node if node.op_type == "Transpose"]:
        scaled = edit.maker(turn.input[0])
        cast = edit.maker(scaled.input[0]) if scaled is not None and scaled.op_type == "Mul" else None
        if cast is None or not scaled.input[1].endswith(".scale"):
            continue
        columns = edit.add("Transpose", cast.input[0], perm=[1, 0])
        wide = edit.add("Cast", columns, to=TensorProto.FLOAT)
        edit.replace(turn.output[0], edit.add("Mul", wide, edit.add("Transpose", scaled.input[1], perm=[1, 0])))
    edit.tidy()
