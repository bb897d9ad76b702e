"""Models that write captions: transformers checkpoints on this machine, or any OpenAI-compatible endpoint."""

from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from threading import Event
from typing import Any, Protocol

import torch
from PIL.Image import Image

from msdscore.encoders.backbone import Placement
from msdscore.errors import ConfigError, RowError
from msdscore.metrics.vlm.endpoint import Endpoint, RefusedQuestionError
from msdscore.metrics.vlm.model import LocalModel, Sampling, load_image_text, load_processor

PROMPT = "Describe the main subject in one concise English sentence."  # of the MSD-Score authors' captioners


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptioningSettings:
    """How captions are asked for; `prompt` None is `PROMPT` for models that are talked to, and nothing for the others.

    Temperature 0 takes the likeliest words. The seed of an image comes from `seed` and the image's name.
    """

    prompt: str | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    most_tokens: int = 80
    seed: int = 0

    def __post_init__(self) -> None:
        if self.temperature < 0 or not 0 < self.top_p <= 1 or self.most_tokens < 1:
            raise ConfigError(
                f"expected a temperature from 0, top_p above 0 and up to 1 and at least one token, got "
                f"{self.temperature:g}, {self.top_p:g} and {self.most_tokens}"
            )

    @property
    def sampling(self) -> Sampling:
        """How words are drawn."""
        return Sampling(self.temperature, self.top_p, self.most_tokens)


class CaptionWriter(Protocol):
    """What a captioner is: a name for what it is made of, and captions for images."""

    @property
    def identity(self) -> str:
        """Which model it is, for the run metadata."""

    @property
    def prompt(self) -> str | None:
        """What it is asked with, if anything."""

    def write(self, images: Sequence[Image], seeds: Sequence[int]) -> Sequence[str | RowError]:
        """One caption per image: an empty text where the model said nothing, an error where it refuses to."""


@dataclass(frozen=True, slots=True)
class EndpointWriter:
    """A model behind an OpenAI-compatible endpoint, asked about several images at once."""

    endpoint: Endpoint
    settings: CaptioningSettings
    workers: int = 4

    @property
    def identity(self) -> str:
        """The model and where it is."""
        return f"{self.endpoint.model}@{self.endpoint.url}"

    @property
    def prompt(self) -> str:
        """What it is asked."""
        return self.settings.prompt or PROMPT

    def write(self, images: Sequence[Image], seeds: Sequence[int]) -> list[str | RowError]:
        """Captions in the order of the images; endpoints draw as they like, seeds are not sent."""
        pool, stopped = ThreadPoolExecutor(self.workers), Event()
        try:
            asked = [pool.submit(self._ask, image, stopped) for image in images]
            failed = (future.exception() for future in wait(asked, return_when=FIRST_EXCEPTION).done)
            if (error := next(filter(None, failed), None)) is not None:
                raise error
            return [future.result() for future in asked]
        finally:
            # After an error or Ctrl-C nothing more is asked, and no wait between two tries is sat out.
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)

    def _ask(self, image: Image, stopped: Event) -> str | RowError:
        try:
            return self.endpoint.ask(image, "", self.prompt, self.settings.sampling, stopped=stopped).text
        except RefusedQuestionError as error:
            return RowError(str(error))


@dataclass(frozen=True, slots=True)
class ChatWriter:
    """A vision-language model that is talked to (LLaVA, Qwen-VL, InternVL …)."""

    model: LocalModel
    settings: CaptioningSettings

    @property
    def identity(self) -> str:
        """The checkpoint and its number type."""
        return self.model.signature

    @property
    def prompt(self) -> str:
        """What it is asked."""
        return self.settings.prompt or PROMPT

    def write(self, images: Sequence[Image], seeds: Sequence[int]) -> list[str]:
        """Captions one after the other."""
        return [
            self.model.answer(image, self.prompt, self.settings.sampling, seed=seed).text
            for image, seed in zip(images, seeds, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class PlainWriter:
    """An image-to-text model without a chat template (BLIP, GIT, ViT-GPT2 …); a prompt is the caption's beginning."""

    model: Any
    processor: Any
    tokenizer: Any
    placement: Placement
    identity: str
    settings: CaptioningSettings

    @property
    def prompt(self) -> str | None:
        """How captions begin, if they begin alike."""
        return self.settings.prompt

    def write(self, images: Sequence[Image], seeds: Sequence[int]) -> list[str]:
        """Captions of one batch; drawn ones one after the other, so that a batch changes none."""
        if self.settings.temperature > 0:
            return [self._generate([future], seed)[0] for future, seed in zip(images, seeds, strict=True)]
        return self._generate(list(images), 0)

    @torch.no_grad()
    def _generate(self, images: list[Image], seed: int) -> list[str]:
        text = {} if not self.prompt else {"text": [self.prompt] * len(images)}
        prepared = dict(self.processor(images=images, return_tensors="pt", **text))
        kept = [name for name in ("input_ids", "attention_mask") if self.prompt and name in prepared]
        inputs = {name: prepared[name].to(self.placement.device) for name in kept}
        inputs["pixel_values"] = prepared["pixel_values"].to(self.placement.device, self.placement.dtype)
        beams = {} if self.settings.temperature > 0 else {"num_beams": 1}
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            ids = self.model.generate(**inputs, **beams, **self.settings.sampling.arguments)
        return [str(text).strip() for text in self.tokenizer.batch_decode(ids, skip_special_tokens=True)]


def load_writer(
    source: str, settings: CaptioningSettings, *, device: str = "auto", dtype: str = "auto", revision: str | None = None
) -> CaptionWriter:
    """A captioner from a folder or a hub name.

    Raises:
        WeightsError: files are missing or damaged, or the checkpoint is no model that writes about images.
    """
    model, processor, checkpoint, placement = load_image_text(source, device=device, dtype=dtype, revision=revision)
    if getattr(processor, "chat_template", None):
        return ChatWriter(LocalModel(model, processor, checkpoint, placement), settings)
    if hasattr(processor, "tokenizer") and hasattr(processor, "image_processor"):
        tokenizer = processor.tokenizer
    else:  # such as ViT-GPT2, whose two halves have a processor each
        processor, tokenizer = (load_processor(checkpoint, kind) for kind in ("AutoImageProcessor", "AutoTokenizer"))
    identity = f"{checkpoint.signed(checkpoint.source)},dtype:{placement.dtype_name}"
    return PlainWriter(model, processor, tokenizer, placement, identity, settings)
