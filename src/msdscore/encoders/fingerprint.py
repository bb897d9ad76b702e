"""Signatures of encoders that are not loaded from verified files: their own, with a hash of their code and weights.

The built-in loaders put a hash of every weight file into the signature. Nothing forces an encoder of a user to do so:
with other weights under the same signature, a finished run would be taken for up to date. Vectors of a probe are not
hashed: they differ in the last bits between machines, and any rounding has edges.
"""

import os
import sys
from collections import deque
from collections.abc import Iterator
from functools import cache, partial
from hashlib import blake2b
from inspect import getsource
from operator import itemgetter
from pathlib import Path
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from msdscore.encoders.base import Encoder
from msdscore.encoders.checkpoints import file_sha256

OURS = ("msdscore", "msdscore_torch")  # packages whose loaders put hashes of all weights into the signature
LOADED_BY = "loaded_by"  # attribute of an encoder that another module made, possibly of a built-in class: its name
_WEIGHTS = (
    ".bin", ".ckpt", ".engine", ".gguf", ".h5", ".json", ".model", ".msgpack", ".npy", ".npz", ".onnx", ".pickle",
    ".pkl", ".pt", ".pth", ".safetensors", ".tflite",
)  # fmt: skip
_LEAVES = (type, ModuleType, BuiltinFunctionType, str, bytes, int, float, complex, type(None))


def encoder_signature(encoder: Encoder) -> str:
    """Return an encoder's signature; that of a user's encoder also has a hash of its code and weights, `own:1f0c9a2b`.

    The hash is the same on every device and machine. It covers the source of the encoder's modules outside of installed
    libraries, and what its attributes contain: arrays and tensors, floats, and files of weights that they name.

    >>> from msdscore.encoders.registry import load_encoder
    >>> encoder_signature(load_encoder("toy"))
    'toy@1'
    """
    if _package(type(encoder).__module__) in OURS and not hasattr(encoder, LOADED_BY):
        return encoder.signature
    return f"{encoder.signature},own:{_Fingerprint(encoder).hexdigest()}"


