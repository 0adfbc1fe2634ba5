"""Co-teaching+, LRT and PLC: epochs by hand, with labels that changed, reviewed ones, and values at a threshold."""

from typing import Any

import pytest
import torch
from torch import Tensor

from epoch_outputs import Unseen
from helpers import passthrough
from unflip.compute import derive
from unflip.methods.base import Batch, LabelStore, Phase, TrainContext
from unflip.methods.coteaching import Coteaching, CoteachingOptions, noise_rate
from unflip.methods.losses import cross_entropy
from unflip.methods.lrt import LRT, LRTOptions
from unflip.methods.plc import PLC, CorrectionOptions, margin_rule, ratio_rule


class Seen(Unseen):
    """Probabilities of the training pass, or logits of two networks."""

    def __init__(self, probs: Any = None, *, logits: tuple[Tensor, Tensor] | None = None) -> None:
        self.chosen, self.of_networks = probs, logits

    @property
    def probs(self) -> Tensor:
        return torch.as_tensor(self.chosen)

    def logits(self, network: int = 0) -> Tensor:
        assert self.of_networks is not None
        return self.of_networks[network]

    def validation(self, network: int = 0) -> None:
        return None

    def broadcast(self, tensor: Tensor) -> Tensor:
        return tensor


class Half(torch.nn.Module):
    """A network whose logits are one half of its inputs."""

    def __init__(self, position: int) -> None:
        super().__init__()
        self.position, self.network = position, passthrough(3)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.network(inputs[:, self.position])
        return logits


def context_of(train: Tensor, classes: int, epochs: int = 10) -> TrainContext:
    return TrainContext(classes, train, epochs, 4, 8, lambda epoch: 1.0, torch.device("cpu"))


def coteaching(train: Tensor, **options: Any) -> Coteaching:
    method = Coteaching(CoteachingOptions(**options), context_of(train, 3))
    method.set_networks([Half(0), Half(1)])
    return method


# Co-teaching+


@pytest.mark.parametrize("epoch", [2, 3])
def test_reviewed_labels_are_selected_first_whatever_their_loss(epoch: int) -> None:
    """Both networks contradict two reviewed labels together: neither a small loss nor disagreement selects those."""
    train = torch.arange(2, 10)
    method = coteaching(train, warmup=2, forget_rate=0.5, ramp_epochs=1)
    reviewed = torch.full((10,), -1)
    reviewed[[3, 8]] = torch.tensor([2, 2])
    labels = LabelStore(torch.arange(10) % 3, 3, reviewed)
    random = torch.Generator().manual_seed(1)
    inputs = torch.randn(8, 2, 3, generator=random)
    inputs[[1, 6]] = torch.tensor([9.0, 0.0, -9.0])
    (phase,) = method.phases(epoch, Seen(), labels)
    assert (phase.indices.tolist(), phase.learns) == (train.tolist(), (0, 1))
    terms = method.loss(Batch(train, (inputs,), labels.current[train], epoch, epoch - 1.0, 0), phase).terms
    losses = [cross_entropy(inputs[:, i], labels.current[train]).tolist() for i in (0, 1)]
    differ = [int(inputs[i, 0].argmax()) != int(inputs[i, 1].argmax()) for i in range(8)]
    among = [i for i in range(8) if epoch <= 2 or differ[i] or i in (1, 6)]
    assert len(among) >= 4
    for network in (0, 1):
        by_loss = sorted(among, key=lambda i: (i not in (1, 6), losses[1 - network][i]))
        picked = by_loss[: int(0.5 * len(among))]
        expected = sum(losses[network][i] for i in picked) / len(picked)
        assert terms[f"network_{network}"].item() == pytest.approx(expected, rel=1e-5)


def test_the_noise_rate_is_that_of_current_labels() -> None:
    labels = LabelStore(torch.arange(60) % 3, 3)
    labels.change(1, torch.arange(0, 60, 4), (labels.given[::4] + 1) % 3, torch.ones(15))
    random = torch.Generator().manual_seed(0)
    train = torch.arange(5, 60)
    logits = tuple(6.0 * torch.eye(3)[labels.given[train]] + torch.randn(55, 3, generator=random) for _ in range(2))
    method = coteaching(train, warmup=3)
    for epoch in (1, 2):
        metrics = method.end_epoch(epoch, Seen(logits=(logits[0], logits[1])), labels)
        losses = torch.stack([cross_entropy(each, labels.current[train]) for each in logits])
        expected = float(noise_rate(losses, derive(4, "mixture", epoch)))
        assert method.noise_rate == pytest.approx(expected)
        assert 0.15 < expected < 0.35
    assert metrics["forget_rate"] == pytest.approx(2 / 10 * expected, rel=0.2)


