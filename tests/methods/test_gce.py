"""GCE: the loss it uses, and what its truncation leaves out."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from epoch_outputs import Unseen
from unflip.methods.base import LabelStore, TrainContext
from unflip.methods.gce import GCE, GCEOptions
from unflip.methods.losses import generalized_cross_entropy

PROBS = st.lists(st.lists(st.floats(-5, 5), min_size=3, max_size=3), min_size=1, max_size=12)


class Seen(Unseen):
    """What the trainer saw, chosen by a test."""

    def __init__(self, logits: Tensor) -> None:
        self.seen = logits
        self.asked = 0

    def logits(self, network: int = 0) -> Tensor:
        self.asked += 1
        return self.seen


def make(train: Tensor, **options: Any) -> GCE:
    context = TrainContext(
        num_classes=3, train=train, epochs=100, seed=0, batch_size=8, lr_factor=lambda epoch: 1.0,
        device=torch.device("cpu"),
    )  # fmt: skip
    return GCE(GCEOptions(**options), context)


def rows_of(method: GCE, labels: LabelStore) -> list[int]:
    (phase,) = method.phases(1, Unseen(), labels)
    return phase.indices.tolist()


def test_the_loss_is_generalized_cross_entropy_with_its_power() -> None:
    logits, labels = torch.randn(5, 3), torch.tensor([0, 1, 2, 0, 1])
    method = make(torch.arange(5), q=0.4)
    expected = generalized_cross_entropy(logits, labels, 0.4)
    torch.testing.assert_close(method.criterion(logits, labels, torch.arange(5)), expected)


@given(PROBS, st.floats(0.05, 0.95), st.integers(0, 99))
def test_truncation_leaves_out_where_p_of_the_label_is_at_most_k(
    logits: list[list[float]], k: float, seed: int
) -> None:
    count = len(logits)
    rows = torch.randperm(2 * count, generator=torch.Generator().manual_seed(seed))[:count].sort().values
    given_labels = torch.randint(0, 3, (2 * count,), generator=torch.Generator().manual_seed(seed))
    store = LabelStore(given_labels, 3)
    method = make(rows, truncation=k, prune_from=2)
    figures = method.end_epoch(2, Seen(torch.tensor(logits)), store)
    expected = []
    for row, scores in zip(rows.tolist(), torch.tensor(logits).softmax(1), strict=True):
        if scores[given_labels[row]] > k:
            expected.append(row)
    kept = rows_of(method, store)
    assert kept == (expected or rows.tolist())  # never all of them
    assert figures["kept"] == pytest.approx(len(kept) / count)


def test_pruning_looks_at_current_labels_and_sees_the_pruned_again() -> None:
    logits = torch.tensor([[5.0, 0.0, 0.0], [0.0, 5.0, 0.0]])
    store = LabelStore(torch.tensor([0, 0]), 3)
    method = make(torch.arange(2), truncation=0.5, prune_from=1, prune_every=1)
    method.end_epoch(1, Seen(logits), store)
    assert rows_of(method, store) == [0]
    store.change(1, torch.tensor([1]), torch.tensor([1]), torch.ones(1))
    method.end_epoch(2, Seen(logits), store)
    assert rows_of(method, store) == [0, 1]


def test_pruning_happens_when_it_is_due_and_not_before() -> None:
    store = LabelStore(torch.tensor([0, 0]), 3)
    method = make(torch.arange(2), truncation=0.5, prune_from=3, prune_every=2)
    seen = Seen(torch.tensor([[5.0, 0.0, 0.0], [0.0, 5.0, 0.0]]))
    due = []
    for epoch in range(1, 9):
        before = seen.asked
        method.end_epoch(epoch, seen, store)
        due += [epoch] * (seen.asked - before)
    assert due == [3, 5, 7]


def test_without_truncation_nothing_is_computed_and_nothing_left_out() -> None:
    store = LabelStore(torch.tensor([0, 0]), 3)
    method, seen = make(torch.arange(2), prune_from=1), Seen(torch.zeros(2, 3))
    assert method.end_epoch(40, seen, store) == {}
    assert seen.asked == 0
    assert rows_of(method, store) == [0, 1]


def test_what_is_left_out_is_part_of_the_state() -> None:
    store = LabelStore(torch.tensor([0, 0]), 3)
    method = make(torch.arange(2), truncation=0.5, prune_from=1)
    method.end_epoch(1, Seen(torch.tensor([[5.0, 0.0, 0.0], [0.0, 5.0, 0.0]])), store)
    other = make(torch.arange(2), truncation=0.5, prune_from=1)
    other.load_state_dict(method.state_dict())
    assert rows_of(other, store) == rows_of(method, store) == [0]


def test_a_truncated_run_trains_on_what_is_kept_and_recovers(tmp_path: Any) -> None:
    from helpers import blobs, quick_train, write_npz

    content = blobs()
    wrong = torch.arange(0, 150, 5).numpy()
    content["train_labels"][wrong] = (content["train_labels"][wrong] + 1) % 3
    data = write_npz(tmp_path / "a.npz", **content)
    settings = {"gce.truncation": 0.5, "gce.prune_from": 6, "gce.prune_every": 2}
    run = quick_train(data, tmp_path / "run", method="gce", epochs=10, settings=settings)
    assert [line["kept"] for line in run.metrics[:5]] == [1.0] * 5
    assert 0.7 < run.metrics[-1]["kept"] < 0.9  # a fifth is wrong
    assert run.result["test_accuracy"]["last"] > 0.9
