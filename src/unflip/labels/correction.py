"""Label correction: which labels to change now. Rules are stateless; window and threshold keep state."""

from typing import Any, Literal

import torch
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor

from unflip.labels.store import LabelStore
from unflip.options import Options
from unflip.stats.kept import kind_for

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
        self.kept = [*self.kept, probs.to(kind_for(values))][-self.size :]

    def mean(self) -> Tensor:
        """Return the mean (m, k), in half precision if it is large; of one epoch it is that epoch's own table."""
        kind = kind_for(self.kept[0].numel())
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


class Corrector:
    """Progressive label correction: a rule, a window of probabilities, and a threshold that relaxes when it stalls."""

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
