"""MDDC and CDDC: dynamic distribution calibration, the paper's Algorithm 2, around any method (NAME-m, NAME-c).

The steps of an epoch t after the warm-up, and where they are:

    3 to 6    correct labels                     end_epoch of the inner method in epoch t - 1, see methods/plc.py
    7         train f on the corrected labels    loss of the inner method
    8         extract the features h(x_i)        Calibrated._calibrate
    9 to 11   build a Gaussian for each class    MeanCalibrator.fit (MDDC), CovarianceCalibrator.fit (CDDC)
    12        sample lambda n features           Calibrated._sample
    13        train f on them                    Calibrated._train_head

So at an epoch's end calibration comes first, under the labels just trained on, and label correction second.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from unflip.compute import generator
from unflip.errors import ConfigError
from unflip.methods.base import (
    Batch,
    EpochOutputs,
    LabelScores,
    LabelStore,
    LossOutput,
    Method,
    MethodSpec,
    Phase,
    RunShape,
    TrainContext,
    moved,
)
from unflip.methods.plc import PLC
from unflip.nn.base import Ensemble, unwrap
from unflip.options import Options
from unflip.stats.gaussians import ClassGaussians, class_indices, class_means, fit_gaussians
from unflip.stats.robust_mean import Complement, Normalize, class_agnostic_means, damping_weights, robust_in_leading

SAMPLE_FRACTIONS = (0.10, 0.15, 0.20, 0.25)
"""Candidates of ``sample_fraction = "auto"``, as in the paper's Figure 5."""
DISTURBANCES = (0.1, 0.2, 0.3, 0.4)
"""Candidates of ``disturbance = "auto"``, as in the paper's Figure 4."""


class CalibrationOptions(Options):
    """Number of sampled features, and training of the head on them."""

    sample_fraction: Annotated[float, Field(gt=0.0, le=10.0)] | Literal["auto"] = 0.10
    """lambda: samples per epoch as a fraction of the training examples, equally many per class."""
    head_lr: float = Field(1e-4, gt=0.0)
    """Learning rate of the head's optimizer, which follows the run's schedule."""
    head_momentum: float = Field(0.9, ge=0.0, lt=1.0)
    """Momentum of the head's optimizer."""
    start: PositiveInt | None = None
    """First epoch with calibration; by default the first after the inner method's warm-up."""
    every: PositiveInt = 1
    """Number of epochs between calibrations."""


class MeanOptions(Options):
    """Options of MDDC."""

    damping: float = Field(1.0, gt=0.0)
    """C: an example at a squared distance of C times the class's variance from the median gets the weight 1/e."""
    covariance: Literal["empirical", "isotropic", "damped"] = "empirical"
    """Covariance of samples about the robust mean; the paper does not specify it."""
    normalize: Normalize = "sum"
    """Divide weights by their `sum`, or, as printed, by the `count` of examples, which depends on the origin."""
    complement: Complement = "weighted"
    """The mean along directions of less variance: `weighted`, or, as printed, `plain`, which far outliers affect."""
    n_components: PositiveInt | None = None
    """Number of principal components of the pooled covariance in which the mean is robust; all by default."""


class CovarianceOptions(Options):
    """Options of CDDC."""

    disturbance: Annotated[float, Field(ge=0.0)] | Literal["auto"] = 0.2
    """alpha, added to every entry of each class covariance; `auto` chooses from 0.1 to 0.4 by noisy validation."""


