"""unflip: formulas against loops, scores that are out of sample, and what it finds in simulated data."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from epoch_outputs import Unseen, in_batches
from helpers import Crash, assert_same_run, assert_same_tree, blobs, crash_after, quick_train, write_npz
from unflip.errors import ConfigError, UnflipWarning
from unflip.methods import base as tables
from unflip.methods import find_method
from unflip.methods.base import Batch, EpochOutputs, LabelStore, Phase, RunShape, TrainContext
from unflip.methods.unflip import method as module
from unflip.methods.unflip import posterior as formulas
from unflip.methods.unflip.folds import members_rows
from unflip.methods.unflip.method import Unflip, UnflipOptions, Views, count_members
from unflip.methods.unflip.posterior import PosteriorState, label_weights, posterior
from unflip.nn.base import build_network
from unflip.nn.mlp import MLPOptions, StackedMLP
from unflip.runs.folder import Run
from unflip.stats.discriminant import fit_discriminant, leave_group_out_log_posterior
from unflip.stats.noise_rate import Confident
from unflip.stats.odds import PlattScaling, pool

CLASSES = 3


class Seen(Unseen):
    """Rows of three clusters, and whatever networks make of them."""

    def __init__(self, count: int = 75) -> None:
        random = torch.Generator().manual_seed(0)
        self.truth = torch.arange(count) % CLASSES
        self.rows = 3 * torch.eye(4)[self.truth] + torch.randn(count, 4, generator=random)
        self.asked: list[tuple[nn.Module, Tensor]] = []

    def inputs(self, rows: Tensor) -> Tensor:
        return self.rows[rows]

    def outputs(self, network: nn.Module, rows: Tensor) -> Iterator[tuple[slice, Tensor]]:
        self.asked.append((network, rows))
        return in_batches(network, self.rows[rows])

    def broadcast(self, tensor: Tensor) -> Tensor:
        return tensor


def some_context(train: Tensor, **more: Any) -> TrainContext:
    return TrainContext(CLASSES, train, 6, 0, 8, lambda epoch: 1.0, torch.device("cpu"), **({"of_rows": True} | more))


def some_labels(seen: Seen, reviewed: dict[int, int] | None = None) -> LabelStore:
    """Every fourth label is wrong."""
    given = seen.truth.clone()
    given[::4] = (given[::4] + 1) % CLASSES
    decided = torch.full_like(given, -1)
    for row, label in (reviewed or {}).items():
        decided[row] = label
    return LabelStore(given, CLASSES, decided)


def ensemble(seen: Seen, *, batch_norm: bool = False, groups: Tensor | None = None, **options: Any) -> Unflip:
    """A ensemble of four on all rows but every fifth, so that rows and positions differ."""
    rows = torch.arange(len(seen.rows))
    context = some_context(rows[rows % 5 > 0], groups=groups)
    chosen = UnflipOptions(**({"members": 4} | options))
    network = MLPOptions(hidden=(8,), batch_norm=batch_norm)
    method = Unflip(chosen, context)
    method.set_networks(
        Unflip.build_networks(chosen, context, lambda position: build_network("mlp", network, (4,), CLASSES, position))
    )
    return method


def learn(method: Unflip, seen: Seen, labels: LabelStore, epoch: int, steps: int = 10) -> dict[str, Any]:
    """Train a few steps and end the epoch; return its figures."""
    (phase,) = method.phases(epoch, seen, labels)
    optimizer = torch.optim.SGD(method.networks[0].parameters(), lr=0.3, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        loss = sum(method.loss(some_batch(seen, labels, phase.indices, step), phase).terms.values())
        assert isinstance(loss, Tensor)
        loss.backward()
        optimizer.step()
        method.after_step()
    return method.end_epoch(epoch, seen, labels)


def some_batch(seen: Seen, labels: LabelStore, indices: Tensor, seed: int = 0, size: int = 24) -> Batch:
    rows = indices[torch.randperm(len(indices), generator=torch.Generator().manual_seed(seed))[:size]]
    return Batch(rows, (seen.rows[rows],), labels.current[rows], 1, 0.0, seed)


def prefetched(method: Unflip, seen: Seen, labels: LabelStore, epoch: int = 1) -> Tensor:
    """Let a method prepare an epoch; return the rows that it goes over."""
    (phase,) = method.phases(epoch, seen, labels)
    return phase.indices


def watched(method: Unflip, monkeypatch: pytest.MonkeyPatch) -> list[Views]:
    """Return a list of what the views of a ensemble will have probs, epoch by epoch."""
    found: list[Views] = []
    plain = method.compute_views

    def look(observed: EpochOutputs, labels: LabelStore) -> Views:
        found.append(plain(observed, labels))
        return found[-1]

    monkeypatch.setattr(method, "compute_views", look)
    return found


def together(views: Views) -> Tensor:
    """Return the pool of views (m, k)."""
    return pool([view for view in (views.network, views.gaussian) if view is not None], views.stacked.weights)


# learning


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("mixup", [0.0, 1.0])
def test_nobody_learns_from_their_own_fold(mixup: float, batch_norm: bool) -> None:
    """Other inputs and other targets of a fold change every member's gradient but that of its own."""
    seen = Seen()
    labels, method = some_labels(seen), ensemble(seen, mixup=mixup, batch_norm=batch_norm)
    indices = prefetched(method, seen, labels)
    batch = some_batch(seen, labels, indices, size=40)
    assert method.folds is not None
    assert method.targets is not None

    def gradients() -> list[Tensor]:
        method.networks[0].zero_grad()
        fresh = Batch(batch.indices, (seen.rows[batch.indices],), batch.labels, 1, 0.0, 7)
        loss = sum(method.loss(fresh, Phase(indices)).terms.values())
        assert isinstance(loss, Tensor)
        loss.backward()
        found = [value.grad for value in method.networks[0].parameters() if value.grad is not None]
        return [torch.cat([grad.view(4, -1)[member] for grad in found]) for member in range(4)]

    before = gradients()
    for fold in range(4):
        rows = (method.folds == fold).nonzero()[:, 0]
        saved = seen.rows[rows].clone(), method.targets.clone()
        seen.rows[rows] = 100.0
        method.targets[method.position[rows]] = torch.tensor([1.0, 0.0, 0.0])
        changed = [not torch.allclose(one, other) for one, other in zip(before, gradients(), strict=True)]
        assert changed == [member != fold for member in range(4)]
        seen.rows[rows], method.targets = saved


