"""Write the files that the encoder `mini` needs besides its trained parts, and check them.

    python weights/recipe/export_mini.py base FOLDER --lite2 FILE --minilm FOLDER   copies of both frozen networks
    python weights/recipe/export_mini.py graphs FOLDER                              graphs for ONNX Runtime, checksums
    python weights/recipe/export_mini.py fuse FOLDER                                faster graphs from those, checksums

`FOLDER` is an aligned encoder as `msdscore align export` writes it. The graphs contain no weights: their initialisers
refer to the bytes of the safetensors files, which are stored once and serve the torch networks too. `graphs` includes
`fuse`. Needs torch 2.11 or later, onnx, onnxscript and onnxruntime, in an environment of their own; `fuse` needs no
particular version of torch.
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from msdscore.core import embeddings
from msdscore.encoders.checkpoints import CHECKS, LISTED, SUMS, write_sums
from msdscore.encoders.mini import FUSED_GRAPHS, GRAPHS
from msdscore_torch.aligned import heads, lite2, minilm
from msdscore_torch.aligned.encoder import AlignedEncoder, load_aligned
from msdscore_torch.aligned.towers import mean_state, take_levels
from msdscore_torch.tensors import Features, read_tensors, widened

NORM_EPS = 1e-3
OPSET = 18
TOLERANCE = 2e-5  # largest difference of a coordinate between the graphs and the torch networks
FUSED_TOLERANCE = 1e-6  # between the fused graphs and the exported ones
_NORM = ("weight", "bias", "running_mean", "running_var")
_LAYER = {"mix": "attention.output.dense", "widen": "intermediate.dense", "narrow": "output.dense"}
_NORMS = {"norm_mix": "attention.output.LayerNorm", "norm_out": "output.LayerNorm"}
_LARGE = 1 << 14  # numbers of a tensor that is stored in half precision
_SMALL = 1024  # numbers; constants of this size stay inside the graph

Stored = tuple[Path, str, bool]


def fold_lite2(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of `Lite2` from a checkpoint of timm or of TensorFlow's order, with batch norms folded in."""
    tensors: dict[str, Tensor] = {}
    names = [name.removesuffix(".weight") for name, _ in lite2.Lite2().named_parameters() if name.endswith(".weight")]
    for name, (weight, gain, bias, mean, variance) in zip(names, _convolutions(state), strict=True):
        scale = gain / torch.sqrt(variance + NORM_EPS)
        tensors |= {f"{name}.weight": weight * scale.view(-1, 1, 1, 1), f"{name}.bias": bias - mean * scale}
    return tensors


def _convolutions(state: Mapping[str, Tensor]) -> list[list[Tensor]]:
    """Each convolution's weight and its batch norm's gain, bias, mean and variance, in network order."""
    numbers = {name: tensor for name, tensor in state.items() if not name.endswith("num_batches_tracked")}
    layers = [("conv_stem", "bn1")]  # names of each convolution and its batch norm in timm's checkpoint
    for stage, (_, _, expansion, _, count) in enumerate(lite2.STAGES):
        parts = ("conv_pw", "conv_dw", "conv_pwl") if expansion > 1 else ("conv_dw", "conv_pw")
        for prefix in (f"blocks.{stage}.{block}" for block in range(count)):
            layers += [(f"{prefix}.{part}", f"{prefix}.bn{number}") for number, part in enumerate(parts, start=1)]
    layers.append(("conv_head", "bn2"))
    if "conv_stem.weight" in numbers:
        names = [[f"{layer}.weight", *(f"{norm}.{part}" for part in _NORM)] for layer, norm in layers]
    else:  # other names in the same order
        flat = list(numbers)
        names = [flat[5 * index : 5 * index + 5] for index in range(len(layers))]
    return [[numbers[name] for name in group] for group in names]


