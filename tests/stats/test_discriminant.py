"""The discriminant against scikit-learn's and a loop; what must not change it, and what it cannot do."""

import math

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor

from unflip.errors import ConfigError, InputError
from unflip.stats.discriminant import fit_discriminant


def problem(seed: int = 0, classes: int = 4, dims: int = 6, per_class: int = 15) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes).repeat_interleave(torch.tensor([per_class + 3 * c for c in range(classes)]))
    centres = 2 * torch.randn(classes, dims, generator=random)
    stretch = torch.randn(dims, dims, generator=random)
    return centres[labels] + torch.randn(len(labels), dims, generator=random) @ stretch, labels


@pytest.mark.parametrize("shrink", [0.01, 0.1, 0.5])
def test_posteriors_are_those_of_scikit_learn(shrink: float) -> None:
    features, labels = problem()
    theirs = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrink).fit(features.numpy(), labels.numpy())
    new, _ = problem(1)
    ours = fit_discriminant(features, labels, 4, shrink=shrink).posterior(new)
    assert np.allclose(ours.numpy(), theirs.predict_proba(new.numpy()), atol=1e-4)


def test_no_example_votes_for_itself() -> None:
    """The loop takes each example out of its class's mean and count, with the covariance as it is."""
    features, labels = problem(classes=3, per_class=6)
    fitted = fit_discriminant(features, labels, 3, shrink=0.2)
    covariance = torch.linalg.inv(fitted.whiten.double()) @ torch.linalg.inv(fitted.whiten.double()).T
    precision = torch.linalg.inv(covariance)
    got = fitted.posterior(features, labels)
    for i, h in enumerate(features.double()):
        scores = []
        for c in range(3):
            members = (labels == c) & (torch.arange(len(labels)) != i)
            z = h - features[members].double().mean(0)
            scores.append(math.log(int(members.sum())) - float(z @ precision @ z) / 2)
        expected = torch.tensor(scores).softmax(0)
        assert torch.allclose(got[i], expected.float(), atol=1e-4)


def test_leaving_out_removes_the_pull_of_the_own_label() -> None:
    """Labels that mean nothing get no more than their share of the vote, where fitting with oneself gives far more."""
    random = torch.Generator().manual_seed(0)
    features, labels = torch.randn(600, 60, generator=random), torch.randint(10, (600,), generator=random)
    fitted = fit_discriminant(features, labels, 10)
    own = (fitted.posterior(features).argmax(1) == labels).float().mean()
    held_out = (fitted.posterior(features, labels).argmax(1) == labels).float().mean()
    assert float(own) > 0.3
    assert float(held_out) < 0.15


def test_a_rotation_a_shift_and_a_scale_change_nothing() -> None:
    features, labels = problem()
    rotation, _ = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(2)))
    expected = fit_discriminant(features, labels, 4).posterior(features, labels)
    for moved in (features @ rotation, features + 3.0, 1e-6 * features, 1e6 * features):
        got = fit_discriminant(moved, labels, 4).posterior(moved, labels)
        assert torch.allclose(got, expected, atol=2e-3)


def test_a_class_without_members_is_never_named_and_an_only_member_stays_in() -> None:
    features, labels = problem(classes=3)
    labels[labels == 1] = 0
    labels[0] = 3
    posterior = fit_discriminant(features, labels, 5).posterior(features, labels)
    assert bool(posterior.isfinite().all())
    assert float(posterior[:, [1, 4]].max()) == 0
    assert float(posterior[0, 3]) > 0.01


def test_features_that_do_not_vary_leave_the_counts() -> None:
    labels = torch.tensor([0, 0, 0, 1])
    posterior = fit_discriminant(torch.ones(4, 3), labels, 2).posterior(torch.ones(4, 3))
    assert torch.allclose(posterior, torch.tensor([0.75, 0.25]).expand(4, 2))


def test_bad_arguments_are_refused() -> None:
    features, labels = problem()
    with pytest.raises(ConfigError, match="shrink must be above 0"):
        fit_discriminant(features, labels, 4, shrink=0.0)
    features[3, 1] = float("nan")
    with pytest.raises(InputError, match="hold NaN, infinity"):
        fit_discriminant(features, labels, 4)
