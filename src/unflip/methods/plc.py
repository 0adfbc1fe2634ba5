"""PLC: progressive label correction (Zhang et al. 2021), the method that MDDC and CDDC calibrate.

Steps 1 to 7 of the paper's Algorithm 2: warm up on the given labels; then, at each epoch's end, flip the labels that
the network contradicts with enough confidence, and train the next epoch on the corrected labels. The confidence needed
is a threshold, relaxed only when correction stalls.
"""

import math
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any, Literal, Self

import torch
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor

from unflip.errors import InputError
from unflip.methods.base import EpochOutputs, LabelStore, Method, Phase, RowTable, TrainContext, storage_dtype
from unflip.methods.unflip.posterior import score_labels
from unflip.noise.transition import check_labels
from unflip.options import Options, check_options

BLOCK_ROWS = 4096
"""Examples whose probabilities are averaged at once; they fit in the cache."""
RUNNING_MEAN_ABOVE = 2**28
"""Values of a window beyond which only a running mean is stored."""
_PATIENCE = 3  # the warm-up ends after this many epochs without a better noisy validation accuracy


def ratio_rule(probs: Tensor, labels: Tensor, threshold: float) -> Tensor:
    """Flip to the most probable class g where ``f_y / f_g < threshold``: the rule of PLC's released code (delta there).

    AdaCorr's likelihood-ratio rule ``f_g / f_y > delta`` is the same, with ``threshold = 1 / delta``.
    """
    top, best = probs.max(1)
    own = probs.gather(1, labels[:, None])[:, 0]
    return torch.where(own < threshold * top, best, labels)


def margin_rule(probs: Tensor, labels: Tensor, threshold: float) -> Tensor:
    """Flip to the most probable class g where ``f_g - f_y > threshold`` (the paper's Appendix B, tau there).

    With two classes ``f_g - f_y = 2 |f - 1/2|``, so this is section 3.1's ``|f - 1/2| > threshold / 2``.
    """
    top, best = probs.max(1)
    own = probs.gather(1, labels[:, None])[:, 0]
    return torch.where(top - own > threshold, best, labels)


RULES = {"ratio": ratio_rule, "margin": margin_rule}
_FIRST_THRESHOLD = {"ratio": 0.3, "margin": 0.7}
_LAST_THRESHOLD = {"ratio": 0.9, "margin": 0.1}


class RuleOptions(Options):
    """Progressive label correction; defaults from PLC's released code for CIFAR."""

    rule: Literal["ratio", "margin"] = "ratio"
    """With class probabilities f, a label y changes to the predicted class g: with `ratio` if f_y / f_g is below the
    threshold, with `margin` if f_g - f_y is above it."""
    threshold: float | None = Field(None, gt=0.0, lt=1.0)
    """Initial threshold: 0.3 for ratio, 0.7 for margin."""
    step: float = Field(0.1, ge=0.0, lt=1.0)
    """By how much the threshold rises (ratio) or falls (margin) whenever correction stalls."""
    limit: float | None = Field(None, gt=0.0, lt=1.0)
    """Final threshold: 0.9 for ratio, 0.1 for margin."""
    stall: float = Field(0.001, ge=0.0, le=1.0)
    """Correction stalls if it changes less than this fraction of the training labels."""
    window: PositiveInt = 5
    """Number of epochs over which the probabilities of the training passes are averaged."""


class CorrectionOptions(RuleOptions):
    """Progressive label correction in a run."""

    warmup: NonNegativeInt | Literal["auto"] = 8
    """Labels first change at the end of this epoch (0 counts as 1); with `auto`, once the accuracy on noisy validation
    labels stops improving."""
    rounds: PositiveInt = 1
    """Maximum number of rounds of training and correction in an epoch; fewer if a round changes no label."""


