"""Polynomial-margin-diminishing (PMD) noise: the smaller the margin of an example, the more likely its label is wrong.

:func:`pmd` draws types I, II and III for any number of classes at a given level: every label becomes one of the two
most probable classes.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from unflip.errors import InputError
from unflip.noise.transition import check_distributions

_TOLERANCE = 1e-3  # of the row sums of posteriors, enough for float16
_MAX_FACTOR = 1e6  # beyond which practically no label becomes u


class TopTwo(NamedTuple):
    """The two most probable classes of every example, all (n,).

    Attributes:
        first: u, the most probable class.
        second: s, the second most probable class.
        margin: eta_u - eta_s in [0, 1], float64.
    """

    first: Tensor
    second: Tensor
    margin: Tensor


def pmd(
    clean: Tensor, posterior: Tensor, *, kind: int, level: float, generator: torch.Generator
) -> tuple[Tensor, float, float]:
    """Draw PMD labels whose expected noise rate, measured against the clean labels, is ``level``.

    The label becomes u with probability (1 - rho) / factor, clipped to [0, 1], else s (the paper's section 4.2;
    the factor is from the released generator, and here solved for). The draw does not depend on the clean label.

    Args:
        clean: the true labels (n,).
        posterior: class probabilities (n, k), from :func:`check_posterior`.
        kind: the type, 1, 2 or 3.
        level: the noise rate, in (0, 1).
        generator: of the draws, on the CPU.

    Returns:
        Labels (n,), u or s of every example; the factor; the expected share of wrong labels at that factor.
    """
    top = top_two(posterior)
    factor = solve_factor(top, clean, kind=kind, level=level)
    keep = keep_probability(top.margin, kind=kind, factor=factor)
    # Three strata: examples whose clean label is u, s, or another class.
    group = (clean == top.first).int() + 2 * (clean == top.second).int()
    is_first = draw_evenly(keep, group, generator)
    return torch.where(is_first, top.first, top.second), factor, expected_rate(top, clean, keep)


def check_posterior(posterior: Tensor, num_examples: int, num_classes: int) -> Tensor:
    """Return ``posterior`` (n, k) on the CPU if every row is a probability distribution."""
    if posterior.shape != (num_examples, num_classes):
        raise InputError(f"posterior has shape {tuple(posterior.shape)}; expected ({num_examples}, {num_classes})")
    posterior = posterior.detach().cpu().to(torch.promote_types(posterior.dtype, torch.float32))
    check_distributions(posterior, "posterior", _TOLERANCE)
    return posterior


def top_two(posterior: Tensor) -> TopTwo:
    """Find u, s and the margin of every row; where classes are equally probable, the lower id comes first."""
    highest, first = posterior.max(dim=1)
    others = posterior.clone().scatter_(1, first[:, None], -1.0)
    second_highest, second = others.max(dim=1)
    return TopTwo(first, second, highest.double() - second_highest.double())


def rho(margin: Tensor, *, kind: int) -> Tensor:
    """Return the noise function rho(m) of the margin m = eta_u - eta_s (the paper's section 4.2).

    Type I: 1/2 - m^2 / 2; type II: 1 - m^3; type III: 1 - (m^3 + m^2 + m) / 3.
    """
    # Products rather than powers: they are rounded in the same way on every machine.
    if kind == 1:
        return 0.5 - 0.5 * margin * margin
    if kind == 2:
        return 1 - margin * margin * margin
    if kind == 3:
        return 1 - ((margin + 1) * margin + 1) * margin / 3
    raise InputError(f"PMD type {kind} does not exist; choose from 1, 2, 3")


def keep_probability(margin: Tensor, *, kind: int, factor: float) -> Tensor:
    """Return the probability that a label becomes u: (1 - rho(m)) / factor, clipped to [0, 1]."""
    return ((1 - rho(margin, kind=kind)) / factor).clamp(0, 1)


def expected_rate(top: TopTwo, clean_labels: Tensor, keep: Tensor) -> float:
    """Return the expected share of wrong labels.

    A label is wrong with probability 1 - keep where the clean label is u, keep where it is s, and 1 elsewhere.
    """
    right = torch.where(clean_labels == top.first, keep, 0) + torch.where(clean_labels == top.second, 1 - keep, 0)
    return 1 - float(right.mean())


def solve_factor(top: TopTwo, clean_labels: Tensor, *, kind: int, level: float) -> float:
    """Find the factor whose expected noise rate is ``level``; if there are several, the one nearest to 1 (in ratio).

    With w = 1 / factor and a_i = 1 - rho_i, the expected number of wrong labels is
    n - n_s - sum_i sign_i * min(a_i * w, 1), sign_i = +1 where the clean label is u, -1 where it is s, else 0.
    It is linear in w between the knots 1 / a_i, so its values at the knots give the reachable range and the solution
    exactly, even where clean labels equal to s make it non-monotonic. The factor is rounded to six digits, so that the
    labels do not depend on the order in which a machine adds numbers.
    """
    sign = (clean_labels == top.first).double() - (clean_labels == top.second).double()
    steepness = 1 - rho(top.margin, kind=kind)
    moves = (sign != 0) & (steepness > 0)
    steepness, order = steepness[moves].sort(descending=True)
    sign = sign[moves][order]
    weights, rates = _rate_at_knots(steepness, sign)
    rates = (len(clean_labels) - (clean_labels == top.second).sum() + rates) / len(clean_labels)

    lowest, highest = float(rates.min()), float(rates.max())
    if not lowest <= level <= highest:
        raise InputError(f"pmd{kind}: level {level:g} cannot be reached here; reachable: {lowest:.4f} to {highest:.4f}")
    left, right = rates[:-1], rates[1:]
    crossing = ((left - level) * (right - level) <= 0).nonzero().squeeze(1)
    left, right = left[crossing], right[crossing]
    share = torch.where(left == right, 0, (left - level) / (left - right))
    solutions = torch.lerp(weights[crossing], weights[crossing + 1], share)
    weight = float(solutions[solutions.log().abs().argmin()])
    return float(f"{1 / weight:.6g}")


def _rate_at_knots(steepness: Tensor, sign: Tensor) -> tuple[Tensor, Tensor]:
    """Return the knots w and -sum_i sign_i * min(a_i * w, 1) there, for descending a_i; it is flat beyond the last."""
    slopes = (sign * steepness).flip(0).cumsum(0).flip(0)  # of the examples from i on, those not yet clipped at w_i
    knots = 1 / steepness
    at_knots = -(sign.cumsum(0) - sign) - slopes * knots
    smallest = torch.tensor([1 / _MAX_FACTOR], dtype=torch.float64)
    at_smallest = -slopes[:1].sum() * smallest
    weights = torch.cat([smallest, knots])
    beyond = 2 * weights[-1:]
    return torch.cat([weights, beyond]), torch.cat([at_smallest, at_knots, -sign.sum(dim=0, keepdim=True)])


def draw_evenly(probability: Tensor, group: Tensor, generator: torch.Generator) -> Tensor:
    """Draw yes or no for every example with its own probability, with a nearly fixed number of yes in each group.

    Systematic sampling in random order: examples are intervals on a line, group by group, each as long as its
    probability; those that contain a whole number (from a random start) are drawn. The count of any group is within one
    of its expectation, whereas independent draws at n = 10,000 miss a rate by more than 0.5 % in a third of all cases.
    Lengths are whole multiples of 2^-32, so that their sum is exact on every machine.
    """
    unit = 1 << 32
    order = torch.randperm(len(probability), generator=generator)
    order = order[torch.argsort(group[order], stable=True)]
    start = torch.randint(unit, (1,), generator=generator)
    ends = start + (probability[order] * unit).round().long().cumsum(0)
    drawn = torch.empty(len(probability), dtype=torch.bool)
    drawn[order] = (ends // unit).diff(prepend=torch.zeros_like(start)) > 0
    return drawn
