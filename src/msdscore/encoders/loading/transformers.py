"""Load what transformers knows from files that are already found: whole, quietly, and without the network."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch

from msdscore.encoders.backbone import LargeOptions, Placement
from msdscore.encoders.loading.checkpoints import Checkpoint
from msdscore.encoders.vision.preprocessing import Preprocessing, read_preprocessing
from msdscore.errors import ConfigError, WeightsError, require

# Layers whose numbers are read by other code, which would take the packed bits for them: SigLIP's attention pool,
# and the patches of SigLIP 2, whose dtype the pixels are turned into.
_WHOLE = ["vision_model.head", "vision_model.embeddings.patch_embedding", "lm_head"]


def load_model(kind: str, checkpoint: Checkpoint, *, dtype: torch.dtype | None = None, **keywords: Any) -> Any:
    """A model of the transformers class `kind`; `dtype` None leaves it as the files or the library have it.

    Further keywords go to `from_pretrained`; a `state_dict` among them stands in for the files.

    Raises:
        ConfigError: the installed transformers does not know the class.
        WeightsError: the files are damaged, of another model, or do not hold every tensor.
    """
    transformers = require("transformers", extra="hf")
    model_class = _class(transformers, kind)
    if dtype is not None:
        keywords[_dtype_keyword(transformers.__version__)] = dtype
    with quiet(transformers):
        try:
            # Every supported version reads .bin files with weights_only=True; not all let one say so.
            model, report = model_class.from_pretrained(
                None if "state_dict" in keywords else checkpoint.folder,
                output_loading_info=True,
                local_files_only=True,
                **keywords,
            )
        except Exception as error:  # damaged files raise anything
            raise _damaged("weights", checkpoint, error) from error
    # transformers would fill these with random numbers and go on; position ids are counted, not learned.
    missing = sorted(key for key in report["missing_keys"] if not key.endswith("position_ids"))
    if missing:
        raise WeightsError(
            f"weights of {checkpoint.source!r} lack {len(missing)} tensors of {kind}, first {missing[0]!r}; "
            "pass a complete checkpoint of that kind"
        )
    return model


def load_placed(
    kind: str, checkpoint: Checkpoint, placement: Placement, options: LargeOptions, **given: Any
) -> tuple[Any, Placement]:
    """A model of the transformers class `kind`, ready to run, and where its inputs belong.

    What is `given` goes to `from_pretrained` as it is.

    Raises:
        MissingExtraError: a spread or quantised model needs accelerate, and quantised ones bitsandbytes.
        WeightsError: the files are damaged, of another model, or do not hold every tensor.
    """
    spread = _keywords(placement, options)
    model = load_model(kind, checkpoint, dtype=placement.dtype, **spread, **given)
    if not spread:
        return model.to(device=placement.device, dtype=placement.dtype).eval(), placement
    return model.eval(), replace(placement, device=torch.device(model.device))


def _keywords(placement: Placement, options: LargeOptions) -> Mapping[str, Any]:
    if not options.bits and not options.device_map:
        return {}
    require("accelerate", extra="large")
    spread = options.device_map or {"": placement.device}
    return {"device_map": spread, **_quantised(options.bits, placement.dtype)}


def _quantised(bits: int, dtype: torch.dtype) -> Mapping[str, Any]:
    if not bits:
        return {}
    require("bitsandbytes", extra="large")
    transformers = require("transformers", extra="hf")
    config = transformers.BitsAndBytesConfig(
        load_in_4bit=bits == 4, load_in_8bit=bits == 8, bnb_4bit_compute_dtype=dtype, llm_int8_skip_modules=_WHOLE
    )
    return {"quantization_config": config}


def load_tokenizer(checkpoint: Checkpoint) -> Any:
    """The checkpoint's fast tokenizer.

    Raises:
        WeightsError: its files are damaged, or only a slow tokenizer without character offsets exists.
    """
    transformers = require("transformers", extra="hf")
    with quiet(transformers):
        try:
            tokenizer = _tokenizer(transformers, checkpoint)
        except Exception as error:  # damaged files raise anything
            raise _damaged("tokenizer", checkpoint, error) from error
    return tokenizer


def _tokenizer(transformers: ModuleType, checkpoint: Checkpoint) -> Any:
    """The first fast tokenizer of: what the library picks, the class that the files name, the file of a fast one."""
    kinds = ["AutoTokenizer"]
    if (checkpoint.folder / "tokenizer_config.json").is_file():
        named = str(checkpoint.read_json("tokenizer_config.json").get("tokenizer_class", "")).removesuffix("Fast")
        kinds.append(f"{named}Fast")
    if (checkpoint.folder / "tokenizer.json").is_file():
        kinds.append("PreTrainedTokenizerFast")
    failure: Exception | None = None
    for kind in kinds:
        try:
            tokenizer = getattr(transformers, kind).from_pretrained(checkpoint.folder, local_files_only=True)
        except Exception as error:  # noqa: BLE001 - missing classes and libraries raise many kinds
            failure = failure or error
            continue
        if tokenizer.is_fast:
            return tokenizer
    raise failure or ValueError("only a slow tokenizer without character offsets exists; add a tokenizer.json")


def load_preprocessing(checkpoint: Checkpoint) -> Preprocessing:
    """The checkpoint's preprocessing; newer checkpoints may keep it inside processor_config.json."""
    return read_preprocessing(preprocessor(checkpoint))


def square_preprocessing(checkpoint: Checkpoint, side: int) -> Preprocessing:
    """The checkpoint's preprocessing, for a model that takes squares of `side` pixels alone.

    Raises:
        WeightsError: the preprocessor gives another size.
    """
    frame = load_preprocessing(checkpoint)
    canvas = frame.crop or frame.resize
    if canvas != (side, side):
        raise WeightsError(
            f"the preprocessor of {checkpoint.source!r} should give {side} x {side} pixels "
            f"as its model takes, but gives {canvas}; copy the file from its base model"
        )
    return frame


def preprocessor(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """What the checkpoint says about preprocessing, from whichever file it keeps that in."""
    if (checkpoint.folder / "preprocessor_config.json").is_file():
        return checkpoint.read_json("preprocessor_config.json")
    found = checkpoint.read_json("processor_config.json").get("image_processor", {})
    return found if isinstance(found, dict) else {}


def _class(transformers: ModuleType, kind: str) -> Any:
    found = getattr(transformers, kind, None)
    if found is None:
        raise ConfigError(
            f"transformers {transformers.__version__} has no {kind}; upgrade it with: pip install -U transformers"
        )
    return found


def _dtype_keyword(version: str) -> str:
    """The name changed in 4.56; both versions warn about, or do not know, the other one."""
    major, minor = (int(part) for part in version.split(".")[:2])
    return "dtype" if (major, minor) >= (4, 56) else "torch_dtype"


def _damaged(what: str, checkpoint: Checkpoint, error: Exception) -> WeightsError:
    lines = str(error).strip().splitlines()
    reason = lines[0] if lines else type(error).__name__
    return WeightsError(f"{what} of {checkpoint.source!r} cannot be loaded ({reason}); fetch the files again")


@contextmanager
def quiet(transformers: ModuleType) -> Iterator[None]:
    """Keep loading bars and load reports off the user's screen; what matters of them is checked."""
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
