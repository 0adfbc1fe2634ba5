"""Definition 1: noise functions built to satisfy it do so on synthetic data with known eta."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from definition_1 import BinaryPmd, pmd_bound, smallest_c1
from unflip.compute import generator
from unflip.noise.pmd import keep_probability, top_two

ETA = torch.linspace(0, 1, 2001, dtype=torch.float64)


def c1_of(eta: torch.Tensor, rho_01: torch.Tensor, rho_10: torch.Tensor, *, t0: float, c2: float) -> float:
    """The smallest c1 for the noise of the less likely of two classes."""
    return smallest_c1(torch.minimum(eta, 1 - eta), torch.where(eta < 0.5, rho_01, rho_10), t0=t0, c2=c2)


@settings(max_examples=30)
@given(st.floats(0.01, 0.49), st.floats(0.05, 8), st.floats(0.05, 4), st.floats(0.05, 1))
def test_built_functions_keep_to_the_definition(t0: float, c1: float, c2: float, level: float) -> None:
    noise = BinaryPmd(t0=t0, c1=c1, c2=c2, level=level)
    rho_01, rho_10 = noise.rho_01(ETA), noise.rho_10(ETA)
    for eta, up, down in zip(ETA.tolist(), rho_01.tolist(), rho_10.tolist(), strict=True):
        assert 0 <= up <= 1
        assert 0 <= down <= 1
        if eta <= 1 / 2 - t0:
            assert up <= c1 * eta ** (1 + c2) * (1 + 1e-9)
        if 1 - eta <= 1 / 2 - t0:
            assert down <= c1 * (1 - eta) ** (1 + c2) * (1 + 1e-9)
    assert c1_of(ETA, rho_01, rho_10, t0=t0, c2=c2) <= c1 * (1 + 1e-9)


def test_the_check_finds_c1_where_the_bound_is_met() -> None:
    noise = BinaryPmd(t0=0.1, c1=1.5, c2=1.0)
    assert c1_of(ETA, noise.rho_01(ETA), noise.rho_10(ETA), t0=0.1, c2=1.0) == pytest.approx(1.5)


def test_the_check_is_the_slow_maximum_of_ratios() -> None:
    eta = torch.rand(500, generator=generator(0, "eta"), dtype=torch.float64)
    rho_01, rho_10 = torch.rand(2, 500, generator=generator(0, "rho"), dtype=torch.float64)
    slow = 0.0
    for e, up, down in zip(eta.tolist(), rho_01.tolist(), rho_10.tolist(), strict=True):
        if e <= 1 / 2 - 0.2:
            slow = max(slow, up / e**1.5)
        if e >= 1 / 2 + 0.2:
            slow = max(slow, down / (1 - e) ** 1.5)
    assert c1_of(eta, rho_01, rho_10, t0=0.2, c2=0.5) == pytest.approx(slow)


def test_noise_that_does_not_vanish_at_eta_1_satisfies_it_with_no_c1() -> None:
    """Reading 11 of the design: types I to III, scaled by a factor, leave noise where the margin is 1."""
    margin = torch.tensor([0.2, 0.9, 1.0], dtype=torch.float64)
    for kind in (1, 2, 3):
        flip = 1 - keep_probability(margin, kind=kind, factor=1.4)
        assert smallest_c1((1 - margin) / 2, flip, t0=0.1, c2=1.0) == math.inf
        assert 0 < smallest_c1((1 - margin[:2]) / 2, flip[:2], t0=0.1, c2=1.0) < math.inf


def test_margin_and_eta_tell_the_same_for_two_classes() -> None:
    eta = torch.rand(200, generator=generator(1), dtype=torch.float64)
    top = top_two(torch.stack([1 - eta, eta], dim=1))
    torch.testing.assert_close((1 - top.margin) / 2, torch.minimum(eta, 1 - eta))


def test_no_restricted_example_needs_no_c1() -> None:
    assert smallest_c1(torch.tensor([0.45, 0.5]), torch.tensor([1.0, 1.0]), t0=0.2, c2=1.0) == 0


def test_bound_is_the_formula() -> None:
    assert pmd_bound(torch.tensor(0.25), c1=3.0, c2=1.0).item() == pytest.approx(3 * 0.25**2)


def test_drawn_labels_follow_the_noise_functions() -> None:
    noise = BinaryPmd(t0=0.1, c1=2.0, c2=1.0, level=0.4)
    n = 40_000
    for value in (0.05, 0.3, 0.5, 0.8, 1.0):
        eta = torch.full((n,), value, dtype=torch.float64)
        for label, rho in ((0, noise.rho_01(eta)[0]), (1, noise.rho_10(eta)[0])):
            clean = torch.full((n,), label)
            flipped = float((noise.draw(clean, eta, generator(0, label)) != clean).double().mean())
            p = float(rho)
            assert abs(flipped - p) <= 4.5 * math.sqrt(p * (1 - p) / n)


def test_draws_repeat_by_seed() -> None:
    noise = BinaryPmd(t0=0.1, c1=1.0, c2=1.0)
    clean = (ETA > 0.5).long()
    first, again, other = (noise.draw(clean, ETA, generator(seed)) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
