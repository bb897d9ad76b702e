"""Ways of running the towers of CLIP ViT-L/14 faster: pairs per second, seconds to build, difference of the vectors.

python perf/encoder_candidates.py --json candidates.json       about two minutes on an H200
python perf/encoder_candidates.py --only eager_256 layers_256 --limit 60
python perf/encoder_candidates.py --device cpu                 tries the program itself

Both towers and their projections, in bfloat16 with random weights, on inputs that are already on the device; texts have
15 tokens. A candidate that fails, or takes longer than `--limit` seconds, is reported and left out. `difference` is the
root mean square of the change of the vectors, relative to the eager ones. `layers` compiles each layer of a tower:
one compilation serves all of them.
"""

import argparse
import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from synthetic_clip import LARGE, SMALL, random_clip
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

Encode = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
VOCABULARY, TOKENS = 49408, 15


@cache
def _quick_gelu_kernel() -> Any:
    from quick_gelu import kernel

    return kernel


class FusedQuickGelu(nn.Module):
    """x·sigmoid(1.702 x) in one kernel, in place, in float32 between load and store."""

    def forward(self, x: Tensor) -> Tensor:
        """The activation; overwrites its input."""
        if x.device.type == "cpu":
            return x.mul_(torch.sigmoid(1.702 * x.float()).to(x.dtype))
        count = x.numel()
        _quick_gelu_kernel()[(-(-count // 4096),)](x, count, BLOCK=4096, num_warps=8)
        return x


class FusedAttention(nn.Module):
    """The attention of a vision tower with one product for queries, keys and values."""

    def __init__(self, attention: Any) -> None:
        super().__init__()
        parts = attention.q_proj, attention.k_proj, attention.v_proj
        self.weight = nn.Parameter(torch.cat([part.weight for part in parts]))
        self.bias = nn.Parameter(torch.cat([part.bias for part in parts]))
        self.heads, self.out_proj = attention.num_heads, attention.out_proj

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **_: Any) -> tuple[Tensor, None]:
        """Attention of all positions to all; there is no mask."""
        together = functional.linear(hidden_states, self.weight, self.bias)
        queries, keys, values = together.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind()
        mixed = functional.scaled_dot_product_attention(queries, keys, values)
        return self.out_proj(mixed.transpose(1, 2).flatten(2)), None


def vision_layers(model: Any) -> Any:
    """The layers of the vision tower."""
    return model.vision_model.encoder.layers


def text_layers(model: Any) -> Any:
    """The layers of the text tower."""
    return model.text_model.encoder.layers


def fuse_activations(model: Any) -> None:
    """Use the fused activation in both towers."""
    for layer in (*vision_layers(model), *text_layers(model)):
        layer.mlp.activation_fn = FusedQuickGelu()


def fuse_attention(model: Any) -> None:
    """Use one product for queries, keys and values in the vision tower."""
    for layer in vision_layers(model):
        layer.self_attn = FusedAttention(layer.self_attn)


def compile_layers(model: Any, *, backend: str, **options: Any) -> None:
    """Compile every layer; the sizes of texts are dynamic."""
    for layer in vision_layers(model):
        layer.compile(backend=backend, dynamic=False, **options)
    for layer in text_layers(model):
        layer.compile(backend=backend, dynamic=True, **options)


def compile_towers(model: Any, *, backend: str, **options: Any) -> None:
    """Compile both towers as they are."""
    for tower in (model.vision_model, model.text_model):
        tower.compile(backend=backend, **options)


def towers(model: Any) -> Encode:
    """The function that is measured."""

    def encode(pixels: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        images, texts = model.vision_model(pixel_values=pixels), model.text_model(input_ids=ids)
        return model.visual_projection(images.last_hidden_state), model.text_projection(texts.last_hidden_state)

    return encode


def recorded(encode: Encode, pixels: Tensor, ids: Tensor) -> Encode:
    """The same function as one CUDA graph, for inputs of one size."""
    inputs, side = (pixels.clone(), ids.clone()), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            encode(*inputs)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = encode(*inputs)

    def replay(pixels: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        for buffer, values in zip(inputs, (pixels, ids), strict=True):
            buffer.copy_(values)
        graph.replay()
        return outputs

    return replay


def candidates(device: str) -> dict[str, dict[str, Any]]:
    """Settings of every candidate, the most promising first."""
    backend = "inductor" if device == "cuda" else "aot_eager"
    by_layer, whole = partial(compile_layers, backend=backend), partial(compile_towers, backend=backend)
    options = {"options": {"max_autotune": True}} if device == "cuda" else {}
    tuned, tuned_whole = partial(by_layer, **options), partial(whole, **options)
    chosen: dict[str, dict[str, Any]] = {
        "eager_256": {},
        "layers_256": {"changes": [by_layer]},
        "fused_activation_256": {"changes": [fuse_activations]},
        "fused_both_256": {"changes": [fuse_activations, fuse_attention]},
        "fused_both_graph_256": {"changes": [fuse_activations, fuse_attention], "graph": True},
        "fused_attention_layers_256": {"changes": [fuse_attention, by_layer]},
        "fused_attention_layers_graph_256": {"changes": [fuse_attention, by_layer], "graph": True},
        "fused_attention_layers_cudnn_256": {"changes": [fuse_attention, by_layer], "kernel": "CUDNN_ATTENTION"},
        "eager_cudnn_256": {"kernel": "CUDNN_ATTENTION"},
        "eager_efficient_256": {"kernel": "EFFICIENT_ATTENTION"},
        "eager_512": {"size": 512},
        "eager_1024": {"size": 1024},
        "fused_attention_layers_512": {"changes": [fuse_attention, by_layer], "size": 512},
        "fused_attention_layers_1024": {"changes": [fuse_attention, by_layer], "size": 1024},
        "fused_attention_layers_tuned_256": {"changes": [fuse_attention, tuned]},
        "fused_attention_layers_tuned_graph_256": {"changes": [fuse_attention, tuned], "graph": True},
        "towers_256": {"changes": [whole]},
        "towers_static_256": {"changes": [partial(whole, dynamic=False)]},
        "towers_tuned_256": {"changes": [partial(tuned_whole, dynamic=False)]},
    }
    return chosen if device == "cuda" else {name: one for name, one in chosen.items() if not one.get("graph")}


class OutOfTimeError(Exception):
    """A candidate took too long."""


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Context that ends with `OutOfTimeError` after some seconds."""

    def stop(*_: Any) -> None:
        raise OutOfTimeError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)  # again: an exception in a callback of the collector is lost
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@torch.no_grad()
def measure(
    model: Any, device: str, *, changes: Any = (), graph: bool = False, kernel: str = "", size: int = 256
) -> tuple[dict[str, float], tuple[Tensor, Tensor]]:
    """Return the figures of a candidate, and its first vectors."""
    model = deepcopy(model) if changes else model
    for change in changes:
        change(model)
    size, edge = size if device == "cuda" else 4, model.config.vision_config.image_size
    draw = torch.Generator(device).manual_seed(0)
    pixels = torch.randn(size, 3, edge, edge, device=device, generator=draw).to(model.dtype)
    ids = torch.randint(0, 500, (size, TOKENS), device=device, generator=draw)
    ids[:, -1] = model.config.text_config.eos_token_id
    backends = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    allowed = [getattr(SDPBackend, kernel)] if kernel and device == "cuda" else backends
    with sdpa_kernel(allowed):
        encode, start = towers(model), time.perf_counter()
        first = [part[:32].float().clone() for part in encode(pixels, ids)]
        encode = recorded(encode, pixels, ids) if graph else encode
        encode(pixels, ids)
        synchronise(device)
        built, repeats = time.perf_counter() - start, max(1, 2048 // size) if device == "cuda" else 1
        start = time.perf_counter()
        for _ in range(repeats):
            encode(pixels, ids)
        launched = time.perf_counter() - start
        synchronise(device)
        spent = time.perf_counter() - start
    figures = {"rate": size * repeats / spent, "built": built, "launch_ms": 1e3 * launched / repeats}
    return figures, (first[0], first[1])


def synchronise(device: str) -> None:
    """Wait for the GPU."""
    if device == "cuda":
        torch.cuda.synchronize()


def compare(device: str, report: Callable[..., None], *, only: list[str] | None, limit: int, budget: float) -> None:
    """Measure and report all candidates until the budget of seconds is spent."""
    start, exact = time.perf_counter(), None
    model = random_clip(device, LARGE if device == "cuda" else SMALL, VOCABULARY).eval()
    for name, settings in candidates(device).items():
        left = int(min(limit, start + budget - time.perf_counter()))
        if (only and name not in only) or left < 1:
            continue
        try:
            with limited(left):
                figures, vectors = measure(model, device, **settings)
        except Exception as error:  # noqa: BLE001, the others are measured
            report(name, f"{type(error).__name__}: {str(error).splitlines()[0][:150] if str(error) else ''}")
        else:
            if name == "eager_256":
                exact = vectors
            gaps = [] if exact is None or "256" not in name else map(difference, vectors, exact)
            note = ", ".join(f"{key} {value:.2f}" for key, value in figures.items() if key != "rate")
            report(name, figures["rate"], f"{note}, difference {max(gaps, default=0.0):.1e}")
        finally:
            torch._dynamo.reset()
            with torch.cuda.device(0) if device == "cuda" else nullcontext():
                torch.cuda.empty_cache()


def difference(vectors: Tensor, exact: Tensor) -> float:
    """Root mean square of the change, relative to that of the vectors."""
    return float((vectors - exact).norm() / exact.norm())


def main() -> None:
    """Print and store the figures of all candidates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--limit", type=int, default=45, help="seconds of one candidate")
    parser.add_argument("--budget", type=float, default=150.0, help="seconds of all candidates")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    found: dict[str, Any] = {}

    def report(name: str, value: Any, note: str = "") -> None:
        found[name] = [value, note]
        print(f"{name:<40} {value if isinstance(value, str) else f'{value:9.1f}/s'}  {note}", flush=True)
        if args.json:
            args.json.write_text(json.dumps(found, indent=1), encoding="utf-8")

    compare(args.device, report, only=args.only, limit=args.limit, budget=args.budget)


if __name__ == "__main__":
    main()
