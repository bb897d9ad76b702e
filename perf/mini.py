"""Speed of `mini` on a CPU: images per second, captions against images, and convolution and ReLU6 in one pass.

All in processor time over all threads, so that other work on the machine hardly counts.

python perf/mini.py                          needs msdscore[mini]; images come decoded
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
    """The best of several runs, after one to warm up."""
    work()
    taken = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return min(taken)


def main():
    encoder = load_encoder("mini", device="cpu")
    noise = np.random.RandomState(0)
    pictures = [Image.fromarray(noise.randint(0, 255, (240, 320, 3), dtype=np.uint8)) for _ in range(COUNT)]
    captions = [f"a dog number {number} runs on the wet sand of a beach" for number in range(COUNT)]
    # Of 5 to 17 words, as those that people write of one image: padding is not computed.
    mixed = [" ".join(["a dog runs on sand"] + ["wet"] * (number * 12 // 9)) for number in range(10)]
    one_pass = seconds(lambda: prepare_and_encode(encoder, pictures))
    lite2._fused = lambda: None
    two_passes = seconds(lambda: prepare_and_encode(encoder, pictures))
    read = seconds(lambda: encoder.encode_texts(captions))
    unequal = seconds(lambda: encoder.encode_texts(mixed))
    speed, wait = COUNT / one_pass, 1e3 * read / COUNT
    picture = 1e3 * one_pass / COUNT
    print(
        f"{torch.get_num_threads()} threads: {picture:.1f} ms per picture, {wait:.1f} ms per caption of processor time"
    )
    print(
        f"ten captions cost {10 * wait / picture:.2f} times a picture; one core reads {speed:.1f} pictures per second"
    )
    print(f"ten captions of 5 to 17 words cost {1e3 * unequal / picture:.2f} times a picture")
    print(f"convolution and ReLU6 in one pass: {two_passes / one_pass:.2f} times as fast")


if __name__ == "__main__":
    main()
