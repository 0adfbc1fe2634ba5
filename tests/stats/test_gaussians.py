"""Class Gaussians: moments of draws, factors, densities, files, and classes that cannot be fitted."""

from statistics import NormalDist

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from unflip.errors import InputError
from unflip.stats.gaussians import ClassGaussians, class_indices, class_means, covariance_factor, fit_gaussians


def mixed(n: int, d: int, seed: int = 0) -> Tensor:
    """Correlated features about a mean that is not zero."""
    rng = torch.Generator().manual_seed(seed)
    factors: Tensor = torch.randn(n, d, generator=rng) @ torch.randn(d, d, generator=rng) / d**0.5
    return factors + torch.arange(d) / 2


def covariance(gaussians: ClassGaussians, c: int) -> Tensor:
    d = gaussians.means.shape[1]
    factor = gaussians.factors[c].double()
    return factor.T @ factor + float(gaussians.variances[c]) * torch.eye(d).double() + gaussians.disturbance


def assert_moments(drawn: Tensor, mean: Tensor, sigma: Tensor) -> None:
    """Compare mean and covariance of N draws with the true ones, in units of their standard errors.

    Those are sqrt(S_ii / N) and sqrt((S_ii S_jj + S_ij²) / N). The bound is exceeded by one of all entries with
    probability 1e-6.
    """
    z, count = drawn.double() - mean, len(drawn)
    diagonal = sigma.diagonal()
    mean_error = diagonal.sqrt() / count**0.5
    covariance_error = ((diagonal * diagonal[:, None] + sigma.square()) / count).sqrt()
    floor = 1e-6 * float(diagonal.max())  # rounding, where a coordinate does not vary
    scores = torch.cat(
        [
            (z.mean(0).abs() - floor) / mean_error.clamp(min=1e-30),
            ((z.T @ z / count - sigma).abs() - floor).flatten() / covariance_error.flatten().clamp(min=1e-30),
        ]
    )
    assert float(scores.max()) < NormalDist().inv_cdf(1 - 1e-6 / (2 * len(scores)))


@pytest.mark.parametrize("isotropic", [False, True])
@pytest.mark.parametrize("disturbance", [0.0, 0.2, 1.5])
@pytest.mark.parametrize("members", [4, 9, 15, 60])  # below, above and far above the dimension
def test_draws_have_the_moments_of_the_members(members: int, disturbance: float, isotropic: bool) -> None:
    d = 7
    features = torch.cat([mixed(members, d, seed=1), mixed(members, d, seed=2) - 3])
    labels = torch.arange(2).repeat_interleave(members)
    fitted = fit_gaussians(features, labels, 2, isotropic=isotropic).with_disturbance(disturbance)
    drawn, drawn_labels = fitted.sample(20_000, torch.Generator().manual_seed(0))
    for c in range(2):
        x = features[labels == c].double()
        mean = x.mean(0)
        sigma = (x - mean).T @ (x - mean) / members
        if isotropic:
            sigma = sigma.diagonal().mean() * torch.eye(d).double()
        assert_moments(drawn[drawn_labels == c], mean, sigma + disturbance)


