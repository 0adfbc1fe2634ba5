"""PLC: progressive label correction (Zhang et al. 2021), the method that MDDC and CDDC calibrate.

Steps 1 to 7 of the paper's Algorithm 2: warm up on the given labels; then, at each epoch's end, flip the labels that
the network contradicts with enough confidence, and train the next epoch on the corrected labels. The confidence needed
is a threshold, relaxed whenever correction stalls.
"""

import math
from collections.abc import Iterator
from functools import reduce
from typing import Any, Literal

import torch
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor

from unflip.methods.base import EpochOutputs, LabelStore, Method, Phase, TrainContext, storage_dtype
from unflip.options import Options

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


class CorrectionOptions(Options):
    """Progressive label correction; defaults from PLC's released code for CIFAR."""

    rule: Literal["ratio", "margin"] = "ratio"
    """`ratio` flips where f_y / f_g is below the threshold, `margin` where f_g - f_y is above it."""
    threshold: float | None = Field(None, gt=0.0, lt=1.0)
    """Initial threshold: 0.3 for ratio, 0.7 for margin."""
    step: float = Field(0.1, ge=0.0, lt=1.0)
    """Step of the threshold, up for ratio, down for margin, whenever correction stalls."""
    limit: float | None = Field(None, gt=0.0, lt=1.0)
    """Final threshold: 0.9 for ratio, 0.1 for margin."""
    stall: float = Field(0.001, ge=0.0, le=1.0)
    """Correction stalls when less than this fraction of the training labels changed."""
    window: PositiveInt = 5
    """Epochs whose training-pass probabilities are averaged."""
    warmup: NonNegativeInt | Literal["auto"] = 8
    """Labels first change at the end of this epoch (0 counts as 1); `auto`: when noisy validation stops improving."""
    rounds: PositiveInt = 1
    """Maximum number of rounds of training and correction in an epoch; it stops when no label changes."""


class PLC(Method):
    """Cross-entropy on labels that are corrected at each epoch's end, from the end of the warm-up on.

    With warm-up t_w, epochs 1 to t_w train on the given labels (step 1), and labels are first corrected at the end of
    epoch t_w: steps 3 to 6 of epoch t run at the end of epoch t - 1. f is the mean softmax of the last epochs' training
    passes, which needs no extra pass.
    """

    Options = CorrectionOptions
    options: CorrectionOptions
    tables = 4
    records_probs = True

    def __init__(self, options: CorrectionOptions, context: TrainContext) -> None:
        super().__init__(options, context)
        self.corrector = Corrector(options, context.train)
        self.changed = 0
        self.warming = Warmup(options.warmup, context.epochs)

    @property
    def warmup(self) -> int:
        """Number of epochs on the given labels; an upper limit while an automatic warm-up is running."""
        return self.warming.end

    def phases(self, epoch: int, observed: EpochOutputs, labels: LabelStore) -> Iterator[Phase]:
        """Yield up to ``rounds`` passes, each after another correction, until no label changes."""
        first = observed.phases_done
        if first == 0:
            self.changed = 0
        for number in range(first, self.options.rounds if epoch >= self.warmup else 1):
            if number > first and not self._correct(epoch, observed, labels):
                break
            yield Phase(self.context.train)

    def end_epoch(self, epoch: int, observed: EpochOutputs, labels: LabelStore) -> dict[str, Any]:
        """Correct labels for the next epoch (steps 3 to 6); during the warm-up, only record probabilities."""
        self.warming.observe(epoch, observed)
        if epoch >= self.warmup:
            self._correct(epoch, observed, labels)
        else:
            self.corrector.window.add(observed.probs)
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


class Corrector:
    """Progressive label correction: a rule, a window of probabilities, and a threshold that relaxes when it stalls.

    tau(t), the threshold of epoch t, moves one step whenever less than a fraction ``stall`` of the labels changed, as
    in PLC's released code. To use this in your own loop, add each epoch's probabilities to ``window``, then call
    :meth:`correct`.

    Args:
        options: rule, threshold and window.
        rows: training rows of the label store (m,), in the order of the probabilities.
    """

    def __init__(self, options: CorrectionOptions, rows: Tensor) -> None:
        self.options = options
        self.rows = rows
        self.threshold = options.threshold or _FIRST_THRESHOLD[options.rule]
        self.window = ProbabilityWindow(options.window)

    def propose(self, probs: Tensor, labels: Tensor) -> Tensor:
        """Return the labels (m,) that the rule proposes at the current threshold."""
        return RULES[self.options.rule](probs, labels, self.threshold)

    def correct(self, epoch: int, labels: LabelStore) -> int:
        """Correct labels by the window's mean, relax the threshold on a stall, and return the number of changes."""
        probs = self.window.mean()
        proposed = self.propose(probs, labels.current[self.rows])
        changed = labels.change(epoch, self.rows, proposed, probs.gather(1, proposed[:, None])[:, 0])
        if changed < self.options.stall * len(self.rows):
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

    def state_dict(self) -> dict[str, Any]:
        """Return threshold and window."""
        return {"threshold": self.threshold, "window": self.window.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore threshold and window."""
        self.threshold = state["threshold"]
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
