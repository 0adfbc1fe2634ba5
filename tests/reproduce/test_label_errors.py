"""cleanlab's benchmark, on a made folder of its layout."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from helpers import Outcome
from unflip.data.arrays import Array
from unflip.reproduce.label_errors import detect, read_set


def made(count: int = 600, classes: int = 4) -> tuple[Array, Array, Array]:
    """Return probabilities, labels and true labels; one in ten labels is wrong, and a view that knows most classes."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, classes, count)
    logits = rng.normal(size=(count, classes)) + 4 * np.eye(classes)[truth]
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = np.where(rng.random(count) < 0.1, (truth + 1) % classes, truth)
    return probs, labels, truth


def test_sets_of_both_layouts_are_in_the_table(tmp_path: Path, cli: Callable[..., Outcome]) -> None:
    probs, labels, truth = made()
    first = tmp_path / "src" / "experiments" / "cifar-10" / "2022-01-01_cv_resnet"
    second = tmp_path / "src" / "experiments" / "roman-numeral" / "2022-01-01_cv_swin"
    for folder in (first, second):
        folder.mkdir(parents=True)
        np.save(folder / "pred_probs.npy", probs)
    np.save(first / "noisy_labels.npy", labels)
    np.save(first / "true_labels.npy", truth)
    np.save(second / "labels.npy", labels)
    np.save(second / "label_errors_mask.npy", labels != truth)
    done = cli("paper", "label-error-benchmark", str(tmp_path))
    assert done.code == 0, done.err
    lines = [line for line in done.out.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[2:]]
    assert [row[:2] for row in cells] == [["cifar-10", "resnet"], ["roman-numeral", "swin"]]
    assert cells[0][2:] == cells[1][2:]  # the same labels


def test_scores_are_those_of_their_definitions() -> None:
    probs, labels, truth = made()
    found = detect("made", "view", probs, labels, labels != truth)
    right = labels == truth

    def area(score: Array) -> float:  # the fraction of pairs of a right and a wrong label in the right order
        return float(np.mean(score[right][:, None] > score[~right][None]))

    own = probs[np.arange(len(labels)), labels]
    other = np.array([max(p for c, p in enumerate(row) if c != y) for row, y in zip(probs, labels, strict=True)])
    assert found.self_confidence == pytest.approx(area(own))
    assert found.normalized_margin == pytest.approx(area(own - other))
    assert found.unflip > 0.95
    assert found.wrong == int((~right).sum())
    assert found.f1 > 0.8


def test_a_folder_without_the_benchmark_is_named(tmp_path: Path, cli: Callable[..., Outcome]) -> None:
    done = cli("paper", "label-error-benchmark", str(tmp_path))
    assert (done.code, len(done.err.splitlines())) == (2, 1)
    assert "label-error-detection-benchmarks" in done.err


def test_arrays_of_other_lengths_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "x_cv_y"
    folder.mkdir()
    probs, labels, truth = made()
    for name, array in (("pred_probs", probs), ("noisy_labels", labels[:-1]), ("true_labels", truth[:-1])):
        np.save(folder / f"{name}.npy", array)
    with pytest.raises(Exception, match="600, 4"):
        read_set(folder)
