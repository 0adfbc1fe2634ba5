"""Groups left out of a covariance that was estimated from part of the examples; the penalty of stacking."""

import math

import pytest
import torch
from torch import Tensor

from unflip.stats import discriminant as module
from unflip.stats.discriminant import (
    SHRINKS,
    evenly_spaced,
    fit_discriminant,
    leave_group_out_log_posterior,
    tempered_nll,
)
from unflip.stats.odds import _Fit, stack

CLASSES, DIMS, ROWS = 3, 4, 90
GRID = [0.0, 0.01, 0.03, 0.06, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]


def examples(seed: int = 0) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(ROWS) % CLASSES
    stretch = torch.randn(DIMS, DIMS, generator=random)
    return 2 * torch.eye(DIMS)[labels] + torch.randn(ROWS, DIMS, generator=random) @ stretch, labels


def by_hand(features: Tensor, labels: Tensor, group: Tensor, used: list[int], shrink: float, row: int) -> list[float]:
    """Class probabilities of one example, its group taken out of means, counts, and what the covariance had of it."""
    h, n = features.double(), len(used)
    means = torch.stack([h[labels == c].mean(0) for c in range(CLASSES)])
    pooled = torch.zeros(DIMS, DIMS).double()
    for i in used:
        pooled += torch.outer(h[i] - means[labels[i]], h[i] - means[labels[i]]) / n
    sigma = (1 - shrink) * pooled + shrink * pooled.trace() / DIMS * torch.eye(DIMS).double()
    members = [i for i in range(ROWS) if group[i] == group[row]]
    left = [int((labels == c).sum()) - sum(int(labels[i]) == c for i in members) for c in range(CLASSES)]
    lost = torch.zeros(DIMS, DIMS).double()
    for c in range(CLASSES):
        own = [h[i] - means[c] for i in members if labels[i] == c and i in used]
        for u in own:
            lost += torch.outer(u, u)
        if own:
            total = torch.stack(own).sum(0)
            lost += torch.outer(total, total) / left[c]
    sigma -= (1 - shrink) / n * lost
    scores = []
    for c in range(CLASSES):
        rest = [i for i in range(ROWS) if labels[i] == c and i not in members]
        z = h[row] - h[rest].mean(0)
        scores.append(math.log(left[c]) - float(z @ torch.linalg.solve(sigma, z)) / 2)
    return torch.tensor(scores).softmax(0).tolist()


@pytest.mark.parametrize("size", [1, 4, 9])
@pytest.mark.parametrize("small", [64, 0])
def test_a_group_leaves_the_covariance_only_what_it_had_of_it(
    monkeypatch: pytest.MonkeyPatch, size: int, small: int
) -> None:
    """In batches of groups, or one by one, as groups above the number of features are."""
    monkeypatch.setattr(module, "COVARIANCE_ROWS", 41)
    monkeypatch.setattr(module, "ROWS_PER_DIM", 1)
    monkeypatch.setattr(module, "SMALL_GROUP", small)
    features, labels = examples()
    group = torch.arange(ROWS) // size
    used = evenly_spaced(ROWS, 41, labels.device).tolist()
    fitted = fit_discriminant(features.__getitem__, labels, CLASSES, shrink=0.2)
    got = leave_group_out_log_posterior(fitted, features.__getitem__, labels, group).exp()
    for row in range(0, ROWS, 4):
        assert got[row].tolist() == pytest.approx(by_hand(features, labels, group, used, 0.2, row), abs=1e-3)


def test_groups_decide_which_shrinkage_is_taken() -> None:
    """Copies of an example speak for it unless they are left out with it: with them, too little shrinkage wins."""
    random = torch.Generator().manual_seed(0)
    features, labels = torch.randn(40, 30, generator=random), torch.randint(2, (40,), generator=random)
    twice, both, group = features.repeat(2, 1), labels.repeat(2), torch.arange(40).repeat(2)
    chosen = {}
    for groups in (None, group):
        losses = {}
        for shrink in SHRINKS:
            fitted = fit_discriminant(twice.__getitem__, both, 2, shrink=shrink)
            losses[shrink] = tempered_nll(leave_group_out_log_posterior(fitted, twice.__getitem__, both, groups), both)
        fitted = fit_discriminant(twice.__getitem__, both, 2, shrink=SHRINKS, given=both, groups=groups)
        assert fitted.shrink == min(losses, key=losses.__getitem__)
        chosen[groups is None] = fitted.shrink
    assert chosen[True] < chosen[False]


@pytest.mark.parametrize("factor", [0.1, 1.0, 4.0])
def test_the_score_of_weights_has_a_penalty(factor: float) -> None:
    random = torch.Generator().manual_seed(0)
    truth = (2 * torch.randn(500, 3, generator=random)).log_softmax(1)
    labels = truth.exp().multinomial(1, generator=random)[:, 0]
    view = (factor * truth).log_softmax(1)
    for e in (0.0, 0.2):
        score, weights = _Fit(view[None], labels, 3).at(e, torch.tensor([0.5]))
        own = (weights.double() * view.double()).softmax(1)[torch.arange(500), labels]
        likelihood = float(((1 - e) * own + e / 3).log().mean())
        penalty = 0.0005 * float(weights[0] - 0.5) ** 2
        assert score == pytest.approx(likelihood - penalty, abs=1e-5)
        if factor == 0.1:
            assert float(weights) == pytest.approx(4.0, abs=0.01)
            assert penalty > 5e-3


def test_of_equal_scores_the_smaller_noise_rate_is_taken() -> None:
    """Views that know nothing explain labels equally well at any rate."""
    nothing = torch.full((60, 3), 1 / 3).log()
    found = stack([nothing], torch.arange(60) % 3)
    assert found.uniform_noise_rate == 0
    assert float(found.weights) == pytest.approx(0.5, abs=1e-3)


@pytest.mark.parametrize("best", [0.0, 0.02, 0.12, 0.3, 0.46, 0.85, 0.93])
def test_noise_rates_are_tried_on_a_grid_then_between_its_points(monkeypatch: pytest.MonkeyPatch, best: float) -> None:
    tried: list[float] = []

    def at(self: _Fit, rate: float, weights: Tensor) -> tuple[float, Tensor]:
        tried.append(rate)
        return -abs(rate - best), torch.tensor([rate])

    monkeypatch.setattr(_Fit, "at", at)
    found = stack([torch.zeros(4, 3)], torch.zeros(4, dtype=torch.long))
    grid = [0.0, *GRID, 0.95]
    assert tried[: len(GRID)] == pytest.approx(GRID)
    place = min(range(1, len(grid) - 1), key=lambda i: abs(grid[i] - best))
    finer = [
        grid[place] + step * (grid[other] - grid[place]) for other in (place - 1, place + 1) for step in (1 / 3, 2 / 3)
    ]
    assert tried[len(GRID) :] == pytest.approx(finer)
    assert found.uniform_noise_rate == pytest.approx(min([*GRID, *finer], key=lambda rate: abs(rate - best)))
    assert float(found.weights) == pytest.approx(found.uniform_noise_rate)
    assert stack([torch.zeros(4, 3)], torch.zeros(4, dtype=torch.long), 0.77).uniform_noise_rate == 0.77
