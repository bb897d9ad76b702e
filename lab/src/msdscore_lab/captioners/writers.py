"""Models that write captions: transformers checkpoints on this machine, or any OpenAI-compatible endpoint."""

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from math import inf
from threading import Event
from typing import Any

import torch
from PIL.Image import Image

from msdscore.encoders.checkpoints import Checkpoint
from msdscore.errors import ConfigError, RowError
from msdscore_lab.metrics.vlm.endpoint import Endpoint, RefusedQuestionError
from msdscore_lab.metrics.vlm.model import LocalModel, Sampling, load_image_text, load_processor
from msdscore_torch.backbone import Placement

PROMPT = "Describe the main subject in one concise English sentence."  # as used by the MSD-Score authors


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptioningSettings(Sampling):
    """Prompt and decoding; with `prompt` None, chat models use `PROMPT` and others no prompt.

    The seed of an image is derived from `seed` and the image's name.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    most_tokens: int = 80
    prompt: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < inf or not 0 < self.top_p <= 1 or self.most_tokens < 1:
            raise ConfigError(
                f"expected a finite temperature >= 0, 0 < top_p <= 1 and at least one token, got "
                f"{self.temperature:g}, {self.top_p:g} and {self.most_tokens}"
            )


@dataclass(frozen=True, slots=True)
class CaptionWriter:
    """A captioner: the identity of its model, for the run metadata, and its prompt, if any.

    `write` takes images with a seed each and returns one caption per image: an empty text if the model returned none,
    an error if it rejects the image.
    """

    identity: str
    prompt: str | None
    write: Callable[[Sequence[Image], Sequence[int]], Sequence[str | RowError]]


def endpoint_writer(endpoint: Endpoint, settings: CaptioningSettings, workers: int = 4) -> CaptionWriter:
    """Return a captioner at an OpenAI-compatible endpoint, with concurrent requests."""
    prompt = settings.prompt or PROMPT

    def ask(image: Image, stopped: Event) -> str | RowError:
        try:
            return endpoint.ask(image, "", prompt, settings, stopped=stopped)
        except RefusedQuestionError as error:
            return RowError(str(error))

    def write(images: Sequence[Image], seeds: Sequence[int]) -> list[str | RowError]:
        """Return captions in the order of the images; seeds are not sent to endpoints."""
        pool, stopped = ThreadPoolExecutor(workers), Event()
        try:
            futures = [pool.submit(ask, image, stopped) for image in images]
            failed = (future.exception() for future in wait(futures, return_when=FIRST_EXCEPTION).done)
            if (error := next(filter(None, failed), None)) is not None:
                raise error
            return [future.result() for future in futures]
        finally:
            # After an error or Ctrl-C, send no more requests and stop waiting for retries.
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)

    return CaptionWriter(f"{endpoint.model}@{endpoint.url}", prompt, write)


def load_writer(
    source: str, settings: CaptioningSettings, *, device: str = "auto", dtype: str = "auto", revision: str | None = None
) -> CaptionWriter:
    """Load a captioner from a folder or a hub name: a chat model (LLaVA, Qwen-VL …), or one without a chat template.

    Raises:
        WeightsError: If files are missing or damaged, or the checkpoint is not an image-to-text model.
    """
    model, processor, checkpoint, placement = load_image_text(source, device=device, dtype=dtype, revision=revision)
    if not getattr(processor, "chat_template", None):
        return _plain_writer(model, processor, checkpoint, placement, settings)
    chat_model, prompt = LocalModel(model, processor, checkpoint, placement), settings.prompt or PROMPT

    def write(images: Sequence[Image], seeds: Sequence[int]) -> list[str]:
        pairs = zip(images, seeds, strict=True)
        return [chat_model.answer(image, prompt, settings, seed=seed) for image, seed in pairs]

    return CaptionWriter(chat_model.signature, prompt, write)


def _plain_writer(
    model: Any, processor: Any, checkpoint: Checkpoint, placement: Placement, settings: CaptioningSettings
) -> CaptionWriter:
    """Return an image-to-text model without chat template (BLIP, GIT, ViT-GPT2 …), which continues the prompt."""
    if hasattr(processor, "tokenizer") and hasattr(processor, "image_processor"):
        tokenizer = processor.tokenizer
    else:  # such as ViT-GPT2, with separate processors of images and text
        processor, tokenizer = (load_processor(checkpoint, kind) for kind in ("AutoImageProcessor", "AutoTokenizer"))
    prompt, does_sample = settings.prompt, settings.temperature > 0
    beams = {} if does_sample else {"num_beams": 1}

    @torch.no_grad()
    def generate(images: list[Image], seed: int) -> list[str]:
        text = {} if not prompt else {"text": [prompt] * len(images)}
        prepared = dict(processor(images=images, return_tensors="pt", **text))
        names = [name for name in ("input_ids", "attention_mask") if prompt and name in prepared]
        inputs = {name: prepared[name].to(placement.device) for name in names}
        inputs["pixel_values"] = prepared["pixel_values"].to(placement.device, placement.dtype)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            ids = model.generate(**inputs, **beams, **settings.arguments)
        return [str(decoded).strip() for decoded in tokenizer.batch_decode(ids, skip_special_tokens=True)]

    def write(images: Sequence[Image], seeds: Sequence[int]) -> list[str]:
        """Return the captions of one batch; sampled captions are generated one by one, independent of the batch."""
        if does_sample:
            return [generate([image], seed)[0] for image, seed in zip(images, seeds, strict=True)]
        return generate(list(images), 0)

    return CaptionWriter(f"{checkpoint.signed(checkpoint.source)},dtype:{placement.dtype_name}", prompt, write)
