"""The Method contract: what a method is given, the hooks the trainer calls, and their defaults."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from unflip.errors import ConfigError
from unflip.losses import cross_entropy
from unflip.methods.labels import LabelStore
from unflip.nn.base import Network
from unflip.nn.ensemble import Ensemble
from unflip.options import Options
from unflip.seeding import generator
from unflip.stats.gaussians import ClassGaussians
from unflip.stats.odds import PlattScaling, log_odds


@dataclass(frozen=True)
class TrainContext:
    """What a method may know about its run; this includes no labels, given or true.

    Attributes:
        num_classes: k.
        train: the rows of the label store used for training (m,). Everything observed follows this order.
        epochs: those of the run.
        seed: the run's.
        batch_size: over all processes.
        lr_factor: the schedule: the factor on the learning rate after so many epochs, which may be a fraction.
        device: where tensors are.
        has_val: whether there are validation examples.
        of_rows: whether inputs are rows of numbers, not images.
        groups: the group of each training example (m,), in the order of ``train``; what a group holds is nearly the
            same.
    """

    num_classes: int
    train: Tensor
    epochs: int
    seed: int
    batch_size: int
    lr_factor: Callable[[float], float]
    device: torch.device
    has_val: bool = True
    of_rows: bool = False
    groups: Tensor | None = None


class RunShape(NamedTuple):
    """What a run's options depend on where nobody chose them.

    Attributes:
        epochs: those of the run.
        lr: the learning rate at the start.
        of_rows: whether the network takes rows of numbers, not images.
    """

    epochs: int
    lr: float
    of_rows: bool


@dataclass(frozen=True)
class Phase:
    """One pass of an epoch: which examples it goes over, and which networks learn from it.

    Attributes:
        indices: rows of the label store, each visited once in random order.
        learns: positions of the networks that learn; the others stay as they are.
        unlabeled: rows added to each batch without their labels, as many as the batch has, repeated as often as
            needed.
        views: number of random views of each example in a batch.
    """

    indices: Tensor
    learns: tuple[int, ...] = (0,)
    unlabeled: Tensor | None = None
    views: int = 1


@dataclass(frozen=True)
class Batch:
    """What one step learns from.

    Attributes:
        indices: rows of the label store (b,).
        views: inputs (b, ...), one tensor per view.
        labels: current labels (b,).
        epoch: counted from 1.
        progress: epochs done so far, including the fraction of the current one.
        seed: that of this step.
        unlabeled: a batch whose labels are not used.
    """

    indices: Tensor
    views: tuple[Tensor, ...]
    labels: Tensor
    epoch: int
    progress: float
    seed: int
    unlabeled: "Batch | None" = None

    @property
    def inputs(self) -> Tensor:
        """The first view."""
        return self.views[0]

    @cached_property
    def generator(self) -> torch.Generator:
        """The random generator of the loss, on the CPU."""
        return generator(self.seed, "loss")


class LossOutput(NamedTuple):
    """What a loss returns.

    Attributes:
        terms: named terms of the loss; their sum is minimized.
        logits: those of the batch's first view (b, k), for the trainer to record if the method asks for it.
    """

    terms: Mapping[str, Tensor]
    logits: Tensor | None = None


class NetworkOutputs(NamedTuple):
    """One network's output for some examples, without augmentation, in evaluation mode, in float32."""

    features: Tensor  # (m, d)
    logits: Tensor  # (m, k)


class EpochOutputs(Protocol):
    """What the trainer observed in an epoch. Rows follow ``TrainContext.train``."""

    @property
    def phases_done(self) -> int:
        """Number of this epoch's phases that were finished before the run was interrupted; 0 if it was not."""

    @property
    def probs(self) -> Tensor:
        """Softmax of the training passes (m, k); only for methods with ``records_probs``."""

    def features(self, network: int = 0) -> Tensor:
        """Features (m, d) from a pass without gradients, computed on demand and cached until the networks change."""

    def logits(self, network: int = 0) -> Tensor:
        """Logits (m, k) from a pass without gradients; does not keep the features, which may be large."""

    def outputs(self, network: nn.Module, rows: Tensor) -> Tensor:
        """Logits (r, k) of any network, such as an average of several, for some rows of the label store."""

    def inputs(self, rows: Tensor) -> Tensor:
        """The inputs (r, ...) of some rows of the label store, without augmentation."""

    def validation(self, network: int = 0) -> tuple[NetworkOutputs, Tensor] | None:
        """Features and logits of the validation examples, and their given labels; None without validation examples."""

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Return the first process's tensor on every process."""


class LabelScores(NamedTuple):
    """Out-of-sample scores of the training labels, of a method that has them.

    Attributes:
        probs: probabilities (m, 2) of the given and the current label by all views together.
        odds: log-odds that each label is right (m,), before calibration; NaN where nothing can be said.
        calibration: what makes them log-odds to count on, and those of ``Method.odds``.
        network: probabilities (m, 2) by networks that have not learned the example's label.
        votes: those (m, 2) by class Gaussians without the example, where they are a view.
        likeliest: the two most likely classes (m, 2) by all views together, which have not learned the label.
        likeliest_probs: their probabilities (m, 2).
        fold: which examples were learned together (m,); None if networks have learned every example.
    """

    probs: Tensor
    odds: Tensor
    calibration: PlattScaling
    network: Tensor
    gaussian_probs: Tensor | None
    top2: Tensor
    top2_probs: Tensor
    fold: Tensor | None


