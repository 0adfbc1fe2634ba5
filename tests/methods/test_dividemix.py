"""DivideMix: its pieces against slow references, who learns when, and the cases that crash the released code."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from epoch_outputs import Unseen
from helpers import blobs, capture_trainers, quick_train, write_npz
from unflip.methods.base import Batch, LabelStore, Phase, TrainContext
from unflip.methods.dividemix import (
    DivideMix,
    DivideMixOptions,
    divide,
    negative_entropy,
    prior_penalty,
    ramp,
    refine,
    sharpen,
    soft_cross_entropy,
    squared_error,
)
from unflip.methods.losses import mix
from unflip.methods.mddc import Calibrated
from unflip.nn.base import unwrap
from unflip.nn.mlp import MLP, MLPOptions

QUICK = {"dividemix.warmup": 2}
LOGITS = st.lists(st.lists(st.floats(-6, 6, width=32), min_size=3, max_size=3), min_size=1, max_size=8)


class Scans(Unseen):
    """Logits to observe, one tensor a network."""

    def __init__(self, *logits: Tensor) -> None:
        self.chosen = logits

    def logits(self, network: int = 0) -> Tensor:
        return self.chosen[network]

    def broadcast(self, tensor: Tensor) -> Tensor:
        return tensor


def make(train: Tensor, classes: int = 3, batch_size: int = 4, **options: Any) -> DivideMix:
    context = TrainContext(classes, train, 10, 0, batch_size, lambda epoch: 1.0, torch.device("cpu"))
    method = DivideMix(DivideMixOptions(**options), context)
    torch.manual_seed(0)
    method.set_networks([MLP(MLPOptions(hidden=(5,)), (4,), classes) for _ in range(2)])
    return method


def softmax(scores: list[float]) -> list[float]:
    total = sum(math.exp(score) for score in scores)
    return [math.exp(score) / total for score in scores]


@given(LOGITS, st.sampled_from([0.1, 0.5, 1.0, 2.0]))
def test_sharpening_is_the_power_normalized(logits: list[list[float]], temperature: float) -> None:
    probs = [softmax(scores) for scores in logits]
    expected = []
    for row in probs:
        powers = [p ** (1 / temperature) for p in row]
        expected.append([power / sum(powers) for power in powers])
    ours = sharpen(torch.tensor(probs, dtype=torch.float64), temperature)
    torch.testing.assert_close(ours, torch.tensor(expected, dtype=torch.float64))


def test_sharpening_a_certain_label_leaves_it() -> None:
    assert sharpen(torch.tensor([[1.0, 0.0, 0.0]]), 0.5).tolist() == [[1.0, 0.0, 0.0]]


@given(LOGITS, st.floats(0, 1))
def test_refining_weighs_label_and_prediction(logits: list[list[float]], weight: float) -> None:
    probs = torch.tensor(logits).softmax(1)
    labels = [i % 3 for i in range(len(logits))]
    expected = [
        [weight * (c == label) + (1 - weight) * float(row[c]) for c in range(3)]
        for label, row in zip(labels, probs, strict=True)
    ]
    ours = refine(torch.tensor(labels), probs, torch.full((len(labels),), weight))
    torch.testing.assert_close(ours, torch.tensor(expected), atol=1e-5, rtol=1e-4)


@given(st.integers(0, 1000), st.sampled_from([0.5, 4.0]))
def test_mixing_keeps_each_row_nearer_to_itself(seed: int, alpha: float) -> None:
    draws = torch.Generator().manual_seed(seed)
    inputs, targets = torch.randn(7, 2, 3, generator=draws), torch.rand(7, 4, generator=draws)
    mixed, mixed_targets = mix(inputs, targets, alpha, torch.Generator().manual_seed(seed))
    # The same by hand: find the weight and the partners from the same generator.
    again = torch.Generator().manual_seed(seed)
    draw = np.random.default_rng(int(torch.randint(2**62, (), generator=again))).beta(alpha, alpha)
    partners = torch.randperm(7, generator=again).tolist()
    weight = max(draw, 1 - draw)
    assert 0.5 <= weight <= 1
    for i, partner in enumerate(partners):
        torch.testing.assert_close(mixed[i], (weight * inputs[i] + (1 - weight) * inputs[partner]))
        torch.testing.assert_close(mixed_targets[i], (weight * targets[i] + (1 - weight) * targets[partner]))


def test_mixing_weights_are_betas() -> None:
    draws = torch.Generator().manual_seed(0)
    inputs, targets = torch.eye(2), torch.eye(2)
    weights = []
    for _ in range(2000):
        mixed, _ = mix(inputs, targets, 4.0, draws)
        if mixed[0, 0] < 1:  # the other half of the draws pairs each row with itself
            weights.append(float(mixed[0, 0]))
    betas = np.random.default_rng(0).beta(4, 4, 20000)
    assert np.mean(weights) == pytest.approx(np.maximum(betas, 1 - betas).mean(), abs=0.01)


@given(LOGITS)
def test_losses_are_the_equations(logits: list[list[float]]) -> None:
    probs = [softmax(scores) for scores in logits]
    targets = [softmax(scores[::-1]) for scores in logits]
    scores, count = torch.tensor(logits, dtype=torch.float64).log_softmax(1), len(logits)
    expected = -sum(q * math.log(p) for qs, ps in zip(targets, probs, strict=True) for q, p in zip(qs, ps, strict=True))
    assert float(soft_cross_entropy(scores, torch.tensor(targets).double())) == pytest.approx(
        expected / count, rel=1e-4
    )
    errors = [(q - p) ** 2 for qs, ps in zip(targets, probs, strict=True) for q, p in zip(qs, ps, strict=True)]
    ours = squared_error(scores, torch.tensor(targets).double())
    assert float(ours) == pytest.approx(sum(errors) / len(errors), abs=1e-6)
    entropy = -sum(p * math.log(p) for ps in probs for p in ps) / count
    assert float(negative_entropy(scores)) == pytest.approx(-entropy, abs=1e-6)
    for classes in ([0, 1, 2], [0, 2]):
        means = [sum(ps[c] for ps in probs) / count for c in classes]
        pi = 1 / len(classes)
        expected = sum(pi * math.log(pi / mean) for mean in means)
        ours = prior_penalty(scores, torch.tensor(classes))
        assert float(ours) == pytest.approx(expected, abs=1e-6)


def test_the_prior_penalty_stays_finite_where_a_class_vanishes() -> None:
    logits = torch.tensor([[300.0, 0.0, 0.0]], requires_grad=True)
    penalty = prior_penalty(logits.log_softmax(1), torch.arange(3))
    penalty.backward()
    assert bool(penalty.isfinite())
    assert logits.grad is not None
    assert bool(logits.grad.isfinite().all())


def test_the_prior_leaves_out_classes_without_a_label() -> None:
    method = make(torch.tensor([0, 2, 3]), classes=4)
    next(iter(method.phases(1, Scans(), LabelStore(torch.tensor([0, 1, 2, 2]), 4))))
    assert method.classes.tolist() == [0, 2]


def test_the_unlabeled_weight_grows_after_the_warm_up() -> None:
    assert [ramp(progress, 10, 16) for progress in (3.0, 10.0, 14.0, 26.0, 99.0)] == [0.0, 0.0, 0.25, 1.0, 1.0]


def test_the_division_takes_what_is_likely_and_never_nothing() -> None:
    assert divide(torch.tensor([0.2, 0.5, 0.6]), 0.5, 2).tolist() == [False, False, True]
    assert divide(torch.tensor([0.2, 0.5, 0.3]), 0.5, 2).tolist() == [False, True, True]
    assert divide(torch.tensor([0.2, 0.3]), 0.5, 8).tolist() == [True, True]


def test_each_network_is_divided_by_the_other() -> None:
    train = torch.tensor([1, 2, 4, 5])
    method, labels = make(train), LabelStore(torch.zeros(6, dtype=torch.long), 3)
    method.clean = torch.tensor([[0.9, 0.1, 0.9, 0.1], [0.1, 0.1, 0.8, 0.7]])
    weights, phases = [], []
    for phase in method.phases(11, Scans(), labels):
        weights.append(method.weight.tolist())
        phases.append(phase)
    assert [phase.learns for phase in phases] == [(0,), (1,)]
    assert [phase.indices.tolist() for phase in phases] == [[4, 5], [1, 4]]
    assert [phase.unlabeled.tolist() for phase in phases if phase.unlabeled is not None] == [[1, 2], [2, 5]]
    assert weights[0] == pytest.approx([0, 0.1, 0.1, 0, 0.8, 0.7])
    assert weights[1] == pytest.approx([0, 0.9, 0.1, 0, 0.9, 0.1])


def test_examples_without_a_label_join_the_unlabeled_ones() -> None:
    method, labels = make(torch.arange(4)), LabelStore(torch.tensor([0, 1, 2, 0, -1, -1]), 3)
    method.context = replace(method.context, unlabeled=torch.tensor([4, 5]))
    (first, _) = method.phases(1, Scans(), labels)
    assert first.unlabeled is None
    method.clean = torch.tensor([[1.0] * 4, [1.0, 0.0, 1.0, 1.0]])
    found = [phase.unlabeled.tolist() for phase in method.phases(11, Scans(), labels) if phase.unlabeled is not None]
    assert found == [[1, 4, 5], [4, 5]]


def test_where_all_labels_are_likely_nothing_is_unlabeled() -> None:
    method, labels = make(torch.arange(4)), LabelStore(torch.arange(4) % 3, 3)
    method.clean = torch.ones(2, 4)
    phase = next(iter(method.phases(11, Scans(), labels)))
    assert phase.unlabeled is None
    views = (torch.randn(4, 4), torch.randn(4, 4))
    step = method.loss(Batch(phase.indices, views, labels.current, 11, 10.0, 0), phase)
    assert set(step.terms) == {"labeled_0", "prior_0"}


def test_targets_are_refined_and_guessed_from_given_labels() -> None:
    """The whole step against one that goes example by example."""
    method = make(torch.arange(6), lambda_u=3.0, rampup=2, warmup=1, alpha=0.7)
    for network in method.networks:
        network.eval()  # so that an example's prediction does not depend on its batch
    labels = LabelStore(torch.tensor([0, 1, 2, 0, 1, 2]), 3)
    labels.change(1, torch.arange(6), torch.zeros(6, dtype=torch.long), torch.ones(6))  # must not matter
    method.clean = torch.tensor([[0.9] * 6, [0.8, 0.7, 0.6, 0.1, 0.2, 0.3]])
    phase = next(iter(method.phases(2, Scans(), labels)))
    draws = torch.Generator().manual_seed(5)
    views = [tuple(torch.randn(3, 4, generator=draws) for _ in range(2)) for _ in range(2)]
    fellow = Batch(torch.tensor([5, 3, 4]), views[1], labels.current[3:], 2, 1.5, 8)
    batch = Batch(torch.tensor([2, 0, 1]), views[0], labels.current[:3], 2, 1.5, 7, fellow)
    terms = method.loss(batch, phase).terms

    own, other = method.networks
    targets: list[Tensor] = []
    with torch.no_grad():
        refined, guessed = [], []
        for i, row in enumerate([2, 0, 1]):
            p = sum(own(view[i : i + 1]).softmax(1)[0] for view in views[0]) / 2
            w = method.clean[1, row]
            q = w * torch.eye(3)[labels.given[row]] + (1 - w) * p
            refined.append(q**2 / (q**2).sum())
        for i in range(3):
            q = sum(net(view[i : i + 1]).softmax(1)[0] for net in (own, other) for view in views[1]) / 4
            guessed.append(q**2 / (q**2).sum())
        targets = [*refined, *refined, *guessed, *guessed]
        again = Batch(batch.indices, views[0], batch.labels, 2, 1.5, 7).generator
        mixed, q = mix(torch.cat([*views[0], *views[1]]), torch.stack(targets), 0.7, again)
        logits = own(mixed)
        expected = {
            "labeled_0": -(q[:6] * logits[:6].log_softmax(1)).sum(1).mean(),
            "unlabeled_0": 3.0 * 0.25 * ((logits[6:].softmax(1) - q[6:]) ** 2).mean(),
            "prior_0": sum(1 / 3 * torch.log(1 / 3 / mean) for mean in logits.softmax(1).mean(0)),
        }
    assert set(terms) == set(expected)
    for name, term in terms.items():
        torch.testing.assert_close(term.detach(), torch.as_tensor(expected[name]), msg=name)


def test_the_warm_up_is_cross_entropy_and_with_asymmetric_noise_less_certain() -> None:
    labels, inputs = LabelStore(torch.tensor([0, 1, 2, 0]), 3), torch.randn(4, 4)
    batch = Batch(torch.arange(4), (inputs,), labels.current, 1, 0.0, 0)
    for asymmetric in (False, True):
        method = make(torch.arange(4), asymmetric=asymmetric)
        phases = list(method.phases(1, Scans(), labels))
        assert [(phase.indices.tolist(), phase.learns) for phase in phases] == [([0, 1, 2, 3], (i,)) for i in (0, 1)]
        terms = method.loss(batch, phases[1]).terms
        logits = method.networks[1](inputs)
        torch.testing.assert_close(terms["warmup_1"], torch.nn.functional.cross_entropy(logits, labels.current))
        assert ("negative_entropy_1" in terms) == asymmetric


def test_corrected_labels_are_the_arg_max_of_the_mean_refined_label() -> None:
    labels = LabelStore(torch.tensor([0] * 8 + [1] * 8 + [0, 2]), 3)
    train = torch.arange(1, 18)
    method = make(train, warmup=1)
    logits = 6.0 * torch.nn.functional.one_hot(labels.given[train], 3).float()
    logits[-2] = torch.tensor([0.0, 6.0, 0.0])  # both networks call row 16 a 1, and its loss stands out
    logits = torch.stack([logits, logits + 0.1 * torch.randn(17, 3, generator=torch.Generator().manual_seed(0))])
    figures = method.end_epoch(1, Scans(*logits), labels)
    assert method.clean is not None
    assert figures["changed"] == 1
    assert labels.current[16] == 1
    refined = method.train_probs()
    assert refined is not None
    for i, row in enumerate(train.tolist()):
        y = torch.eye(3)[labels.given[row]]
        parts = [method.clean[1 - n, i] * y + (1 - method.clean[1 - n, i]) * logits[n, i].softmax(0) for n in (0, 1)]
        torch.testing.assert_close(refined[i], (parts[0] + parts[1]) / 2)
    (confidence,) = labels.history()["confidence"].tolist()
    assert confidence == pytest.approx(float(refined[-2, 1]))


def test_the_window_averages_normalized_losses() -> None:
    labels = LabelStore(torch.tensor([0, 0, 0, 1, 1, 1]), 2)
    method = make(torch.arange(6), classes=2, warmup=1, window=2)
    for epoch in (1, 2, 3):
        method.end_epoch(epoch, Scans(*torch.randn(2, 6, 2)), labels)
    assert [tuple(losses.shape) for losses in method.losses.stored] == [(2, 6), (2, 6)]
    assert all(losses.min() == 0 and losses.max() == 1 for losses in method.losses.stored)


def test_before_the_warm_up_ends_nothing_is_corrected_or_refined(features: Path, tmp_path: Path) -> None:
    settings = {"dividemix.warmup": 3}
    run = quick_train(features, tmp_path / "run", method="dividemix", epochs=4, settings=settings)
    history = pyarrow.parquet.read_table(run.folder / "history.parquet")
    assert all(epoch >= 3 for epoch in history["epoch"].to_pylist())
    assert [line["changed_fraction"] for line in run.metrics[:2]] == [None, None]
    assert run.result["test_accuracy"]["last"] > 0.9


def test_examples_that_did_not_train_need_a_majority() -> None:
    method = make(torch.arange(4))
    probs = torch.tensor([[0.6, 0.3, 0.1], [0.4, 0.35, 0.25]])
    assert method.correct(probs, torch.tensor([1, 1])).tolist() == [0, 1]


def test_an_idle_network_stays_bit_identical(features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights and batch-norm statistics of the network that does not learn, over every phase of a run."""
    seen, phases = [], DivideMix.phases

    def states(method: DivideMix) -> list[dict[str, Any]]:
        return [{k: v.clone() for k, v in unwrap(net).state_dict().items()} for net in method.networks]

    def watched(self: DivideMix, epoch: int, *args: Any) -> Iterator[Phase]:
        for phase in phases(self, epoch, *args):
            before = states(self)
            yield phase
            (idle,) = {0, 1} - set(phase.learns)
            pairs = zip(states(self), before, strict=True)
            same = [all(torch.equal(v, was[k]) for k, v in now.items()) for now, was in pairs]
            seen.append((epoch, phase.learns, same[idle], same[1 - idle]))

    monkeypatch.setattr(DivideMix, "phases", watched)
    quick_train(features, tmp_path / "run", method="dividemix", epochs=4, settings=QUICK | {"mlp.dropout": 0.2})
    assert seen == [(epoch, (network,), True, False) for epoch in range(1, 5) for network in (0, 1)]


