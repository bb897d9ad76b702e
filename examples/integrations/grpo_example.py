"""Train a captioner with GRPO and MSD as its reward: `python grpo_example.py MODEL`, a vision-language checkpoint."""

import sys

import torch
from datasets import Dataset
from datasets import Image as ImageColumn
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor
from trl import GRPOConfig, GRPOTrainer

from msdscore_torch.integrations.trl import MSDReward


def main(checkpoint: str) -> None:
    """Run one step on two images, and print the trainer's log."""
    images = [Image.new("RGB", (64, 64), colour) for colour in ("red", "blue")]
    prompt = [{"role": "user", "content": "Describe the image."}]  # TRL adds the image to it
    rows = Dataset.from_dict({"prompt": [prompt] * len(images), "image": images})
    on_gpu = torch.cuda.is_available()
    args = GRPOConfig(
        output_dir="run", per_device_train_batch_size=4, num_generations=2, max_completion_length=32, max_steps=1,
        use_cpu=not on_gpu, bf16=on_gpu, logging_steps=1, report_to=[], save_strategy="no",
    )  # fmt: skip
    reward = MSDReward("toy")  # MSDReward() for photographs; toy knows only colours
    trainer = GRPOTrainer(
        model=AutoModelForImageTextToText.from_pretrained(checkpoint),
        reward_funcs=reward,
        args=args,
        train_dataset=rows.cast_column("image", ImageColumn()),
        processing_class=AutoProcessor.from_pretrained(checkpoint),
    )
    trainer.train()
    for name, value in trainer.state.log_history[0].items():
        if name.startswith(("msd/", "rewards/")):
            print(f"{name}: {value:.3f}")
    print(reward.signature)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("expected one argument: a vision-language checkpoint, e.g. Qwen/Qwen2.5-VL-3B-Instruct")
    main(sys.argv[1])
