"""Decode JPEG files on a GPU through NVIDIA's nvJPEG library, into one batch of padded images.

Its backend that decodes on the multiprocessors is selected by name. torchvision and nvImageCodec choose the JPEG
engine of the chip if it has one: that is three times as fast on an idle GPU, but next to an encoder that saturates the
GPU 256 files take 3 s instead of 50 ms (H200).
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from msdscore.core.arrays import UInt8
from msdscore.errors import ConfigError

_GPU_HYBRID = 2  # nvjpegBackend_t: Huffman codes are decoded by the GPU too
_PLANAR_RGB = 3  # nvjpegOutputFormat_t
NAMES = ("libnvjpeg.so.13", "libnvjpeg.so.12")
_FOLDERS = ("cu13/lib", "nvjpeg/lib")  # of the wheels nvidia-nvjpeg and nvidia-nvjpeg-cu12
_IMAGE = np.dtype([("channel", np.uintp, 4), ("pitch", np.uintp, 4)])  # nvjpegImage_t
_ANY, _INT, _LENGTH = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
_ARGUMENTS = {
    "CreateEx": (_INT, _ANY, _ANY, ctypes.c_uint, _ANY),
    "JpegStateCreate": (_ANY, _ANY),
    "JpegStreamCreate": (_ANY, _ANY),
    "JpegStreamParse": (_ANY, _ANY, _LENGTH, _INT, _INT, _ANY),
    "JpegStreamGetFrameDimensions": (_ANY, _ANY, _ANY),
    "DecodeBatchedSupported": (_ANY, _ANY, _ANY),
    "DecodeBatchedInitialize": (_ANY, _ANY, _INT, _INT, _INT),
    "DecodeBatched": (_ANY, _ANY, _ANY, _ANY, _ANY, _ANY),
}


class NvJpeg:
    """nvJPEG on one GPU; for one thread at a time, which waits for a batch before it starts the next."""

    def __init__(self, device: torch.device) -> None:
        self._library, self._device = library(), device
        self._handle, self._state, self._file = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        self._batch = 0  # number of files that the state is allocated for
        torch.cuda.init()
        with torch.cuda.device(device):
            self._call("CreateEx", _GPU_HYBRID, None, None, 0, ctypes.byref(self._handle))
            self._call("JpegStateCreate", self._handle, ctypes.byref(self._state))
            self._call("JpegStreamCreate", self._handle, ctypes.byref(self._file))

    def decode(
        self,
        files: Sequence[UInt8[Tensor, " bytes"]],
        sizes: Sequence[tuple[int, int]],
        out: UInt8[Tensor, "batch 3 height width"],
    ) -> list[bool]:
        """Start decoding files into the upper left of their rows of `out`, on the current stream.

        Return for each file whether the decoder accepts it; `sizes` are widths and heights.
        """
        good = [self._takes(file, size) for file, size in zip(files, sizes, strict=True)]
        self._decode(files, [number for number, taken in enumerate(good) if taken], out, good)
        return good

    def _takes(self, file: Tensor, size: tuple[int, int]) -> bool:
        """Whether the decoder supports this file, and reads the same size from it: it writes that many pixels."""
        width, height, unsupported = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_int(1)
        calls = (
            ("JpegStreamParse", self._handle, file.data_ptr(), len(file), 0, 0, self._file),
            ("JpegStreamGetFrameDimensions", self._file, ctypes.byref(width), ctypes.byref(height)),
            ("DecodeBatchedSupported", self._handle, self._file, ctypes.byref(unsupported)),
        )
        rejected = any(self._status(*call) for call in calls)
        return not rejected and not unsupported.value and (width.value, height.value) == size

    def _decode(self, files: Sequence[Tensor], rows: list[int], out: Tensor, good: list[bool]) -> None:
        """Decode all rows in one call; an error names no file, so each half is tried again."""
        if not rows:
            return
        if len(rows) != self._batch:
            self._call("DecodeBatchedInitialize", self._handle, self._state, len(rows), 1, _PLANAR_RGB)
            self._batch = len(rows)
        data = np.array([files[row].data_ptr() for row in rows], dtype=np.uintp)
        lengths = np.array([len(files[row]) for row in rows], dtype=np.uintp)
        images = np.zeros(len(rows), dtype=_IMAGE)
        image, plane, line, _ = out.stride()
        first = out.data_ptr() + np.array(rows, dtype=np.uintp) * np.uintp(image)
        images["channel"][:, :3] = first[:, None] + np.arange(3, dtype=np.uintp) * np.uintp(plane)
        images["pitch"][:, :3] = line
        stream = torch.cuda.current_stream(self._device)
        arguments = (data.ctypes.data, lengths.ctypes.data, images.ctypes.data, stream.cuda_stream)
        if self._status("DecodeBatched", self._handle, self._state, *arguments) == 0:
            return
        stream.synchronize()
        if len(rows) == 1:
            good[rows[0]] = False
            return
        for part in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
            self._decode(files, part, out, good)
            stream.synchronize()  # the state is used by one batch at a time

    def _call(self, name: str, *arguments: Any) -> None:
        status = self._status(name, *arguments)
        if status:
            raise ConfigError(f"nvJPEG cannot be used here (nvjpeg{name}: status {status}); omit jpeg=device")

    def _status(self, name: str, *arguments: Any) -> int:
        return int(getattr(self._library, f"nvjpeg{name}")(*arguments))


@cache
def library() -> ctypes.CDLL:
    """Load the nvJPEG library, from NVIDIA's wheels or the system.

    Raises:
        ConfigError: it is not installed.
    """
    spec = find_spec("nvidia")
    roots = spec.submodule_search_locations or () if spec is not None else ()
    wheels = [str(Path(root) / folder / name) for root in roots for folder in _FOLDERS for name in NAMES]
    for path in [path for path in wheels if Path(path).exists()] + list(NAMES):
        try:
            loaded = ctypes.CDLL(path)
        except OSError:
            continue
        for name, kinds in _ARGUMENTS.items():
            getattr(loaded, f"nvjpeg{name}").argtypes = kinds
        return loaded
    raise ConfigError(
        "jpeg=device needs NVIDIA's nvJPEG; pip install nvidia-nvjpeg-cu12 (or nvidia-nvjpeg, for CUDA 13), "
        "or omit jpeg=device"
    )
