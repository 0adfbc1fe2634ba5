"""The two calibrators against their equations, with degenerate classes, and their options."""

import pydantic
import pytest
import torch
from torch import Tensor

from unflip.methods.mddc import DISTURBANCES, CovarianceCalibrator, CovarianceOptions, MeanCalibrator, MeanOptions
from unflip.stats.gaussians import ClassGaussians, class_means
from unflip.stats.robust_mean import agnostic_mean, class_agnostic_means, damping_weights, pooled_covariance


def features(n: int = 120, d: int = 6, seed: int = 0) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (n,), generator=rng)
    x = torch.randn(n, d, generator=rng) * torch.linspace(1, 3, d) + labels[:, None]
    return x, labels


def covariance(gaussians: ClassGaussians, c: int) -> Tensor:
    factor = gaussians.factors[c]
    return factor.T @ factor + gaussians.variances[c] * torch.eye(factor.shape[1])


@pytest.mark.parametrize("n", [24, 300])
def test_cddc_is_its_equations(n: int) -> None:
    x, labels = features(n)
    fitted = CovarianceCalibrator(CovarianceOptions()).fit(x, labels, 3)
    assert fitted.disturbance == 0.2
    for c in range(3):
        members = x[labels == c]
        torch.testing.assert_close(fitted.means[c], members.mean(0))
        z = members - members.mean(0)
        torch.testing.assert_close(covariance(fitted, c), z.T @ z / len(z), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["empirical", "isotropic", "damped"])
@pytest.mark.parametrize("n", [24, 300])
def test_mddc_is_the_robust_mean_with_the_covariance_about_it(n: int, kind: str) -> None:
    x, labels = features(n)
    x[:5] += 20
    fitted = MeanCalibrator(MeanOptions.model_validate({"covariance": kind, "damping": 2.0})).fit(x, labels, 3)
    assert fitted.disturbance == 0
    for c in range(3):
        members = x[labels == c]
        mean = agnostic_mean(members, damping=2.0).float()
        torch.testing.assert_close(fitted.means[c], mean, rtol=1e-3, atol=1e-3)
        z = members - fitted.means[c]
        expected = z.T @ z / len(z)
        if kind == "isotropic":
            expected = expected.diagonal().mean() * torch.eye(6)
        elif kind == "damped":
            expected = (z * damping_weights(members, damping=2.0)[:, None]).T @ z
        torch.testing.assert_close(covariance(fitted, c), expected, rtol=1e-4, atol=1e-3)


def test_mddc_can_be_read_as_printed() -> None:
    x, labels = features()
    options = MeanOptions(normalize="count", complement="plain")
    fitted = MeanCalibrator(options).fit(x, labels, 3)
    expected = agnostic_mean(x[labels == 1], normalize="count", complement="plain").float()
    torch.testing.assert_close(fitted.means[1], expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("calibrator", [MeanCalibrator(MeanOptions()), CovarianceCalibrator(CovarianceOptions())])
def test_a_class_that_empties_keeps_its_gaussian(calibrator: MeanCalibrator | CovarianceCalibrator) -> None:
    x, labels = features()
    first = calibrator.fit(x, labels, 4)
    assert first.present.tolist() == [True, True, True, False]
    labels[labels == 1] = 0
    labels[:2] = 2
    labels[2] = 1
    second = calibrator.fit(x, labels, 4, first)
    assert second.present.tolist() == [True, True, True, False]
    assert torch.equal(second.means[1], first.means[1])
    assert torch.equal(second.factors[1], first.factors[1])
    assert calibrator.fit(x, labels, 4).present.tolist() == [True, False, True, False]


@pytest.mark.parametrize("kind", ["empirical", "isotropic", "damped"])
def test_half_precision_and_degenerate_classes(kind: str) -> None:
    x, labels = features()
    x[:, 2] = 0.5
    x[labels == 2] = x[labels == 2][0]
    fitted = MeanCalibrator(MeanOptions.model_validate({"covariance": kind})).fit(x.half(), labels, 5)
    drawn, drawn_labels = fitted.sample(10, torch.Generator().manual_seed(0))
    assert drawn.isfinite().all()
    torch.testing.assert_close(drawn[drawn_labels == 2], x[labels == 2][:1].expand(10, 6), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        (MeanOptions, {"damping": 0.0}),
        (MeanOptions, {"covariance": "full"}),
        (MeanOptions, {"normalize": "max"}),
        (MeanOptions, {"dampening": 1.0}),
        (CovarianceOptions, {"disturbance": -0.1}),
        (CovarianceOptions, {"disturbance": "best"}),
    ],
)
def test_options_out_of_range_are_refused(
    options: type[MeanOptions | CovarianceOptions], wrong: dict[str, object]
) -> None:
    with pytest.raises(pydantic.ValidationError):
        options.model_validate(wrong)


