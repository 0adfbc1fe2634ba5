"""The Method contract: the context and labels of a run, the hooks that the trainer calls, and their defaults."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from typing import Any, ClassVar, NamedTuple, Protocol, Self

import pyarrow as pa
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unflip.compute import generator, num_processes
from unflip.errors import ConfigError, InputError
from unflip.nn.base import Ensemble, Network
from unflip.options import Options
from unflip.stats.annotators import Annotations, AnnotatorFit
from unflip.stats.gaussians import ClassGaussians
from unflip.stats.odds import PlattScaling, log_odds

HALF_ABOVE = 2**26
"""Values beyond which a table is stored in half precision: 256 MB in single precision."""
HALF_MOST = 65504.0
"""The largest number that half precision can hold."""
_HISTORY = {"epoch": torch.int32, **dict.fromkeys(("index", "old", "new"), torch.int64), "confidence": torch.float32}


@dataclass(frozen=True)
class TrainContext:
    """What a method knows about its run. This includes no labels.

    Attributes:
        num_classes: k.
        train: rows of the label store used for training (m,); epoch outputs are in this order.
        epochs: number of epochs.
        seed: random seed.
        batch_size: total batch size over all processes.
        lr_factor: learning rate schedule: returns the factor after a (fractional) number of epochs.
        device: device of all tensors.
        has_val: whether there are validation examples.
        clean_val: whether their labels are known to be right, so that they tell nothing about label noise.
        of_rows: whether inputs are feature vectors rather than images.
        groups: group number of each training example (m,), in the order of ``train``; a group consists of
            near-duplicates or of examples with the same origin.
        ordinal: whether classes are ordered.
        unlabeled: rows of the label store without a label (u,).
    """

    num_classes: int
    train: Tensor
    epochs: int
    seed: int
    batch_size: int
    lr_factor: Callable[[float], float]
    device: torch.device
    has_val: bool = True
    clean_val: bool = False
    of_rows: bool = False
    groups: Tensor | None = None
    ordinal: bool = False
    unlabeled: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))


class RunShape(NamedTuple):
    """What the defaults of a run's options depend on.

    Attributes:
        epochs: number of epochs.
        lr: initial learning rate.
        of_rows: whether inputs are feature vectors rather than images.
    """

    epochs: int
    lr: float
    of_rows: bool


@dataclass(frozen=True)
class Phase:
    """One pass of an epoch: its examples, and the networks that it trains.

    Attributes:
        indices: rows of the label store, each visited once in random order.
        learns: positions of the networks that are trained.
        unlabeled: rows that are added to each batch without their labels, as many as the batch has; repeated if needed.
        views: number of augmented views of each example.
    """

    indices: Tensor
    learns: tuple[int, ...] = (0,)
    unlabeled: Tensor | None = None
    views: int = 1


@dataclass(frozen=True)
class Batch:
    """The examples of one step.

    Attributes:
        indices: rows of the label store (b,).
        views: inputs (b, ...), one tensor per view.
        labels: current labels (b,).
        epoch: number of the epoch, from 1.
        progress: number of epochs completed so far, including the fraction of the current one.
        seed: random seed of the step.
        unlabeled: additional batch whose labels are not used.
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
    """The loss of a batch.

    Attributes:
        terms: named terms of the loss; their sum is minimized.
        logits: logits of the first view (b, k), recorded for methods with ``records_probs``.
    """

    terms: Mapping[str, Tensor]
    logits: Tensor | None = None


class NetworkOutputs(NamedTuple):
    """Outputs of one network without augmentation, in evaluation mode, in float32."""

    features: Tensor  # (m, d)
    logits: Tensor  # (m, k)


