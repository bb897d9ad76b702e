"""A local vision-language model that answers a question about one image."""

from dataclasses import dataclass
from typing import Any

import torch
from PIL.Image import Image
from torch import Tensor

from msdscore.core.arrays import Float
from msdscore.encoders.checkpoints import Checkpoint
from msdscore.errors import WeightsError, require
from msdscore_torch.backbone import Placement, place
from msdscore_torch.checkpoints import load_model
from msdscore_torch.hub import find_checkpoint


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling settings; temperature 0 is greedy decoding."""

    temperature: float
    top_p: float
    most_tokens: int

    @property
    def arguments(self) -> dict[str, Any]:
        """The settings as arguments of `generate` in transformers."""
        if self.temperature == 0:
            return {"do_sample": False, "max_new_tokens": self.most_tokens}
        sampling = {"temperature": self.temperature, "top_p": self.top_p, "top_k": 0}
        return {"do_sample": True, "max_new_tokens": self.most_tokens, **sampling}


class LocalModel:
    """A local image-text-to-text model (LLaVA, Qwen-VL …)."""

    def __init__(self, model: Any, processor: Any, checkpoint: Checkpoint, placement: Placement) -> None:
        self._model = model
        self._processor = processor
        self._placement = placement
        self.signature = f"{checkpoint.signed(checkpoint.source)},dtype:{placement.dtype_name}"

    @property
    def vocabulary(self) -> dict[str, int]:
        """Token ids by token."""
        tokens: dict[str, int] = self._processor.tokenizer.get_vocab()
        return tokens

    def answer(self, image: Image, question: str, sampling: Sampling, *, seed: int) -> str:
        """Return a sampled answer; the same seed returns the same answer on one machine."""
        inputs = self._inputs(image, question)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            ids = self._generate(inputs, **sampling.arguments).sequences[0]
        prompt_length = int(inputs["input_ids"].shape[1])
        text = self._processor.tokenizer.decode(ids[prompt_length:], skip_special_tokens=True)
        return str(text).strip()

    def answer_greedily(
        self, image: Image, question: str, *, most_tokens: int
    ) -> tuple[tuple[str, ...], Float[Tensor, "steps vocabulary"]]:
        """Return the tokens of the greedy answer, with the probabilities of the whole vocabulary at every step."""
        inputs = self._inputs(image, question)
        generated = self._generate(inputs, max_new_tokens=most_tokens, do_sample=False, output_scores=True)
        ids = generated.sequences[0, inputs["input_ids"].shape[1] :]
        pieces = self._processor.tokenizer.convert_ids_to_tokens(ids.tolist())
        return tuple(map(str, pieces)), torch.stack([step[0] for step in generated.scores]).double().softmax(dim=-1)

    @torch.no_grad()
    def _generate(self, inputs: Any, **options: Any) -> Any:
        tokenizer = self._processor.tokenizer
        pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
        return self._model.generate(**inputs, return_dict_in_generate=True, pad_token_id=pad, **options)

    def _inputs(self, image: Image, question: str) -> Any:
        message = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question}]}
        prompt = self._processor.apply_chat_template([message], add_generation_prompt=True)
        prepared = self._processor(images=image, text=prompt, return_tensors="pt").to(self._placement.device)
        prepared["pixel_values"] = prepared["pixel_values"].to(self._placement.dtype)
        return prepared


def load_image_text(
    source: str, *, device: str, dtype: str, revision: str | None
) -> tuple[Any, Any, Checkpoint, Placement]:
    """Load an image-text-to-text model and its processor from a folder or a hub name."""
    placement = place(device, dtype, half=torch.bfloat16)
    checkpoint = find_checkpoint(source, revision=revision)
    model = load_model("AutoModelForImageTextToText", checkpoint).to(device=placement.device, dtype=placement.dtype)
    return model.eval(), load_processor(checkpoint), checkpoint, placement


def load_processor(checkpoint: Checkpoint, kind: str = "AutoProcessor") -> Any:
    """Load a processor of images or texts, by the name of its class in transformers."""
    transformers: Any = require("transformers", extra="hf")
    try:
        return getattr(transformers, kind).from_pretrained(checkpoint.folder, local_files_only=True)
    except Exception as error:  # damaged files raise various errors
        reason = type(error).__name__
        raise WeightsError(f"the processor of {checkpoint.source!r} cannot be loaded ({reason})") from error


def load_local(source: str, *, device: str = "auto", dtype: str = "auto", revision: str | None = None) -> LocalModel:
    """Load a model with its processor from a folder or a hub name.

    Raises:
        WeightsError: If files are missing or damaged, or the checkpoint has no chat template.
    """
    model, processor, checkpoint, placement = load_image_text(source, device=device, dtype=dtype, revision=revision)
    if not getattr(processor, "chat_template", None):
        raise WeightsError(f"{source!r} has no chat template; expected a chat model")
    return LocalModel(model, processor, checkpoint, placement)
