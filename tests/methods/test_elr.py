"""ELR and ELR+: penalty, running means and mixtures against loops in double precision."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor, nn

from epoch_outputs import Unseen
from helpers import blobs, passthrough, quick_train, write_npz
from unflip.errors import ConfigError
from unflip.methods import find_method
from unflip.methods.base import Batch, LabelStore, Phase, TrainContext
from unflip.methods.elr import ELR, ELROptions, ELRPlus, ELRPlusOptions, ramp
from unflip.methods.losses import ELRLoss, early_learning_penalty, mix
from unflip.nn.base import unwrap

CLASSES = 3
LOGITS = arrays(np.float64, st.tuples(st.integers(1, 5), st.just(CLASSES)), elements=st.floats(-6, 6))


class Recorded(Unseen):
    """The probabilities of a training pass, and logits of any network."""

    def __init__(self, probs: Tensor | None = None, inputs: Tensor | None = None) -> None:
        self.chosen, self.rows = probs, inputs

    @property
    def probs(self) -> Tensor:
        assert self.chosen is not None
        return self.chosen

    @torch.no_grad()
    def outputs(self, network: nn.Module, rows: Tensor) -> Iterator[tuple[slice, Tensor]]:
        assert self.rows is not None
        for start in range(0, len(rows), 4):
            yield slice(start, start + 4), network.eval()(self.rows[rows[start : start + 4]])


def context_of(train: Tensor) -> TrainContext:
    return TrainContext(CLASSES, train, 10, 0, 4, lambda epoch: 1.0, torch.device("cpu"))


def slow_softmax(row: Any) -> list[float]:
    exponentials = [math.exp(float(value)) for value in row]
    return [value / sum(exponentials) for value in exponentials]


def slow_loss(probs: list[float], label: int, targets: list[float], strength: float) -> float:
    near = sum(min(max(p, 1e-4), 1 - 1e-4) * t for p, t in zip(probs, targets, strict=True))
    return -math.log(probs[label]) + strength * math.log(1 - near)


@settings(max_examples=30)
@given(LOGITS, st.floats(0, 10), st.floats(0, 0.95), st.integers(0, 99))
def test_the_loss_of_three_epochs_is_the_formula_as_method_and_as_module(
    logits: np.ndarray, strength: float, memory: float, seed: int
) -> None:
    random = np.random.default_rng(seed)
    labels, count = random.integers(0, CLASSES, len(logits)), len(logits)
    rows = torch.arange(count) * 2 + 1  # other rows of the label store do not train
    method = ELR(ELROptions(strength=strength, memory=memory), context_of(rows))
    module = ELRLoss(2 * count, CLASSES, strength=strength, memory=memory).double()
    means = [[0.0] * CLASSES for _ in labels]
    for epoch in range(1, 4):
        scores = logits * random.normal(1, 0.5, logits.shape)
        probs = [slow_softmax(row) for row in scores]
        means = [
            [memory * t + (1 - memory) * p for p, t in zip(own, mean, strict=True)]
            for own, mean in zip(probs, means, strict=True)
        ]
        expected = [slow_loss(p, int(y), t, strength) for p, y, t in zip(probs, labels, means, strict=True)]
        inputs, given_labels = torch.from_numpy(scores), torch.from_numpy(labels)
        method.targets = method.targets.double()
        found = method.criterion(inputs, given_labels, rows)
        torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-5, atol=1e-6)
        assert float(module(inputs, given_labels, rows)) == pytest.approx(sum(expected) / count, rel=1e-5, abs=1e-6)
        method.end_epoch(epoch, Recorded(inputs.softmax(1)), LabelStore(given_labels, CLASSES))
        torch.testing.assert_close(method.targets, torch.tensor(means, dtype=torch.float64))
        torch.testing.assert_close(module.targets[rows], method.targets)
    torch.testing.assert_close(method.train_probs().sum(1), torch.ones(count, dtype=torch.float64))


def test_the_penalty_pulls_towards_the_targets_and_is_finite_at_the_limits() -> None:
    targets = torch.tensor([[0.8, 0.1, 0.1]]).double()
    logits = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True)
    early_learning_penalty(logits.softmax(1), targets).sum().backward()
    assert logits.grad is not None
    assert logits.grad[0, 0] < 0 < logits.grad[0, 1]
    sure = early_learning_penalty(torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([[1.0, 0.0, 0.0]]))
    assert float(sure) == pytest.approx(math.log(1e-4), rel=1e-2)


def test_the_module_keeps_its_means_in_evaluation_mode() -> None:
    module = ELRLoss(2, CLASSES).eval()
    module(torch.ones(1, CLASSES), torch.tensor([0]), torch.tensor([1]))
    assert not module.targets.any()
    assert list(module.state_dict()) == ["targets"]


def test_wrong_labels_are_memorized_less(tmp_path: Path) -> None:
    content = blobs(train=120)
    truth = content["train_labels"].copy()
    content["train_labels"][::3] = (truth[::3] + 1) % 3
    data = write_npz(tmp_path / "a.npz", **content)
    found = {}
    for strength in (0.0, 5.0):
        settings = {"elr.strength": strength, "optimizer.lr": 0.2, "mlp.hidden": [128], "data.val_fraction": 0.0}
        run = quick_train(data, tmp_path / str(strength), method="elr", epochs=40, select="last", settings=settings)
        found[strength] = run.result["test_accuracy"]["last"]
    assert found[5.0] > 0.97
    assert found[0.0] < found[5.0]


def make_plus(inputs: Tensor, **options: Any) -> ELRPlus:
    method = ELRPlus(ELRPlusOptions(**options), context_of(torch.arange(len(inputs))))
    method.set_networks([passthrough(CLASSES), passthrough(CLASSES)])
    with torch.no_grad():
        unwrap(method.networks[1]).head.weight.mul_(-1)
    return method


@pytest.mark.parametrize(("mixup", "rampup"), [(0.0, 0.0), (1.0, 0.0), (1.0, 4.0)])
def test_each_network_is_near_what_the_other_predicted_in_its_own_mixture(mixup: float, rampup: float) -> None:
    inputs = torch.randn(6, CLASSES, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    method = make_plus(inputs, mixup=mixup, rampup=rampup, strength=2.0, memory=0.6, ema_decay=0.0)
    method.after_step()
    store = LabelStore(labels, CLASSES)
    for epoch in (1, 2):
        method.end_epoch(epoch, Recorded(inputs=inputs), store)
    said = [[slow_softmax(network(row[None])[0].detach()) for row in inputs] for network in method.networks]
    share = 1 - 0.6**2
    batch = Batch(torch.arange(6), (inputs,), labels, 3, 2.0, 7)
    terms = method.loss(batch, Phase(torch.arange(6))).terms
    fresh = Batch(torch.arange(6), (inputs,), labels, 3, 2.0, 7)
    for number in (0, 1):
        means = share * torch.tensor(said[1 - number])
        joined = torch.cat([nn.functional.one_hot(labels, CLASSES).float(), means], 1)
        mixed, targets = mix(inputs, joined, mixup, fresh.generator) if mixup else (inputs, joined)
        total = 0.0
        for row, target in zip(mixed, targets.tolist(), strict=True):
            probs = slow_softmax(method.networks[number](row[None])[0].detach())
            near = sum(min(max(p, 1e-4), 1 - 1e-4) * t for p, t in zip(probs, target[CLASSES:], strict=True))
            strength = 2.0 * (math.exp(-5 * 0.5**2) if rampup else 1.0)
            total += strength * math.log(1 - near) - sum(
                y * math.log(p) for p, y in zip(probs, target[:CLASSES], strict=True)
            )
        assert terms[f"network_{number}"].item() == pytest.approx(total / 6, rel=1e-4)


def test_averaged_weights_predict_and_follow_each_step() -> None:
    inputs = torch.randn(4, CLASSES)
    method = make_plus(inputs, ema_decay=0.5)
    weight = unwrap(method.networks[0]).head.weight
    before = weight.detach().clone()
    with torch.no_grad():
        weight.add_(1.0)
    method.after_step()
    model = method.model()
    assert len(model.networks) == 2
    kept = model.networks[0].head.weight
    assert bool(((kept > before) & (kept < weight)).all())


def test_the_strength_grows_slowly_and_ends_at_one() -> None:
    factors = [ramp(progress, 8.0) for progress in (0.0, 2.0, 4.0, 8.0, 9.0)]
    assert factors == pytest.approx([math.exp(-5), math.exp(-5 * 0.75**2), math.exp(-5 / 4), 1.0, 1.0])
    assert ramp(0.0, 0.0) == 1.0


def test_elr_can_be_calibrated_and_elr_plus_cannot(tmp_path: Path) -> None:
    data = write_npz(tmp_path / "a.npz", **blobs())
    for name in ("elr-m", "elr-c"):
        run = quick_train(data, tmp_path / name, method=name, epochs=4)
        assert run.result["test_accuracy"]["last"] > 0.9
    with pytest.raises(ConfigError, match="'elr\\+' cannot be calibrated"):
        find_method("elr+-m")
