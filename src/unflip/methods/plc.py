"""PLC: progressive label correction (Zhang et al. 2021), the method that MDDC and CDDC calibrate.

Steps 1 to 7 of the paper's Algorithm 2: warm up on the given labels; then, at each epoch's end, flip the labels that
the network contradicts confidently enough, and train the next epoch on the result. How confident is enough is a
threshold that is relaxed whenever correction stalls.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor

from unflip.methods.base import EpochOutputs, Method, Phase, TrainContext
from unflip.methods.labels import LabelStore
from unflip.options import Options
from unflip.stats.rows import storage_dtype

_PATIENCE = 3  # the warm-up ends after this many epochs without a better noisy validation accuracy
_ROWS = 4096  # examples whose probabilities are added up at once; they fit in the cache
_ONE_ABOVE = 2**28  # values of a window beyond which only a running mean is kept


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
    """Progressive correction; the defaults are those of PLC's released code for CIFAR."""

    rule: Literal["ratio", "margin"] = "ratio"
    """`ratio` flips where f_y / f_g is below the threshold, `margin` where f_g - f_y is above it."""
    threshold: float | None = Field(None, gt=0.0, lt=1.0)
    """Where the threshold starts: 0.3 for ratio, 0.7 for margin."""
    step: float = Field(0.1, ge=0.0, lt=1.0)
    """How far it moves, up for ratio, down for margin, whenever correction stalls."""
    limit: float | None = Field(None, gt=0.0, lt=1.0)
    """Where it stops moving: 0.9 for ratio, 0.1 for margin."""
    stall: float = Field(0.001, ge=0.0, le=1.0)
    """Correction stalls when less than this share of the training labels changed."""
    window: PositiveInt = 5
    """Epochs whose training-pass probabilities are averaged."""
    warmup: NonNegativeInt | Literal["auto"] = 8
    """Labels first change at the end of this epoch (0 counts as 1); `auto`: when noisy validation stops improving."""
    rounds: PositiveInt = 1
    """Most times that an epoch trains and corrects; it stops early when no label changes."""