class PLC(Method):
    """Cross-entropy on labels that are corrected at each epoch's end, from the end of the warm-up on.

    With warm-up t_w, epochs 1 to t_w train on the given labels (step 1), and labels are first corrected at the end of
    epoch t_w: steps 3 to 6 of epoch t run at the end of epoch t - 1. The correction at the end of the last epoch has no
    counterpart in the paper: no training follows, but the run's labels include it. f is the mean softmax of the last
    epochs' training passes, which needs no extra pass.
    """

    Options = CorrectionOptions
    options: CorrectionOptions
    tables = 4
    records_probs = True

    def __init__(self, options: CorrectionOptions, context: TrainContext) -> None:
        super().__init__(options, context)
        self.corrector = Corrector(options, context.train)
        self.changed = 0
        self.settled = False  # whether the last round of this epoch changed no label
        self.warming = Warmup(options.warmup, context.epochs)

    @property
    def warmup(self) -> int:
        """Number of epochs on the given labels; an upper limit while an automatic warm-up is running."""
        return self.warming.end

    def phases(self, epoch: int, observed: EpochOutputs, labels: LabelStore) -> Iterator[Phase]:
        """Yield up to ``rounds`` passes, each after another correction, until no label changes."""
        first, self.settled = observed.phases_done, False
        if first == 0:
            self.changed = 0
        for number in range(first, self.options.rounds if epoch >= self.warmup else 1):
            if number > first and not self._correct(epoch, observed, labels):
                self.settled = True
                break
            yield Phase(self.context.train)

    def end_epoch(self, epoch: int, observed: EpochOutputs, labels: LabelStore) -> dict[str, Any]:
        """Correct labels for the next epoch (steps 3 to 6); during the warm-up, only record probabilities.

        If rounds ended because no label changed, labels were corrected by this pass already.
        """
        self.warming.observe(epoch, observed)
        if epoch < self.warmup:
            self.corrector.window.add(observed.probs)
        elif not self.settled:
            self._correct(epoch, observed, labels)
        return {"changed": self.changed, "threshold": self.corrector.threshold}

    def _correct(self, epoch: int, observed: EpochOutputs, labels: LabelStore) -> int:
        self.corrector.window.add(observed.probs)
        changed = self.corrector.correct(epoch, labels)
        self.changed += changed
        return changed

    def train_probs(self) -> Tensor:
        """Return the mean probabilities of the window."""
        return self.corrector.window.mean()

    def correct(self, probs: Tensor, labels: Tensor) -> Tensor:
        """Apply the rule with the current threshold."""
        return self.corrector.propose(probs, labels)

    def state_dict(self) -> dict[str, Any]:
        """Return threshold, window, warm-up, and number of labels changed in the current epoch."""
        return {"corrector": self.corrector.state_dict(), "warming": self.warming.state_dict(), "changed": self.changed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        self.corrector.load_state_dict(state["corrector"])
        self.changed = state["changed"]
        self.warming.load_state_dict(state["warming"])


class LabelCorrection(LabelStore):
    """Labels that are corrected while your own network learns from them: PLC's correction for any training loop.

    In every step, train on ``labels[index]`` and call ``record`` with the logits. At the end of every epoch, call
    ``step``, which corrects the labels for the next epoch once the warm-up is over. If an example was not recorded in
    an epoch, its last probabilities are used. ``to_frame`` has the additional column ``label_quality``, computed from
    the mean probabilities of the window. These scores are in-sample, so use them only to rank labels.

    Labels and probabilities are stored on the device of ``given``, which should be that of the network, so that no step
    has to wait. Labels take 37 bytes per example. Probabilities take 4 bytes per example, class and epoch of the window
    (2 bytes if there are more than 2**26 of them per epoch). Several processes exchange what they recorded once per
    epoch, so all of them correct the same labels.

    Args:
        given: the original labels (n,), 0 to k - 1.
        num_classes: k.
        warmup: labels first change at the end of this epoch.
        reviewed: reviewed labels (n,), which never change; -1 for examples without one.
        schedule: the threshold as a function of the number of corrections so far; by default, the threshold is relaxed
            whenever correction stalls. The rule of LRT is ``lambda n: 1 / (1.2 + 0.02 * n)`` with ``window=10``.
        options: the options ``rule``, ``threshold``, ``step``, ``limit``, ``stall`` and ``window`` of the method `plc`.

    >>> labels = LabelCorrection(torch.tensor([0, 0, 1]), 2, warmup=1)
    >>> labels.record(torch.tensor([0, 1, 2]), torch.tensor([[2.0, 0.0], [0.0, 2.0], [0.0, 2.0]]))
    >>> labels.step(), labels.current
    (1, tensor([0, 1, 1]))
    """

    def __init__(
        self,
        given: Tensor,
        num_classes: int,
        *,
        warmup: int = 8,
        reviewed: Tensor | None = None,
        schedule: Callable[[int], float] | None = None,
        **options: Any,
    ) -> None:
        given = torch.as_tensor(given)
        if reviewed is not None:
            reviewed = torch.as_tensor(reviewed).to(given.device)
            check_labels(reviewed.where(reviewed != -1, 0), num_classes, what="reviewed labels", clean=given)
        super().__init__(check_labels(given, num_classes, what="given labels").to(given.device), num_classes, reviewed)
        rows = torch.arange(len(given), device=given.device)
        self.corrector = Corrector(check_options(RuleOptions, options), rows, schedule)
        self.warmup = max(1, warmup)
        self.epoch = 0  # epochs done
        self._recorded = RowTable(storage_dtype(len(given) * num_classes))

    @property
    def correcting(self) -> bool:
        """Whether the warm-up is over, so that labels are corrected at the end of the epoch and the head calibrated."""
        return self.epoch >= self.warmup

    def record(self, index: Tensor, logits: Tensor) -> None:
        """Record the logits (b, k) of the examples ``index`` (b,) in a training step."""
        if logits.ndim != 2 or logits.shape[1] != self.num_classes:
            raise InputError(f"record: logits have shape {tuple(logits.shape)}; expected (b, {self.num_classes})")
        self._recorded.record(index, logits.detach().float().softmax(1))

    def step(self) -> int:
        """End an epoch, correct labels if the warm-up is over, and return the number of labels that changed."""
        probs, seen = self._recorded.collect(len(self))
        window = self.corrector.window
        if window.stored:
            probs = torch.where(seen[:, None], probs, window.stored[-1].to(probs.device))
        window.add(probs.to(self._current.device))
        self.epoch += 1
        return self.corrector.correct(self.epoch, self) if self.correcting else 0

    def _columns(self) -> dict[str, Any]:
        window, quality = self.corrector.window, torch.full((len(self),), torch.nan)
        if window.stored:
            quality = score_labels(window.mean().float().cpu(), self._given.cpu())[1].sigmoid().float()
        return super()._columns() | {"label_quality": quality.numpy()}

    def to(self, device: torch.device | str) -> Self:
        """Move labels and probabilities to a device."""
        self.corrector.to(torch.device(device))
        return super().to(device)

    def state_dict(self) -> dict[str, Any]:
        """Return labels, history, probabilities and threshold at the end of an epoch."""
        return super().state_dict() | {"epoch": self.epoch, "corrector": self.corrector.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        super().load_state_dict(state)
        self.epoch = state["epoch"]
        self.corrector.load_state_dict(state["corrector"])


class Corrector:
    """A rule, a window of probabilities, and a threshold: what corrects the labels of a store, in a run or elsewhere.

    tau(t), the threshold of epoch t, moves one step whenever less than a fraction ``stall`` of the labels changed, as
    in PLC's released code, unless there is a schedule.

    Args:
        options: rule, threshold and window.
        rows: training rows of the label store (m,), in the order of the probabilities.
        schedule: the threshold as a function of the number of corrections so far.
    """

    def __init__(self, options: RuleOptions, rows: Tensor, schedule: Callable[[int], float] | None = None) -> None:
        self.options = options
        self.rows = rows
        self.schedule = schedule
        self.threshold = schedule(0) if schedule else options.threshold or _FIRST_THRESHOLD[options.rule]
        self.corrections = 0
        self.window = ProbabilityWindow(options.window)

    def propose(self, probs: Tensor, labels: Tensor) -> Tensor:
        """Return the labels (m,) that the rule proposes at the current threshold."""
        return RULES[self.options.rule](probs, labels, self.threshold)

    def correct(self, epoch: int, labels: LabelStore) -> int:
        """Correct labels by the window's mean, relax the threshold on a stall, and return the number of changes."""
        if self.schedule:
            self.threshold = self.schedule(self.corrections)
        probs = self.window.mean()
        proposed = self.propose(probs, labels.current[self.rows])
        changed = labels.change(epoch, self.rows, proposed, probs.gather(1, proposed[:, None])[:, 0])
        self.corrections += 1
        if not self.schedule and changed < self.options.stall * len(self.rows):
            self.relax()
        return changed

    def relax(self) -> None:
        """Move the threshold one step towards its limit."""
        options = self.options
        limit = options.limit or _LAST_THRESHOLD[options.rule]
        if options.rule == "ratio":
            self.threshold = max(self.threshold, min(round(self.threshold + options.step, 10), limit))
        else:
            self.threshold = min(self.threshold, max(round(self.threshold - options.step, 10), limit))

    def to(self, device: torch.device) -> None:
        """Move rows and window to a device."""
        self.rows = self.rows.to(device)
        self.window.load_state_dict(self.window.state_dict(), device)

    def state_dict(self) -> dict[str, Any]:
        """Return threshold, number of corrections, and window."""
        window = self.window.state_dict()
        return {"threshold": self.threshold, "corrections": self.corrections, "window": window}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        self.threshold, self.corrections = state["threshold"], state["corrections"]
        self.window.load_state_dict(state["window"], self.rows.device)


class ProbabilityWindow:
    """Class probabilities of the last ``size`` epochs, and their mean.

    Large windows are stored in half precision. Of still larger ones, as with 10,000 classes, only a running mean is
    stored; once it covers ``size`` epochs, each new epoch moves it ``1 / size`` of the way.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.stored: list[Tensor] = []
        self.count = 0

    def add(self, probs: Tensor) -> None:
        """Add the probabilities (m, k) of an epoch, and drop the oldest."""
        values = probs.numel() * self.size
        self.count = min(self.count + 1, self.size)
        if values > RUNNING_MEAN_ABOVE and self.stored:
            for mean, rows in zip(self.stored[0].split(BLOCK_ROWS), probs.split(BLOCK_ROWS), strict=True):
                mean.copy_(mean.float().lerp_(rows.float(), 1 / self.count))
            return
        self.stored = [*self.stored, probs.to(storage_dtype(values))][-self.size :]

    def mean(self) -> Tensor:
        """Return the mean (m, k), in half precision if it is large."""
        dtype = storage_dtype(self.stored[0].numel())
        if len(self.stored) == 1:
            return self.stored[0].to(dtype)
        mean = torch.empty_like(self.stored[0], dtype=dtype)
        for rows, *epochs in zip(*(table.split(BLOCK_ROWS) for table in (mean, *self.stored)), strict=True):
            rows.copy_(reduce(torch.add, (probs.float() for probs in epochs)) / len(epochs))
        return mean

    def state_dict(self) -> dict[str, Any]:
        """Return the stored probabilities."""
        return {"stored": list(self.stored), "count": self.count}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """Restore the stored probabilities."""
        self.stored, self.count = [probs.to(device) for probs in state["stored"]], state["count"]


class Warmup:
    """Number of epochs on the given labels, fixed or chosen by noisy validation accuracy.

    A network first learns patterns and memorizes wrong labels later; from then on its accuracy on noisy validation
    labels stops improving. So an ``auto`` warm-up ends when that has not improved for three epochs, and at the latest
    (without validation examples always) after a third of the epochs. It does not restart in a run resumed for more
    epochs.

    Args:
        length: number of epochs (0 counts as 1), or ``auto``.
        epochs: number of epochs of the run.
    """

    def __init__(self, length: int | Literal["auto"], epochs: int) -> None:
        self.end = math.ceil(epochs / 3) if length == "auto" else max(1, length)
        self.is_open = length == "auto"  # whether it may still end earlier
        self.scores: list[float] = []  # noisy validation accuracy of each epoch of an automatic warm-up

    def observe(self, epoch: int, observed: EpochOutputs) -> None:
        """Record the noisy validation accuracy of an epoch of an automatic warm-up, and end it if due."""
        if not self.is_open:
            return
        if validation := observed.validation():
            outputs, given = validation
            self.scores.append(float((outputs.logits.argmax(1) == given).float().mean()))
        before, last = self.scores[:-_PATIENCE], self.scores[-_PATIENCE:]
        if epoch >= self.end or (before and max(last) <= max(before)):
            self.end, self.is_open = epoch, False

    def state_dict(self) -> dict[str, Any]:
        """Return the scores, and the last epoch if that is known."""
        return {"scores": list(self.scores), "ended": None if self.is_open else self.end}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        self.scores = list(state["scores"])
        if state["ended"] is not None:
            self.end, self.is_open = state["ended"], False
