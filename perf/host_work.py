"""Host overhead of scoring on a GPU, per caption, image and row, measured with towers that compute nothing.

python perf/host_work.py          CPU time in microseconds, best of several runs; needs no GPU

A CLIP checkpoint whose towers immediately return vectors of eight numbers, images of 16 x 16 pixels, and captions of 8
to 14 words in requests of 256, as on a GPU. `worst_words` is the search for the three words per caption that shards
store. `rows_of_jsonl` and `rows_of_tar` are the other work of a run over files: reading, planning, writing;
`rows_of_tar_ahead` if another process reads the tar, as on a GPU. `launches` is the additional dispatch time per pair
of transformers' CLIP ViT-L/14 towers: 12 layers per 256 texts, 24 per 256 images. Copies of pixels are not included.
"""

import argparse
import json
import random
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import torch
from runs import run_file, run_shards
from synthetic_clip import SMALL, WORDS, make_captions, make_checkpoint, make_rows
from torch import nn
from transformers import CLIPConfig, CLIPModel

from msdscore.encoders.base import Prepared
from msdscore.encoders.preprocessing import view_of
from msdscore.encoders.registry import load_encoder
from msdscore.forms.base import Measurement, Numbers
from msdscore.forms.paper import Paper
from msdscore.run import shards
from msdscore.scoring.decoder import Decoded
from msdscore.scoring.pipeline import Pipeline

SIZE, DIM, PASSES = 256, 8, 12


class ConstantTower(nn.Module):
    """A tower that immediately returns `positions` vectors per item, or one per token id."""

    def __init__(self, positions=None):
        super().__init__()
        self.positions = positions

    def forward(self, input_ids=None, pixel_values=None, attention_mask=None):
        items = pixel_values if input_ids is None else input_ids
        states = torch.ones(len(items), self.positions or items.shape[1], DIM)
        states[..., 0] = torch.linspace(-1, 1, states.shape[1])
        return SimpleNamespace(last_hidden_state=states, pooler_output=states[:, 0])


def without_towers(folder):
    """Load the encoder of a checkpoint without its networks."""
    encoder = load_encoder(str(folder), device="cpu", dtype="float32")
    model = encoder.model
    side = model.config.vision_config.image_size // model.config.vision_config.patch_size
    model.text_model, model.vision_model = ConstantTower(), ConstantTower(side * side + 1)
    model.text_projection = model.visual_projection = nn.Identity()
    encoder.preprocessing = replace(encoder.preprocessing, resize=16, crop=(16, 16))
    return encoder


def best(work, count, *, passes=PASSES):
    """Return microseconds of CPU time per item; `work` is called with the index of the run."""
    times = []
    for number in range(passes):
        start = time.process_time()
        work(number)
        times.append(time.process_time() - start)
    return 1e6 * min(times) / count


def texts(pipeline, captions):
    """Measure `Embedder.texts` on new captions."""
    parts = [captions[first : first + SIZE] for first in range(0, len(captions), SIZE)]
    return best(lambda number: pipeline.embedder.texts(parts[number]), SIZE)


def punctuated_captions(seed):
    """Return captions with capitals, punctuation, and occasional out-of-vocabulary words."""
    draw = random.Random(seed)
    rare = [f"{word}{suffix}" for word in WORDS for suffix in WORDS]
    captions = [draw.choices(WORDS, k=draw.randint(8, 14)) for _ in range(PASSES * SIZE)]
    for words in captions:
        if draw.random() < 0.2:
            words[-1] = draw.choice(rare)
    return [f"{' '.join(words)}.".capitalize() for words in captions]


def worst(pipeline, captions):
    """Measure the search for the least supported words of a batch."""
    texts = pipeline.embedder.texts(captions[:SIZE])
    layouts = [texts.vectors.layout[row] for row in texts.rows]
    terms = torch.rand(SIZE, max(len(layout.spans) for layout in layouts), generator=torch.Generator().manual_seed(0))
    none = torch.zeros(SIZE, 1)
    measured = Measurement(none, none, none, none, (), layouts, captions[:SIZE], SimpleNamespace(support_terms=terms))
    return best(lambda number: Paper().worst(measured, 3), SIZE)


def images(pipeline):
    """Measure `Embedder.images` of one batch."""
    view = view_of(pipeline.encoder.preprocessing, (640, 480))
    # As Pillow decodes them: row-major, with the channels innermost.
    decoded = [Decoded(Prepared(np.zeros((16, 16, 3), np.uint8).transpose(2, 0, 1), view)) for _ in range(SIZE)]
    return best(lambda number: pipeline.embedder.images(decoded), SIZE)


def constant_scores(pipeline, batches, *, worst=0):
    """Return constant scores, instead of `stream_batches`."""
    for batch in batches:
        values = dict.fromkeys(("similarity", *Paper().columns, "msd"), 0.1) | {"length": 12, "windows": 1}
        yield batch, [Numbers(dict(values)) for _ in batch.captions]


def rows(pipeline, folder, count, run):
    """Measure the other work of a run over files: reading, planning, writing."""
    with patch("msdscore.scoring.rows.stream_batches", constant_scores):
        return best(lambda number: run(pipeline, folder, folder / f"{run.__name__}.parquet"), count, passes=4)


def launches():
    """Measure the Python and dispatch time of the towers per pair, in batches of 256 texts and 256 images."""
    small = {"hidden_size": DIM, "intermediate_size": DIM, "num_attention_heads": 1, "projection_dim": DIM}
    ids = {"vocab_size": 100, "bos_token_id": 98, "eos_token_id": 99, "pad_token_id": 99}
    text = {**small, **ids, "num_hidden_layers": 12}
    vision = {**small, "num_hidden_layers": 24, "patch_size": 16, "image_size": 16}
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=DIM)).eval()
    tokens, pixels = torch.full((1, 3), 99), torch.zeros(1, 3, 16, 16)
    with torch.no_grad():
        texts_time = best(lambda number: model.text_model(input_ids=tokens), 1)
        images_time = best(lambda number: model.vision_model(pixel_values=pixels), 1)
    return {"launches_texts": texts_time / SIZE, "launches_images": images_time / SIZE}


def measure(folder):
    make_checkpoint(folder / "clip", "cpu", SMALL)
    pipeline = Pipeline(without_towers(folder / "clip"), batch_size=SIZE)
    count = 4096
    make_rows(folder, count, size=(16, 16))
    yield "texts", texts(pipeline.remembering_texts(), make_captions(PASSES * SIZE, seed=1))
    yield "texts_as_written", texts(pipeline.remembering_texts(), punctuated_captions(2))
    yield "worst_words", worst(pipeline, make_captions(SIZE, seed=1))
    yield "images", images(pipeline)
    yield "rows_of_jsonl", rows(pipeline, folder, count, run_file)
    yield "rows_of_tar", rows(pipeline, folder, count, run_shards)
    # As on a GPU: another process reads the tar, and its CPU time is not counted.
    read = shards._read
    with patch("msdscore.run.shards._read", lambda *args, ahead=None: read(*args, ahead=True)):
        yield "rows_of_tar_ahead", rows(pipeline, folder, count, run_shards)
    yield from launches().items()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, value in measure(Path(folder)):
            results[name] = value
            print(f"{name:<20} {value:8.1f} us", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
