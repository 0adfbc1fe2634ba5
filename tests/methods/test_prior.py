"""The classes' sizes: moved where they should go; inequality that noise made is told from true inequality."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from unflip.methods.unflip import posterior as module
from unflip.methods.unflip.posterior import class_prior, fit_prior_offsets, prior_trust, temper_prior


def likely(log_probs: Tensor, labels: Tensor, background: float) -> float:
    """Ask of data whose classes are all known."""
    return prior_trust(log_probs, labels, background, torch.ones(log_probs.shape[1], dtype=torch.bool))


def gaussians(sizes: list[int], seed: int = 0, distance: float = 4.0) -> tuple[Tensor, Tensor]:
    """Return examples of classes in a plane's corners, and their true classes."""
    random = torch.Generator().manual_seed(seed)
    classes = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    return distance * torch.eye(len(sizes))[classes] + torch.randn(len(classes), len(sizes), generator=random), classes


def label_log_probs(inputs: Tensor, labels: Tensor, classes: int, distance: float = 4.0) -> Tensor:
    """Return log P(label | input) that a perfect student of the labels would learn: each label is a known mixture."""
    likelihood = -(inputs[:, None] - distance * torch.eye(classes)).square().sum(2) / 2  # by true class
    region = likelihood.argmax(1)
    counts = torch.zeros(classes, classes).index_put_((region, labels), torch.ones(len(labels)), accumulate=True)
    return ((counts + 0.5) / (counts + 0.5).sum(1, keepdim=True)).log()[region]


def asymmetric(classes: Tensor, rate: float, seed: int = 1) -> Tensor:
    """A share of the labels of class 0 read 1."""
    flips = (classes == 0) & (torch.rand(len(classes), generator=torch.Generator().manual_seed(seed)) < rate)
    return classes.where(~flips, 1)


def symmetric(classes: Tensor, count: int, rate: float, seed: int = 1) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    anything = torch.randint(count, (len(classes),), generator=random)
    return classes.where(torch.rand(len(classes), generator=random) >= rate, anything)


@given(st.integers(0, 1000), st.integers(2, 5))
def test_offsets_move_the_mean_to_the_shares(seed: int, classes: int) -> None:
    random = torch.Generator().manual_seed(seed)
    log_probs = (2 * torch.randn(400, classes, generator=random)).log_softmax(1)
    shares = torch.rand(classes, generator=random) + 0.2
    shares /= shares.sum()
    moved = (log_probs + fit_prior_offsets(log_probs, shares)).softmax(1).mean(0)
    torch.testing.assert_close(moved, shares, atol=0.01, rtol=0)


@pytest.mark.parametrize("classes", [3, 10, 100])
def test_offsets_are_found_for_sure_probabilities_too(classes: int) -> None:
    random = torch.Generator().manual_seed(classes)
    log_probs = (10 * torch.randn(2000, classes, generator=random)).log_softmax(1)
    shares = torch.rand(classes, generator=random) + 0.2
    shares /= shares.sum()
    moved = (log_probs + fit_prior_offsets(log_probs, shares)).softmax(1).mean(0)
    torch.testing.assert_close(moved, shares, atol=0, rtol=0.01)
    assert float((class_prior(log_probs) / shares - 1).abs().max()) > 0.2  # there was something to move


