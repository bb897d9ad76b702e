"""Speed and bitwise reproducibility of the resident training of `mini`, with random networks and data.

python perf/training.py --device cuda            about half a minute on a large GPU
"""

import argparse
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch

from msdscore_lab.align.aligner import learning_rate, make_optimiser, moving_average
from msdscore_lab.align.objective import Parts, objective
from msdscore_lab.align.repeatable import deterministic_kernels, draw, seeded
from msdscore_torch.aligned.heads import SideDims
from msdscore_torch.aligned.lite2 import Lite2
from msdscore_torch.aligned.minilm import MiniLM
from msdscore_torch.tensors import Features

sys.path.insert(0, str(Path(__file__).parents[1] / "weights" / "recipe"))

from train_mini.batches import ResidentBatches
from train_mini.images import ResidentImages
from train_mini.model import MiniAligner, TunedTrunk
from train_mini.recipe import load_mini
from train_mini.sampling import Pools
from train_mini.terms import TERMS, MiniStep
from train_mini.texts import FlatTexts, TextPool

WORDS, CLASSES, IMAGES, EPOCHS, ALL = 12_000, 80, 4096, 12, 28_700


class Images:
    """Lite2 with random weights."""

    side, grid = 288, 12

    def __init__(self, device):
        torch.manual_seed(0)
        self.device, self.network = device, Lite2()
        for parameter in self.network.parameters():
            torch.nn.init.normal_(parameter, std=0.05)
        self.network = self.network.eval().requires_grad_(False).to(device).to(memory_format=torch.channels_last)
        self._trunk = TunedTrunk(self.network, 1, grid=self.grid)

    @torch.no_grad()
    def see(self, pixels):
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            return self._trunk(pixels)


class Texts:
    """MiniLM with random weights."""

    def __init__(self, device):
        torch.manual_seed(1)
        self.device, self.network = device, MiniLM().eval().requires_grad_(False).to(device)

    @torch.no_grad()
    def read(self, ids, mask, places, kept):
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            states = self.network(ids, mask)
        pooled = (states[-1].float() * mask.unsqueeze(-1)).sum(dim=1) / mask.sum(dim=1, keepdim=True)
        index = places.unsqueeze(-1).expand(-1, -1, states[0].shape[2])
        local = torch.cat([states[level].gather(1, index) for level in (0, 1, 2, 6)], dim=-1)
        return Features(local, kept, pooled, whole=Features(torch.cat([states[2], states[6]], dim=-1), mask))


def make_pool(chance, texts, each, length):
    """Return random texts; about half of their tokens belong to content words."""
    tokens = texts * each * length
    words = np.where(chance.random(tokens) < 0.5, chance.zipf(1.3, tokens).clip(max=WORDS) - 1, -1)
    sizes, counts = np.full(texts * each, length), np.full(texts, each)
    arrays = [chance.integers(1000, 30000, tokens), words, sizes, counts]
    return FlatTexts(*(values.astype(np.int32) for values in arrays))


def make_batches(recipe, device):
    chance = np.random.default_rng(0)
    towers = Images(device), Texts(device)
    shapes = {"captions": (5, 12), "machine": (1, 12), "joined": (1, 36), "short": (2, 8), "long": (2, 60)}
    sizes = {kind: (IMAGES, *shape) for kind, shape in shapes.items()}
    sizes |= {"negatives": (5 * IMAGES, 2, 12), "classes": (CLASSES, 5, 4)}
    pools = {kind: TextPool(make_pool(chance, *size), towers[1]) for kind, size in sizes.items()}
    pixels = torch.from_numpy(chance.integers(0, 255, (IMAGES, 224, 224, 3), dtype=np.uint8)).to(device)
    return ResidentBatches(
        recipe=recipe,
        towers=towers,
        images=ResidentImages(pixels, torch.zeros(IMAGES, dtype=torch.bool, device=device)),
        pools=Pools(**pools),
        labels=torch.from_numpy(chance.integers(-1, 2, (IMAGES, WORDS), dtype=np.int8)).to(device),
        counts=torch.ones(WORDS, device=device),
        references=torch.randn(IMAGES, 384, device=device),
        train=torch.arange(IMAGES, device=device),
        near=chance.integers(0, IMAGES, (IMAGES, 40)),
        objects=torch.rand(IMAGES, CLASSES, device=device) < 0.04,
        annotated=torch.ones(IMAGES, dtype=torch.bool, device=device),
        bad={},
    )