@pytest.mark.filterwarnings("ignore:unflip.members = 1")
@pytest.mark.parametrize("count", [1, 4])
def test_the_loss_is_each_members_cross_entropy_on_the_rows_it_takes(count: int) -> None:
    seen = Seen()
    labels, method = some_labels(seen), ensemble(seen, mixup=0.0, members=count)
    indices = prefetched(method, seen, labels)
    batch = some_batch(seen, labels, indices)
    assert method.folds is not None
    rows, _ = members_rows(method.folds[batch.indices], count)
    assert rows.shape[1] == {1: 24, 4: 18}[count]
    stacked = method.networks[0]
    assert isinstance(stacked, StackedMLP)
    (loss,) = method.loss(batch, Phase(indices)).terms.values()
    loss.backward()
    shown = []
    for position, (network, taken) in enumerate(zip(stacked.split(), rows, strict=True)):
        mine = batch.indices[taken]
        expected = nn.functional.cross_entropy(network(seen.rows[mine]), labels.given[mine])
        expected.backward()
        shown.append(float(expected.detach()))
        gradient = stacked.head.weight.grad
        assert gradient is not None
        torch.testing.assert_close(gradient[position].T, network.head.weight.grad)
    assert float(loss.detach()) == pytest.approx(sum(shown) / count)  # people see the mean


def test_after_the_warm_up_members_learn_their_own_sharpened_predictions_of_unlabeled_examples() -> None:
    seen, unlabeled = Seen(), torch.arange(0, 75, 5)
    some = unlabeled[:4]  # there are 15 for 60 labeled ones
    labels, method = some_labels(seen), ensemble(seen, mixup=0.0)
    method.context = replace(method.context, unlabeled=unlabeled)
    (phase,) = method.phases(1, seen, labels)
    assert phase.unlabeled is None
    for epoch in (1, 2):  # the second one ends the warm-up
        learn(method, seen, labels, epoch)
    (phase,) = method.phases(3, seen, labels)
    assert phase.unlabeled is not None
    assert phase.unlabeled.tolist() == unlabeled.tolist()
    without = some_batch(seen, labels, phase.indices)
    beside = Batch(unlabeled, (seen.rows[unlabeled],), labels.current[unlabeled], 1, 0.0, 0)
    (before,), (after,) = (
        method.loss(replace(without, unlabeled=more), phase).terms.values() for more in (None, beside)
    )
    (stacked,) = method.networks
    assert isinstance(stacked, StackedMLP)
    expected = 0.0
    for network, averaged in zip(stacked.split(), method.ema.module.split(), strict=True):
        with torch.no_grad():
            probs, predictions = averaged(seen.rows[some]).softmax(1), network(seen.rows[some]).log_softmax(1)
        targets = probs.square() / probs.square().sum(1, keepdim=True)
        expected -= float((targets * predictions).sum()) / 18 / 4  # 18 labeled rows each, 4 members
    assert float((after - before).detach()) == pytest.approx(expected, rel=1e-4)


def test_a_member_with_nothing_to_learn_from_stands_aside() -> None:
    seen = Seen()
    labels, method = some_labels(seen), ensemble(seen)
    indices = prefetched(method, seen, labels)
    assert method.folds is not None
    own = indices[method.folds[indices] == 2].unique()
    batch = Batch(own, (seen.rows[own],), labels.current[own], 1, 0.0, 0)
    (loss,) = method.loss(batch, Phase(indices)).terms.values()
    loss.backward()
    (stacked,) = method.networks
    assert isinstance(stacked, StackedMLP)
    gradient = stacked.head.weight.grad
    assert gradient is not None
    assert [bool(part.any()) for part in gradient] == [True, True, False, True]


@pytest.mark.filterwarnings("ignore:unflip.members = 1")
def test_a_class_is_known_in_two_folds_and_scored_if_it_has_an_example_for_each() -> None:
    seen = Seen()
    for members, examples, together, known, small in (
        (4, 1, False, False, True),
        (4, 2, False, True, True),
        (4, 2, True, False, True),
        (4, 3, False, True, True),
        (4, 4, False, True, False),
        (4, 4, True, False, True),
        (1, 1, False, True, True),
        (1, 2, False, True, False),
    ):
        given = seen.truth % 2
        given[[1, 2, 3, 4][:examples]] = 2
        groups = torch.arange(60)
        groups[:examples] = 0 if together else groups[:examples]
        method = ensemble(seen, members=members, groups=groups)
        prefetched(method, seen, LabelStore(given, CLASSES))
        assert method.known.tolist() == [True, True, known]
        assert method.small.tolist() == [False, False, small]
        assert method.unknown.tolist() == [2][known:]


