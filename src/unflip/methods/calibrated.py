"""Calibrated: wraps any method; at each epoch's end, fit Gaussians, sample features, train the head on them."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any, Literal, Protocol

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from unflip.errors import ConfigError
from unflip.labels.store import LabelStore
from unflip.losses import cross_entropy
from unflip.methods.base import CALIBRATED, Method, Observed, Setting
from unflip.methods.wrapper import Wrapper
from unflip.nn.base import bare
from unflip.options import Options
from unflip.seeding import generator
from unflip.stats.gaussians import ClassGaussians
from unflip.stats.members import class_means

SAMPLE_FRACTIONS = (0.10, 0.15, 0.20, 0.25)
"""The candidates of ``sample_fraction = "auto"``: the values of the paper's Figure 5."""


class CalibrationOptions(Options):
    """How many features are sampled, and how the head is trained on them."""

    sample_fraction: Annotated[float, Field(gt=0.0, le=10.0)] | Literal["auto"] = 0.10
    """lambda: samples per epoch as a fraction of the training examples, the same number for each class."""
    head_lr: float = Field(1e-4, gt=0.0)
    """Learning rate of the head's own optimiser, which follows the run's schedule."""
    head_momentum: float = Field(0.9, ge=0.0, lt=1.0)
    """Momentum of the head's own optimiser."""
    start: PositiveInt | None = None
    """First epoch with calibration; by default the one after the inner method's warm-up."""
    every: PositiveInt = 1
    """Number of epochs from one calibration to the next."""


class Calibrator(Protocol):
    """Features and labels in, class Gaussians out."""

    candidates: Sequence[float]
    """Disturbances to choose from; a single value if it is fixed."""
    moves_means: bool
    """Whether the means differ from the plain means of the features."""

    def fit(
        self, features: Tensor, labels: Tensor, num_classes: int, previous: ClassGaussians | None = None
    ) -> ClassGaussians:
        """Fit one Gaussian per class; a class that cannot be fitted keeps its previous one."""


@dataclass
class _Head:
    """Calibration state of one network: its head's optimiser and the class Gaussians."""

    optimizer: torch.optim.SGD
    gaussians: ClassGaussians | None = None