class MeanCalibrator:
    """MDDC: ``mu = AgnosticMean(h)`` (Algorithm 1), and a covariance about it, for the n_c examples h_i of a class:

    empirical: ``Sigma = sum (h_i - mu)(h_i - mu)^T / n_c``
    isotropic: ``Sigma = I sum |h_i - mu|^2 / (n_c d)``, as the paper assumes to estimate the mean
    damped: ``Sigma = sum w_i (h_i - mu)(h_i - mu)^T / sum w_i`` with the weights of Algorithm 1 (eqs. 4 and 5), which
    damp outliers
    """

    Options: ClassVar[type[MeanOptions]] = MeanOptions
    candidates: Sequence[float] = (0.0,)
    moves_means = True

    def __init__(self, options: MeanOptions) -> None:
        self.options = options

    def fit(
        self, features: Tensor, labels: Tensor, num_classes: int, previous: ClassGaussians | None = None
    ) -> ClassGaussians:
        """Fit a Gaussian to the features (n, d) of each class; see :func:`fit_gaussians` for ``previous``."""
        options, data = self.options, (features, labels, num_classes)
        form = options.model_dump(include={"damping", "normalize"})
        if options.n_components is None or options.n_components >= features.shape[1]:
            means = class_agnostic_means(*data, complement=options.complement, **form)
        else:
            means = robust_in_leading(*data, options.n_components, complement=options.complement, **form)
        weights = None
        if options.covariance == "damped":
            weights = [damping_weights(features[rows], **form) for rows in class_indices(labels, num_classes)]
        isotropic = options.covariance == "isotropic"
        return fit_gaussians(*data, means=means, weights=weights, isotropic=isotropic, previous=previous)


class CovarianceCalibrator:
    """CDDC: ``mu = mean(h)``, ``Sigma* = cov(h) + alpha 1`` (eqs. 6 and 7).

    1 is the matrix of ones, as printed: the disturbance is common to all features of a sample, not independent.
    """

    Options: ClassVar[type[CovarianceOptions]] = CovarianceOptions
    moves_means = False

    def __init__(self, options: CovarianceOptions) -> None:
        self.candidates: Sequence[float] = DISTURBANCES if options.disturbance == "auto" else (options.disturbance,)

    def fit(
        self, features: Tensor, labels: Tensor, num_classes: int, previous: ClassGaussians | None = None
    ) -> ClassGaussians:
        """Fit means and covariances with the first of ``candidates`` as disturbance; the caller may set another."""
        gaussians = fit_gaussians(features, labels, num_classes, previous=previous)
        return gaussians.with_disturbance(self.candidates[0])


Calibrator = MeanCalibrator | CovarianceCalibrator


