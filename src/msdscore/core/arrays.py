"""Arrays of any library of the array API standard: NumPy, torch, and array-api-strict in the tests.

`namespace` returns the library of an array; formulas are written with its functions. Operations that the standard lacks
are here, with a native call if a library has a faster one. Annotations such as `Float[Array, "batch points dim"]` name
the axes; they are checked in the tests, where jaxtyping is imported first.
"""

import os
import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import array_api_compat
import numpy as np
import numpy.typing as npt

from msdscore.errors import require

Array: TypeAlias = Any  # of any library
Device: TypeAlias = Any  # "cpu" for NumPy, a torch.device for torch
Result = TypeVar("Result")

if TYPE_CHECKING or "jaxtyping" in sys.modules:
    from jaxtyping import Bool, Float, Int, Shaped, UInt8
else:

    class _Annotation:
        """A placeholder without checks: importing jaxtyping takes longer than computing a score."""

        def __class_getitem__(cls, item: Any) -> Any:
            return Any

    Bool = Float = Int = Shaped = UInt8 = _Annotation

__all__ = ["Array", "Bool", "Device", "Float", "Int", "Shaped", "UInt8"]

device_of = array_api_compat.device
is_torch = array_api_compat.is_torch_array
is_array = array_api_compat.is_array_api_obj


def namespace(*arrays: Array) -> Any:
    """Return the library of arrays, with the functions of the standard.

    NumPy's own functions are those of the standard; its wrapper in array-api-compat takes as long to import as NumPy.

    >>> namespace(np.ones(1)) is np
    True
    """
    kinds = set(map(type, arrays))
    if kinds <= {np.ndarray}:
        return np
    if len(kinds) == 1 and is_torch(arrays[0]):
        return _of_torch()  # looking it up takes longer than a small operation
    if all(isinstance(array, np.ndarray | np.generic) for array in arrays):
        return np
    return array_api_compat.array_namespace(*arrays)


@cache
def _of_torch() -> Any:
    return import_module("array_api_compat.torch")


def torch_part(name: str) -> Any:
    """Import a module of `msdscore_torch`, the distribution with everything that needs torch: GPUs and their encoders.

    Raises:
        MissingExtraError: it is not installed.
    """
    return require(f"msdscore_torch.{name}", extra="torch")


def is_gpu(device: Device) -> bool:
    """Whether a device is a GPU, on which the host should not wait for results.

    >>> is_gpu("cpu"), is_gpu("cuda:0")
    (False, True)
    """
    return str(device).startswith("cuda")


