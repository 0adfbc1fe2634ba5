"""LRT: label correction by likelihood ratio, AdaCorr (Zheng et al. 2020)."""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor

from unflip.methods.base import EpochOutputs, LabelStore, Method, TrainContext
from unflip.methods.losses import cross_entropy
from unflip.methods.plc import Corrector, RuleOptions, Warmup, ratio_rule
from unflip.options import Options

_OTHER_WEIGHT = 1e-4  # weight of the other classes in the retroactive loss


class LRTOptions(Options):
    """Schedule and threshold of label correction; defaults for CIFAR with 180 epochs."""

    warmup: PositiveInt | Literal["auto"] = 30
    """Labels first change at the end of this epoch (25 for CIFAR-10 with 80% or asymmetric noise); with `auto`, once
    the accuracy on noisy validation labels stops improving."""
    delta: float = Field(1.2, ge=1.0)
    """A label is corrected if another class is more than delta times as likely."""
    delta_step: float = Field(0.02, ge=0.0)
    """Increase of delta per epoch after the warm-up."""
    window: PositiveInt = 10
    """Number of epochs over which the probabilities of the training passes are averaged."""
    retro_lead: NonNegativeInt = 5
    """The retroactive loss starts this many epochs before the first correction, or together with it if an `auto`
    warm-up ends early."""
    retro_weight: float = Field(0.9, ge=0.0)
    """rho, the weight of the retroactive loss; 0 turns it off."""
    retro_refresh: PositiveInt = 40
    """Number of epochs between updates of the predictions in the retroactive loss."""


class LRT(Method):
    """Cross-entropy on corrected labels, and a retroactive loss that keeps the network near earlier predictions.

    A label y becomes the most probable class g where ``f_g / f_y > delta``, f being the mean over the window.

    The retroactive loss is ``-(A s)^T log f`` with one matrix A (k x k) per example: rho in the row of the class
    predicted earlier, 1e-4 in the other rows. As s sums to one, ``A s`` is rho at that class and 1e-4 elsewhere, so one
    integer per example replaces the n x k x k numbers of the released code. There the earlier prediction is in effect
    the given label; here it is the network's, as in the paper.
    """

    Options = LRTOptions
    options: LRTOptions
    tables = 4
    records_probs = True

    def __init__(self, options: LRTOptions, context: TrainContext) -> None:
        super().__init__(options, context)
        rule = RuleOptions(rule="ratio", window=options.window)
        self.corrector = Corrector(rule, context.train, lambda n: 1 / self._delta(n))
        rows = int(context.train.max()) + 1
        self.earlier = torch.zeros(rows, dtype=torch.long, device=context.device)  # by row of the label store
        self.updated_epoch: int | None = None
        self.warming = Warmup(options.warmup, context.epochs)

    @property
    def warmup(self) -> int:
        """Number of epochs on the given labels; an upper limit while an automatic warm-up is running."""
        return self.warming.end

    def criterion(self, logits: Tensor, labels: Tensor, indices: Tensor) -> Tensor:
        """Return cross-entropy plus the retroactive loss, once there are earlier predictions."""
        loss = cross_entropy(logits, labels)
        if self.updated_epoch is None or self.options.retro_weight == 0:
            return loss
        earlier = cross_entropy(logits, self.earlier[indices])
        others = -_OTHER_WEIGHT * F.log_softmax(logits, 1).sum(1)
        return loss + (self.options.retro_weight - _OTHER_WEIGHT) * earlier + others

    def end_epoch(self, epoch: int, observed: EpochOutputs, labels: LabelStore) -> dict[str, Any]:
        """Update the earlier predictions if due; correct labels from the end of the warm-up on."""
        options, train = self.options, self.context.train
        self.corrector.window.add(observed.probs)
        self.warming.observe(epoch, observed)
        if self.updated_epoch is None:
            is_due = epoch >= self.warmup - options.retro_lead
        else:
            is_due = epoch - self.updated_epoch >= options.retro_refresh
        if is_due:
            self.earlier[train] = observed.probs.argmax(1)
            self.updated_epoch = epoch
        changed = self.corrector.correct(epoch, labels) if epoch >= self.warmup else 0
        return {"changed": changed, "threshold": self._delta(max(0, epoch - self.warmup))}

    def _delta(self, corrections: int) -> float:
        """Return delta after a number of corrections, one per epoch since the warm-up."""
        return self.options.delta + self.options.delta_step * corrections

    def train_probs(self) -> Tensor:
        """Return the mean probabilities of the window."""
        return self.corrector.window.mean()

    def correct(self, probs: Tensor, labels: Tensor) -> Tensor:
        """Apply the rule with the delta of the last epoch."""
        return ratio_rule(probs, labels, 1 / self._delta(self.context.epochs - self.warmup))

    def state_dict(self) -> dict[str, Any]:
        """Return window and threshold, the earlier predictions, and the warm-up."""
        corrector, warming = self.corrector.state_dict(), self.warming.state_dict()
        earlier = {"earlier": self.earlier, "updated_epoch": self.updated_epoch}
        return {"corrector": corrector, "warming": warming, **earlier}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        self.corrector.load_state_dict(state["corrector"])
        self.earlier = state["earlier"].to(self.earlier)
        self.updated_epoch = state["updated_epoch"]
        self.warming.load_state_dict(state["warming"])
