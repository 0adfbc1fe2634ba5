"""LRT: label correction by likelihood ratio, AdaCorr (Zheng et al. 2020)."""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor

from unflip.losses import cross_entropy
from unflip.methods.base import EpochOutputs, Method, TrainContext
from unflip.methods.labels import LabelStore
from unflip.methods.plc import ProbabilityWindow, Warmup, ratio_rule
from unflip.options import Options

_SPREAD = 1e-4  # weight in the retroactive loss of each class that was not predicted


class LRTOptions(Options):
    """When and how strictly labels are corrected; the defaults are for CIFAR with 180 epochs."""

    warmup: PositiveInt | Literal["auto"] = 30
    """Labels first change at the end of this epoch (25 for CIFAR-10 with 80 % or asymmetric noise); `auto`: when noisy
    validation stops improving."""
    delta: float = Field(1.2, ge=1.0)
    """A label is rejected if another class is more than this many times as likely."""
    delta_step: float = Field(0.02, ge=0.0)
    """Increase of delta per epoch after the warm-up."""
    window: PositiveInt = 10
    """Epochs whose training-pass probabilities are averaged."""
    retro_lead: NonNegativeInt = 5
    """The retroactive loss starts this many epochs before the first correction; if an `auto` warm-up ends sooner than
    it could have, with it."""
    retro_weight: float = Field(0.9, ge=0.0)
    """rho, the weight of the retroactive loss; 0 switches it off."""
    retro_refresh: PositiveInt = 40
    """Epochs after which the predictions used by the retroactive loss are renewed."""


class LRT(Method):
    """Cross-entropy on corrected labels, and a retroactive loss that keeps the network near earlier predictions.

    A label y becomes the most probable class g where ``f_g / f_y > delta``, f being the mean over the window.

    The retroactive loss is ``-(A s)^T log f`` with one matrix A (k x k) per example: rho in the row of the class
    predicted earlier, 1e-4 in the other rows. As s sums to one, ``A s`` is rho at that class and 1e-4 elsewhere. So it
    is enough to keep one integer per example, where the released code keeps n x k x k numbers. In that code the
    "earlier prediction" is in effect the given label; here it is the network's own, as the paper describes.
    """

    Options = LRTOptions
    options: LRTOptions
    records_probs = True

    def __init__(self, options: LRTOptions, context: TrainContext) -> None:
        super().__init__(options, context)
        self.window = ProbabilityWindow(options.window)
        rows = int(context.train.max()) + 1
        self.earlier = torch.zeros(rows, dtype=torch.long, device=context.device)  # by row of the label store
        self.held_since: int | None = None
        self.warming = Warmup(options.warmup, context.epochs)

    @property
    def warmup(self) -> int:
        """Epochs on the given labels; the maximum, while the actual number is not yet known."""
        return self.warming.end

    def criterion(self, logits: Tensor, labels: Tensor, indices: Tensor) -> Tensor:
        """Return cross-entropy plus the retroactive loss, once there are earlier predictions."""
        loss = cross_entropy(logits, labels)
        if self.held_since is None or self.options.retro_weight == 0:
            return loss
        spread = -_SPREAD * F.log_softmax(logits, 1).sum(1)
        return loss + (self.options.retro_weight - _SPREAD) * cross_entropy(logits, self.earlier[indices]) + spread

    def end_epoch(self, epoch: int, observed: EpochOutputs, labels: LabelStore) -> dict[str, Any]:
        """Renew the earlier predictions if it is due; correct labels from the end of the warm-up on."""
        options, train = self.options, self.context.train
        self.window.add(observed.probs)
        self.warming.observe(epoch, observed)
        if self.held_since is None:
            is_due = epoch >= self.warmup - options.retro_lead
        else:
            is_due = epoch - self.held_since >= options.retro_refresh
        if is_due:
            self.earlier[train] = observed.probs.argmax(1)
            self.held_since = epoch
        changed, delta = 0, self._delta(epoch)
        if epoch >= self.warmup:
            probs = self.window.mean()
            current = labels.current[train]
            wanted = ratio_rule(probs, current, 1 / delta)
            changed = labels.change(epoch, train, wanted, probs.gather(1, wanted[:, None])[:, 0])
        return {"changed": changed, "threshold": delta}

    def _delta(self, epoch: int) -> float:
        return self.options.delta + self.options.delta_step * max(0, epoch - self.warmup)

    def train_probs(self) -> Tensor:
        """Return the mean probabilities of the window."""
        return self.window.mean()

    def correct(self, probs: Tensor, labels: Tensor) -> Tensor:
        """Apply the rule with the delta of the last epoch."""
        return ratio_rule(probs, labels, 1 / self._delta(self.context.epochs))

    def state_dict(self) -> dict[str, Any]:
        """Return the window, the earlier predictions, and the warm-up."""
        return {
            "window": self.window.state_dict(),
            "earlier": self.earlier,
            "held_since": self.held_since,
            "warming": self.warming.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        self.window.load_state_dict(state["window"], self.context.device)
        self.earlier = state["earlier"].to(self.earlier)
        self.held_since = state["held_since"]
        self.warming.load_state_dict(state["warming"])
