"""SigLIP and SigLIP 2 through transformers, with fixed and with native (NaFlex) resolution.

The towers read texts padded to their whole context and know no padding mask; that is how they were trained.
Padding is therefore read, and dropped from the points. The token of the end is dropped too, as every special
one, unless `keep_end` asks for the published scripts' way.
"""

import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from msdscore.core.sphere import unit
from msdscore.core.transfer import sent
from msdscore.encoders.backbone import Backbone, Identity, States, compile_towers
from msdscore.encoders.base import Prepared
from msdscore.encoders.loading.checkpoints import Checkpoint, find_checkpoint
from msdscore.encoders.loading.transformers import load_placed, load_tokenizer
from msdscore.encoders.options import LargeOptions, read_options, require_choice
from msdscore.encoders.placement import place
from msdscore.encoders.siglip.vision import FixedVision, NativeVision, fixed_vision, native_vision
from msdscore.encoders.text.tokens import Reading, Tokens, literal_backend, pack, tokenise, unpack_pooled, unpack_tokens
from msdscore.encoders.vision.preprocessing import mask_of
from msdscore.errors import ConfigError, require

_NEEDS = (("preprocessor_config.json", "processor_config.json"), ("tokenizer.json", "spiece.model"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SiglipOptions(LargeOptions):
    """What a user can choose about a SigLIP encoder.

    `local` "states" takes the normed states of both towers, whose spaces nothing ties together; "heads" sends
    every patch alone through the attention pool, and every token through the text head, into the pooled space.
    """

    local: str = "states"
    keep_end: bool = False
    max_patches: int = 0  # of native resolution; 0: as the checkpoint says

    def __post_init__(self) -> None:
        LargeOptions.__post_init__(self)
        self.refuse_pixel_choices()
        require_choice("local", self.local, ("states", "heads"))


@dataclass(frozen=True, slots=True)
class SiglipParts:
    """What a checkpoint consists of once it is loaded."""

    model: Any  # transformers.SiglipModel or Siglip2Model
    backend: Any  # tokenizers.Tokenizer
    vision: FixedVision | NativeVision
    reading: Reading
    end: int  # the token that closes a text
    options: SiglipOptions


class SiglipEncoder(Backbone):
    """Patches, tokens and pooled vectors of one SigLIP or SigLIP 2 model."""

    def __init__(self, parts: SiglipParts, identity: Identity) -> None:
        super().__init__(identity, prepare=parts.vision.prepare)
        self._parts = parts

    def _see(self, images: Sequence[Prepared]) -> States:
        tower = self._parts.model.vision_model
        placement = self._identity.placement
        states, layout = self._parts.vision.look(tower, images, placement)
        points = states.last_hidden_state
        if self._parts.options.local == "heads":
            points = _each_alone(tower.head, points)
        return States(points, mask_of(layout), unit(states.pooler_output), layout)

    def _read(self, texts: Sequence[str]) -> States:
        tower = self._parts.model.text_model
        batch = pack([self._tokens(text) for text in texts], self._parts.reading)
        states = tower(input_ids=sent(batch.ids, self.device))
        points = unpack_tokens(states.last_hidden_state, batch)
        if self._parts.options.local == "heads":
            points = tower.head(points)
        return States(points, batch.mask, unpack_pooled(states.pooler_output, batch), batch.layout)

    def _tokens(self, text: str) -> Tokens:
        tokens = tokenise(self._parts.backend, text)
        if not self._parts.options.keep_end:
            return tokens
        return Tokens(text, (*tokens.ids, self._parts.end), (*tokens.spans, (len(text), len(text))))


def _each_alone(head: Any, states: Float[Tensor, "batch points dim"]) -> Float[Tensor, "batch points dim"]:
    """Every patch through the attention pool as if it were the whole picture."""
    batch, points, dim = states.shape
    return head(states.reshape(batch * points, 1, dim)).reshape(batch, points, -1)


def load_siglip(
    source: str,
    *,
    name: str,
    revision: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    **options: Any,
) -> SiglipEncoder:
    """Load a SigLIP or SigLIP 2 checkpoint from a folder or a hub name.

    Raises:
        ConfigError: patches and tokens have different sizes, and `local` is "states".
        WeightsError: files are missing, damaged, or of another kind of model.
    """
    chosen = read_options(SiglipOptions, options)
    checkpoint = find_checkpoint(source, revision=revision, needs=_NEEDS)
    native = checkpoint.read_json("config.json").get("model_type") == "siglip2"
    kind = "Siglip2Model" if native else "SiglipModel"
    model, placement = load_placed(kind, checkpoint, place(device, dtype, half=torch.float16), chosen)
    _require_one_size(model, chosen)
    compile_towers(chosen, model.vision_model, model.text_model)
    tokenizer = load_tokenizer(checkpoint)
    parts = SiglipParts(
        model=model,
        backend=_canonical(literal_backend(tokenizer), checkpoint),
        vision=native_vision(checkpoint, model, chosen.max_patches) if native else fixed_vision(checkpoint, model),
        reading=_reading(model, tokenizer, chosen),
        end=int(tokenizer.eos_token_id),
        options=chosen,
    )
    return SiglipEncoder(parts, Identity(name, checkpoint.signed(name), placement, chosen, _choices(chosen, parts)))


def _choices(options: SiglipOptions, parts: SiglipParts) -> tuple[str, ...]:
    end = ("end:kept",) if options.keep_end else ()
    return (f"local:{options.local}", *end, *parts.vision.choices, *options.bits_choice)


def _require_one_size(model: Any, options: SiglipOptions) -> None:
    patches, tokens = model.config.vision_config.hidden_size, model.config.text_config.hidden_size
    if options.local == "states" and patches != tokens:
        raise ConfigError(f"patches have {patches} numbers and tokens {tokens}; load it with local='heads'")


def _canonical(backend: Any, checkpoint: Checkpoint) -> Any:
    """Prepare texts as in training: lower case, and for the first SigLIP without punctuation.

    Doing it in the tokenizer keeps the spans true. Files that do it already are not changed by doing it twice.
    """
    normalizers = require("tokenizers.normalizers", extra="hf")
    regex = require("tokenizers", extra="hf").Regex
    steps = [normalizers.Lowercase()]
    if checkpoint.read_json("tokenizer_config.json").get("tokenizer_class") == "SiglipTokenizer":
        marks = "".join(f"\\{mark}" for mark in string.punctuation)
        steps += [normalizers.Replace(regex(f"[{marks}]"), ""), normalizers.Replace(regex(r"\s+"), " ")]
        steps.append(normalizers.Strip())
    own = [backend.normalizer] if backend.normalizer else []
    backend.normalizer = normalizers.Sequence([*steps, *own])
    return backend


def _reading(model: Any, tokenizer: Any, options: SiglipOptions) -> Reading:
    return Reading(
        context=int(model.config.text_config.max_position_embeddings),
        prefix=(),
        # A kept end is a token of the text; the padding after it stands for the end of earlier windows.
        suffix=() if options.keep_end else (int(tokenizer.eos_token_id),),
        pad=int(tokenizer.pad_token_id),
        long_text=options.long_text,
        full=True,
    )
