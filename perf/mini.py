"""Speed of `mini` on a CPU: images per second, captions relative to images, and fused convolution and ReLU6.

CPU time over all threads, which depends little on other load.

python perf/mini.py                          needs msdscore[mini]; images are decoded before
"""

import time

import numpy as np
import torch
from PIL import Image

from msdscore.encoders.base import prepare_and_encode
from msdscore.encoders.mini import lite2
from msdscore.encoders.registry import load_encoder

COUNT = 16


def seconds(work, repeats=3):
    """Return the best of several runs, after a warm-up."""
    work()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def main():
    encoder = load_encoder("mini", device="cpu")
    noise = np.random.RandomState(0)
    images = [Image.fromarray(noise.randint(0, 255, (240, 320, 3), dtype=np.uint8)) for _ in range(COUNT)]
    captions = [f"a dog number {number} runs on the wet sand of a beach" for number in range(COUNT)]
    # 5 to 17 words, as in human captions; padding is not computed.
    mixed = [" ".join(["a dog runs on sand"] + ["wet"] * (number * 12 // 9)) for number in range(10)]
    one_pass = seconds(lambda: prepare_and_encode(encoder, images))
    lite2._fused = lambda: None
    two_passes = seconds(lambda: prepare_and_encode(encoder, images))
    caption_time = seconds(lambda: encoder.encode_texts(captions))
    mixed_time = seconds(lambda: encoder.encode_texts(mixed))
    speed, per_caption = COUNT / one_pass, 1e3 * caption_time / COUNT
    image = 1e3 * one_pass / COUNT
    print(f"{torch.get_num_threads()} threads: {image:.1f} ms per image, {per_caption:.1f} ms per caption of CPU time")
    print(f"ten captions cost {10 * per_caption / image:.2f} times an image; {speed:.1f} images per second and core")
    print(f"ten captions of 5 to 17 words cost {1e3 * mixed_time / image:.2f} times an image")
    print(f"fused convolution and ReLU6: {two_passes / one_pass:.2f} times faster")


if __name__ == "__main__":
    main()
