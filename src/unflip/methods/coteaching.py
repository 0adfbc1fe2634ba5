"""Co-teaching+: two networks select small-loss examples for each other where they disagree (Yu et al. 2019)."""

from typing import Annotated, Any, Literal

import torch
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor

from unflip.compute import derive
from unflip.methods.base import Batch, EpochOutputs, LabelStore, LossOutput, Method, Phase, TrainContext
from unflip.methods.losses import cross_entropy
from unflip.options import Options
from unflip.stats.gaussians import low_probability


class CoteachingOptions(Options):
    """Start of selection by disagreement, and fraction of dropped examples; defaults for CIFAR-10."""

    warmup: NonNegativeInt = 20
    """Number of epochs before examples are selected by disagreement: 20 for CIFAR-10, 5 for CIFAR-100."""
    forget_rate: Annotated[float, Field(ge=0.0, lt=1.0)] | Literal["auto"] = "auto"
    """Final fraction of a batch that is dropped, ideally the noise rate; `auto` estimates it during the warm-up."""
    ramp_epochs: PositiveInt = 10
    """Number of epochs over which the forget rate grows linearly from 0."""


class Coteaching(Method):
    """Cross-entropy of each network on the examples that the other selected.

    Each network selects the fraction ``R(e) = 1 - min(e / ramp_epochs, 1) forget_rate`` of a batch with the smallest
    loss, to train the other (Han et al. 2018, Co-teaching). After the warm-up it selects among the examples for which
    the two networks predict different classes (the +), or from the whole batch if there are none. In distributed
    training each process selects from its part of the batch. Examples with reviewed labels are selected first, whether
    the networks agree or not.

    With ``forget_rate = "auto"`` the noise rate is estimated at the end of each warm-up epoch: the mean probability
    of the upper of two Gaussians fitted to the examples' losses, averaged over the networks. Before the first
    estimate nothing is dropped; with a warm-up of 0, it is made at the end of the first epoch.

    Labels are not corrected.
    """

    Options = CoteachingOptions
    options: CoteachingOptions
    num_networks = 2
    tables = 4

    def __init__(self, options: CoteachingOptions, context: TrainContext) -> None:
        super().__init__(options, context)
        self.noise_rate = 0.0 if options.forget_rate == "auto" else options.forget_rate
        rows = int(context.train.max()) + 1
        self.trusted = torch.zeros(rows, dtype=torch.bool, device=context.device)  # by row of the label store

    def phases(self, epoch: int, observed: EpochOutputs, labels: LabelStore) -> list[Phase]:
        """Return one pass that trains both networks."""
        self.trusted = labels.trusted
        return [Phase(self.context.train, learns=(0, 1))]

    def loss(self, batch: Batch, phase: Phase) -> LossOutput:
        """Return each network's loss on the examples that the other selected."""
        logits = [network(batch.inputs) for network in self.networks]
        losses = [cross_entropy(scores, batch.labels) for scores in logits]
        with torch.no_grad():
            trusted = self.trusted[batch.indices]
            if batch.epoch > self.options.warmup:
                candidates = (logits[0].argmax(1) != logits[1].argmax(1)) | trusted
            else:
                candidates = torch.ones_like(batch.labels, dtype=torch.bool)
            rate = forget_rate(batch.epoch, self.noise_rate, self.options.ramp_epochs)
            first, second = (pick(values.masked_fill(trusted, -torch.inf), candidates, rate) for values in losses)
        return LossOutput({"network_0": _mean(losses[0], second), "network_1": _mean(losses[1], first)})

    def end_epoch(self, epoch: int, observed: EpochOutputs, labels: LabelStore) -> dict[str, Any]:
        """Estimate the noise rate during the warm-up, unless it is set."""
        rate = forget_rate(epoch, self.noise_rate, self.options.ramp_epochs)
        if self.options.forget_rate == "auto" and epoch <= max(1, self.options.warmup):
            own = labels.current[self.context.train]
            losses = [cross_entropy(observed.logits(position), own) for position in range(self.num_networks)]
            estimate = noise_rate(torch.stack(losses), derive(self.context.seed, "mixture", epoch))
            self.noise_rate = float(observed.broadcast(estimate))
        return {"forget_rate": rate}

    def state_dict(self) -> dict[str, Any]:
        """Return the noise rate."""
        return {"noise_rate": self.noise_rate}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the noise rate."""
        self.noise_rate = state["noise_rate"]


def forget_rate(epoch: int, final: float, ramp_epochs: int) -> float:
    """Return ``min(epoch / ramp_epochs, 1) final``, the fraction dropped in ``epoch`` (counted from 1)."""
    return min(epoch / ramp_epochs, 1.0) * final


def pick(losses: Tensor, candidates: Tensor, rate: float) -> Tensor:
    """Return a mask (b,) of the smallest fraction ``1 - rate`` of ``losses`` (b,) among ``candidates`` (b,).

    Their number is rounded down. If that leaves none, select from all losses, at least one. It returns a mask because
    indices of unknown number would synchronize with the device at every step.
    """
    counts = torch.tensor([_share(count, rate) for count in range(len(losses) + 1)]).to(losses.device)
    count = counts.gather(0, candidates.sum(0, keepdim=True))
    enough = count > 0
    ranks = losses.masked_fill(enough & ~candidates, torch.inf).argsort().argsort()
    return ranks < torch.where(enough, count, counts[-1:].clamp(min=1))


def _share(count: int, rate: float) -> int:
    return int((1 - rate) * count + 1e-9)  # 1 - 0.9 is a little less than 0.1


def _mean(losses: Tensor, picked: Tensor) -> Tensor:
    return losses.masked_fill(~picked, 0.0).sum() / picked.sum()


def noise_rate(losses: Tensor, seed: int) -> Tensor:
    """Estimate the fraction of wrong labels from the examples' losses under each network (networks, m).

    It is the mean probability of belonging to the upper of two one-dimensional Gaussians, averaged over the networks.
    """
    return torch.stack([1 - low_probability(row, seed).mean() for row in losses]).mean()
