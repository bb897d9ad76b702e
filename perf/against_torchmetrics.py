"""Time from JPEG files to scores: MSD, and CLIPScore of torchmetrics with the same weights and images.

python perf/against_torchmetrics.py [--pairs 32] [--captions 5]      CLIP ViT-B/32 with random weights, one thread

Both run alternately; CPU time is measured, which depends little on other load.
"""

import argparse
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from os import cpu_count
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from synthetic_clip import BASE, make_checkpoint, make_rows
from transformers import CLIPModel

from msdscore.encoders.registry import load_encoder
from msdscore.rows.rules import pair_rows
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.rows import score_all


def clip_scores(folder, *, device, batch=64):
    """Return a function that computes CLIPScore per pair with torchmetrics, in our precision."""
    from torchmetrics.functional.multimodal.clip_score import _clip_score_update
    from transformers import CLIPProcessor

    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = CLIPModel.from_pretrained(folder, dtype=dtype).to(device).eval()
    processor = CLIPProcessor.from_pretrained(folder)

    class Adapted:
        """Model interface of torchmetrics, with the outputs of older library versions."""

        config = model.config

        def to(self, device):
            return self

        def get_image_features(self, pixels):
            return model.visual_projection(model.vision_model(pixel_values=pixels.to(dtype)).pooler_output)

        def get_text_features(self, ids, attention):
            output = model.text_model(input_ids=ids, attention_mask=attention)
            return model.text_projection(output.pooler_output)

    def tensor(path):
        return torch.from_numpy(np.array(Image.open(path).convert("RGB"))).permute(2, 0, 1).to(device)

    @torch.no_grad()
    def score(paths, captions):
        scores = []
        with ThreadPoolExecutor(cpu_count()) as pool:
            for first in range(0, len(paths), batch):
                images = list(pool.map(tensor, paths[first : first + batch]))
                values, _ = _clip_score_update(images, captions[first : first + batch], Adapted(), processor)
                scores += values.tolist()
        return scores

    return score


def msd_scores(pipeline, paths, captions):
    """Score every pair as a run over files does, with the captions of one image together."""
    images = list(dict.fromkeys(paths))
    owner = [images.index(path) for path in paths]
    return score_all(pipeline, pair_rows(images, captions, owner, sets=owner))


def timed(work):
    """Return the CPU time and the result of a function."""
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=32)
    parser.add_argument("--captions", type=int, default=1, help="captions per image")
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make_checkpoint(folder / "clip", "cpu", BASE)
        paths, captions = make_rows(folder, args.pairs)
        paths = [paths[number // args.captions] for number in range(args.pairs)]
        pipeline = Pipeline(load_encoder(str(folder / "clip"), device="cpu", dtype="float32"))
        clip_score, times = clip_scores(folder / "clip", device="cpu", batch=pipeline.batch_size), []
        msd_scores(pipeline, paths[:2], captions[:2]), clip_score(paths[:2], captions[:2])
        for _ in range(args.turns):
            (our_time, numbers), (their_time, scores) = (
                timed(lambda: msd_scores(pipeline, paths, captions)),
                timed(lambda: clip_score(paths, captions)),
            )
            times.append((our_time, their_time))
    our_time, their_time = (1e3 * min(column) / args.pairs for column in zip(*times, strict=True))
    gap = max(abs(100 * max(row.similarity, 0) - max(score, 0)) for row, score in zip(numbers, scores, strict=True))
    print(f"{args.pairs} pairs, {args.captions} per image, CLIP ViT-B/32, float32; CPU time per pair, best run")
    print(f"MSD with all columns {our_time:.1f} ms, torchmetrics' CLIPScore {their_time:.1f} ms")
    print(f"{their_time / our_time:.2f} times faster")
    print(f"cosine similarities differ by at most {gap / 100:.1e} (torchmetrics' processor may resize differently)")


if __name__ == "__main__":
    main()
