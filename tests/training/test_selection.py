"""Which epoch's model is kept, and that the truth is named where it took part."""

import pytest

from unflip.errors import ConfigError
from unflip.training.selection import check_selection, protocol, selection_score

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
        ("noisy-val", {"has_val": False}, "needs validation examples; .*--select last"),
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