class PLC(Method):
    """Cross-entropy on labels that are corrected at each epoch's end, from the end of the warm-up on.

    With warm-up t_w, epochs 1 to t_w train on the given labels (step 1), and the end of epoch t_w is the first to
    correct: steps 3 to 6 of epoch t are done at the end of epoch t - 1. f is the mean softmax of the last epochs'
    training passes, so it needs no extra pass.
    """

    Options = CorrectionOptions
    options: CorrectionOptions
    records_probs = True

    def __init__(self, options: CorrectionOptions, context: TrainContext) -> None:
        super().__init__(options, context)
        self.corrector = Corrector(options, context.train)
        self.changed = 0
        self.warming = Warmup(options.warmup, context.epochs)

    @property
    def warmup(self) -> int:
        """Epochs on the given labels; the maximum, while the actual number is not yet known."""
        return self.warming.end

    def phases(self, epoch: int, observed: EpochOutputs, labels: LabelStore) -> Iterator[Phase]:
        """Yield one pass, or up to ``rounds``, each after another correction, until no label changes."""
        first = observed.phases_done
        if first == 0:
            self.changed = 0
        for number in range(first, self.options.rounds if epoch >= self.warmup else 1):
            if number > first and not self._correct(epoch, observed, labels):
                break
            yield Phase(self.context.train)

    def end_epoch(self, epoch: int, observed: EpochOutputs, labels: LabelStore) -> dict[str, Any]:
        """Correct the labels for the next epoch (steps 3 to 6); in the warm-up, only record the probabilities."""
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
        """Return threshold, window, warm-up, and the number of labels changed in the current epoch."""
        return {
            "corrector": self.corrector.state_dict(),
            "warming": self.warming.state_dict(),
            "changed": self.changed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        self.corrector.load_state_dict(state["corrector"])
        self.changed = state["changed"]
        self.warming.load_state_dict(state["warming"])


class Corrector:
    """Progressive label correction: a rule, a window of probabilities, and a threshold that relaxes when it stalls.

    tau(t), the threshold of epoch t, is not a schedule: it moves one step whenever fewer than ``stall`` of the labels
    changed, as in PLC's released code. A plain training loop can use this object as well: add each epoch's
    probabilities to ``window``, then call :meth:`correct`.

    Args:
        options: rule, threshold and window.
        rows: the rows of the label store that train (m,), in the order of the probabilities.
    """

    def __init__(self, options: CorrectionOptions, rows: Tensor) -> None:
        self.options = options
        self.rows = rows
        self.threshold = options.threshold or _FIRST_THRESHOLD[options.rule]
        self.window = ProbabilityWindow(options.window)

    def propose(self, probs: Tensor, labels: Tensor) -> Tensor:
        """Return what the rule proposes at the current threshold."""
        return RULES[self.options.rule](probs, labels, self.threshold)

    def correct(self, epoch: int, labels: LabelStore) -> int:
        """Change labels by the window's mean and return how many changed; on a stall, relax the threshold."""
        probs = self.window.mean()
        wanted = self.propose(probs, labels.current[self.rows])
        changed = labels.change(epoch, self.rows, wanted, probs.gather(1, wanted[:, None])[:, 0])
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
    """The class probabilities of the last few epochs, and their mean over the epochs so far.

    Large windows are kept in half precision. Of still larger ones, as with 10,000 classes, only a running mean is kept;
    once it covers ``size`` epochs, each new epoch moves it ``1 / size`` of the way.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.kept: list[Tensor] = []
        self.count = 0

    def add(self, probs: Tensor) -> None:
        """Add an epoch's probabilities (m, k); the oldest drop out, or fade in the running mean."""
        values = probs.numel() * self.size
        self.count = min(self.count + 1, self.size)
        if values > _ONE_ABOVE and self.kept:
            for start in range(0, len(probs), _ROWS):
                rows = self.kept[0][start : start + _ROWS]
                rows.copy_(rows.float().lerp_(probs[start : start + _ROWS].float(), 1 / self.count))
            return
        self.kept = [*self.kept, probs.to(storage_dtype(values))][-self.size :]

    def mean(self) -> Tensor:
        """Return the mean (m, k), in half precision if it is large; of one epoch it is that epoch's own table."""
        kind = storage_dtype(self.kept[0].numel())
        if len(self.kept) == 1:
            return self.kept[0].to(kind)
        mean = torch.empty_like(self.kept[0], dtype=kind)
        for start in range(0, len(mean), _ROWS):
            rows = self.kept[0][start : start + _ROWS].to(torch.float32, copy=True)
            for probs in self.kept[1:]:
                rows += probs[start : start + _ROWS].float()
            mean[start : start + _ROWS] = rows.div_(len(self.kept))
        return mean

    def state_dict(self) -> dict[str, Any]:
        """Return what was kept."""
        return {"kept": list(self.kept), "count": self.count}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """Restore what was kept."""
        self.kept, self.count = [probs.to(device) for probs in state["kept"]], state["count"]


class Warmup:
    """Epochs on the given labels.

    A network first learns what most labels have in common and memorizes individual wrong labels later. From then on its
    accuracy on the noisy labels of the validation examples stops improving. So an ``auto`` warm-up ends when that has
    not improved for three epochs, at the latest (and without validation examples always) after a third of the epochs.
    Once it has ended it stays so, also where a run is resumed for more epochs.

    Args:
        length: the number of epochs (0 counts as 1), or `auto`.
        epochs: those of the run.
    """

    def __init__(self, length: int | Literal["auto"], epochs: int) -> None:
        self.length = length
        self.epochs = epochs
        self.scores: list[float] = []  # noisy validation accuracy of each warm-up epoch, where it is looked at
        self.ended: int | None = None  # the epoch that an automatic warm-up ended with

    @property
    def end(self) -> int:
        """The last epoch of the warm-up; the latest possible one, while the actual one is not yet known."""
        if self.ended is not None:
            return self.ended
        if self.length == "auto":
            return warmup_end(self.scores, math.ceil(self.epochs / 3))
        return max(1, self.length)

    def observe(self, epoch: int, observed: EpochOutputs) -> None:
        """Note an epoch's noisy validation accuracy, if the warm-up depends on it, and whether it is over."""
        if self.length != "auto" or self.ended is not None:
            return
        if held_out := observed.validation():
            forward, given = held_out
            self.scores.append(float((forward.logits.argmax(1) == given).float().mean()))
        if epoch >= self.end:
            self.ended = epoch

    def state_dict(self) -> dict[str, Any]:
        """Return what an automatic warm-up has seen."""
        return {"scores": list(self.scores), "ended": self.ended}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        self.scores, self.ended = list(state["scores"]), state["ended"]


def warmup_end(scores: Sequence[float], latest: int) -> int:
    """Return the first epoch (counted from 1) whose best score is three epochs old; at most ``latest``."""
    best = 0
    for position, score in enumerate(scores):
        if score > scores[best]:
            best = position
        if position - best >= _PATIENCE:
            return min(position + 1, latest)
    return latest
