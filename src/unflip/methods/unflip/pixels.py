"""The method unflip for networks that learn from pixels: members trained on all images, each on the others' views."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from unflip.methods import MethodSpec
from unflip.methods.base import Batch, EpochOutputs, LabelStore, Method, Phase, TrainContext
from unflip.methods.losses import mix
from unflip.methods.plc import ProbabilityWindow
from unflip.methods.unflip.folds import assign_folds, members_rows
from unflip.methods.unflip.method import PRIOR_TRUST, Unflip, UnflipOptions, Views
from unflip.methods.unflip.posterior import PosteriorState, blocks, update_posterior
from unflip.nn.backbone import Pretrained
from unflip.nn.base import Ensemble, Network
from unflip.stats.discriminant import (
    MIN_LOG_PROB,
    SHRINKS,
    fit_discriminant,
    leave_group_out_log_posterior,
    to_memberships,
)
from unflip.stats.noise_rate import Confident
from unflip.stats.odds import pool

_ROUNDS = 2  # in which Gaussians of frozen features are fitted
_HELD_OUT, _PARTS = 1000, (5, 50)  # images that each member leaves out; at most a fifth of them, at least a fiftieth


class PixelUnflip(Unflip):
    """Members without folds, for images.

    A network that learns from pixels needs all of them: trained on half of them it predicts the rest badly. So each
    member is trained on all images, with mixup of its own. Two things keep it from confirming memorized labels:

    - **Other members**: the target of a member is the posterior of the true class given the label and the view of the
      *other* members, never its own.
    - **Averages**: a view is the mean of the probabilities by averaged weights over the last ``window`` epochs.

    How many labels are wrong is estimated out-of-sample, as for feature vectors: during the warm-up each member leaves
    out a thousand images of its own (at most a fifth), which it then predicts.

    A pretrained network knows much before it is trained. So its labels are first scored by leave-one-out class
    Gaussians of its frozen features: members start from that posterior instead of the given labels, and the Gaussians
    remain a second view in the pool. They are out-of-sample, so that no image is left out.

    All else is as for feature vectors: class prior, transition matrix, label weights and calibration. Scores are
    in-sample: their ranking rests on regularization (mixup, averaged weights, augmentation).
    """

    def __init__(self, options: UnflipOptions, context: TrainContext) -> None:
        super().__init__(options, context)
        self.num_folds = 1
        self.windows = [ProbabilityWindow(options.window) for _ in range(self.count)]
        self.frozen: Tensor | None = None  # view (m, k) by Gaussians of frozen features
        self.parts = max(self.count, min(max(len(context.train) // _HELD_OUT, _PARTS[0]), _PARTS[1]))
        self.part = torch.empty(0, dtype=torch.long)  # by row of ``context.train``; member i leaves out part i
        self.rates: Tensor | None = None  # noise rates of the given labels (q,), estimated once

    def _assign_folds(self, labels: LabelStore) -> None:
        """Assign the images to parts, once."""
        if self.folds is None:
            given = labels.initial[self.context.train]
            self.part = assign_folds(given, self.context.groups, self.parts, self.context.seed)
        super()._assign_folds(labels)

    def phases(self, epoch: int, observed: EpochOutputs, labels: LabelStore) -> Iterator[Phase]:
        """Yield one pass over all images, after scoring labels on frozen features if there are any."""
        member = self.ema.module.split()[0]
        if epoch == 1 and self.frozen is None and isinstance(member, Pretrained) and member.options.pretrained:
            self._assign_folds(labels)
            batches = observed.outputs(Features(member).eval(), self.context.train)
            features = torch.cat([part for _, part in batches])
            self._score_frozen(features[:, features.std(0) > 0], observed, labels)
        yield from super().phases(epoch, observed, labels)

    def _score_frozen(self, features: Tensor, observed: EpochOutputs, labels: LabelStore) -> None:
        """Compute view and posterior by Gaussians of features (m, d), fitted to the labels, then to the posterior."""
        given, groups, classes = labels.initial[self.context.train], self.context.groups, self.context.num_classes
        targets, fetch = to_memberships(given, classes), features.__getitem__
        for _ in range(_ROUNDS):
            fitted = fit_discriminant(fetch, targets, classes, shrink=SHRINKS, given=given, groups=groups)
            self.frozen = leave_group_out_log_posterior(fitted, fetch, targets, groups, out=self._table())
            stacked = self._stack([self.frozen], given)
            weights = observed.broadcast(stacked.weights.to(given.device))
            self.posterior = update_posterior(
                self._of_known(pool([self.frozen], weights)),
                given,
                stacked.uniform_noise_rate,
                self.known,
                self._evidence(self.frozen, labels.given[self.context.train])[0],
                trust=PRIOR_TRUST[self.options.prior],
                progress=0.0,
                broadcast=observed.broadcast,
            )
            self.posterior.weights = weights
            targets = self._targets(self.posterior, labels)

    def _for_members(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return each member's inputs (count, s, ...), targets (count, s, k), mixed by itself, and weight (count,)."""
        assert self.targets is not None
        own, members = self.position[batch.indices], torch.arange(self.count, device=batch.indices.device)[:, None]
        is_held_out, size = self.part[own] == members, round(len(own) * (1 - 1 / self.parts))
        if self.warmed_up or self.frozen is not None:
            is_held_out, size = torch.zeros_like(is_held_out), len(own)
        rows, present = members_rows(is_held_out, max(2, size))
        inputs = batch.inputs.index_select(0, rows.view(-1)).view(*rows.shape, *batch.inputs.shape[1:])
        targets = self.targets[members, own[rows]].float()
        inputs, targets = self._with_unlabeled(inputs, targets, batch.unlabeled)
        if self.options.mixup:
            mixed = [mix(*pair, self.options.mixup, batch.generator) for pair in zip(inputs, targets, strict=True)]
            inputs, targets = (torch.stack(parts) for parts in zip(*mixed, strict=True))
        return inputs, targets, present / rows.shape[1]

    def end_epoch(self, epoch: int, observed: EpochOutputs, labels: LabelStore) -> dict[str, Any]:
        """Predict all images in the last epochs of the warm-up and after it; then correct labels."""
        if epoch > self.warmup - self.options.window:
            for window, member in zip(self.windows, self.ema.module.split(), strict=True):
                batches = observed.outputs(member, self.context.train)
                window.add(torch.cat([logits.softmax(1) for _, logits in batches]))
        return super().end_epoch(epoch, observed, labels)

    def compute_views(self, observed: EpochOutputs, given: Tensor) -> Views:
        """Return the mean view of all members, and that by frozen features, and fit their weights."""
        self.targets = None
        network = self._view(range(self.count))
        views = [network] if self.frozen is None else [network, self.frozen]
        rate = None
        if self.posterior is None:
            rows, unseen = self._held_out()
            rate = self._stack([unseen], given[rows]).uniform_noise_rate
        return Views(network, self.frozen, None, self._stack(views, given, rate))

    def _held_out(self) -> tuple[Tensor, Tensor]:
        """Return the images that a member left out (r,), and that member's log-probabilities (r, k)."""
        rows = (self.part < self.count).nonzero()[:, 0]
        view = torch.empty(len(rows), self.context.num_classes, device=rows.device)
        for member, window in enumerate(self.windows):
            own = self.part[rows] == member
            view[own] = window.mean()[rows[own]].float()
        return rows, view.log().clamp(min=MIN_LOG_PROB)

    def _out_of_sample(self, given: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities (r, k) by a view that was not trained on these images, and their given labels (r,).

        Confidence is that which fits the given labels best: mixup and means over epochs make a view much less confident
        than it is right, Gaussians much more.
        """
        rows, view = self._held_out() if self.frozen is None else (torch.arange(len(given)).to(given), self.frozen)
        rows, view = rows[given[rows] >= 0], view[given[rows] >= 0]
        return pool([view], self._stack([view], given[rows]).weights), given[rows]

    def _evidence(self, network: Tensor, given: Tensor) -> tuple[Confident, Tensor]:
        """Describe the labels that are predicted confidently, and return lapse rates (q,), both out-of-sample."""
        return super()._evidence(*self._out_of_sample(given))

    def _noise_rates(self, odds: Tensor, given: Tensor, counted: Tensor) -> Tensor:
        """Return equally likely noise rates (q,) of the given labels, estimated once and out-of-sample."""
        state = self.posterior
        assert state is not None
        if state.annotators is not None:
            return super()._noise_rates(odds, given, counted)
        if self.rates is None:
            view, given = self._out_of_sample(given)
            trust, every = PRIOR_TRUST[self.options.prior], torch.ones_like(given, dtype=torch.bool)
            unseen = update_posterior(
                self._of_known(view), given, state.uniform_noise_rate, self.known, state.confident, trust=trust
            )
            unseen.lapses = state.lapses
            self.rates = unseen.noise_rates(unseen.odds(slice(None), given), given, every)
        return self.rates

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
        return super().state_dict() | {"windows": windows, "frozen": self.frozen, "rates": self.rates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        super().load_state_dict(state)
        for window, saved in zip(self.windows, state["windows"], strict=True):
            window.load_state_dict(saved, self.context.device)
        self.frozen = None if state["frozen"] is None else state["frozen"].to(self.context.device)
        self.rates = state["rates"]


class Features(Network):
    """A network that returns the features of another one."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.encoder, self.head = network, nn.Identity()  # type: ignore[assignment]

    def encode(self, inputs: Tensor) -> Tensor:
        """Map inputs (b, ...) to features (b, d)."""
        features: Tensor = self.encoder.encode(inputs)  # type: ignore[operator]
        return features


@dataclass(frozen=True)
class UnflipSpec(MethodSpec):
    """The method unflip: cross-fitted for feature vectors, without folds for images."""

    def build(self, options: Any, context: TrainContext) -> Method:
        """Build the class for the kind of inputs."""
        method = Unflip if context.of_rows else PixelUnflip
        return method(options[self.name], context)


unflip = UnflipSpec("unflip", Unflip)
