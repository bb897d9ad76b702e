"""SigLIP and SigLIP 2 through transformers, with fixed and with native (NaFlex) resolution.

The towers read texts padded to their whole context and know no padding mask; that is how they were trained.
Padding is therefore read, and dropped from the points. The token of the end is dropped too, as every special
one, unless `keep_end` asks for the published scripts' way."""

import math
import string
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from PIL.Image import Image, Resampling
from torch.nn.utils.rnn import pad_sequence

from msdscore.core.device import sent
from msdscore.core.embeddings import unit
from msdscore.encoders.backbone import (
    Backbone,
    Identity,
    LargeOptions,
    Placement,
    compile_towers,
    place,
    read_options,
    require_choice,
    square_layouts,
)
from msdscore.encoders.base import Features, PatchLayout, Prepared
from msdscore.encoders.loading.checkpoints import Checkpoint, find_checkpoint
from msdscore.encoders.loading.transformers import load_placed, load_tokenizer, preprocessor, square_preprocessing
from msdscore.encoders.text.tokens import (
    Reading,
    TextBatch,
    Tokens,
    join_windows,
    literal_backend,
    pack,
    tokenise,
    unpack_tokens,
)
from msdscore.encoders.vision.preprocessing import (
    Preprocessing,
    mask_of,
    patch_layout,
    prepare_picture,
    read_preprocessing,
    stack_pixels,
)
from msdscore.errors import ConfigError, require


@dataclass(frozen=True, slots=True)
class NativeVision:
    """Every image keeps its shape, in at most `most` patches."""

    steps: Preprocessing
    patch: int
    most: int

    def prepare(self, image: Image) -> Prepared:
        """The image in whole patches of its own shape."""
        resize = naflex_size(image.size, patch=self.patch, most=self.most)
        return prepare_picture(image, replace(self.steps, resize=resize))

    def look(self, tower: Any, images: Sequence[Prepared], placement: Placement) -> tuple[Any, tuple[PatchLayout, ...]]:
        """The tower's output for a batch of images; patches beyond an image's own are padding."""
        rows, layouts, side = [], [], self.patch
        for image in images:
            pixels = stack_pixels([image], self.steps, placement.device)[0]
            # Row-major patches, each flattened by row, column and colour.
            cut = pixels.unfold(1, side, side).unfold(2, side, side)
            rows.append(cut.permute(1, 2, 3, 4, 0).flatten(0, 1).flatten(1))
            layouts.append(patch_layout(image.view, (cut.shape[1], cut.shape[2]), (side, side)))
        layout = tuple(layouts)
        pixels = pad_sequence(rows, batch_first=True)
        counts = torch.tensor([len(patches) for patches in rows])
        mask = (torch.arange(pixels.shape[1]) < counts.unsqueeze(1)).long()
        shapes = torch.tensor([item.grid for item in layout])
        # By position: the name of the mask differs between versions.
        states = tower(pixels.to(placement.dtype), mask.to(placement.device), shapes.to(placement.device))
        return states, layout


def native_vision(checkpoint: Checkpoint, model: Any, most: int) -> NativeVision:
    """The vision of a NaFlex model; `most` 0 is the checkpoint's own number of patches."""
    config = preprocessor(checkpoint)
    steps = read_preprocessing({"resample": Resampling.BILINEAR, **config, "do_resize": False})
    own = int(config.get("max_num_patches", 256))
    return NativeVision(steps, int(model.config.vision_config.patch_size), most or own)


_FINEST = 1e-5  # of the scale, at which the search of the published preprocessor stops


def naflex_size(size: tuple[int, int], *, patch: int, most: int) -> tuple[int, int]:
    """The largest size in whole patches, at most `most` of them, that keeps the shape (SigLIP 2, NaFlex).

    The scale is searched by halving as in the published preprocessor, so that sizes agree to the patch.

    >>> naflex_size((640, 480), patch=16, most=256)
    (288, 224)
    """
    low, high = _FINEST / 10, 100.0
    while high - low >= _FINEST:
        middle = (low + high) / 2
        width, height = _in_patches(size, middle, patch)
        if width * height <= most * patch * patch:
            low = middle
        else:
            high = middle
    return _in_patches(size, low, patch)


