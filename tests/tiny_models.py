"""Tiny checkpoints of the transformers families, in the format of real ones."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from tiny_tokenizers import save_bert, save_gemma, save_llama, save_qwen, save_unigram

CONTEXT = 16  # so small that short captions need windows
TOWER = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


def randomise(model: torch.nn.Module, seed: int = 0) -> None:
    """Draw weights large enough to distinguish tokens, unlike the library's initialisation."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            spread = 0.2 if parameter.ndim > 1 else 0.1
            centre = parameter.mean().round() if parameter.ndim < 2 else 0.0  # norms are near one
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * spread + centre)


def noise_images(sizes: Sequence[tuple[int, int]], seed: int = 0) -> list[Image.Image]:
    """Return images of random pixels with these widths and heights."""
    rng = np.random.default_rng(seed)
    return [Image.fromarray(rng.integers(0, 256, (h, w, 3), dtype=np.uint8)) for w, h in sizes]


def pillow_processor(name: str) -> Any:
    """Return the image processor of transformers that resizes with Pillow, which version 5 renamed."""
    import transformers

    return getattr(transformers, f"{name}Pil", None) or getattr(transformers, name)


def make_siglip(folder: Path, *, text_width: int = 32) -> Path:
    """Write a SigLIP with images of 30 pixels and patches of 8: a border of 6 pixels is cropped, as in so400m."""
    from transformers import SiglipConfig, SiglipImageProcessor, SiglipModel

    folder.mkdir(parents=True)
    size = save_unigram(folder, CONTEXT)
    SiglipImageProcessor(size={"height": 30, "width": 30}).save_pretrained(folder)
    text = {**TOWER, "vocab_size": size, "max_position_embeddings": CONTEXT, "pad_token_id": 1, "eos_token_id": 1}
    text |= {"hidden_size": text_width, "projection_size": 32}
    vision = {**TOWER, "image_size": 30, "patch_size": 8}
    model = SiglipModel(SiglipConfig(text_config=text, vision_config=vision))
    randomise(model)
    model.save_pretrained(folder)
    return folder


def make_siglip2(folder: Path) -> Path:
    """Write a SigLIP 2 with native resolution: at most 20 patches of 8 pixels in the image's aspect ratio."""
    from transformers import Siglip2Config, Siglip2ImageProcessor, Siglip2Model

    folder.mkdir(parents=True)
    size = save_gemma(folder, CONTEXT)
    Siglip2ImageProcessor(patch_size=8, max_num_patches=20).save_pretrained(folder)
    text = {**TOWER, "vocab_size": size, "max_position_embeddings": CONTEXT, "pad_token_id": 0, "eos_token_id": 1}
    vision = {**TOWER, "num_patches": 16, "patch_size": 8}
    model = Siglip2Model(Siglip2Config(text_config=text, vision_config=vision))
    randomise(model)
    model.save_pretrained(folder)
    return folder


def make_blip(folder: Path) -> Path:
    """Write a BLIP with images squashed to 32 x 32 pixels."""
    from transformers import BlipConfig, BlipForImageTextRetrieval, BlipImageProcessor

    folder.mkdir(parents=True)
    size = save_bert(folder)
    BlipImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
    text = {**TOWER, "vocab_size": size, "max_position_embeddings": CONTEXT, "encoder_hidden_size": 32}
    text |= {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "sep_token_id": 3}
    vision = {**TOWER, "image_size": 32, "patch_size": 8}
    model = BlipForImageTextRetrieval(BlipConfig(text_config=text, vision_config=vision, image_text_hidden_size=24))
    randomise(model)
    model.save_pretrained(folder)
    return folder


def make_llava(folder: Path, **preprocess: object) -> Path:
    """Write a LLaVA-1.5: a CLIP tower of 32 pixels (second to last layer) and a Llama."""
    from transformers import CLIPImageProcessor, LlavaConfig, LlavaForConditionalGeneration

    folder.mkdir(parents=True)
    size = save_llama(folder)
    square = {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}, **preprocess}
    CLIPImageProcessor(**square).save_pretrained(folder)
    text = {**TOWER, "model_type": "llama", "vocab_size": size, "max_position_embeddings": CONTEXT}
    vision = {**TOWER, "model_type": "clip_vision_model", "image_size": 32, "patch_size": 8, "projection_dim": 32}
    model = LlavaForConditionalGeneration(LlavaConfig(text_config=text, vision_config=vision))
    randomise(model)
    model.save_pretrained(folder)
    return folder


CANVASES = [[side * 30, other * 30] for side in range(1, 7) for other in range(1, 7)]


def make_onevision(folder: Path) -> Path:
    """Write a LLaVA-OneVision: a SigLIP tower on tiles of 30 pixels with patches of 8, and a Qwen2."""
    from transformers import LlavaOnevisionConfig, LlavaOnevisionForConditionalGeneration, LlavaOnevisionImageProcessor

    folder.mkdir(parents=True)
    size = save_qwen(folder)
    LlavaOnevisionImageProcessor(
        size={"height": 30, "width": 30}, image_grid_pinpoints=CANVASES, image_mean=[0.5] * 3, image_std=[0.5] * 3
    ).save_pretrained(folder)
    text = {**TOWER, "model_type": "qwen2", "vocab_size": size, "max_position_embeddings": CONTEXT}
    text |= {"num_key_value_heads": 2, "rope_theta": 1e6}
    vision = {**TOWER, "model_type": "siglip_vision_model", "image_size": 30, "patch_size": 8}
    vision |= {"num_attention_heads": 16, "vision_use_head": False}
    config = LlavaOnevisionConfig(
        text_config=text,
        vision_config=vision,
        image_grid_pinpoints=CANVASES,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        vision_aspect_ratio="anyres_max_9",
    )
    model = LlavaOnevisionForConditionalGeneration(config)
    randomise(model)
    model.save_pretrained(folder)
    return folder


def make_qwen(folder: Path) -> Path:
    """Write a Qwen2.5-VL: patches of 4 pixels, four merged into one token, windows of 16 pixels."""
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen2VLImageProcessor

    folder.mkdir(parents=True)
    size = save_qwen(folder)
    Qwen2VLImageProcessor(patch_size=4, merge_size=2, min_pixels=256, max_pixels=4096).save_pretrained(folder)
    text = {**TOWER, "vocab_size": size, "max_position_embeddings": CONTEXT, "num_key_value_heads": 2}
    text |= {"rope_scaling": {"type": "default", "mrope_section": [1, 1, 2]}}
    vision = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 4, "out_hidden_size": 32}
    vision |= {"patch_size": 4, "spatial_merge_size": 2, "window_size": 16, "fullatt_block_indexes": [1]}
    model = Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=text, vision_config=vision))
    randomise(model)
    model.save_pretrained(folder)
    return folder
