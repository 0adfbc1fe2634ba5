"""The pure level set of Lemma 1 and its growth, measured on a problem whose posterior is known."""

from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from unflip.labels.correction import CorrectionOptions, Corrector
from unflip.labels.store import LabelStore
from unflip.noise.definition import BinaryPmd
from unflip.seeding import generator

NOISE = BinaryPmd(t0=0.42, c1=10.0, c2=1.0, level=0.55)
"""Noise by Definition 1 that is unrestricted nearly everywhere, and there more often wrong than right."""
CORRECTION = CorrectionOptions(rule="margin", threshold=0.7, limit=0.2, window=1)


@dataclass(frozen=True)
class Constants:
    """What Lemma 1 supposes, with the smallest values for which it holds in one round."""

    v: float
    """The largest |f - eta| where all that is at least as confident has a right label."""
    beta: float
    """The smallest factor with which |f - eta| <= beta * E + v everywhere: the (beta, v)-consistency."""
    xi: float
    """The largest probability of a wrong label outside the pure set."""

    def promised(self, pure: float) -> float | None:
        """Return what 1/2 - tau is at least after the round, from what it was before; None: nothing is promised.

        (1 + xi v / (beta l)) (1/2 - tau), for 3 xi v <= tau < 1/2 and down to there (Theorem 1). l is 1 here.
        """
        least = 3 * self.xi * self.v
        if not least <= 0.5 - pure < 0.5:
            return None
        growth = 1 + self.xi * self.v / self.beta if self.beta else inf
        return min(growth * pure, 0.5 - least)

    def follows(self, pure: float) -> bool:
        """Whether the promise follows from the printed proof.

        Its last step bounds |f - eta| in the new level set by v (1 + 2 xi / (1 + 2 v / (beta l))) and calls that at
        most 3 xi v, which needs xi near 1 or v large beside beta. f is right where |f - eta| < |eta - 1/2|, so what
        follows without that step needs the bound to be at most the new tau.
        """
        promised = self.promised(pure)
        share = self.beta / (self.beta + 2 * self.v) if self.beta else 0.0
        return promised is not None and self.v * (1 + 2 * self.xi * share) <= 0.5 - promised


@dataclass(frozen=True)
class Round:
    """One round: f is trained on the labels, the labels are corrected by f. Sizes are 1/2 - tau, in [0, 1/2]."""

    threshold: float
    """The threshold of the correction."""
    pure: float
    """Of the largest level set in which f agrees with the Bayes classifier."""
    pure_labels: float
    """Of the largest level set in which all labels do, after the correction."""
    constants: Constants
    """Of the training that follows."""

    @property
    def start(self) -> float:
        """The level set that is pure for f and for the labels that it is trained on next, from which the lemma goes."""
        return min(self.pure, self.pure_labels)


def simulate(
    rounds: int = 80,
    *,
    examples: int = 100_000,
    bandwidth: float = 0.04,
    noise: BinaryPmd = NOISE,
    correction: CorrectionOptions = CORRECTION,
    seed: int = 0,
) -> list[Round]:
    """Train and correct ``rounds`` times, and measure what Lemma 1 (the paper's section 3.4) speaks of.

    The problem: x spread evenly over [0, 1] with eta(x) = P(y = 1 | x) = x. So |eta - 1/2| has the density 2
    everywhere, c_* = c^* = 2 and l = 1. Labels are drawn by eta and then flipped by ``noise``, which satisfies
    Definition 1. The learner: f(x) is the mean label of the examples within ``bandwidth`` of x, which without noise
    is eta, but for sampling and the ends of the range. Labels are changed by the Corrector of PLC.

    Lemma 1: if S(tau) = {x : |eta(x) - 1/2| >= tau} is pure for f, that is f gives the Bayes label throughout, then
    after one round of correction and training 1/2 - tau_new >= (1 + xi v / (beta l)) (1/2 - tau), for
    3 xi v <= tau < 1/2. Its constants are those of the (beta, v)-consistency
    |f(x) - eta(x)| <= beta E(x) + v, with E(x) the share of labels unlike the Bayes label among examples at least as
    confident as x, and xi, the proof's bound on the noise outside the pure set. No Gaussians are drawn here, so that
    a = 1 in xi = (1 + a) / 2 * ...; and since labels drawn by eta may differ from the Bayes label without any noise, xi
    is their largest probability of doing so, which the proof takes to be c_1 (1/2 - tau)^(1 + c_2).
    """
    eta = (torch.arange(examples, dtype=torch.float64) + 0.5) / examples
    bayes = (eta >= 0.5).long()
    source = generator(seed, "level sets")
    clean = (torch.rand(examples, generator=source, dtype=torch.float64) < eta).long()
    labels = LabelStore(noise.draw(clean, eta, source), 2)
    corrector = Corrector(correction, torch.arange(examples))
    half_window = max(1, round(bandwidth * examples))

    done: list[Round] = []
    f = running_mean(labels.current.double(), half_window)
    for number in range(1, rounds + 1):
        threshold, pure = corrector.threshold, pure_size(eta, (f >= 0.5) == bayes)
        corrector.window.add(torch.stack([1 - f, f], 1))
        corrector.correct(number, labels)
        right = labels.current == bayes
        pure_labels = pure_size(eta, right)
        f = running_mean(labels.current.double(), half_window)
        start = min(pure, pure_labels)
        done.append(Round(threshold, pure, pure_labels, measure(eta, f, ~right, largest_noise(eta, noise, start))))
    return done


def running_mean(values: Tensor, half_window: int) -> Tensor:
    """Return the mean over the ``half_window`` neighbours on both sides of each value, as many as there are."""
    sums = torch.cat([values.new_zeros(1), values.cumsum(0)])
    positions = torch.arange(len(values))
    first = (positions - half_window).clamp(min=0)
    end = (positions + half_window + 1).clamp(max=len(values))
    return (sums[end] - sums[first]) / (end - first)


def pure_size(eta: Tensor, right: Tensor) -> float:
    """Return 1/2 - tau for the smallest tau with ``right`` throughout {|eta - 1/2| > tau}; 1/2 where all are."""
    wrong = (eta - 0.5).abs()[~right]
    return 0.5 - (float(wrong.max()) if len(wrong) else 0.0)


def largest_noise(eta: Tensor, noise: BinaryPmd, pure: float) -> float:
    """Return the largest probability that a label drawn by eta and flipped is not the Bayes label, outside S(tau)."""
    chance = eta * (1 - noise.rho_10(eta)) + (1 - eta) * noise.rho_01(eta)  # of a label 1
    wrong = torch.where(eta >= 0.5, 1 - chance, chance)
    return float(wrong[(eta - 0.5).abs() <= 0.5 - pure].max())


def measure(eta: Tensor, f: Tensor, wrong: Tensor, xi: float) -> Constants:
    """Return the smallest constants with which f, trained on labels of which ``wrong`` are wrong, is consistent."""
    order = (eta - 0.5).abs().argsort(descending=True, stable=True)
    error = (f - eta).abs()[order]
    share = wrong[order].double().cumsum(0) / torch.arange(1, len(eta) + 1)  # E, at and beyond each confidence
    v = float(error[share == 0].max()) if bool((share == 0).any()) else 0.0
    beyond = (error - v)[share > 0] / share[share > 0]
    return Constants(v, max(float(beyond.max()), 0.0) if len(beyond) else 0.0, xi)
