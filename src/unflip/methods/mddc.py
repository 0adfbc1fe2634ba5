"""MDDC and CDDC: dynamic distribution calibration, the paper's Algorithm 2, around any method (NAME-m, NAME-c).

The steps of an epoch t after the warm-up, where they are, and the section and options that control them:

    3 to 6    correct labels                 PLC.end_epoch in epoch t - 1 (methods/plc.py)    plc
    7         train f on corrected labels    loss of the inner method
    8         extract the features h(x_i)    Calibrated._calibrate: observed.features         calibration: start, every
    9 to 11   build a Gaussian per class     MDDC: MeanCalibrator.fit                         mean
                                               class_agnostic_means, fit_gaussians
                                             CDDC: CovarianceCalibrator.fit                   covariance
                                               fit_gaussians
    12        sample lambda n features       DistributionCalibration._sample                  calibration:
                                               ClassGaussians.sample                            sample_fraction
    13        train f on them                DistributionCalibration._train                   calibration: head_lr,
                                                                                                head_momentum

So at an epoch's end calibration comes first, under the labels just trained on, and label correction second. In step 3
the paper's f is the calibrated network; PLC corrects by probabilities that the training pass recorded, before this
epoch's calibration. :class:`DistributionCalibration` calibrates one head, in any training loop; :class:`Calibrated`
does so in a run.
"""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from unflip.compute import generator, num_processes
from unflip.errors import ConfigError, InputError, unknown
from unflip.methods import MethodSpec
from unflip.methods.base import (
    Batch,
    EpochOutputs,
    LabelScores,
    LabelStore,
    LossOutput,
    Method,
    Phase,
    RowTable,
    RunShape,
    TrainContext,
    moved,
)
from unflip.methods.plc import PLC
from unflip.nn.base import Ensemble, unwrap
from unflip.options import Options, check_options
from unflip.stats.gaussians import ClassGaussians, class_indices, fit_gaussians
from unflip.stats.robust_mean import Complement, Normalize, class_agnostic_means, damping_weights, robust_in_leading

SAMPLE_FRACTIONS = (0.10, 0.15, 0.20, 0.25)
"""Candidates of ``sample_fraction = "auto"``, as in the paper's Figure 5."""
DISTURBANCES = (0.1, 0.2, 0.3, 0.4)
"""Candidates of ``disturbance = "auto"``, as in the paper's Figure 4."""


class SampleOptions(Options):
    """Number of sampled features, and training of the head on them."""

    sample_fraction: Annotated[float, Field(gt=0.0, le=10.0)] | Literal["auto"] = 0.10
    """lambda, the number of samples per epoch as a fraction of the number of training examples; divided equally among
    the classes."""
    head_lr: float = Field(1e-4, gt=0.0)
    """Initial learning rate of the head's optimizer; by default that of the run, unless a preset sets it."""
    head_momentum: float = Field(0.9, ge=0.0, lt=1.0)
    """Momentum of the head's optimizer."""


class CalibrationOptions(SampleOptions):
    """Calibration in a run."""

    start: PositiveInt | None = None
    """First epoch with calibration; by default the first after the warm-up of the calibrated method."""
    every: PositiveInt = 1
    """Number of epochs from one calibration to the next."""


class MeanOptions(Options):
    """Options of MDDC."""

    damping: float = Field(1.0, gt=0.0)
    """C: an example at a squared distance from the median of C times the class's total variance gets the weight 1/e."""
    covariance: Literal["empirical", "isotropic", "damped"] = "empirical"
    """Covariance with which samples are drawn. The paper derives the mean for `isotropic`, but does not say which
    covariance it samples with."""
    normalize: Normalize = "sum"
    """Divide weights by their `sum` or, as printed in the paper, by the `count` of examples. With `count`, the mean
    depends on the origin."""
    complement: Complement = "weighted"
    """Mean along the directions with less variance: `weighted` or, as printed in the paper, `plain`, which far outliers
    affect."""
    n_components: PositiveInt | None = None
    """Number of principal components of the pooled covariance for which the mean is robust; by default all."""


class CovarianceOptions(Options):
    """Options of CDDC."""

    disturbance: Annotated[float, Field(ge=0.0)] | Literal["auto"] = 0.2
    """alpha, added to every entry of each class covariance; `auto` chooses it from 0.1 to 0.4 by noisy validation."""