class Calibrated(Method):
    """Calibration around an inner method, which does everything else: steps 8 to 13 of Algorithm 2.

    At an epoch's end, before the inner method corrects labels: fit one Gaussian per class to the features, under the
    labels just trained on, sample from all of them, and train the head alone on the samples, with its own optimizer.

    If the disturbance or the sample fraction is ``auto``, each epoch trains a copy of the head with every candidate,
    scores it by its accuracy on the given validation labels, and takes the candidate with the best mean score so far.
    This costs a few passes of the head per epoch instead of one run per candidate.

    Args:
        inner: the method to calibrate.
        calibrator: fits the class Gaussians.
        options: sampling and training of the head.
        context: of the run.
    """

    options: CalibrationOptions

    def __init__(
        self, inner: Method, calibrator: Calibrator, options: CalibrationOptions, context: TrainContext
    ) -> None:
        self.inner = inner
        self.calibrator = calibrator
        self.optimizers: list[torch.optim.SGD] = []  # of each network's head
        self.fitted: list[ClassGaussians | None] = []  # to each network's features
        self.scores: dict[str, float] = {}
        super().__init__(options, context)
        self.records_probs = inner.records_probs
        fractions = SAMPLE_FRACTIONS if options.sample_fraction == "auto" else (options.sample_fraction,)
        self.candidates = list(product(calibrator.candidates, fractions))
        if len(self.candidates) > 1 and not context.has_val:
            name = "calibration.sample_fraction" if len(fractions) > 1 else "covariance.disturbance"
            raise ConfigError(f"{name} = 'auto' needs validation examples; set a value, or data.val_fraction above 0")

    @property
    def networks(self) -> Sequence[nn.Module]:
        """The inner method's networks."""
        return self.inner.networks

    @networks.setter
    def networks(self, networks: Sequence[nn.Module]) -> None:
        self.inner.networks = networks
        lr, momentum = self.options.head_lr, self.options.head_momentum
        heads = [unwrap(network).head for network in networks]
        self.optimizers = [torch.optim.SGD(head.parameters(), lr=lr, momentum=momentum) for head in heads]
        self.fitted = [None for _ in heads]

    def end_epoch(self, epoch: int, observed: EpochOutputs, labels: LabelStore) -> dict[str, Any]:
        """Calibrate each network's head, then call the inner method, which corrects labels for the next epoch."""
        metrics: dict[str, Any] = {}
        if self.calibrates(epoch):
            current = labels.current[self.context.train]
            positions = range(len(self.networks))
            for position in positions:
                self._calibrate(epoch, position, observed, current)
            if self.calibrator.moves_means:
                metrics["mean_shift"] = [self._mean_shift(position, observed, current) for position in positions]
            if len(self.candidates) > 1:
                metrics["disturbance"], metrics["sample_fraction"] = self._choice()
        return metrics | self.inner.end_epoch(epoch, observed, labels)

    def calibrates(self, epoch: int) -> bool:
        """Whether ``epoch`` ends with a calibration."""
        start = self.options.start or self.inner.warmup + 1
        return bool(epoch >= start and (epoch - start) % self.options.every == 0)

    def _calibrate(self, epoch: int, position: int, observed: EpochOutputs, labels: Tensor) -> None:
        """Calibrate the head of the network at ``position``, under the training labels (m,)."""
        features = observed.features(position)  # step 8
        gaussians = self.calibrator.fit(features, labels, self.context.num_classes, self.fitted[position])  # 9 to 11
        self.fitted[position] = gaussians
        if not bool(gaussians.present.any()):
            return
        optimizer = self.optimizers[position]
        for group in optimizer.param_groups:
            group["lr"] = self.options.head_lr * self.context.lr_factor(epoch - 1)
        if len(self.candidates) > 1:
            self._score_candidates(epoch, position, observed, gaussians)
        disturbance, fraction = self._choice()
        self.fitted[position] = gaussians = gaussians.with_disturbance(disturbance)
        samples = self._sample(gaussians, fraction, epoch, position)  # step 12
        self._train_head(unwrap(self.networks[position]).head, optimizer, *samples)  # step 13

    def _sample(self, gaussians: ClassGaussians, fraction: float, epoch: int, position: int) -> tuple[Tensor, Tensor]:
        """Sample lambda n features, equally many per class; return them and their labels in random order."""
        random = generator(self.context.seed, "draws", epoch, position)
        per_class = max(1, round(fraction * len(self.context.train) / int(gaussians.present.sum())))
        features, labels = gaussians.sample(per_class, random)
        order = torch.randperm(len(labels), generator=random).to(labels.device)
        return features[order], labels[order]

    def _train_head(self, head: nn.Linear, optimizer: torch.optim.SGD, features: Tensor, labels: Tensor) -> None:
        """Train the head alone in one pass; encoder and batch-norm statistics do not change."""
        size = self.context.batch_size
        for inputs, targets in zip(features.split(size), labels.split(size), strict=True):
            optimizer.zero_grad()
            F.cross_entropy(head(inputs), targets, reduction="none").mean().backward()
            optimizer.step()

    def _score_candidates(self, epoch: int, position: int, observed: EpochOutputs, gaussians: ClassGaussians) -> None:
        """Add the noisy validation accuracy of each candidate to its score."""
        validation = observed.validation(position)
        if validation is None:
            return
        outputs, given = validation
        for candidate in self.candidates:
            disturbance, fraction = candidate
            head = copy.deepcopy(unwrap(self.networks[position]).head)
            optimizer = torch.optim.SGD(head.parameters(), lr=1.0)
            optimizer.load_state_dict(copy.deepcopy(self.optimizers[position].state_dict()))
            samples = self._sample(gaussians.with_disturbance(disturbance), fraction, epoch, position)
            self._train_head(head, optimizer, *samples)
            with torch.no_grad():
                score = (head(outputs.features).argmax(1) == given).double().mean()
            self.scores[str(candidate)] = self.scores.get(str(candidate), 0.0) + float(score)

    def _choice(self) -> tuple[float, float]:
        """Return the candidate with the best score; the first of equal ones."""
        return max(self.candidates, key=lambda candidate: self.scores.get(str(candidate), 0.0))

    def _mean_shift(self, position: int, observed: EpochOutputs, labels: Tensor) -> list[float | None]:
        """Return the distance of each robust mean from the plain one; None for a class that was not fitted."""
        num_classes, gaussians = self.context.num_classes, self.fitted[position]
        assert gaussians is not None
        fitted = labels.bincount(minlength=num_classes) > 1  # others keep a previous Gaussian
        shift = (class_means(observed.features(position), labels, num_classes) - gaussians.means).norm(dim=1)
        return [value if ok else None for value, ok in zip(shift.tolist(), fitted.tolist(), strict=True)]

    def gaussians(self) -> ClassGaussians | None:
        """The first network's class Gaussians."""
        return self.fitted[0] if self.fitted else None

    def state_dict(self) -> dict[str, Any]:
        """Return the inner state, the optimizers and Gaussians of the heads, and the scores of candidates."""
        return {
            "inner": self.inner.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "gaussians": [gaussians and gaussians.state_dict() for gaussians in self.fitted],
            "scores": dict(self.scores),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        self.inner.load_state_dict(state["inner"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        device = self.context.device
        self.fitted = [saved and ClassGaussians.from_state_dict(moved(saved, device)) for saved in state["gaussians"]]
        self.scores = state["scores"]

    # All other hooks delegate to the inner method.

    @property
    def warmup(self) -> int:
        """Number of epochs before the inner method acts on labels."""
        return self.inner.warmup

    def phases(self, epoch: int, observed: EpochOutputs, labels: LabelStore) -> Iterable[Phase]:
        """Yield the inner method's phases."""
        return self.inner.phases(epoch, observed, labels)

    def criterion(self, logits: Tensor, labels: Tensor, indices: Tensor) -> Tensor:
        """Return the inner method's loss of each example."""
        return self.inner.criterion(logits, labels, indices)

    def loss(self, batch: Batch, phase: Phase) -> LossOutput:
        """Return the inner method's loss of a batch (step 7)."""
        return self.inner.loss(batch, phase)

    def before_step(self) -> None:
        """Call the inner method's hook."""
        self.inner.before_step()

    def after_step(self) -> None:
        """Call the inner method's hook."""
        self.inner.after_step()

    def model(self) -> Ensemble:
        """Return the inner method's model."""
        return self.inner.model()

    def train_probs(self) -> Tensor | None:
        """Return the inner method's class probabilities of the training examples."""
        return self.inner.train_probs()

    def label_scores(self, labels: LabelStore) -> LabelScores | None:
        """Return the inner method's out-of-sample scores."""
        return self.inner.label_scores(labels)

    def correct(self, probs: Tensor, labels: Tensor) -> Tensor:
        """Apply the inner method's correction rule."""
        return self.inner.correct(probs, labels)

    def odds(self, probs: Tensor, labels: Tensor) -> Tensor:
        """Return the inner method's log-odds that labels are right."""
        return self.inner.odds(probs, labels)


@dataclass(frozen=True)
class CalibratedSpec(MethodSpec):
    """A method with calibration: NAME-m or NAME-c."""

    calibrator: type[MeanCalibrator] | type[CovarianceCalibrator]
    section: str

    @property
    def sections(self) -> dict[str, type[Options]]:
        """The sections of the inner method, calibration, and calibrator."""
        return {**super().sections, "calibration": CalibrationOptions, self.section: self.calibrator.Options}

    def build(self, options: Mapping[str, Any], context: TrainContext) -> Calibrated:
        """Build the method with calibration around it."""
        calibrator = self.calibrator(options[self.section])
        return Calibrated(super().build(options, context), calibrator, options["calibration"], context)

    def options_for(self, shape: RunShape) -> dict[str, Any]:
        """Train the head at the learning rate of the network."""
        return super().options_for(shape) | {"calibration": {"head_lr": shape.lr}}


def calibrated(name: str, method: type[Method], calibrator: str) -> CalibratedSpec:
    """Return the specification of a method with ``mean`` or ``covariance`` calibration."""
    if not method.can_be_calibrated:
        raise ConfigError(f"method '{name}' cannot be calibrated: its networks have no separate heads")
    kind = MeanCalibrator if calibrator == "mean" else CovarianceCalibrator
    return CalibratedSpec(name, method, kind, calibrator)


mddc = calibrated("plc", PLC, "mean")
cddc = calibrated("plc", PLC, "covariance")
