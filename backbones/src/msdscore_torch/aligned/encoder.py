"""Trained heads over two frozen backbones as an encoder, from the folder that `align export` writes.

`mini`, the embedded default, is such a folder inside this package. A tower is a checkpoint of transformers or timm, a
network of `mini`, or one side of any registered encoder.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from PIL import Image
from torch import Tensor

from msdscore.core.evidence import Bank
from msdscore.encoders.banks import read_bank, uncalibrated
from msdscore.encoders.base import Encoder, Prepared, Published, offers, preprocessing_of
from msdscore.encoders.checkpoints import BANK, locate, looks_like_hub_name, verify_sums
from msdscore.encoders.options import AlignedOptions, Identity, read_options
from msdscore.encoders.registry import find_row, load_encoder
from msdscore.errors import MSDScoreError, WeightsError
from msdscore_torch.aligned.heads import AlignedHeads, HeadsSpec, JoinedHeads, SideDims
from msdscore_torch.aligned.lite2_images import Lite2Images
from msdscore_torch.aligned.minilm import MiniLMTexts
from msdscore_torch.aligned.towers import (
    ImageTower,
    ImageTowerSpec,
    MapImages,
    TextTower,
    TextTowerSpec,
    TowerOptions,
    TransformersTexts,
    keep_content,
    read_spec,
)
from msdscore_torch.backbone import Backbone, place
from msdscore_torch.gpu.graphs import Recorded
from msdscore_torch.gpu.launching import without_cudnn_attention
from msdscore_torch.hub import find_checkpoint, verify_files
from msdscore_torch.tensors import Features, read_tensors, widened

MODEL_TYPE = "msdscore-aligned"
FORMAT = 2

Spec = TypeVar("Spec")


class AlignedEncoder(Backbone):
    """Patches, tokens and pooled vectors in the space learned by the local aligner; it has no language model."""

    def __init__(
        self,
        identity: Identity,
        *,
        image: ImageTower,
        text: TextTower,
        heads: AlignedHeads | JoinedHeads,
        bank: Bank | None,
        recommended: Mapping[str, Any] | None,
    ) -> None:
        steps = preprocessing_of(image)
        super().__init__(identity, preprocessing=None if steps is None else identity.options.applied(steps))
        self._image, self._text, self._heads = image, text, heads
        self.bank, self.recommended = bank, recommended
        self._one = Recorded(self._see_one)
        if hasattr(text, "sentences"):
            self.encode_sentences = self._sentences

    def prepare(self, image: Image.Image) -> Prepared:
        """Preprocess an image for the image tower, which resizes it if the steps do not."""
        steps = self.preprocessing
        return super().prepare(image) if steps is not None and steps.on_device else self._image.prepare(image)

    def as_published(self) -> Encoder:
        """Return the image backbone as published, with its own text tower; without such a backbone, this encoder.

        An aligner may read captions with another model, such as a language model: CLIPScore is that of the CLIP.
        """
        backbone = self._image.encoder if isinstance(self._image, EncoderTower) else self
        return backbone.as_published() if backbone is not self and offers(backbone, Published) else backbone

    def _see(self, images: Sequence[Prepared]) -> Features:
        tower = self._image
        if len(images) == 1 and isinstance(tower, Lite2Images) and tower.is_fused:
            points, *pooled = self._one(tower.levels(images))
            mask = torch.ones(points.shape[:2], dtype=torch.bool, device=points.device)
            return Features(points, mask, pooled[0] if pooled else None, tower.layout(images), filled=(True,))
        return self._heads.states("image", _moved(tower.features(images), self.device))

    def _see_one(self, levels: Tensor) -> tuple[Tensor, ...]:
        """Points and pooled vector of a single image, whose launches take longer than its computation."""
        assert isinstance(self._image, Lite2Images), "other towers take no levels on the device"
        states = self._heads.states("image", self._image.features_of(levels))
        return (states.points,) if states.pooled is None else (states.points, states.pooled)

    def _read(self, texts: Sequence[str]) -> Features:
        return self._heads.states("text", _moved(self._text.features(texts), self.device))

    def _sentences(self, texts: Sequence[str]) -> Tensor:
        sentences: Any = self._text
        with without_cudnn_attention():
            return sentences.sentences(texts)


def load_aligned(
    source: str, *, name: str, revision: str | None = None, device: str = "auto", dtype: str = "auto", **options: Any
) -> AlignedEncoder:
    """Load an exported aligner; `dtype` is that of the backbones, the heads always compute in float32.

    Raises:
        WeightsError: files are missing or damaged, or a backbone is not the one that the heads were trained on.
    """
    chosen = read_options(AlignedOptions, options)
    checkpoint = find_checkpoint(locate(source), revision=revision)
    config = checkpoint.read_json("config.json")
    if config.get("format") != FORMAT:
        raise WeightsError(
            f"{source!r} has format {config.get('format')!r} of {MODEL_TYPE}, expected {FORMAT}; export it again"
        )
    verify_sums(checkpoint.folder)
    placement = place(device, str(config.get("dtype", "auto")) if dtype == "auto" else dtype)
    image, text = _spec(ImageTowerSpec, config, "image"), _spec(TextTowerSpec, config, "text")
    if chosen.image_backbone:
        is_file, other = image.kind == "timm", chosen.image_backbone
        image = replace(image, weights=other) if is_file else replace(image, source=other)
    if chosen.text_backbone:
        text = replace(text, source=chosen.text_backbone)
    listed = config.get("heads")  # a list if several encoders are joined
    specs = [_spec(HeadsSpec, {"heads": each}, "heads") for each in (listed if isinstance(listed, list) else [listed])]
    tower_options = TowerOptions(
        device=str(placement.device),
        dtype=placement.dtype_name,
        whole=any(spec.pool == "own" for spec in specs),
        long_text=chosen.long_text,
    )
    image_tower, text_tower = load_towers(image, text, tower_options, base=checkpoint.folder)
    if preprocessing_of(image_tower) is None:
        chosen.refuse_pixel_choices()
    dims = _spec(SideDims, config, "image_dims"), _spec(SideDims, config, "text_dims")
    members = [AlignedHeads(spec, *dims) for spec in specs]
    heads = members[0] if len(members) == 1 else JoinedHeads(members, branches=bool(image.branches))
    try:
        # Stored compressed; heads are small, so they always compute in float32.
        heads.load_state_dict(widened(read_tensors(checkpoint.weight_files())))
    except (RuntimeError, WeightsError) as error:
        reason = str(error).strip().splitlines()[0]
        raise WeightsError(f"heads of {checkpoint.source!r} cannot be loaded ({reason}); export them again") from error
    bank, best = checkpoint.folder / BANK, config.get("recommended")
    languages = ("en",) if config["text"].get("kind") == "mini" else ()
    return AlignedEncoder(
        Identity(name, checkpoint.signed(name), placement, chosen, languages=languages),
        image=image_tower,
        text=text_tower,
        heads=heads.to(placement.device).eval().requires_grad_(False),
        bank=uncalibrated(
            read_bank(bank)[0] if bank.is_file() else None,
            is_default=chosen.has_default_vectors and placement.dtype_name == config.get("dtype", placement.dtype_name),
        ),
        # As in the configuration of the score: JSON has no tuples.
        recommended=best and {key: tuple(item) if isinstance(item, list) else item for key, item in best.items()},
    )


def _spec(kind: type[Spec], config: Mapping[str, Any], key: str) -> Spec:
    try:
        return read_spec(kind, config.get(key), where=key)
    except MSDScoreError as error:
        raise WeightsError(f"config.json of an aligned encoder cannot be used: {error}") from error


def _moved(features: Features, device: torch.device) -> Features:
    if features.points.device == device:
        return features
    return replace(
        features,
        points=features.points.to(device),
        mask=features.mask.to(device),
        pooled=None if features.pooled is None else features.pooled.to(device),
        whole=None if features.whole is None else _moved(features.whole, device),
    )


class EncoderTower:
    """One side of any registered encoder as a tower; its features are the encoder's unit vectors.

    `loaded` are the encoders of other towers, by source and revision: one that provides both sides is loaded once.
    """

    def __init__(
        self,
        spec: ImageTowerSpec | TextTowerSpec,
        options: TowerOptions,
        *,
        base: Path | None,
        loaded: dict[tuple[str, str], Encoder],
    ) -> None:
        source, revision = locate(spec.source, base=base), spec.revision or None
        # No files for encoders without weights, or with files of another kind.
        self.files: tuple[Path, ...] = ()
        weights = find_row(source, revision=revision).source
        if weights and (Path(weights).expanduser().is_dir() or looks_like_hub_name(weights)):
            # Loading the encoder raises the right error, if anything is wrong.
            with suppress(WeightsError):
                self.files = find_checkpoint(weights, revision=revision).weight_files()
        verify_files(self.files, spec.sha256, source=spec.source)
        key = (source, spec.revision)
        if key not in loaded:
            # Only a family that reads in windows has the option for long texts; its default is to window.
            extra: dict[str, Any] = {} if options.long_text == "window" else {"long_text": options.long_text}
            loaded[key] = load_encoder(source, device=options.device, dtype=options.dtype, revision=revision, **extra)
        self._spec, self._whole, self.encoder = spec, options.whole, loaded[key]
        encoder = self.encoder
        self._encode: Any = encoder.encode_images if isinstance(spec, ImageTowerSpec) else encoder.encode_texts
        self.device = torch.device(encoder.device)
        self.preprocessing, self.prepare = preprocessing_of(encoder), encoder.prepare

    @torch.no_grad()
    def features(self, items: Sequence[Any]) -> Features:
        """Points and pooled vectors of the encoder."""
        vectors = self._encode(items)
        # An encoder without torch returns NumPy arrays.
        points, mask, pooled = (torch.as_tensor(array) for array in (vectors.points, vectors.mask, vectors.pooled))
        whole = Features(points, mask) if self._whole else None
        every = Features(points, mask, pooled, vectors.layout, whole)
        content = isinstance(self._spec, TextTowerSpec) and self._spec.words == "content"
        return keep_content(every, items) if content else every


_TOWERS: Mapping[tuple[type, str], Any] = {
    (ImageTowerSpec, "timm"): MapImages,
    (ImageTowerSpec, "transformers"): MapImages,
    (ImageTowerSpec, "mini"): Lite2Images,
    (TextTowerSpec, "transformers"): TransformersTexts,
    (TextTowerSpec, "embeddings"): TransformersTexts,
    (TextTowerSpec, "mini"): MiniLMTexts,
}


def load_towers(
    image: ImageTowerSpec, text: TextTowerSpec, options: TowerOptions, *, base: Path | None = None
) -> tuple[ImageTower, TextTower]:
    """Load both towers; one encoder that provides both sides is loaded once. `base` is the root of relative folders."""
    loaded: dict[tuple[str, str], Encoder] = {}
    towers: list[Any] = [
        EncoderTower(spec, options, base=base, loaded=loaded)
        if spec.kind == "encoder"
        else _TOWERS[type(spec), spec.kind](spec, options, base=base)
        for spec in (image, text)
    ]
    return towers[0], towers[1]