def _in_patches(size: tuple[int, int], scale: float, patch: int) -> tuple[int, int]:
    width, height = (max(1, math.ceil(side * scale / patch)) * patch for side in size)
    return width, height


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


class SiglipEncoder(Backbone):
    """Patches, tokens and pooled vectors of one SigLIP or SigLIP 2 model."""

    def __init__(
        self,
        identity: Identity,
        *,
        native: NativeVision | None,  # None: every image on one square
        end: int,  # the token that closes a text
        options: SiglipOptions,
        **parts: Any,
    ) -> None:
        super().__init__(identity, prepare=None if native is None else native.prepare, **parts)
        self._native, self._end, self._options = native, end, options

    def _see(self, images: Sequence[Prepared]) -> Features:
        tower = self._model.vision_model
        if self._native is None:
            layout = square_layouts(images, self._model.config.vision_config)
            states = tower(pixel_values=self._pixels(images))
        else:
            states, layout = self._native.look(tower, images, self._identity.placement)
        points = states.last_hidden_state
        if self._options.local == "heads":
            # Every patch through the attention pool as if it were the whole image.
            points = tower.head(points.flatten(0, 1).unsqueeze(1)).unflatten(0, points.shape[:2])
        return Features(points, mask_of(layout), unit(states.pooler_output), layout)

    def _read(self, texts: Sequence[str]) -> Features:
        tower = self._model.text_model
        batch = self._pack(texts)
        states = tower(input_ids=sent(batch.ids, self.device))
        points = unpack_tokens(states.last_hidden_state, batch)
        if self._options.local == "heads":
            points = tower.head(points)
        return Features(points, batch.mask, join_windows(states.pooler_output, batch.windows), batch.layout)

    def _pack(self, texts: Sequence[str]) -> TextBatch:
        if not self._options.keep_end:
            return super()._pack(texts)
        assert self._reading is not None
        tokens = [tokenise(self._tokenizer, text) for text in texts]
        ended = [Tokens(t.text, (*t.ids, self._end), (*t.spans, (len(t.text), len(t.text)))) for t in tokens]
        return pack(ended, self._reading)


def load_siglip(
    source: str, *, name: str, revision: str | None = None, device: str = "auto", dtype: str = "auto", **options: Any
) -> SiglipEncoder:
    """Load a SigLIP or SigLIP 2 checkpoint from a folder or a hub name.

    Raises:
        ConfigError: patches and tokens have different sizes, and `local` is "states".
        WeightsError: files are missing, damaged, or of another kind of model.
    """
    chosen = read_options(SiglipOptions, options)
    checkpoint = find_checkpoint(source, revision=revision, needs=_NEEDS)
    flexible = checkpoint.read_json("config.json").get("model_type") == "siglip2"
    kind = "Siglip2Model" if flexible else "SiglipModel"
    model, placement = load_placed(kind, checkpoint, place(device, dtype, half=torch.float16), chosen)
    patches, tokens = model.config.vision_config.hidden_size, model.config.text_config.hidden_size
    if chosen.local == "states" and patches != tokens:
        raise ConfigError(f"patches have {patches} numbers and tokens {tokens}; load it with local='heads'")
    compile_towers(chosen, model.vision_model, model.text_model)
    tokenizer = load_tokenizer(checkpoint)
    native = native_vision(checkpoint, model, chosen.max_patches) if flexible else None
    end = ("end:kept",) if chosen.keep_end else ()
    patch_limit = (f"patches:{native.most}",) if native else ()
    choices = (f"local:{chosen.local}", *end, *patch_limit, *chosen.bits_choice)
    return SiglipEncoder(
        Identity(name, checkpoint.signed(name), placement, chosen, choices),
        model=model,
        tokenizer=_canonical(literal_backend(tokenizer.backend_tokenizer), checkpoint),
        native=native,
        preprocessing=None if native else square_preprocessing(checkpoint, int(model.config.vision_config.image_size)),
        reading=_reading(model, tokenizer, chosen),
        end=int(tokenizer.eos_token_id),
        options=chosen,
    )


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
