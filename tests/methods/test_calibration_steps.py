"""Steps 8 to 13 of Algorithm 2 against an epoch by hand in float64, and what comes before and after them."""

import copy
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from epoch_outputs import Unseen
from unflip.compute import generator
from unflip.methods.base import LabelStore, Method, NetworkOutputs, TrainContext
from unflip.methods.mddc import (
    Calibrated,
    CalibrationOptions,
    CovarianceCalibrator,
    CovarianceOptions,
    MeanCalibrator,
    MeanOptions,
)
from unflip.nn.mlp import MLP, MLPOptions
from unflip.options import Options

COUNT, DIMS, CLASSES, SEED, BATCH = 24, 5, 4, 3, 16
FRACTION, LR, MOMENTUM = 2.0, 0.4, 0.8


class Seen(Unseen):
    """Features of an epoch, and validation examples."""

    def __init__(self, epoch: int) -> None:
        random = torch.Generator().manual_seed(epoch)
        self.of_train = torch.randn(COUNT, DIMS, generator=random)
        self.of_val = torch.randn(300, DIMS, generator=random)
        self.given = torch.randint(3, (300,), generator=random)

    def features(self, network: int = 0) -> Tensor:
        return self.of_train

    def validation(self, network: int = 0) -> tuple[NetworkOutputs, Tensor]:
        return NetworkOutputs(self.of_val, self.of_val), self.given


class Relabels(Method):
    """Moves some labels to the next of three classes at an epoch's end, and remembers the head as it was then."""

    heads: list[Tensor]
    length = 0

    @property
    def warmup(self) -> int:
        return self.length

    def end_epoch(self, epoch: int, observed: Any, labels: LabelStore) -> dict[str, Any]:
        (network,) = self.networks
        assert isinstance(network, MLP)
        self.heads = [network.head.weight.detach().clone()]
        rows = torch.arange(epoch, COUNT, 4)
        labels.change(epoch, rows, (labels.current[rows] + 1) % 3, torch.ones(len(rows)))
        return {}


def make(calibrator: Any = None, warmup: int = 0, **options: Any) -> Calibrated:
    """Calibration around `Relabels`, with a learning rate that falls from epoch to epoch."""
    context = TrainContext(
        CLASSES, torch.arange(COUNT), 9, SEED, BATCH, lambda done: 1 / (1 + done), torch.device("cpu")
    )
    chosen = CalibrationOptions(**({"sample_fraction": FRACTION, "head_lr": LR, "head_momentum": MOMENTUM} | options))
    inner = Relabels(Options(), context)
    inner.length = warmup
    method = Calibrated(inner, calibrator or CovarianceCalibrator(CovarianceOptions()), chosen, context)
    torch.manual_seed(0)
    method.set_networks([MLP(MLPOptions(hidden=(DIMS,)), (4,), CLASSES)])
    return method


def some_labels() -> LabelStore:
    """Three classes of eight; the fourth has a single example, so it has no Gaussian."""
    labels = torch.arange(COUNT) % 3
    labels[0] = 3
    return LabelStore(labels, CLASSES)


class Head(NamedTuple):
    """A head and its velocities, by hand."""

    weight: Tensor
    bias: Tensor
    of_weight: Tensor
    of_bias: Tensor


def head_of(method: Calibrated) -> Head:
    (network,) = method.networks
    assert isinstance(network, MLP)
    weight, bias = (part.detach().double().clone() for part in (network.head.weight, network.head.bias))
    return Head(weight, bias, torch.zeros_like(weight), torch.zeros_like(bias))


def by_hand(head: Head, features: Tensor, labels: Tensor, epoch: int, alpha: float, fraction: float) -> Head:
    """Fit, sample and train, example by example, in float64."""
    random = generator(SEED, "draws", epoch, 0)
    present = [c for c in range(CLASSES) if int((labels == c).sum()) >= 2]
    per_class = round(fraction * COUNT / len(present))
    samples = []
    for c in present:
        rows = features[labels == c].double()
        mean = rows.mean(0)
        noise = torch.randn(per_class, len(rows), generator=random).double()
        samples += [
            (mean + sum(e * (h - mean) for e, h in zip(es, rows, strict=True)) / len(rows) ** 0.5, c) for es in noise
        ]
    common = torch.randn(len(samples), 1, generator=random).double()
    samples = [(h + alpha**0.5 * xi, c) for (h, c), xi in zip(samples, common, strict=True)]
    order = torch.randperm(len(samples), generator=random).tolist()
    weight, bias, of_weight, of_bias = (part.clone() for part in head)
    for start in range(0, len(order), BATCH):
        batch = [samples[i] for i in order[start : start + BATCH]]
        slope, offset = torch.zeros_like(weight), torch.zeros_like(bias)
        for h, c in batch:
            error = (weight @ h + bias).softmax(0)
            error[c] -= 1
            slope += torch.outer(error, h) / len(batch)
            offset += error / len(batch)
        of_weight, of_bias = MOMENTUM * of_weight + slope, MOMENTUM * of_bias + offset
        rate = LR / epoch  # the factor after epoch - 1 epochs
        weight, bias = weight - rate * of_weight, bias - rate * of_bias
    return Head(weight, bias, of_weight, of_bias)


