"""Convolutions in rows of channels, and the image tower of `mini` made of them, against plain torch."""

from importlib.util import find_spec
from unittest import mock

import pytest
import torch

from msdscore_torch.aligned.lite2 import Lite2, branch_maps, share_stages
from msdscore_torch.aligned.rows import RowNetworks
from msdscore_torch.gpu import convolutions
from msdscore_torch.gpu.convolutions import DepthwiseConvolution, FirstConvolution, plain
from triton_cases import needs_cuda, needs_interpreter, patch_numpy_scalars, run_interpreted

# Channels, kernel and stride of every depth-wise convolution of the network, on small maps with odd sides too.
LAYERS = [
    (32, 3, 1), (96, 3, 2), (144, 3, 1), (144, 5, 2), (288, 5, 1), (288, 3, 2), (528, 3, 1), (528, 5, 1), (720, 5, 1),
    (720, 5, 2), (1248, 5, 1), (1248, 3, 1),
]  # fmt: skip
SIDES = [(9, 9), (7, 20), (5, 6), (1, 1), (2, 37)]


def check_layer(device, channels, kernel, stride, sides):
    generator = torch.Generator().manual_seed(channels + kernel)
    x = 4 * torch.randn(2, *sides, channels, generator=generator)
    weight = torch.randn(channels, 1, kernel, kernel, generator=generator) / kernel
    bias = torch.randn(channels, generator=generator)
    convolution = DepthwiseConvolution(weight.to(device), bias.to(device), stride=stride)
    found = convolution(x.to(device))
    expected = plain(torch.nn.functional.relu6(x.permute(0, 3, 1, 2)), weight, bias, stride=stride)
    torch.testing.assert_close(found.cpu().permute(0, 3, 1, 2), expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(convolution(x[1:].to(device)), found[1:]), "an item's bits depend on its batch"


def check_first(device, sides):
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (2, *sides, 3), dtype=torch.uint8, generator=generator).permute(0, 3, 1, 2)
    weight, bias = torch.randn(32, 3, 3, 3, generator=generator), torch.randn(32, generator=generator)
    normal = pixels / 128 - 127 / 128
    expected = plain(normal, weight, bias, stride=2)
    first = FirstConvolution(weight.to(device), bias.to(device), stride=2)
    levels = first(pixels.to(device), scale=1 / 128, shift=127 / 128)
    torch.testing.assert_close(levels.cpu().permute(0, 3, 1, 2), expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(first(normal.contiguous().to(device)), levels)


def networks(count=2):
    """Networks whose activations neither vanish nor saturate; the last stages differ."""
    generator = torch.Generator().manual_seed(0)
    base = Lite2().eval().requires_grad_(False)
    for name, tensor in base.named_parameters():
        if name.endswith("weight"):
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * (1.5 / tensor[0].numel()) ** 0.5)
        else:
            tensor.copy_(0.1 * torch.randn(tensor.shape, generator=generator))
    members = [base]
    for _ in range(count - 1):
        other = Lite2().eval().requires_grad_(False)
        other.load_state_dict(base.state_dict())
        other.stages[4][1].layers[0].bias += 0.1
        members.append(other)
    return members


@torch.no_grad()
def check_network(device, side, batch=2):
    members = [network.to(device) for network in networks()]
    shared = share_stages(members)
    assert shared == 4
    pixels = torch.randint(
        0, 256, (batch, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)
    )
    rows = RowNetworks(members, torch.float32, shared=shared)
    found = rows(pixels.to(device), scale=1 / 128, shift=127 / 128)
    expected = branch_maps(members, pixels.to(device) / 128 - 127 / 128, shared=shared)
    assert len(found) == len(expected) == 6
    for part, other in zip(found, expected, strict=True):
        assert part.is_contiguous(memory_format=torch.channels_last)
        assert other.std() > 0.01
        # Activations of up to 6 after 100 layers whose products add in another order.
        torch.testing.assert_close(part, other, atol=1e-4, rtol=2e-5)
    if batch > 1:
        for part, alone in zip(found, rows(pixels[:1].to(device), scale=1 / 128, shift=127 / 128), strict=True):
            torch.testing.assert_close(part[:1], alone, atol=1e-4, rtol=2e-5)


def interpret():
    patch_numpy_scalars()
    # An interpreted program takes 0.1 s whatever its size: a few large ones.
    with mock.patch.multiple(convolutions, TILE=32, CHANNELS=2048, FIRST_TILE=128):
        # Every kernel size and stride; the network has the other numbers of channels.
        for layer, sides in zip(LAYERS[:5], SIDES, strict=True):
            check_layer("cpu", *layer, sides)
        check_first("cpu", (9, 12))
        check_network("cpu", 33, batch=1)
        for dtype in (torch.float32, torch.float16):
            assert convolutions.agrees(torch.device("cpu"), dtype)


@needs_interpreter
def test_interpreted_convolutions_agree_with_torch():
    run_interpreted("test_core_convolutions")


@needs_cuda
@pytest.mark.parametrize(("channels", "kernel", "stride"), LAYERS)
def test_cuda_layers_agree_with_torch(channels, kernel, stride):
    for sides in SIDES:
        check_layer("cuda", channels, kernel, stride, sides)


@needs_cuda
def test_cuda_network_agrees_with_torch():
    check_first("cuda", (288, 288))
    check_network("cuda", 288, batch=5)


@needs_cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_convolutions_are_used_on_this_device(dtype):
    assert convolutions.serves(torch.device("cuda", 0), dtype)


def test_other_devices_and_types_have_none():
    assert not convolutions.serves(torch.device("cpu"), torch.float32)
    assert not convolutions.serves(torch.device("cuda"), torch.float64)


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_a_difference_from_torch_is_found():
    """The check compares numbers: a kernel that computes nothing fails it."""

    class Nothing:
        def __getitem__(self, grid):
            return lambda *args, **kwargs: args[3].zero_()

    with (
        mock.patch("msdscore_torch.gpu.depthwise.depthwise_kernel", Nothing()),
        mock.patch("msdscore_torch.gpu.depthwise.first_kernel", Nothing()),
    ):
        assert not convolutions.agrees(torch.device("cpu"))