class Calibrated(Wrapper):
    """Dynamic distribution calibration (the paper's Algorithm 2, steps 8 to 13) around any method.

    At an epoch's end, before the inner method corrects labels: fit one Gaussian per class to the features, under the
    labels just trained on, sample from all of them, and train only the head on the samples, with its own optimiser.

    Where the disturbance or the sample fraction is ``auto``, each epoch tries every candidate on a copy of the head,
    scores the copies by their accuracy on the given labels of the validation examples, and takes the candidate with
    the best mean score so far. Only heads are trained for this, so it costs a few head passes per epoch instead of one
    run per candidate.
    """

    options: CalibrationOptions

    def __init__(self, inner: Method, calibrator: Calibrator, options: CalibrationOptions, setting: Setting) -> None:
        self.calibrator = calibrator
        self.heads: list[_Head] = []
        self.scores: dict[str, float] = {}
        super().__init__(inner, options, setting)
        fractions = SAMPLE_FRACTIONS if options.sample_fraction == "auto" else (options.sample_fraction,)
        self.candidates = list(product(calibrator.candidates, fractions))
        if len(self.candidates) > 1 and not setting.has_val:
            which = "calibration.sample_fraction" if len(fractions) > 1 else "disturbance"
            raise ConfigError(
                f"{which} = 'auto' needs validation examples, and there are none; give a value, such as "
                f"{fractions[0] if len(fractions) > 1 else calibrator.candidates[0]}, or raise data.val_fraction"
            )

    @property
    def networks(self) -> Sequence[nn.Module]:
        """The inner method's networks."""
        return self.inner.networks

    @networks.setter
    def networks(self, networks: Sequence[nn.Module]) -> None:
        self.inner.networks = networks
        self.heads = [
            _Head(
                torch.optim.SGD(
                    bare(network).head.parameters(), lr=self.options.head_lr, momentum=self.options.head_momentum
                )
            )
            for network in networks
        ]

    def end_epoch(self, epoch: int, observed: Observed, labels: LabelStore) -> dict[str, Any]:
        """Calibrate each network's head, then call the inner method's ``end_epoch``."""
        figures: dict[str, Any] = {}
        if self.calibrates(epoch):
            current = labels.current[self.setting.train]
            for position in range(len(self.heads)):
                self._calibrate(epoch, position, observed, current)
            if self.calibrator.moves_means:
                figures["mean_shift"] = [
                    self._shift(head.gaussians, observed.features(position), current)
                    for position, head in enumerate(self.heads)
                ]
            if len(self.candidates) > 1:
                figures["disturbance"], figures["sample_fraction"] = self._choice()
        return figures | self.inner.end_epoch(epoch, observed, labels)

    def calibrates(self, epoch: int) -> bool:
        """Whether ``epoch`` ends with a calibration."""
        start = self.options.start or self.inner.warmup + 1
        return bool(epoch >= start and (epoch - start) % self.options.every == 0)

    def stage(self, epoch: int) -> tuple[str, ...]:
        """The inner method's stage, and whether the epoch ends with a calibration."""
        return (*self.inner.stage(epoch), *([CALIBRATED] if self.calibrates(epoch) else []))

    def _calibrate(self, epoch: int, position: int, observed: Observed, labels: Tensor) -> None:
        """Calibrate one network's head."""
        state = self.heads[position]
        features = observed.features(position)
        gaussians = self.calibrator.fit(features, labels, self.setting.num_classes, state.gaussians)
        state.gaussians = gaussians
        if not bool(gaussians.present.any()):
            return
        for group in state.optimizer.param_groups:
            group["lr"] = self.options.head_lr * self.setting.lr_factor(epoch - 1)
        if len(self.candidates) > 1:
            self._score_candidates(epoch, position, observed)
        disturbance, fraction = self._choice()
        state.gaussians = gaussians.with_disturbance(disturbance)
        self._train_head(
            bare(self.networks[position]).head, state.optimizer, state.gaussians, fraction, epoch, position
        )

    def _shift(self, gaussians: ClassGaussians | None, features: Tensor, labels: Tensor) -> list[float | None]:
        """Return how far each class's mean is from the plain one; None for a class without a mean of this epoch."""
        num_classes = self.setting.num_classes
        if gaussians is None:
            return [None] * num_classes
        fitted = gaussians.present & (labels.bincount(minlength=num_classes) > 1)  # others keep an earlier Gaussian
        shift = (class_means(features, labels, num_classes) - gaussians.means).norm(dim=1)
        return [distance if there else None for distance, there in zip(shift.tolist(), fitted.tolist(), strict=True)]

    def _train_head(
        self,
        head: nn.Linear,
        optimizer: torch.optim.SGD,
        gaussians: ClassGaussians,
        fraction: float,
        epoch: int,
        position: int,
    ) -> None:
        """Train the head for one pass over new samples; identical on every process, as nothing depends on the rank."""
        seed, size = self.setting.seed, self.setting.batch_size
        per_class = max(1, round(fraction * len(self.setting.train) / int(gaussians.present.sum())))
        draws = generator(seed, "draws", epoch, position)
        features, labels = gaussians.sample(per_class, draws)
        order = torch.randperm(len(labels), generator=draws).to(labels.device)
        for indices in order.split(size):
            optimizer.zero_grad()
            cross_entropy(head(features[indices]), labels[indices]).mean().backward()
            optimizer.step()

    def _score_candidates(self, epoch: int, position: int, observed: Observed) -> None:
        """Add each candidate's accuracy on the noisy validation examples to its score."""
        held_out = observed.validation(position)
        state = self.heads[position]
        if held_out is None or state.gaussians is None:
            return
        scan, given = held_out
        for candidate in self.candidates:
            disturbance, fraction = candidate
            head = copy.deepcopy(bare(self.networks[position]).head)
            optimizer = torch.optim.SGD(head.parameters(), lr=1.0)
            optimizer.load_state_dict(copy.deepcopy(state.optimizer.state_dict()))
            self._train_head(head, optimizer, state.gaussians.with_disturbance(disturbance), fraction, epoch, position)
            with torch.no_grad():
                score = (head(scan.features).argmax(1) == given).double().mean()
            self.scores[str(candidate)] = self.scores.get(str(candidate), 0.0) + float(score)

    def _choice(self) -> tuple[float, float]:
        """Return the candidate with the best score; the first one in a tie or while there are no scores."""
        return max(self.candidates, key=lambda candidate: self.scores.get(str(candidate), 0.0))

    def gaussians(self) -> ClassGaussians | None:
        """The first network's class Gaussians."""
        return self.heads[0].gaussians if self.heads else None

    def state_dict(self) -> dict[str, Any]:
        """Return the inner state, the heads' optimisers and Gaussians, and the scores."""
        return {
            "inner": self.inner.state_dict(),
            "optimizers": [head.optimizer.state_dict() for head in self.heads],
            "gaussians": [head.gaussians and head.gaussians.state_dict() for head in self.heads],
            "scores": dict(self.scores),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        self.inner.load_state_dict(state["inner"])
        for head, optimizer, gaussians in zip(self.heads, state["optimizers"], state["gaussians"], strict=True):
            head.optimizer.load_state_dict(optimizer)
            head.gaussians = gaussians and ClassGaussians.from_state_dict(gaussians).to(self.setting.device)
        self.scores = state["scores"]