@pytest.mark.parametrize("clean", [0.0, 1.0])
def test_an_empty_part_is_survived(
    clean: float, features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unflip.methods.dividemix.low_probability", lambda losses, seed: torch.full_like(losses, clean))
    run = quick_train(
        features, tmp_path / "run", method="dividemix", epochs=6, settings=QUICK | {"dividemix.lambda_u": 1.0}
    )
    assert run.metrics[-1]["labeled"] == [clean, clean]
    assert ("unlabeled_0" in run.metrics[-1]["loss"]) == (clean == 0)  # all but one batch's worth
    assert run.result["test_accuracy"]["last"] > 0.9


def test_it_corrects_labels_and_calibration_sees_both_networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = blobs(train=300)
    labels = content["train_labels"].copy()
    wrong = np.random.default_rng(1).random(300) < 0.3
    labels[wrong] = (labels[wrong] + 1) % 3
    np.save(tmp_path / "labels.npy", labels)
    data = write_npz(tmp_path / "a.npz", **content)
    trainers = capture_trainers(monkeypatch)
    for method in ("dividemix", "dividemix-m", "dividemix-c"):
        run = quick_train(
            data, tmp_path / method, labels=tmp_path / "labels.npy", method=method, epochs=8, settings=QUICK
        )
        assert run.result["label_accuracy"]["given"] < 0.75
        assert run.result["label_accuracy"]["current"] > 0.95
        assert run.result["label_accuracy_all"]["current"] > 0.95
        assert run.result["test_accuracy"]["last"] > 0.95
        history = pyarrow.parquet.read_table(run.folder / "history.parquet")
        assert min(history["epoch"].to_pylist()) == 2
        table = pyarrow.parquet.read_table(run.folder / "labels.parquet").to_pylist()
        quality = [[row["label_quality"] for row in table if row["changed"] == changed] for changed in (False, True)]
        assert np.mean(quality[1]) < 0.3 < 0.7 < np.mean(quality[0])
    for trainer in trainers[1:]:
        assert isinstance(trainer.method, Calibrated)
        assert [each.gaussians is not None for each in trainer.method.calibrations] == [True, True]


def test_jitter_is_what_tells_the_views_of_a_feature_row_apart(
    features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spreads: dict[int, list[float]] = {1: [], 2: []}
    inner = DivideMix.loss

    def watched(self: DivideMix, batch: Batch, phase: Phase) -> Any:
        plain = trainers[0].source.fetch(batch.indices)
        spreads[len(batch.views)] += [float((view - plain).std()) for view in batch.views]
        return inner(self, batch, phase)

    monkeypatch.setattr(DivideMix, "loss", watched)
    trainers = capture_trainers(monkeypatch)
    quick_train(features, tmp_path / "run", method="dividemix", epochs=3, settings=QUICK | {"data.jitter": 0.3})
    assert max(spreads[1]) == 0  # the warm-up
    assert np.mean(spreads[2]) == pytest.approx(0.3, rel=0.05)
