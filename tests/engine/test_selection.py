"""Which epoch's model is kept, and that the truth is named where it took part."""

import json
from pathlib import Path

import numpy as np
import pytest

from helpers import blobs, quick_train, write_npz
from unflip.engine.scoring import check_selection, effective_rule, protocol, selection_score
from unflip.errors import ConfigError

EPOCHS = [
    {"epoch": 1, "val_accuracy": 0.5, "clean_val_accuracy": 0.9, "test_accuracy": 0.1},
    {"epoch": 2, "val_accuracy": 0.8, "clean_val_accuracy": 0.2, "test_accuracy": 0.2},
    {"epoch": 3, "val_accuracy": 0.8, "clean_val_accuracy": 0.3, "test_accuracy": 0.7},
    {"epoch": 4, "val_accuracy": 0.1, "clean_val_accuracy": 0.4, "test_accuracy": 0.6},
]


@pytest.mark.parametrize(("rule", "chosen"), [("noisy-val", 2), ("last", 4), ("clean-val", 1), ("best-test", 3)])
def test_each_rule_looks_at_its_own_figure(rule: str, chosen: int) -> None:
    best = max(EPOCHS, key=lambda line: selection_score(rule, line))  # max keeps the first of equals, as a run does
    assert best["epoch"] == chosen


@pytest.mark.parametrize(
    ("rule", "has", "message"),
    [
        ("noisy-val", {"has_val": False}, "needs validation examples; .*--set select=last"),
        ("clean-val", {"has_val": False}, "needs validation examples"),
        ("clean-val", {"has_truth": False}, "needs clean labels, and the data has none"),
        ("best-test", {"has_test": False}, "needs a test set, and the data has none"),
    ],
)
def test_a_rule_without_what_it_looks_at_is_refused(rule: str, has: dict[str, bool], message: str) -> None:
    everything = {"has_val": True, "has_truth": True, "has_test": True}
    check_selection(rule, **everything)
    with pytest.raises(ConfigError, match=f"select = '{rule}' {message}"):
        check_selection(rule, **(everything | has))


def test_the_last_epoch_needs_nothing() -> None:
    check_selection("last", has_val=False, has_truth=False, has_test=False)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("noisy-val", "noisy-val"),
        ("last", "last"),
        ("clean-val", "clean-val (uses the truth: clean validation labels)"),
        ("best-test", "best-test (uses the truth: test labels)"),
    ],
)
def test_a_rule_that_uses_the_truth_says_so(rule: str, words: str) -> None:
    assert protocol(rule) == words


@pytest.mark.parametrize("rule", ["noisy-val", "last", "clean-val", "best-test"])
def test_clean_validation_labels_are_called_so_where_they_choose(rule: str) -> None:
    assert effective_rule(rule, clean_val=False) == rule
    assert effective_rule(rule, clean_val=True) == ("clean-val" if rule == "noisy-val" else rule)


def with_val(path: Path) -> Path:
    held = blobs(seed=1)
    return write_npz(path, **blobs(), val=held["test"], val_labels=held["test_labels"])


def test_clean_validation_labels_next_to_noisy_ones_are_named_in_the_result(tmp_path: Path) -> None:
    np.save(tmp_path / "noisy.npy", (blobs()["train_labels"] + (np.arange(150) % 5 == 0)) % 3)
    run = quick_train(
        with_val(tmp_path / "a.npz"), tmp_path / "run", labels=tmp_path / "noisy.npy", method="plc", epochs=2
    )
    assert run.result["protocol"] == "clean-val (uses the truth: clean validation labels)"
    table = run.labels().to_pandas()
    assert not table[table.split == "val"].changed.any()  # they are known to be right


def test_noise_makes_the_labels_that_choose_noisy_as_well(tmp_path: Path) -> None:
    run = quick_train(with_val(tmp_path / "a.npz"), tmp_path / "run", noise="sym:0.4", select="noisy-val", epochs=4)
    assert run.result["protocol"] == "noisy-val"
    for line in run.metrics:
        assert line["val_accuracy"] < 0.7
    assert run.metrics[-1]["clean_val_accuracy"] > 0.8
    assert json.loads((run.folder / "noise.json").read_text())["num_examples"] == 210
    assert run.result["noise_rate"] == pytest.approx(0.4, abs=0.1)


def test_posteriors_are_estimated_over_both(tmp_path: Path) -> None:
    run = quick_train(with_val(tmp_path / "a.npz"), tmp_path / "run", noise="pmd1:0.2", epochs=1)
    assert json.loads((run.folder / "noise.json").read_text())["noise_rate"] == pytest.approx(0.2, abs=0.02)