def run(recipe, batches, device, steps, *, fixed_order):
    """Train and return seconds per step without the first three, and the weights."""
    image = batches.towers[0]
    trunk = TunedTrunk(image.network, recipe.train.tune, grid=image.grid) if recipe.train.tune else None
    dims = SideDims(1752, 1752), SideDims(1536, 768, 384)
    with seeded(recipe.seed, torch.device("cpu")):
        aligner = MiniAligner(recipe, *dims, words=WORDS, classes=CLASSES, trunk=trunk)
    aligner.to(device).train()
    optimiser, average = make_optimiser(aligner, recipe.train), moving_average(aligner, recipe.train.average)
    resident = (batches.batches, batches.per_epoch, batches.bad)
    parts = Parts(recipe, *resident, aligner, TERMS, step_type=MiniStep)
    times = []
    with deterministic_kernels(device) if fixed_order else nullcontext():
        for step, batch in enumerate(batches.batches(0, steps)):
            for group in optimiser.param_groups:
                group["lr"] = learning_rate(step, steps=steps, spec=recipe.train) * group["lr_factor"]
            with seeded(draw(0, "step", step), device):
                objective(parts, batch)[0].backward()
            torch.nn.utils.clip_grad_norm_(aligner.parameters(), recipe.train.clip)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            average.update_parameters(aligner)
            if device.type == "cuda" and step in (2, steps - 1):
                torch.cuda.synchronize()
            times.append(time.perf_counter())
    return (times[-1] - times[2]) / (steps - 3), [value.detach().cpu() for value in aligner.state_dict().values()]


class Busy:
    """GPU utilisation, sampled by nvidia-smi."""

    def __enter__(self):
        self.samples, self._stop = [], threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self):
        ask = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
        while not self._stop.wait(0.3):
            self.samples.append(int(subprocess.run(ask, capture_output=True, text=True, check=True).stdout.split()[0]))

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--tune", type=int, nargs="+", default=[4, 0], help="last stages of the image network to train")
    parser.add_argument("--set", action="append", default=[], help="change of the recipe, e.g. train.batch=64")
    options = parser.parse_args()
    device, changes = torch.device(options.device), ["sample.held_out=0", *options.set]
    for tune in options.tune:
        recipe = load_mini(changes=[*changes, f"train.tune={tune}"])
        batches = make_batches(recipe, device)
        for fixed_order in (True, False):
            with Busy() if device.type == "cuda" else nullcontext() as busy:
                seconds, weights = run(recipe, batches, device, options.steps, fixed_order=fixed_order)
            used = f", busy {np.mean(busy.samples[2:]):.0f} %" if device.type == "cuda" and busy.samples[2:] else ""
            total = ALL * EPOCHS / recipe.train.batch * seconds
            print(
                f"tune {tune}, sums {'in fixed order' if fixed_order else 'in any order'}: {seconds:.3f} s per step, ",
                end="",
            )
            print(f"{ALL:,} x {EPOCHS} epochs in {total:.0f} s{used}", flush=True)
            if fixed_order:
                again = run(recipe, batches, device, options.steps, fixed_order=True)[1]
                same = all(torch.equal(first, second) for first, second in zip(weights, again, strict=True))
                print(f"  identical bits in two runs: {same}")
    if device.type == "cuda":
        print(f"memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")


if __name__ == "__main__":
    main()
