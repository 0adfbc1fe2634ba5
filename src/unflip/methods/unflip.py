"""unflip: a committee in which nobody judges a label that they have learnt; our own method and the default."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from unflip.errors import UnflipWarning
from unflip.labels.judging import disagreement, label_odds, label_weights
from unflip.labels.odds import calibrate
from unflip.labels.prior import believed_inequality, class_shares, moved_shares, offsets_to
from unflip.labels.store import LabelStore
from unflip.labels.transition import estimate_transition, explained_noise, informative, posterior
from unflip.methods.base import Batch, Judgement, Method, Observed, Outline, Phase, Setting, Step
from unflip.methods.folds import choose_folds, members_rows
from unflip.methods.mixup import mix
from unflip.nn.averaged import Averaged
from unflip.nn.base import Network, bare
from unflip.nn.ensemble import Ensemble
from unflip.options import Options
from unflip.stats.discriminant import SHRINKS, Discriminant, fit_discriminant, held_out_log_posterior, shares_of
from unflip.stats.kept import kind_for
from unflip.stats.stacking import Stacked, pool, stack

_FEW = 10_000  # examples below which there are more members, and Gaussians are never dropped
_MEMBERS = {"few": 8, "rows": 4, "images": 2}
_DROPPED = 0.1  # Gaussians with less than this share of the networks' weight are not worth their time
_STEPS = 300  # fewest of a run on rows
_LONGEST = 3.0  # norm of a member's gradient; on frozen CIFAR features, where nothing diverges, it stays below
_ROWS = 4096  # examples at once; they fit in the cache
_NEVER = -30.0  # log-probability of a class that nobody can judge


class UnflipOptions(Options):
    """Nothing needs to be set: no noise rate, no clean label, no validation examples."""

    members: PositiveInt | None = None
    """Networks in the committee; by default 8 below 10,000 examples, 4 beyond, 2 for images."""
    warmup: PositiveInt | None = None
    """Epochs on the given labels; by default three tenths of all."""
    steps: PositiveInt | None = None
    """Fewest steps of a run, by default 300 for rows: few examples are visited several times per epoch."""
    mixup: float = Field(1.0, ge=0.0)
    """Both parameters of the Beta distribution of mixing weights; 0: examples are not mixed."""
    averaging: float = Field(0.99, ge=0.0, lt=1.0)
    """Decay of the running mean of the weights; 0: the last weights speak."""
    gaussians: bool = True
    """Whether class Gaussians of the inputs are a view of their own; never of images."""
    view_weights: tuple[float, ...] | None = None
    """Weights of the networks and the Gaussians; by default those under which given labels are likeliest."""
    prior: Literal["auto", "equal", "kept"] = "auto"
    """The classes' sizes: `auto` moves them towards equality as far as noise may have made them unequal."""
    soft_targets: bool = True
    """Whether members learn what is believed of the true class; otherwise they learn given labels to the end."""


@dataclass
class _Belief:
    """What the committee believes after an epoch; rows follow ``Setting.train``."""

    log_probs: Tensor
    """Of each example, by views that have not seen its label (m, k)."""
    informative: Tensor
    """How likely each label is no background label (m,)."""
    log_matrix: Tensor
    """Logarithm of the transition matrix of informative labels (k, k)."""
    weights: Tensor
    """Of the views."""
    offset: Tensor
    """Of the classes (k,): what moves their sizes."""
    background: float
    """Share of labels drawn from all classes alike."""
    inequality: float
    """How much of the classes' inequality is believed."""
    target_weight: float
    """What a label counts in the members' targets."""
    label_weight: float
    """What a label counts for the current labels."""
    gaussians: Discriminant | None = None
    network: Tensor | None = None
    """What the networks say of each given and current label (m, 2)."""
    votes: Tensor | None = None
    """What the Gaussians say of them (m, 2)."""


class _Views(NamedTuple):
    """Views of every example that have not seen its label, as log-probabilities (m, k), and how they are stacked."""

    network: Tensor
    votes: Tensor | None
    """What the Gaussians say, unless they were dropped."""
    gaussians: Discriminant | None
    weights: Tensor
    background: float