def gpu_count() -> int:
    """Number of GPUs that torch can use; torch is not imported on a machine without the device files of a driver."""
    drivers = not sys.platform.startswith("linux") or any(
        map(os.path.exists, ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd"))
    )
    if not find_spec("msdscore_torch") or not (drivers or "torch" in sys.modules):
        return 0
    count: int = torch_part("gpu.device").count()
    return count


def on_cpu(array: Array) -> bool:
    """Whether reading a value of an array is cheap, because it does not wait for a GPU."""
    return not is_torch(array) or array.device.type == "cpu"


def to_numpy(array: Array) -> npt.NDArray[Any]:
    """Return an array as a NumPy array in the memory of the host, without a copy if it is there already.

    >>> to_numpy(np.ones(2)).tolist()
    [1.0, 1.0]
    """
    if isinstance(array, np.ndarray):
        return array
    if is_torch(array):
        return np.asarray(array.detach().cpu())
    return np.from_dlpack(array)


def fetching(*arrays: Array) -> Callable[[], tuple[npt.NDArray[Any], ...]]:
    """Start copying arrays to the host; the returned function waits if necessary and returns NumPy arrays.

    >>> fetching(np.array([1, 2]))()
    (array([1, 2]),)
    """
    if all(map(on_cpu, arrays)):
        return lambda: tuple(map(to_numpy, arrays))
    arrived = torch_part("gpu.device").fetching(*arrays)
    return lambda: tuple(map(to_numpy, arrived()))


def float64(array: Array) -> npt.NDArray[np.float64]:
    """Return an array as a NumPy array in float64."""
    return to_numpy(array).astype(np.float64, copy=False)


def launched(device: Device, section: Callable[[], Result]) -> Result:
    """Return what a section returns that launches work on a device: on a GPU its launching thread calls it.

    >>> launched("cpu", lambda: 1)
    1
    """
    return torch_part("gpu.launching").launcher(device).run(section) if is_gpu(device) else section()


def is_launching() -> bool:
    """Whether this is the launching thread of a GPU, in which nothing may wait for the device."""
    module: Any = sys.modules.get("msdscore_torch.gpu.launching")
    return module is not None and bool(module.is_launching())


def on_device(values: npt.NDArray[Any], device: Device) -> Array:
    """Return values of the host on a device: as they are for NumPy ("cpu"), as a tensor for a device of torch.

    >>> on_device(np.array([1, 2]), "cpu")
    array([1, 2])
    """
    return values if isinstance(device, str) else torch_part("gpu.device").sent_values(values, device)


def from_numpy(values: npt.NDArray[Any], like: Array) -> Array:
    """Return values of the host as an array of the library and on the device of another array.

    >>> from_numpy(np.array([1, 2]), like=np.zeros(3)).tolist()
    [1, 2]
    """
    if isinstance(like, np.ndarray):
        return values
    return on_device(values, like.device) if is_torch(like) else namespace(like).asarray(values, device=device_of(like))


def integers(values: Sequence[int] | npt.NDArray[np.int64], like: Array) -> Int[Array, " values"]:
    """Return whole numbers as an array of the library and on the device of another array."""
    return from_numpy(np.array(values, dtype=np.int64), like)


def accumulation_dtype(array: Array) -> Any:
    """The dtype of sums over an array: float32 for half precision, otherwise its own.

    >>> accumulation_dtype(np.zeros(1, dtype=np.float16)) == np.float32
    True
    """
    is_half = getattr(array.dtype, "itemsize", 4) == 2  # the standard does not define half precision
    return namespace(array).float32 if is_half else array.dtype


def astype(array: Array, dtype: Any) -> Array:
    """Return an array in a dtype, without a copy if it has it already."""
    return array if array.dtype == dtype else namespace(array).astype(array, dtype)


def at_least(values: Shaped[Array, "*shape"], least: int | float) -> Shaped[Array, "*shape"]:
    """Raise values to a minimum.

    >>> at_least(np.array([-1.0, 2.0]), 0).tolist()
    [0.0, 2.0]
    """
    return values.clamp_min(least) if is_torch(values) else namespace(values).maximum(values, least)


def masked(values: Shaped[Array, "*shape"], mask: Bool[Array, "..."], other: float) -> Shaped[Array, "*shape"]:
    """Replace values at which a mask is False.

    >>> masked(np.array([1.0, 2.0]), np.array([True, False]), 0.0).tolist()
    [1.0, 0.0]
    """
    return values.masked_fill(~mask, other) if is_torch(values) else namespace(values).where(mask, values, other)


def logsumexp(values: Float[Array, "..."], axis: int) -> Float[Array, "..."]:
    """Logarithm of a sum of exponentials along an axis, of which at least one is not zero.

    >>> logsumexp(np.zeros((1, 2)), axis=1).round(4).tolist()
    [0.6931]
    """
    if is_torch(values):
        return values.logsumexp(dim=axis)
    xp = namespace(values)
    top = xp.max(values, axis=axis, keepdims=True)
    return xp.log(xp.sum(xp.exp(values - top), axis=axis)) + xp.squeeze(top, axis=axis)


def softmax(values: Float[Array, "..."], axis: int) -> Float[Array, "..."]:
    """Exponentials divided by their sum along an axis.

    >>> softmax(np.zeros((1, 2)), axis=1).tolist()
    [[0.5, 0.5]]
    """
    if is_torch(values):
        return values.softmax(dim=axis)
    xp = namespace(values)
    parts = xp.exp(values - xp.max(values, axis=axis, keepdims=True))
    return parts / xp.sum(parts, axis=axis, keepdims=True)


def sigmoid(values: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """The logistic function.

    >>> sigmoid(np.array([0.0, -1e6])).tolist()
    [0.5, 0.0]
    """
    if is_torch(values):
        return values.sigmoid()
    xp = namespace(values)
    small = xp.exp(-xp.abs(values))  # never overflows
    return xp.where(values >= 0, 1.0, small) / (1.0 + small)


def gather(
    values: Shaped[Array, "batch points *rest"], index: Int[Array, "batch chosen"]
) -> Shaped[Array, "batch chosen *rest"]:
    """Select points of every item by their indices.

    >>> gather(np.array([[1, 2, 3]]), np.array([[2, 0]])).tolist()
    [[3, 1]]
    """
    xp, rest = namespace(values), values.shape[2:]
    index = xp.reshape(index, (*index.shape, *(1 for _ in rest)))
    if is_torch(values):
        return values.gather(1, index.expand(-1, -1, *rest))
    if isinstance(values, np.ndarray):
        return np.take_along_axis(values, index, axis=1)
    return xp.take_along_axis(values, xp.broadcast_to(index, (*index.shape[:2], *rest)), axis=1)


def take_rows(values: Shaped[Array, "rows *rest"], index: Int[Array, " chosen"]) -> Shaped[Array, "chosen *rest"]:
    """Select rows by their indices.

    >>> take_rows(np.array([[1], [2]]), np.array([1, 1])).tolist()
    [[2], [2]]
    """
    return namespace(values).take(values, index, axis=0)


def segment_means(
    values: Float[Array, "*batch points"], owner: Int[np.ndarray, " points"]
) -> Float[Array, "*batch segments"]:
    """Means of the values of consecutive points of one owner; owners are numbered from 0 and ascend.

    >>> segment_means(np.array([[1.0, 2.0, 4.0]]), np.array([0, 0, 1])).tolist()
    [[1.5, 4.0]]
    """
    sums: Array
    sizes = np.bincount(owner)
    if isinstance(values, np.ndarray):
        sums = np.add.reduceat(values, np.cumsum(sizes) - sizes, axis=-1)
    elif is_torch(values):
        sums = values.new_zeros((*values.shape[:-1], len(sizes))).index_add_(-1, from_numpy(owner, values), values)
    else:
        sums = values @ astype(from_numpy(owner[:, None] == np.arange(len(sizes)), values), values.dtype)
    return sums / astype(from_numpy(sizes, values), values.dtype)
