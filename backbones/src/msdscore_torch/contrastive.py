"""CLIP, LongCLIP, BLIP, SigLIP and SigLIP 2 through transformers: patches, tokens and pooled vectors of two towers."""

import math
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from PIL.Image import Image, Resampling
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from msdscore.core.arrays import Float
from msdscore.core.embeddings import unit
from msdscore.encoders.base import PatchLayout, Prepared
from msdscore.encoders.checkpoints import Checkpoint
from msdscore.encoders.options import Identity
from msdscore.encoders.preprocessing import Preprocessing, patch_layout, prepare_image
from msdscore.encoders.tokens import TextBatch, TextSettings, Tokens, join_windows, pack, tokenise
from msdscore.errors import ConfigError
from msdscore_torch.backbone import Backbone, as_tensors, compile_towers, square_layouts
from msdscore_torch.checkpoints import LargeOptions, load_family, preprocessor, read_preprocessing, square_preprocessing
from msdscore_torch.gpu.device import sent
from msdscore_torch.tensors import Features
from msdscore_torch.tokenizers import SPACES, normalise_first, special_ids, unpack_tokens
from msdscore_torch.vision.device import patch_mask, stack_pixels

_PREPROCESSOR = ("preprocessor_config.json", "processor_config.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipOptions(LargeOptions):
    """User options of a CLIP encoder."""

    patch_norm: bool = False  # the authors project patches without the final norm of the tower
    stretch: bool = False  # read 248 tokens at once: LongCLIP is initialised from a CLIP with 77 positions
    # "torchvision": a centre offset of half a pixel is rounded as in CLIP's code.
    crop: Literal["transformers", "torchvision"] = "transformers"


class ClipEncoder(Backbone):
    """Patches, tokens and pooled vectors of one CLIP model.

    Patches are the last hidden states without CLS, tokens those without start and end, each through the
    projection that the pooled vector takes.
    """

    def _see(self, images: Sequence[Prepared]) -> Features:
        model = self.model
        states = model.vision_model(pixel_values=self._pixels(images))
        patches = states.last_hidden_state[:, 1:]
        if self._options.patch_norm:
            patches = model.vision_model.post_layernorm(patches)
        layout = square_layouts(images, model.config.vision_config)
        pooled = unit(model.visual_projection(states.pooler_output))
        return Features(model.visual_projection(patches), patch_mask(layout), pooled, layout)

    def _read(self, texts: Sequence[str]) -> Features:
        model = self.model
        batch = self._pack(texts)
        # Attention is causal, so padding after a caption changes none of its states. A GPU gets no mask: transformers
        # would wait for the device to inspect it, and attention without one is faster.
        attention = None if self.device.type == "cuda" else sent(batch.attention, self.device).long()
        states = model.text_model(input_ids=sent(batch.ids, self.device), attention_mask=attention)
        tokens = model.text_projection(unpack_tokens(states.last_hidden_state, batch))
        pooled = join_windows(model.text_projection(states.pooler_output), batch.windows)
        return Features(tokens, batch.mask, pooled, batch.layout)


def _compile(identity: Identity, model: Any) -> None:
    """Compile both towers if that is requested; on a GPU the vision tower then has a faster attention too."""
    options: Any = identity.options
    if options.compile == "inductor" and identity.placement.device.type == "cuda":
        from msdscore_torch.gpu.attention import use_attention

        use_attention(model.vision_model, identity.placement.device)
    compile_towers(options, model.vision_model, model.text_model)


def load_clip(source: str, **keywords: Any) -> ClipEncoder:
    """Load a CLIP or LongCLIP checkpoint from a folder or a hub name.

    On CUDA `auto` means float16: CLIP's values fit its range, and it rounds eight times finer than bfloat16.

    Raises:
        WeightsError: files are missing, damaged, or of another kind of model.
    """
    needs = (_PREPROCESSOR, ("tokenizer.json", "vocab.json"))
    identity, checkpoint, model, tokenizer = load_family(
        source, keywords, kind="CLIPModel", options=ClipOptions, needs=needs
    )
    options: Any = identity.options
    end = int(tokenizer.eos_token_id)
    stretched = ("positions:248",) if options.stretch else ()
    cropped = ("crop:torchvision",) if options.crop == "torchvision" else ()
    if options.stretch:
        stretch_text_model(model)
    _compile(identity, model)
    steps = square_preprocessing(checkpoint, int(model.config.vision_config.image_size))
    return ClipEncoder(
        identity.choosing(f"norm:{'yes' if options.patch_norm else 'no'}", *stretched, *cropped),
        model=model,
        tokenizer=tokenizer.backend_tokenizer,
        preprocessing=replace(options.applied(steps), even_centre=bool(cropped)),
        text_settings=TextSettings(
            context=int(model.config.text_config.max_position_embeddings),
            prefix=(int(tokenizer.bos_token_id),),
            suffix=(end,),
            pad=end,  # the pooled state is that of the first end token
            long_text=options.long_text,
        ),
    )


# LongCLIP: 248 positions, stretched from 77. The first 20 are unchanged; every further step is divided into four.
UNSTRETCHED = 20  # Zhang et al. 2024, "Long-CLIP": positions that CLIP's captions trained well


def stretch_positions(table: Float[Tensor, "positions dim"]) -> Float[Tensor, "longer dim"]:
    """Stretch a table of position embeddings, linear between old rows and beyond the last one.

    >>> stretch_positions(torch.arange(22.0).view(22, 1)).flatten()[18:]
    tensor([18.0000, 19.0000, 20.0000, 20.2500, 20.5000, 20.7500, 21.0000, 21.2500,
            21.5000, 21.7500])
    """
    rest = table[UNSTRETCHED:]
    steps = torch.cat([rest[1:] - rest[:-1], rest[-1:] - rest[-2:-1]])
    shares = torch.arange(4, dtype=table.dtype, device=table.device) / 4
    between = rest.unsqueeze(1) + shares.view(1, -1, 1) * steps.unsqueeze(1)
    return torch.cat([table[:UNSTRETCHED], between.flatten(0, 1)])


def merge_positions(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Merge the two position tables of an original LongCLIP state dict into one.

    The result has the first rows of `positional_embedding`, which stayed frozen, and the later rows of
    `positional_embedding_res`, which were trained.
    """
    merged = dict(state)
    trained = merged.pop("positional_embedding_res", None)
    if trained is not None:
        merged["positional_embedding"] = torch.cat(
            [merged["positional_embedding"][:UNSTRETCHED], trained[UNSTRETCHED:]]
        )
    return merged


def stretch_text_model(model: Any) -> None:
    """Replace the position table of a transformers CLIP text tower by the stretched one, in place.

    Raises:
        ConfigError: the tower has too few positions, or is already a LongCLIP.
    """
    embeddings = model.text_model.embeddings
    table = embeddings.position_embedding.weight
    if not UNSTRETCHED + 2 <= len(table) < 248:
        raise ConfigError(f"stretch needs a text tower of 22 to 247 positions, got {len(table)}; omit the option")
    longer = stretch_positions(table.detach())
    embeddings.position_embedding = torch.nn.Embedding.from_pretrained(longer, freeze=True)
    embeddings.register_buffer("position_ids", torch.arange(len(longer), device=longer.device)[None], persistent=False)
    model.config.text_config.max_position_embeddings = len(longer)


class BlipEncoder(Backbone):
    """Patches, tokens and pooled vectors of one BLIP-ITM model, in the space of its contrastive heads.

    Every state of a tower is projected by that tower's head; the first one is the pooled vector, the
    others are patches and tokens. The matching head, which takes image and text together, is not used.
    """

    def _see(self, images: Sequence[Prepared]) -> Features:
        model = self.model
        vectors = model.vision_proj(model.vision_model(pixel_values=self._pixels(images)).last_hidden_state)
        layout = square_layouts(images, model.config.vision_config)
        return Features(vectors[:, 1:], patch_mask(layout), unit(vectors[:, 0]), layout)

    def _read(self, texts: Sequence[str]) -> Features:
        batch = self._pack(texts)
        ids, attention = sent(batch.ids, self.device), sent(batch.attention, self.device).long()
        states = self.model.text_encoder(input_ids=ids, attention_mask=attention)
        vectors = self.model.text_proj(states.last_hidden_state)
        pooled = join_windows(vectors[:, 0], batch.windows)
        return Features(unpack_tokens(vectors, batch), batch.mask, pooled, batch.layout)


def load_blip(source: str, **keywords: Any) -> BlipEncoder:
    """Load a BLIP image-text retrieval checkpoint from a folder or a hub name.

    Raises:
        WeightsError: files are missing, damaged, or of another kind of model.
    """
    needs = (_PREPROCESSOR, ("tokenizer.json", "vocab.txt"))
    identity, checkpoint, model, tokenizer = load_family(
        source, keywords, kind="BlipForImageTextRetrieval", options=LargeOptions, needs=needs
    )
    options, backend = identity.options, tokenizer.backend_tokenizer
    compile_towers(options, model.vision_model, model.text_encoder)
    steps = square_preprocessing(checkpoint, int(model.config.vision_config.image_size))
    context, pad = int(model.config.text_config.max_position_embeddings), int(tokenizer.pad_token_id)
    marks = special_ids(backend)
    return BlipEncoder(
        identity,
        model=model,
        tokenizer=backend,
        preprocessing=options.applied(steps),
        text_settings=TextSettings(context, *marks, pad, options.long_text, unknown=tokenizer.unk_token_id),
    )


_FINEST = 1e-5  # relative to the scale, at which the search of the published preprocessor stops


def naflex_size(size: tuple[int, int], *, patch: int, most: int) -> tuple[int, int]:
    """The largest size in whole patches, at most `most` of them, that preserves the aspect ratio (SigLIP 2, NaFlex).

    The scale is found by bisection as in the published preprocessor, so that the numbers of patches agree.

    >>> naflex_size((640, 480), patch=16, most=256)
    (288, 224)
    """

    def in_patches(scale: float) -> tuple[int, int]:
        width, height = (max(1, math.ceil(side * scale / patch)) * patch for side in size)
        return width, height

    low, high = _FINEST / 10, 100.0
    while high - low >= _FINEST:
        middle = (low + high) / 2
        if math.prod(in_patches(middle)) <= most * patch * patch:
            low = middle
        else:
            high = middle
    return in_patches(low)


def prepare_native(image: Image, *, steps: Preprocessing, patch: int, most: int) -> Prepared:
    """Resize an image to at most `most` whole patches with its aspect ratio."""
    return prepare_image(image, replace(steps, resize=naflex_size(image.size, patch=patch, most=most)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SiglipOptions(LargeOptions):
    """User options of a SigLIP encoder.

    `local` "states" takes the normalised states of both towers, whose spaces are not aligned; "heads" sends each
    patch separately through the attention pool, and every token through the text head, into the pooled space.
    """

    local: Literal["states", "heads"] = "states"
    keep_end: bool = False
    max_patches: int = 0  # of native resolution; 0: the checkpoint's value

    def __post_init__(self) -> None:
        LargeOptions.__post_init__(self)
        self.refuse_pixel_choices()


class SiglipEncoder(Backbone):
    """Patches, tokens and pooled vectors of one SigLIP or SigLIP 2 model, with fixed or native (NaFlex) resolution.

    The towers read texts padded to their whole context without a padding mask; that is how they were trained.
    Padding is therefore read, and dropped from the points. The end token is dropped too, as every special
    token, unless `keep_end` is set, as in the published scripts.
    """

    def __init__(self, identity: Identity, *, native: Preprocessing | None, end: int, **parts: Any) -> None:
        super().__init__(identity, **parts)
        self._native, self._end = native, end  # steps of native resolution; the end token

    def _see(self, images: Sequence[Prepared]) -> Features:
        tower = self.model.vision_model
        if self._native is None:
            layout = square_layouts(images, self.model.config.vision_config)
            states = tower(pixel_values=self._pixels(images))
        else:
            states, layout = self._see_native(images, self._native)
        points = states.last_hidden_state
        if self._options.local == "heads":
            # Each patch through the attention pool as if it were the whole image.
            points = tower.head(points.flatten(0, 1).unsqueeze(1)).unflatten(0, points.shape[:2])
        return Features(points, patch_mask(layout), unit(states.pooler_output), layout)

    def _see_native(self, images: Sequence[Prepared], steps: Preprocessing) -> tuple[Any, tuple[PatchLayout, ...]]:
        """The tower's output for images of their native shapes; patches beyond those of an image are padding."""
        rows, layout, side = [], [], int(self.model.config.vision_config.patch_size)
        for image in images:
            # Row-major patches, each flattened by row, column and colour.
            cut = stack_pixels([image], steps, self.device)[0].unfold(1, side, side).unfold(2, side, side)
            rows.append(cut.permute(1, 2, 3, 4, 0).flatten(0, 1).flatten(1))
            layout.append(patch_layout(image.view, (cut.shape[1], cut.shape[2]), (side, side)))
        pixels = pad_sequence(rows, batch_first=True).to(self.precision)
        mask = torch.arange(pixels.shape[1]) < torch.tensor([[len(patches)] for patches in rows])
        shapes = torch.tensor([item.grid for item in layout])
        # By position: the name of the mask differs between versions.
        states = self.model.vision_model(pixels, mask.long().to(self.device), shapes.to(self.device))
        return states, tuple(layout)

    def _read(self, texts: Sequence[str]) -> Features:
        tower = self.model.text_model
        batch = self._pack(texts)
        states = tower(input_ids=sent(batch.ids, self.device))
        points = unpack_tokens(states.last_hidden_state, batch)
        if self._options.local == "heads":
            points = tower.head(points)
        return Features(points, batch.mask, join_windows(states.pooler_output, batch.windows), batch.layout)

    def _pack(self, texts: Sequence[str]) -> TextBatch:
        if not self._options.keep_end:
            return super()._pack(texts)
        assert self.text_settings is not None
        tokens = [tokenise(self.tokenizer, text) for text in texts]
        ended = [Tokens(t.text, (*t.ids, self._end), (*t.spans, (len(t.text), len(t.text)))) for t in tokens]
        return as_tensors(pack(ended, self.text_settings))


def load_siglip(source: str, **keywords: Any) -> SiglipEncoder:
    """Load a SigLIP or SigLIP 2 checkpoint from a folder or a hub name.

    Raises:
        ConfigError: patches and tokens have different sizes, and `local` is "states".
        WeightsError: files are missing, damaged, or of another kind of model.
    """

    def kind(checkpoint: Checkpoint) -> str:
        flexible = checkpoint.read_json("config.json").get("model_type") == "siglip2"
        return "Siglip2Model" if flexible else "SiglipModel"

    needs = (_PREPROCESSOR, ("tokenizer.json", "spiece.model"))
    identity, checkpoint, model, tokenizer = load_family(
        source, keywords, kind=kind, options=SiglipOptions, needs=needs
    )
    options: Any = identity.options
    vision, text, end = model.config.vision_config, model.config.text_config, int(tokenizer.eos_token_id)
    if options.local == "states" and vision.hidden_size != text.hidden_size:
        raise ConfigError(
            f"patches have {vision.hidden_size} numbers and tokens {text.hidden_size}; load it with local='heads'"
        )
    _compile(identity, model)
    choices = (f"local:{options.local}", *(("end:kept",) if options.keep_end else ()))
    steps = prepare = native = None
    if kind(checkpoint) == "Siglip2Model":
        config = preprocessor(checkpoint)
        native = read_preprocessing({"resample": Resampling.BILINEAR, **config, "do_resize": False})
        most = options.max_patches or int(config.get("max_num_patches", 256))
        prepare = partial(prepare_native, steps=native, patch=int(vision.patch_size), most=most)
        choices += (f"patches:{most}",)
    else:
        steps = square_preprocessing(checkpoint, int(vision.image_size))
    # As in training: lower case, and for the first SigLIP without punctuation. Both steps are idempotent, so files that
    # already contain them are not affected.
    marks = "".join(f"\\{mark}" for mark in string.punctuation)
    first = checkpoint.read_json("tokenizer_config.json").get("tokenizer_class") == "SiglipTokenizer"
    normalise_first(tokenizer.backend_tokenizer, "Lowercase", *(((f"[{marks}]", ""), SPACES, "Strip") if first else ()))
    return SiglipEncoder(
        identity.choosing(*choices),
        model=model,
        tokenizer=tokenizer.backend_tokenizer,
        native=native,
        prepare=prepare,
        preprocessing=steps,
        text_settings=TextSettings(
            context=int(text.max_position_embeddings),
            prefix=(),
            # With `keep_end` the end is a token of the text; padding after it is the end of earlier windows.
            suffix=() if options.keep_end else (end,),
            pad=int(tokenizer.pad_token_id),
            long_text=options.long_text,
            full=True,
        ),
        end=end,
    )
