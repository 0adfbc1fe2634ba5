"""ELR and ELR+: early-learning regularization (Liu et al. 2020)."""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from unflip.methods.base import Batch, EpochOutputs, LabelStore, LossOutput, Method, Phase, TrainContext, storage_dtype
from unflip.methods.losses import cross_entropy, early_learning_penalty, mix
from unflip.nn.base import EMA, Ensemble, unwrap
from unflip.options import Options


class ELROptions(Options):
    """Strength and memory of the regularization; defaults for CIFAR-10."""

    strength: float = Field(3.0, ge=0.0)
    """lambda, the weight of the penalty: 3 for CIFAR-10, 1 with asymmetric noise, 7 for CIFAR-100."""
    memory: float = Field(0.7, ge=0.0, lt=1.0)
    """beta, the share of the running mean of predictions kept in each epoch: 0.7 for CIFAR-10, 0.9 for CIFAR-100."""


class ELR(Method):
    """Cross-entropy plus ``lambda log(1 - <p, t>)``.

    t is the running mean of an example's predictions, ``t <- beta t + (1 - beta) p`` once per epoch. A network learns
    from right labels first; the penalty keeps predictions near those early ones: where label and t agree its gradient
    takes over from that of cross-entropy, which vanishes; where a wrong label pulls p away from t it cancels it. No
    label is changed, but t serves as the class probabilities of training examples.

    The means are updated at the epoch's end from recorded predictions. A step adds its own to the mean that it uses,
    so this is the update of every step as in the paper, the same on any number of processes.
    """

    Options = ELROptions
    options: ELROptions
    tables = 3
    records_probs = True

    def __init__(self, options: ELROptions, context: TrainContext) -> None:
        super().__init__(options, context)
        self.targets = new_targets(context)  # t, by row of ``context.train``
        self.position = positions(context)

    def criterion(self, logits: Tensor, labels: Tensor, indices: Tensor) -> Tensor:
        """Return each example's cross-entropy plus the penalty."""
        probs = logits.softmax(1)
        own = self.targets.index_select(0, self.position[indices]).to(probs)
        targets = own.lerp(probs.detach(), 1 - self.options.memory)
        return cross_entropy(logits, labels) + self.options.strength * early_learning_penalty(probs, targets)

    def end_epoch(self, epoch: int, observed: EpochOutputs, labels: LabelStore) -> dict[str, Any]:
        """Update the running means."""
        self.targets.lerp_(observed.probs.to(self.targets), 1 - self.options.memory)
        return {}

    def train_probs(self) -> Tensor:
        """Return the running means, normalized."""
        return self.targets / self.targets.sum(1, keepdim=True)

    def state_dict(self) -> dict[str, Any]:
        """Return the running means."""
        return {"targets": self.targets}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the running means."""
        self.targets = state["targets"].to(self.targets)


class ELRPlusOptions(ELROptions):
    """Those of ELR, mixup and averaged weights."""

    mixup: float = Field(1.0, ge=0.0)
    """Both parameters of the Beta distribution of mixup weights; 0 turns mixup off."""
    ema_decay: float = Field(0.997, ge=0.0, lt=1.0)
    """Decay of the exponential moving average of the weights."""
    rampup: float = Field(0.0, ge=0.0)
    """Number of epochs over which the strength grows from almost 0; 100 for CIFAR-100."""


class ELRPlus(Method):
    """ELR with two networks, averaged weights and mixup.

    The running means of a network are those of the *other* one's averaged weights. Mixup mixes inputs, labels and
    means. The averaged networks predict.

    Predictions of the averaged weights are computed at the epoch's end, without augmentation, not in every step: so the
    means in a step are those of earlier epochs, and the first epoch has no penalty.
    """

    Options = ELRPlusOptions
    options: ELRPlusOptions
    num_networks = 2
    tables = 3
    can_be_calibrated = False

    def __init__(self, options: ELRPlusOptions, context: TrainContext) -> None:
        super().__init__(options, context)
        self.targets = torch.stack([new_targets(context) for _ in range(self.num_networks)])
        self.position = positions(context)

    def set_networks(self, networks: Sequence[nn.Module]) -> None:
        """Take both networks, and start their averages."""
        super().set_networks(networks)
        self.averaged = [EMA(unwrap(network), self.options.ema_decay) for network in networks]

    def phases(self, epoch: int, observed: EpochOutputs, labels: LabelStore) -> list[Phase]:
        """Return one pass that trains both networks."""
        return [Phase(self.context.train, learns=(0, 1))]

    def loss(self, batch: Batch, phase: Phase) -> LossOutput:
        """Return both networks' losses on their own mixtures."""
        options, classes, rows = self.options, self.context.num_classes, self.position[batch.indices]
        strength = options.strength * ramp(batch.progress, options.rampup)
        labels = F.one_hot(batch.labels, classes).float()
        terms = {}
        for number, (network, means) in enumerate(zip(self.networks, self.targets, strict=True)):
            inputs, targets = batch.inputs, torch.cat([labels, means.index_select(0, rows).float()], 1)
            if options.mixup:
                inputs, targets = mix(inputs, targets, options.mixup, batch.generator)
            log_probs = network(inputs).float().log_softmax(1)
            penalty = early_learning_penalty(log_probs.exp(), targets[:, classes:])
            losses = strength * penalty - (targets[:, :classes] * log_probs).sum(1)
            terms[f"network_{number}"] = losses.mean()
        return LossOutput(terms)

    def after_step(self) -> None:
        """Update the averaged weights."""
        for averaged, network in zip(self.averaged, self.networks, strict=True):
            averaged.update_parameters(unwrap(network))

    def end_epoch(self, epoch: int, observed: EpochOutputs, labels: LabelStore) -> dict[str, Any]:
        """Update the running means of each network by the other's averaged weights."""
        for means, other in zip(self.targets, reversed(self.averaged), strict=True):
            for rows, logits in observed.outputs(other.module, self.context.train):
                means[rows] = means[rows].lerp(logits.softmax(1).to(means), 1 - self.options.memory)
        return {}

    def model(self) -> Ensemble:
        """Return the averaged networks."""
        return Ensemble([averaged.module for averaged in self.averaged])

    def train_probs(self) -> Tensor:
        """Return the mean of both networks' running means, normalized."""
        mean = self.targets.float().mean(0)
        return mean / mean.sum(1, keepdim=True)

    def state_dict(self) -> dict[str, Any]:
        """Return the running means and the averaged weights."""
        return {
            "targets": self.targets,
            "averaged": [averaged.module.state_dict() for averaged in self.averaged],
            "steps": int(self.averaged[0].n_averaged),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        self.targets = state["targets"].to(self.targets)
        for averaged, saved in zip(self.averaged, state["averaged"], strict=True):
            averaged.module.load_state_dict(saved)
            averaged.n_averaged.fill_(state["steps"])


def ramp(progress: float, epochs: float) -> float:
    """Return the factor on the strength after ``progress`` epochs: ``exp(-5 (1 - progress / epochs)^2)``, at most 1."""
    return math.exp(-5 * (1 - progress / epochs) ** 2) if progress < epochs else 1.0


def new_targets(context: TrainContext) -> Tensor:
    """Return running means (m, k) before the first epoch: zeros, in half precision if there are many."""
    size = len(context.train), context.num_classes
    return torch.zeros(size, dtype=storage_dtype(size[0] * size[1]), device=context.device)


def positions(context: TrainContext) -> Tensor:
    """Return the position in ``context.train`` of each row of the label store up to the last that is trained on."""
    train = context.train
    result = torch.zeros(int(train.max()) + 1, dtype=torch.long, device=context.device)
    return result.index_copy_(0, train, torch.arange(len(train), device=context.device))
