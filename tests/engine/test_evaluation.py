"""Accuracies against scikit-learn's."""

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, balanced_accuracy_score, recall_score, roc_auc_score, top_k_accuracy_score

from helpers import passthrough
from unflip.data.dataset import Split
from unflip.data.sources import ArraySource
from unflip.engine.distributed import Distributed
from unflip.engine.evaluation import Truth, accuracies, accuracy, full_report
from unflip.engine.inference import batch_size, predict_probs
from unflip.nn.base import Ensemble


@pytest.fixture(scope="module")
def processes() -> Distributed:
    return Distributed("cpu")


def problem(num_classes: int, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits and labels that agree often but not always; every class has examples."""
    random = np.random.default_rng(seed)
    labels = random.permutation(np.arange(count) % num_classes)
    logits = random.normal(size=(count, num_classes)) + 1.5 * np.eye(num_classes)[labels]
    return logits.astype(np.float32), labels


def labeled(logits: np.ndarray, labels: np.ndarray) -> Split:
    return Split(logits[:0], labels, opened=ArraySource(logits))


@pytest.mark.parametrize("num_classes", [2, 3, 7, 12])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_report_is_that_of_scikit_learn(processes: Distributed, num_classes: int, seed: int) -> None:
    logits, labels = problem(num_classes, 200, seed)
    report = full_report(Ensemble([passthrough(num_classes)]), labeled(logits, labels), processes)
    predicted = logits.argmax(1)
    assert report["top1"] == pytest.approx(accuracy_score(labels, predicted))
    assert report["balanced"] == pytest.approx(balanced_accuracy_score(labels, predicted))
    assert report["per_class"] == pytest.approx(recall_score(labels, predicted, average=None).tolist())
    top5 = 1.0 if num_classes <= 5 else top_k_accuracy_score(labels, logits, k=5, labels=range(num_classes))
    assert report["top5"] == pytest.approx(top5)
    assert list(report) == ["top1", "top5", "balanced", "per_class"]


def test_a_class_without_test_examples_is_none_and_does_not_count(processes: Distributed) -> None:
    logits, labels = problem(4, 60, 0)
    labels[labels == 2] = 1
    report = full_report(Ensemble([passthrough(4)]), labeled(logits, labels), processes)
    recalls = [float((logits.argmax(1)[labels == label] == label).mean()) for label in (0, 1, 3)]
    assert report["per_class"][2] is None
    assert report["balanced"] == pytest.approx(np.mean(recalls))


def test_several_networks_predict_by_their_mean(processes: Distributed) -> None:
    logits, _ = problem(3, 50, 0)
    networks = [passthrough(3), passthrough(3)]
    with torch.no_grad():
        networks[1].head.weight.mul_(-2.0)
    probs = predict_probs(Ensemble(networks), ArraySource(logits), processes)
    x = torch.from_numpy(logits)
    torch.testing.assert_close(probs, (x.softmax(1) + (-2 * x).softmax(1)) / 2)


@pytest.mark.parametrize("count", [1, 7, 1024, 1025, 2500])
def test_a_pass_covers_all_rows_in_their_order_however_many(processes: Distributed, count: int) -> None:
    logits, _ = problem(3, count, 0)
    network = passthrough(3).train()
    rows = torch.randperm(count)
    probs = predict_probs(Ensemble([network]), ArraySource(logits), processes, rows)
    torch.testing.assert_close(probs, torch.from_numpy(logits)[rows].softmax(1))
    assert network.training  # a pass leaves the network as it was
    assert not probs.requires_grad
    assert predict_probs(Ensemble([network]), ArraySource(logits), processes, rows[:0]).shape == (0, 3)


def test_every_test_set_has_its_accuracy(processes: Distributed) -> None:
    tests = {}
    for seed, name in enumerate(["test", "test_hard"]):
        logits, labels = problem(3, 40, seed)
        tests[name] = labeled(logits, labels)
    found = accuracies(Ensemble([passthrough(3)]), Truth(None, tests), processes)
    for seed, name in enumerate(tests):
        logits, labels = problem(3, 40, seed)
        assert found[name] == pytest.approx(accuracy_score(labels, logits.argmax(1)))


def test_accuracy_counts_the_most_probable_class() -> None:
    probs = torch.tensor([[0.2, 0.8], [0.9, 0.1], [0.6, 0.4], [0.3, 0.7]])
    assert accuracy(probs, torch.tensor([1, 0, 1, 1])) == 0.75


def test_label_accuracy_is_the_share_of_right_labels_or_unknown() -> None:
    truth = Truth(torch.tensor([0, 1, 2, 0]), {})
    labels = torch.tensor([0, 1, 1, 1])
    assert truth.label_accuracy(labels) == 0.5
    assert truth.label_accuracy(labels, torch.tensor([0, 1, 2])) == pytest.approx(2 / 3)
    assert Truth(None, {}).label_accuracy(labels) is None


@pytest.mark.parametrize("decimals", [8, 1])  # with one decimal, most scores are equal to others
def test_quality_auroc_is_that_of_scikit_learn_where_quality_is_known(decimals: int) -> None:
    random = np.random.default_rng(0)
    right = random.random(500) < 0.7
    scores = np.round(random.random(500) + 0.3 * right, decimals)
    clean = torch.zeros(500, dtype=torch.long)
    truth, given, rows = Truth(clean, {}), (~torch.tensor(right)).long(), torch.arange(500)
    quality = torch.tensor(scores)
    assert truth.quality_auroc(quality, given, rows) == pytest.approx(roc_auc_score(right, scores))
    quality[::2] = torch.nan
    assert truth.quality_auroc(quality, given, rows) == pytest.approx(roc_auc_score(right[1::2], scores[1::2]))


def test_quality_auroc_needs_correct_and_wrong_labels() -> None:
    truth, rows = Truth(torch.zeros(4, dtype=torch.long), {}), torch.arange(4)
    for given in (torch.zeros(4, dtype=torch.long), torch.ones(4, dtype=torch.long)):
        assert truth.quality_auroc(torch.rand(4), given, rows) is None
    assert Truth(None, {}).quality_auroc(torch.rand(4), torch.tensor([0, 1, 0, 1]), rows) is None


@pytest.mark.parametrize(
    ("values", "device", "size"),
    [
        (256, "cpu", 1024),  # rows
        (3 * 32 * 32, "cpu", 170),  # what the cache holds
        (3 * 32 * 32, "cuda", 1024),
        (3 * 224 * 224, "cpu", 16),
        (3 * 224 * 224, "cuda", 55),
        (3 * 4000 * 4000, "cpu", 1),  # what memory holds
        (2**24, "cuda", 1),
    ],
)
def test_a_batch_fits_the_device(values: int, device: str, size: int) -> None:
    assert batch_size(values, torch.device(device)) == size
