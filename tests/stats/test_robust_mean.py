"""AgnosticMean: the fast path against the plain recursion of Algorithm 1, its invariances, and what it is for."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from unflip.errors import InputError
from unflip.stats import robust_mean as module
from unflip.stats.gaussians import class_means
from unflip.stats.robust_mean import (
    Complement,
    Normalize,
    agnostic_mean,
    class_agnostic_means,
    damping_weights,
    pooled_covariance,
    robust_in_leading,
)

FORMS: list[tuple[Normalize, Complement]] = [
    ("sum", "weighted"),
    ("sum", "plain"),
    ("count", "weighted"),
    ("count", "plain"),
]


def fast(x: Tensor, damping: float = 1.0, normalize: Normalize = "sum", complement: Complement = "weighted") -> Tensor:
    """What the batched path finds for a single class."""
    labels = torch.zeros(len(x), dtype=torch.int64)
    return class_agnostic_means(x, labels, 1, damping=damping, normalize=normalize, complement=complement)[0]


def cloud(n: int, d: int, seed: int = 0, spread: float = 3.0) -> Tensor:
    """A Gaussian with a tenth of its points elsewhere, about a point that is not the origin; eigenvalues differ."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=rng, dtype=torch.float64) * torch.linspace(1, spread, d, dtype=torch.float64)
    x[: n // 10] += 6
    return x + 2


@pytest.mark.parametrize(("normalize", "complement"), FORMS)
@pytest.mark.parametrize(
    ("n", "d"),
    [(50, 8), (51, 7), (64, 64), (40, 65), (12, 33), (9, 40), (200, 16), (3, 2), (2, 6), (1, 5), (7, 1), (1101, 9)],
)
def test_it_is_algorithm_1(n: int, d: int, normalize: Normalize, complement: Complement) -> None:
    x = cloud(n, d)
    found = fast(x, normalize=normalize, complement=complement)
    expected = agnostic_mean(x, normalize=normalize, complement=complement)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-7, atol=1e-7)


@given(n=st.integers(1, 40), d=st.integers(1, 24), seed=st.integers(0, 10**6), damping=st.floats(0.3, 5))
@settings(max_examples=60)
def test_it_is_algorithm_1_for_any_shape(n: int, d: int, seed: int, damping: float) -> None:
    x = cloud(n, d, seed)
    np.testing.assert_allclose(
        fast(x, damping=damping).numpy(), agnostic_mean(x, damping=damping), rtol=1e-5, atol=1e-5
    )


def test_weights_so_small_that_the_shortcut_for_few_examples_is_not_taken() -> None:
    x = cloud(30, 50)
    x[0] += 1e3
    np.testing.assert_allclose(fast(x).numpy(), agnostic_mean(x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("d", [3, 30, 90])
@pytest.mark.parametrize(("normalize", "complement"), FORMS)
def test_classes_side_by_side_are_each_class_alone(d: int, normalize: Normalize, complement: Complement) -> None:
    sizes = [41, 44, 40, 1, 43, 0, 42, 2, 40, 90]
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))]
    x = cloud(len(labels), d)
    found = class_agnostic_means(x, labels, len(sizes), normalize=normalize, complement=complement)
    for c, size in enumerate(sizes):
        if size:
            expected = agnostic_mean(x[labels == c], normalize=normalize, complement=complement)
            np.testing.assert_allclose(found[c].numpy(), expected, rtol=1e-6, atol=1e-6)
        else:
            assert found[c].isnan().all()


def test_a_class_longer_than_a_chunk() -> None:
    x = cloud(9001, 5)
    np.testing.assert_allclose(fast(x).numpy(), agnostic_mean(x), rtol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("n", "d"), [(400, 32), (40, 64)])
def test_single_and_half_precision_agree_with_double_far_within_the_standard_error(
    n: int, d: int, dtype: torch.dtype
) -> None:
    x = cloud(n, d).to(dtype)
    found = fast(x)
    assert found.dtype == torch.float32
    standard_error = float((x.double().var(0).sum() / n).sqrt())
    assert float((found - fast(x.double())).norm()) < 0.02 * standard_error