class MeanCalibrator:
    """MDDC: ``mu = AgnosticMean(h)`` (Algorithm 1), and a covariance about it, for the n_c examples h_i of a class:

    empirical: ``Sigma = sum (h_i - mu)(h_i - mu)^T / n_c``
    isotropic: ``Sigma = I sum |h_i - mu|^2 / (n_c d)``, as the paper assumes to estimate the mean
    damped: ``Sigma = sum w_i (h_i - mu)(h_i - mu)^T / sum w_i`` with the weights of Algorithm 1 (eqs. 4 and 5), which
    damp outliers
    """

    Options: ClassVar[type[MeanOptions]] = MeanOptions
    disturbances: Sequence[float] = (0.0,)

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

    def __init__(self, options: CovarianceOptions) -> None:
        self.disturbances: Sequence[float] = DISTURBANCES if options.disturbance == "auto" else (options.disturbance,)

    def fit(
        self, features: Tensor, labels: Tensor, num_classes: int, previous: ClassGaussians | None = None
    ) -> ClassGaussians:
        """Fit means and covariances with the first of ``disturbances``; the caller may set another."""
        gaussians = fit_gaussians(features, labels, num_classes, previous=previous)
        return gaussians.with_disturbance(self.disturbances[0])


Calibrator = MeanCalibrator | CovarianceCalibrator
_KINDS: dict[str, type[Calibrator]] = {"mean": MeanCalibrator, "covariance": CovarianceCalibrator}


