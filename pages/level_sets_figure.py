"""Draw the figure of docs/results/level-set.md: the pure level set and its growth, where the posterior is known.

python pages/level_sets_figure.py docs/images/level-set.png
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from pathlib import Path

import torch
from torch import Tensor

from definition_1 import BinaryPmd
from drawing import COLORS, make_panels, save
from unflip.compute import generator
from unflip.methods.base import LabelStore
from unflip.methods.plc import CorrectionOptions, Corrector

NOISE = BinaryPmd(t0=0.42, c1=10.0, c2=1.0, level=0.55)
"""Noise by Definition 1 that is unrestricted almost everywhere, with more wrong than correct labels there."""
CORRECTION = CorrectionOptions(rule="margin", threshold=0.7, limit=0.2, window=1)


@dataclass(frozen=True)
class Constants:
    """The constants that Lemma 1 assumes: the smallest values for which the assumptions hold in one round."""

    v: float
    """The largest |f - eta| where all examples at least as confident have correct labels."""
    beta: float
    """The smallest factor with |f - eta| <= beta * E + v everywhere: the (beta, v)-consistency."""
    xi: float
    """The largest probability of a wrong label outside the pure set."""

    def promised(self, pure: float) -> float | None:
        """Return the lower bound on 1/2 - tau after the round, given its value before; None if there is no bound.

        (1 + xi v / (beta l)) (1/2 - tau) for 3 xi v <= tau < 1/2, and at most 1/2 - 3 xi v (Theorem 1). l is 1 here.
        """
        least = 3 * self.xi * self.v
        if not least <= 0.5 - pure < 0.5:
            return None
        growth = 1 + self.xi * self.v / self.beta if self.beta else inf
        return min(growth * pure, 0.5 - least)

    def follows(self, pure: float) -> bool:
        """Whether the bound follows from the printed proof.

        Its last step bounds |f - eta| in the new level set by v (1 + 2 xi / (1 + 2 v / (beta l))) and calls that at
        most 3 xi v, which requires xi near 1 or v large compared to beta. f is correct where |f - eta| < |eta - 1/2|,
        so without that step the bound must be at most the new tau.
        """
        promised = self.promised(pure)
        share = self.beta / (self.beta + 2 * self.v) if self.beta else 0.0
        return promised is not None and self.v * (1 + 2 * self.xi * share) <= 0.5 - promised


@dataclass(frozen=True)
class Round:
    """One round of training f on the labels and correcting them with f. Sizes are 1/2 - tau, in [0, 1/2]."""

    threshold: float
    """The correction threshold."""
    pure: float
    """Size of the largest level set on which f agrees with the Bayes classifier."""
    pure_labels: float
    """Size of the largest level set on which all labels do, after the correction."""
    constants: Constants
    """The constants of the next training."""

    @property
    def start(self) -> float:
        """Size of the level set that is pure for f and for the next training labels: the premise of the lemma."""
        return min(self.pure, self.pure_labels)


def simulate(
    rounds: int = 80,
    *,
    examples: int = 100_000,
    bandwidth: float = 0.04,
    noise: BinaryPmd = NOISE,
    seed: int = 0,
) -> list[Round]:
    """Train and correct ``rounds`` times, and measure the quantities of Lemma 1 (the paper's section 3.4).

    The problem: x is evenly spaced in [0, 1] with eta(x) = P(y = 1 | x) = x. So |eta - 1/2| has density 2 everywhere,
    c_* = c^* = 2 and l = 1. Labels are drawn from eta and then flipped by ``noise``, which satisfies Definition 1.
    The learner: f(x) is the mean label of the examples within ``bandwidth`` of x, which without noise is eta, apart
    from sampling error and boundary effects. Labels are corrected by the Corrector of PLC.

    Lemma 1: if S(tau) = {x : |eta(x) - 1/2| >= tau} is pure for f, that is, f gives the Bayes label everywhere in it,
    then after one round of correction and training 1/2 - tau_new >= (1 + xi v / (beta l)) (1/2 - tau), for
    3 xi v <= tau < 1/2. beta and v are those of the (beta, v)-consistency |f(x) - eta(x)| <= beta E(x) + v, where E(x)
    is the fraction of labels that differ from the Bayes label among the examples at least as confident as x. xi is the
    proof's bound on the noise outside the pure set. No Gaussians are sampled here, so a = 1 in xi = (1 + a) / 2 * ...
    Labels drawn from eta may differ from the Bayes label even without noise, so here xi is the largest probability of
    that, which the proof takes to be c_1 (1/2 - tau)^(1 + c_2).

    Args:
        rounds: number of rounds.
        examples: number of examples.
        bandwidth: half the width of the learner's window.
        noise: the label noise.
        seed: seed of the labels and the noise.
    """
    eta = (torch.arange(examples, dtype=torch.float64) + 0.5) / examples
    bayes = (eta >= 0.5).long()
    source = generator(seed, "level sets")
    clean = (torch.rand(examples, generator=source, dtype=torch.float64) < eta).long()
    labels = LabelStore(noise.draw(clean, eta, source), 2)
    corrector = Corrector(CORRECTION, torch.arange(examples))
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
        xi = largest_noise(eta, noise, min(pure, pure_labels))
        done.append(Round(threshold, pure, pure_labels, measure(eta, f, ~right, xi)))
    return done


def running_mean(values: Tensor, half_window: int) -> Tensor:
    """Return the mean over each value and up to ``half_window`` neighbors on either side."""
    sums = torch.cat([values.new_zeros(1), values.cumsum(0)])
    positions = torch.arange(len(values))
    first = (positions - half_window).clamp(min=0)
    end = (positions + half_window + 1).clamp(max=len(values))
    return (sums[end] - sums[first]) / (end - first)


def pure_size(eta: Tensor, right: Tensor) -> float:
    """Return 1/2 - tau for the smallest tau with ``right`` everywhere in {|eta - 1/2| > tau}; 1/2 if all are."""
    wrong = (eta - 0.5).abs()[~right]
    return 0.5 - (float(wrong.max()) if len(wrong) else 0.0)


def largest_noise(eta: Tensor, noise: BinaryPmd, pure: float) -> float:
    """Return the largest probability outside S(tau) that a label drawn from eta and flipped is not the Bayes label."""
    chance = eta * (1 - noise.rho_10(eta)) + (1 - eta) * noise.rho_01(eta)  # that a label is 1
    wrong = torch.where(eta >= 0.5, 1 - chance, chance)
    return float(wrong[(eta - 0.5).abs() <= 0.5 - pure].max())


def measure(eta: Tensor, f: Tensor, wrong: Tensor, xi: float) -> Constants:
    """Return the smallest constants for which f is consistent; ``wrong`` marks the wrong labels it was trained on."""
    order = (eta - 0.5).abs().argsort(descending=True, stable=True)
    error = (f - eta).abs()[order]
    share = wrong[order].double().cumsum(0) / torch.arange(1, len(eta) + 1)  # E, at each confidence and above
    v = float(error[share == 0].max()) if bool((share == 0).any()) else 0.0
    beyond = (error - v)[share > 0] / share[share > 0]
    return Constants(v, max(float(beyond.max()), 0.0) if len(beyond) else 0.0, xi)


def draw_level_sets(path: Path, rounds: Sequence[Round]) -> None:
    """Draw the size and the growth of the pure level set by round, each with the lower bound of Lemma 1."""
    figure, (left, right) = make_panels(2, (11, 4.2))
    numbers = range(1, len(rounds) + 1)
    left.plot(numbers, [r.pure for r in rounds], color=COLORS[0], marker="o", ms=3, label="f correct, measured")
    left.plot(numbers, [r.pure_labels for r in rounds], color=COLORS[2], ls="--", label="labels correct, measured")

    follows: dict[int, tuple[float, float]] = {}
    printed: dict[int, tuple[float, float]] = {}
    for number, r in enumerate(rounds[:-1], 1):
        promised = r.constants.promised(r.start)
        if promised is not None:
            (follows if r.constants.follows(r.start) else printed)[number + 1] = (promised, promised / r.start)
    for points, marker, label in ((follows, "_", "from its proof"), (printed, ".", "as printed")):
        for axes, column in ((left, 0), (right, 1)):
            axes.plot(list(points), [point[column] for point in points.values()], marker, color=COLORS[1], ms=5,
                      mew=1.6, label=f"lower bound of Lemma 1, {label}" if points else None)  # fmt: skip
    growth = [after.pure / before.start for before, after in pairwise(rounds)]
    right.plot(numbers[1:], growth, color=COLORS[0], marker="o", ms=3, label="measured")
    left.axhline(0.5, color="gray", lw=0.8)
    left.text(1, 0.493, "everything", color="gray", fontsize="small", va="top")
    left.set(xlabel="round", ylabel=r"size of the pure level set, $\frac{1}{2} - \tau$", ylim=(0, 0.53))
    left.set_title("Where the classifier gives the Bayes label")
    right.set(xlabel="round", ylabel=r"growth, $(\frac{1}{2} - \tau_{new}) / (\frac{1}{2} - \tau)$")
    right.set_title("Growth per round")
    for axes in (left, right):
        axes.legend(fontsize="small")
    save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="the picture: .png, .svg or .pdf")
    draw_level_sets(parser.parse_args().out, simulate())


if __name__ == "__main__":
    main()