def test_few_examples_are_visited_until_there_are_enough_steps() -> None:
    seen = Seen()  # 60 train, 8 in a batch, 6 epochs: 48 steps
    labels = some_labels(seen)
    for steps, passes in ((1, 1), (48, 1), (49, 2), (None, 7)):  # by default 300
        method = ensemble(seen, steps=steps)
        visits = prefetched(method, seen, labels).bincount(minlength=75)
        assert visits[method.context.train].tolist() == [passes] * 60
        assert int(visits.sum()) == 60 * passes
    seen.phases_done = 1
    assert list(method.phases(1, seen, labels)) == []


@pytest.mark.parametrize("gaussians", [True, False])
def test_targets_are_given_labels_then_beliefs_and_always_reviewed_labels(gaussians: bool) -> None:
    seen = Seen()
    labels = some_labels(seen, {7: 2, 8: 0})
    for soft in (True, False):
        method = ensemble(seen, soft_targets=soft, warmup=1, gaussians=gaussians)
        prefetched(method, seen, labels)
        given_targets = torch.eye(CLASSES)[labels.initial[method.context.train]]
        assert method.targets is not None
        assert torch.equal(method.targets, given_targets)
        learn(method, seen, labels, epoch=1)
        prefetched(method, seen, labels, epoch=2)
        assert method.targets is not None
        if not soft:
            assert torch.equal(method.targets, given_targets)
            continue
        state = method.posterior
        assert state is not None
        given_labels = labels.initial[method.context.train]
        expected = posterior(state.log_probs, given_labels, state.informative, state.log_matrix, state.target_weight)
        reviewed = labels.trusted[method.context.train]
        assert int(reviewed.sum()) == 2
        sharpened = (1.5 * expected.log()).softmax(1)
        torch.testing.assert_close(method.targets[~reviewed], sharpened[~reviewed])
        assert torch.equal(method.targets[~reviewed].argmax(1), expected[~reviewed].argmax(1))
        assert torch.equal(method.targets[reviewed], given_targets[reviewed])


# scoring