@pytest.mark.parametrize("values", [1, 1000])
def test_offsets_are_the_same_where_not_all_probabilities_fit_into_memory(
    monkeypatch: pytest.MonkeyPatch, values: int
) -> None:
    log_probs = (2 * torch.randn(500, 4, generator=torch.Generator().manual_seed(0))).log_softmax(1)
    monkeypatch.setattr(module, "_TOLERANCE", 1e-6)
    whole = fit_prior_offsets(log_probs, torch.tensor([0.4, 0.3, 0.2, 0.1]))
    monkeypatch.setattr(module, "_PRIOR_VALUES", 1999)
    monkeypatch.setattr(module, "_BLOCK_VALUES", values)
    found = fit_prior_offsets(log_probs, torch.tensor([0.4, 0.3, 0.2, 0.1]))
    torch.testing.assert_close(found - found.mean(), whole - whole.mean(), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("scale", "classes", "most"), [(1, 4, 4), (3, 40, 7), (10, 10, 14), (20, 100, 30), (40, 10, 40)]
)
def test_accelerated_steps_are_fewer_and_end_where_plain_ones_do(
    monkeypatch: pytest.MonkeyPatch, scale: int, classes: int, most: int
) -> None:
    """Plain ones take 5, 10, 60, 180 and 220."""
    random = torch.Generator().manual_seed(classes)
    log_probs = (scale * torch.randn(500, classes, generator=random)).log_softmax(1)
    prior = (torch.rand(classes, generator=random) + 0.2).log().softmax(0)
    monkeypatch.setattr(module, "_MAX_STEPS", 5000)
    plain = (log_probs + fit_prior_offsets(log_probs, prior)).softmax(1)
    monkeypatch.setattr(module, "_PRIOR_VALUES", log_probs.numel() - 1)
    monkeypatch.setattr(module, "_MAX_STEPS", most)
    found = (log_probs + fit_prior_offsets(log_probs, prior)).softmax(1)
    torch.testing.assert_close(found.mean(0), prior, atol=0, rtol=2e-3)
    torch.testing.assert_close(found, plain, atol=0.02, rtol=0)


