"""Load transformers models from local files: complete, quietly, and without the network."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import torch
from PIL import Image

from msdscore.encoders.checkpoints import Checkpoint, Needs
from msdscore.encoders.options import Identity, SharedOptions, read_options
from msdscore.encoders.preprocessing import Preprocessing
from msdscore.errors import ConfigError, WeightsError, require
from msdscore_torch.backbone import place
from msdscore_torch.hub import find_checkpoint
from msdscore_torch.tokenizers import literal_backend

# Layers whose weights are read by other code, which would misread quantised values: SigLIP's attention pool,
# and the patch embedding of SigLIP 2, whose dtype the pixels are converted to.
_WHOLE = ["vision_model.head", "vision_model.embeddings.patch_embedding", "lm_head"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeOptions(SharedOptions):
    """User options for loading a transformers model.

    `device_map` is passed to transformers, such as "auto"; `bits` is 4 or 8, or 0 for full-precision weights.
    """

    device_map: str = ""
    bits: int = 0

    def __post_init__(self) -> None:
        SharedOptions.__post_init__(self)
        if self.bits not in (0, 4, 8):
            raise ConfigError(f"bits must be 0, 4 or 8, got {self.bits!r}")


def load_family(
    source: str,
    arguments: Mapping[str, Any],
    *,
    kind: str | Callable[[Checkpoint], str],
    options: type[LargeOptions],
    needs: Needs,
    half: torch.dtype = torch.float16,
    keywords: Callable[[Checkpoint], Mapping[str, Any]] = lambda checkpoint: {},
) -> tuple[Identity, Checkpoint, Any, Any]:
    """Load a checkpoint from a folder or a hub name; `arguments` are the keywords passed to a loader.

    `kind` is the transformers class, `half` the default dtype on CUDA; `keywords` are passed to its
    `from_pretrained`. The result is the identity of the encoder, its files, its model on its device and its tokenizer,
    whose backend reads special tokens in a text as plain text.

    Raises:
        MissingExtraError: a distributed or quantised model needs accelerate, and a quantised one bitsandbytes.
        WeightsError: files are missing, damaged, or of another kind of model.
    """
    remaining = {"revision": None, "device": "auto", "dtype": "auto", **arguments}
    name, revision, device, dtype = (remaining.pop(key) for key in ("name", "revision", "device", "dtype"))
    chosen = read_options(options, remaining)
    checkpoint = find_checkpoint(source, revision=revision, needs=needs)
    model_class = kind if isinstance(kind, str) else kind(checkpoint)
    placement = place(device, dtype, half=half)
    spread: dict[str, Any] = {}
    if chosen.bits or chosen.device_map:
        require("accelerate", extra="large")
        spread["device_map"] = chosen.device_map or {"": placement.device}
    if chosen.bits:
        require("bitsandbytes", extra="large")
        spread["quantization_config"] = require("transformers", extra="hf").BitsAndBytesConfig(
            load_in_4bit=chosen.bits == 4,
            load_in_8bit=chosen.bits == 8,
            bnb_4bit_compute_dtype=placement.dtype,
            llm_int8_skip_modules=_WHOLE,
        )
    model = load_model(model_class, checkpoint, dtype=placement.dtype, **spread, **keywords(checkpoint)).eval()
    if spread:
        placement = replace(placement, device=torch.device(model.device))
    else:
        model = model.to(device=placement.device, dtype=placement.dtype)
    tokenizer = load_tokenizer(checkpoint)
    literal_backend(tokenizer.backend_tokenizer)
    # The device of a layer does not change a vector.
    choices = (f"bits:{chosen.bits}",) if chosen.bits else ()
    return Identity(name, checkpoint.signed(name), placement, chosen, choices), checkpoint, model, tokenizer


def load_model(kind: str, checkpoint: Checkpoint, *, dtype: torch.dtype | None = None, **keywords: Any) -> Any:
    """Load a model of the transformers class `kind`; with `dtype` None the files or the library decide.

    Further keywords are passed to `from_pretrained`; a `state_dict` among them replaces the files.

    Raises:
        ConfigError: the installed transformers does not have the class.
        WeightsError: the files are damaged, of another model, or lack tensors.
    """
    transformers = require("transformers", extra="hf")
    version = transformers.__version__
    if not hasattr(transformers, kind):
        raise ConfigError(f"transformers {version} has no {kind}; upgrade it with: pip install -U transformers")
    if dtype is not None:
        # The name changed in 4.56; each version warns about, or does not know, the other one.
        renamed = tuple(map(int, version.split(".")[:2])) >= (4, 56)
        keywords["dtype" if renamed else "torch_dtype"] = dtype
    with quiet(transformers):
        try:
            # Every supported version reads .bin files with weights_only=True; not all accept the argument.
            model, report = getattr(transformers, kind).from_pretrained(
                None if "state_dict" in keywords else checkpoint.folder,
                output_loading_info=True,
                local_files_only=True,
                **keywords,
            )
        except Exception as error:  # damaged files raise any exception
            raise _damaged("weights", checkpoint, error) from error
    # transformers would initialise these randomly and continue; position ids are computed, not learned.
    missing = sorted(key for key in report["missing_keys"] if not key.endswith("position_ids"))
    if missing:
        raise WeightsError(
            f"weights of {checkpoint.source!r} lack {len(missing)} tensors of {kind}, first {missing[0]!r}; "
            "pass a complete checkpoint of that kind"
        )
    return model


def load_tokenizer(checkpoint: Checkpoint) -> Any:
    """Load a fast tokenizer: the library's choice, else the class that the files name, else the fast file.

    Raises:
        WeightsError: its files are damaged, or only a slow tokenizer without character offsets exists.
    """
    transformers = require("transformers", extra="hf")
    failure: Exception | None = None
    with quiet(transformers):
        kinds = ["AutoTokenizer"]
        if (checkpoint.folder / "tokenizer_config.json").is_file():
            named = str(checkpoint.read_json("tokenizer_config.json").get("tokenizer_class", ""))
            kinds.append(f"{named.removesuffix('Fast')}Fast")
        if (checkpoint.folder / "tokenizer.json").is_file():
            kinds.append("PreTrainedTokenizerFast")
        for kind in kinds:
            try:
                tokenizer = getattr(transformers, kind).from_pretrained(checkpoint.folder, local_files_only=True)
            except Exception as error:  # noqa: BLE001 - missing classes, libraries and damaged files raise many kinds
                failure = failure or error
                continue
            if tokenizer.is_fast:
                return tokenizer
    failure = failure or ValueError("only a slow tokenizer without character offsets exists; add a tokenizer.json")
    raise _damaged("tokenizer", checkpoint, failure) from failure


def read_preprocessing(config: Mapping[str, Any]) -> Preprocessing:
    """Parse the steps of a `preprocessor_config.json`.

    >>> read_preprocessing({"size": {"shortest_edge": 224}, "crop_size": 224, "do_normalize": False}).crop
    (224, 224)

    Raises:
        WeightsError: the file contains unsupported steps.
    """
    try:
        resize: int | tuple[int, int] | None = None
        if config.get("do_resize", True):
            size = config["size"]
            # Old files contain a bare number, or a pair; newer ones name the values.
            shortest = isinstance(size, Mapping) and "shortest_edge" in size and "longest_edge" not in size
            resize = int(size["shortest_edge"]) if shortest else size if isinstance(size, int) else _pair(size)
        crop = _pair(config["crop_size"]) if config.get("do_center_crop", "crop_size" in config) else None
        scale = float(config.get("rescale_factor", 1 / 255)) if config.get("do_rescale", True) else 1.0
        resample = int(config.get("resample", Image.Resampling.BICUBIC))
        mean: tuple[float, ...] = (0.0, 0.0, 0.0)
        std: tuple[float, ...] = (1.0, 1.0, 1.0)
        if config.get("do_normalize", True):
            mean, std = (tuple(map(float, config[f"image_{name}"])) for name in ("mean", "std"))
    except (KeyError, TypeError, ValueError) as error:
        raise WeightsError(f"preprocessor_config.json is not supported ({error!r}); download it again") from None
    return Preprocessing(resize, crop, resample, scale, mean, std)


def _pair(size: Any) -> tuple[int, int]:
    if isinstance(size, int):
        return size, size
    if isinstance(size, Mapping):
        return int(size["width"]), int(size["height"])
    height, width = size
    return int(width), int(height)


def square_preprocessing(checkpoint: Checkpoint, side: int) -> Preprocessing:
    """The checkpoint's preprocessing, for a model that takes only squares of `side` pixels.

    Raises:
        WeightsError: the preprocessor has another size.
    """
    steps = read_preprocessing(preprocessor(checkpoint))
    canvas = steps.crop or steps.resize
    if canvas != (side, side):
        raise WeightsError(
            f"the preprocessor of {checkpoint.source!r} should produce {side} x {side} pixels "
            f"as its model takes, but produces {canvas}; copy the file from its base model"
        )
    return steps


def preprocessor(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """The checkpoint's preprocessor configuration; newer checkpoints may store it inside processor_config.json."""
    if (checkpoint.folder / "preprocessor_config.json").is_file():
        return checkpoint.read_json("preprocessor_config.json")
    settings = checkpoint.read_json("processor_config.json").get("image_processor", {})
    return settings if isinstance(settings, dict) else {}


def _damaged(what: str, checkpoint: Checkpoint, error: Exception) -> WeightsError:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return WeightsError(f"{what} of {checkpoint.source!r} cannot be loaded ({reason}); download the files again")


@contextmanager
def quiet(transformers: ModuleType) -> Iterator[None]:
    """Suppress progress bars and load reports; their relevant parts are checked."""
    logging = transformers.utils.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