@pytest.mark.filterwarnings("ignore:unflip.members = 1")
@pytest.mark.parametrize("count", [1, 4, 5])
def test_each_example_is_scored_by_the_members_that_have_not_seen_it(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """One of four, or the mean of two of five: a member leaves out the fold of its number, then also the next.

    A single member scores all.
    """
    seen = Seen()
    labels, method = some_labels(seen), ensemble(seen, warmup=1, members=count)
    views = watched(method, monkeypatch)
    learn(method, seen, labels, epoch=1)
    assert method.folds is not None
    members = method.ema.module.split()
    for row, found in zip(method.context.train.tolist(), views[0].network, strict=True):
        fold = int(method.folds[row])
        own = {1: [0], 4: [fold], 5: [fold, (fold - 1) % 5]}[count]
        probs = torch.stack([members[member](seen.rows[[row]])[0].log_softmax(0) for member in own])
        torch.testing.assert_close(found, probs.mean(0).log_softmax(0))
    asked = torch.cat([rows for _, rows in seen.asked])
    assert asked.bincount()[method.context.train].tolist() == [len(own)] * len(method.context.train)


def test_gaussians_leave_each_example_out_and_follow_the_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Seen()
    labels, method = some_labels(seen), ensemble(seen, warmup=1)
    views = watched(method, monkeypatch)
    learn(method, seen, labels, epoch=1)
    prefetched(method, seen, labels, epoch=2)
    assert method.targets is not None
    assert method.posterior is not None
    assert method.posterior.gaussians is not None
    targets, shrink = method.targets.clone(), method.posterior.gaussians.shrink
    learn(method, seen, labels, epoch=2)
    rows = seen.rows[method.context.train]
    fitted = fit_discriminant(rows.__getitem__, targets, CLASSES, shrink=shrink)
    assert views[1].gaussian is not None
    torch.testing.assert_close(views[1].gaussian, leave_group_out_log_posterior(fitted, rows.__getitem__, targets))


@pytest.mark.parametrize("gaussians", [True, False])
def test_views_are_pooled_by_their_weights_and_moved_to_equal_classes(
    monkeypatch: pytest.MonkeyPatch, gaussians: bool
) -> None:
    seen = Seen()
    labels = some_labels(seen)
    for prior in ("empirical", "equal"):
        method = ensemble(seen, warmup=1, gaussians=gaussians, prior=prior)
        views = watched(method, monkeypatch)
        figures = learn(method, seen, labels, epoch=1)
        state = method.posterior
        assert state is not None
        assert figures["view_weights"] == views[0].stacked.weights.tolist()
        assert (views[0].gaussian is not None) == gaussians
        expected = (together(views[0]) + state.offset).log_softmax(1)
        torch.testing.assert_close(state.log_probs, expected)
        if prior == "empirical":
            assert float(state.offset.abs().max()) < 1e-5
        else:
            torch.testing.assert_close(state.log_probs.exp().mean(0), torch.full((3,), 1 / 3), atol=0.01, rtol=0)


@pytest.mark.parametrize("inequality", [1.0, 0.5, 0.0])
def test_the_classes_come_nearer_to_equality_in_each_epoch_as_far_as_inequality_is_not_trusted(
    monkeypatch: pytest.MonkeyPatch, inequality: float
) -> None:
    monkeypatch.setattr(formulas, "prior_trust", lambda *_: inequality)
    seen = Seen()
    seen.truth[5:35] = 0  # far more examples of one class
    seen.rows[5:35] = seen.rows[[0]] + seen.rows[5:35] / 4
    labels, method = some_labels(seen), ensemble(seen, warmup=2)
    views = watched(method, monkeypatch)
    for epoch in range(1, 7):
        learn(method, seen, labels, epoch, steps=3)
        state = method.posterior
        assert (state is None) == (epoch < 2)
        if state is None:
            continue
        seen_shares = together(views[-1]).exp().mean(0)
        powers = seen_shares ** (inequality ** (1 / 5))
        torch.testing.assert_close(state.log_probs.exp().mean(0), powers / powers.sum(), atol=0.005, rtol=0)
        if epoch == 2:
            assert float(seen_shares.max() - seen_shares.min()) > 0.1


def test_a_given_label_counts_less_from_epoch_to_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Seen()
    labels, method, counts = some_labels(seen), ensemble(seen, warmup=2), []
    views = watched(method, monkeypatch)
    for epoch in range(1, 7):
        figures = learn(method, seen, labels, epoch, steps=3)
        if epoch < 2:
            assert figures == {}
            assert method.posterior is None
            continue
        state = method.posterior
        assert state is not None
        likely = together(views[-1]).argmax(1)
        wrong = (likely != labels.given[method.context.train]) * state.informative
        last = label_weights(state.uniform_noise_rate, float(wrong.sum() / state.informative.sum()), CLASSES)
        assert state.label_weight == pytest.approx(last[1], abs=1e-5)
        counts.append((state.target_weight, last[0]))
    for step, (weight, last_weight) in enumerate(counts):
        assert weight == pytest.approx(1 - (1 - last_weight) * step / 4, abs=1e-5)


def test_labels_less_likely_right_than_another_are_changed_and_people_have_the_last_word() -> None:
    seen = Seen()
    labels, method = some_labels(seen, {7: 2, 8: 0}), ensemble(seen, warmup=1)
    figures = learn(method, seen, labels, epoch=1, steps=60)
    state, train = method.posterior, method.context.train
    assert state is not None
    initial = labels.initial[train]
    likely = posterior(state.log_probs, initial, state.informative, state.log_matrix, state.label_weight)
    others = likely.scatter(1, initial[:, None], 0.0)
    odds = state.odds(slice(None), initial)
    given, reviewed, of_given = labels.given[train], labels.trusted[train].nonzero()[:, 0], odds.clone()
    of_given[reviewed] = method.odds(state.log_probs[reviewed].exp(), given[reviewed])
    quality = state.fit_scaling(of_given, given, torch.ones_like(given, dtype=torch.bool)).apply(odds).sigmoid()
    is_changed = (1 - quality) * others.max(1).values / others.sum(1) > quality
    expected = others.argmax(1).where(is_changed & ~labels.trusted[train], initial)
    assert torch.equal(labels.current[train], expected)
    assert figures["changed"] == int((expected != initial).sum()) > 2
    rest = torch.ones(75, dtype=torch.bool)
    rest[train] = False
    assert torch.equal(labels.current[rest], labels.initial[rest])


@pytest.mark.parametrize(("few", "dropped"), [(10, True), (10_000, False)])
def test_gaussians_that_say_nothing_are_dropped_where_they_cost_time(
    monkeypatch: pytest.MonkeyPatch, few: int, dropped: bool
) -> None:
    monkeypatch.setattr(module, "SMALL_DATA", few)
    seen = Seen()
    seen.rows = torch.randn(75, 4, generator=torch.Generator().manual_seed(1))
    labels, method = some_labels(seen), ensemble(seen, warmup=1)
    monkeypatch.setattr(
        seen, "outputs", lambda network, rows: iter([(slice(None), 2 * torch.eye(3)[seen.truth[rows]])])
    )
    learn(method, seen, labels, epoch=1)
    assert method.posterior is not None
    assert (method.posterior.gaussian_pair is None) == (method.model().gaussians is None) == dropped
    assert method.posterior.weights is not None
    assert len(method.posterior.weights) == 2 - dropped
    learn(method, seen, labels, epoch=2)
    assert (method.posterior.gaussian_pair is None) == dropped  # for good


def test_gaussians_that_say_something_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SMALL_DATA", 10)
    seen = Seen()
    method = ensemble(seen, warmup=1)
    learn(method, seen, some_labels(seen), epoch=1)
    assert method.posterior is not None
    assert method.posterior.gaussian_pair is not None


def test_label_scores_are_what_each_view_says_of_given_and_current_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Seen()
    labels, method = some_labels(seen, {7: 2, 8: 0}), ensemble(seen, warmup=1)
    views = watched(method, monkeypatch)
    learn(method, seen, labels, epoch=1, steps=60)
    label_scores, state, train = method.label_scores(labels), method.posterior, method.context.train
    assert label_scores is not None
    assert state is not None
    assert bool((labels.given != labels.current).any())
    for probs, log_probs in zip(
        (label_scores.probs, label_scores.network, label_scores.gaussian_probs),
        (state.log_probs, views[0].network, views[0].gaussian),
        strict=True,
    ):
        assert probs is not None
        assert log_probs is not None
        for column, named in enumerate((labels.given[train], labels.current[train])):
            torch.testing.assert_close(probs[:, column], log_probs.exp()[torch.arange(len(train)), named])


def test_a_large_ensemble_says_the_same_in_half_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, found = Seen(), []
    for above in (tables.HALF_ABOVE, 100):  # fewer than 60 x 3 values
        monkeypatch.setattr(tables, "HALF_ABOVE", above)
        labels, method = some_labels(seen), ensemble(seen, warmup=1)
        for epoch in (1, 2):
            learn(method, seen, labels, epoch, steps=30)
        assert method.posterior is not None
        for table in (method.posterior.log_probs, method.posterior.network_pair, method.posterior.gaussian_pair):
            assert table is not None
            assert table.dtype == (torch.float32 if above > 100 else torch.float16)
        found.append((labels.current, method.label_scores(labels)))
    (current, label_scores), (current_half, scores_half) = found
    assert label_scores is not None
    assert scores_half is not None
    assert torch.equal(current, current_half)
    for one, other in zip(scores_half.calibration, label_scores.calibration, strict=True):
        assert one == pytest.approx(other, abs=0.02, rel=0.005)
    torch.testing.assert_close(scores_half.odds, label_scores.odds, atol=0.05, rtol=0.02)
    assert scores_half.probs.dtype == scores_half.network.dtype == torch.float32


# weights and quality


@given(st.floats(0, 0.95), st.floats(0, 1), st.integers(2, 100))
def test_label_weights_are_the_formula_between_their_limits(background: float, wrong: float, classes: int) -> None:
    got = label_weights(background, wrong, classes)
    by_chance = background * (1 - 1 / classes)
    f = by_chance / (by_chance + (1 - background) * wrong + 1e-9)
    for weight, least in zip(got, (0.3, 0.4), strict=True):
        assert weight == pytest.approx(max(least, (1 - f) * least + f * (1 - 1.5 * wrong)), abs=1e-6)
        assert least <= weight <= 1


def test_labels_count_fully_where_all_noise_is_chance_and_least_where_none_is() -> None:
    assert label_weights(0.3, 0.0, 10) == pytest.approx((1, 1), abs=1e-6)
    assert label_weights(0.0, 0.2, 10) == pytest.approx((0.3, 0.4))
    assert label_weights(0.3, 0.5, 10) == pytest.approx((0.3, 0.4))  # views that contradict half of the labels
    assert label_weights(0.3, 0.05, 10) > label_weights(0.1, 0.05, 10) > label_weights(0.1, 0.1, 10)


def state_of(label_weight: float, offset: Tensor | None = None, background: float = 0.2) -> PosteriorState:
    matrix = torch.tensor([[0.8, 0.1, 0.1], [0.05, 0.9, 0.05], [0.3, 0.0001, 0.6999]])
    nothing = torch.empty(0)
    return PosteriorState(
        log_probs=nothing,
        informative=nothing,
        log_matrix=matrix.log(),
        weights=torch.ones(1),
        offset=torch.zeros(3) if offset is None else offset,
        uniform_noise_rate=background,
        prior_trust=1.0,
        target_weight=0.5,
        label_weight=label_weight,
        confident=Confident(0.1, 0.01, 0.02, 0.5, 0.3, 0.9, 9.0, 0.08),
    )


@given(st.integers(0, 1000), st.sampled_from([0.4, 0.6, 0.9, 1.0]))
def test_odds_are_those_of_the_posterior_and_of_a_class_at_all(seed: int, label_weight: float) -> None:
    random = torch.Generator().manual_seed(seed)
    log_probs = (2 * torch.randn(8, 3, generator=random)).log_softmax(1)
    labels, share = torch.randint(3, (8,), generator=random), torch.rand(8, generator=random)
    state = state_of(label_weight)
    got = replace(state, log_probs=log_probs, informative=share).odds(slice(None), labels)
    M, g = state.log_matrix.exp().tolist(), min(1.0, label_weight + 0.15)
    for i, y in enumerate(labels.tolist()):
        p, u = log_probs[i].exp().tolist(), float(share[i])
        moved = [p[c] * M[c][y] ** g for c in range(3)]
        own = (1 - u) * p[y] + u * moved[y] / sum(moved)
        assert float(got[i]) == pytest.approx(math.log(own / (1 - own)) + math.log(p[y]), abs=1e-3, rel=1e-3)


def test_odds_rise_with_what_views_say_far_beyond_what_probabilities_can_tell_apart() -> None:
    odds = torch.linspace(-300, 300, 400)
    log_probs = torch.stack([odds, torch.zeros(400), torch.zeros(400)], 1).log_softmax(1)
    labels, state = torch.zeros(400, dtype=torch.long), state_of(0.5)
    for share in (0.0, 0.5, 1.0):
        there = replace(state, log_probs=log_probs, informative=torch.full((400,), share))
        got = there.odds(slice(None), labels)
        assert bool((got.diff() > 0.5).all())
        assert bool(got.isfinite().all())


def test_examples_that_no_member_learned_are_corrected_and_scored_by_the_same_formulas() -> None:
    """What the model says includes the move of the classes' sizes; background labels know nothing of it."""
    random = torch.Generator().manual_seed(0)
    method, offset = ensemble(Seen()), torch.tensor([0.8, 0.0, -0.8])
    probs = torch.randn(20, 3, generator=random).softmax(1)
    labels = torch.randint(3, (20,), generator=random)
    assert method.correct(probs, labels).tolist() == labels.tolist()  # before anything is likely
    torch.testing.assert_close(method.odds(probs, labels).sigmoid(), probs.gather(1, labels[:, None])[:, 0])
    state = method.posterior = state_of(0.5, offset)
    method.small, method.known = torch.tensor([False, False, False]), torch.tensor([True, True, True])
    share = []
    for p, y in zip(probs.tolist(), labels.tolist(), strict=True):
        unmoved = [p[c] / math.exp(float(offset[c])) for c in range(3)]
        informative = 0.8 * unmoved[y] / sum(unmoved)
        share.append(informative / (informative + 0.2 / 3))
    assert method.correct(probs, labels).tolist() == labels.tolist()  # nothing is calibrated yet
    method.scaling = PlattScaling(1.2, torch.tensor([-0.5, 0.7]))
    likely = posterior(probs.log(), labels, torch.tensor(share), state.log_matrix, 0.5)
    likely = likely.scatter(1, labels[:, None], 0.0)
    quality = method.scaling.apply(method.odds(probs, labels)).sigmoid()
    is_changed = (1 - quality) * likely.max(1).values / likely.sum(1) > quality
    expected = likely.argmax(1).where(is_changed, labels)
    assert method.correct(probs, labels).tolist() == expected.tolist() != labels.tolist()
    there = replace(state, log_probs=probs.log(), informative=torch.tensor(share))
    torch.testing.assert_close(method.odds(probs, labels), there.odds(slice(None), labels))
    method.small = torch.tensor([False, True, False])  # of such a class nothing can be probs
    assert torch.equal(method.odds(probs, labels).isnan(), labels == 1)
    method.known, method.unknown = torch.tensor([True, False, True]), torch.tensor([1])
    corrected = method.correct(probs, labels)
    assert torch.equal(corrected == 1, labels == 1)  # its labels stay, and none becomes one of it
    without = probs * torch.tensor([1.0, 0.0, 1.0])
    assert corrected[labels != 1].tolist() == method.correct(without, labels)[labels != 1].tolist()
    assert bool((corrected != labels).any())


def test_the_model_predicts_the_pool_of_views_of_a_new_example() -> None:
    seen = Seen()
    labels, method = some_labels(seen), ensemble(seen, warmup=1)
    assert method.model().weights is None
    learn(method, seen, labels, epoch=1)
    state, new = method.posterior, torch.randn(9, 4, generator=torch.Generator().manual_seed(3))
    assert state is not None
    assert state.gaussians is not None
    assert state.weights is not None
    mean = torch.stack([member(new).softmax(1) for member in method.ema.module.split()]).mean(0)
    expected = pool([mean.log(), state.gaussians.log_posterior(new)], state.weights) + state.offset
    torch.testing.assert_close(method.model().probs(new), expected.softmax(1))


def test_its_state_restores_it() -> None:
    seen = Seen()
    labels, method, other = some_labels(seen), ensemble(seen, warmup=1), ensemble(seen, warmup=1)
    other.load_state_dict(method.state_dict())
    learn(method, seen, labels, epoch=1)
    other.networks[0].load_state_dict(method.networks[0].state_dict())
    other.load_state_dict(method.state_dict())
    figures = [learn(each, seen, some_labels(seen), epoch=2) for each in (method, other)]
    assert figures[0] == figures[1]
    assert_same_tree(method.state_dict(), other.state_dict())


# options


def test_ensembles_are_smaller_where_examples_are_many_or_large() -> None:
    chosen = UnflipOptions()
    assert count_members(chosen, some_context(torch.arange(9_999))) == 8
    assert count_members(chosen, some_context(torch.arange(10_000))) == 5
    assert count_members(chosen, some_context(torch.arange(100), of_rows=False)) == 2
    assert count_members(UnflipOptions(members=5), some_context(torch.arange(10_000))) == 5


def test_images_have_no_gaussians_and_no_schedule_of_their_own() -> None:
    assert Unflip(UnflipOptions(members=2), some_context(torch.arange(9), of_rows=False)).dropped
    rows, images = (Unflip.options_for("unflip", RunShape(10, 0.1, of_rows)) for of_rows in (True, False))
    assert rows["data"]["val_fraction"] == 0
    assert "data" not in images  # the noise rate is estimated on validation images
    assert "optimizer" in rows
    assert "optimizer" not in images


def test_a_warm_up_that_never_ends_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"unflip\.warmup = 5 is not below epochs = 5"):
        Unflip.check_options("unflip", UnflipOptions(warmup=5), 5)
    Unflip.check_options("unflip", UnflipOptions(warmup=4), 5)
    Unflip.check_options("unflip", UnflipOptions(), 1)


