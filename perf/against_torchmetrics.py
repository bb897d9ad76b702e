"""From JPEG files to numbers per pair: MSD by us and CLIPScore by torchmetrics, same weights and images, one run.

python perf/against_torchmetrics.py [--pairs 32] [--captions 5]      CLIP ViT-B/32 with random weights, one thread

Both ways take turns; the figure is processor time, so that other work on the machine hardly counts.
"""

import argparse
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from os import cpu_count
from pathlib import Path

import numpy as np
import torch
from made_up_clip import BASE, make_checkpoint, make_rows
from PIL import Image
from transformers import CLIPModel

from msdscore.encoders.registry import load_encoder
from msdscore.scoring.pipeline import Pipeline
from msdscore.scoring.stream import score_batches, split_pairs


def clip_scores(folder, *, device, batch=64):
    """A function from files and captions to CLIPScore per pair, by torchmetrics, in the precision that we use."""
    from torchmetrics.functional.multimodal.clip_score import _clip_score_update
    from transformers import CLIPProcessor

    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    model = CLIPModel.from_pretrained(folder, dtype=dtype).to(device).eval()
    processor = CLIPProcessor.from_pretrained(folder)

    class Adapted:
        """What torchmetrics asks of a model, with the tensors that it expects of older libraries."""

        config = model.config

        def to(self, device):
            return self

        def get_image_features(self, pixels):
            return model.visual_projection(model.vision_model(pixel_values=pixels.to(dtype)).pooler_output)

        def get_text_features(self, ids, attention):
            read = model.text_model(input_ids=ids, attention_mask=attention)
            return model.text_projection(read.pooler_output)

    def tensor(path):
        return torch.from_numpy(np.array(Image.open(path).convert("RGB"))).permute(2, 0, 1).to(device)

    @torch.no_grad()
    def score(paths, captions):
        scores = []
        with ThreadPoolExecutor(cpu_count()) as pool:
            for first in range(0, len(paths), batch):
                pictures = list(pool.map(tensor, paths[first : first + batch]))
                found, _ = _clip_score_update(pictures, captions[first : first + batch], Adapted(), processor)
                scores += found.tolist()
        return scores

    return score


def ours(pipeline, paths, captions):
    """All numbers of every pair, as a run over files makes them: captions of one image together."""
    pictures = list(dict.fromkeys(paths))
    owner = [pictures.index(path) for path in paths]
    asked = split_pairs(pictures, captions, owner, size=pipeline.batch_size)
    numbers = score_batches(pipeline, [one for _, one in asked])
    found = {
        row: one for (rows, _), some in zip(asked, numbers, strict=True) for row, one in zip(rows, some, strict=True)
    }
    return [found[row] for row in range(len(paths))]


def taken(work):
    start = time.process_time()
    found = work()
    return time.process_time() - start, found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=32)
    parser.add_argument("--captions", type=int, default=1, help="of every picture")
    parser.add_argument("--turns", type=int, default=3)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        make_checkpoint(folder / "clip", "cpu", BASE)
        paths, captions = make_rows(folder, asked.pairs)
        paths = [paths[number // asked.captions] for number in range(asked.pairs)]
        pipeline = Pipeline(load_encoder(str(folder / "clip"), device="cpu", dtype="float32"))
        theirs, times = clip_scores(folder / "clip", device="cpu", batch=pipeline.batch_size), []
        ours(pipeline, paths[:2], captions[:2]), theirs(paths[:2], captions[:2])
        for _ in range(asked.turns):
            (mine, numbers), (other, scores) = (
                taken(lambda: ours(pipeline, paths, captions)),
                taken(lambda: theirs(paths, captions)),
            )
            times.append((mine, other))
    mine, other = (1e3 * min(some) / asked.pairs for some in zip(*times, strict=True))
    gap = max(abs(100 * max(one.similarity, 0) - max(score, 0)) for one, score in zip(numbers, scores, strict=True))
    print(
        f"{asked.pairs} pairs, {asked.captions} per picture, CLIP ViT-B/32, float32; processor time per pair, best turn"
    )
    print(f"MSD and all its numbers {mine:.1f} ms, torchmetrics' CLIPScore {other:.1f} ms")
    print(f"{other / mine:.2f} times as fast")
    print(f"cosine similarities differ by {gap / 100:.1e} at most (torchmetrics' processor may resize otherwise)")


if __name__ == "__main__":
    main()