class EpochOutputs(Protocol):
    """Outputs of the networks in an epoch, recorded or computed on demand, in the order of ``TrainContext.train``."""

    @property
    def phases_done(self) -> int:
        """Number of phases of this epoch that were completed before the run was interrupted and resumed; usually 0."""

    @property
    def probs(self) -> Tensor:
        """Softmax of the training pass (m, k); only for methods with ``records_probs``."""

    def features(self, network: int = 0) -> Tensor:
        """Features (m, d), computed on demand without gradients and cached until the networks change."""

    def logits(self, network: int = 0) -> Tensor:
        """Logits (m, k), computed on demand without gradients and without storing features, which may be large."""

    def outputs(self, network: nn.Module, rows: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Logits (b, k) of any network, such as an averaged one, for ``rows`` of the label store.

        To save memory, they are computed batch by batch. Each batch comes with its slice of ``rows``.
        """

    def inputs(self, rows: Tensor) -> Tensor:
        """Inputs (r, ...) of ``rows`` of the label store, without augmentation."""

    def validation(self, network: int = 0) -> tuple[NetworkOutputs, Tensor] | None:
        """Outputs for the validation examples and their given labels; None if there are none."""

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Return the tensor of the first process on every process."""


class LabelStore:
    """Given labels, current labels, and the history of changes; one row per training or validation example.

    ``given`` holds the original labels. ``initial`` holds the labels that a run starts from: reviewed labels where
    available, and given labels otherwise. Both are constant. ``current`` is changed only by ``change``, which records
    every change and never changes a reviewed label.

    Args:
        given: original labels (n,).
        num_classes: k.
        reviewed: reviewed labels (n,), -1 for examples without one.
        weights: number of labels that each reviewed label of a random sample represents (n,), 0 for all others.
        annotations: the labels of all annotators, if there are several; ``given`` then holds the majority votes.
    """

    def __init__(
        self,
        given: Tensor,
        num_classes: int,
        reviewed: Tensor | None = None,
        weights: Tensor | None = None,
        annotations: Annotations | None = None,
    ) -> None:
        self.num_classes, self.annotations = num_classes, annotations
        self._given = given.clone()
        self._trusted = torch.zeros_like(given, dtype=torch.bool) if reviewed is None else reviewed >= 0
        self._initial = given.clone() if reviewed is None else torch.where(self._trusted, reviewed, given)
        self._current = self._initial.clone()
        self._review_weights = torch.zeros(len(given)).to(given.device) if weights is None else weights.clone()
        self._history = {name: [torch.empty(0, dtype=dtype)] for name, dtype in _HISTORY.items()}

    def __len__(self) -> int:
        return len(self._given)

    def __getitem__(self, index: Tensor) -> Tensor:
        """The current labels of a batch: rows (b,) on any device in, labels (b,) on the device of this store out."""
        return self._current[index.to(self._current.device)]

    def to(self, device: torch.device | str) -> Self:
        """Move all labels to a device."""
        for name in ("_given", "_trusted", "_initial", "_current", "_review_weights"):
            setattr(self, name, getattr(self, name).to(device))
        return self

    @property
    def given(self) -> Tensor:
        """A copy of the original labels (n,)."""
        return self._given.clone()

    @property
    def initial(self) -> Tensor:
        """A copy of the labels that a run starts from (n,): reviewed where available, and given otherwise."""
        return self._initial.clone()

    @property
    def trusted(self) -> Tensor:
        """A mask of the reviewed labels (n,), as a copy."""
        return self._trusted.clone()

    @property
    def review_weights(self) -> Tensor:
        """How many labels each reviewed label of a random sample stands for (n,), 0 for all others; a copy."""
        return self._review_weights.clone()

    @property
    def current(self) -> Tensor:
        """The labels after correction (n,); read-only, see ``change``."""
        return self._current

    def change(self, epoch: int, indices: Tensor, labels: Tensor, confidence: Tensor) -> int:
        """Set current labels, except reviewed ones, and return the number of labels that changed.

        Args:
            epoch: epoch to record in the history.
            indices: distinct rows (r,).
            labels: new labels (r,).
            confidence: probability of each new label (r,), to record in the history.
        """
        old = self._current[indices]
        changed = (old != labels) & ~self._trusted[indices]
        indices, old, labels, confidence = (column[changed] for column in (indices, old, labels, confidence.detach()))
        self._current[indices] = labels
        if len(indices):
            epochs = torch.full((len(indices),), epoch)
            for name, column in zip(_HISTORY, (epochs, indices, old, labels, confidence), strict=True):
                self._history[name].append(column.to("cpu", _HISTORY[name]))
        return len(indices)

    def history(self) -> dict[str, Tensor]:
        """Return all changes in order, as columns ``epoch, index, old, new, confidence`` on the CPU."""
        return {name: torch.cat(chunks) for name, chunks in self._history.items()}

    def to_frame(self) -> Any:
        """Return one row per example: a pandas data frame if pandas is installed, or else a pyarrow table.

        The columns are named as in the ``labels.parquet`` of a run: ``index``, ``given_label``, ``current_label``,
        ``suggested_label`` (the same as the current label), ``changed``, ``prob_current`` (the recorded confidence of
        the last change, NaN without a change), ``n_changes``, ``last_changed_epoch`` (0 without a change) and
        ``reviewed``.
        """
        table = pa.table(self._columns())
        return table.to_pandas() if find_spec("pandas") else table

    def _columns(self) -> dict[str, Any]:
        count, history = len(self), self.history()
        index, given, current = history["index"], self._given.cpu(), self._current.cpu()
        last = torch.zeros(count, dtype=torch.int64).scatter_reduce_(0, index, torch.arange(1, len(index) + 1), "amax")
        changed_last = {name: history[name][last - 1] for name in ("epoch", "confidence")} if len(index) else {}
        epoch = changed_last.get("epoch", torch.zeros(count, dtype=torch.int32))
        confidence = changed_last.get("confidence", torch.zeros(count))
        columns = {
            "index": torch.arange(count),
            "given_label": given,
            "current_label": current,
            "suggested_label": current,
            "changed": given != current,
            "prob_current": confidence.masked_fill(last == 0, torch.nan),
            "n_changes": torch.bincount(index, minlength=count),
            "last_changed_epoch": epoch.masked_fill(last == 0, 0),
            "reviewed": self._trusted.cpu(),
        }
        return {name: column.numpy() for name, column in columns.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the current labels and the history."""
        return {"current": self._current.clone(), "history": self.history()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        self._current = state["current"].to(self._current)
        self._history = {name: [state["history"][name].to(dtype)] for name, dtype in _HISTORY.items()}


class RowTable:
    """Rows of a table (n, c) that a training loop records in passing, each process those of its own batches.

    Recording does not wait for the device. ``dtype`` is that of the table.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._recorded: list[tuple[Tensor, Tensor]] = []

    def record(self, index: Tensor, rows: Tensor) -> None:
        """Record the rows (b, c) at ``index`` (b,), which may be on another device."""
        if rows.ndim != 2 or index.shape != rows.shape[:1]:
            raise InputError(
                f"record: index {tuple(index.shape)} and values {tuple(rows.shape)}; expected (b,), (b, c)"
            )
        self._recorded.append((index, rows.detach().to(self.dtype)))

    def collect(self, count: int) -> tuple[Tensor, Tensor]:
        """Return the table (n, c), zero where nothing was recorded, and which rows (n,) were; then forget them.

        Every process returns the same: this is where they exchange rows. Of a row recorded several times, a process
        takes the last; several processes take the mean of theirs.
        """
        if not self._recorded:
            raise InputError("nothing was recorded in this epoch; call record(index, ...) in every step")
        first = self._recorded[0][1]
        table = first.new_zeros(count, first.shape[1])
        seen = torch.zeros(count, device=table.device)
        for index, rows in self._recorded:
            index = index.to(table.device)
            if bool((index < 0).any() | (index >= count).any()):
                low, high = int(index.min()), int(index.max())
                raise InputError(f"index: {low} to {high}; expected rows from 0 to {count - 1}")
            table[index] = rows
            seen[index] = 1.0
        self._recorded.clear()
        if num_processes() > 1:
            torch.distributed.all_reduce(table)
            torch.distributed.all_reduce(seen)
            table /= seen.clamp(min=1.0)[:, None].to(table.dtype)
        return table, seen > 0


class LabelScores(NamedTuple):
    """Out-of-sample scores of the training labels.

    Attributes:
        probs: probabilities of the given and the current label (m, 2), all views combined.
        odds: log-odds that each label is right (m,), before calibration; NaN for labels without a score.
        calibration: the calibration of these log-odds and of those that ``Method.odds`` returns.
        network: probabilities of the given and the current label under out-of-fold networks (m, 2).
        gaussian_probs: the same under leave-one-out class Gaussians (m, 2), if these are a view.
        top2: the two most likely classes (m, 2), all views combined.
        top2_probs: the probabilities of these classes (m, 2).
        fold: fold of each example (m,); None without folds.
        annotators: how reliable each annotator is, if there are several.
        expected_error: expected distance of labels from the true class (m,), if classes are ordered.
    """

    probs: Tensor
    odds: Tensor
    calibration: PlattScaling
    network: Tensor
    gaussian_probs: Tensor | None
    top2: Tensor
    top2_probs: Tensor
    fold: Tensor | None
    annotators: AnnotatorFit | None = None
    expected_error: Tensor | None = None


class Method:
    """Base class of all methods: cross-entropy on the current labels, with hooks that a subclass may override.

    To add a method, write a subclass with its ``Options``, and register it in ``unflip.methods``. The trainer
    calls ``set_networks`` before all other hooks of an object. The networks may be wrapped for distributed training, so
    call them for logits, but use ``unflip.nn.base.unwrap`` to access ``encode`` and ``head``.
    """

    Options: ClassVar[type[Options]] = Options
    num_networks: ClassVar[int] = 1
    tables: ClassVar[int] = 1  # of class probabilities (m, k) in half precision that are in memory at once
    can_be_calibrated: ClassVar[bool] = True  # whether each network has its own head, which calibration trains
    uses_order: ClassVar[bool] = False  # whether it prefers neighbors, if classes are ordered
    uses_annotations: ClassVar[bool] = False  # whether it learns from the labels of several annotators, if given
    records_probs: bool = False  # whether the trainer records the softmax of each training pass

    def __init__(self, options: Any, context: TrainContext) -> None:
        self.options = options
        self.context = context
        self.networks: Sequence[nn.Module] = ()

    def set_networks(self, networks: Sequence[nn.Module]) -> None:
        """Take the networks that will be trained, on their device."""
        self.networks = networks

    @property
    def warmup(self) -> int:
        """Number of epochs before the method acts on labels; by default the option ``warmup``, or else 0.

        Calibration starts after these epochs.
        """
        return int(getattr(self.options, "warmup", 0))

    @classmethod
    def options_for(cls, section: str, shape: RunShape) -> dict[str, Any]:
        """Return options, by section, that suit a run better than the defaults; ``section`` is that of the method.

        By default, ``warmup`` is limited to a third of the epochs.
        """
        field = cls.Options.model_fields.get("warmup")
        if field is None or not isinstance(field.default, int):
            return {}
        return {section: {"warmup": min(field.default, max(1, shape.epochs // 3))}}

    @classmethod
    def check_options(cls, section: str, options: Any, epochs: int) -> None:
        """Raise ConfigError if the options do not fit the number of epochs.

        By default, ``warmup`` must be shorter than the run.
        """
        warmup = getattr(options, "warmup", None)
        if isinstance(warmup, int) and warmup >= max(2, epochs):  # the earliest is the first epoch
            hint = f"try --epochs {3 * warmup} or --set {section}.warmup={max(1, epochs // 3)}"
            raise ConfigError(f"{section}.warmup = {warmup} is not below epochs = {epochs}; {hint}")

    @classmethod
    def build_networks(cls, options: Any, context: TrainContext, build: Callable[[int], Network]) -> list[Network]:
        """Return the networks to train; ``build(i)`` returns a network with its own initial weights."""
        return [build(position) for position in range(cls.num_networks)]

    def phases(self, epoch: int, observed: EpochOutputs, labels: LabelStore) -> Iterable[Phase]:
        """Yield the phases of ``epoch`` (counted from 1).

        If this is a generator, it continues after each phase has been trained. A method with several phases must start
        with phase number ``observed.phases_done``, because its state and the labels already include earlier phases.
        """
        return [Phase(self.context.train)]

    def criterion(self, logits: Tensor, labels: Tensor, indices: Tensor) -> Tensor:
        """Return the loss of each example (b,); ``indices`` are rows of the label store."""
        return F.cross_entropy(logits, labels, reduction="none")

    def loss(self, batch: Batch, phase: Phase) -> LossOutput:
        """Return the loss of a batch."""
        logits = self.networks[0](batch.inputs)
        return LossOutput({"loss": self.criterion(logits, batch.labels, batch.indices).mean()}, logits)

    def before_step(self) -> None:
        """Called after the backward pass of each step, before the optimizers update the weights."""

    def after_step(self) -> None:
        """Called after the optimizers have updated the weights."""

    def end_epoch(self, epoch: int, observed: EpochOutputs, labels: LabelStore) -> dict[str, Any]:
        """Correct labels, refit models, and update thresholds; return metrics of the epoch."""
        return {}

    def model(self) -> Ensemble:
        """Return the model that makes predictions; by default the mean of the networks."""
        return Ensemble(self.networks)

    def train_probs(self) -> Tensor | None:
        """Return the method's class probabilities for the training examples (m, k), if it has any."""
        return None

    def label_scores(self, labels: LabelStore) -> LabelScores | None:
        """Return out-of-sample scores of the training labels, if the method has any."""
        return None

    def correct(self, probs: Tensor, labels: Tensor) -> Tensor:
        """Return corrected labels (m,) for examples not used for training; by default the given labels.

        Args:
            probs: the model's class probabilities (m, k).
            labels: given labels (m,).
        """
        return labels

    def odds(self, probs: Tensor, labels: Tensor) -> Tensor:
        """Return the log-odds (m,), before calibration, that the labels of examples not used for training are right.

        Args:
            probs: the model's class probabilities (m, k).
            labels: given labels (m,).
        """
        return log_odds(probs.clamp(min=1e-30).log(), labels)

    def gaussians(self) -> ClassGaussians | None:
        """Return the class Gaussians of the last epoch, if the method fits any."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs besides networks and labels.

        It may contain tensors, numbers, strings, dictionaries and lists.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""


class Standard(Method):
    """Cross-entropy on the given labels: the baseline, with the defaults of every hook."""


def storage_dtype(values: int) -> torch.dtype:
    """Return the dtype of a table of ``values`` numbers: float16 if it is large; convert rows to float32 to compute."""
    return torch.float16 if values > HALF_ABOVE else torch.float32


def moved(state: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """Return a saved state with its tensors on ``device``."""
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in state.items()}