def test_it_cannot_be_calibrated() -> None:
    for name in ("unflip-m", "unflip-c"):
        with pytest.raises(ConfigError, match="cannot be calibrated"):
            find_method(name)


# whole runs


def simulated(folder: Path, distance: float, count: int, noise: float = 0.3) -> tuple[Path, Path]:
    """Three Gaussian classes of six columns in a file; a share of the labels is of any other class, in another file."""
    random = np.random.default_rng(1)
    centers, classes = distance * np.eye(6)[:3], np.arange(count) % 3
    rows = (centers[classes] + random.normal(size=(count, 6))).astype(np.float32)
    labels = np.where(random.random(count) < noise, (classes + random.integers(1, 3, count)) % 3, classes)
    np.save(folder / "labels.npy", labels)
    return write_npz(folder / "rows.npz", train=rows, train_labels=classes), folder / "labels.npy"


@pytest.fixture(scope="module")
def noisy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return simulated(tmp_path_factory.mktemp("noisy"), distance=5.0, count=400)


def run_on(data: tuple[Path, Path], out: Path, **options: Any) -> Run:
    return quick_train(data[0], out, labels=data[1], method="unflip", **({"epochs": 6} | options))


def scores(run: Run, data: tuple[Path, Path]) -> Iterator[np.ndarray[Any, Any]]:
    """Return quality, whether the given label is right, and whether the current one is."""
    table, truth = run.labels(), np.load(data[0])["train_labels"]
    yield table["label_quality"].to_numpy()
    for column in ("given_label", "current_label"):
        yield table[column].to_numpy() == truth


