"""What the decisions about a random sample say about all labels of a run."""

from typing import NamedTuple

import numpy as np
import torch

from unflip.data.arrays import Array
from unflip.errors import count_of
from unflip.review.decisions import DecisionStore, State
from unflip.review.examples import Examples
from unflip.stats.odds import PlattScaling
from unflip.stats.sampling import MIN_DECISIONS, calibrate_to_review, fit_review, inclusion_weights


class SampleSummary(NamedTuple):
    """How many labels are wrong, by the decisions of a sample; the numbers of wrong labels include reviewed ones."""

    decisions: int
    """Decisions in the sample; "not sure" is none."""
    wrong_decisions: int
    """How many of them change the label or remove the example."""
    total: int
    """Labels that the sample was drawn from."""
    wrong: float | None = None
    """Expected number of wrong labels; None with fewer than 20 decisions."""
    low: float = 0.0
    high: float = 0.0
    """From ``low`` to ``high`` is a 95 % interval."""

    def __str__(self) -> str:
        """Return one line, as the terminal and the review page show it."""
        said = f"sample: {count_of(self.decisions, 'decision')}, {self.wrong_decisions:,} wrong"
        if self.wrong is None:
            return f"{said}; {MIN_DECISIONS} are needed for an estimate"
        about = f"about {self.wrong:,.0f} ({self.low:,.0f} to {self.high:,.0f})"
        return f"{said}; {about} of {self.total:,} labels are wrong"


class Cuts(NamedTuple):
    """The list of all labels of the sample, lowest quality first, after calibration to the decisions."""

    quality: Array
    """Label quality (m,), calibrated to the decisions; 0 or 1 where there is one."""
    precision: Array
    """The expected fraction of wrong labels among each label and those before it (m,)."""
    best: int
    """How many of the first labels are more likely wrong than right: if their suggestions are right, changing these
    leaves most labels right."""
    threshold: float
    """The highest quality of these before the calibration, as in the label table."""


def sample_weights(examples: Examples, decisions: DecisionStore) -> Array:
    """Return how many labels each decision of the sample stands for (n,); 0 for all others."""
    states = decisions.states.copy()
    decided = np.isin(states, [state for state in State if state.is_decided])
    return inclusion_weights(examples.sample, decided, states == State.UNSURE)


def summarize_sample(examples: Examples, decisions: DecisionStore) -> SampleSummary:
    """Return what the decisions so far say."""
    weights, wrong, rest = _sampled(examples, decisions)
    rows, known = np.flatnonzero(weights), int(wrong.sum())
    summary = SampleSummary(len(rows), int(wrong[rows].sum()), len(examples.sample.order))
    if len(rows) < MIN_DECISIONS:
        return summary
    _, rates = fit_review(examples.log_odds[rest], examples.log_odds[rows], wrong[rows], weights[rows])
    low, mean, high = (known + len(rest) * float(rate) for rate in (rates[0], rates.mean(), rates[-1]))
    return summary._replace(wrong=mean, low=low, high=high)


def find_cuts(examples: Examples, decisions: DecisionStore) -> Cuts:
    """Calibrate the quality of all labels to the decisions so far; the same as ``clean --reviewed`` does."""
    weights, wrong, rest = _sampled(examples, decisions)
    rows, odds = np.flatnonzero(weights), torch.tensor(examples.log_odds)
    scaling = calibrate_to_review(
        PlattScaling(1.0, torch.zeros(1, dtype=torch.float64)),
        odds[rest], odds[rows], torch.from_numpy(wrong[rows]), torch.from_numpy(weights[rows]),
    )  # fmt: skip
    order = np.sort(examples.sample.order)
    order = order[np.argsort(examples.log_odds[order], kind="stable")]
    quality = scaling.apply(odds[order]).sigmoid().numpy()
    best = int((quality < 0.5).sum())
    threshold = float(odds[order[best - 1]].sigmoid()) if best else 0.0
    quality = np.where(np.isin(order, rest), quality, ~wrong[order])
    return Cuts(quality, np.cumsum(1 - quality) / np.arange(1, len(order) + 1), best, threshold)


def _sampled(examples: Examples, decisions: DecisionStore) -> tuple[Array, Array, Array]:
    """Return the weights of the sample (n,), which labels were found wrong (n,), and the rows without a decision."""
    wrong = np.zeros(len(examples), bool)
    decided = decisions.decided()
    for row in decided:
        wrong[row.example] = row.label != examples.given[row.example]
    wrong[examples.sample.strata < 0] = False
    rest = np.setdiff1d(examples.sample.order, [row.example for row in decided])
    return sample_weights(examples, decisions), wrong, rest
