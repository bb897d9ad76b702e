"""The method as a plain per-pair loop in torch, the baseline of `perf/scoring.py`."""

import torch
from torch.nn.functional import normalize


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