def test_accelerated_steps_go_no_further_astray_where_no_offsets_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the classes have no probability at all; plain steps get as near to equal classes as they can."""
    of_few = torch.randint(50, (1000,), generator=torch.Generator().manual_seed(0))
    log_probs = torch.nn.functional.one_hot(of_few, 100).float().clamp(min=1e-30).log()
    prior = torch.full((100,), 0.01)
    plain = (log_probs + fit_prior_offsets(log_probs, prior)).softmax(1).mean(0)
    monkeypatch.setattr(module, "_PRIOR_VALUES", 0)
    found = (log_probs + fit_prior_offsets(log_probs, prior)).softmax(1).mean(0)
    torch.testing.assert_close(found, plain, atol=1e-4, rtol=0)


def test_offsets_undo_a_shift_of_the_prior() -> None:
    """Probabilities under equal classes, made unequal by known factors, come back."""
    log_probs = (2 * torch.randn(2000, 3, generator=torch.Generator().manual_seed(0))).log_softmax(1)
    shift = torch.tensor([0.7, 0.0, -0.7])
    found = fit_prior_offsets((log_probs + shift).log_softmax(1), class_prior(log_probs))
    torch.testing.assert_close(found - found.mean(), -shift, atol=0.02, rtol=0)


def test_shares_are_means_of_probabilities_and_none_is_zero() -> None:
    scores = torch.tensor([[0.0, -100.0, math.log(3)], [math.log(3), -100.0, 0.0]])
    assert class_prior(scores).tolist() == pytest.approx([0.5, 1e-6, 0.5], abs=1e-6)
    assert class_prior(scores)[1] > 0
    offsets = fit_prior_offsets(scores, torch.tensor([0.5, 0.0, 0.5]))
    assert bool(offsets.isfinite().all())


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_inequality_that_noise_made_is_not_trusted(seed: int) -> None:
    inputs, classes = gaussians([1000, 1000, 1000], seed)
    labels = asymmetric(classes, 0.4, seed + 1)
    assert labels.bincount().tolist() != classes.bincount().tolist()
    log_probs = label_log_probs(inputs, labels, 3)
    assert likely(log_probs, labels, 0.0) == pytest.approx(0, abs=0.1)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_inequality_that_is_real_is_trusted(seed: int) -> None:
    inputs, classes = gaussians([1800, 900, 300], seed)
    labels = symmetric(classes, 3, 0.3, seed + 1)
    log_probs = label_log_probs(inputs, classes, 3)  # of those labels that mean something
    assert likely(log_probs, labels, 0.3) == pytest.approx(1, abs=0.1)


def test_what_so_few_examples_show_by_chance_is_not_trusted() -> None:
    """The same view of three examples, then of three hundred: only there are two thirds more than chance."""
    log_probs = torch.tensor([[0.98, 0.02], [0.98, 0.02], [0.02, 0.98]]).log()
    labels = torch.tensor([0, 0, 1])
    inequality = sum(share * math.log(2 * share) for share in (1.98 / 3, 1.02 / 3))
    enough = 1 / (2 * inequality)  # examples without background labels
    assert 3 < enough < 300
    assert likely(log_probs, labels, 0.0) == 0
    assert likely(log_probs.repeat(100, 1), labels.repeat(100), 0.0) == 1
    assert likely(log_probs.repeat(100, 1), labels.repeat(100), 1 - math.sqrt(enough / 310)) == 0


def test_equal_classes_leave_nothing_to_trust() -> None:
    log_probs = torch.tensor([[0.9, 0.1], [0.1, 0.9]]).log().repeat(500, 1)
    assert likely(log_probs, torch.arange(1000) % 2, 0.0) == 0


def test_the_names_of_the_classes_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TRUST_LOW", 0.0)
    monkeypatch.setattr(module, "TRUST_HIGH", 3.0)  # so that it is neither 0 nor 1
    inputs, classes = gaussians([1000, 900, 400])
    labels = asymmetric(classes, 0.3)
    log_probs = label_log_probs(inputs, labels, 3)
    expected = likely(log_probs, labels, 0.1)
    assert 0.1 < expected < 0.9
    for order in ([1, 2, 0], [2, 1, 0]):
        names = torch.tensor(order)
        new = torch.empty_like(names).index_copy_(0, names, torch.arange(3))
        assert likely(log_probs[:, names], new[labels], 0.1) == pytest.approx(expected, abs=1e-3)


def explained(p: list[list[float]], labels: list[int], background: float) -> float:
    """The mean log-likelihood of the labels under the transition matrix of nine rounds of a loop."""
    k, share = len(p[0]), [1 - background] * len(p)
    for _ in range(3):
        belief = p
        for _ in range(3):
            M = [[1 / k + (c == label) for label in range(k)] for c in range(k)]
            for q, y, u in zip(belief, labels, share, strict=True):
                for c in range(k):
                    M[c][y] += u * q[c]
            M = [[value / sum(row) for value in row] for row in M]
            joint = [[row[c] * M[c][y] for c in range(k)] for row, y in zip(p, labels, strict=True)]
            belief = [[value / sum(row) for value in row] for row in joint]
        own = [(1 - background) * sum(row) for row in joint]
        share = [value / (value + background / k) for value in own]
    return sum(math.log(value + background / k) for value in own) / len(own)


@pytest.mark.parametrize("background", [0.0, 0.25])
def test_belief_is_what_equal_classes_would_cost_the_labels(monkeypatch: pytest.MonkeyPatch, background: float) -> None:
    inputs, classes = gaussians([150, 100, 60], distance=2.0)
    labels = symmetric(asymmetric(classes, 0.35), 3, background)
    log_probs = label_log_probs(inputs, labels, 3, distance=2.0)
    mean = log_probs.exp().mean(0)
    inequality = sum(float(share) * math.log(3 * float(share)) for share in mean)
    equal = (log_probs + fit_prior_offsets(log_probs, torch.full((3,), 1 / 3))).log_softmax(1)
    cost = sum(
        sign * explained(view.double().exp().tolist(), labels.tolist(), background)
        for sign, view in ((1, log_probs), (-1, equal))
    )
    share = cost / inequality
    monkeypatch.setattr(module, "TRUST_LOW", share - 0.3)  # the ramp lies about what is to be found
    monkeypatch.setattr(module, "TRUST_HIGH", share + 0.7)
    assert likely(log_probs, labels, background) == pytest.approx(0.3, abs=0.01)


def test_a_class_that_nobody_has_seen_is_not_made_as_large_as_the_others() -> None:
    shares, known = torch.tensor([0.499, 0.25, 0.25, 0.001]), torch.tensor([True, True, True, False])
    equal = temper_prior(shares, 0.0, known)
    torch.testing.assert_close(equal, torch.tensor([0.333, 0.333, 0.333, 0.001]))
    torch.testing.assert_close(temper_prior(shares, 1.0, known), shares)
    everything = torch.ones(4, dtype=torch.bool)
    assert torch.equal(temper_prior(shares, 0.3, everything), (0.3 * shares.log()).softmax(0))
    log_probs = torch.tensor([[0.9, 0.1, 1e-6], [0.1, 0.9, 1e-6]]).log().repeat(500, 1)
    assert prior_trust(log_probs, torch.arange(1000) % 2, 0.0, torch.tensor([True, True, False])) == 0
