"""The method unflip: hooks only; its formulas are in posterior.py, its folds in folds.py, images in pixels.py."""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any, Literal, NamedTuple

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from unflip.errors import UnflipWarning
from unflip.methods.base import (
    Batch,
    EpochOutputs,
    LabelScores,
    LabelStore,
    LossOutput,
    Method,
    Phase,
    RunShape,
    TrainContext,
    moved,
    storage_dtype,
)
from unflip.methods.losses import mix
from unflip.methods.unflip.folds import assign_folds, folds_without, members_rows
from unflip.methods.unflip.posterior import PosteriorState, blocks, informative_prob, top_one, update_posterior
from unflip.nn.base import EMA, Ensemble, Network, unwrap
from unflip.options import Options
from unflip.stats.annotators import ROUNDS, AnnotatorFit, fit_annotators
from unflip.stats.discriminant import (
    MIN_LOG_PROB,
    SHRINKS,
    Discriminant,
    fit_discriminant,
    leave_group_out_log_posterior,
    to_memberships,
)
from unflip.stats.noise_rate import QUANTILES, Confident, confident_part, lapse_rates
from unflip.stats.odds import PlattScaling, Stacked, pool, stack
from unflip.stats.sampling import calibrate_to_review

SMALL_DATA = 10_000
"""Number of examples below which the ensemble is larger, and Gaussians are never dropped."""
PRIOR_TRUST = {"auto": None, "equal": 0.0, "empirical": 1.0}
"""Trust in the class prior, by option; None: estimated."""
_MIN_WEIGHT = 0.1  # Gaussians with a smaller weight, relative to the networks', are not worth their time
_FEW_ROUNDS = 5  # of expectation maximization, between the first epoch and the last
_MIN_STEPS = 300  # of a run on feature vectors
_SHARPENED = 2.0  # the power of predictions as targets of unlabeled examples, as in DivideMix
_MAX_GRAD_NORM = 3.0  # of a member; not reached on frozen CIFAR features, where training is stable


class UnflipOptions(Options):
    """All options have defaults; no noise rate, clean labels or validation examples are needed."""

    members: PositiveInt | None = None
    """Size of the ensemble; by default 8 for fewer than 10,000 examples, 5 for more, and 2 for images."""
    warmup: PositiveInt | None = None
    """Number of epochs of training on the given labels; by default 30% of all epochs."""
    steps: PositiveInt | None = None
    """Minimum number of steps; by default 300 for feature vectors, so small data is repeated within each epoch."""
    mixup: float = Field(1.0, ge=0.0)
    """Both parameters of the Beta distribution of mixup weights; 0 turns mixup off."""
    ema_decay: float = Field(0.99, ge=0.0, lt=1.0)
    """Decay of the exponential moving average of the weights; 0 turns averaging off."""
    window: PositiveInt = 5
    """Images only: number of epochs over which predictions are averaged."""
    gaussians: bool = True
    """Whether to use class Gaussians of the inputs as a second view; ignored for images."""
    prior: Literal["auto", "equal", "empirical"] = "auto"
    """Class prior: `equal` is uniform, `empirical` is as estimated, and `auto` moves the estimate toward uniform as
    far as noise may have made it unequal."""
    noise_rate: float | None = Field(None, gt=0.0, lt=1.0)
    """Fraction of wrong labels, if you know it; by default it is estimated."""
    soft_targets: bool = True
    """Whether to train on the posterior of the true class after the warm-up, instead of on the given labels."""


class Views(NamedTuple):
    """Out-of-sample log-probabilities (m, k) of the training examples by each view, and their weights."""

    network: Tensor
    gaussian: Tensor | None  # None if dropped
    gaussians: Discriminant | None
    stacked: Stacked


