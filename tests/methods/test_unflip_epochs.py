"""unflip over several epochs: what follows groups, what is estimated once, and what reviewed labels do not decide."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from epoch_outputs import Unseen, in_batches
from unflip.methods.base import Batch, LabelStore, TrainContext
from unflip.methods.unflip import method as module
from unflip.methods.unflip import posterior as formulas
from unflip.methods.unflip.method import Unflip, UnflipOptions
from unflip.methods.unflip.posterior import informative_prob, top_one
from unflip.nn.base import build_network
from unflip.nn.mlp import MLPOptions
from unflip.stats.annotators import ROUNDS, Annotations, fit_annotators
from unflip.stats.discriminant import SHRINKS, fit_discriminant, leave_group_out_log_posterior, to_memberships
from unflip.stats.noise_rate import confident_part, lapse_rates
from unflip.stats.odds import stack
from unflip.stats.sampling import calibrate_to_review

CLASSES, DIMS, MEMBERS = 3, 20, 3


class Seen(Unseen):
    """Rows in pairs of near-duplicates; the networks that are asked are remembered."""

    def __init__(self, pairs: int = 40) -> None:
        random = torch.Generator().manual_seed(0)
        self.truth = (torch.arange(pairs) % CLASSES).repeat(2)
        once = 1.5 * torch.eye(DIMS)[self.truth[:pairs]] + torch.randn(pairs, DIMS, generator=random)
        self.rows = once.repeat(2, 1) + 0.01 * torch.randn(2 * pairs, DIMS, generator=random)
        self.groups = torch.arange(pairs).repeat(2)

    def inputs(self, rows: Tensor) -> Tensor:
        return self.rows[rows]

    def outputs(self, network: nn.Module, rows: Tensor) -> Iterator[tuple[slice, Tensor]]:
        return in_batches(network, self.rows[rows])

    def broadcast(self, tensor: Tensor) -> Tensor:
        return tensor


def some_labels(seen: Seen) -> LabelStore:
    given = seen.truth.clone()
    given[::4] = (given[::4] + 1) % CLASSES
    return LabelStore(given, CLASSES)


def make(seen: Seen, groups: Tensor | None, **options: Any) -> Unflip:
    train = torch.arange(len(seen.rows))
    context = TrainContext(
        CLASSES, train, 6, 0, 16, lambda epoch: 1.0, torch.device("cpu"), of_rows=True, groups=groups
    )
    chosen = UnflipOptions(**({"members": MEMBERS, "warmup": 1} | options))
    method = Unflip(chosen, context)
    method.set_networks(
        Unflip.build_networks(
            chosen, context, lambda position: build_network("mlp", MLPOptions(hidden=(8,)), (DIMS,), CLASSES, position)
        )
    )
    return method


def learn(method: Unflip, seen: Seen, labels: LabelStore, epoch: int, steps: int = 8) -> dict[str, Any]:
    (phase,) = method.phases(epoch, seen, labels)
    optimizer = torch.optim.SGD(method.networks[0].parameters(), lr=0.3, momentum=0.9)
    random = torch.Generator().manual_seed(epoch)
    for step in range(steps):
        rows = phase.indices[torch.randperm(len(phase.indices), generator=random)[:24]]
        optimizer.zero_grad()
        batch = Batch(rows, (seen.rows[rows],), labels.current[rows], epoch, 0.0, step)
        method.loss(batch, phase).terms["loss"].backward()
        method.before_step()
        optimizer.step()
        method.after_step()
    return method.end_epoch(epoch, seen, labels)


def test_gaussians_leave_out_groups_when_they_choose_a_shrinkage_and_when_they_score() -> None:
    seen = Seen()
    found = {}
    for groups in (seen.groups, None):
        labels, method = some_labels(seen), make(seen, groups)
        learn(method, seen, labels, 1)
        state, targets = method.posterior, to_memberships(labels.initial, CLASSES)
        assert state is not None
        assert state.gaussians is not None
        assert state.gaussian_pair is not None
        fetch = seen.rows.__getitem__
        fitted = fit_discriminant(fetch, targets, CLASSES, shrink=SHRINKS, given=labels.initial, groups=groups)
        assert state.gaussians.shrink == fitted.shrink
        expected = leave_group_out_log_posterior(fitted, fetch, targets, groups)
        pair = torch.stack([labels.given, labels.current], 1)
        torch.testing.assert_close(state.gaussian_pair, expected.gather(1, pair))
        found[groups is None] = fitted.shrink
        if groups is not None:
            assert method.folds is not None
            assert torch.equal(method.folds[:40], method.folds[40:])
    assert found[True] < found[False]


def test_noise_rate_and_prior_are_estimated_once_and_weights_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float | None] = []
    trusted = []

    def watched(views: list[Tensor], labels: Tensor, rate: float | None = None) -> Any:
        asked.append(rate)
        return stack(views, labels, rate)

    def trust(*_: Any) -> float:
        trusted.append(1)
        return 0.4

    monkeypatch.setattr(module, "stack", watched)
    monkeypatch.setattr(formulas, "prior_trust", trust)
    seen = Seen()
    labels, method = some_labels(seen), make(seen, seen.groups)
    metrics = [learn(method, seen, labels, epoch) for epoch in (1, 2, 3)]
    rate = metrics[0]["uniform_noise_rate"]
    assert asked == [None, rate, rate]
    assert len(trusted) == 1
    assert [line["uniform_noise_rate"] for line in metrics] == [rate] * 3
    assert [line["prior_trust"] for line in metrics] == [0.4] * 3
    assert len({tuple(line["view_weights"]) for line in metrics}) == 3


@pytest.mark.parametrize(("prior", "trust"), [("equal", 0.0), ("empirical", 1.0)])
def test_a_chosen_prior_is_not_estimated(monkeypatch: pytest.MonkeyPatch, prior: str, trust: float) -> None:
    monkeypatch.delattr(formulas, "prior_trust")
    seen = Seen()
    labels, method = some_labels(seen), make(seen, None, prior=prior)
    assert [learn(method, seen, labels, epoch)["prior_trust"] for epoch in (1, 2)] == [trust] * 2


def test_the_shrinkage_of_the_first_epoch_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def watched(*args: Any, shrink: Any, **options: Any) -> Any:
        asked.append(shrink)
        return fit_discriminant(*args, shrink=shrink, **options)

    monkeypatch.setattr(module, "fit_discriminant", watched)
    seen = Seen()
    labels, method = some_labels(seen), make(seen, None)
    for epoch in (1, 2):
        learn(method, seen, labels, epoch)
    assert method.posterior is not None
    assert method.posterior.gaussians is not None
    assert asked == [SHRINKS, method.posterior.gaussians.shrink]


def odds_of_given(method: Unflip, odds: Tensor, labels: LabelStore) -> Tensor:
    """Return log-odds (n,) of the labels as they were given, before people reviewed some of them."""
    assert method.posterior is not None
    rows, result = labels.trusted.nonzero()[:, 0], odds.clone()
    result[rows] = method.odds(method.posterior.log_probs[rows].exp(), labels.given[rows])
    return result


def test_scores_are_calibrated_to_the_noise_of_all_given_labels_whatever_was_reviewed() -> None:
    seen = Seen()
    seen.rows += 4 * torch.eye(DIMS)[seen.truth]
    reviewed = torch.where(torch.arange(80) % 3 == 0, (seen.truth + 1) % CLASSES, -1)  # all of them wrong
    labels = LabelStore(seen.truth, CLASSES, reviewed)
    method = make(seen, None)
    learn(method, seen, labels, 1, steps=40)
    scores, state = method.label_scores(labels), method.posterior
    assert scores is not None
    assert state is not None
    everything, given, initial = torch.ones_like(labels.trusted), labels.given, labels.initial
    expected = state.fit_scaling(odds_of_given(method, scores.odds, labels), given, everything)
    torch.testing.assert_close(scores.calibration.shifts, expected.shifts)
    with_decisions = state.fit_scaling(scores.odds, initial, everything)
    assert scores.calibration.shifts.tolist() != pytest.approx(with_decisions.shifts.tolist(), rel=1e-3)
    torch.testing.assert_close(scores.odds, state.odds(slice(None), initial))
    top2_probs, top2 = state.log_probs.softmax(1).topk(2)
    assert torch.equal(scores.top2, top2)
    torch.testing.assert_close(scores.top2_probs, top2_probs)
    list(method.phases(2, seen, labels))
    network = method.compute_views(seen, labels).network  # as before: nothing was trained since
    top, probs, own = top_one(network, given)
    assert state.confident == confident_part(top, probs, own, given, CLASSES)
    kept = ~labels.trusted
    assert state.confident != confident_part(top[kept], probs[kept], own[kept], given[kept], CLASSES)
    margins = probs.double().logit(eps=1e-9)
    assert state.lapses is not None
    assert torch.equal(state.lapses, lapse_rates(margins, top != given))
    assert not torch.equal(state.lapses, lapse_rates(margins, top != initial))


def annotated(seen: Seen) -> LabelStore:
    """The most frequent labels of three annotators; a third of the examples was reviewed."""
    random = torch.Generator().manual_seed(2)
    chosen = torch.where(torch.rand(3, 80, generator=random) < 0.7, seen.truth, (seen.truth + 1) % CLASSES)
    example, annotator = torch.arange(80).repeat(3), torch.arange(3).repeat_interleave(80)
    annotations = Annotations(example, annotator, chosen.flatten(), ("p0", "p1", "p2"))
    reviewed = torch.where(torch.arange(80) % 3 == 0, seen.truth, -1)
    return LabelStore(chosen.mode(0).values, CLASSES, reviewed, None, annotations)


def test_annotators_are_fitted_in_all_rounds_in_the_first_epoch_and_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, asked = Seen(), []

    def watched(*arguments: Any, rounds: int = 0, **options: Any) -> Any:
        asked.append(rounds)
        return fit_annotators(*arguments, rounds=rounds, **options)

    monkeypatch.setattr(module, "fit_annotators", watched)
    labels, method = annotated(seen), make(seen, None)
    for epoch in (1, 2, 6):
        learn(method, seen, labels, epoch)
    assert asked == [ROUNDS, module._FEW_ROUNDS, ROUNDS]


def test_with_several_annotators_reviewed_labels_do_not_count_for_the_noise_rate() -> None:
    seen = Seen()
    labels, method = annotated(seen), make(seen, None)
    learn(method, seen, labels, 1, steps=40)
    scores, state = method.label_scores(labels), method.posterior
    assert scores is not None
    assert state is not None
    odds = odds_of_given(method, scores.odds, labels)
    expected, of_all = (state.fit_scaling(odds, labels.given, kept) for kept in (~labels.trusted, labels.given >= 0))
    torch.testing.assert_close(scores.calibration.shifts, expected.shifts)
    assert scores.calibration.shifts.tolist() != pytest.approx(of_all.shifts.tolist(), rel=1e-3)


def test_the_uniform_noise_rate_is_that_of_the_labels_before_a_review(monkeypatch: pytest.MonkeyPatch) -> None:
    """People correct the most doubtful labels: the others look as if there were no uniform noise."""
    seen, asked = Seen(), []

    def watched(views: Any, labels: Tensor, rate: float | None) -> Any:
        asked.append(labels)
        return stack(views, labels, rate)

    monkeypatch.setattr(module, "stack", watched)
    given = (seen.truth + (torch.arange(80) % 4 == 0)) % CLASSES
    given[1] = -1  # has a reviewed label only
    labels = LabelStore(given, CLASSES, torch.where(torch.arange(80) % 8 < 2, seen.truth, -1))
    learn(make(seen, None), seen, labels, 1)
    assert len(asked) == 1
    assert torch.equal(asked[0], given.where(given >= 0, seen.truth))


def test_a_known_noise_rate_replaces_the_estimate() -> None:
    seen = Seen()
    labels = some_labels(seen)
    changed = []
    for rate in (0.05, 0.4):
        method = make(seen, None, noise_rate=rate)
        learn(method, seen, labels, 1, steps=40)
        scores = method.label_scores(labels)
        assert scores is not None
        quality = scores.calibration.apply(scores.odds).sigmoid()
        assert float(1 - quality.nanmean()) == pytest.approx(rate, abs=0.002)
        changed.append(int((labels.current != labels.given).sum()))
    assert changed[0] < changed[1]


def test_a_reviewed_sample_calibrates_the_scores_of_all_others() -> None:
    """By the log-odds of the labels that were given, and how many labels each decision stands for."""
    seen = Seen()
    given, rows = some_labels(seen).given, torch.arange(0, 75, 3)
    reviewed, weights = torch.full_like(given, -1), torch.zeros(80)
    reviewed[rows], weights[rows] = seen.truth[rows], torch.linspace(1, 5, len(rows))
    labels, method = LabelStore(given, CLASSES, reviewed, weights), make(seen, None, prior="equal")
    learn(method, seen, labels, 1, steps=40)
    scores, state = method.label_scores(labels), method.posterior
    assert scores is not None
    assert state is not None
    assert float(state.offset.abs().max()) > 0.01
    unmoved = (state.log_probs[rows] - state.offset).log_softmax(1)
    share = informative_prob(unmoved, given[rows], state.uniform_noise_rate)
    sampled = replace(state, log_probs=state.log_probs[rows], informative=share).odds(slice(None), given[rows])
    kept = ~labels.trusted
    of_given = odds_of_given(method, scores.odds, labels)
    scaling = state.fit_scaling(of_given, given, torch.ones_like(kept))
    wrong = given[rows] != seen.truth[rows]
    expected = calibrate_to_review(scaling, scores.odds[kept], sampled, wrong, weights[rows])
    assert scores.calibration.slope == pytest.approx(expected.slope, rel=1e-4)
    torch.testing.assert_close(scores.calibration.shifts, expected.shifts, rtol=1e-3, atol=1e-3)
    assert scores.calibration.slope != pytest.approx(scaling.slope, rel=1e-3)


@pytest.mark.parametrize("of_rows", [True, False])
def test_gradients_are_clipped_for_feature_vectors_only(monkeypatch: pytest.MonkeyPatch, of_rows: bool) -> None:
    method, norms = make(Seen(), None), list[float]()
    method.context = TrainContext(**(vars(method.context) | {"of_rows": of_rows}))
    monkeypatch.setattr(method.networks[0], "clip_grad_norm", norms.append)
    method.before_step()
    assert norms == [3.0] * of_rows
