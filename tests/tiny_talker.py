"""A tiny LLaVA that has learnt by heart what to answer, in the on-disk format of real ones."""

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


def make_talker(folder: Path, answers: dict[str, str], steps: int = 120) -> Path:
    """A checkpoint that gives each question its answer, whatever the picture; tokens are single characters."""
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
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("(?s)."), "isolated")
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

    text = {**TOWER, "model_type": "llama", "vocab_size": size, "max_position_embeddings": 4096, "bos_token_id": 1}
    text |= {"eos_token_id": 2, "pad_token_id": 0}
    vision = {**TOWER, "model_type": "clip_vision_model", "image_size": 16, "patch_size": 8, "projection_dim": 32}
    model = LlavaForConditionalGeneration(
        LlavaConfig(text_config=text, vision_config=vision, image_token_index=image_token)
    )
    randomise(model)
    return model


def _teach(model, processor, answers: dict[str, str], steps: int) -> None:
    picture = Image.new("RGB", (16, 16), "grey")
    lessons = [_lesson(processor, picture, question, answer) for question, answer in answers.items()]
    optimiser = torch.optim.Adam(
        model.language_model.parameters() if hasattr(model, "language_model") else model.parameters(), lr=3e-3
    )
    for _ in range(steps):
        for lesson in lessons:
            optimiser.zero_grad()
            model(**lesson).loss.backward()
            optimiser.step()
    model.eval()


def _lesson(processor, picture, question: str, answer: str):
    turn = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question}]}
    prompt = processor.apply_chat_template([turn], add_generation_prompt=True)
    inputs = processor(images=picture, text=prompt + answer + "</s>", return_tensors="pt")
    labels = inputs["input_ids"].clone()
    labels[:, : -len(answer) - 1] = -100
    return {**inputs, "labels": labels}