class _Fingerprint:
    """Hash of the modules and the state of an encoder, each object once and in a fixed order."""

    def __init__(self, encoder: Encoder) -> None:
        self._digest = blake2b(digest_size=4)
        self._seen: dict[int, Any] = {}  # the objects themselves: an id may be used again after its object is gone
        loaded_by = getattr(encoder, LOADED_BY, None)
        names = [name for name in (type(encoder).__module__, loaded_by) if name]
        self._packages = {_package(name) for name in names}  # installed packages too
        bases = [kind.__module__ for kind in type(encoder).__mro__]
        self._modules = {name for name in (*names, *bases) if self._is_own(name)}
        self._classes = [kind for kind in type(encoder).__mro__ if kind.__module__ == "__main__"]
        self._state(encoder)
        for name in self._sources():
            for label, value in sorted(vars(sys.modules[name]).items()):
                if not label.startswith("__") and self._is_weights(value):
                    self._state(value, f"{name}.{label}")

    def hexdigest(self) -> str:
        return self._digest.hexdigest()

    def _sources(self) -> list[str]:
        """Hash the source of every module of the user that the encoder's modules use; return their names."""
        found, waiting = set[str](), sorted(self._modules)
        while waiting:
            name = waiting.pop()
            if name in found:
                continue
            found.add(name)
            for value in vars(sys.modules[name]).values():
                other = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
                if isinstance(other, str) and other not in found and self._is_own(other):
                    waiting.append(other)
        for name in sorted(found):
            self._add(name, Path(str(sys.modules[name].__file__)).read_bytes())
        for kind in dict.fromkeys(self._classes):  # of a script or notebook, which changes for other reasons
            try:
                self._add(kind.__qualname__, getsource(kind).encode())
            except (OSError, TypeError):  # typed into an interpreter
                for label, method in sorted(vars(kind).items()):
                    if isinstance(method, FunctionType):
                        self._add(label, method.__code__.co_code)
        return sorted(found)

    def _is_own(self, name: str) -> bool:
        """Whether a module belongs to the user: of the encoder's package, or outside of installed libraries."""
        file = getattr(sys.modules.get(name), "__file__", None) or ""
        if name == "__main__" or _package(name) in OURS or not (file.endswith(".py") and os.path.isfile(file)):  # noqa: PTH113
            return False
        return _package(name) in self._packages or not file.startswith(_libraries())

    def _is_weights(self, value: Any) -> bool:
        """Whether a global variable of a module may contain weights."""
        network = getattr(sys.modules.get("torch"), "nn", None)
        kinds = (dict, list, tuple, *(() if network is None else (network.Module,)))
        return isinstance(value, kinds) or self._is_own(type(value).__module__) or _array(value) is not None

    def _state(self, value: Any, label: str = "") -> None:
        """Hash the contents of an object, depth first."""
        waiting = [(label, value)]
        while waiting:
            label, value = waiting.pop()
            if isinstance(value, float):
                self._add(label, value.hex().encode())
            elif isinstance(value, bytes | bytearray):
                self._add(label, value)
            elif isinstance(value, str | Path):
                self._file(label, value)
            elif not isinstance(value, _LEAVES) and id(value) not in self._seen:
                self._seen[id(value)] = value
                array = _array(value)
                if array is None:
                    waiting.extend((f"{label}.{name}", part) for name, part in reversed(self._parts(value)))
                elif array.dtype.hasobject:
                    waiting.append((label, array.tolist()))
                else:
                    self._add(f"{label} {array.dtype.str} {array.shape}", np.ascontiguousarray(array).tobytes())

    def _parts(self, value: Any) -> list[tuple[str, Any]]:
        """Return the contents of a container, a function or an object by name."""
        if isinstance(value, FunctionType):
            cells = [cell for cell in value.__closure__ or () if cell != CellType()]  # an empty one has no contents
            return [(f"cell {index}", cell.cell_contents) for index, cell in enumerate(cells)]
        if isinstance(value, MethodType):
            return [("self", value.__self__)]
        if isinstance(value, partial):
            return [("function", value.func), ("arguments", value.args), ("keywords", value.keywords)]
        if isinstance(value, list | tuple | deque):
            return [(str(index), part) for index, part in enumerate(value)]
        items = value.items() if isinstance(value, dict) else ()
        parts = sorted(((str(key), part) for key, part in items), key=itemgetter(0))
        kind = type(value)
        if _package(kind.__module__) in sys.stdlib_module_names:  # locks, loggers, pools of threads
            return parts
        if self._is_own(kind.__module__):
            self._modules.add(kind.__module__)
        elif kind.__module__ == "__main__":
            self._classes.append(kind)
        return parts + sorted(_attributes(value), key=itemgetter(0))

    def _file(self, label: str, value: str | Path) -> None:
        """Hash the content of a file of weights, wherever it is."""
        path = Path(value)
        if path.suffix.lower() in _WEIGHTS and len(str(value)) < 4096 and "\0" not in str(value) and path.is_file():
            self._add(label, file_sha256(path).encode())

    def _add(self, label: str, content: bytes | bytearray) -> None:
        self._digest.update(f"\n{label} {len(content)}\n".encode("utf-8", "surrogatepass"))
        self._digest.update(content)


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    yield from ((name, part) for name, part in getattr(value, "__dict__", {}).items() if name != LOADED_BY)
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if not name.startswith("__") and (part := getattr(value, name, None)) is not None:
                yield name, part


def _array(value: Any) -> "np.ndarray[Any, Any] | None":
    """Return the elements of an array of any library, or None for other objects."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.is_quantized or value.is_meta:
            return None
        plain = value.detach().cpu().contiguous().reshape(-1)
        return np.asarray(plain.view(torch.uint8).numpy() if plain.dtype != torch.bool else plain.numpy())
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    if hasattr(type(value), "__array__") or type(value).__module__ == "array":
        return np.asarray(value)
    return None


@cache
def _libraries() -> tuple[str, ...]:
    """Return the folders of installed libraries."""
    import sysconfig

    return tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def _package(module: str) -> str:
    return module.partition(".")[0]