def test_given_means_and_weights_are_used() -> None:
    features, labels = mixed(40, 5).double(), torch.arange(40) % 2
    means = torch.randn(2, 5, generator=torch.Generator().manual_seed(1)).double()
    weights = [torch.rand(20, generator=torch.Generator().manual_seed(c)).double() for c in range(2)]
    fitted = fit_gaussians(features, labels, 2, means=means, weights=weights)
    for c in range(2):
        z = features[labels == c] - means[c]
        torch.testing.assert_close(fitted.means[c].double(), means[c], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(covariance(fitted, c), (z * weights[c][:, None]).T @ z, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n", [3, 16, 17, 200])
@pytest.mark.parametrize("kind", ["full", "constant columns", "dependent columns", "duplicates", "scales", "zero"])
def test_the_factor_gives_the_covariance_back(kind: str, n: int) -> None:
    rows = mixed(n, 8) / n**0.5
    if kind == "constant columns":
        rows[:, ::3] = 0
    elif kind == "dependent columns":
        rows[:, 4:] = rows[:, :4]
    elif kind == "duplicates":
        rows = rows[:2].repeat(n, 1)[:n]
    elif kind == "scales":
        rows = rows * torch.logspace(-5, 5, 8)
    elif kind == "zero":
        rows = rows * 0
    factor = covariance_factor(rows)
    sigma = rows.double().T @ rows.double()
    assert factor.dtype == torch.float32
    assert len(factor) <= max(16, min(n, 8))
    unit = sigma.diagonal().sqrt().clamp(min=1e-30)
    error = (factor.double().T @ factor.double() - sigma) / unit / unit[:, None]
    assert float(error.abs().max()) < 1e-4


def test_many_members_need_no_more_rows_than_dimensions() -> None:
    rows = mixed(500, 8)
    rows[:, 3] = 0
    assert covariance_factor(rows).shape == (8, 8)


def test_draws_follow_the_generator_and_the_order_of_classes() -> None:
    fitted = fit_gaussians(mixed(60, 4), torch.tensor([0, 2, 3]).repeat(20), 5)
    first, labels = fitted.sample(6, torch.Generator().manual_seed(1))
    again, _ = fitted.sample(6, torch.Generator().manual_seed(1))
    other, _ = fitted.sample(6, torch.Generator().manual_seed(2))
    assert labels.tolist() == [0] * 6 + [2] * 6 + [3] * 6
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.dtype == torch.float32
    assert fitted.sample(0, torch.Generator())[0].shape == (0, 4)


def test_another_disturbance_shifts_all_coordinates_of_the_same_draws() -> None:
    fitted = fit_gaussians(mixed(30, 4), torch.arange(30) % 2, 2)
    plain, _ = fitted.sample(50, torch.Generator().manual_seed(0))
    shifted, _ = fitted.with_disturbance(0.3).sample(50, torch.Generator().manual_seed(0))
    difference = shifted - plain
    torch.testing.assert_close(difference, difference[:, :1].expand_as(difference), rtol=0, atol=1e-5)
    assert float(difference.abs().max()) > 0.3


def test_classes_with_fewer_than_two_members_keep_their_last_gaussian_or_are_left_out() -> None:
    x = mixed(30, 4)
    before = fit_gaussians(x, torch.arange(30) % 3, 5, isotropic=True)
    labels = torch.zeros(30, dtype=torch.int64)
    labels[0], labels[1], labels[2:4] = 1, 3, 4
    after = fit_gaussians(x, labels, 5, previous=before)
    assert before.present.tolist() == [True, True, True, False, False]
    assert after.present.tolist() == [True, True, True, False, True]
    for c in (1, 2):
        assert torch.equal(after.means[c], before.means[c])
        torch.testing.assert_close(covariance(after, c), covariance(before, c))
    torch.testing.assert_close(after.means[4], x[2:4].mean(0))
    assert (after.means[3] == 0).all()
    assert after.sample(2, torch.Generator())[1].tolist() == [0, 0, 1, 1, 2, 2, 4, 4]


@pytest.mark.parametrize("dims", [1, 3])
def test_no_class_present(dims: int) -> None:
    fitted = fit_gaussians(torch.randn(2, dims), torch.tensor([0, 1]), 2)
    drawn, labels = fitted.sample(4, torch.Generator())
    assert drawn.shape == (0, dims)
    assert labels.shape == (0,)
    assert [factor.shape for factor in fitted.factors] == [(0, dims)] * 2


def test_half_precision_is_widened() -> None:
    x, labels = mixed(60, 4).half(), torch.arange(60) % 2
    half, single = fit_gaussians(x, labels, 2), fit_gaussians(x.float(), labels, 2)
    assert torch.equal(half.means, single.means)
    assert all(torch.equal(a, b) for a, b in zip(half.factors, single.factors, strict=True))


def test_what_is_not_finite_is_refused() -> None:
    x = mixed(30, 3)
    x[4, 1] = float("nan")
    with pytest.raises(InputError, match="hold NaN, infinity"):
        fit_gaussians(x, torch.arange(30) % 2, 2)


def test_a_state_gives_the_same_gaussians_back() -> None:
    x, labels = mixed(90, 4), torch.tensor([0, 0, 1, 1, 1, 1, 1, 1, 3]).repeat(10)
    fitted = fit_gaussians(x, labels, 5).with_disturbance(0.2)
    other = ClassGaussians.from_state_dict(fitted.state_dict())
    assert other.disturbance == 0.2
    assert torch.equal(other.present, fitted.present)
    a, b = (g.sample(3, torch.Generator().manual_seed(0)) for g in (fitted, other))
    assert torch.equal(a[0], b[0])
    assert torch.equal(a[1], b[1])


def test_a_state_is_a_copy() -> None:
    fitted = fit_gaussians(mixed(20, 3), torch.arange(20) % 2, 2)
    state = fitted.state_dict()
    before = fitted.means.clone()
    for value in state.values():
        value.zero_()
    assert torch.equal(fitted.means, before)
    assert fitted.present.all()


@given(st.lists(st.integers(0, 6), max_size=40), st.sampled_from([torch.int64, torch.int32, torch.uint8]))
def test_members_are_those_of_a_loop(labels: list[int], dtype: torch.dtype) -> None:
    members = class_indices(torch.tensor(labels, dtype=dtype), 7)
    assert [indices.tolist() for indices in members] == [
        [i for i, label in enumerate(labels) if label == c] for c in range(7)
    ]


def test_more_classes_than_a_short_integer_holds() -> None:
    members = class_indices(torch.tensor([40_000, 1, 40_000]), 50_000)
    assert members[40_000].tolist() == [0, 2]
    assert members[1].tolist() == [1]


@pytest.mark.parametrize("labels", [[-1, 0], [0, 3]])
def test_labels_out_of_range_are_named(labels: list[int]) -> None:
    with pytest.raises(InputError, match="must be from 0 to 2"):
        class_indices(torch.tensor(labels), 3)


def test_class_means_are_those_of_a_loop() -> None:
    features, labels = torch.randn(50, 4), torch.randint(3, (50,))
    for c, mean in enumerate(class_means(features, labels, 5)):
        members = features[labels == c]
        torch.testing.assert_close(mean, members.mean(0) if len(members) else torch.zeros(4))


def test_a_class_without_variance_does_not_take_it_from_others() -> None:
    features = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    features[::2] = 5.0
    gaussians = fit_gaussians(features, torch.arange(20) % 2, 2, isotropic=True)
    drawn, labels = gaussians.sample(200, torch.Generator().manual_seed(1))
    again, _ = gaussians.sample(200, torch.Generator().manual_seed(1))
    assert torch.equal(drawn, again)
    torch.testing.assert_close(drawn[labels == 0], torch.full((200, 3), 5.0))
    torch.testing.assert_close(drawn[labels == 1].var(), gaussians.variances[1], rtol=0.2, atol=0)
