"""The method unflip for networks that learn from pixels: members trained on all images, each on the others' views."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from unflip.methods import MethodSpec
from unflip.methods.base import Batch, EpochOutputs, LabelStore, Method, Phase, TrainContext
from unflip.methods.losses import mix
from unflip.methods.plc import ProbabilityWindow
from unflip.methods.unflip.method import PRIOR_TRUST, Unflip, UnflipOptions, Views
from unflip.methods.unflip.posterior import PosteriorState, blocks, update_posterior
from unflip.nn.backbone import Pretrained
from unflip.nn.base import Ensemble
from unflip.stats.discriminant import (
    MIN_LOG_PROB,
    SHRINKS,
    fit_discriminant,
    leave_group_out_log_posterior,
    to_memberships,
)
from unflip.stats.odds import pool

_ROUNDS = 2  # in which Gaussians of frozen features are fitted
_MIN_VARIANCE = 1e-7  # of a component, as a fraction of all; rounding errors have less
_COMPONENTS = 256  # of frozen features; Gaussians of more are too confident to tell how many labels are wrong


class PixelUnflip(Unflip):
    """Members without folds, for images.

    A network that learns from pixels needs all of them: trained on half of them it predicts the rest badly. So each
    member is trained on all images, with mixup of its own. Two things keep it from confirming memorized labels:

    - **Other members**: the target of a member is the posterior of the true class given the label and the view of the
      *other* members, never its own.
    - **Averages**: a view is the mean of the probabilities by averaged weights over the last ``window`` epochs.

    A pretrained network knows much before it is trained. So its labels are first scored by leave-one-out class
    Gaussians of its frozen features: members start from that posterior instead of the given labels, and the Gaussians
    remain a second view in the pool.

    All else is as for feature vectors: class prior, transition matrix, label weights and calibration. Scores are
    in-sample: their ranking rests on regularization (mixup, averaged weights, augmentation). But how many labels are
    wrong is estimated by the same rule as for feature vectors, from labels that no view was trained on: those of the
    validation images if they are noisy, or of all images where there are Gaussians. Without both the estimate is low.
    """

    def __init__(self, options: UnflipOptions, context: TrainContext) -> None:
        super().__init__(options, context)
        self.num_folds = 1
        self.windows = [ProbabilityWindow(options.window) for _ in range(self.count)]
        self.frozen: Tensor | None = None  # view (m, k) by Gaussians of frozen features
        self.validation = ProbabilityWindow(options.window)  # of all members, for validation images
        self.uniform_noise_rate: float | None = None

    def phases(self, epoch: int, observed: EpochOutputs, labels: LabelStore) -> Iterator[Phase]:
        """Yield one pass over all images, after scoring labels on frozen features if there are any."""
        member = self.ema.module.split()[0]
        if epoch == 1 and self.frozen is None and isinstance(member, Pretrained) and member.options.pretrained:
            self._assign_folds(labels)
            headless = copy.deepcopy(member)
            headless.head = nn.Identity()  # type: ignore[assignment]
            features = torch.cat([part for _, part in observed.outputs(headless, self.context.train)])
            self._score_frozen(principal_components(features), observed, labels)
        yield from super().phases(epoch, observed, labels)

    def _score_frozen(self, features: Tensor, observed: EpochOutputs, labels: LabelStore) -> None:
        """Compute view and posterior by Gaussians of features (m, d), fitted to the labels, then to the posterior."""
        given, groups, classes = labels.initial[self.context.train], self.context.groups, self.context.num_classes
        targets, fetch = to_memberships(given, classes), features.__getitem__
        for _ in range(_ROUNDS):
            fitted = fit_discriminant(fetch, targets, classes, shrink=SHRINKS, given=given, groups=groups)
            self.frozen = leave_group_out_log_posterior(fitted, fetch, targets, groups, out=self._table())
            stacked = self._stack([self.frozen], self._as_given(labels))
            weights = observed.broadcast(stacked.weights.to(given.device))
            self.posterior = update_posterior(
                self._of_known(pool([self.frozen], weights)),
                given,
                stacked.uniform_noise_rate,
                self.known,
                self._evidence(pool([self.frozen], weights), labels.given[self.context.train])[0],
                trust=PRIOR_TRUST[self.options.prior],
                progress=0.0,
                broadcast=observed.broadcast,
            )
            self.posterior.weights = weights
            targets = self._targets(self.posterior, labels)

    def _for_members(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return each member's inputs (count, b, ...), targets (count, b, k), mixed by itself, and weight (count,)."""
        assert self.targets is not None
        targets = self.targets.index_select(1, self.position[batch.indices]).float()
        inputs, weight = batch.inputs.expand(self.count, *batch.inputs.shape), 1 / len(batch.indices)
        inputs, targets = self._with_unlabeled(inputs, targets, batch.unlabeled)
        if self.options.mixup:
            mixed = [mix(*pair, self.options.mixup, batch.generator) for pair in zip(inputs, targets, strict=True)]
            inputs, targets = (torch.stack(parts) for parts in zip(*mixed, strict=True))
        return inputs, targets, targets.new_full((self.count,), weight)

    def end_epoch(self, epoch: int, observed: EpochOutputs, labels: LabelStore) -> dict[str, Any]:
        """Predict all images in the last epochs of the warm-up and after it; then correct labels."""
        if epoch > self.warmup - self.options.window:
            members, validation = self.ema.module.split(), self._validation_rows(labels)
            for window, member in zip(self.windows, members, strict=True):
                window.add(self._predict(member, self.context.train, observed))
            probs = torch.stack([self._predict(member, validation, observed) for member in members])
            self.validation.add(probs.mean(0))
        if epoch >= self.warmup and self.posterior is None:
            self.uniform_noise_rate = self._stack(*self._out_of_sample(labels)).uniform_noise_rate
        return super().end_epoch(epoch, observed, labels)

    def _predict(self, member: nn.Module, rows: Tensor, observed: EpochOutputs) -> Tensor:
        """Return a member's class probabilities (r, k) of some rows of the label store."""
        result = torch.empty(len(rows), self.context.num_classes, device=rows.device)
        for places, logits in observed.outputs(member, rows):
            result[places] = logits.softmax(1)
        return result

    def _validation_rows(self, labels: LabelStore) -> Tensor:
        """Return the rows of the label store (r,) that have a noisy label and are not trained on."""
        is_other = (labels.given >= 0) & (not self.context.clean_val)
        is_other[self.context.train] = False
        return is_other.nonzero()[:, 0]

    def compute_views(self, observed: EpochOutputs, labels: LabelStore) -> Views:
        """Return the mean view of all members, and that by frozen features, and fit their weights."""
        self.targets = None
        network = self._view(range(self.count))
        views = [network] if self.frozen is None else [network, self.frozen]
        stacked = self._stack(views, self._as_given(labels), self.uniform_noise_rate)
        return Views(network, self.frozen, None, stacked)

    def _out_of_sample(self, labels: LabelStore) -> tuple[list[Tensor], Tensor]:
        """Return given labels (r,) and, as the only view, log-probabilities (r, k) of members not trained on them.

        Without validation images and frozen features it is the view of all members, which were.
        """
        rows, view = self._validation_rows(labels), self.frozen
        if view is None and len(rows):
            return [self.validation.mean().float().log().clamp(min=MIN_LOG_PROB)], labels.given[rows]
        given = labels.given[self.context.train]
        return [(self._view(range(self.count)) if view is None else view)[given >= 0]], given[given >= 0]

    def _noise_rates(self, odds: Tensor, labels: LabelStore, counted: Tensor) -> Tensor:
        """Return equally likely noise rates (q,) of the given labels, estimated out-of-sample.

        Confidence is that which fits the given labels best: mixup and means over epochs make a view much less confident
        than it is right, Gaussians much more.
        """
        state = self.posterior
        assert state is not None
        if state.annotators is not None:
            return super()._noise_rates(odds, labels, counted)
        views, given = self._out_of_sample(labels)
        scaled = self._of_known(pool(views, self._stack(views, given).weights))
        part, lapses = self._evidence(scaled, given)
        trust, every = PRIOR_TRUST[self.options.prior], torch.ones_like(given, dtype=torch.bool)
        unseen = update_posterior(scaled, given, state.uniform_noise_rate, self.known, part, trust=trust)
        unseen.lapses = lapses
        return unseen.noise_rates(unseen.odds(slice(None), given), given, every)

    def _view(self, members: Sequence[int]) -> Tensor:
        """Return the logarithm of the mean probabilities (m, k) by some members in the last epochs."""
        result, means = self._table(), [self.windows[member].mean() for member in members]
        for rows in blocks(*result.shape):
            mean = torch.stack([probs[rows].float() for probs in means]).mean(0)
            result[rows] = mean.log().clamp(min=MIN_LOG_PROB)
        return result

    def _compute_targets(self, labels: LabelStore) -> None:
        """Compute the targets of this epoch (count, m, k), unless they are cached."""
        if self.targets is None:
            states = [self._by_others(member) for member in range(self.count)]
            self.targets = torch.stack([self._targets(state, labels) for state in states])

    def _by_others(self, member: int) -> PosteriorState | None:
        """Return the posterior under the view of the other members, or a single member's own, and frozen features.

        During the warm-up there are frozen features only.
        """
        state, views, log_probs = self.posterior, [] if self.frozen is None else [self.frozen], self._table()
        if state is None or state.weights is None:
            return None
        if self.warmed_up:
            views = [self._view([other for other in range(self.count) if other != member] or [member]), *views]
        for rows in blocks(*log_probs.shape):
            pooled = self._of_known(pool([view[rows] for view in views], state.weights))
            log_probs[rows] = (pooled + state.offset).log_softmax(1)
        return replace(state, log_probs=log_probs)

    def model(self) -> Ensemble:
        """Return the averaged members; for new images they stand for frozen features, too."""
        members, state = self.ema.module.split(), self.posterior
        if state is None or state.weights is None or not self.warmed_up:
            return Ensemble(members)
        return Ensemble(members, state.weights.sum(0, keepdim=True), state.offset)

    def state_dict(self) -> dict[str, Any]:
        """Return the averaged weights, the posterior and the views."""
        windows = [window.state_dict() for window in self.windows]
        views = {"windows": windows, "frozen": self.frozen, "validation": self.validation.state_dict()}
        return super().state_dict() | views

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        super().load_state_dict(state)
        for window, saved in zip(self.windows, state["windows"], strict=True):
            window.load_state_dict(saved, self.context.device)
        self.validation.load_state_dict(state["validation"], self.context.device)
        self.frozen = None if state["frozen"] is None else state["frozen"].to(self.context.device)


def principal_components(features: Tensor) -> Tensor:
    """Return the first components (m, c) of features (m, d), without constant ones."""
    from sklearn.decomposition import PCA  # slow to import, and few runs need it

    fitted = PCA(min(_COMPONENTS, *features.shape), svd_solver="covariance_eigh")
    components = fitted.fit_transform(features.cpu().numpy())
    return torch.from_numpy(components[:, fitted.explained_variance_ratio_ > _MIN_VARIANCE]).to(features.device)


@dataclass(frozen=True)
class UnflipSpec(MethodSpec):
    """The method unflip: cross-fitted for feature vectors, without folds for images."""

    def build(self, options: Any, context: TrainContext) -> Method:
        """Build the class for the kind of inputs."""
        method = Unflip if context.of_rows else PixelUnflip
        return method(options[self.name], context)


unflip = UnflipSpec("unflip", Unflip)