def test_it_finds_the_wrong_labels_without_any_setting(noisy: tuple[Path, Path], tmp_path: Path) -> None:
    run = run_on(noisy, tmp_path / "run")
    quality, right, corrected = scores(run, noisy)
    assert right.mean() < 0.75
    assert corrected.mean() > 0.93  # 400 labels tell that 12 to 34 % are wrong: some are kept in doubt
    assert roc_auc_score(right, quality) > 0.97
    table = run.labels()
    assert set(table["out_of_sample"].to_pylist()) == {True}
    assert sorted(set(table["fold"].to_pylist())) == list(range(8))
    assert table["suggested_label"].to_pylist() == table["current_label"].to_pylist()
    assert set(table["split"].to_pylist()) == {"train"}
    assert min(run.history()["epoch"].to_pylist()) == 2


def test_quality_is_how_often_such_labels_are_right(tmp_path: Path) -> None:
    data = simulated(tmp_path, distance=2.5, count=1500)
    quality, right, _ = scores(run_on(data, tmp_path / "run", epochs=8), data)
    order = quality.argsort()
    for part in np.array_split(order, 5):
        assert right[part].mean() == pytest.approx(quality[part].mean(), abs=0.12)
    assert right.mean() == pytest.approx(quality.mean(), abs=0.05)


