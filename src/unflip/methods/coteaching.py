"""Co-teaching+: two networks pick small-loss examples for each other where they disagree (Yu et al. 2019)."""

from typing import Annotated, Any, Literal

import torch
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor

from unflip.labels.store import LabelStore
from unflip.losses import cross_entropy
from unflip.methods.base import Batch, Method, Observed, Phase, Setting, Step
from unflip.options import Options
from unflip.seeding import derive
from unflip.stats.mixture import low_probability


class CoteachingOptions(Options):
    """When the networks begin to look at disagreement, and how much they forget; the defaults are CIFAR-10's."""

    warmup: NonNegativeInt = 20
    """Epochs that select from whole batches: 20 for CIFAR-10, 5 for CIFAR-100."""
    forget_rate: Annotated[float, Field(ge=0.0, lt=1.0)] | Literal["auto"] = "auto"
    """Share of a batch that is left out in the end, best the noise rate; `auto` estimates that in the warm-up."""
    climb: PositiveInt = 10
    """Epochs over which the share grows in equal steps from nothing."""


class Coteaching(Method):
    """Cross-entropy of each network on what the other picked.

    Each network picks the share ``R(e) = 1 - min(e / climb, 1) forget_rate`` of a batch with the smallest loss, for
    the other to learn from (Han et al. 2018, Co-teaching). After the warm-up it picks among the examples of which the
    two networks predict different classes (the +). Where less than one of those would remain, it picks from the whole
    batch. Under several processes each picks from its share of the batch. Labels that people decided are picked before
    all others, whether the networks agree or not.

    With ``forget_rate = "auto"`` the noise rate is estimated at the end of each warm-up epoch: the mean probability
    of the upper of two Gaussians fitted to the examples' losses, averaged over the networks. Before the first
    estimate nothing is forgotten, and with a warm-up of 0 the first epoch's is the estimate.

    Labels are not corrected. Confidences are those of the chosen model, the mean of both networks.
    """

    Options = CoteachingOptions
    options: CoteachingOptions
    num_networks = 2

    def __init__(self, options: CoteachingOptions, setting: Setting) -> None:
        super().__init__(options, setting)
        self.noise_rate = 0.0 if options.forget_rate == "auto" else options.forget_rate
        rows = int(setting.train.max()) + 1
        self.trusted = torch.zeros(rows, dtype=torch.bool, device=setting.device)  # by row of the label store

    @classmethod
    def options_for(cls, epochs: int) -> dict[str, Any]:
        """A warm-up of a third of the epochs."""
        return {"warmup": max(1, epochs // 3)}

    @property
    def warmup(self) -> int:
        """Epochs that select from whole batches."""
        return self.options.warmup

    def phases(self, epoch: int, observed: Observed, labels: LabelStore) -> list[Phase]:
        """One pass in which both networks learn."""
        self.trusted = labels.trusted
        return [Phase(self.setting.train, learns=(0, 1))]

    def loss(self, batch: Batch, phase: Phase) -> Step:
        """Return each network's loss on what the other picked."""
        logits = [network(batch.inputs) for network in self.networks]
        losses = [cross_entropy(scores, batch.labels) for scores in logits]
        with torch.no_grad():
            trusted = self.trusted[batch.indices]
            if batch.epoch > self.options.warmup:
                among = (logits[0].argmax(1) != logits[1].argmax(1)) | trusted
            else:
                among = torch.ones_like(batch.labels, dtype=torch.bool)
            rate = forget_rate(batch.epoch, self.noise_rate, self.options.climb)
            first, second = (pick(values.masked_fill(trusted, -torch.inf), among, rate) for values in losses)
        return Step({"network_0": losses[0][second].mean(), "network_1": losses[1][first].mean()})

    def end_epoch(self, epoch: int, observed: Observed, labels: LabelStore) -> dict[str, Any]:
        """Estimate the noise rate while the warm-up lasts, if it was not given."""
        used = forget_rate(epoch, self.noise_rate, self.options.climb)
        if self.options.forget_rate == "auto" and epoch <= max(1, self.options.warmup):
            own = labels.current[self.setting.train]
            losses = [cross_entropy(observed.logits(position), own) for position in range(self.num_networks)]
            rate = noise_rate(torch.stack(losses), derive(self.setting.seed, "mixture", epoch))
            self.noise_rate = float(observed.broadcast(rate))
        return {"forget_rate": used}

    def state_dict(self) -> dict[str, Any]:
        """Return the noise rate."""
        return {"noise_rate": self.noise_rate}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the noise rate."""
        self.noise_rate = state["noise_rate"]


def forget_rate(epoch: int, final: float, climb: int) -> float:
    """Return ``min(epoch / climb, 1) final``, the share that epoch ``epoch`` (from 1) leaves out."""
    return min(epoch / climb, 1.0) * final


def pick(losses: Tensor, among: Tensor, rate: float) -> Tensor:
    """Return the positions of the ``1 - rate`` smallest of ``losses`` (b,) where ``among`` (b,) holds.

    Their number is rounded down. If none would remain, the pick is from all, and at least one.
    """
    count = _share(int(among.sum()), rate)
    if count:
        losses = losses.masked_fill(~among, torch.inf)
    else:
        count = max(1, _share(len(losses), rate))
    return losses.topk(count, largest=False).indices


def _share(count: int, rate: float) -> int:
    return int((1 - rate) * count + 1e-9)  # 1 - 0.9 is a little less than 0.1


def noise_rate(losses: Tensor, seed: int) -> Tensor:
    """Return the share of examples with a wrong label, from their losses under each network (networks, m).

    It is the mean probability of belonging to the upper of two Gaussians on the line, averaged over the networks.
    """
    return torch.stack([1 - low_probability(row, seed).mean() for row in losses]).mean()