def test_an_epoch_is_that_by_hand_and_labels_are_corrected_last() -> None:
    method, labels = make(), some_labels()
    head = head_of(method)
    for epoch in (1, 2, 3):
        observed, before = Seen(epoch), labels.current.clone()
        method.end_epoch(epoch, observed, labels)
        head = by_hand(head, observed.of_train, before, epoch, 0.2, FRACTION)
        torch.testing.assert_close(head_of(method)[:2], tuple(head[:2]), rtol=1e-4, atol=1e-5)
        assert not torch.equal(before, labels.current)
        assert isinstance(method.inner, Relabels)
        torch.testing.assert_close(method.inner.heads[0].double(), head.weight, rtol=1e-4, atol=1e-5)
        gaussians = method.gaussians()
        assert gaussians is not None
        for c in range(3):
            torch.testing.assert_close(gaussians.means[c], observed.of_train[before == c].mean(0))


def test_auto_sums_the_scores_of_candidates_and_takes_the_best() -> None:
    calibrator = CovarianceCalibrator(CovarianceOptions(disturbance="auto"))
    method, labels = make(calibrator, sample_fraction="auto"), some_labels()
    head, scores = head_of(method), dict.fromkeys(method.candidate_pairs, 0.0)
    assert len(scores) == 16
    taken = []
    for epoch in (1, 2, 3, 4):
        observed, before = Seen(epoch), labels.current.clone()
        metrics = method.end_epoch(epoch, observed, labels)
        heads = {each: by_hand(head, observed.of_train, before, epoch, *each) for each in scores}
        for candidate, tried in heads.items():
            found = (observed.of_val.double() @ tried.weight.T + tried.bias).argmax(1)
            scores[candidate] += float((found == observed.given).double().mean())
        best = max(scores, key=scores.__getitem__)
        assert method.scores == pytest.approx({str(key): value for key, value in scores.items()}, abs=1e-9)
        assert (metrics["disturbance"], metrics["sample_fraction"]) == best
        gaussians = method.gaussians()
        assert gaussians is not None
        assert gaussians.disturbance == best[0]
        head = heads[best]
        torch.testing.assert_close(head_of(method)[:2], tuple(head[:2]), rtol=1e-4, atol=1e-5)
        taken.append(best)
    assert len(set(taken)) > 1
    assert method.candidate_pairs[0] not in taken


@pytest.mark.parametrize(
    ("options", "epochs"),
    [
        ({"warmup": 2}, [3, 4, 5, 6, 7]),
        ({"warmup": 2, "start": 1, "every": 2}, [1, 3, 5, 7]),
        ({"start": 2, "every": 3}, [2, 5]),
        ({"warmup": 3, "every": 2}, [4, 6]),
    ],
)
def test_epochs_between_calibrations_are_counted_from_the_first(options: dict[str, int], epochs: list[int]) -> None:
    method = make(**options)
    assert [epoch for epoch in range(1, 8) if method.calibrates(epoch)] == epochs


def test_no_gaussian_no_training() -> None:
    """No class has two examples: the head stays, and nothing is sampled."""
    context = TrainContext(3, torch.arange(3), 9, SEED, BATCH, lambda done: 1.0, torch.device("cpu"))
    method = Calibrated(Method(Options(), context), MeanCalibrator(MeanOptions()), CalibrationOptions(), context)
    method.set_networks([MLP(MLPOptions(hidden=(DIMS,)), (4,), 3)])
    before = copy.deepcopy(method.networks[0].state_dict())
    observed = Seen(1)
    observed.of_train = observed.of_train[:3]
    method.end_epoch(1, observed, LabelStore(torch.arange(3), 3))
    assert all(torch.equal(value, before[name]) for name, value in method.networks[0].state_dict().items())