@pytest.mark.parametrize("complement", ["weighted", "plain"])
@pytest.mark.parametrize(("n", "d"), [(60, 9), (20, 30)])
def test_it_moves_with_translation_scaling_and_permutation_of_axes(n: int, d: int, complement: Complement) -> None:
    x = cloud(n, d)
    mean = fast(x, complement=complement)
    shift = torch.linspace(-50, 80, d, dtype=torch.float64)
    order = torch.randperm(d, generator=torch.Generator().manual_seed(3))
    for moved, expected in [(x + shift, mean + shift), (1e-3 * x, 1e-3 * mean), (-40 * x, -40 * mean)]:
        torch.testing.assert_close(fast(moved, complement=complement), expected, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(fast(x[:, order], complement=complement), mean[order], rtol=1e-7, atol=1e-9)


def test_the_order_of_examples_does_not_matter() -> None:
    x = cloud(60, 9)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(3))
    torch.testing.assert_close(fast(x[order]), fast(x), rtol=1e-9, atol=1e-9)


def test_the_printed_weights_depend_on_the_origin() -> None:
    x = cloud(60, 8)
    moved = fast(x + 100, normalize="count") - 100
    assert float((moved - fast(x, normalize="count")).norm()) > 1


@pytest.mark.parametrize("kind", ["far", "near", "tail"])
def test_rotation_moves_it_by_less_than_the_standard_error(kind: str) -> None:
    n, d = 2000, 64
    x = contaminated(n, d, 0.1, kind, seed=4).double()
    rng = torch.Generator().manual_seed(5)
    rotation, _ = torch.linalg.qr(torch.randn(d, d, generator=rng, dtype=torch.float64))
    difference = fast(x @ rotation) @ rotation.T - fast(x)
    assert float(difference.norm()) < 0.5 * (d / n) ** 0.5


def contaminated(n: int, d: int, fraction: float, kind: str, seed: int) -> Tensor:
    """N(0, I), where a fraction is a cluster 3 away in every coordinate, or 3 in all, or has Cauchy's tails."""
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=rng)
    wrong = x[: round(fraction * n)]
    if kind == "far":
        wrong += 3
    elif kind == "near":
        wrong += 3 / d**0.5
    else:
        wrong /= torch.randn(len(wrong), 1, generator=rng).abs()
    return x


@pytest.mark.parametrize("d", [16, 128, 512])
@pytest.mark.parametrize("fraction", [0.1, 0.2])
@pytest.mark.parametrize("kind", ["far", "near", "tail"])
def test_it_is_nearer_to_the_mean_than_the_sample_mean_is(kind: str, fraction: float, d: int) -> None:
    x = contaminated(4500, d, fraction, kind, seed=0)
    ours, sample = float(fast(x).norm()), float(x.mean(0).norm())
    assert ours < (sample if kind == "near" else sample / 2)


@pytest.mark.parametrize("n", [1, 2, 5, 40])
def test_members_that_all_coincide(n: int) -> None:
    x = torch.linspace(-1, 1, 12).expand(n, 12)
    torch.testing.assert_close(fast(x), x[0], rtol=0, atol=0)


def test_constant_columns_and_duplicates() -> None:
    x = cloud(30, 10).repeat(4, 1)
    x[:, ::3] = 7
    mean = fast(x)
    np.testing.assert_allclose(mean.numpy(), agnostic_mean(x), rtol=1e-6, atol=1e-6)
    assert (mean[::3] == 7).all()


def test_large_offsets_cost_no_precision_beyond_the_features_own() -> None:
    x = (cloud(300, 20) * 64).round() / 64  # exact in float32, with the offset too
    torch.testing.assert_close(fast(x.float() + 4096) - 4096, fast(x.float()), rtol=0, atol=2e-3)


def test_neither_result_nor_setting_depend_on_the_number_of_threads() -> None:
    x, labels = cloud(800, 24).float(), torch.arange(800) % 8
    threads = torch.get_num_threads()
    try:
        found = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.append(class_agnostic_means(x, labels, 8))
            assert torch.get_num_threads() == count
        assert torch.equal(found[0], found[1])
        assert torch.equal(found[0], found[2])
    finally:
        torch.set_num_threads(threads)


