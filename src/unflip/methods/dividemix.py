"""DivideMix: two networks split the examples for each other and learn semi-supervised (Li et al. 2020)."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from unflip.compute import derive
from unflip.methods.base import Batch, EpochOutputs, LabelStore, LossOutput, Method, Phase, RunShape, TrainContext
from unflip.methods.losses import cross_entropy, mix
from unflip.methods.mddc import calibrated
from unflip.methods.plc import ProbabilityWindow
from unflip.nn.base import unwrap
from unflip.options import Options
from unflip.stats.gaussians import low_probability, normalized

_JITTER = 0.1  # std of the noise between two views of a feature vector, in units of standardized features


class DivideMixOptions(Options):
    """The paper's symbols; the defaults are those for CIFAR-10 with 20% symmetric or with asymmetric noise."""

    warmup: PositiveInt = 10
    """Number of epochs of cross-entropy on the given labels: 10 for CIFAR-10, 30 for CIFAR-100, 1 for WebVision and
    Clothing1M."""
    lambda_u: float = Field(0.0, ge=0.0)
    """Weight of the loss on unlabeled examples: 0 for low or real-world noise, 25 for CIFAR-10 with 50% noise or more,
    25 to 150 for CIFAR-100."""
    rampup: PositiveInt = 16
    """Number of epochs after the warm-up over which lambda_u grows linearly from 0."""
    alpha: float = Field(4.0, gt=0.0)
    """Both parameters of the Beta distribution of mixup weights: 4, or 0.5 for WebVision and Clothing1M."""
    temperature: float = Field(0.5, gt=0.0)
    """T: refined and guessed labels are raised to the power 1 / T; 1 turns sharpening off."""
    p_threshold: float = Field(0.5, ge=0.0, lt=1.0)
    """An example counts as labeled if the probability that its label is right is above this value; 0.6 at 90% noise."""
    window: PositiveInt = 1
    """Number of epochs over which normalized losses are averaged before the mixture is fitted; 5 at 90% noise."""
    asymmetric: bool = False
    """Whether to add a negative-entropy term to the loss during the warm-up, for class-dependent noise (section 3.1
    of the paper)."""
    prior_weight: float = Field(1.0, ge=0.0)
    """Weight of the penalty that keeps the mean prediction near uniform; lower it if classes are very imbalanced."""


