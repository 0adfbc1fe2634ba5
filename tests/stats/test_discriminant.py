"""The discriminant against scikit-learn's and loops; what must not change it, and what it cannot do."""

import math

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor

from unflip.errors import InputError
from unflip.stats import discriminant as module
from unflip.stats.discriminant import (
    SHRINKS,
    Discriminant,
    fit_discriminant,
    leave_group_out_log_posterior,
    tempered_nll,
    to_memberships,
)


def problem(seed: int = 0, classes: int = 4, dims: int = 6, per_class: int = 15) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes).repeat_interleave(torch.tensor([per_class + 3 * c for c in range(classes)]))
    centers = 2 * torch.randn(classes, dims, generator=random)
    stretch = torch.randn(dims, dims, generator=random)
    return centers[labels] + torch.randn(len(labels), dims, generator=random) @ stretch, labels


def soft(count: int, classes: int, seed: int = 5) -> Tensor:
    return (2 * torch.randn(count, classes, generator=torch.Generator().manual_seed(seed))).softmax(1)


def fit(features: Tensor, members: Tensor, classes: int, shrink: float = 0.1) -> Discriminant:
    return fit_discriminant(features.__getitem__, members, classes, shrink=shrink)


def leave_one_out(features: Tensor, members: Tensor, classes: int) -> Tensor:
    return leave_group_out_log_posterior(fit(features, members, classes), features.__getitem__, members)


def covariance_of(fitted: Discriminant) -> Tensor:
    unwhiten = torch.linalg.inv(fitted.whiten.double())
    covariance: Tensor = unwhiten @ unwhiten.T
    return covariance


@pytest.mark.parametrize("shrink", [0.01, 0.1, 0.5, 1.0])
def test_posteriors_are_those_of_scikit_learn(shrink: float) -> None:
    features, labels = problem()
    theirs = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrink).fit(features.numpy(), labels.numpy())
    new, _ = problem(1)
    ours = fit(features, labels, 4, shrink).log_posterior(new).exp()
    np.testing.assert_allclose(ours.numpy(), theirs.predict_proba(new.numpy()), atol=1e-4)


