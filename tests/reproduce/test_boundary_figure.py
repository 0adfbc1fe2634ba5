"""The moved boundary: the best one against densities, fits against gradients, and which way draws move it."""

from pathlib import Path

import pytest
import torch
from torch.distributions import MultivariateNormal

from boundary_figure import COVARIANCE, MEANS, Boundaries, Line, draw_boundaries, simulate


@pytest.fixture(scope="module")
def noisy() -> Boundaries:
    return simulate(examples=500)


def angle(one: Line, other: Line) -> float:
    return float(torch.nn.functional.cosine_similarity(one.normal, other.normal, dim=0))


def test_the_best_boundary_is_where_both_densities_are_equal(noisy: Boundaries) -> None:
    points = 4 * torch.rand(1000, 2, generator=torch.Generator().manual_seed(0)) - 2
    density = [MultivariateNormal(mean, COVARIANCE).log_prob(points) for mean in MEANS]
    torch.testing.assert_close(points @ noisy.best.normal + noisy.best.offset, density[1] - density[0])
    assert torch.equal(noisy.best.sides(points), density[1] > density[0])


def test_the_plain_head_predicts_as_many_of_a_class_as_were_given(noisy: Boundaries) -> None:
    """Where the gradient of the cross-entropy by bias and weights is zero."""
    probs = (noisy.features @ noisy.plain.normal + noisy.plain.offset).sigmoid()
    torch.testing.assert_close(probs.mean(), noisy.given.float().mean(), atol=1e-4, rtol=0)
    residual = (probs - noisy.given)[:, None] * noisy.features
    assert float(residual.mean(0).abs().max()) < 1e-3


def test_wrong_labels_are_of_one_class_near_the_best_boundary(noisy: Boundaries) -> None:
    wrong = noisy.given != noisy.clean
    assert 0.1 < float(wrong.double().mean()) < 0.3
    assert bool((noisy.clean[wrong] == 1).all())
    distance = (noisy.features @ noisy.best.normal + noisy.best.offset).abs()
    assert float(distance[wrong].median()) < float(distance[~wrong].median())


def test_draws_move_the_boundary_towards_the_best_one(noisy: Boundaries) -> None:
    plain = noisy.agreement(noisy.plain)
    assert noisy.agreement(noisy.balanced) > plain + 0.03
    for moved in noisy.moved.values():
        assert len(moved.lines) == 10
        assert noisy.agreement(moved.lines[-1]) > plain + 0.03
        assert moved.lines[-1].offset > noisy.plain.offset  # back towards the class that lost labels
        assert bool((moved.drawn_labels.bincount() == 500).all())


def test_without_noise_the_boundary_stays() -> None:
    clean = simulate(examples=2000, passes=5, noise=None)
    assert torch.equal(clean.given, clean.clean)
    assert clean.agreement(clean.plain) > 0.98
    for moved in clean.moved.values():
        assert angle(moved.lines[-1], clean.best) > 0.95
        assert clean.agreement(moved.lines[-1]) > 0.95


def test_it_is_the_same_every_time() -> None:
    one, other = (simulate(examples=100, passes=1) for _ in range(2))
    assert torch.equal(one.features, other.features)
    assert torch.equal(one.moved["mddc"].lines[-1].normal, other.moved["mddc"].lines[-1].normal)
    assert not torch.equal(simulate(examples=100, passes=1, seed=1).plain.normal, one.plain.normal)


def test_a_moved_boundary(tmp_path: Path) -> None:
    draw_boundaries(tmp_path / "b.svg", simulate(examples=200, passes=2))
    text = (tmp_path / "b.svg").read_text()
    for label in ("wrong label", "best boundary", "draws from the Gaussians of cddc"):
        assert f"<!-- {label} -->" in text