def test_gradients_are_neither_needed_nor_made() -> None:
    x = cloud(20, 4).requires_grad_()
    assert not fast(x).requires_grad


@pytest.mark.parametrize("normalize", ["sum", "count"])
def test_damping_weights(normalize: Normalize) -> None:
    x = cloud(31, 6)
    distance = (x - x.median(0).values).square().sum(1)
    weights = torch.exp(-distance / (2.5 * x.var(0, correction=0).sum()))
    expected = weights / (weights.sum() if normalize == "sum" else 31)
    torch.testing.assert_close(damping_weights(x, damping=2.5, normalize=normalize), expected)


def test_no_members_have_no_weights() -> None:
    assert damping_weights(torch.zeros(0, 3)).shape == (0,)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("d", [1, 6])
def test_what_is_not_finite_is_refused(value: float, d: int) -> None:
    x = torch.randn(10, d)
    x[3, 0] = value
    with pytest.raises(InputError, match="hold NaN, infinity"):
        fast(x)


def test_labels_out_of_range_are_refused() -> None:
    with pytest.raises(InputError, match="labels must be from 0 to 1"):
        class_agnostic_means(torch.randn(10, 3), torch.arange(10) % 3, 2)


@pytest.mark.parametrize("n", [50, 8192])  # the latter takes several rounds
def test_the_pooled_covariance_is_that_of_a_loop(n: int) -> None:
    random = torch.Generator().manual_seed(0)
    features, labels = torch.randn(n, 3, generator=random) + 5, torch.randint(3, (n,), generator=random)
    expected = torch.zeros(3, 3)
    for c in range(3):
        members = features[labels == c]
        expected += torch.cov(members.T, correction=0) * len(members) / n
    torch.testing.assert_close(pooled_covariance(features, labels, class_means(features, labels, 3)), expected)


def test_the_pooled_covariance_of_very_many_features_is_that_of_a_fixed_part_of_them() -> None:
    random = torch.Generator().manual_seed(0)
    scale = torch.tensor([1.0, 3.0, 0.1])
    features = torch.randn(100_000, 3, generator=random) * scale
    labels = torch.arange(100_000) % 10  # an order that picking every tenth would see one class of
    features += labels[:, None]
    pooled = pooled_covariance(features, labels, class_means(features, labels, 10))
    torch.testing.assert_close(pooled / (scale * scale[:, None]), torch.eye(3), rtol=0, atol=0.05)
    assert torch.equal(pooled, pooled_covariance(features, labels, class_means(features, labels, 10)))


def test_a_class_without_examples_has_the_plain_mean_in_all_directions() -> None:
    features, labels = cloud(60, 5).float(), torch.arange(60) % 2 * 2  # none of class 1
    means = robust_in_leading(features, labels, 3, 2)
    assert torch.equal(means[1], class_means(features, labels, 3)[1])
    assert means.isfinite().all()


@pytest.mark.parametrize("form", [{"damping": 0.2}, {"normalize": "count"}, {"complement": "plain"}])
def test_leading_directions_have_robust_means_of_the_same_form(form: Any) -> None:
    features, labels = cloud(90, 5).float(), torch.arange(90) % 3
    plain = class_means(features, labels, 3)
    leading = torch.linalg.eigh(pooled_covariance(features, labels, plain)).eigenvectors[:, -2:]
    robust = class_agnostic_means(features @ leading, labels, 3, **form)
    means = robust_in_leading(features, labels, 3, 2, **form)
    torch.testing.assert_close(means @ leading, robust, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(means, robust_in_leading(features, labels, 3, 2), rtol=1e-3, atol=1e-3)


def test_coordinates_in_blocks_have_the_same_means(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = cloud(90, 8), torch.arange(90) % 3
    whole = class_agnostic_means(features, labels, 3)
    monkeypatch.setattr(module, "BLOCK_VALUES", 2 * 90)  # two coordinates of all classes
    torch.testing.assert_close(class_agnostic_means(features, labels, 3), whole)
