"""Per-sample losses: logits (b, k) and labels (b,) in, one loss per example out; the same as modules; and mixup."""

from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unflip.compute import num_processes
from unflip.errors import ConfigError, unknown

Reduction = Literal["mean", "sum", "none"]
_REDUCTIONS = ("mean", "sum", "none")


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return ``-log p_y``."""
    return F.cross_entropy(logits, labels, reduction="none")


def generalized_cross_entropy(logits: Tensor, labels: Tensor, q: float) -> Tensor:
    """Return ``(1 - p_y^q) / q``: cross-entropy as q -> 0, mean absolute error / 2 at q = 1.

    Zhang & Sabuncu (2018), equation 6. Computed as ``-expm1(q log p_y) / q``, which is exact near ``p_y = 1``
    and finite, with its gradient, where ``p_y`` itself underflows.
    """
    return torch.expm1(-q * cross_entropy(logits, labels)).neg() / q


def reverse_cross_entropy(logits: Tensor, labels: Tensor, log_zero: float) -> Tensor:
    """Return ``-sum_j p_j log(onehot_j)`` with ``log 0 := log_zero`` (A), which is ``-A (1 - p_y)``.

    Wang et al. (2019), equation 7. ``1 - p_y`` is taken as ``-expm1(log p_y)``, exact near ``p_y = 1``.
    """
    return log_zero * torch.expm1(-cross_entropy(logits, labels))


def symmetric_cross_entropy(logits: Tensor, labels: Tensor, alpha: float, beta: float, log_zero: float) -> Tensor:
    """Return ``alpha CE + beta RCE`` (Wang et al. 2019, equation 8).

    Args:
        logits: (b, k).
        labels: (b,).
        alpha: weight of cross-entropy.
        beta: weight of reverse cross-entropy.
        log_zero: A, which stands for log 0 in reverse cross-entropy; negative.
    """
    return alpha * cross_entropy(logits, labels) + beta * reverse_cross_entropy(logits, labels, log_zero)


def early_learning_penalty(probs: Tensor, targets: Tensor) -> Tensor:
    """Return ``log(1 - <p, t>)``, which is minimal where predictions p (b, k) agree with targets t (b, k).

    The regularizer of Liu et al. (2020). p is clipped to [1e-4, 1 - 1e-4], as in the released code, so that it stays
    finite.
    """
    return torch.log1p(-(probs.clamp(1e-4, 1 - 1e-4) * targets).sum(1))


class _Loss(nn.Module):
    """A loss of each example, reduced as torch's losses are."""

    def __init__(self, reduction: Reduction) -> None:
        super().__init__()
        if reduction not in _REDUCTIONS:
            raise ConfigError(unknown("reduction", reduction, _REDUCTIONS))
        self.reduction = reduction

    def reduced(self, losses: Tensor) -> Tensor:
        if self.reduction == "none":
            return losses
        return losses.mean() if self.reduction == "mean" else losses.sum()