class Method:
    """Cross-entropy on the current labels; every hook may be overridden.

    A subclass lives in one file, names its ``Options`` and is registered in ``unflip.methods``; nothing else is needed.
    The trainer sets ``networks`` before it calls the first hook. They may be wrapped for several processes: call
    them for logits, and use ``unflip.nn.base.unwrap`` to reach ``encode`` and ``head``.
    """

    Options: ClassVar[type[Options]] = Options
    num_networks: ClassVar[int] = 1
    can_be_calibrated: ClassVar[bool] = True  # each network has a head of its own, which calibration can train
    records_probs: bool = False  # whether the trainer records the softmax of each training pass

    def __init__(self, options: Any, context: TrainContext) -> None:
        self.options = options
        self.context = context
        self.networks: Sequence[nn.Module] = ()

    @property
    def warmup(self) -> int:
        """Epochs before the method begins to act on the labels; calibration starts after them."""
        return 0

    @classmethod
    def options_for(cls, section: str, shape: RunShape) -> dict[str, Any]:
        """Return options by section that suit a run better than the defaults; ``section`` holds the method's own.

        By default, an option called ``warmup`` is at most a third of the epochs: defaults are meant for long runs.
        """
        field = cls.Options.model_fields.get("warmup")
        if field is None or not isinstance(field.default, int):
            return {}
        return {section: {"warmup": min(field.default, max(1, shape.epochs // 3))}}

    @classmethod
    def check_options(cls, section: str, options: Any, epochs: int) -> None:
        """Refuse options that make no sense in a run of ``epochs`` epochs: by default, a ``warmup`` that never ends."""
        warmup = getattr(options, "warmup", None)
        if isinstance(warmup, int) and warmup >= max(2, epochs):  # the first epoch is the earliest to act in
            raise ConfigError(
                f"{section}.warmup = {warmup}: with epochs = {epochs} the run ends before its method acts on labels; "
                f"try --epochs {3 * warmup}, or unflip train --set {section}.warmup={max(1, epochs // 3)}"
            )

    @classmethod
    def build_networks(cls, options: Any, context: TrainContext, build: Callable[[int], Network]) -> list[Network]:
        """Return the networks that learn; ``build`` makes number i, each with other initial weights."""
        return [build(position) for position in range(cls.num_networks)]

    def phases(self, epoch: int, observed: EpochOutputs, labels: LabelStore) -> Iterable[Phase]:
        """Yield the phases of ``epoch`` (counted from 1); a generator resumes after each phase has been trained.

        A method with several phases starts with phase number ``observed.phases_done``. It must not repeat what it did
        before that phase: its state and the labels already contain it.
        """
        return [Phase(self.context.train)]

    def criterion(self, logits: Tensor, labels: Tensor, indices: Tensor) -> Tensor:
        """Return each example's loss (b,); ``indices`` are rows of the label store."""
        return cross_entropy(logits, labels)

    def loss(self, batch: Batch, phase: Phase) -> LossOutput:
        """Return the loss of a batch."""
        logits = self.networks[0](batch.inputs)
        return LossOutput({"loss": self.criterion(logits, batch.labels, batch.indices).mean()}, logits)

    def before_step(self) -> None:
        """Called when the gradients of a step are there, before the networks learn from them."""

    def after_step(self) -> None:
        """Called after each step of the optimizers."""

    def end_epoch(self, epoch: int, observed: EpochOutputs, labels: LabelStore) -> dict[str, Any]:
        """Correct labels, refit, update thresholds; return values for the epoch's metrics."""
        return {}

    def model(self) -> Ensemble:
        """Return what predicts; by default the networks, with equal weights."""
        return Ensemble(self.networks)

    def train_probs(self) -> Tensor | None:
        """Return the method's own class probabilities for the training examples (m, k), if it keeps any."""
        return None

    def label_scores(self, labels: LabelStore) -> LabelScores | None:
        """Return what the method says of its training examples out of sample, if it can."""
        return None

    def correct(self, probs: Tensor, labels: Tensor) -> Tensor:
        """Apply the method's current correction rule to examples not used for training; by default change nothing.

        ``probs`` (m, k) are the model's, ``labels`` (m,) the given ones.
        """
        return labels

    def odds(self, probs: Tensor, labels: Tensor) -> Tensor:
        """Return log-odds that labels (m,) of examples not used for training are right, by the model's probabilities.

        They are calibrated as those of the method's judgment.
        """
        return log_odds(probs.clamp(min=1e-30).log(), labels)

    def gaussians(self) -> ClassGaussians | None:
        """Return the class Gaussians of the last epoch's features, if the method fits any."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return what a resume needs besides networks and labels: tensors, numbers, strings, dicts, lists."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""


class Standard(Method):
    """Cross-entropy on the given labels, the baseline of every table: a method with all defaults."""


@dataclass(frozen=True)
class MethodSpec:
    """What the name of a method stands for; see :func:`unflip.methods.find_method`."""

    name: str  # also that of its section of the configuration
    method: type[Method]

    @property
    def sections(self) -> dict[str, type[Options]]:
        """The configuration sections that it reads."""
        return {self.name: self.method.Options}

    def build(self, options: Mapping[str, Options], context: TrainContext) -> Method:
        """Return the method, with options by section."""
        return self.method(options[self.name], context)

    def build_networks(
        self, options: Mapping[str, Options], context: TrainContext, build: Callable[[int], Network]
    ) -> list[Network]:
        """Return the networks that learn; see :meth:`Method.build_networks`."""
        return self.method.build_networks(options[self.name], context, build)

    def options_for(self, shape: RunShape) -> dict[str, Any]:
        """Return options by section where nobody chose them; see :meth:`Method.options_for`."""
        return self.method.options_for(self.name, shape)

    def check(self, options: Mapping[str, Options], epochs: int) -> None:
        """Refuse options that make no sense in a run of ``epochs`` epochs."""
        self.method.check_options(self.name, options[self.name], epochs)
