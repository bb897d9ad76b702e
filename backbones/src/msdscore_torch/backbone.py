"""Base class of encoders around a pretrained model: options, signature, normalisation, compilation."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from PIL.Image import Image
from torch import Tensor, nn

from msdscore.core.arrays import Float, is_launching
from msdscore.core.embeddings import masked_mean, real_points, unit
from msdscore.core.evidence import Bank
from msdscore.encoders.base import UNIT, Embeddings, Encoder, PatchLayout, Prepared, overflow, with_text_warnings
from msdscore.encoders.options import Identity as Identity
from msdscore.encoders.options import SharedOptions as SharedOptions
from msdscore.encoders.options import read_options as read_options
from msdscore.encoders.preprocessing import Preprocessing, patch_layout, prepare_image
from msdscore.encoders.registry import built_in_row
from msdscore.encoders.tokens import TextBatch, TextSettings, pack
from msdscore.errors import ConfigError
from msdscore_torch.gpu.device import sent
from msdscore_torch.gpu.launching import without_cudnn_attention
from msdscore_torch.tensors import Features as Features
from msdscore_torch.tokenizers import tokenise_all
from msdscore_torch.vision.device import stack_pixels

_AS_IT_IS = Preprocessing(resize=None, crop=None)  # for networks that take any size
_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Placement:
    """A device and the dtype that a model computes in there; its vectors are always float32."""

    device: torch.device
    dtype: torch.dtype

    @property
    def dtype_name(self) -> str:
        """The dtype as written in the signature."""
        return str(self.dtype).removeprefix("torch.")

    def autocast(self) -> torch.autocast:
        """Context in which float32 weights compute in its dtype."""
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32)


def place(device: str, dtype: str, *, half: torch.dtype = torch.float16) -> Placement:
    """Resolve `auto`: CUDA if available; float32 on CPU, `half` on CUDA.

    >>> place("cpu", "auto")
    Placement(device=device(type='cpu'), dtype=torch.float32)

    Raises:
        ConfigError: no such device or dtype.
    """
    if dtype not in ("auto", *_DTYPES):
        raise ConfigError(f"dtype must be auto or one of {', '.join(_DTYPES)}, got {dtype!r}")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        target = torch.device(device)
    except RuntimeError:
        raise ConfigError(f"device must be auto, cpu, cuda or cuda:N, got {device!r}") from None
    if not _is_available(target):
        raise ConfigError(f"device {device!r} is not available; use device='auto' or 'cpu'")
    if str(target) == "cuda" and torch.cuda.current_device():
        target = torch.device("cuda", torch.cuda.current_device())  # that of other threads may differ
    usual = half if target.type == "cuda" else torch.float32
    placement = Placement(target, _DTYPES.get(dtype, usual))
    if target.type == "cpu" and not cpu_computes(placement.dtype):
        raise ConfigError(f"this CPU has no instructions for {dtype}; use dtype='float32' or 'auto'")
    return placement


def _is_available(device: torch.device) -> bool:
    """Whether torch can compute on a device."""
    if device.type == "cuda":
        return (device.index or 0) < torch.cuda.device_count()
    if device.type == "mps":
        return torch.backends.mps.is_available()
    return device.type == "cpu" or (device.type == "xpu" and torch.xpu.is_available())


def cpu_computes(dtype: torch.dtype) -> bool:
    """Whether this CPU supports a dtype; otherwise torch raises errors or crashes."""
    if dtype == torch.float32:
        return True
    if not torch.backends.mkldnn.is_available():
        return False
    names = {torch.bfloat16: "_is_mkldnn_bf16_supported", torch.float16: "_is_mkldnn_fp16_supported"}
    return bool(getattr(torch.ops.mkldnn, names[dtype])())


def as_tensors(batch: TextBatch) -> TextBatch:
    """The same batch with the inputs of a torch network and the mask as tensors."""
    ids, attention, mask = (torch.from_numpy(part) for part in (batch.ids, batch.attention, batch.mask))
    return replace(batch, ids=ids, attention=attention, mask=mask)


class Backbone(ABC):
    """An encoder around a pretrained model; a family implements `_see` and `_read`.

    Vectors are float32 whatever the model computes in, as plain tensors without gradient history: heads can be
    trained on them. `tokenizer` is one of the tokenizers library, and `text_settings` configures the text tower.
    `preprocessing` are the preprocessing steps of images; a family with custom ones overrides `prepare`. Neither
    references the model, so that both can be sent to other processes. A family that has a `bank` or `recommended`
    settings sets them.
    """

    marks_overflow = True  # in a launching thread: the check would wait for the device
    bank: Bank | None = None
    recommended: Mapping[str, Any] | None = None

    def __init__(
        self,
        identity: Identity,
        *,
        model: Any = None,
        tokenizer: Any = None,
        text_settings: TextSettings | None = None,
        preprocessing: Preprocessing | None = None,
        prepare: Callable[[Image], Prepared] | None = None,
    ) -> None:
        self.name, self.signature = identity.name, identity.signature
        self.device: torch.device = identity.placement.device
        self.precision = _DTYPES[identity.placement.dtype_name]
        self.preprocessing = preprocessing
        self._identity, self._own_prepare = identity, prepare
        self._options: Any = identity.options  # of the family
        self.model, self.tokenizer, self.text_settings = model, tokenizer, text_settings
        if preprocessing is not None and preprocessing.jpeg_on_device and self.device.type == "cuda":
            from msdscore_torch.vision.nvjpeg import library

            library()  # raises now if it is missing, not at the first file

    def prepare(self, image: Image) -> Prepared:
        """Preprocess an image in the thread that decodes it; a family that resizes overrides this."""
        return (self.sendable_prepare or partial(prepare_image, steps=_AS_IT_IS))(image)

    @property
    def sendable_prepare(self) -> Callable[[Image], Prepared] | None:
        """`prepare` without the model, for other processes; None if a family has no picklable one."""
        steps = self.preprocessing
        return self._own_prepare if steps is None else partial(prepare_image, steps=steps)

    def as_published(self) -> Encoder:
        """Return an encoder with the same weights whose captions are cut at the context.

        Metrics of others, such as CLIPScore, are defined on the pooled vectors of this encoder.
        """
        other = copy(self)
        other._options = replace(self._identity.options, long_text="cut")
        other._identity = replace(self._identity, options=other._options)
        other.signature = other._identity.signature
        if self.text_settings is not None:
            other.text_settings = replace(self.text_settings, long_text="cut")
        return other

    @torch.no_grad()
    def encode_images(self, images: Sequence[Prepared]) -> Embeddings:
        """Patches and pooled vectors; `layout` has one `PatchLayout` per item."""
        if not images:
            raise ConfigError("expected at least one image to encode, got none")
        with without_cudnn_attention():
            states = self._see(images)
        return self._finish(states)

    @torch.no_grad()
    def encode_texts(self, texts: Sequence[str]) -> Embeddings:
        """Tokens and pooled vectors; `layout` has one `TokenLayout` per item."""
        if not texts:
            raise ConfigError("expected at least one caption to encode, got none")
        with without_cudnn_attention():
            states = self._read(texts)
        row = built_in_row(self.name)
        english = (self._identity.languages or (row.languages if row else ())) == ("en",)
        return with_text_warnings(self._finish(states), texts, english=english)

    @abstractmethod
    def _see(self, images: Sequence[Prepared]) -> Features:
        """Patches of prepared images."""

    @abstractmethod
    def _read(self, texts: Sequence[str]) -> Features:
        """Tokens of captions."""

    def _pixels(self, images: Sequence[Prepared]) -> Float[Tensor, "batch 3 height width"]:
        """Prepared images as normalised pixels."""
        assert self.preprocessing is not None, "a family with custom preprocessing overrides this"
        return stack_pixels(images, self.preprocessing, self.device).to(self.precision)

    def _pack(self, texts: Sequence[str]) -> TextBatch:
        """The windows of captions as one padded batch of tokens."""
        assert self.text_settings is not None, "the family sets how its text tower reads"
        return as_tensors(pack(tokenise_all(self.tokenizer, texts), self.text_settings))

    def _finish(self, states: Features) -> Embeddings:
        mask, filled = torch.as_tensor(states.mask), states.filled  # a family may have computed it with NumPy
        if filled is None and mask.device.type == "cpu":
            filled = tuple(mask.any(dim=1).tolist())
        mask = sent(mask, states.points.device)
        real = real_points(unit(states.points), mask)
        pooled = masked_mean(real, mask) if states.pooled is None else states.pooled
        # A model's pooled vectors may have any length; those of unit length remain unchanged, bit by bit.
        length = pooled.norm(dim=-1, keepdim=True)
        pooled = torch.where((length - 1).abs() > UNIT, unit(pooled), pooled)
        finite = torch.isfinite(real).all() & torch.isfinite(pooled).all()
        if is_launching():
            pooled = pooled.masked_fill(~finite, torch.nan)
        elif not finite:
            raise overflow(self.name, self.precision)
        return Embeddings(real, mask, pooled, states.layout, filled)


def square_layouts(images: Sequence[Prepared], config: Any) -> tuple[PatchLayout, ...]:
    """The boxes of a square vision tower's patches on each image, from the tower's transformers configuration."""
    patch = int(config.patch_size)
    side = int(config.image_size) // patch
    return tuple(patch_layout(image.view, (side, side), (patch, patch)) for image in images)


def compile_towers(options: SharedOptions, *towers: nn.Module) -> None:
    """Compile the layers of towers in place with the backend named in the options; an empty name compiles nothing.

    Layers of one kind share their compilation, which takes seconds rather than the half minute of a whole tower. All
    sizes are dynamic, so that the kernels of a batch depend on its shape only, and not on the batches before.

    Raises:
        ConfigError: unknown torch backend.
    """
    if not options.compile:
        return
    known = torch.compiler.list_backends(exclude_tags=None)
    if options.compile not in known:
        raise ConfigError(f"compile must be empty or one of {', '.join(sorted(known))}, got {options.compile!r}")
    for tower in towers:
        for layer in _layers(tower):
            layer.compile(backend=options.compile, dynamic=True)


def _layers(tower: nn.Module) -> list[nn.Module]:
    """The layers of a transformer: a list of modules of one class with most of its parameters; else the tower."""
    lists = [list(module) for module in tower.modules() if isinstance(module, nn.ModuleList | nn.Sequential)]
    layers = max((part for part in lists if len(set(map(type, part))) == 1), key=len, default=[])
    return layers if 2 * _size(layers) > _size([tower]) else [tower]


def _size(modules: Sequence[nn.Module]) -> int:
    return sum(parameter.numel() for module in modules for parameter in module.parameters())