@pytest.mark.parametrize(("warmup", "estimates"), [(0, [True, False]), (1, [True, False]), (2, [True, True])])
def test_the_noise_rate_is_estimated_in_the_warm_up_or_once(warmup: int, estimates: list[bool]) -> None:
    method, labels = coteaching(torch.arange(30), warmup=warmup), LabelStore(torch.arange(30) % 3, 3)
    assert method.warmup == warmup
    for epoch, estimated in enumerate(estimates, 1):
        logits = torch.randn(30, 3, generator=torch.Generator().manual_seed(epoch))
        before = method.noise_rate
        method.end_epoch(epoch, Seen(logits=(logits, logits)), labels)
        assert (method.noise_rate != before) == estimated


# LRT


def test_earlier_predictions_are_those_of_the_last_epoch_and_labels_follow_the_window() -> None:
    """The window's mean calls the first example 0, the last epoch 1; of the second it is the other way round."""
    method = LRT(LRTOptions(warmup=3, window=2, retro_lead=0), context_of(torch.tensor([1, 2]), 2))
    labels = LabelStore(torch.tensor([0, 1, 0]), 2)
    epochs = [
        [[0.5, 0.5], [0.5, 0.5]],
        [[0.95, 0.05], [0.05, 0.95]],
        [[0.4, 0.6], [0.6, 0.4]],
    ]
    metrics = [method.end_epoch(epoch, Seen(probs), labels) for epoch, probs in enumerate(epochs, 1)]
    assert method.earlier.tolist() == [0, 1, 0]
    assert labels.current.tolist() == [0, 0, 1]
    assert [line["changed"] for line in metrics] == [0, 0, 2]
    assert labels.history()["confidence"].tolist() == pytest.approx([0.675, 0.675])
    torch.testing.assert_close(method.train_probs(), torch.tensor([[0.675, 0.325], [0.325, 0.675]]))


def test_the_retroactive_loss_starts_its_lead_before_the_warm_up_ends() -> None:
    for lead, first in ((0, 4), (1, 3), (2, 2), (9, 1)):
        method = LRT(LRTOptions(warmup=4, retro_lead=lead), context_of(torch.arange(2), 2))
        labels = LabelStore(torch.zeros(2, dtype=torch.long), 2)
        for epoch in range(1, 5):
            method.end_epoch(epoch, Seen([[0.6, 0.4], [0.6, 0.4]]), labels)
            assert (method.updated_epoch is None) == (epoch < first)


def test_the_weight_of_the_retroactive_loss_is_its_option() -> None:
    torch.manual_seed(0)
    logits, labels, rows = torch.randn(3, 4), torch.tensor([0, 1, 2]), torch.tensor([4, 2, 0])
    log_probs = logits.log_softmax(1)
    for weight in (0.0, 0.3, 0.9):
        method = LRT(LRTOptions(retro_weight=weight), context_of(torch.arange(5), 4))
        method.earlier, method.updated_epoch = torch.tensor([3, 0, 1, 0, 2]), 1
        expected = []
        for i, (own, earlier) in enumerate(zip((0, 1, 2), (2, 1, 3), strict=True)):
            retro = sum((weight if c == earlier else 1e-4) * float(log_probs[i, c]) for c in range(4))
            expected.append(-float(log_probs[i, own]) - (retro if weight else 0.0))
        assert method.criterion(logits, labels, rows).tolist() == pytest.approx(expected, rel=1e-5)


# PLC


def plc(train: Tensor, classes: int = 2, **options: Any) -> PLC:
    return PLC(CorrectionOptions(**options), context_of(train, classes))


def test_at_the_threshold_a_label_stays() -> None:
    probs, zero = torch.tensor([[0.25, 0.5, 0.25], [0.125, 0.625, 0.25]]), torch.zeros(2, dtype=torch.long)
    assert ratio_rule(probs, zero, 0.5).tolist() == [0, 1]
    assert margin_rule(probs, zero, 0.25).tolist() == [0, 1]
    assert margin_rule(probs, zero, 0.5).tolist() == [0, 0]
    assert ratio_rule(probs, zero, 0.2).tolist() == [0, 0]