class DistributionCalibration:
    """Calibration of the linear head in your own training loop: steps 8 to 13 of the paper's Algorithm 2.

    Call ``step`` at the end of every epoch with the labels that the epoch was trained on. It fits one Gaussian per
    class to the features, draws samples from the Gaussians, and trains only the head on these samples. The head has its
    own ``optimizer``, to which you can attach a learning rate scheduler.

    If ``disturbance`` or ``sample_fraction`` is ``"auto"``, each step trains one copy of the head per candidate value
    and scores it by its accuracy on noisy validation labels. The candidate with the best mean score so far is then
    used. This takes a few passes of the head per epoch, but no additional runs.

    Samples depend only on ``seed`` and the epoch. If you train with several processes, pass the same features on every
    process. All processes then take the same steps, and the head of the first is copied to all others.

    Args:
        head: maps features (b, d) to logits (b, k); trained in place.
        num_classes: k.
        kind: ``"mean"`` for MDDC, ``"covariance"`` for CDDC, or your own calibrator.
        batch_size: number of samples per step of the head's optimizer.
        seed: random seed of the samples.
        position: number of the head, if several heads are calibrated with the same seed.
        optimizer: optimizer of the head; by default SGD with ``head_lr`` and ``head_momentum``.
        options: the options of the section ``calibration`` that concern samples and head (``sample_fraction``,
            ``head_lr``, ``head_momentum``), and those of the section ``mean`` or ``covariance``, depending on ``kind``.
            If ``kind`` is a calibrator, it has its own options, and those of ``mean`` and ``covariance`` are errors.

    Attributes:
        gaussians: the class Gaussians of the last step.
        scores: sum of the scores of each candidate so far; a candidate is a pair of disturbance and sample fraction.
    """

    def __init__(
        self,
        head: nn.Module,
        num_classes: int,
        kind: Literal["mean", "covariance"] | Calibrator = "mean",
        *,
        batch_size: int = 128,
        seed: int = 0,
        position: int = 0,
        optimizer: torch.optim.Optimizer | None = None,
        **options: Any,
    ) -> None:
        if isinstance(kind, str):
            kind, options = _make_calibrator(kind, options)
        chosen = check_options(SampleOptions, options)
        self.head, self.num_classes, self.calibrator = head, num_classes, kind
        self.batch_size, self.seed, self.position = batch_size, seed, position
        self.optimizer = optimizer or torch.optim.SGD(head.parameters(), chosen.head_lr, chosen.head_momentum)
        self.candidate_pairs = candidate_pairs(kind, chosen)
        self.gaussians: ClassGaussians | None = None
        self.scores: dict[str, float] = {}
        self.steps = 0
        self._recorded = RowTable(torch.float16)

    def record(self, index: Tensor, features: Tensor) -> None:
        """Record the features (b, d) of the examples ``index`` (b,) in a training step, in half precision.

        If you record features, you do not need to pass ``features`` to ``step``. This saves a pass over all examples,
        but the recorded features come from earlier weights and, with augmentation, from augmented inputs. They are kept
        until the next ``step``, so record no features in epochs that end without a ``step``.
        """
        self._recorded.record(index, features)

    def step(
        self,
        labels: Tensor,
        features: Tensor | Callable[[], Tensor] | None = None,
        *,
        validation: tuple[Tensor, Tensor] | Callable[[], tuple[Tensor, Tensor]] | None = None,
        epoch: int | None = None,
    ) -> None:
        """Calibrate the head.

        Args:
            labels: current labels of all examples (n,).
            features: features of all examples (n, d) in the same order, or a function that puts the network into
                evaluation mode and returns them; it is called without gradients. By default, the recorded features.
            validation: features (v, d) and given labels (v,) of validation examples, or a function that returns them;
                needed if an option is ``"auto"``.
            epoch: the epoch that determines the samples; by default the number of this step, counted from 1.
        """
        self.steps += 1
        epoch = self.steps if epoch is None else epoch
        with torch.no_grad():
            if features is None:
                table, seen = self._recorded.collect(len(labels))
                features, labels = table[seen], labels[seen.to(labels.device)]
            elif callable(features):
                features = features()  # step 8; a run passes a tensor
        if features.ndim != 2 or len(features) != len(labels):
            raise InputError(f"features have shape {tuple(features.shape)}; expected ({len(labels)}, d)")
        labels = labels.to(features.device)
        self.gaussians = self.calibrator.fit(features, labels, self.num_classes, self.gaussians)  # steps 9 to 11
        if not bool(self.gaussians.present.any()):
            return
        if len(self.candidate_pairs) > 1:
            self._score_candidates(epoch, len(labels), validation)
        disturbance, fraction = self.choice
        self.gaussians = self.gaussians.with_disturbance(disturbance)
        samples = self._sample(self.gaussians, fraction * len(labels), epoch)  # step 12
        self._train(self.head, self.optimizer, *samples)  # step 13
        self.optimizer.zero_grad()
        self._synchronize()

    @property
    def choice(self) -> tuple[float, float]:
        """The disturbance and the sample fraction with the best score; in a tie, the first candidate."""
        return max(self.candidate_pairs, key=lambda candidate: self.scores.get(str(candidate), 0.0))

    def _sample(self, gaussians: ClassGaussians, count: float, epoch: int) -> tuple[Tensor, Tensor]:
        """Sample about ``count`` features, equally many per class; return them and their labels in random order."""
        random = generator(self.seed, "draws", epoch, self.position)
        per_class = max(1, round(count / int(gaussians.present.sum())))
        features, labels = gaussians.sample(per_class, random)
        order = torch.randperm(len(labels), generator=random).to(labels.device)
        weight = next(self.head.parameters())
        return features[order].to(weight), labels[order].to(weight.device)

    def _train(self, head: nn.Module, optimizer: torch.optim.Optimizer, features: Tensor, labels: Tensor) -> None:
        """Train a head alone in one pass; encoder and batch-norm statistics do not change."""
        with torch.enable_grad():
            for inputs, targets in zip(features.split(self.batch_size), labels.split(self.batch_size), strict=True):
                optimizer.zero_grad()
                F.cross_entropy(head(inputs), targets, reduction="none").mean().backward()
                optimizer.step()

    def _score_candidates(
        self, epoch: int, count: int, validation: tuple[Tensor, Tensor] | Callable[[], tuple[Tensor, Tensor]] | None
    ) -> None:
        """Add the noisy validation accuracy of each candidate to its score."""
        if validation is None:
            raise ConfigError(
                "disturbance or sample_fraction = 'auto' needs validation=(features, labels) in each step"
            )
        assert self.gaussians is not None
        with torch.no_grad():
            features, given = validation() if callable(validation) else validation
        for candidate in self.candidate_pairs:
            disturbance, fraction = candidate
            head, optimizer = copy.deepcopy((self.head, self.optimizer))
            samples = self._sample(self.gaussians.with_disturbance(disturbance), fraction * count, epoch)
            self._train(head, optimizer, *samples)
            with torch.no_grad():
                score = (head(features).argmax(1) == given).double().mean()
            self.scores[str(candidate)] = self.scores.get(str(candidate), 0.0) + float(score)

    def _synchronize(self) -> None:
        """Give every process the head and the optimizer of the first, which rounding may have set apart."""
        if num_processes() > 1:
            states = [value for state in self.optimizer.state.values() for value in state.values()]
            for tensor in (*self.head.parameters(), *(state for state in states if isinstance(state, Tensor))):
                torch.distributed.broadcast(tensor.detach(), src=0)

    def state_dict(self) -> dict[str, Any]:
        """Return optimizer, Gaussians, scores and number of steps, but not the head, which is part of your network."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "gaussians": self.gaussians and self.gaussians.state_dict(),
            "scores": dict(self.scores),
            "steps": self.steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        self.optimizer.load_state_dict(state["optimizer"])
        device, saved = next(self.head.parameters()).device, state["gaussians"]
        self.gaussians = saved and ClassGaussians.from_state_dict(moved(saved, device))
        self.scores.clear()
        self.scores.update(state["scores"])
        self.steps = state["steps"]


def _make_calibrator(kind: str, options: Mapping[str, Any]) -> tuple[Calibrator, dict[str, Any]]:
    """Return the calibrator of a kind, with its own of the options, and those that are left."""
    if kind not in _KINDS:
        raise ConfigError(unknown("kind", kind, _KINDS))
    form, shared = _KINDS[kind], {key: options[key] for key in SampleOptions.model_fields if key in options}
    keys = [*SampleOptions.model_fields, *form.Options.model_fields]
    own = {key: value for key, value in options.items() if key not in shared}
    return form(check_options(form.Options, own, keys=keys)), shared  # type: ignore[arg-type]


def candidate_pairs(calibrator: Calibrator, options: SampleOptions) -> list[tuple[float, float]]:
    """Return the pairs of disturbance and sample fraction to choose from: one, unless an option is ``auto``."""
    fractions = SAMPLE_FRACTIONS if options.sample_fraction == "auto" else (options.sample_fraction,)
    return list(product(calibrator.disturbances, fractions))


class Calibrated(Method):
    """Calibration around an inner method, which does everything else.

    At an epoch's end, before the inner method corrects labels, the head of each network is calibrated under the labels
    just trained on, see :class:`DistributionCalibration`; the networks share their scores of candidates.

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
        self.calibrations: list[DistributionCalibration] = []
        self.scores: dict[str, float] = {}
        super().__init__(options, context)
        self.records_probs = inner.records_probs
        self.candidate_pairs = candidate_pairs(calibrator, options)
        if len(self.candidate_pairs) > 1 and not context.has_val:
            name = "calibration.sample_fraction" if options.sample_fraction == "auto" else "covariance.disturbance"
            raise ConfigError(f"{name} = 'auto' needs validation examples; set a value, or data.val_fraction above 0")

    def set_networks(self, networks: Sequence[nn.Module]) -> None:
        """Take the networks for this and the inner method, and the heads to calibrate."""
        super().set_networks(networks)
        self.inner.set_networks(networks)
        context, options = self.context, self.options.model_dump(include=set(SampleOptions.model_fields))
        options |= {"batch_size": context.batch_size, "seed": context.seed}
        self.calibrations = [
            DistributionCalibration(unwrap(one).head, context.num_classes, self.calibrator, position=i, **options)
            for i, one in enumerate(networks)
        ]
        for calibration in self.calibrations:
            calibration.scores = self.scores

    def end_epoch(self, epoch: int, observed: EpochOutputs, labels: LabelStore) -> dict[str, Any]:
        """Calibrate each network's head, then call the inner method, which corrects labels for the next epoch."""
        metrics: dict[str, Any] = {}
        if self.calibrates(epoch):
            current = labels.current[self.context.train]
            for position in range(len(self.calibrations)):
                self._calibrate(epoch, position, observed, current)
            if len(self.candidate_pairs) > 1:
                metrics["disturbance"], metrics["sample_fraction"] = self.calibrations[0].choice
        return metrics | self.inner.end_epoch(epoch, observed, labels)

    def calibrates(self, epoch: int) -> bool:
        """Whether ``epoch`` ends with a calibration."""
        start = self.options.start or self.inner.warmup + 1
        return bool(epoch >= start and (epoch - start) % self.options.every == 0)

    def _calibrate(self, epoch: int, position: int, observed: EpochOutputs, labels: Tensor) -> None:
        """Calibrate the head of the network at ``position``, under the training labels (m,)."""
        calibration = self.calibrations[position]
        for group in calibration.optimizer.param_groups:
            group["lr"] = self.options.head_lr * self.context.lr_factor(epoch - 1)
        validation = observed.validation(position) if len(self.candidate_pairs) > 1 else None
        held_out = validation and (validation[0].features, validation[1])
        calibration.step(labels, observed.features(position), validation=held_out, epoch=epoch)  # step 8

    def gaussians(self) -> ClassGaussians | None:
        """The first network's class Gaussians."""
        return self.calibrations[0].gaussians if self.calibrations else None

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the inner method, and of the calibration of each head."""
        return {"inner": self.inner.state_dict(), "calibrations": [each.state_dict() for each in self.calibrations]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        self.inner.load_state_dict(state["inner"])
        for calibration, saved in zip(self.calibrations, state["calibrations"], strict=True):
            calibration.load_state_dict(saved)

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
        raise ConfigError(f"method '{name}' cannot be calibrated: its averaged weights have no head to train")
    return CalibratedSpec(name, method, _KINDS[calibrator], calibrator)


mddc = calibrated("plc", PLC, "mean")
cddc = calibrated("plc", PLC, "covariance")
