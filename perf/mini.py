"""Speed of `mini` on a CPU: ONNX Runtime and torch side by side, images, captions, and pairs by captions per image.

CPU time over all threads, which depends little on other load; the runtimes take turns, so that it slows both.

python perf/mini.py [--threads 1]            needs msdscore[torch]; images are decoded before
"""

import argparse
import time

import numpy as np
from PIL import Image

from msdscore import Scorer, threads
from msdscore.encoders.registry import load_encoder

COUNT, ROUNDS = 16, 4


def seconds(work):
    """CPU seconds of one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def pair_times(noise):
    """CPU milliseconds per pair on ONNX Runtime, of new images: one and ten captions per image, and long captions."""
    scorer, times = Scorer(device="cpu"), []
    scorer.score(new_images(noise, 1)[0], "a dog")
    short, long = "a dog {} runs on the wet sand of a beach", "a dog {} runs on the wet sand of a beach and " * 18
    for captions, text in ((1, short), (10, short), (1, long)):
        best = []
        for _ in range(2):
            images = new_images(noise, 8)
            texts = [text.replace("{}", str(noise.randint(1 << 20))) for _ in range(len(images) * captions)]
            owner = [number // captions for number in range(len(texts))]
            best.append(
                seconds(lambda images=images, texts=texts, owner=owner: scorer.score_batch(images, texts, owner=owner))
            )
        times.append(1e3 * min(best) / len(texts))
    return times


def new_images(noise, count):
    return [Image.fromarray(noise.randint(0, 255, (240, 320, 3), dtype=np.uint8)) for _ in range(count)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    threads.use(parser.parse_args().threads)
    encoders = {name: load_encoder("mini", device="cpu", runtime=name) for name in ("onnx", "torch")}
    threads.use(threads.count())  # torch has been imported
    noise = np.random.RandomState(0)
    images = new_images(noise, COUNT)
    captions = [f"a dog number {number} runs on the wet sand of a beach" for number in range(COUNT)]
    # 5 to 17 words, as in human captions; padding is not computed.
    mixed = [" ".join(["a dog runs on sand"] + ["wet"] * (number * 12 // 9)) for number in range(10)]
    times = {name: [] for name in encoders}
    for _ in range(ROUNDS + 1):
        for name, encoder in encoders.items():
            ready = [encoder.prepare(image) for image in images]
            works = (
                lambda encoder=encoder, ready=ready: [encoder.encode_images([image]) for image in ready],
                lambda encoder=encoder, ready=ready: encoder.encode_images(ready),
                lambda encoder=encoder: [encoder.encode_texts([caption]) for caption in captions],
                lambda encoder=encoder: encoder.encode_texts(captions),
                lambda encoder=encoder: encoder.encode_texts(mixed),
            )
            times[name].append([seconds(work) for work in works])
    rows = ("image, alone", f"image, of {COUNT}", "caption, alone", f"caption, of {COUNT}", "caption of 5 to 17 words")
    sizes = (COUNT, COUNT, COUNT, COUNT, len(mixed))
    best = {
        name: [1e3 * min(column) / size for column, size in zip(zip(*rounds[1:], strict=True), sizes, strict=True)]
        for name, rounds in times.items()
    }
    print(f"{threads.count()} threads, milliseconds of CPU time{'':8}ONNX Runtime   torch   ratio")
    for row, onnx, torch in zip(rows, best["onnx"], best["torch"], strict=True):
        print(f"{row:<44}{onnx:>12.1f}{torch:>8.1f}{torch / onnx:>8.2f}")
    ratio = len(mixed) * best["onnx"][4] / best["onnx"][1]
    print(f"ten captions of 5 to 17 words take {ratio:.2f} times an image, on ONNX Runtime")
    one, ten, long = pair_times(noise)
    print(
        f"a pair takes {one:.1f} ms with one caption per image, {ten:.1f} ms with ten ({one / ten:.1f} times the "
        f"pairs), {long:.1f} ms with one of 180 tokens ({one / long:.2f} times)"
    )


if __name__ == "__main__":
    main()