def test_a_share_of_changes_at_the_limit_is_no_stall() -> None:
    for stall, threshold in ((0.25, 0.3), (0.26, 0.4)):
        method, labels = plc(torch.arange(8), warmup=1, stall=stall), LabelStore(torch.zeros(8, dtype=torch.long), 2)
        probs = torch.tensor([[0.1, 0.9]] * 2 + [[0.9, 0.1]] * 6)
        assert method.end_epoch(1, Seen(probs), labels) == {"changed": 2, "threshold": pytest.approx(threshold)}


def test_the_window_also_holds_the_epochs_of_the_warm_up() -> None:
    """The last epoch alone would change every label; the mean of three changes those of the second example."""
    method, labels = plc(torch.tensor([1, 3]), warmup=3, threshold=0.5), LabelStore(torch.zeros(4, dtype=torch.long), 2)
    epochs = [[[0.9, 0.1], [0.4, 0.6]], [[0.9, 0.1], [0.3, 0.7]], [[0.1, 0.9], [0.1, 0.9]]]
    changed = [method.end_epoch(epoch, Seen(probs), labels)["changed"] for epoch, probs in enumerate(epochs, 1)]
    assert changed == [0, 0, 1]
    assert labels.current.tolist() == [0, 0, 0, 1]
    mean = torch.tensor(epochs).mean(0)
    torch.testing.assert_close(method.train_probs(), mean)
    assert labels.history()["confidence"].tolist() == pytest.approx([float(mean[1, 1])])


def test_changes_are_counted_by_epoch_and_add_up_over_its_rounds() -> None:
    method, labels = plc(torch.arange(4), warmup=1, rounds=3, window=1), LabelStore(torch.zeros(4, dtype=torch.long), 2)
    sure, unsure = [0.05, 0.95], [0.9, 0.1]
    rounds = iter([[sure, unsure, unsure, unsure], [sure, sure, unsure, unsure], [sure, sure, sure, unsure]])
    observed = Seen(next(rounds))
    phases = method.phases(1, observed, labels)
    assert [phase.indices.tolist() for phase in (next(phases), next(phases))] == [[0, 1, 2, 3]] * 2
    observed.chosen = next(rounds)
    next(phases)
    assert list(phases) == []
    assert method.end_epoch(1, Seen(next(rounds)), labels)["changed"] == 3
    assert next(iter(method.phases(2, observed, labels))) is not None
    assert method.end_epoch(2, Seen([sure] * 3 + [unsure]), labels)["changed"] == 0
    assert next(iter(method.phases(3, observed, labels))) is not None
    assert method.end_epoch(3, Seen([sure] * 4), labels)["changed"] == 1


def test_a_resumed_epoch_keeps_its_count_and_a_round_without_changes_is_the_last() -> None:
    method, labels = plc(torch.arange(2), warmup=1, rounds=4), LabelStore(torch.zeros(2, dtype=torch.long), 2)
    method.changed = 5
    observed = Seen([[0.9, 0.1]] * 2)
    observed.phases_done = 2
    assert [type(phase) for phase in method.phases(1, observed, labels)] == [Phase]  # then nothing changes
    assert method.changed == 5
    assert len(list(plc(torch.arange(2), warmup=3, rounds=4).phases(2, Seen(), labels))) == 1


def test_a_pass_that_ended_the_rounds_is_not_counted_again_at_the_end_of_the_epoch() -> None:
    """The second round changes nothing: its probabilities enter the window once, and the threshold moves one step."""
    method, labels = plc(torch.arange(2), warmup=1, rounds=3), LabelStore(torch.zeros(2, dtype=torch.long), 2)
    first, second = [[0.1, 0.9], [0.9, 0.1]], [[0.2, 0.8], [0.8, 0.2]]
    observed = Seen(first)
    phases = method.phases(1, observed, labels)
    next(phases)
    next(phases)  # after the first correction
    observed.chosen = second
    assert list(phases) == []
    assert method.end_epoch(1, observed, labels) == {"changed": 1, "threshold": pytest.approx(0.4)}
    torch.testing.assert_close(torch.stack(method.corrector.window.stored), torch.tensor([first, second]))
    assert method.corrector.corrections == 2
    next(iter(method.phases(2, observed, labels)))
    method.end_epoch(2, observed, labels)  # the next epoch corrects again
    assert (len(method.corrector.window.stored), method.corrector.corrections) == (3, 3)
