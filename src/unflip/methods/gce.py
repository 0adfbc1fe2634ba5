"""GCE: generalized cross-entropy, plain or truncated (Zhang & Sabuncu 2018)."""

from typing import Any

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from unflip.methods.base import EpochOutputs, LabelStore, Method, Phase, TrainContext
from unflip.methods.losses import generalized_cross_entropy
from unflip.options import Options


class GCEOptions(Options):
    """Exponent of the loss, and pruning of examples."""

    q: float = Field(0.7, gt=0.0, le=1.0)
    """Interpolates between cross-entropy (close to 0) and mean absolute error (1)."""
    truncation: float | None = Field(None, gt=0.0, lt=1.0)
    """k: examples whose label has a probability of at most k are pruned; 0.5 in the paper. By default, none are."""
    prune_from: PositiveInt = 40
    """Epoch after which examples are first pruned: 40 for CIFAR-10, 80 for CIFAR-100."""
    prune_every: PositiveInt = 10
    """Number of epochs between prunings."""


class GCE(Method):
    """``(1 - p_y^q) / q`` in place of cross-entropy.

    With ``truncation`` k (equation 9 of the paper), the loss of an example is the constant ``L_q(k)`` where p_y <= k.
    A constant has no gradient, so these examples are omitted until the next pruning, which considers all examples
    again. If all would be pruned, none is. Examples with reviewed labels are never pruned.
    """

    Options = GCEOptions
    options: GCEOptions
    tables = 4

    def __init__(self, options: GCEOptions, context: TrainContext) -> None:
        super().__init__(options, context)
        self.kept = torch.ones(len(context.train), dtype=torch.bool, device=context.device)

    def phases(self, epoch: int, observed: EpochOutputs, labels: LabelStore) -> list[Phase]:
        """Return one pass over the examples that are not pruned."""
        return [Phase(self.context.train[self.kept])]

    def criterion(self, logits: Tensor, labels: Tensor, indices: Tensor) -> Tensor:
        """Return each example's generalized cross-entropy."""
        return generalized_cross_entropy(logits, labels, self.options.q)

    def end_epoch(self, epoch: int, observed: EpochOutputs, labels: LabelStore) -> dict[str, Any]:
        """Prune with the current network if due."""
        options = self.options
        if options.truncation is None:
            return {}
        due = epoch - options.prune_from
        if due >= 0 and due % options.prune_every == 0:
            probs = observed.logits().softmax(1)
            kept = probs.gather(1, labels.current[self.context.train, None])[:, 0] > options.truncation
            kept |= labels.trusted[self.context.train]
            self.kept = kept if bool(kept.any()) else torch.ones_like(kept)
        return {"kept": float(self.kept.float().mean())}

    def state_dict(self) -> dict[str, Any]:
        """Return which examples are kept."""
        return {"kept": self.kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore which examples are kept."""
        self.kept = state["kept"].to(self.kept)