def test_a_single_member_warns_that_scores_are_in_sample(noisy: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.warns(UnflipWarning, match="unflip.members = 1"):
        run = run_on(noisy, tmp_path / "run", settings={"unflip.members": 1, "data.val_fraction": 0.1})
    for row in run.labels().to_pylist():
        assert row["out_of_sample"] == (row["split"] != "train")
        assert row["fold"] == -1
        assert 0 <= row["label_quality"] <= 1


def test_of_a_class_smaller_than_the_ensemble_nothing_can_be_said(noisy: tuple[Path, Path], tmp_path: Path) -> None:
    labels = np.load(noisy[1])
    labels[[5, 50, 150]] = 3
    np.save(tmp_path / "labels.npy", labels)
    run = run_on((noisy[0], tmp_path / "labels.npy"), tmp_path / "run", settings={"data.classes": 4})
    quality = run.labels()["label_quality"].to_pylist()
    assert [i for i, value in enumerate(quality) if value is None] == [5, 50, 150]


@pytest.mark.parametrize("alone", [5, 150])
def test_no_label_becomes_one_of_a_class_with_a_single_example(
    alone: int, noisy: tuple[Path, Path], tmp_path: Path
) -> None:
    labels = np.load(noisy[1])
    labels[alone] = 3
    np.save(tmp_path / "labels.npy", labels)
    settings = {"data.classes": 4, "data.val_fraction": 0.25}
    table = run_on((noisy[0], tmp_path / "labels.npy"), tmp_path / "run", settings=settings).labels()
    assert np.flatnonzero(table["current_label"].to_numpy() == 3).tolist() == [alone]
    assert np.flatnonzero(table["top1"].to_numpy() == 3).tolist() == []


def test_nor_of_examples_of_such_a_class_that_were_held_out(noisy: tuple[Path, Path], tmp_path: Path) -> None:
    labels = np.load(noisy[1])
    small = list(range(5, 400, 50))  # 8 of them, fewer in training
    labels[small] = 3
    np.save(tmp_path / "labels.npy", labels)
    data, settings = (noisy[0], tmp_path / "labels.npy"), {"data.classes": 4, "data.val_fraction": 0.25}
    table = run_on(data, tmp_path / "run", settings=settings).labels()
    assert {table["split"][i].as_py() for i in small} == {"train", "val"}
    assert [i for i, value in enumerate(table["label_quality"].to_pylist()) if value is None] == small


def test_examples_held_out_are_scored_and_corrected_too(noisy: tuple[Path, Path], tmp_path: Path) -> None:
    run = run_on(noisy, tmp_path / "run", settings={"data.val_fraction": 0.25})
    quality, right, corrected = scores(run, noisy)
    table = run.labels()
    held_out = np.array(table["split"].to_pylist()) == "val"
    assert held_out.sum() == pytest.approx(100, abs=2)
    assert corrected[held_out].mean() > 0.95
    assert right[held_out].mean() < 0.8
    assert roc_auc_score(right[held_out], quality[held_out]) > 0.97
    assert np.isfinite(quality).all()
    assert set(table["fold"].to_numpy()[held_out].tolist()) == {-1}
    assert table["gaussian_prob_given"].null_count == 0


def test_reviewed_labels_stay_and_the_given_label_is_not_forgotten(noisy: tuple[Path, Path], tmp_path: Path) -> None:
    truth, given_labels = np.load(noisy[0])["train_labels"], np.load(noisy[1])
    rows = range(0, 40, 4)
    decided = {row: int((truth[row] + 1) % 3) for row in rows}  # all of them wrong, to be recognizable
    (tmp_path / "reviewed.csv").write_text("index,label\n" + "".join(f"{i},{c}\n" for i, c in decided.items()))
    table = run_on(noisy, tmp_path / "run", reviewed=tmp_path / "reviewed.csv").labels().to_pylist()
    for row, label in decided.items():
        assert table[row]["current_label"] == table[row]["suggested_label"] == label
        assert table[row]["given_label"] == given_labels[row]
        assert table[row]["label_quality"] == 1
        assert table[row]["reviewed"]
    others = [row["current_label"] == truth[row["index"]] for row in table if not row["reviewed"]]
    assert np.mean(others) > 0.97


def test_equal_rows_share_a_fold(noisy: tuple[Path, Path], tmp_path: Path) -> None:
    content = dict(np.load(noisy[0]))
    content["train"][200:] = content["train"][:200]
    data = write_npz(tmp_path / "twice.npz", **content)
    fold = run_on((data, noisy[1]), tmp_path / "run", epochs=2).labels()["fold"].to_numpy()
    assert fold[:200].tolist() == fold[200:].tolist()
    assert len(set(fold.tolist())) == 8


def test_a_run_resumed_for_more_epochs_keeps_scoring(noisy: tuple[Path, Path], tmp_path: Path) -> None:
    run_on(noisy, tmp_path / "run", epochs=3)
    longer = run_on(noisy, tmp_path / "run", epochs=20, resume=True)
    assert ["changed" in line for line in longer.metrics] == [True] * 20  # a warm-up of 20 epochs would be 6


@pytest.mark.parametrize("epoch", [1, 2, 3, 4])
def test_a_resumed_run_is_the_undisturbed_one_bit_for_bit(
    noisy: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epoch: int
) -> None:
    options: dict[str, Any] = {"epochs": 4, "settings": {"unflip.warmup": 2, "unflip.steps": 30}}
    undisturbed = run_on(noisy, tmp_path / "undisturbed", **options)
    crash_after(monkeypatch, epoch)
    with pytest.raises(Crash):
        run_on(noisy, tmp_path / "run", **options)
    monkeypatch.undo()
    assert_same_run(undisturbed, run_on(noisy, tmp_path / "run", resume=True, **options))


def test_without_noise_right_labels_stay(tmp_path: Path) -> None:
    data = write_npz(tmp_path / "clean.npz", **blobs())
    table = quick_train(data, tmp_path / "run", method="unflip", epochs=4).labels()
    assert np.mean(table["changed"].to_numpy(zero_copy_only=False)) < 0.02
    assert np.median(table["label_quality"].to_numpy()) > 0.95


@pytest.mark.parametrize("likely", [0.0, 1.0])
def test_a_class_without_labels_is_never_suggested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, likely: float
) -> None:
    monkeypatch.setattr(formulas, "prior_trust", lambda *_: likely)
    random = np.random.default_rng(0)
    labels = np.repeat([0, 2, 3], [200, 100, 100])  # nobody is called 1
    rows = (6 * random.normal(size=(4, 8))[labels] + random.normal(size=(400, 8))).astype(np.float32)
    data = write_npz(tmp_path / "rows.npz", train=rows, train_labels=labels, class_names=np.array(list("abcd")))
    table = quick_train(data, tmp_path / "run", method="unflip", epochs=6).labels()
    assert 1 not in table["suggested_label"].to_pylist()
    assert (table["suggested_label"].to_numpy() == labels).mean() > 0.9  # where inequality is not likely some are moved


def test_a_class_of_one_group_is_not_scored_and_stays(tmp_path: Path) -> None:
    """No member trained on any of it scores another, so all predict another class."""
    random = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2, 3], [100, 100, 100, 30])
    rows = (6 * random.normal(size=(4, 8))[labels] + random.normal(size=(330, 8))).astype(np.float32)
    rows[300:] = rows[300]
    data = write_npz(tmp_path / "rows.npz", train=rows, train_labels=labels)
    table = quick_train(data, tmp_path / "run", method="unflip", epochs=6).labels()
    assert [i for i, value in enumerate(table["label_quality"].to_pylist()) if value is None] == list(range(300, 330))
    assert (table["current_label"].to_numpy() == labels).mean() > 0.99
    assert set(table["current_label"].to_pylist()[300:]) == {3}