class Unflip(Method):
    """Cross-fitted networks, class Gaussians that leave each example out, and soft targets.

    - **Members**: k networks side by side, each trained on all folds but its own, with mixup; the running mean of their
      weights speaks. Groups share a fold. Partners in mixup come from the same folds as the example.
    - **Views**: each example is judged by the member that has not seen it, and by class Gaussians of the inputs that
      leave it out. Views are stacked by the likelihood of the given labels, which none of them has seen, together with
      the share of labels that mean nothing.
    - **Prior**: the classes' sizes are moved towards equality as far as noise may have made them unequal.
    - **Targets**: after the warm-up members learn the posterior of the true class given features *and* given label,
      under an estimated transition matrix; the given label counts less from epoch to epoch.

    Prediction is the members' mean and the Gaussians, stacked alike. Formulas and figures: docs/unflip.md.
    """

    Options = UnflipOptions
    options: UnflipOptions
    can_be_calibrated = False

    def __init__(self, options: UnflipOptions, setting: Setting) -> None:
        super().__init__(options, setting)
        self.count = count_members(options, setting)
        self.belief: _Belief | None = None
        self.folds: Tensor | None = None  # by row of the label store, -1 where nobody is left out
        self.targets: Tensor | None = None  # by row of ``setting.train``
        self.known = self.small = torch.empty(0, dtype=torch.bool)  # by class, see _deal
        self.unknown = torch.empty(0, dtype=torch.long)  # classes that are not known
        self.dropped = not (options.gaussians and setting.of_rows)
        self.warmed_up: int | None = None  # the epoch after which labels were first judged
        if self.count == 1:
            warnings.warn(
                "unflip.members = 1: the only network judges labels that it has learnt, so quality is in-sample; "
                "2 or more judge out of sample",
                UnflipWarning,
                stacklevel=2,
            )

    @classmethod
    def options_for(cls, section: str, outline: Outline) -> dict[str, Any]:
        """All examples train, since each is judged out of sample anyway; rows have a schedule of their own."""
        if not outline.of_rows:
            return {"select": "last", "data": {"val_fraction": 0.0}}
        return {
            "select": "last",
            "epochs": 10,
            "data": {"val_fraction": 0.0, "standardize": "auto"},
            "optimizer": {"lr": 0.15, "batch_size": 320, "schedule": "cosine"},
            "mlp": {"batch_norm": False},
        }

    @classmethod
    def assemble(cls, options: Any, setting: Setting, build: Callable[[int], Network]) -> list[Network]:
        """Return all members as one module."""
        members = [build(position) for position in range(count_members(options, setting))]
        return [type(members[0]).side_by_side(members)]

    @property
    def networks(self) -> Sequence[nn.Module]:
        """One module that holds all members."""
        return self._networks

    @networks.setter
    def networks(self, networks: Sequence[nn.Module]) -> None:
        self._networks = networks
        if networks:
            self.averaged = Averaged(bare(networks[0]), self.options.averaging)  # type: ignore[arg-type]

    @property
    def warmup(self) -> int:
        """Epochs on the given labels; once they are over they stay so, also in a run resumed for more epochs."""
        return self.warmed_up or self.options.warmup or max(1, round(0.3 * self.setting.epochs))

    def phases(self, epoch: int, observed: Observed, labels: LabelStore) -> Iterator[Phase]:
        """Yield one pass over all examples; with few of them, over several copies."""
        self._deal(labels)
        self._aim(labels)
        train, setting = self.setting.train, self.setting
        steps = -(-len(train) // setting.batch_size)
        least = self.options.steps or (_STEPS if setting.of_rows else 1)
        passes = max(1, -(-least // (steps * setting.epochs)))
        if observed.phases_done == 0:
            yield Phase(train.repeat(passes))

    def _deal(self, labels: LabelStore) -> None:
        """Deal the examples into folds, once.

        A class is known if there are labels of it in two folds or more: otherwise no member that has learnt any of them
        judges another, its labels stay, and no other label becomes one of it. They have no quality, nor have those of a
        class with fewer examples than there are folds.
        """
        if self.folds is not None:
            return
        setting, train, initial = self.setting, self.setting.train, labels.initial
        given = initial[train]
        self.folds = torch.full_like(initial, -1)
        if self.count > 1:
            self.folds[train] = choose_folds(given, setting.groups, self.count, setting.seed)
        self.position = torch.zeros_like(initial).index_copy_(0, train, torch.arange(len(train)).to(train))
        places = given * self.count + self.folds[train].clamp(min=0)
        sizes = places.bincount(minlength=setting.num_classes * self.count).view(-1, self.count)
        self.known = (sizes > 0).sum(1) >= min(2, self.count)
        self.small = (sizes.sum(1) < self.count) | ~self.known
        self.unknown = (~self.known).nonzero()[:, 0]

    def _aim(self, labels: LabelStore) -> None:
        """Work out the targets of this epoch, unless they are there."""
        if self.targets is not None:
            return
        train = self.setting.train
        given = labels.initial[train]
        fixed = labels.trusted[train] | ~self.known[given]
        belief = self.belief if self.options.soft_targets else None
        self.targets = self._table()
        for rows in _blocks(len(train)):
            targets = shares_of(given[rows], self.setting.num_classes)
            if belief is not None:
                believed = self._posterior(belief, rows, given, belief.target_weight)
                targets = torch.where(fixed[rows, None], targets, believed)
            self.targets[rows] = targets

    def _table(self) -> Tensor:
        """Return room for a number of each training example and class (m, k)."""
        size = len(self.setting.train), self.setting.num_classes
        return torch.empty(size, dtype=kind_for(size[0] * size[1]), device=self.setting.train.device)

    def loss(self, batch: Batch, phase: Phase) -> Step:
        """Return each member's cross-entropy on mixed examples of other folds than its own."""
        assert self.folds is not None
        assert self.targets is not None
        rows, present = members_rows(self.folds[batch.indices], self.count)
        flat = rows.view(-1)
        inputs = batch.inputs.index_select(0, flat).view(*rows.shape, *batch.inputs.shape[1:])
        own = self.position[batch.indices].index_select(0, flat)
        targets = self.targets.index_select(0, own).float().view(*rows.shape, -1)
        if self.options.mixup:
            inputs, targets = mix(inputs, targets, self.options.mixup, batch.generator, dim=1)
        log_probs = self.networks[0](inputs).float().log_softmax(2)
        losses = (targets * log_probs).sum((1, 2)) * (present / -rows.shape[1])
        total = losses.sum()  # each member learns from its own mean; what people see is the mean over members
        return Step({"loss": total - (total - losses.mean()).detach()})

    def before_step(self) -> None:
        """Shorten gradients of rows, where many features or a few odd examples would make a member diverge."""
        if self.setting.of_rows:
            bare(self.networks[0]).shorten_gradients(_LONGEST)  # type: ignore[operator]

    def after_step(self) -> None:
        """Move the averaged weights."""
        self.averaged.update(bare(self.networks[0]))  # type: ignore[arg-type]

    def end_epoch(self, epoch: int, observed: Observed, labels: LabelStore) -> dict[str, Any]:
        """From the end of the warm-up on: judge every example out of sample, and correct the labels."""
        if epoch < self.warmup:
            return {}
        self.warmed_up = self.warmup
        train = self.setting.train
        given = labels.initial[train]
        views = self._look(observed, given)
        belief = self.belief = self._believe(epoch, observed, given, views)
        wanted, confidence = torch.empty_like(given), torch.empty(len(given), device=given.device)
        for rows in _blocks(len(train)):
            confidence[rows], wanted[rows] = self._posterior(belief, rows, given, belief.label_weight).max(1)
        changed = labels.change(epoch, train, wanted.where(self.known[given], given), confidence)
        named = torch.stack([labels.given[train], labels.current[train]], 1)
        belief.network = views.network.gather(1, named)
        belief.votes = None if views.votes is None else views.votes.gather(1, named)
        return {
            "changed": changed,
            "view_weights": belief.weights.tolist(),
            "background": belief.background,
            "inequality_believed": belief.inequality,
            "label_weight": belief.label_weight,
        }

    def _look(self, observed: Observed, given: Tensor) -> _Views:
        """Ask views of every example that have not seen its label, and choose what each counts."""
        before = self.belief
        if before is not None:
            before.log_probs = before.log_probs.new_empty(0)  # as large as what is asked for now
        if self.dropped:
            self.targets = None
        network, gaussians, votes = self._out_of_fold(observed), None, None
        if not self.dropped:
            gaussians, votes = self._vote(observed, given)
            stacked = self._stack([network, votes], given, before)
            useless = bool(stacked.weights[1] < _DROPPED * stacked.weights[0])
            self.dropped = useless and len(given) >= _FEW
        if self.dropped:
            gaussians, votes = None, None
            stacked = self._stack([network], given, before)
        self.targets = None
        weights = observed.broadcast(stacked.weights.to(network.device))
        return _Views(network, votes, gaussians, weights, stacked.background)

    def _believe(self, epoch: int, observed: Observed, given: Tensor, views: _Views) -> _Belief:
        """Judge every example by the views together."""
        setting, before, background = self.setting, self.belief, views.background
        log_probs = self._table()
        for rows in _blocks(len(given)):
            log_probs[rows] = self._judged(
                pool([view[rows] for view in (views.network, views.votes) if view is not None], views.weights)
            )
        share = informative(log_probs, given, background)
        wrong = disagreement(log_probs, given, share)
        inequality = before.inequality if before else self._inequality(log_probs, given, background)
        offset = torch.zeros(setting.num_classes, device=log_probs.device)
        if inequality < 1:
            exponent = inequality ** (1 / (setting.epochs - self.warmup + 1))  # a step per epoch
            wanted = moved_shares(class_shares(log_probs), exponent, self.known)
            offset = observed.broadcast(offsets_to(log_probs, wanted))
            for rows in _blocks(len(given)):
                log_probs[rows] = (log_probs[rows].float() + offset).log_softmax(1)
        target, label = label_weights(background, wrong, setting.num_classes)
        target = 1 + (target - 1) * (epoch - self.warmup) / max(1, setting.epochs - self.warmup)
        return _Belief(
            log_probs=log_probs,
            informative=share,
            log_matrix=observed.broadcast(estimate_transition(log_probs, given, share, target)),
            weights=views.weights,
            offset=offset,
            background=background,
            inequality=inequality,
            target_weight=target,
            label_weight=label,
            gaussians=views.gaussians,
        )

    def _judged(self, log_probs: Tensor) -> Tensor:
        """Return log-probabilities (m, k) of known classes alone."""
        if not len(self.unknown):
            return log_probs
        return log_probs.index_fill(1, self.unknown, _NEVER).log_softmax(1)

    def _out_of_fold(self, observed: Observed) -> Tensor:
        """Return each example's log-probabilities by the member that has not learnt from it (m, k)."""
        assert self.folds is not None
        train, result = self.setting.train, self._table()
        folds = self.folds[train].clamp(min=0)  # the only member is asked about all
        for fold, member in enumerate(self.averaged.members.split()):
            rows = (folds == fold).nonzero()[:, 0]
            result[rows] = observed.outputs(member, train[rows]).log_softmax(1).to(result)
        return result

    def _vote(self, observed: Observed, given: Tensor) -> tuple[Discriminant, Tensor]:
        """Return class Gaussians of the inputs under the members' targets, and what they say of each example."""
        train, groups, before, targets = self.setting.train, self.setting.groups, self.belief, self.targets
        assert targets is not None

        def fetch(rows: Tensor) -> Tensor:
            return observed.inputs(train[rows])

        shrink = before.gaussians.shrink if before and before.gaussians else SHRINKS
        gaussians = fit_discriminant(
            fetch, targets, self.setting.num_classes, shrink=shrink, given=given, groups=groups
        )
        return gaussians, held_out_log_posterior(gaussians, fetch, targets, groups)

    def _stack(self, views: Sequence[Tensor], given: Tensor, before: "_Belief | None") -> Stacked:
        stacked = stack(views, given, before.background if before else None)
        chosen = self.options.view_weights
        if chosen is None:
            return stacked
        return Stacked(torch.tensor((*chosen, 0.0)[: len(views)]), stacked.background)

    def _inequality(self, log_probs: Tensor, given: Tensor, background: float) -> float:
        if self.options.prior != "auto":
            return 0.0 if self.options.prior == "equal" else 1.0
        return believed_inequality(log_probs, given, background, self.known)

    def _posterior(self, belief: _Belief, rows: slice, given: Tensor, weight: float) -> Tensor:
        log_probs = belief.log_probs[rows].float()
        return posterior(log_probs, given[rows], belief.informative[rows], belief.log_matrix, weight)

    def model(self) -> Ensemble:
        """The averaged members and, once there are any, the Gaussians."""
        members, belief = self.averaged.members.split(), self.belief
        if belief is None:
            return Ensemble(members)
        return Ensemble(members, belief.weights, belief.offset, belief.gaussians)

    def judgement(self, labels: LabelStore) -> Judgement | None:
        """What the committee said of each training example after the last epoch."""
        belief, train = self.belief, self.setting.train
        if belief is None:
            return None
        self._deal(labels)  # a run may have been resumed after its last epoch
        given = labels.initial[train]
        assert self.folds is not None
        assert belief.network is not None
        odds = torch.empty(len(train), device=train.device)
        likeliest = torch.empty(len(train), 2, dtype=torch.long, device=train.device)
        likeliest_probs = torch.empty(len(train), 2, device=train.device)
        for rows in _blocks(len(train)):
            log_probs = belief.log_probs[rows].float()
            likeliest_probs[rows], likeliest[rows] = log_probs.softmax(1).topk(2)
            share = belief.informative[rows]
            odds[rows] = label_odds(log_probs, given[rows], share, belief.log_matrix, belief.label_weight)
        odds[self.small[given]] = torch.nan
        unsure = ~labels.trusted[train]
        calibration = calibrate(
            odds[unsure],
            belief.informative[unsure],
            explained=explained_noise(belief.log_probs, given, belief.background),
            wrong=disagreement(belief.log_probs, given, belief.informative * unsure),
        )
        named = torch.stack([labels.given[train], labels.current[train]], 1)
        return Judgement(
            probs=belief.log_probs.gather(1, named).float().exp(),
            odds=odds,
            calibration=calibration,
            network=belief.network.float().exp(),
            votes=None if belief.votes is None else belief.votes.float().exp(),
            likeliest=likeliest,
            likeliest_probs=likeliest_probs,
            fold=self.folds[train] if self.count > 1 else None,
        )

    def correct(self, probs: Tensor, labels: Tensor) -> Tensor:
        """Return the likeliest class of examples that no member has learnt from, given their labels."""
        if self.belief is None:
            return labels
        log_probs, share = self._unseen(self.belief, probs, labels)
        likeliest = posterior(log_probs, labels, share, self.belief.log_matrix, self.belief.label_weight).argmax(1)
        return likeliest.where(self.known[labels], labels)

    def odds(self, probs: Tensor, labels: Tensor) -> Tensor:
        """Return log-odds that labels are right that no member has learnt."""
        if self.belief is None:
            return super().odds(probs, labels)
        log_probs, share = self._unseen(self.belief, probs, labels)
        found = label_odds(log_probs, labels, share, self.belief.log_matrix, self.belief.label_weight)
        return found.masked_fill(self.small[labels], torch.nan)

    def _unseen(self, belief: _Belief, probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities where no member has learnt the label, and how likely labels are informative."""
        log_probs = self._judged(probs.clamp(min=1e-30).log())
        as_given = (log_probs - belief.offset).log_softmax(1)
        return log_probs, informative(as_given, labels, belief.background)

    def state_dict(self) -> dict[str, Any]:
        """Return the averaged weights and what the committee believes."""
        belief, state = self.belief, None
        if belief is not None:  # without a copy of what is large
            state = vars(belief) | {"gaussians": None if belief.gaussians is None else asdict(belief.gaussians)}
        return {
            "averaged": self.averaged.members.state_dict(),
            "steps": self.averaged.steps,
            "dropped": self.dropped,
            "warmed_up": self.warmed_up,
            "belief": state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore averaged weights and beliefs; targets follow from them."""
        self.averaged.members.load_state_dict(state["averaged"])
        self.averaged.steps, self.dropped = state["steps"], state["dropped"]
        self.warmed_up = state["warmed_up"]
        self.targets, saved, device = None, state["belief"], self.setting.device
        self.belief = None if saved is None else _Belief(**_moved(saved, device))
        if self.belief is not None and saved["gaussians"] is not None:
            self.belief.gaussians = Discriminant(**_moved(saved["gaussians"], device))


def count_members(options: UnflipOptions, setting: Setting) -> int:
    """Return how many members a committee has."""
    if options.members is not None:
        return options.members
    return _MEMBERS["images" if not setting.of_rows else "few" if len(setting.train) < _FEW else "rows"]


def _blocks(count: int) -> Iterator[slice]:
    for start in range(0, count, _ROWS):
        yield slice(start, start + _ROWS)


def _moved(fields: dict[str, Any], device: torch.device) -> dict[str, Any]:
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in fields.items()}
