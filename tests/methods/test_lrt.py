"""LRT: the retroactive loss against the matrices of the released code, and its schedule."""

from typing import Any

import torch

from epoch_outputs import Unseen
from unflip.methods.base import LabelStore, TrainContext
from unflip.methods.lrt import LRT, LRTOptions

EPSILON, RHO = 1e-4, 0.9


class Seen(Unseen):
    """What a method observes, chosen by the test; LRT needs no further pass."""

    def __init__(self, probs: torch.Tensor) -> None:
        self.chosen = probs

    @property
    def probs(self) -> torch.Tensor:
        return self.chosen

    def validation(self, network: int = 0) -> None:
        return None

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


def make(count: int, classes: int, **options: Any) -> LRT:
    context = TrainContext(classes, torch.arange(count), 100, 0, 8, lambda epoch: 1.0, torch.device("cpu"))
    return LRT(LRTOptions(**options), context)


def test_the_retroactive_loss_equals_the_n_by_k_by_k_matrices() -> None:
    torch.manual_seed(0)
    count, classes = 7, 4
    method = make(count, classes, warmup=2, retro_lead=1)
    earlier = torch.randn(count, classes).softmax(1)
    labels = LabelStore(torch.randint(classes, (count,)), classes)
    method.end_epoch(1, Seen(earlier), labels)
    logits = torch.randn(count, classes)
    log_f = logits.log_softmax(1)
    expected = []
    for i in range(count):
        A = torch.full((classes, classes), EPSILON)
        A[earlier[i].argmax()] = RHO
        s = torch.rand(classes).softmax(0)  # whatever sums to one
        expected.append(-log_f[i, labels.current[i]] - (A @ s) @ log_f[i])
    got = method.criterion(logits, labels.current, torch.arange(count))
    torch.testing.assert_close(got, torch.stack(expected))


def test_before_there_are_earlier_predictions_the_loss_is_cross_entropy() -> None:
    method = make(3, 3)
    logits, labels = torch.randn(3, 3), torch.tensor([0, 1, 2])
    torch.testing.assert_close(
        method.criterion(logits, labels, torch.arange(3)),
        torch.nn.functional.cross_entropy(logits, labels, reduction="none"),
    )


def test_correction_begins_after_the_warm_up_and_delta_grows() -> None:
    method = make(4, 2, warmup=3, window=1)
    labels = LabelStore(torch.zeros(4, dtype=torch.long), 2)
    probs = torch.tensor([[0.5, 0.5], [0.46, 0.54], [0.45, 0.55], [0.1, 0.9]])  # ratios 1, 1.17, 1.22, 9
    figures = [method.end_epoch(epoch, Seen(probs), labels) for epoch in (1, 2, 3, 4)]
    assert [line["changed"] for line in figures] == [0, 0, 2, 0]
    assert [round(line["threshold"], 6) for line in figures] == [1.2, 1.2, 1.2, 1.22]
    assert labels.current.tolist() == [0, 0, 1, 1]


def test_examples_that_did_not_train_follow_the_rule_with_the_last_delta() -> None:
    """Delta grows by 0.02 in each of the 100 epochs after the warm-up, from 1.2 to 3.14."""
    method = make(4, 2, warmup=3, window=1)
    probs = torch.tensor([[0.5, 0.5], [0.25, 0.75], [0.24, 0.76], [0.23, 0.77]])  # ratios 1, 3, 3.17 and 3.35
    assert method.correct(probs, torch.zeros(4, dtype=torch.long)).tolist() == [0, 0, 1, 1]
    assert method.correct(probs, torch.ones(4, dtype=torch.long)).tolist() == [1, 1, 1, 1]


def test_earlier_predictions_are_taken_again_after_a_while() -> None:
    method = make(1, 2, warmup=1, retro_lead=0, retro_refresh=2)
    labels = LabelStore(torch.zeros(1, dtype=torch.long), 2)
    held = []
    for epoch, probs in enumerate(([[0.9, 0.1]], [[0.1, 0.9]], [[0.1, 0.9]]), 1):
        method.end_epoch(epoch, Seen(torch.tensor(probs)), labels)
        held.append(method.earlier.tolist())
    assert held == [[0], [0], [1]]


def test_memory_is_linear_in_examples() -> None:
    method = make(100, 50)
    assert method.earlier.numel() == 100


def test_a_restored_state_knows_when_predictions_were_taken() -> None:
    first, second = (make(1, 2, warmup=1, retro_lead=0, retro_refresh=2) for _ in range(2))
    labels = LabelStore(torch.zeros(1, dtype=torch.long), 2)
    first.end_epoch(1, Seen(torch.tensor([[0.9, 0.1]])), labels)
    assert (first.updated_epoch, second.updated_epoch) == (1, None)
    second.load_state_dict(first.state_dict())
    assert second.updated_epoch == 1
    for epoch, earlier, updated in ((2, 0, 1), (3, 1, 3)):
        second.end_epoch(epoch, Seen(torch.tensor([[0.1, 0.9]])), labels)
        assert (second.earlier.tolist(), second.updated_epoch) == ([earlier], updated)