class Unflip(Method):
    """Cross-fitted networks, leave-one-out class Gaussians, and soft targets.

    - **Members**: networks trained side by side with mixup, each on all folds but two (but one if there are fewer than
      five); an exponential moving average of their weights predicts. Groups share a fold. Mixup partners come from the
      same folds as the example.
    - **Views**: each label is scored by the two members that were not trained on it, and by leave-one-out class
      Gaussians of the inputs. Views are stacked by the likelihood of the given labels, together with the uniform noise
      rate.
    - **Prior**: the class prior is moved towards uniform as far as noise may have made it unequal.
    - **Targets**: after the warm-up members are trained on the posterior of the true class given features *and* given
      label, under an estimated transition matrix; the given label counts less from epoch to epoch. Examples without a
      label then train each member on sharpened predictions of its own.
    - **Verdict**: log-odds are calibrated to an estimate of the noise rate (:mod:`unflip.stats.noise_rate`); a label is
      changed if another one is more likely right.

    The model is the mean of the members, stacked with the Gaussians. Formulas: docs/how-it-works.md.
    """

    Options = UnflipOptions
    options: UnflipOptions
    tables = 3
    can_be_calibrated = False
    uses_annotations = uses_order = True

    def __init__(self, options: UnflipOptions, context: TrainContext) -> None:
        super().__init__(options, context)
        self.count = self.num_folds = count_members(options, context)
        self.posterior: PosteriorState | None = None
        self.folds: Tensor | None = None  # by row of the label store, -1 for examples that do not train
        self.targets: Tensor | None = None  # by row of ``context.train``
        self.known = self.small = torch.empty(0, dtype=torch.bool)  # by class, see _assign_folds
        self.unknown = torch.empty(0, dtype=torch.long)  # classes that are not known
        self.dropped = not (options.gaussians and context.of_rows)
        self.warmed_up: int | None = None  # the last epoch of the warm-up, once it is over
        self.scaling: PlattScaling | None = None  # of the last scores
        if self.num_folds == 1 and context.of_rows:
            warnings.warn("unflip.members = 1: scores are in-sample; use more members", UnflipWarning, stacklevel=2)

    @classmethod
    def options_for(cls, section: str, shape: RunShape) -> dict[str, Any]:
        """Take the last epoch; feature vectors need no validation examples, and have their own schedule."""
        if not shape.of_rows:
            return {"select": "last"}
        return {
            "select": "last",
            "epochs": 10,
            "data": {"val_fraction": 0.0, "standardize": "auto"},
            "optimizer": {"lr": 0.15, "batch_size": 320, "schedule": "cosine"},
            "mlp": {"batch_norm": False},
        }

    @classmethod
    def build_networks(cls, options: Any, context: TrainContext, build: Callable[[int], Network]) -> list[Network]:
        """Return all members, side by side in one module."""
        members = [build(position) for position in range(count_members(options, context))]
        return [type(members[0]).side_by_side(members)]

    def set_networks(self, networks: Sequence[nn.Module]) -> None:
        """Take a list of one module, which holds all members, and start its average."""
        super().set_networks(networks)
        self.ema = EMA(unwrap(networks[0]), self.options.ema_decay)

    @property
    def warmup(self) -> int:
        """Number of epochs on the given labels; constant once reached, also in a run resumed for more epochs."""
        return self.warmed_up or self.options.warmup or max(1, round(0.3 * self.context.epochs))

    def phases(self, epoch: int, observed: EpochOutputs, labels: LabelStore) -> Iterator[Phase]:
        """Yield one pass over all examples, repeated if there are few."""
        self._assign_folds(labels)
        self._compute_targets(labels)
        train, context = self.context.train, self.context
        steps = -(-len(train) // context.batch_size)
        min_steps = self.options.steps or (_MIN_STEPS if context.of_rows else 1)
        passes = -(-min_steps // (steps * context.epochs))
        if observed.phases_done == 0:
            uses_unlabeled = self.warmed_up is not None and len(context.unlabeled)
            yield Phase(train.repeat(passes), unlabeled=context.unlabeled if uses_unlabeled else None)

    def _assign_folds(self, labels: LabelStore) -> None:
        """Assign the examples to folds, once.

        A class is known if at least two folds have labels of it. Otherwise no member could score them out of fold: its
        labels are kept, and no label is changed to it. Labels of such classes, and of those with fewer examples than
        folds, have no quality.
        """
        if self.folds is not None:
            return
        context, train, initial = self.context, self.context.train, labels.initial
        given = initial[train]
        self.folds = torch.full_like(initial, -1)
        if self.num_folds > 1:
            self.folds[train] = assign_folds(given, context.groups, self.num_folds, context.seed)
        self.position = torch.zeros_like(initial).index_copy_(0, train, torch.arange(len(train)).to(train))
        places = given * self.num_folds + self.folds[train].clamp(min=0)
        sizes = places.bincount(minlength=context.num_classes * self.num_folds).view(-1, self.num_folds)
        self.known = (sizes > 0).sum(1) >= min(2, self.num_folds)
        self.small = (sizes.sum(1) < max(2, self.num_folds)) | ~self.known
        self.unknown = (~self.known).nonzero()[:, 0]

    def _compute_targets(self, labels: LabelStore) -> None:
        """Compute the targets of this epoch, unless they are cached."""
        if self.targets is None:
            self.targets = self._targets(self.posterior, labels)

    def _targets(self, state: PosteriorState | None, labels: LabelStore) -> Tensor:
        """Return the targets (m, k) under a posterior, or the labels if there is none yet."""
        train = self.context.train
        given = labels.initial[train]
        fixed = labels.trusted[train] | ~self.known[given]
        result = self._table()
        for rows in blocks(len(train), self.context.num_classes):
            targets = to_memberships(given[rows], self.context.num_classes)
            if state is not None and self.options.soft_targets:
                soft = state.targets(rows, given)
                targets = torch.where(fixed[rows, None], targets, soft)
            result[rows] = targets
        return result

    def _table(self) -> Tensor:
        """Return an empty table (m, k) for the training examples."""
        size = len(self.context.train), self.context.num_classes
        return torch.empty(size, dtype=storage_dtype(size[0] * size[1]), device=self.context.train.device)

    def loss(self, batch: Batch, phase: Phase) -> LossOutput:
        """Return each member's cross-entropy on mixed examples."""
        inputs, targets, weights = self._for_members(batch)
        log_probs = self.networks[0](inputs).float().log_softmax(2)
        losses = -weights * (targets * log_probs).sum((1, 2))
        total = losses.sum()  # members have separate gradients; the value shown is their mean
        return LossOutput({"loss": total - (total - losses.mean()).detach()})

    def _for_members(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return each member's inputs (count, s, ...), targets (count, s, k) and weight of its loss (count,)."""
        assert self.folds is not None
        assert self.targets is not None
        rows, present = members_rows(self.folds[batch.indices], self.count)
        flat = rows.view(-1)
        inputs = batch.inputs.index_select(0, flat).view(*rows.shape, *batch.inputs.shape[1:])
        own = self.position[batch.indices].index_select(0, flat)
        targets = self.targets.index_select(0, own).float().view(*rows.shape, -1)
        inputs, targets = self._with_unlabeled(inputs, targets, batch.unlabeled)
        if self.options.mixup:
            inputs, targets = mix(inputs, targets, self.options.mixup, batch.generator, dim=1)
        return inputs, targets, present / rows.shape[1]

    def _with_unlabeled(self, inputs: Tensor, targets: Tensor, unlabeled: Batch | None) -> tuple[Tensor, Tensor]:
        """Append unlabeled examples; their targets are sharpened predictions by each member's own averaged weights.

        No member learns from another one's prediction, which may know a label that it must not. Of a batch as many are
        taken as there are for each labeled example, at most one, so that none is repeated in an epoch.
        """
        if unlabeled is None:
            return inputs, targets
        size = math.ceil(min(1.0, len(self.context.unlabeled) / len(self.context.train)) * len(unlabeled.indices))
        others = unlabeled.inputs[:size].expand(self.count, size, *unlabeled.inputs.shape[1:])
        with torch.no_grad():
            guessed = (_SHARPENED * self.ema.module(others).float()).softmax(2)
        return torch.cat([inputs, others], 1), torch.cat([targets, guessed], 1)

    def before_step(self) -> None:
        """Clip the gradient norm of each member on feature vectors, where a few outliers could make it diverge."""
        if self.context.of_rows:
            unwrap(self.networks[0]).clip_grad_norm(_MAX_GRAD_NORM)  # type: ignore[operator]

    def after_step(self) -> None:
        """Update the averaged weights."""
        self.ema.update_parameters(unwrap(self.networks[0]))

    def end_epoch(self, epoch: int, observed: EpochOutputs, labels: LabelStore) -> dict[str, Any]:
        """From the end of the warm-up on, score all labels and correct them."""
        if epoch < self.warmup:
            return {}
        self.warmed_up = self.warmup
        train, context, before = self.context.train, self.context, self.posterior
        given = labels.initial[train]
        views = self.compute_views(observed, labels)
        weights = observed.broadcast(views.stacked.weights.to(views.network.device))
        log_probs = self._table()
        for rows in blocks(len(given), self.context.num_classes):
            parts = [view[rows] for view in (views.network, views.gaussian) if view is not None]
            log_probs[rows] = self._of_known(pool(parts, weights))
        if before:
            confident, lapses = before.confident, before.lapses
        else:
            confident, lapses = self._evidence(views.network, labels.given[train])
        after = self.posterior = update_posterior(
            log_probs,
            given,
            views.stacked.uniform_noise_rate,
            self.known,
            confident,
            trust=before.prior_trust if before else PRIOR_TRUST[self.options.prior],
            steps=context.epochs - self.warmup + 1,  # one per epoch
            progress=(epoch - self.warmup) / max(1, context.epochs - self.warmup),
            ordinal=context.ordinal,
            broadcast=observed.broadcast,
        )
        after.weights, after.gaussians, after.lapses = weights, views.gaussians, lapses
        if labels.annotations is not None:
            known = given.where(labels.trusted[train], torch.tensor(-1, device=given.device))
            rounds = ROUNDS if before is None or epoch == context.epochs else _FEW_ROUNDS
            after.annotators = fit_annotators(
                labels.annotations.at(train, len(labels)),
                after.log_probs,
                known=known,
                rounds=rounds,
                start=before.annotators if before else None,
            )
        log_odds = self._calibrate(labels)
        proposed, confidence = torch.empty_like(given), torch.empty(len(given), device=given.device)
        for rows in blocks(len(train), self.context.num_classes):
            proposed[rows], confidence[rows] = after.correct(rows, given, log_odds[rows])
        changed = labels.change(epoch, train, proposed, confidence)
        pair = torch.stack([labels.given[train], labels.current[train]], 1).clamp(min=0)
        after.network_pair = views.network.gather(1, pair)
        after.gaussian_pair = None if views.gaussian is None else views.gaussian.gather(1, pair)
        return {
            "changed": changed,
            "view_weights": weights.tolist(),
            "uniform_noise_rate": after.uniform_noise_rate,
            "prior_trust": after.prior_trust,
            "label_weight": after.label_weight,
        }

    def compute_views(self, observed: EpochOutputs, labels: LabelStore) -> Views:
        """Predict every example by views that were not trained on its label, and fit the weights of the views."""
        before = self.posterior
        if before is not None:
            before.log_probs = before.log_probs.new_empty(0)  # frees memory: the new table is as large
        if self.dropped:
            self.targets = None
        network, gaussians, gaussian = self._networks_out_of_fold(observed), None, None
        if not self.dropped:
            gaussians, gaussian = self._fit_gaussians(observed, labels.initial[self.context.train])
            self.targets = None  # frees memory
            stacked = self._stack([network, gaussian], self._as_given(labels))
            useless = bool(stacked.weights[1] < _MIN_WEIGHT * stacked.weights[0])
            self.dropped = useless and len(network) >= SMALL_DATA
        if self.dropped:
            gaussians, gaussian = None, None
            stacked = self._stack([network], self._as_given(labels))
        return Views(network, gaussian, gaussians, stacked)

    def _as_given(self, labels: LabelStore) -> Tensor:
        """Return the training labels (m,) before a review, which corrects wrong labels and so hides their number."""
        given, initial = (part[self.context.train] for part in (labels.given, labels.initial))
        return given.where(given >= 0, initial)

    def _of_known(self, log_probs: Tensor) -> Tensor:
        """Return log-probabilities (m, k) restricted to known classes."""
        if not len(self.unknown):
            return log_probs
        return log_probs.index_fill(1, self.unknown, MIN_LOG_PROB).log_softmax(1)

    def _networks_out_of_fold(self, observed: EpochOutputs) -> Tensor:
        """Return out-of-fold log-probabilities of the members (m, k)."""
        assert self.folds is not None
        train, result = self.context.train, self._table()
        folds = self.folds[train].clamp(min=0)  # a single member predicts all
        members = self.ema.module.split()
        for fold in range(self.count):
            rows = (folds == fold).nonzero()[:, 0]
            without = [member for number, member in enumerate(members) if fold in folds_without(number, self.count)]
            for parts in zip(*(observed.outputs(member, train[rows]) for member in without), strict=True):
                views = [logits.log_softmax(1) for _, logits in parts]
                result[rows[parts[0][0]]] = torch.stack(views).mean(0).log_softmax(1).to(result)
        return result

    def _fit_gaussians(self, observed: EpochOutputs, given: Tensor) -> tuple[Discriminant, Tensor]:
        """Fit class Gaussians of the inputs to the targets; return them and leave-one-out log-probabilities."""
        train, groups, before, targets = self.context.train, self.context.groups, self.posterior, self.targets
        assert targets is not None

        def fetch(rows: Tensor) -> Tensor:
            return observed.inputs(train[rows])

        shrink = before.gaussians.shrink if before and before.gaussians else SHRINKS
        classes = self.context.num_classes
        gaussians = fit_discriminant(fetch, targets, classes, shrink=shrink, given=given, groups=groups)
        return gaussians, leave_group_out_log_posterior(gaussians, fetch, targets, groups, out=self._table())

    def _stack(self, views: Sequence[Tensor], given: Tensor, uniform_noise_rate: float | None = None) -> Stacked:
        """Fit the weights of the views and, the first time and unless it is known, the uniform noise rate."""
        return stack(views, given, self.posterior.uniform_noise_rate if self.posterior else uniform_noise_rate)

    def model(self) -> Ensemble:
        """Return the averaged members, with the Gaussians if there are any."""
        members, state = self.ema.module.split(), self.posterior
        if state is None:
            return Ensemble(members)
        return Ensemble(members, state.weights, state.offset, state.gaussians)

    def label_scores(self, labels: LabelStore) -> LabelScores | None:
        """Return the scores of the training labels after the last epoch."""
        state, train = self.posterior, self.context.train
        if state is None:
            return None
        self._assign_folds(labels)  # if the run was resumed after its last epoch
        given = labels.initial[train]
        assert self.folds is not None
        assert state.network_pair is not None
        self._calibrate(labels)
        assert self.scaling is not None
        top2 = torch.empty(len(train), 2, dtype=torch.long, device=train.device)
        top2_probs = torch.empty(len(train), 2, device=train.device)
        for rows in blocks(len(train), self.context.num_classes):
            top2_probs[rows], top2[rows] = state.combined[rows].float().softmax(1).topk(2)
        pair = torch.stack([labels.given[train], labels.current[train]], 1).clamp(min=0)
        return LabelScores(
            probs=state.combined.gather(1, pair).float().exp(),
            odds=self._odds(given),
            calibration=self.scaling,
            network=state.network_pair.float().exp(),
            gaussian_probs=None if state.gaussian_pair is None else state.gaussian_pair.float().exp(),
            top2=top2,
            top2_probs=top2_probs,
            fold=self.folds[train] if self.num_folds > 1 else None,
            annotators=state.annotators,
            expected_error=self._expected_error(given) if state.ordinal else None,
        )

    def _expected_error(self, given: Tensor) -> Tensor:
        """Return the expected distance of the training labels (m,) from the true class, if classes are ordered."""
        assert self.posterior is not None
        assert self.scaling is not None
        log_odds = self.scaling.apply(self._odds(given))
        parts = blocks(len(given), self.context.num_classes)
        return torch.cat([self.posterior.expected_error(rows, given, log_odds[rows]) for rows in parts])

    def _evidence(self, network: Tensor, given: Tensor) -> tuple[Confident, Tensor]:
        """Describe the labels that the networks (m, k) predict confidently, and return lapse rates (q,) of all labels.

        ``given`` (m,) are the labels as they were given, reviewed or not, -1 without one; see `_calibrate`.
        """
        top, top_probs, label_probs = (part[given >= 0] for part in top_one(network, given.clamp(min=0)))
        given = given[given >= 0]
        part = confident_part(top, top_probs, label_probs, given, self.context.num_classes)
        return part, lapse_rates(top_probs.double().logit(), top != given)

    def _noise_rates(self, odds: Tensor, labels: LabelStore, counted: Tensor) -> Tensor:
        """Return equally likely noise rates (q,) of the given labels that are ``counted`` (m,)."""
        assert self.posterior is not None
        return self.posterior.noise_rates(odds, labels.given[self.context.train].clamp(min=0), counted)

    def _odds(self, given: Tensor) -> Tensor:
        """Return log-odds (m,) that training labels are right, before calibration; NaN for small classes."""
        assert self.posterior is not None
        odds = torch.cat([self.posterior.odds(rows, given) for rows in blocks(len(given), self.context.num_classes)])
        return odds.masked_fill(self.small[given], torch.nan)

    def _calibrate(self, labels: LabelStore) -> Tensor:
        """Calibrate the log-odds of training labels (m,) to the estimated noise rate, or a reviewed sample.

        The noise rate is that of all labels as they were given. People review the most doubtful ones first, and the
        rest alone would look as if few were wrong.
        """
        assert self.posterior is not None
        train = self.context.train
        initial, given, trusted = (part[train] for part in (labels.initial, labels.given, labels.trusted))
        odds = self._odds(initial)
        reviewed, of_given = (trusted & (given >= 0)).nonzero()[:, 0], odds.clone()
        of_given[reviewed] = self.odds(self.posterior.log_probs[reviewed].float().exp(), given[reviewed])
        counted = (given >= 0) & ~trusted if self.posterior.annotators else given >= 0
        known = self.options.noise_rate
        rates = self._noise_rates(of_given, labels, counted) if known is None else torch.full((QUANTILES,), known)
        scaling = self.posterior.scaling_to(rates, of_given, counted)
        weights = labels.review_weights[train]
        sample = (weights * (given >= 0)).nonzero()[:, 0]
        wrong = (given != initial)[sample]
        self.scaling = calibrate_to_review(scaling, odds[~trusted], of_given[sample], wrong, weights[sample])
        return self.scaling.apply(odds)

    def correct(self, probs: Tensor, labels: Tensor) -> Tensor:
        """Return the labels after correction, calibrated as the training labels are."""
        if self.posterior is None or self.scaling is None:
            return labels
        state = self._unseen(self.posterior, probs, labels)
        return state.correct(slice(None), labels, self.scaling.apply(self.odds(probs, labels)))[0]

    def odds(self, probs: Tensor, labels: Tensor) -> Tensor:
        """Return log-odds that labels are right."""
        if self.posterior is None:
            return super().odds(probs, labels)
        odds = self._unseen(self.posterior, probs, labels).odds(slice(None), labels)
        return odds.masked_fill(self.small[labels], torch.nan)

    def _unseen(self, state: PosteriorState, probs: Tensor, labels: Tensor) -> PosteriorState:
        """Return the state of other examples, given their class probabilities (m, k)."""
        log_probs = self._of_known(probs.clamp(min=1e-30).log())
        with_given_prior = (log_probs - state.offset).log_softmax(1)
        share = informative_prob(with_given_prior, labels, state.uniform_noise_rate)
        return replace(state, log_probs=log_probs, informative=share, annotators=None)

    def state_dict(self) -> dict[str, Any]:
        """Return the averaged weights and the posterior."""
        state, saved = self.posterior, None
        if state is not None:  # large tables are not copied
            saved = vars(state) | {"gaussians": None if state.gaussians is None else asdict(state.gaussians)}
            saved |= {"annotators": None if state.annotators is None else asdict(state.annotators)}
        return {
            "ema": self.ema.module.state_dict(),
            "steps": int(self.ema.n_averaged),
            "dropped": self.dropped,
            "warmed_up": self.warmed_up,
            "posterior": saved,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the averaged weights and the posterior, from which targets are computed."""
        self.ema.module.load_state_dict(state["ema"])
        self.ema.n_averaged.fill_(state["steps"])
        self.dropped, self.warmed_up = state["dropped"], state["warmed_up"]
        self.targets, saved, device = None, state["posterior"], self.context.device
        self.posterior = None if saved is None else PosteriorState(**moved(saved, device))
        if self.posterior is not None:
            self.posterior.confident = Confident(*saved["confident"])
        if self.posterior is not None and saved["gaussians"] is not None:
            self.posterior.gaussians = Discriminant(**moved(saved["gaussians"], device))
        if self.posterior is not None and saved["annotators"] is not None:
            self.posterior.annotators = AnnotatorFit(**moved(saved["annotators"], device))


def count_members(options: UnflipOptions, context: TrainContext) -> int:
    """Return the size of the ensemble."""
    if options.members or not context.of_rows:
        return options.members or 2
    return 8 if len(context.train) < SMALL_DATA else 5
