"""A tiny LLaVA that memorised its answers, in the format of real ones."""

import json
import string
from pathlib import Path

import torch
from PIL import Image

from tiny_models import TOWER, randomise

_SPECIAL = ("<unk>", "<s>", "</s>", "<image>")
_TEMPLATE = (
    "{% for m in messages %}USER: {% for c in m['content'] %}{% if c['type'] == 'image' %}<image> "
    "{% else %}{{ c['text'] }}{% endif %}{% endfor %}{% endfor %}{% if add_generation_prompt %} ASSISTANT:{% endif %}"
)


def make_talker(folder: Path, answers: dict[str, str], steps: int = 60) -> Path:
    """Write a checkpoint that answers each question, independent of the image; tokens are characters."""
    from transformers import CLIPImageProcessor, LlavaProcessor

    folder.mkdir(parents=True)
    tokenizer = _tokenizer(folder)
    images = CLIPImageProcessor(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    processor = LlavaProcessor(
        image_processor=images, tokenizer=tokenizer, patch_size=8, vision_feature_select_strategy="default",
        chat_template=_TEMPLATE, num_additional_image_tokens=1,
    )  # fmt: skip
    processor.save_pretrained(folder)
    model = _model(len(tokenizer), tokenizer.convert_tokens_to_ids("<image>"))
    _teach(model, processor, answers, steps)
    model.save_pretrained(folder)
    return folder


def _tokenizer(folder: Path):
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted({*string.printable, *"▁é"})
    vocabulary = {piece: number for number, piece in enumerate([*_SPECIAL, *letters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    names = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<unk>"}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **names,
        additional_special_tokens=["<image>"],
        extra_special_tokens={"image_token": "<image>"},
    )


def _model(size: int, image_token: int):
    from transformers import LlavaConfig, LlavaForConditionalGeneration

    tower = {**TOWER, "num_hidden_layers": 1}
    text = {**tower, "model_type": "llama", "vocab_size": size, "max_position_embeddings": 4096, "bos_token_id": 1}
    text |= {"eos_token_id": 2, "pad_token_id": 0}
    vision = {**tower, "model_type": "clip_vision_model", "image_size": 16, "patch_size": 8, "projection_dim": 32}
    config = LlavaConfig(text_config=text, vision_config=vision, image_token_index=image_token, vision_feature_layer=-1)
    model = LlavaForConditionalGeneration(config)
    randomise(model)
    return model


def _teach(model, processor, answers: dict[str, str], steps: int) -> None:
    """Train on all questions in one left-padded batch, with a loss on the answers only."""
    prompts = [_prompt(processor, question) + answer + "</s>" for question, answer in answers.items()]
    images = [Image.new("RGB", (16, 16), "grey")] * len(prompts)
    processor.tokenizer.padding_side = "left"
    inputs = processor(images=images, text=prompts, return_tensors="pt", padding=True)
    labels = inputs["input_ids"].clone()
    for row, answer in enumerate(answers.values()):
        labels[row, : -len(answer) - 1] = -100
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        optimiser.zero_grad()
        model(**inputs, labels=labels).loss.backward()
        optimiser.step()
    model.eval()


def _prompt(processor, question: str) -> str:
    turn = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question}]}
    return processor.apply_chat_template([turn], add_generation_prompt=True)
