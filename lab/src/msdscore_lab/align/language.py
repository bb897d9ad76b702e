"""Reconstruction: a frozen causal language model predicts the caption from aligned patches as a visual prefix."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint

from msdscore.core.arrays import Bool, Float, Int
from msdscore.encoders.checkpoints import locate
from msdscore.errors import WeightsError, require
from msdscore_lab.align.recipe import LanguageSpec
from msdscore_torch.aligned.towers import frozen
from msdscore_torch.backbone import place
from msdscore_torch.checkpoints import load_model, load_tokenizer
from msdscore_torch.hub import find_checkpoint
from msdscore_torch.tokenizers import special_ids

_IGNORED = -100


class FrozenLanguageModel:
    """A frozen causal language model; gradients only pass through it to the prefix."""

    def __init__(self, model: Any, tokenizer: Any, *, batch: int) -> None:
        self.model, self._tokenizer, self._batch = model, tokenizer, batch
        self._start_ids = special_ids(tokenizer.backend_tokenizer)[0]
        if tokenizer.eos_token_id is None:
            raise WeightsError("the language model's tokenizer has no end token; use another model")
        self._end_id = int(tokenizer.eos_token_id)

    @property
    def width(self) -> int:
        """Dimension of the input embeddings."""
        return int(self.model.get_input_embeddings().weight.shape[1])

    def nll(
        self, prefix: Float[Tensor, "batch points width"], mask: Bool[Tensor, "batch points"], captions: Sequence[str]
    ) -> tuple[Float[Tensor, ""], int]:
        """Return the summed negative log-likelihood of all caption tokens, and their number."""
        ids = [[*self._ids(caption), self._end_id] for caption in captions]
        total = prefix.new_zeros((), dtype=torch.float32)
        starts = range(0, len(ids), self._batch)
        for start in starts:
            part = slice(start, start + self._batch)
            targets = _padded(ids[part]).to(prefix.device)
            if len(starts) == 1:
                total = total + self._part_nll(prefix[part], mask[part], targets)
            else:
                # Gradient checkpointing: only one part's activations are in memory.
                total = total + checkpoint(self._part_nll, prefix[part], mask[part], targets, use_reentrant=False)
        return total, sum(map(len, ids))

    @torch.inference_mode()
    def log_likelihoods(self, captions: Sequence[str]) -> list[float]:
        """Return the log-likelihood of each caption with its end token, in nats, without a prefix."""
        start_ids = [*(self._start_ids or (self._end_id,))]  # without a start token, the end token is used
        values: list[float] = []
        for start in range(0, len(captions), self._batch):
            ids = [[*start_ids, *self._ids(text), self._end_id] for text in captions[start : start + self._batch]]
            targets = _padded(ids).to(self.model.device)
            logits = self.model(input_ids=targets.clamp_min(0), use_cache=False).logits[:, len(start_ids) - 1 : -1]
            labels = targets[:, len(start_ids) :]
            nll = cross_entropy(logits.float().transpose(1, 2), labels, ignore_index=_IGNORED, reduction="none")
            values += (-nll.double().sum(dim=1)).tolist()
        return values

    def _ids(self, caption: str) -> list[int]:
        ids: list[int] = self._tokenizer(caption, add_special_tokens=False)["input_ids"]
        return ids

    def _part_nll(
        self, prefix: Float[Tensor, "batch points width"], mask: Tensor, targets: Int[Tensor, "batch tokens"]
    ) -> Float[Tensor, ""]:
        embed = self.model.get_input_embeddings()
        batch, count = len(prefix), prefix.shape[1]
        # Left padding: the caption's first token is predicted at the last patch.
        order = mask.to(torch.uint8).argsort(dim=1, stable=True)
        prefix, mask = prefix.gather(1, order.unsqueeze(-1).expand_as(prefix)), mask.gather(1, order)
        start_ids = torch.tensor(self._start_ids, dtype=torch.long, device=prefix.device).expand(batch, -1)
        # The last token is a target, but not an input.
        input_ids = targets[:, :-1].clamp_min(0)
        inputs = torch.cat([embed(start_ids), prefix.to(embed.weight.dtype), embed(input_ids)], dim=1)
        attention_mask = torch.cat([start_ids >= 0, mask, targets[:, :-1] != _IGNORED], dim=1)
        positions = (attention_mask.long().cumsum(dim=1) - 1).clamp_min(0)
        # Nothing is generated, so no key-value cache is needed.
        output = self.model(
            inputs_embeds=inputs, attention_mask=attention_mask.long(), position_ids=positions, use_cache=False
        )
        logits = output.logits[:, start_ids.shape[1] + count - 1 :]
        return cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=_IGNORED, reduction="sum")


def load_language_model(spec: LanguageSpec, *, device: torch.device) -> FrozenLanguageModel:
    """Load the frozen language model of a recipe: float32 on a CPU, bfloat16 on CUDA.

    Raises:
        WeightsError: If its files are missing or damaged.
    """
    placement = place(str(device), "auto", half=torch.bfloat16)
    source = locate(spec.source)
    if spec.gguf:
        model, tokenizer = _load_gguf(Path(source), spec.gguf)
    else:
        checkpoint_files = find_checkpoint(source, revision=spec.revision or None)
        model, tokenizer = load_model("AutoModelForCausalLM", checkpoint_files), load_tokenizer(checkpoint_files)
    return FrozenLanguageModel(frozen(model, placement), tokenizer, batch=spec.batch)


def _load_gguf(folder: Path, name: str) -> tuple[Any, Any]:
    """Load a quantised model, dequantised; transformers needs two more libraries for it."""
    for library in ("gguf", "accelerate"):
        require(library, extra="train", of="msdscore-lab")
    transformers = require("transformers", extra="hf")
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, local_files_only=True)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=name, local_files_only=True)
    except Exception as error:  # damaged files raise various errors
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise WeightsError(f"{folder / name}: cannot be loaded ({reason}); download it again") from error
    return model, tokenizer


def _padded(rows: Sequence[Sequence[int]]) -> Int[Tensor, "rows longest"]:
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=_IGNORED)
