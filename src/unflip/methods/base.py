"""The Method contract: what a method is told, what it is asked, and what it answers by default."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from unflip.compute.passes import Scan
from unflip.labels.store import LabelStore
from unflip.losses import cross_entropy
from unflip.options import Options
from unflip.seeding import generator
from unflip.stats.gaussians import ClassGaussians

WARM_UP, FIRST, LATER, CALIBRATED = "warm-up", "end of the warm-up", "after the warm-up", "calibrated"
"""Stages of a run."""


@dataclass(frozen=True)
class Setting:
    """What a method may know of its run: no label and no truth among it."""

    num_classes: int
    train: Tensor
    """The rows of the label store that train (m,). All that is observed follows this order."""
    epochs: int
    seed: int
    batch_size: int
    lr_factor: Callable[[int], float]
    """The schedule: what an epoch multiplies the learning rate by."""
    device: torch.device


@dataclass(frozen=True)
class Phase:
    """One pass of an epoch: over which examples, and who learns from it."""

    indices: Tensor
    """Rows of the label store, each visited once in random order."""
    learns: tuple[int, ...] = (0,)
    """Positions of the networks that learn; the others stay as they are."""
    unlabelled: Tensor | None = None
    """Rows that accompany each batch without their labels, as many again, gone round as often as needed."""
    views: int = 1
    """How many random views of every example a batch holds."""


@dataclass(frozen=True)
class Batch:
    """What one step learns from."""

    indices: Tensor
    """Rows of the label store (b,)."""
    views: tuple[Tensor, ...]
    """Inputs (b, ...), once for each view of the phase."""
    labels: Tensor
    """Current labels (b,)."""
    epoch: int
    progress: float
    """Epochs done so far, with the fraction of this one."""
    seed: int
    """Of this step alone."""
    unlabelled: "Batch | None" = None

    @property
    def inputs(self) -> Tensor:
        """The first view."""
        return self.views[0]

    @cached_property
    def generator(self) -> torch.Generator:
        """For whatever the loss draws, on the processor."""
        return generator(self.seed, "loss")


class Step(NamedTuple):
    """What a loss answers."""

    terms: Mapping[str, Tensor]
    """Named parts of the loss; their sum is what the networks learn from."""
    logits: Tensor | None = None
    """Of the batch's first view (b, k), for the trainer to record where the method asks for that."""


class Observed(Protocol):
    """What the trainer saw of an epoch. Rows follow ``Setting.train``."""

    @property
    def phases_done(self) -> int:
        """Phases of this epoch that were trained before the run was stopped in its middle; 0 if it was not."""

    @property
    def probs(self) -> Tensor:
        """Softmax of the training passes (m, k); only for methods with ``records_probs``."""

    def features(self, network: int = 0) -> Tensor:
        """Features (m, d) of a pass without gradient, made when asked for and once for the networks as they are."""

    def logits(self, network: int = 0) -> Tensor:
        """The logits of such a pass (m, k): features may be large, and this keeps none."""

    def validation(self, network: int = 0) -> tuple[Scan, Tensor] | None:
        """Both of the validation examples, with their given labels; None where there are none."""

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Make what a process computed alone the same everywhere: the first process's."""


class Method:
    """Cross-entropy on the current labels; every hook may be replaced.

    A subclass lives in one file, names its ``Options`` and is registered in ``unflip.methods``; that is all.
    ``networks`` are set by the trainer before the first hook is called. They may be wrapped for several
    processes: call them for logits, and use
    :func:`unflip.networks.base.bare` to reach ``encode`` and ``head``.
    """

    Options: ClassVar[type[Options]] = Options
    num_networks: ClassVar[int] = 1
    records_probs: bool = False
    """Whether the trainer records the softmax of each training pass."""

    def __init__(self, options: Any, setting: Setting) -> None:
        self.options = options
        self.setting = setting
        self.networks: Sequence[torch.nn.Module] = ()

    @property
    def warmup(self) -> int:
        """Epochs before the method begins to act on the labels; calibration starts after them."""
        return 0

    @classmethod
    def options_for(cls, epochs: int) -> dict[str, Any]:
        """Return options that suit a run of ``epochs`` epochs where the defaults are those of much longer ones."""
        return {}

    def stage(self, epoch: int) -> tuple[str, ...]:
        """Return what happens in ``epoch``. Epochs of one stage take equally long: a dry run rehearses one of them."""
        return (WARM_UP if epoch < self.warmup else FIRST if epoch == self.warmup else LATER,)

    def phases(self, epoch: int, observed: Observed, labels: LabelStore) -> Iterable[Phase]:
        """Say what epoch ``epoch`` (from 1) iterates over; a generator resumes once its last phase has been trained.

        A method with several phases begins with number ``observed.phases_done``, and without what it did before that
        phase, which is in its state and the labels.
        """
        return [Phase(self.setting.train)]

    def criterion(self, logits: Tensor, labels: Tensor, indices: Tensor) -> Tensor:
        """Return each example's loss (b,); ``indices`` are rows of the label store."""
        return cross_entropy(logits, labels)

    def loss(self, batch: Batch, phase: Phase) -> Step:
        """Return the loss of a batch."""
        logits = self.networks[0](batch.inputs)
        return Step({"loss": self.criterion(logits, batch.labels, batch.indices).mean()}, logits)

    def end_epoch(self, epoch: int, observed: Observed, labels: LabelStore) -> dict[str, Any]:
        """Correct labels, refit, move thresholds; return figures for the epoch's metrics."""
        return {}

    def beliefs(self) -> Tensor | None:
        """Return the method's own class probabilities of the training examples (m, k), if it keeps any."""
        return None

    def correct(self, probs: Tensor, labels: Tensor, votes: Tensor) -> Tensor:
        """Apply the method's correction rule, as it stands, to examples that did not train; by default none.

        ``votes`` (m, k) are the class Gaussians' probabilities of these examples.
        """
        return labels

    def gaussians(self) -> ClassGaussians | None:
        """Return the class Gaussians of the last epoch's features, if the method fits any."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return what a resume needs beside networks and labels: tensors, numbers, strings, dicts, lists."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to a saved state."""