def test_members_of_several_classes_count_in_each_by_their_share() -> None:
    features, _ = problem(classes=3)
    shares, s = soft(len(features), 3), 0.3
    fitted = fit(features, shares, 3, shrink=s)
    h, t = features.double().numpy(), shares.double().numpy()
    pooled, means = np.zeros((6, 6)), []
    for c in range(3):
        means.append(sum(t[i, c] * h[i] for i in range(len(h))) / t[:, c].sum())
        for i in range(len(h)):
            pooled += t[i, c] * np.outer(h[i] - means[c], h[i] - means[c]) / len(h)
    sigma = (1 - s) * pooled + s * np.trace(pooled) / 6 * np.eye(6)
    np.testing.assert_allclose(covariance_of(fitted).numpy(), sigma, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(fitted.counts.numpy(), t.sum(0), rtol=1e-5)
    scores = np.array([
        [math.log(t[:, c].sum()) - (x - means[c]) @ np.linalg.solve(sigma, x - means[c]) / 2 for c in range(3)]
        for x in h
    ])  # fmt: skip
    expected = torch.from_numpy(scores).log_softmax(1).float()
    torch.testing.assert_close(fitted.log_posterior(features), expected, atol=2e-3, rtol=1e-3)


def test_classes_are_shares_of_one() -> None:
    features, labels = problem()
    by_class, by_share = (fit(features, members, 4) for members in (labels, to_memberships(labels, 4)))
    assert torch.equal(by_class.log_posterior(features), by_share.log_posterior(features))


def refitted(features: Tensor, labels: Tensor, group: Tensor, shrink: float, which: int = 0) -> Tensor:
    """Class probabilities of one of those left out, all others refitted; the trace is that of all examples."""
    h, classes, dims = features.double(), int(labels.max()) + 1, features.shape[1]
    means = torch.stack([h[labels == c].mean(0) for c in range(classes)])
    trace = float((h - means[labels]).square().sum()) / len(h)
    rest, own = h[~group], labels[~group]
    means = torch.stack([rest[own == c].mean(0) for c in range(classes)])
    within = rest - means[own]
    sigma = (1 - shrink) * within.T @ within / len(h) + shrink * trace / dims * torch.eye(dims).double()
    z = h[group][which] - means
    distances = (z * torch.linalg.solve(sigma, z.T).T).sum(1)
    found: Tensor = (own.bincount(minlength=classes).double().log() - distances / 2).softmax(0).float()
    return found


@pytest.mark.parametrize(("dims", "shrink"), [(6, 0.2), (6, 0.001), (40, 0.05), (6, 1.0)])
def test_leaving_out_is_refitting_without_the_example(dims: int, shrink: float) -> None:
    features, labels = problem(classes=3, per_class=6, dims=dims)
    fitted = fit(features, labels, 3, shrink=shrink)
    got = leave_group_out_log_posterior(fitted, features.__getitem__, labels)
    for i in range(len(labels)):
        expected = refitted(features, labels, torch.arange(len(labels)) == i, shrink)
        torch.testing.assert_close(got[i].exp(), expected, atol=5e-4, rtol=0)
    assert float((got - fitted.log_posterior(features)).abs().max()) > 0.5


def test_examples_of_a_group_are_group_together() -> None:
    features, labels = problem(classes=3, per_class=6)
    count = len(labels)
    twice, both, groups = features.repeat(2, 1), labels.repeat(2), torch.arange(count).repeat(2)
    fitted = fit(twice, both, 3, shrink=0.2)
    together = leave_group_out_log_posterior(fitted, twice.__getitem__, both, groups).exp()
    torch.testing.assert_close(together[:count], together[count:])
    for i in range(count):
        torch.testing.assert_close(together[i], refitted(twice, both, groups == i, 0.2), atol=5e-4, rtol=0)
    alone = leave_group_out_log_posterior(fitted, twice.__getitem__, both).exp()
    assert float((together - alone).abs().max()) > 0.1


def grouped(count: int, seed: int, sizes: int = 5) -> Tensor:
    """Groups of one to ``sizes`` examples at random places."""
    random = torch.Generator().manual_seed(seed)
    numbers = torch.arange(count).repeat_interleave(torch.randint(1, sizes + 1, (count,), generator=random))
    return numbers[:count][torch.randperm(count, generator=random)]


@pytest.mark.parametrize(("dims", "shrink"), [(6, 0.2), (6, 0.001), (40, 0.05), (6, 1.0)])
@pytest.mark.parametrize("apart", [0.0, 0.05, 1.0])
def test_a_group_of_examples_that_differ_is_group_exactly(dims: int, shrink: float, apart: float) -> None:
    """Members of a group are ``apart`` from each other, 1 as outliers are; some have other labels."""
    features, labels = problem(classes=3, per_class=8, dims=dims)
    groups = grouped(len(labels), seed=1)
    first = torch.stack([(groups == g).int().argmax() for g in groups.tolist()])
    features = features[first] + apart * (features - features[first])
    labels = torch.where(torch.arange(len(labels)) % 5 == 0, labels, labels[first])
    fitted = fit(features, labels, 3, shrink=shrink)
    got = leave_group_out_log_posterior(fitted, features.__getitem__, labels, groups).exp()
    for i, g in enumerate(groups.tolist()):
        which = int((groups[:i] == g).sum())
        torch.testing.assert_close(got[i], refitted(features, labels, groups == g, shrink, which), atol=1e-3, rtol=0)


def test_large_groups_are_group_as_small_ones_are(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = problem(classes=3, per_class=30, dims=4)
    groups = grouped(len(labels), seed=2, sizes=12)
    fitted = fit(features, labels, 3, shrink=0.05)
    for members in (labels, soft(len(labels), 3)):
        together = leave_group_out_log_posterior(fitted, features.__getitem__, members, groups)
        monkeypatch.setattr(module, "SMALL_GROUP", 2)  # those above the four features are summed up, in several blocks
        monkeypatch.setattr(module, "BLOCK_ROWS", 3)
        torch.testing.assert_close(
            leave_group_out_log_posterior(fitted, features.__getitem__, members, groups).exp(), together.exp(),
            atol=1e-4, rtol=0,
        )  # fmt: skip
        monkeypatch.undo()


def test_a_group_of_one_is_an_example_group() -> None:
    features, _ = problem(classes=3, per_class=6)
    shares, everywhere = soft(len(features), 3), torch.ones(len(features), dtype=torch.bool)
    fitted = fit(features, shares, 3, shrink=0.2)
    one = fitted.leave_one_out_log_posterior(features, shares, everywhere)
    group = fitted.leave_group_out_log_posterior(features[:, None], shares[:, None], everywhere[:, None])
    torch.testing.assert_close(group[:, 0], one, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("times", [2, 5])
def test_equal_examples_are_one_with_so_many_times_the_weight(times: int) -> None:
    features, _ = problem(classes=3, per_class=6)
    shares, s = soft(len(features), 3), 0.2
    copies, n = features.repeat_interleave(times, 0), times * len(features)
    members = shares.repeat_interleave(times, 0)
    fitted = fit(copies, members, 3, shrink=s)
    got = leave_group_out_log_posterior(fitted, copies.__getitem__, members, torch.arange(n) // times)
    means = members.double().T @ copies.double() / fitted.counts.double()[:, None]
    for i, (h, t) in enumerate(zip(features.double(), times * shares.double(), strict=True)):
        rest, u = fitted.counts.double() - t, h - t @ means / times
        sigma = covariance_of(fitted) - (1 - s) / n * float((t * fitted.counts / rest).sum()) * torch.outer(u, u)
        z = (fitted.counts / rest)[:, None] * (h - means)
        expected = (rest.log() - (z * torch.linalg.solve(sigma, z.T).T).sum(1) / 2).softmax(0).float()
        torch.testing.assert_close(got[times * i].exp(), expected, atol=5e-4, rtol=0)


@pytest.mark.parametrize("small", [64, 2])
def test_a_group_that_was_a_whole_class_leaves_the_others_finite(small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SMALL_GROUP", small)  # a group of eight is small, or large for six features
    features, labels = problem(classes=3, per_class=5)
    groups = torch.where(labels == 1, len(labels), torch.arange(len(labels)))
    fitted = fit(features, labels, 3, shrink=0.01)
    got = leave_group_out_log_posterior(fitted, features.__getitem__, labels, groups)
    assert bool((got[labels == 1, 1] == -math.inf).all())
    assert bool(got[:, [0, 2]].isfinite().all())


def test_members_of_several_classes_are_group_by_their_shares() -> None:
    """The loop takes each example out of means and counts, and out of the covariance as if it had one mean."""
    features, labels = problem(classes=3, per_class=6)
    shares, s = soft(len(labels), 3), 0.2
    fitted, n = fit(features, shares, 3, shrink=s), len(labels)
    got = leave_group_out_log_posterior(fitted, features.__getitem__, shares).exp()
    h, t, counts = features.double(), shares.double(), shares.double().sum(0)
    means = t.T @ h / counts[:, None]
    for i in range(n):
        others, scores = torch.arange(n) != i, []
        u, kappa = h[i] - t[i] @ means, float((t[i] * counts / (counts - t[i])).sum())
        sigma = covariance_of(fitted) - (1 - s) * kappa / n * torch.outer(u, u)
        for c in range(3):
            z = h[i] - t[others, c] @ h[others] / t[others, c].sum()
            scores.append(math.log(float(t[others, c].sum())) - float(z @ torch.linalg.solve(sigma, z)) / 2)
        torch.testing.assert_close(got[i], torch.tensor(scores).softmax(0), atol=5e-4, rtol=0)


def test_an_example_that_is_not_in_the_covariance_is_not_taken_out_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COVARIANCE_ROWS", 100)
    features, labels = problem(per_class=50)
    fitted, shares = fit(features, labels, 4), to_memberships(labels, 4)
    got = leave_group_out_log_posterior(fitted, features.__getitem__, labels)
    picked = torch.zeros(len(labels)).index_fill_(0, torch.from_numpy(np.linspace(0, 217, 100).astype(int)), 1.0)
    for some in (picked, 1 - picked):
        rows = some.nonzero()[:, 0]
        ones = torch.ones(len(rows))
        within, outside = (fitted.leave_one_out_log_posterior(features[rows], shares[rows], ones * x) for x in (1, 0))
        torch.testing.assert_close(got[rows], within if some is picked else outside)
        assert not torch.allclose(within, outside)


@pytest.mark.parametrize(("count", "dims"), [(300, 200), (1000, 500), (600, 60)])
def test_labels_that_mean_nothing_are_not_found_again(count: int, dims: int) -> None:
    """Labels drawn at random get no more than their share of the vote, where fitting with oneself gives far more."""
    random = torch.Generator().manual_seed(0)
    features, labels = torch.randn(count, dims, generator=random), torch.randint(10, (count,), generator=random)
    fitted = fit_discriminant(features.__getitem__, labels, 10, shrink=SHRINKS, given=labels)
    group = leave_group_out_log_posterior(fitted, features.__getitem__, labels)
    assert float((group.argmax(1) == labels).float().mean()) == pytest.approx(0.1, abs=0.05)
    assert float((fitted.log_posterior(features).argmax(1) == labels).float().mean()) > 0.3


def test_features_may_come_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = problem()
    members, asked = soft(len(labels), 4), []

    def fetch(rows: Tensor) -> Tensor:
        asked.append(len(rows))
        return features[rows]

    whole = fit(features, members, 4)
    expected = leave_group_out_log_posterior(whole, features.__getitem__, members)
    monkeypatch.setattr(module, "BLOCK_ROWS", 7)
    fitted = fit_discriminant(fetch, members, 4)
    got = leave_group_out_log_posterior(fitted, fetch, members)
    assert max(asked) == 7
    torch.testing.assert_close(got, expected, atol=1e-3, rtol=1e-3)
    rows = torch.tensor([30, 2, 2, 50, 9, 8, 7, 6, 5])
    torch.testing.assert_close(leave_group_out_log_posterior(fitted, fetch, members, rows=rows), got[rows])


def test_of_many_examples_evenly_spaced_ones_make_the_covariance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COVARIANCE_ROWS", 100)
    features, labels = problem(per_class=50)  # 218 examples; 16 per dimension are 96
    picked = np.linspace(0, 217, 100).astype(int)
    means = torch.stack([features[labels == c].mean(0) for c in range(4)])
    within = (features - means[labels])[picked].double()
    fitted = fit(features, labels, 4, shrink=1e-6)
    torch.testing.assert_close(covariance_of(fitted), within.T @ within / 100, rtol=1e-3, atol=1e-3)
    assert fitted.counts.tolist() == [50, 53, 56, 59]  # of all


def test_a_rotation_a_shift_and_a_scale_change_nothing() -> None:
    features, labels = problem()
    rotation, _ = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(2)))
    expected = leave_one_out(features, labels, 4).exp()
    for moved in (features @ rotation, features + 3.0, 1e-6 * features, 1e6 * features):
        torch.testing.assert_close(leave_one_out(moved, labels, 4).exp(), expected, atol=2e-3, rtol=0)


def test_classes_without_other_members_are_impossible() -> None:
    features, labels = problem(classes=3)
    labels[labels == 1] = 0
    labels[0] = 3
    fitted = fit(features, labels, 5)
    log_posterior = leave_group_out_log_posterior(fitted, features.__getitem__, labels)
    assert bool((log_posterior[:, [1, 4]] == -math.inf).all())
    assert float(log_posterior[0, 3]) == -math.inf  # its only member does not speak for itself
    assert bool(log_posterior[:, [0, 2]].isfinite().all())
    assert bool(log_posterior[1:, 3].isfinite().all())
    assert float(fitted.log_posterior(features[:1])[0, 3]) > math.log(0.01)
    torch.testing.assert_close(log_posterior.exp().sum(1), torch.ones(len(labels)))


def test_features_that_do_not_vary_leave_the_counts() -> None:
    labels = torch.tensor([0, 0, 0, 1])
    posterior = fit(torch.ones(4, 3), labels, 2).log_posterior(torch.ones(4, 3)).exp()
    torch.testing.assert_close(posterior, torch.tensor([0.75, 0.25]).expand(4, 2))


def surprise(features: Tensor, labels: Tensor, shrink: float) -> float:
    """The least mean of ``-log softmax(b log p)`` over temperatures, each example left out."""
    members, classes = labels, int(labels.max()) + 1
    fitted = fit(features, members, classes, shrink)
    log_probs = leave_group_out_log_posterior(fitted, features.__getitem__, members).clamp(min=-30).double()
    found = []
    for b in (0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0):
        loss = 0.0
        for row, label in zip((b * log_probs).tolist(), labels.tolist(), strict=True):
            loss += math.log(sum(map(math.exp, row))) - row[label]
        found.append(loss / len(labels))
    return min(found)


@pytest.mark.parametrize("dims", [4, 12, 40])
def test_of_several_shrinkages_the_one_that_surprises_least_is_taken(dims: int) -> None:
    features, labels = problem(dims=dims, per_class=20)
    shrinks = (0.001, 0.03, 0.3, 1.0)
    surprises = [surprise(features, labels, value) for value in shrinks]
    fitted = fit_discriminant(features.__getitem__, labels, 4, shrink=shrinks, given=labels)
    assert fitted.shrink == shrinks[int(np.argmin(surprises))]
    assert min(surprises) < max(surprises) - 1e-3
    alone = fit(features, labels, 4, fitted.shrink)
    assert torch.equal(fitted.log_posterior(features), alone.log_posterior(features))


def test_surprise_is_that_of_the_best_temperature() -> None:
    """Probabilities that are twice as sure as they should be are as good as the right ones."""
    random = torch.Generator().manual_seed(0)
    truth = torch.randn(2000, 3, generator=random).log_softmax(1)
    labels = truth.exp().multinomial(1, generator=random)[:, 0]
    exact = float(-truth.gather(1, labels[:, None]).mean())
    assert tempered_nll((2 * truth).log_softmax(1), labels) == pytest.approx(exact, rel=1e-5)
    assert math.isfinite(tempered_nll(torch.tensor([[0.0, -math.inf]]), torch.tensor([1])))


def test_bad_arguments_are_refused() -> None:
    features, labels = problem()
    for wrong in (math.nan, math.inf, 1e30):
        features[3, 1] = wrong
        with pytest.raises(InputError, match="hold NaN, infinity"):
            fit(features, labels, 4)


@pytest.mark.parametrize("most", [None, 0])
def test_a_class_that_leaves_as_a_whole_is_group_where_the_covariance_is_of_a_part(
    monkeypatch: pytest.MonkeyPatch, most: int | None
) -> None:
    monkeypatch.setattr(module, "COVARIANCE_ROWS", 3000)
    monkeypatch.setattr(module, "ROWS_PER_DIM", 1)
    if most is not None:
        monkeypatch.setattr(module, "SMALL_GROUP", most)
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(9000) % 2
    labels[torch.arange(0, 9000, 100)] = 2
    features = torch.randn(9000, 6, generator=random) + 3 * torch.eye(6)[labels]
    groups = torch.where(labels == 2, 0, torch.arange(1, 9001)).unique(return_inverse=True)[1]
    got = leave_group_out_log_posterior(fit(features, labels, 3), features.__getitem__, labels, groups).exp()
    gone = labels == 2
    rest, others = features[~gone], labels[~gone]
    expected = fit(rest, others, 3).log_posterior(features[gone]).exp()
    assert (
        float((got[gone] - expected).abs().mean()) < 0.05
    )  # another part makes 0.01; with the class's mean it was 0.3
