"""The method unflip for networks that learn from pixels: members trained on all images, each on the others' views."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from unflip.methods.base import Batch, EpochOutputs, LabelStore, Method, MethodSpec, TrainContext
from unflip.methods.losses import mix
from unflip.methods.plc import ProbabilityWindow
from unflip.methods.unflip.method import Unflip, UnflipOptions, Views
from unflip.methods.unflip.posterior import PosteriorState, blocks
from unflip.stats.discriminant import MIN_LOG_PROB
from unflip.stats.noise_rate import Confident
from unflip.stats.odds import pool


class PixelUnflip(Unflip):
    """Members without folds, for images.

    A network that learns from pixels needs all of them: trained on half of them it predicts the rest badly. So each
    member is trained on all images, with mixup of its own. Two things keep it from confirming memorized labels:

    - **Other members**: the target of a member is the posterior of the true class given the label and the view of the
      *other* members, never its own.
    - **Averages**: a view is the mean of the probabilities by averaged weights over the last ``window`` epochs.

    All else is as for feature vectors: class prior, transition matrix, label weights and calibration. There are no
    Gaussians. Scores are in-sample: their quality rests on regularization (mixup, averaged weights, augmentation).
    """

    def __init__(self, options: UnflipOptions, context: TrainContext) -> None:
        super().__init__(options, context)
        self.num_folds = 1
        self.windows = [ProbabilityWindow(options.window) for _ in range(self.count)]

    def _for_members(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return each member's inputs (count, b, ...) and targets (count, b, k), mixed by itself, and ones (count,)."""
        assert self.targets is not None
        targets = self.targets.index_select(1, self.position[batch.indices]).float()
        inputs = batch.inputs.expand(self.count, *batch.inputs.shape)
        if self.options.mixup:
            mixed = [mix(*pair, self.options.mixup, batch.generator) for pair in zip(inputs, targets, strict=True)]
            inputs, targets = (torch.stack(parts) for parts in zip(*mixed, strict=True))
        return inputs, targets, targets.new_ones(self.count)

    def end_epoch(self, epoch: int, observed: EpochOutputs, labels: LabelStore) -> dict[str, Any]:
        """Predict all images in the last epochs of the warm-up and after it; then correct labels."""
        if epoch > self.warmup - self.options.window:
            for window, member in zip(self.windows, self.ema.module.split(), strict=True):
                batches = observed.outputs(member, self.context.train)
                window.add(torch.cat([logits.softmax(1) for _, logits in batches]))
        return super().end_epoch(epoch, observed, labels)

    def compute_views(self, observed: EpochOutputs, given: Tensor) -> Views:
        """Return the mean view of all members, and fit its weight."""
        self.targets = None
        network = self._view(range(self.count))
        return Views(network, None, None, self._stack([network], given))

    def _confident_part(self, network: Tensor, labels: LabelStore) -> Confident:
        """Describe the confidently predicted labels, at the confidence that fits the given labels best.

        Mixup and means over epochs and members make the view itself much less confident than it is right.
        """
        weights = self._stack([network], labels.initial[self.context.train]).weights
        return super()._confident_part(pool([network], weights), labels)

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
        """Return the posterior under the view of the other members, or a single member's own."""
        state = self.posterior
        if state is None or state.weights is None:
            return None
        view = self._view([other for other in range(self.count) if other != member] or [member])
        for rows in blocks(*view.shape):
            view[rows] = (self._of_known(pool([view[rows]], state.weights)) + state.offset).log_softmax(1)
        return replace(state, log_probs=view)

    def state_dict(self) -> dict[str, Any]:
        """Return the averaged weights, the posterior and the windows."""
        return super().state_dict() | {"windows": [window.state_dict() for window in self.windows]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved state."""
        super().load_state_dict(state)
        for window, saved in zip(self.windows, state["windows"], strict=True):
            window.load_state_dict(saved, self.context.device)


@dataclass(frozen=True)
class UnflipSpec(MethodSpec):
    """The method unflip: cross-fitted for feature vectors, without folds for images."""

    def build(self, options: Any, context: TrainContext) -> Method:
        """Build the class for the kind of inputs."""
        method = Unflip if context.of_rows else PixelUnflip
        return method(options[self.name], context)


unflip = UnflipSpec("unflip", Unflip)
