"""Reference implementation of the method: one pair at a time, without batches, masks or Gram matrices.

Tests compare `msdscore.core` with it. It follows Algorithm 1 of the paper, then computes the two divergences as means of
differences of log densities.
"""

import numpy as np


def normalise(vectors):
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-6)


def fit(points, seeds, kappa=20.0, iterations=20):
    """Run EM from seeds: the first half initialises the components, the second half restarts dead ones."""
    size, components = len(points), len(seeds) // 2
    means = points[seeds[:components]].copy()
    weights = np.full(components, 1.0 / components, dtype=points.dtype)
    for _ in range(iterations):
        logits = kappa * points @ means.T + np.log(weights)
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        mass = shares.sum(axis=0)
        weights = mass / size
        means = normalise(shares.T @ points)
        for k in range(components):
            if mass[k] < 1e-6:
                means[k] = points[seeds[components + k]]
                weights[k] = 1.0 / size
        weights = weights / weights.sum()
    return means, weights


def log_density(points, mixture, kappa=20.0):
    means, weights = mixture
    logits = kappa * points @ means.T + np.log(weights)
    top = logits.max(axis=1, keepdims=True)
    return (top + np.log(np.exp(logits - top).sum(axis=1, keepdims=True)))[:, 0]


def divergence_terms(points, own, other, kappa=20.0):
    return (log_density(points, own, kappa) - log_density(points, other, kappa)) / len(points)


def divergences(patches, tokens, patch_seeds, token_seeds, kappa=20.0, iterations=20):
    """Return coverage and support of one pair."""
    image = fit(patches, patch_seeds, kappa, iterations)
    text = fit(tokens, token_seeds, kappa, iterations)
    coverage = divergence_terms(patches, image, text, kappa).sum()
    support = divergence_terms(tokens, text, image, kappa).sum()
    return float(coverage), float(support)


def farthest_first(points, count, near_tie=1e-4):
    """Return the first point, then repeatedly the point that is least similar to the selected ones."""
    chosen = [0]
    while len(chosen) < min(count, len(points)):
        nearest = (points @ points[chosen].T).max(axis=1)
        chosen.append(int(np.argmax(nearest <= nearest.min() + near_tie)))
    return [chosen[i % len(chosen)] for i in range(count)]


def uncertainty(similarities, temperature=0.2):
    size = len(similarities)
    if size == 1:
        return 1.0
    scaled = np.asarray(similarities, dtype=np.float64) / temperature
    shares = np.exp(scaled - scaled.max())
    return float(np.clip(size / (size - 1) * (1 - shares.max() / shares.sum()), 0.0, 1.0))
