"""Known-wrong controls: is a doubtful label wrong, or right and hard? Learning dynamics, held against wrong labels."""

from typing import Any

import torch
from torch import Tensor

from unflip.compute import generator, num_processes
from unflip.errors import ConfigError, InputError

_BINS = 8  # quantiles of the out-of-fold margin, within which labels and controls are compared
_MIN_CONTROLS = 15  # per bin
_MIN_LINE = 40  # controls per bin from which a line is fitted, not a mean


class KnownWrongControls:
    """Gives a few examples a wrong label on purpose, to measure how fast a network learns wrong labels.

    These examples are called controls. They are chosen among the examples whose given label is the most probable class
    under ``probs``, and get the second most probable class as their label. Train your own network on
    ``controls[index]``, and call ``record`` with its logits. Let z be the logits of an example with label y. The area
    under the margin (AUM, Pleiss et al. 2020),

        m_i = mean over epochs of z_y - max of z_c over c != y

    is smaller for wrong labels, because the network learns them later than right ones. A label is doubtful if it
    is not the most probable class. ``score`` compares the margin of doubtful labels with that of controls that are
    equally doubtful.

    If you train several networks, give each a different ``member``, so that their controls do not overlap. All tensors
    are on the device of ``given``.

    Args:
        given: labels (n,), 0 to k - 1.
        probs: class probabilities (n, k) from models that were not trained on these labels, such as out-of-fold
            networks.
        share: maximum fraction of the examples that become controls.
        member: number of this network, from 0.
        members: total number of networks.
        seed: random seed for choosing the controls.

    Attributes:
        labels: the labels to train on (n,): the given labels, except for the controls.
        chosen: which examples are controls (n,).
    """

    def __init__(
        self, given: Tensor, probs: Tensor, *, share: float = 0.08, member: int = 0, members: int = 1, seed: int = 0
    ) -> None:
        given, probs = torch.as_tensor(given), torch.as_tensor(probs)
        if probs.ndim != 2 or len(probs) != len(given):
            raise InputError(f"probs have shape {tuple(probs.shape)}; expected ({len(given)}, k)")
        if not bool((probs >= 0).all()):
            raise InputError("probs hold negative numbers or NaN; expected probabilities, not logits")
        if not 0 < share < 1 or not 0 <= member < members:
            raise ConfigError(f"share = {share}, member = {member}: must be a fraction, and from 0 to {members - 1}")
        self.labels = given.clone()
        scores = probs.detach().to(given.device).float().clamp(min=1e-30).log()
        top = scores.topk(2, 1).indices
        agreeing = (top[:, 0] == given).nonzero()[:, 0]
        order = torch.randperm(len(agreeing), generator=generator(seed, "controls")).to(given.device)
        size = min(int(share * len(given)), len(agreeing) // members)
        rows = agreeing[order[member * size : (member + 1) * size]]
        self.chosen = torch.zeros_like(given, dtype=torch.bool).index_fill_(0, rows, True)
        self.labels[rows] = top[rows, 1]
        self.doubt = margins(scores, self.labels)  # out-of-fold margin, negative where the view disagrees
        self._total = torch.zeros(len(given), device=given.device)
        self._count = torch.zeros(len(given), device=given.device)

    def __getitem__(self, index: Tensor) -> Tensor:
        """The labels (b,) to train on, of the rows ``index`` (b,) on any device."""
        return self.labels[index.to(self.labels.device)]

    def record(self, index: Tensor, logits: Tensor) -> None:
        """Record the logits (b, k) of the examples ``index`` (b,) in a training step."""
        index = index.to(self.labels.device)
        found = margins(logits.detach().to(self.labels.device).float(), self.labels[index])
        self._total[index] += found
        self._count[index] += 1

    def score(self) -> Tensor:
        """Return how many standard deviations each label's margin (n,) is above that of equally doubtful controls.

        The score is about 0 for a wrong label, and positive for the right label of a hard example. It is NaN for
        controls, for labels that are not doubtful, and if there are too few controls to compare with.
        """
        total, count = self._total.clone(), self._count.clone()
        if num_processes() > 1:
            for part in (total, count):
                torch.distributed.all_reduce(part)
        aum = (total / count.clamp(min=1)).double()
        seen, doubt = count > 0, self.doubt.double()
        scores = torch.full_like(doubt, torch.nan)
        controls, doubtful = self.chosen & (doubt < 0) & seen, ~self.chosen & (doubt < 0) & seen
        if not bool(doubtful.any()):
            return scores
        edges = doubt[doubtful].quantile(torch.linspace(0, 1, _BINS + 1, dtype=doubt.dtype, device=doubt.device))
        place = torch.bucketize(doubt, edges[1:-1], right=True)
        inside = doubt >= edges[0]
        for number in range(_BINS):
            ours, theirs = controls & inside & (place == number), doubtful & (place == number)
            if int(ours.sum()) < _MIN_CONTROLS:
                continue
            x, y = doubt[ours], aum[ours]
            slope = ((x - x.mean()) * y).mean() / x.var(correction=0).clamp(min=1e-12)
            slope = slope if len(x) > _MIN_LINE else torch.zeros_like(slope)
            expected = y.mean() + slope * (doubt[theirs] - x.mean())
            scores[theirs] = (aum[theirs] - expected) / y.std(correction=0).clamp(min=1e-12)
        return scores

    def state_dict(self) -> dict[str, Any]:
        """Return the margins recorded so far; the controls depend only on the arguments of the constructor."""
        return {"total": self._total.clone(), "count": self._count.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        self._total, self._count = state["total"].to(self._total), state["count"].to(self._count)


def margins(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the score of each label (n,) minus the best of the other classes; scores are (n, k)."""
    own = scores.gather(1, labels[:, None])
    best = scores.scatter(1, labels[:, None], -torch.inf).amax(1, keepdim=True)
    return (own - best)[:, 0]
