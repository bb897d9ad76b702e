"""Load what transformers knows from files that are already found: whole, quietly, and without the network."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from msdscore.encoders.frames import Frame, read_frame
from msdscore.encoders.weights import Checkpoint
from msdscore.errors import WeightsError, require


def load_model(kind: str, checkpoint: Checkpoint) -> Any:
    """A model of the transformers class `kind`, on CPU in the dtype of its files or float32.

    Raises:
        WeightsError: the files are damaged, of another model, or do not hold every tensor.
    """
    transformers = require("transformers", extra="hf")
    with _quiet(transformers):
        try:
            # Every supported version reads .bin files with weights_only=True; not all let one say so.
            model, report = getattr(transformers, kind).from_pretrained(
                checkpoint.folder, output_loading_info=True, local_files_only=True
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


def load_tokenizer(checkpoint: Checkpoint) -> Any:
    """The checkpoint's fast tokenizer.

    Raises:
        WeightsError: its files are damaged, or only a slow tokenizer without character offsets exists.
    """
    transformers = require("transformers", extra="hf")
    with _quiet(transformers):
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint.folder, local_files_only=True)
        except Exception as error:  # damaged files raise anything
            raise _damaged("tokenizer", checkpoint, error) from error
    if not tokenizer.is_fast:
        raise WeightsError(f"{checkpoint.source!r} has no fast tokenizer; add a tokenizer.json to its files")
    return tokenizer


def load_frame(checkpoint: Checkpoint) -> Frame:
    """The checkpoint's preprocessing; newer checkpoints may keep it inside processor_config.json."""
    if (checkpoint.folder / "preprocessor_config.json").is_file():
        return read_frame(checkpoint.read_json("preprocessor_config.json"))
    return read_frame(checkpoint.read_json("processor_config.json").get("image_processor", {}))


def _damaged(what: str, checkpoint: Checkpoint, error: Exception) -> WeightsError:
    lines = str(error).strip().splitlines()
    reason = lines[0] if lines else type(error).__name__
    return WeightsError(f"{what} of {checkpoint.source!r} cannot be loaded ({reason}); fetch the files again")


@contextmanager
def _quiet(transformers: ModuleType) -> Iterator[None]:
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
