import pytest
import torch

from msdscore.core.embeddings import masked_mean, real_points, unit
from point_sets import ragged


def test_unit_normalises_huge_and_tiny_vectors():
    vectors = torch.tensor([[3e30, 4e30], [3e-30, 4e-30], [-1.0, 0.0]])
    assert torch.allclose(unit(vectors), torch.tensor([[0.6, 0.8], [0.6, 0.8], [-1.0, 0.0]]))


def test_zero_stays_zero():
    assert torch.equal(unit(torch.zeros(2, 3)), torch.zeros(2, 3))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_normalised_in_float32(dtype):
    vectors = torch.randn(5, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    result = unit(vectors)
    assert result.dtype == torch.float32
    assert torch.allclose(result.norm(dim=-1), torch.ones(5), atol=1e-6)


def test_garbage_in_the_padding_changes_nothing():
    clean, dirty = ragged([3, 5], 8, garbage=0.0), ragged([3, 5], 8, garbage=1e6)
    points = torch.where(clean.mask.unsqueeze(-1), clean.points, dirty.points)
    assert torch.equal(masked_mean(clean.points, clean.mask), masked_mean(points, clean.mask))
    assert torch.equal(real_points(clean.points, clean.mask), real_points(points, clean.mask))


def test_masked_mean_is_the_plain_mean_direction():
    side = ragged([4], 6)
    expected = side.points[0, :4].mean(dim=0)
    assert torch.allclose(masked_mean(side.points, side.mask)[0], expected / expected.norm())