class DivideMix(Method):
    """Two networks; labels that one finds unlikely are dropped by the other and guessed by both.

    - **Warm-up**: cross-entropy of each network on all given labels.
    - **Co-divide**: two Gaussians are fitted to the losses ``-log p_y`` of each network (no augmentation, evaluation
      mode); w, the probability of the lower one, is how likely the *given* label is correct. The training data of
      network k is split by the *other* network's w: labeled where ``w > p_threshold``, unlabeled elsewhere.
    - **Co-refine** (equations 3, 4): the target of a labeled example is ``sharpen(w y + (1 - w) p)``, p being network
      k's mean over two views. **Co-guess**: that of an unlabeled one is ``sharpen(p)``, p being the mean of both
      networks over both views.
    - **MixMatch** (5 to 12): every view is mixed with another one of the whole batch, ``l a + (1 - l) b`` with
      ``l = max(l, 1 - l), l ~ Beta(alpha, alpha)``, targets likewise. The loss is cross-entropy on the mixed labeled
      views, ``lambda_u`` times the squared error on the unlabeled ones, and the uniform-prior penalty.

    As in the released code, an epoch is one pass of each network over its labeled part, each batch with as many
    unlabeled examples. So each network takes at most as many steps as in an epoch of a one-network method.

    From the end of the warm-up on, the split and the labels are updated at each epoch's end. The corrected label is the
    arg max of both networks' mean refined label, without augmentation and sharpening; training itself always starts
    from the given labels. Calibration around this method therefore sees the labels that belong to the epoch's split.

    Reviewed labels have ``w = 1``: they are always labeled and used unchanged.

    If no label is likely enough, the ``batch_size`` most likely count as labeled; if all are, there is no unlabeled
    loss. The prior is uniform over the classes that occur among the given labels.
    """

    Options = DivideMixOptions
    options: DivideMixOptions
    num_networks = 2
    tables = 8

    def __init__(self, options: DivideMixOptions, context: TrainContext) -> None:
        super().__init__(options, context)
        self.losses = ProbabilityWindow(options.window)
        self.clean: Tensor | None = None  # (2, m), from each network's own losses
        self.refined: Tensor | None = None  # (m, k)
        self.given = torch.empty(0, dtype=torch.long)  # by row of the label store
        self.weight = torch.empty(0)  # w of the phase, by row of the label store
        self.classes = torch.empty(0, dtype=torch.long)  # those that occur among the given labels

    @classmethod
    def options_for(cls, section: str, shape: RunShape) -> dict[str, dict[str, Any]]:
        """Shorten the warm-up for short runs, and add jitter so that two views of a feature vector differ."""
        options = super().options_for(section, shape)
        return options | {"data": {"jitter": _JITTER}} if shape.of_rows else options

    def phases(self, epoch: int, observed: EpochOutputs, labels: LabelStore) -> Iterator[Phase]:
        """Yield one phase per network: on all examples during the warm-up, then on the other network's split."""
        train = self.context.train
        self.given = labels.initial
        self.classes = self.given[train].unique()
        for network in range(observed.phases_done, self.num_networks):
            if self.clean is None:
                yield Phase(train, learns=(network,))
                continue
            weight = self.clean[1 - network]
            self.weight = weight.new_zeros(len(labels)).index_copy_(0, train, weight)
            labeled = divide(weight, self.options.p_threshold, self.context.batch_size)
            rest = torch.cat([train[~labeled], self.context.unlabeled])
            yield Phase(train[labeled], learns=(network,), unlabeled=rest if len(rest) else None, views=2)

    def loss(self, batch: Batch, phase: Phase) -> LossOutput:
        """Return the warm-up loss, or the semi-supervised loss of labeled and unlabeled examples."""
        (network,) = phase.learns
        if self.clean is None:
            return self._warmup_loss(batch, network)
        options, size = self.options, len(batch.indices)
        views = [*batch.views, *(batch.unlabeled.views if batch.unlabeled else ())]
        inputs = torch.cat(views)  # (2b, ...) labeled, then (2b, ...) unlabeled
        with torch.no_grad():
            targets = self._targets(inputs, batch, network)
            mixed, targets = mix(inputs, targets, options.alpha, batch.generator)
        log_probs = log_softmax(self.networks[network](mixed))
        terms = {"labeled": soft_cross_entropy(log_probs[: 2 * size], targets[: 2 * size])}
        if batch.unlabeled and options.lambda_u:
            weight = options.lambda_u * ramp(batch.progress, options.warmup, options.rampup)
            terms["unlabeled"] = weight * squared_error(log_probs[2 * size :], targets[2 * size :])
        if options.prior_weight:
            terms["prior"] = options.prior_weight * prior_penalty(log_probs, self.classes)
        return LossOutput({f"{name}_{network}": term for name, term in terms.items()})

    def _warmup_loss(self, batch: Batch, network: int) -> LossOutput:
        logits = self.networks[network](batch.inputs)
        terms = {"warmup": cross_entropy(logits, self.given[batch.indices]).mean()}
        if self.options.asymmetric:
            terms["negative_entropy"] = negative_entropy(log_softmax(logits))
        return LossOutput({f"{name}_{network}": term for name, term in terms.items()})

    def _targets(self, inputs: Tensor, batch: Batch, network: int) -> Tensor:
        """Return the target of each view (4b, k); the same for both views of an example.

        As in the released code, the trained network predicts in training mode. It is unwrapped: only the pass with
        gradients may use the wrapper for distributed training.
        """
        size, classes = len(batch.indices), self.context.num_classes
        logits = [unwrap(self.networks[network])(inputs)]
        if batch.unlabeled:
            logits.append(unwrap(self.networks[1 - network])(inputs[2 * size :]))
        probs = log_softmax(torch.cat(logits)).exp().view(-1, size, classes)  # own: x, x, u, u; the other's: u, u
        parts = [refine(self.given[batch.indices], probs[:2].mean(0), self.weight[batch.indices])]
        if batch.unlabeled:
            parts.append(probs[2:].mean(0))
        sharp = sharpen(torch.cat(parts), self.options.temperature)
        return sharp.view(-1, 1, size, classes).expand(-1, 2, -1, -1).reshape(-1, classes)

    def end_epoch(self, epoch: int, observed: EpochOutputs, labels: LabelStore) -> dict[str, Any]:
        """Update the split with the current networks, and correct labels."""
        if epoch < self.options.warmup:
            return {}
        train = self.context.train
        given = labels.initial[train]
        log_probs = [log_softmax(observed.logits(network)) for network in (0, 1)]
        losses = [-scores.gather(1, given[:, None])[:, 0] for scores in log_probs]
        self.losses.add(torch.stack([normalized(values) for values in losses]))
        seed = derive(self.context.seed, "mixture", epoch)
        self.clean = observed.broadcast(torch.stack([low_probability(losses, seed) for losses in self.losses.mean()]))
        self.clean[:, labels.trusted[train]] = 1.0
        refined = [refine(given, log_probs[network].exp(), self.clean[1 - network]) for network in (0, 1)]
        self.refined = (refined[0] + refined[1]) / 2
        confidence, proposed = self.refined.max(1)
        changed = labels.change(epoch, train, proposed, confidence)
        return {"changed": changed, "labeled": (self.clean > self.options.p_threshold).float().mean(1).tolist()}

    def train_probs(self) -> Tensor | None:
        """Return both networks' mean refined label, once there is one."""
        return self.refined

    def correct(self, probs: Tensor, labels: Tensor) -> Tensor:
        """Return the most probable class where its probability is above 0.5, else the given label.

        There is no estimate of w for examples not used for training, so the mean prediction alone decides.
        """
        top, best = probs.max(1)
        return torch.where(top > 0.5, best, labels)

    def state_dict(self) -> dict[str, Any]:
        """Return the losses, the split and the refined labels."""
        return {"losses": self.losses.state_dict(), "clean": self.clean, "refined": self.refined}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the losses, the split and the refined labels."""
        device = self.context.device
        self.losses.load_state_dict(state["losses"], device)
        saved = state["clean"], state["refined"]
        self.clean, self.refined = (None if part is None else part.to(device) for part in saved)


def divide(clean: Tensor, threshold: float, min_labeled: int) -> Tensor:
    """Return which examples count as labeled (m,): ``clean > threshold``; if none, the ``min_labeled`` most likely."""
    labeled = clean > threshold
    if not bool(labeled.any()):
        labeled[clean.topk(min(min_labeled, len(clean))).indices] = True
    return labeled


def refine(labels: Tensor, probs: Tensor, clean: Tensor) -> Tensor:
    """Return ``w y + (1 - w) p`` (equation 3); y is 1 at ``labels`` (b,), ``clean`` (b,) is w."""
    weight = clean[:, None]
    return (probs * (1 - weight)).scatter_add_(1, labels[:, None], weight)


def sharpen(probs: Tensor, temperature: float) -> Tensor:
    """Return ``p_c^(1/T) / sum_j p_j^(1/T)`` (equation 4); scaled by the largest p to avoid underflow."""
    powers = (probs / probs.amax(1, keepdim=True)).pow(1 / temperature)
    return powers / powers.sum(1, keepdim=True)


def log_softmax(logits: Tensor) -> Tensor:
    """Return ``log p``, computed along columns: with few classes this is twice as fast as along rows."""
    return logits.t().log_softmax(0).t()


def soft_cross_entropy(log_probs: Tensor, targets: Tensor) -> Tensor:
    """Return ``-mean_i sum_c q_c log p_c`` (equation 9)."""
    return -(targets * log_probs).sum() / len(targets)


def squared_error(log_probs: Tensor, targets: Tensor) -> Tensor:
    """Return ``mean_i mean_c (q_c - p_c)^2`` (equation 10; the mean over classes follows the released code)."""
    return (log_probs.exp() - targets).square().mean()


def prior_penalty(log_probs: Tensor, classes: Tensor) -> Tensor:
    """Return ``sum_c pi_c log(pi_c / mean_i p_c)`` (equation 11), pi being uniform over ``classes``.

    The logarithm of the mean is a log-sum-exp over the batch, so it stays finite if every p_c underflows.
    """
    totals = log_probs.logsumexp(0).index_select(0, classes)  # (k,) log sum_i p_c
    return math.log(len(log_probs) / len(classes)) - totals.mean()


def negative_entropy(log_probs: Tensor) -> Tensor:
    """Return ``mean_i sum_c p_c log p_c``, a penalty on confident predictions (equation 2)."""
    return (log_probs.exp() * log_probs).sum(1).mean()


def ramp(progress: float, warmup: int, rampup: int) -> float:
    """Return the factor on lambda_u: 0 at the end of the warm-up, 1 ``rampup`` epochs later."""
    return min(1.0, max(0.0, (progress - warmup) / rampup))


dividemix_m = calibrated("dividemix", DivideMix, "mean")
dividemix_c = calibrated("dividemix", DivideMix, "covariance")
