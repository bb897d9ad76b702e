"""Random clustered points on the sphere, padded and masked."""

import torch

from msdscore.core.embeddings import Embeddings, real_points
from msdscore.core.mixture import log_density


def point_set(points, mask, keys):
    """Return one side of a comparison; pooled vectors are not used."""
    return Embeddings(points, mask, points[:, 0], keys=keys)


def directions(generator, *shape, dtype=torch.float64):
    vectors = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return torch.nn.functional.normalize(vectors, dim=-1).to(dtype)


def ragged(sizes, dim, *, seed=0, dtype=torch.float64, extra=0, garbage=3.0):
    """Return one clustered item per size, with finite garbage in the padding."""
    generator = torch.Generator().manual_seed(seed)
    width = max(sizes) + extra
    points = garbage * torch.randn(len(sizes), width, dim, generator=generator, dtype=torch.float64)
    mask = torch.zeros(len(sizes), width, dtype=torch.bool)
    for row, size in enumerate(sizes):
        centres = directions(generator, 3, dim)
        members = centres[torch.arange(size) % 3] + 0.6 * directions(generator, size, dim)
        points[row, :size] = torch.nn.functional.normalize(members, dim=-1)
        mask[row, :size] = True
    keys = torch.randint(0, 2**62, (len(sizes),), generator=generator)
    return point_set(points.to(dtype), mask, keys)


def take(side, index):
    return point_set(side.points[index], side.mask[index], side.keys[index])


def terms(points, mask, *, own, other):
    """Return the term of each real point of KL(own‖other), from the formula."""
    solid = real_points(points, mask)
    terms = (log_density(own, solid) - log_density(other, solid)) / mask.sum(dim=1, keepdim=True).clamp_min(1)
    return terms.masked_fill(~mask, 0.0)
