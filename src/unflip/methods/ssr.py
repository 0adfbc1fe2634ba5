"""SSR: sample selection by nearest neighbors, and relabeling by confidence (Feng et al. 2021)."""

from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor

from unflip.compute import generator
from unflip.methods.base import Batch, EpochOutputs, LabelStore, LossOutput, Method, Phase, TrainContext
from unflip.methods.losses import mix
from unflip.options import Options

_BLOCK_ROWS = 512  # examples compared with all others at once


class SSROptions(Options):
    """Thresholds and neighbors; the paper's values for all its data."""

    relabel_threshold: float = Field(0.9, ge=0.0, le=1.0)
    """theta_r: a label changes to the predicted class if its probability is above this value; 0.8 at 90% noise."""
    select_threshold: float = Field(1.0, ge=0.0, le=1.0)
    """theta_s: an example is selected if, among its neighbors, its label is at least this fraction as frequent as the
    most frequent class."""
    neighbors: PositiveInt = 200
    """K, the number of neighbors of each example; at most a tenth of all examples."""
    mixup: float = Field(4.0, ge=0.0)
    """Both parameters of the Beta distribution of mixup weights; 0 turns mixup off."""
    warmup: PositiveInt = 1
    """Examples are first selected at the end of this epoch; in the paper, before the first epoch."""


class SSR(Method):
    """Cross-entropy with mixup on the selected examples, as many of each class.

    At each epoch's end, with predictions p and features h without augmentation:

    - **Relabel**: the label is the predicted class where ``max p > theta_r``, else the given one.
    - **Select**: q_c is the fraction of the K nearest neighbors by cosine of h that have label c, divided by the
      frequency of c among all labels. An example is selected if ``q_y / max_c q_c >= theta_s``.

    An epoch visits as many examples as there are, each class equally often. Reviewed labels are always selected. The
    paper's optional feature consistency (SSR+) is left out: it needs two more networks.
    """

    Options = SSROptions
    options: SSROptions
    tables = 4

    def __init__(self, options: SSROptions, context: TrainContext) -> None:
        super().__init__(options, context)
        self.selected = torch.ones(len(context.train), dtype=torch.bool, device=context.device)

    def phases(self, epoch: int, observed: EpochOutputs, labels: LabelStore) -> list[Phase]:
        """Return one pass over all examples during the warm-up, then over the selected ones."""
        train = self.context.train
        if epoch <= self.warmup:
            return [Phase(train)]
        selected = train[self.selected]
        random = generator(self.context.seed, "balanced", epoch)
        order = selected[torch.randperm(len(selected), generator=random).to(selected.device)]
        return [Phase(order[balanced(labels.current[order], len(train))])]

    def loss(self, batch: Batch, phase: Phase) -> LossOutput:
        """Return the cross-entropy of mixed examples."""
        inputs, targets = batch.inputs, F.one_hot(batch.labels, self.context.num_classes).float()
        if self.options.mixup:
            inputs, targets = mix(inputs, targets, self.options.mixup, batch.generator)
        return LossOutput({"loss": -(targets * self.networks[0](inputs).float().log_softmax(1)).sum(1).mean()})

    def end_epoch(self, epoch: int, observed: EpochOutputs, labels: LabelStore) -> dict[str, Any]:
        """Relabel, then select."""
        if epoch < self.warmup:
            return {}
        train, classes = self.context.train, self.context.num_classes
        features, probs = observed.features(), observed.logits().softmax(1)
        proposed = self.correct(probs, labels.initial[train])
        changed = labels.change(epoch, train, proposed, probs.gather(1, proposed[:, None])[:, 0])
        current = labels.current[train]
        shares = neighbor_shares(features, current, classes, min(self.options.neighbors, max(1, len(train) // 10)))
        selected = select(shares, current, self.options.select_threshold) | labels.trusted[train]
        self.selected = observed.broadcast(selected)
        return {"changed": changed, "selected": float(self.selected.float().mean())}

    def correct(self, probs: Tensor, labels: Tensor) -> Tensor:
        """Return the predicted class where it is probable enough, else the label."""
        top, best = probs.max(1)
        return best.where(top > self.options.relabel_threshold, labels)

    def state_dict(self) -> dict[str, Any]:
        """Return which examples are selected."""
        return {"selected": self.selected}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore which examples are selected."""
        self.selected = state["selected"].to(self.selected)


def neighbor_shares(features: Tensor, labels: Tensor, num_classes: int, neighbors: int) -> Tensor:
    """Return q (n, k): the frequency of each class among an example's neighbors, by its frequency among all labels.

    Args:
        features: (n, d); neighbors are those with the largest cosine, without the example itself.
        labels: (n,).
        num_classes: k.
        neighbors: K, fewer than n.

    All pairs are compared, on the device of the features.
    """
    features = F.normalize(features.float())
    frequency = labels.bincount(minlength=num_classes) / len(labels)
    shares = torch.zeros(len(labels), num_classes, device=labels.device)
    for rows in torch.arange(len(labels), device=labels.device).split(_BLOCK_ROWS):
        cosines = (features[rows] @ features.T).scatter_(1, rows[:, None], -torch.inf)
        nearest = labels[cosines.topk(neighbors).indices]
        ones = torch.ones_like(nearest, dtype=shares.dtype)
        shares[rows] = shares[rows].scatter_add_(1, nearest, ones) / neighbors
    return shares / frequency.clamp(min=1e-10)


def select(shares: Tensor, labels: Tensor, threshold: float) -> Tensor:
    """Return the examples (n,) with ``q_y / max_c q_c >= threshold``; all if there are none."""
    own = shares.gather(1, labels[:, None])[:, 0]
    selected = own >= threshold * shares.amax(1)
    return selected if bool(selected.any()) else torch.ones_like(selected)


def balanced(labels: Tensor, count: int) -> Tensor:
    """Return about ``count`` indices of ``labels`` (n,), equally many of each class that occurs, in turns.

    >>> balanced(torch.tensor([0, 0, 0, 2]), 6)
    tensor([0, 1, 2, 3, 3, 3])
    """
    order = labels.argsort(stable=True)
    sizes = labels.bincount()
    starts, sizes = (sizes.cumsum(0) - sizes)[sizes > 0], sizes[sizes > 0]
    turns = torch.arange(-(-count // len(sizes)), device=labels.device)
    return order[(starts[:, None] + turns % sizes[:, None]).flatten()]
