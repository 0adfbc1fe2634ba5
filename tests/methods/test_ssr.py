"""SSR: neighbors, selection and relabeling against loops, and classes visited equally often."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from epoch_outputs import Unseen
from helpers import blobs, passthrough, quick_train, write_npz
from unflip.methods.base import Batch, LabelStore, Phase, TrainContext
from unflip.methods.ssr import SSR, SSROptions, balanced, neighbor_shares, select

CLASSES = 3


class Scans(Unseen):
    """Features and logits to observe."""

    def __init__(self, features: Tensor, logits: Tensor) -> None:
        self.rows, self.scores = features, logits

    def features(self, network: int = 0) -> Tensor:
        return self.rows

    def logits(self, network: int = 0) -> Tensor:
        return self.scores

    def broadcast(self, tensor: Tensor) -> Tensor:
        return tensor


def make(count: int, **options: Any) -> SSR:
    context = TrainContext(CLASSES, torch.arange(count), 10, 0, 8, lambda epoch: 1.0, torch.device("cpu"))
    method = SSR(SSROptions(**options), context)
    method.set_networks([passthrough(CLASSES)])
    return method


def slow_shares(features: np.ndarray, labels: np.ndarray, neighbors: int) -> np.ndarray:
    count = len(labels)
    counts = np.zeros((count, CLASSES))
    for i in range(count):
        cosines = [
            -math.inf
            if i == j
            else float(features[i] @ features[j] / np.linalg.norm(features[i]) / np.linalg.norm(features[j]))
            for j in range(count)
        ]
        for j in sorted(range(count), key=lambda j: -cosines[j])[:neighbors]:
            counts[i, labels[j]] += 1 / neighbors
    frequency = np.array([max(1e-10, float(np.mean(labels == c))) for c in range(CLASSES)])
    shares: np.ndarray = counts / frequency
    return shares


@settings(max_examples=20)
@given(st.integers(0, 999), st.integers(5, 25), st.integers(1, 4))
def test_shares_are_those_of_the_nearest_by_cosine_relative_to_class_sizes(seed: int, count: int, k: int) -> None:
    random = np.random.default_rng(seed)
    features, labels = random.normal(size=(count, 4)), random.integers(0, CLASSES, count)
    found = neighbor_shares(torch.from_numpy(features), torch.from_numpy(labels), CLASSES, k)
    np.testing.assert_allclose(found.numpy(), slow_shares(features, labels, k), rtol=1e-5, atol=1e-6)


def test_lengths_of_features_do_not_matter() -> None:
    features = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    labels, scales = torch.arange(30) % CLASSES, torch.linspace(0.1, 9, 30)[:, None]
    one, other = (neighbor_shares(rows, labels, CLASSES, 3) for rows in (features, scales * features))
    torch.testing.assert_close(one, other)


def test_an_example_is_selected_if_its_label_is_the_most_frequent() -> None:
    shares = torch.tensor([[0.5, 0.5, 0.0], [0.6, 0.4, 0.0], [0.0, 0.2, 0.8]])
    labels = torch.tensor([1, 1, 1])
    assert select(shares, labels, 1.0).tolist() == [True, False, False]
    assert select(shares, labels, 0.5).tolist() == [True, True, False]
    assert select(shares, torch.tensor([2, 2, 0]), 1.0).tolist() == [True] * 3  # none would be


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30), st.integers(1, 60))
def test_each_class_is_visited_equally_often_and_each_example_about_so(labels: list[int], count: int) -> None:
    visits = balanced(torch.tensor(labels), count)
    per_class = Counter(labels[i] for i in visits.tolist())
    assert set(per_class) == set(labels)
    assert len(set(per_class.values())) == 1
    assert count <= len(visits) < count + len(per_class)
    for name in per_class:
        times = [visits.tolist().count(i) for i, label in enumerate(labels) if label == name]
        assert max(times) - min(times) <= 1


def test_confident_examples_are_relabeled_from_the_given_label_each_time_and_reviewed_ones_never() -> None:
    given_labels = torch.tensor([0, 0, 1, 2, 1, 0] * 5)
    reviewed = torch.full_like(given_labels, -1)
    reviewed[0] = 0
    store, method = LabelStore(given_labels, CLASSES, reviewed), make(30, neighbors=3)
    features = torch.randn(30, 4, generator=torch.Generator().manual_seed(1))
    sure = torch.zeros(30, CLASSES)
    sure[:2, 2] = 9.0
    metrics = method.end_epoch(1, Scans(features, sure), store)
    assert metrics["changed"] == 1
    assert store.current[:2].tolist() == [0, 2]
    assert bool(method.selected[0])
    assert metrics["selected"] == pytest.approx(float(method.selected.float().mean()))
    method.end_epoch(2, Scans(features, torch.zeros(30, CLASSES)), store)
    assert torch.equal(store.current, given_labels)


def test_selected_examples_are_visited_after_the_warm_up() -> None:
    labels = torch.arange(12) % CLASSES
    store, saved, method = LabelStore(labels, CLASSES), make(12), make(12, warmup=2)
    saved.selected = torch.arange(12) < 5
    method.load_state_dict(saved.state_dict())
    (first,), (later,) = (method.phases(epoch, Unseen(), store) for epoch in (2, 3))
    assert torch.equal(first.indices, torch.arange(12))
    assert set(later.indices.tolist()) == set(range(5))
    assert labels[later.indices].bincount().tolist() == [4, 4, 4]


def test_the_loss_is_cross_entropy_without_mixup() -> None:
    inputs, labels = torch.randn(6, CLASSES), torch.arange(6) % CLASSES
    batch = Batch(torch.arange(6), (inputs,), labels, 1, 0.0, 0)
    method = make(6, mixup=0.0)
    loss = method.loss(batch, Phase(torch.arange(6))).terms["loss"]
    torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(method.networks[0](inputs), labels))
    mixed = make(6).loss(batch, Phase(torch.arange(6))).terms["loss"]
    assert mixed.item() != loss.item()


def test_wrong_labels_are_corrected(tmp_path: Path) -> None:
    content = blobs(train=300)
    truth = content["train_labels"].copy()
    content["train_labels"][::5] = (truth[::5] + 1) % 3
    data = write_npz(tmp_path / "a.npz", **content)
    run = quick_train(data, tmp_path / "run", method="ssr", epochs=20, settings={"optimizer.lr": 0.1})
    table = run.labels()
    train = np.array(table["split"].to_pylist()) == "train"
    right, corrected = (table[name].to_numpy()[train] == truth[train] for name in ("given_label", "current_label"))
    assert right.mean() < 0.85
    assert corrected.mean() > 0.9  # mixup keeps some predictions below the threshold
    assert corrected[right].all()
    assert 0.7 < run.metrics[-1]["selected"] <= 1