class GCELoss(_Loss):
    """Generalized cross-entropy ``(1 - p_y^q) / q``, as a module that replaces ``nn.CrossEntropyLoss``.

    Args:
        q: interpolates between cross-entropy (close to 0) and mean absolute error (1).
        reduction: ``mean``, ``sum`` or ``none``.

    >>> GCELoss()(torch.tensor([[3.0, 0.0]]), torch.tensor([0]))
    tensor(0.0478)
    """

    def __init__(self, q: float = 0.7, *, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        if not 0 < q <= 1:
            raise ConfigError(f"q = {q}: must be above 0 and at most 1")
        self.q = q

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of logits (b, k) for labels (b,)."""
        return self.reduced(generalized_cross_entropy(logits, labels, self.q))


class SLLoss(_Loss):
    """Symmetric cross-entropy ``alpha CE + beta RCE``, as a module that replaces ``nn.CrossEntropyLoss``.

    Args:
        alpha: weight of cross-entropy: 0.1 for CIFAR-10, 6 for CIFAR-100.
        beta: weight of reverse cross-entropy: 1, or 0.1 for CIFAR-100.
        log_zero: A, the negative value used for log 0 in reverse cross-entropy.
        reduction: ``mean``, ``sum`` or ``none``.

    >>> SLLoss()(torch.tensor([[3.0, 0.0]]), torch.tensor([0]))
    tensor(0.1946)
    """

    def __init__(
        self, alpha: float = 0.1, beta: float = 1.0, log_zero: float = -4.0, *, reduction: Reduction = "mean"
    ) -> None:
        super().__init__(reduction)
        if log_zero >= 0:
            raise ConfigError(f"log_zero = {log_zero}: must be negative")
        self.alpha, self.beta, self.log_zero = alpha, beta, log_zero

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of logits (b, k) for labels (b,)."""
        return self.reduced(symmetric_cross_entropy(logits, labels, self.alpha, self.beta, self.log_zero))


class ELRLoss(_Loss):
    """Early-learning regularization as a module: ``CE + strength log(1 - <p, t>)``.

    Here t is the running mean of each example's predictions. Every call in training mode updates it:
    ``t <- memory t + (1 - memory) p`` (Liu et al. 2020). If you train with several processes, create one module per
    process, do not wrap it together with the distributed network, and call ``step`` at the end of every epoch.

    Args:
        num_examples: n, the number of training examples.
        num_classes: k.
        strength: lambda, the weight of the penalty: 3 for CIFAR-10, 7 for CIFAR-100.
        memory: beta, the decay of the running mean: 0.7 for CIFAR-10, 0.9 for CIFAR-100.
        reduction: ``mean``, ``sum`` or ``none``.

    >>> loss = ELRLoss(num_examples=8, num_classes=2)
    >>> loss(torch.tensor([[3.0, 0.0]]), torch.tensor([0]), torch.tensor([5]))
    tensor(-0.9075)
    """

    targets: Tensor
    seen: Tensor

    def __init__(
        self,
        num_examples: int,
        num_classes: int,
        *,
        strength: float = 3.0,
        memory: float = 0.7,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction)
        if not 0 <= memory < 1:
            raise ConfigError(f"memory = {memory}: must be at least 0 and below 1")
        self.strength, self.memory = strength, memory
        self.register_buffer("targets", torch.zeros(num_examples, num_classes))
        self.register_buffer("seen", torch.zeros(num_examples, 1), persistent=False)  # since the last step

    def forward(self, logits: Tensor, labels: Tensor, index: Tensor) -> Tensor:
        """Return the loss of logits (b, k) for labels (b,); ``index`` (b,) holds the indices of the examples."""
        probs = logits.softmax(1)
        targets = self.targets[index]
        if self.training:
            targets = self.targets[index] = targets.lerp(probs.detach().to(targets), 1 - self.memory)
            self.seen[index] = 1.0
        return self.reduced(cross_entropy(logits, labels) + self.strength * early_learning_penalty(probs, targets))

    def step(self) -> None:
        """End an epoch: exchange the running means between processes. Does nothing in a single process."""
        if num_processes() > 1:
            means, counts = self.targets * self.seen, self.seen.clone()
            for part in (means, counts):
                torch.distributed.all_reduce(part)
            self.targets.copy_(torch.where(counts > 0, means / counts.clamp(min=1), self.targets))
        self.seen.zero_()


def mix(
    inputs: Tensor, targets: Tensor, alpha: float, generator: torch.Generator, dim: int = 0
) -> tuple[Tensor, Tensor]:
    """Mixup (Zhang et al. 2018): mix each example with another one, inputs and targets; examples lie along ``dim``.

    All share one weight ``l = max(l, 1 - l), l ~ Beta(alpha, alpha)``, so each stays closer to itself (MixMatch,
    Berthelot et al. 2019, equations 8 to 11).
    """
    seed = int(torch.randint(2**62, (), generator=generator))  # torch cannot draw a Beta from a given generator
    draw = float(np.random.default_rng(seed).beta(alpha, alpha))
    other = torch.randperm(inputs.shape[dim], generator=generator).to(inputs.device)
    weight = max(draw, 1 - draw)
    mixed, mixed_targets = (part.index_select(dim, other).lerp_(part, weight) for part in (inputs, targets))
    return mixed, mixed_targets
