"""JPEG files decoded by a GPU through NVIDIA's nvJPEG library, into one batch of padded images.

Its backend that decodes on the multiprocessors is asked for by name. torchvision and nvImageCodec choose the JPEG
engine of the chip where there is one: alone it is three times as fast, but beside an encoder that keeps the GPU busy
256 files take 3 s instead of 50 ms (H200).
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

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


class Decoder:
    """nvJPEG on one GPU; for one thread at a time, which waits for a batch before it asks for the next."""

    def __init__(self, device: torch.device) -> None:
        self._library, self._device = library(), device
        self._handle, self._state, self._file = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        self._batch = 0  # files that the state is ready for
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
        """Begin to decode files into the upper left of their rows of `out`, on the current stream.

        Says of each file whether the decoder takes it; `sizes` are widths and heights.
        """
        good = [self._takes(file, size) for file, size in zip(files, sizes, strict=True)]
        self._decode(files, [number for number, taken in enumerate(good) if taken], out, good)
        return good

    def _takes(self, file: Tensor, size: tuple[int, int]) -> bool:
        """Whether the decoder knows this kind of file, and sees the same size: it writes that many pixels."""
        width, height, unsupported = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_int(1)
        asked = (
            ("JpegStreamParse", self._handle, file.data_ptr(), len(file), 0, 0, self._file),
            ("JpegStreamGetFrameDimensions", self._file, ctypes.byref(width), ctypes.byref(height)),
            ("DecodeBatchedSupported", self._handle, self._file, ctypes.byref(unsupported)),
        )
        refused = any(self._status(*one) for one in asked)
        return not refused and not unsupported.value and (width.value, height.value) == size

    def _decode(self, files: Sequence[Tensor], rows: list[int], out: Tensor, good: list[bool]) -> None:
        """One call for all rows; a refusal names no file, so each half is tried again."""
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
        given = (data.ctypes.data, lengths.ctypes.data, images.ctypes.data, stream.cuda_stream)
        if self._status("DecodeBatched", self._handle, self._state, *given) == 0:
            return
        stream.synchronize()
        if len(rows) == 1:
            good[rows[0]] = False
            return
        for part in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
            self._decode(files, part, out, good)
            stream.synchronize()  # the state serves one batch at a time

    def _call(self, name: str, *given: Any) -> None:
        status = self._status(name, *given)
        if status:
            raise ConfigError(f"nvJPEG cannot be used here (nvjpeg{name}: status {status}); leave jpeg=device out")

    def _status(self, name: str, *given: Any) -> int:
        return int(getattr(self._library, f"nvjpeg{name}")(*given))


@cache
def library() -> ctypes.CDLL:
    """The nvJPEG library, from NVIDIA's wheels or the system.

    Raises:
        ConfigError: it is not there.
    """
    spec = find_spec("nvidia")
    roots = spec.submodule_search_locations or () if spec is not None else ()
    wheels = [str(Path(root) / folder / name) for root in roots for folder in _FOLDERS for name in NAMES]
    for path in [path for path in wheels if Path(path).exists()] + list(NAMES):
        try:
            found = ctypes.CDLL(path)
        except OSError:
            continue
        for name, kinds in _ARGUMENTS.items():
            getattr(found, f"nvjpeg{name}").argtypes = kinds
        return found
    raise ConfigError(
        "jpeg=device needs NVIDIA's nvJPEG; pip install nvidia-nvjpeg-cu12 (or nvidia-nvjpeg, for CUDA 13), "
        "or leave jpeg=device out"
    )