def rename_bert(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of `MiniLM` from a BERT checkpoint; its pooler is not used."""
    tensors = {
        "words.weight": state["embeddings.word_embeddings.weight"],
        "positions.weight": state["embeddings.position_embeddings.weight"],
        "kinds.weight": state["embeddings.token_type_embeddings.weight"],
        "norm.weight": state["embeddings.LayerNorm.weight"],
        "norm.bias": state["embeddings.LayerNorm.bias"],
    }
    for number in range(minilm.LAYERS):
        layer, theirs = f"layers.{number}", f"encoder.layer.{number}"
        parts = [f"{theirs}.attention.self.{part}" for part in ("query", "key", "value")]
        tensors[f"{layer}.attend.weight"] = torch.cat([state[f"{part}.weight"] for part in parts]).T
        tensors[f"{layer}.attend.bias"] = torch.cat([state[f"{part}.bias"] for part in parts])
        for name, target in _LAYER.items():
            tensors[f"{layer}.{name}.weight"] = state[f"{theirs}.{target}.weight"].T
            tensors[f"{layer}.{name}.bias"] = state[f"{theirs}.{target}.bias"]
        for name, target in _NORMS.items():
            tensors |= {f"{layer}.{name}.{kind}": state[f"{theirs}.{target}.{kind}"] for kind in ("weight", "bias")}
    return tensors


def write_base(folder: Path, *, lite2_file: Path, minilm_folder: Path) -> None:
    """Write both frozen networks, their large tensors in half precision, and the vocabulary.

    The first convolutions are small; rounding them would change an image's vectors twenty times as much as the rest.
    """

    def rounded(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {
            name: (tensor.half() if tensor.numel() >= _LARGE else tensor.float()).contiguous()
            for name, tensor in state.items()
        }

    save_file(rounded(fold_lite2(read_tensors([lite2_file]))), folder / lite2.BASE)
    save_file(rounded(rename_bert(load_file(minilm_folder / "model.safetensors"))), folder / minilm.BASE)
    vocabulary = json.loads((minilm_folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    pieces = sorted(vocabulary, key=vocabulary.__getitem__)
    (folder / minilm.VOCABULARY_FILE).write_text("\n".join(pieces) + "\n", encoding="utf-8", newline="\n")


class ImageGraph(nn.Module):
    """Bytes of images to unit patches and unit pooled vectors."""

    def __init__(self, encoder: AlignedEncoder) -> None:
        super().__init__()
        self.tower, self.heads = encoder._image, encoder._heads
        self.networks = nn.ModuleList(self.tower._networks)  # type: ignore[attr-defined]

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Patches and pooled vectors of bytes (batch, height, width, channels)."""
        x = (pixels.permute(0, 3, 1, 2).float() - 127) / 128
        tower: Any = self.tower
        result = heads.to_embeddings(self.heads.states("image", tower._features(*tower._maps(x))))
        return result.points, result.pooled


class TextGraph(nn.Module):
    """Token ids to unit vectors of chosen tokens, and pooled and sentence vectors of every window."""

    def __init__(self, encoder: AlignedEncoder) -> None:
        super().__init__()
        text: Any = encoder._text
        self.network, self.spec, self.heads = text.network, text._spec, encoder._heads

    def forward(self, ids: Tensor, mask: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`positions` are those of the local path in the flattened batch; pooled vectors are those of each member."""
        network = self.network
        states = [network.norm(network.words(ids) + network.positions.weight[: ids.shape[1]] + network.kinds.weight[0])]
        for layer in network.layers:
            states.append(layer(states[-1], mask))
        flat = [state.flatten(0, 1)[positions] for state in states]
        local = take_levels([state.unsqueeze(0) for state in flat], self.spec.levels)
        every = torch.ones(local.shape[:2], dtype=torch.bool)
        sentence = mean_state(states[-1], mask)
        whole = Features(take_levels(states, self.spec.global_levels or self.spec.levels), mask)
        members: Any = getattr(self.heads, "_each", (self.heads,))
        points = [embeddings.unit(member.text(local, every)) for member in members]
        pooled = [member._pool(member.global_text, Features(local, every, sentence, whole=whole)) for member in members]
        return embeddings.unit(torch.cat(points, dim=-1)).squeeze(0), torch.stack(pooled, dim=1), sentence


def write_graphs(folder: Path) -> None:
    """Export both networks with their heads, check them against torch, and write the checksums of the folder."""
    for name in (*GRAPHS, *FUSED_GRAPHS, SUMS, CHECKS):
        (folder / name).unlink(missing_ok=True)
    encoder = load_aligned(str(folder), name=str(folder), device="cpu", dtype="float32")
    # The exporter needs one graph without branches on data.
    heads.real_points = lambda points, mask: points * mask.unsqueeze(-1)  # type: ignore[attr-defined]
    stored = dict(_stored(folder))
    for name, (module, inputs, outputs, axes) in _graphs(encoder).items():
        example = next(_examples(name))
        with torch.enable_grad():  # without gradients the convolutions are fused calls that cannot be exported
            program = torch.onnx.export(
                module.eval(), example, dynamo=True, opset_version=OPSET, dynamic_shapes=axes,
                input_names=inputs, output_names=outputs,
            )  # fmt: skip
        assert program is not None
        refer(program.model_proto, folder / name, stored)
        check(module, folder / name, inputs, name)
    write_fused(folder)


def write_fused(folder: Path) -> None:
    """Derive the fused graphs, compare them with the exported ones, and write the checksums of the folder."""
    from fuse_mini import fused

    for source, target in zip(GRAPHS, FUSED_GRAPHS, strict=True):
        (folder / target).write_bytes(fused(folder / source))
        compare(folder / source, folder / target)
    write_sums(folder, LISTED)


def _graphs(encoder: AlignedEncoder) -> dict[str, tuple[nn.Module, list[str], list[str], Any]]:
    size = torch.export.Dim
    batch, windows, tokens = size("batch", min=1, max=4096), size("windows", min=1, max=4096), size("tokens", max=512)
    chosen = size("chosen", min=1, max=1 << 20)
    texts = ({0: windows, 1: tokens}, {0: windows, 1: tokens}, {0: chosen})
    return {
        "image.onnx": (ImageGraph(encoder), ["pixels"], ["points", "pooled"], ({0: batch},)),
        "text.onnx": (
            TextGraph(encoder), ["ids", "mask", "positions"], ["points", "pooled", "sentence"], texts,
        ),
    }  # fmt: skip


def _examples(name: str) -> Iterator[tuple[Tensor, ...]]:
    """Inputs of several shapes; the first is that of the export."""
    draw = torch.Generator().manual_seed(0)
    for count, length in ((3, 12), (1, 7), (5, 40), (1, 1)):
        if name == "image.onnx":
            yield (torch.randint(0, 256, (min(count, 3), lite2.SIZE, lite2.SIZE, 3), generator=draw).byte(),)
            continue
        ids = torch.randint(1000, minilm.VOCABULARY, (count, length), generator=draw)
        mask = torch.arange(length) < torch.tensor([[max(length - 2 * row, 1)] for row in range(count)])
        yield ids, mask, mask.flatten().nonzero().squeeze(1)[1:] if length > 1 else torch.tensor([0])


def _stored(folder: Path) -> Iterator[tuple[str, Stored]]:
    """The file and name of every stored tensor, by the hash of its float32 values, and whether it is transposed."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    for file in (lite2.BASE, minilm.BASE, "model.safetensors", *config["image"]["branches"]):
        for name, tensor in widened(read_tensors([folder / file])).items():
            yield _hash(tensor.numpy()), (folder / file, name, False)
            if tensor.ndim == 2:  # the exporter stores some matrices transposed
                yield _hash(tensor.numpy().T), (folder / file, name, True)


def _hash(values: "np.ndarray[Any, Any]") -> str:
    return sha256(repr(values.shape).encode() + np.ascontiguousarray(values, dtype=np.float32).tobytes()).hexdigest()


def refer(model: Any, target: Path, stored: Mapping[str, Stored]) -> None:
    """Save a graph whose float32 initialisers refer to the tensors of safetensors files with the same values.

    Half-precision and byte tensors are widened by nodes that ONNX Runtime evaluates once, when it loads the graph; the
    rows of an embedding table are widened after they are looked up.
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    graph, nodes, kept, written = model.graph, list[Any](), list[Any](), dict[tuple[str, str], None]()
    for initializer in graph.initializer:
        values = numpy_helper.to_array(initializer)
        if initializer.data_type != TensorProto.FLOAT or _hash(values) not in stored:
            if values.size > _SMALL:
                raise ValueError(f"{initializer.name} {values.shape} is not a stored tensor")
            kept.append(initializer)
            continue
        path, name, turned = stored[_hash(values)]
        places = _places(path)
        for part in (name, f"{name}.scale") if places[name][0] == "I8" else (name,):
            if (path.name, part) not in written:
                kept.append(_external(path, part, *places[part]))
                written[path.name, part] = None
        wide = f"{initializer.name}.stored" if turned else initializer.name
        nodes += _widen(graph, wide, f"{path.name}:{name}", places[name][0])
        if turned:
            nodes.append(helper.make_node("Transpose", [wide], [initializer.name], perm=[1, 0]))
    del graph.initializer[:]
    graph.initializer.extend(kept)
    rest = list(graph.node)
    del graph.node[:]
    graph.node.extend([*nodes, *rest])
    del graph.metadata_props[:], model.metadata_props[:], graph.value_info[:]
    for node in graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    onnx.save(model, target)
    onnx.checker.check_model(str(target))


def _widen(graph: Any, name: str, source: str, dtype: str) -> list[Any]:
    """Nodes that compute a float32 initialiser from its stored form."""
    from onnx import TensorProto, helper

    users = [node for node in graph.node if name in node.input]
    if dtype == "F16" and users and all(node.op_type == "Gather" and node.input[0] == name for node in users):
        for node in users:
            output = node.output[0]
            node.input[0], node.output[0] = source, f"{output}.half"
            graph.node.insert(
                list(graph.node).index(node) + 1,
                helper.make_node("Cast", [f"{output}.half"], [output], to=TensorProto.FLOAT),
            )
        return []
    if dtype == "F32":
        return [helper.make_node("Identity", [source], [name])]
    if dtype == "F16":
        return [helper.make_node("Cast", [source], [name], to=TensorProto.FLOAT)]
    return [
        helper.make_node("Cast", [source], [f"{name}.wide"], to=TensorProto.FLOAT),
        helper.make_node("Mul", [f"{name}.wide", f"{source}.scale"], [name]),
    ]


def _places(path: Path) -> dict[str, tuple[str, list[int], int, int]]:
    """Dtype, shape, offset and length of every tensor of a safetensors file."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    return {
        name: (value["dtype"], value["shape"], 8 + size + value["data_offsets"][0],
               value["data_offsets"][1] - value["data_offsets"][0])
        for name, value in header.items() if name != "__metadata__"
    }  # fmt: skip


def _external(path: Path, name: str, dtype: str, shape: list[int], offset: int, length: int) -> Any:
    """An initialiser without data, which refers to the bytes of a tensor in a file next to the graph."""
    from onnx import TensorProto

    kinds = {"F32": TensorProto.FLOAT, "F16": TensorProto.FLOAT16, "I8": TensorProto.INT8}
    tensor = TensorProto(name=f"{path.name}:{name}", data_type=kinds[dtype], dims=shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", path.name), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)
    return tensor


def check(module: nn.Module, path: Path, inputs: list[str], name: str) -> None:
    """Raise unless ONNX Runtime computes the same vectors as torch."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for example in _examples(name):
        with torch.no_grad():
            expected = module(*example)
        results = session.run(None, {key: value.numpy() for key, value in zip(inputs, example, strict=True)})
        for ours, theirs in zip(results, expected, strict=True):
            difference = float(np.abs(ours - theirs.numpy()).max())
            print(f"{name}: shape {ours.shape}, largest difference {difference:.1e}")  # noqa: T201
            if difference > TOLERANCE:
                raise ValueError(f"{name} differs from torch by {difference}, allowed are {TOLERANCE}")


def compare(source: Path, target: Path) -> None:
    """Raise unless a fused graph computes the same vectors as the exported one."""
    import onnxruntime

    ours, theirs = (
        onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]) for path in (target, source)
    )
    for example in _examples(source.name):
        inputs = {given.name: value.numpy() for given, value in zip(ours.get_inputs(), example, strict=True)}
        for fused, exported in zip(ours.run(None, inputs), theirs.run(None, inputs), strict=True):
            difference = float(np.abs(fused - exported).max())
            if not difference <= FUSED_TOLERANCE:
                raise ValueError(
                    f"{target.name} differs from {source.name} by {difference}, allowed are {FUSED_TOLERANCE}"
                )


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    base, graphs, fuse = (commands.add_parser(name) for name in ("base", "graphs", "fuse"))
    for command in (base, graphs, fuse):
        command.add_argument("folder", type=Path)
    base.add_argument("--lite2", type=Path, required=True)
    base.add_argument("--minilm", type=Path, required=True)
    options = parser.parse_args()
    if options.command == "base":
        write_base(options.folder, lite2_file=options.lite2, minilm_folder=options.minilm)
    elif options.command == "graphs":
        write_graphs(options.folder)
    else:
        write_fused(options.folder)


if __name__ == "__main__":
    main()
