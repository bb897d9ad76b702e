"""Speed of scoring relative to a plain loop on the same embeddings in the same run.

python perf/scoring.py                       on the CPU
python perf/scoring.py --device cuda         on a GPU, with the fraction of a CLIP ViT-L/14 encoder's time
"""

import argparse
import json
import statistics
import time

import torch
from torch.nn.functional import normalize

from msdscore.core.divergence import diverge
from msdscore.core.embeddings import Embeddings
from msdscore.core.mixture import FitSettings

# patches, tokens, captions per image, dimension, components
SHAPES = [
    (49, 12, 1, 768, (3, 2)),
    (256, 12, 1, 768, (3, 2)),
    (49, 12, 10, 768, (3, 2)),
    (256, 12, 10, 768, (3, 2)),
    (256, 180, 1, 768, (5, 3)),
]
PAIRS = {"cpu": 320, "cuda": 8192}


# The method as a plain loop over pairs, the baseline.


def fit(points, components, kappa=20.0, iterations=20):
    size = len(points)
    means = points[_farthest_first(points, components)].clone()
    weights = torch.full((components,), 1.0 / components, device=points.device)
    for _ in range(iterations):
        logits = kappa * points @ means.T + weights.log()
        shares = logits.softmax(dim=1)
        mass = shares.sum(dim=0)
        weights = mass / size
        means = normalize(shares.T @ points, dim=1)
        dead = mass < 1e-6
        if dead.any():
            means[dead], weights[dead] = points[0], 1.0 / size
        weights = weights / weights.sum()
    return means, weights


def log_density(points, mixture, kappa=20.0):
    means, weights = mixture
    return torch.logsumexp(kappa * points @ means.T + weights.log(), dim=1)


def divergences(patches, tokens, components=(3, 2)):
    """Return coverage and support of one pair as Python floats."""
    image, text = fit(patches, components[0]), fit(tokens, components[1])
    coverage = (log_density(patches, image) - log_density(patches, text)).mean()
    support = (log_density(tokens, text) - log_density(tokens, image)).mean()
    return coverage.item(), support.item()


def _farthest_first(points, count):
    chosen = [0]
    while len(chosen) < count:
        nearest = (points @ points[chosen].T).amax(dim=1)
        chosen.append(int((nearest <= nearest.min() + 1e-4).to(torch.uint8).argmax()))
    return chosen


def point_set(points, mask, keys):
    """Return one side of a comparison; pooled vectors are not used."""
    return Embeddings(points, mask, points[:, 0], keys=keys)


def side(count, points, dim, device, dtype=torch.float32):
    vectors = normalize(torch.randn(count, points, dim, device=device), dim=-1).to(dtype)
    mask = torch.ones(count, points, dtype=torch.bool, device=device)
    return point_set(vectors, mask, torch.arange(count, device=device))


def seconds(work, device, repeats):
    """Return the best of several runs, which is least affected by other load."""
    times = []
    for _ in range(repeats):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times), statistics.median(times)


def compare(shape, device, dtype=torch.float32):
    patches, tokens, captions, dim, (image_k, text_k) = shape
    count = max(1, PAIRS[device] // captions)
    images, texts = side(count, patches, dim, device, dtype), side(count * captions, tokens, dim, device, dtype)
    image_of = torch.arange(count, device=device).repeat_interleave(captions)
    text_of = torch.arange(count * captions, device=device)
    options = {"image_fit": FitSettings(components=image_k), "text_fit": FitSettings(components=text_k)}

    def batched():
        return diverge(images, texts, image_of, text_of, **options)

    def one_by_one():
        for pair in range(min(10, count)):
            divergences(images.points[pair].float(), texts.points[pair * captions].float(), (image_k, text_k))

    result = batched()
    expected = divergences(images.points[0].float(), texts.points[0].float(), (image_k, text_k))
    assert abs(result.coverage[0].item() - expected[0]) < 1e-3
    assert abs(result.support[0].item() - expected[1]) < 1e-3
    one_by_one()
    ours = seconds(batched, device, 5)[0] / (count * captions)
    loop = seconds(one_by_one, device, 5)[0] / min(10, count)
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "patches": patches,
        "tokens": tokens,
        "captions": captions,
        "textbook_ms": loop * 1e3,
        "ours_us": ours * 1e6,
        "ratio": loop / ours,
    }


def encoder_share(batch=512):
    """Return the time of scoring relative to a CLIP ViT-L/14 in bfloat16 with random weights, on one batch."""
    from transformers import CLIPConfig, CLIPModel

    vision = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16}
    vision |= {"patch_size": 14, "image_size": 224}
    text = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
    config = CLIPConfig(vision_config=vision, text_config=text, projection_dim=768)
    with torch.device("cuda"):
        model = CLIPModel(config).to(torch.bfloat16).eval()
    pixels = torch.randn(batch, 3, 224, 224, device="cuda", dtype=torch.bfloat16)
    ids = torch.randint(1000, 40000, (batch, 14), device="cuda")
    ids[:, -1] = 49407

    def encode():
        with torch.no_grad():
            vision = model.vision_model(pixel_values=pixels).last_hidden_state[:, 1:]
            text = model.text_model(input_ids=ids).last_hidden_state[:, 1:-1]
            return model.visual_projection(vision).float(), model.text_projection(text).float()

    # As in the scorer: vectors that were computed in half precision are compared as float16.
    vision, text = (normalize(points, dim=-1).half() for points in encode())
    images, texts = (
        point_set(
            points, torch.ones(points.shape[:2], dtype=torch.bool, device="cuda"), torch.arange(batch, device="cuda")
        )
        for points in (vision, text)
    )
    numbers = torch.arange(batch, device="cuda")
    options = {"image_fit": FitSettings(components=3), "text_fit": FitSettings(components=2)}

    def score():
        return diverge(images, texts, numbers, numbers, **options)

    encode(), score()
    encoding, scoring = seconds(encode, "cuda", 10)[1], seconds(score, "cuda", 10)[1]
    return {
        "batch": batch,
        "encoder_us": encoding / batch * 1e6,
        "scoring_us": scoring / batch * 1e6,
        "share_percent": 100 * scoring / encoding,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    dtypes = [torch.float32, torch.bfloat16] if arguments.device == "cuda" else [torch.float32]
    rows = [compare(shape, arguments.device, dtype) for dtype in dtypes for shape in SHAPES]
    shares = [encoder_share(batch) for batch in (512, 2048)] if arguments.device == "cuda" else []
    if arguments.json:
        print(json.dumps({"scoring": rows, "encoder": shares}))
        return
    print(f"{'dtype':>9} {'patches':>8} {'tokens':>7} {'captions':>9} {'textbook':>12} {'batched':>12} {'ratio':>8}")
    for row in rows:
        print(
            f"{row['dtype']:>9} {row['patches']:>8} {row['tokens']:>7} {row['captions']:>9} "
            f"{row['textbook_ms']:>9.2f} ms {row['ours_us']:>9.1f} µs {row['ratio']:>7.0f}x"
        )
    for share in shares:
        print(f"CLIP ViT-L/14, batch {share['batch']}: {share['encoder_us']:.0f} µs per pair,", end=" ")
        print(f"scoring {share['scoring_us']:.2f} µs: {share['share_percent']:.2f} %")


if __name__ == "__main__":
    main()