def test_disturbances() -> None:
    assert list(CovarianceCalibrator(CovarianceOptions(disturbance=0.3)).disturbances) == [0.3]
    assert CovarianceCalibrator(CovarianceOptions(disturbance="auto")).disturbances == DISTURBANCES
    assert list(MeanCalibrator(MeanOptions()).disturbances) == [0.0]


def mixed_up(classes: int = 4, d: int = 12, per_class: int = 300) -> tuple[Tensor, Tensor, Tensor]:
    """Classes apart in their first coordinates, a quarter of each called by the next one's name; and the true means."""
    rng = torch.Generator().manual_seed(1)
    truth = torch.arange(classes).repeat_interleave(per_class)
    means = torch.zeros(classes, d)
    means[:, :classes] = 8 * torch.eye(classes)
    x = means[truth] + torch.randn(len(truth), d, generator=rng)
    wrong = torch.rand(len(truth), generator=rng) < 0.25
    return x, torch.where(wrong, (truth + 1) % classes, truth), means


def test_a_mean_is_robust_in_the_leading_directions_and_plain_in_all_others() -> None:
    x, labels, means = mixed_up()
    plain = class_means(x, labels, 4)
    found = MeanCalibrator(MeanOptions(n_components=4)).fit(x, labels, 4).means
    assert float((found - means).norm()) < 0.3 * float((plain - means).norm())
    _, vectors = torch.linalg.eigh(pooled_covariance(x, labels, plain))
    rest = vectors[:, :-4]
    torch.testing.assert_close(found @ rest, plain @ rest, atol=1e-4, rtol=0)
    for form in ({}, {"damping": 3.0, "normalize": "count", "complement": "plain"}):
        options = MeanOptions.model_validate(form | {"n_components": 4})
        found = MeanCalibrator(options).fit(x, labels, 4).means
        in_them = class_agnostic_means(x @ vectors[:, -4:], labels, 4, **form)  # type: ignore[arg-type]
        torch.testing.assert_close(found @ vectors[:, -4:], in_them, atol=1e-3, rtol=0)


def test_as_many_directions_as_there_are_is_the_paper_s_mean() -> None:
    x, labels, _ = mixed_up()
    whole = MeanCalibrator(MeanOptions()).fit(x, labels, 4).means
    torch.testing.assert_close(MeanCalibrator(MeanOptions(n_components=12)).fit(x, labels, 4).means, whole)
    torch.testing.assert_close(MeanCalibrator(MeanOptions(n_components=99)).fit(x, labels, 4).means, whole)


def test_robust_directions_survive_classes_of_none_one_and_equal_members() -> None:
    x, labels = features()
    labels[labels == 1] = 0
    labels[0] = 3
    x[labels == 2] = 1.0
    found = MeanCalibrator(MeanOptions(n_components=2)).fit(x, labels, 5)
    assert found.present.tolist() == [True, False, True, False, False]
    assert bool(found.means.isfinite().all())
    torch.testing.assert_close(found.means[2], torch.ones(6), atol=1e-3, rtol=0)
