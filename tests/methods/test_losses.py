"""Every loss against the formula written out slowly, and at its limits."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from unflip.errors import ConfigError
from unflip.methods.losses import (
    GCELoss,
    SLLoss,
    cross_entropy,
    generalized_cross_entropy,
    reverse_cross_entropy,
    symmetric_cross_entropy,
)

LOGITS = arrays(np.float64, st.tuples(st.integers(1, 5), st.integers(2, 6)), elements=st.floats(-20, 20))
SEEDS = st.integers(0, 1000)
POWERS = st.floats(0.01, 1.0)
LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "ce": cross_entropy,
    "gce": lambda logits, labels: generalized_cross_entropy(logits, labels, 0.7),
    "mae": lambda logits, labels: generalized_cross_entropy(logits, labels, 1.0),
    "rce": lambda logits, labels: reverse_cross_entropy(logits, labels, -4.0),
    "sl": lambda logits, labels: symmetric_cross_entropy(logits, labels, 0.1, 1.0, -4.0),
}


def labels_for(logits: np.ndarray, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, logits.shape[1], len(logits))


def slow_softmax(row: np.ndarray) -> list[float]:
    exponentials = [math.exp(value) for value in row]
    return [value / sum(exponentials) for value in exponentials]


def slow(loss: Callable[[list[float], int], float], logits: np.ndarray, labels: np.ndarray) -> list[float]:
    return [loss(slow_softmax(row), int(label)) for row, label in zip(logits, labels, strict=True)]


def check(fast: Tensor, expected: list[float]) -> None:
    torch.testing.assert_close(fast, torch.tensor(expected, dtype=torch.float64), rtol=1e-7, atol=1e-7)


@settings(max_examples=30)
@given(LOGITS, SEEDS)
def test_cross_entropy_is_minus_log_p_of_the_label(logits: np.ndarray, seed: int) -> None:
    labels = labels_for(logits, seed)
    expected = slow(lambda probs, label: -math.log(probs[label]), logits, labels)
    check(cross_entropy(torch.tensor(logits), torch.tensor(labels)), expected)


@settings(max_examples=30)
@given(LOGITS, SEEDS, POWERS)
def test_generalized_cross_entropy_is_its_formula(logits: np.ndarray, seed: int, q: float) -> None:
    labels = labels_for(logits, seed)
    expected = slow(lambda probs, label: (1 - probs[label] ** q) / q, logits, labels)
    check(generalized_cross_entropy(torch.tensor(logits), torch.tensor(labels), q), expected)


@settings(max_examples=30)
@given(LOGITS, SEEDS, st.floats(-10, -0.1))
def test_reverse_cross_entropy_sums_over_the_one_hot_label_with_its_zeros_replaced(
    logits: np.ndarray, seed: int, log_zero: float
) -> None:
    labels = labels_for(logits, seed)

    def formula(probs: list[float], label: int) -> float:
        return -sum(p * (0.0 if j == label else log_zero) for j, p in enumerate(probs))

    check(reverse_cross_entropy(torch.tensor(logits), torch.tensor(labels), log_zero), slow(formula, logits, labels))


@settings(max_examples=30)
@given(LOGITS, SEEDS, st.floats(0, 10), st.floats(0, 10))
def test_symmetric_cross_entropy_is_the_weighted_sum_with_a_clamped_one_hot_label(
    logits: np.ndarray, seed: int, alpha: float, beta: float
) -> None:
    labels = labels_for(logits, seed)

    def formula(probs: list[float], label: int) -> float:
        one_hot = [max(float(j == label), math.exp(-4.0)) for j in range(len(probs))]
        one_hot[label] = 1.0
        reverse = -sum(p * math.log(target) for p, target in zip(probs, one_hot, strict=True))
        return alpha * -math.log(probs[label]) + beta * reverse

    fast = symmetric_cross_entropy(torch.tensor(logits), torch.tensor(labels), alpha, beta, -4.0)
    check(fast, slow(formula, logits, labels))


@settings(max_examples=30)
@given(LOGITS, SEEDS)
def test_generalized_cross_entropy_becomes_cross_entropy_as_q_vanishes(logits: np.ndarray, seed: int) -> None:
    x, y = torch.tensor(logits), torch.tensor(labels_for(logits, seed))
    torch.testing.assert_close(generalized_cross_entropy(x, y, 1e-9), cross_entropy(x, y), rtol=1e-6, atol=1e-6)


@settings(max_examples=30)
@given(LOGITS, SEEDS)
def test_generalized_cross_entropy_at_one_is_one_minus_p(logits: np.ndarray, seed: int) -> None:
    x, y = torch.tensor(logits), torch.tensor(labels_for(logits, seed))
    p = x.softmax(1).gather(1, y[:, None])[:, 0]
    torch.testing.assert_close(generalized_cross_entropy(x, y, 1.0), 1 - p)
    one_hot = torch.nn.functional.one_hot(y, x.shape[1])
    torch.testing.assert_close(generalized_cross_entropy(x, y, 1.0), (x.softmax(1) - one_hot).abs().sum(1) / 2)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("scale", [0.0, 50.0, 1e3, 1e6, 1e30])
def test_extreme_logits_give_finite_losses_and_gradients(name: str, scale: float) -> None:
    logits = torch.tensor([[scale, 0.0, -scale], [-scale, scale, 0.0]], requires_grad=True)
    for labels in ([0, 0], [2, 1], [1, 2]):
        loss = LOSSES[name](logits, torch.tensor(labels))
        assert loss.shape == (2,)
        assert loss.isfinite().all()
        assert (loss >= 0).all()
        (gradient,) = torch.autograd.grad(loss.sum(), logits)
        assert gradient.isfinite().all()


@pytest.mark.parametrize("p", [1e-12, 1e-6, 1e-3, 0.5, 0.999999])
def test_the_gradient_of_generalized_cross_entropy_is_that_of_cross_entropy_times_p_to_the_q(p: float) -> None:
    logits = torch.tensor([[math.log(p), math.log1p(-p)]], dtype=torch.float32, requires_grad=True)
    label = torch.tensor([0])
    (weighted,) = torch.autograd.grad(generalized_cross_entropy(logits, label, 0.7).sum(), logits)
    (plain,) = torch.autograd.grad(cross_entropy(logits, label).sum(), logits)
    torch.testing.assert_close(weighted, plain * p**0.7, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_falls_as_the_label_grows_more_probable(name: str) -> None:
    logits = torch.stack([torch.linspace(-8, 8, 50, dtype=torch.float64), torch.zeros(50, dtype=torch.float64)], 1)
    loss = LOSSES[name](logits, torch.zeros(50, dtype=torch.long))
    assert (loss.diff() < 0).all()


@settings(max_examples=30)
@given(st.floats(0.05, 1.0), SEEDS)
def test_generalized_cross_entropy_is_bounded_so_that_a_wrong_label_pulls_less(q: float, seed: int) -> None:
    logits = torch.from_numpy(np.random.default_rng(seed).normal(scale=30, size=(20, 4)))
    loss = generalized_cross_entropy(logits, torch.zeros(20, dtype=torch.long), q)
    assert (loss <= 1 / q + 1e-9).all()


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (GCELoss(0.4, reduction="none"), lambda p: (1 - p**0.4) / 0.4),
        (SLLoss(2.0, 0.5, -3.0, reduction="none"), lambda p: -2.0 * math.log(p) + 0.5 * 3.0 * (1 - p)),
    ],
)
def test_modules_are_the_formulas_example_by_example(module: Any, expected: Any) -> None:
    logits, labels = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 3, 1, 1, 2])
    probs = logits.double().softmax(1)
    each = [expected(float(probs[i, label])) for i, label in enumerate(labels.tolist())]
    assert module(logits, labels).tolist() == pytest.approx(each, rel=1e-5)
    for reduction, total in (("mean", sum(each) / 5), ("sum", sum(each))):
        module.reduction = reduction
        assert float(module(logits, labels)) == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: GCELoss(1.5), "q = 1.5: must be above 0 and at most 1"),
        (lambda: SLLoss(log_zero=0.0), "log_zero = 0.0: must be negative"),
        (lambda: SLLoss(reduction="median"), "unknown reduction 'median'"),  # type: ignore[arg-type]
    ],
)
def test_modules_refuse_what_is_no_loss(build: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build()
