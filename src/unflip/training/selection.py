"""Selection: which epoch's model is kept."""

from collections.abc import Mapping
from typing import Any

from unflip.errors import ConfigError

USES_TRUTH = {"clean-val": "clean validation labels", "best-test": "test labels"}
"""Rules that use the truth, and which labels they use; wherever their result is shown, this is stated."""


def selection_score(rule: str, metrics: Mapping[str, Any]) -> float:
    """Return the score of an epoch under a rule; the first of equal epochs is kept, with ``last`` the last epoch."""
    if rule == "last":
        return float(metrics["epoch"])
    key = {"noisy-val": "val_accuracy", "clean-val": "clean_val_accuracy", "best-test": "test_accuracy"}[rule]
    return float(metrics[key])


def check_selection(rule: str, *, has_val: bool, has_truth: bool, has_test: bool) -> None:
    """Reject a rule if the data lacks what it needs."""
    if rule in ("noisy-val", "clean-val") and not has_val:
        raise ConfigError(f"select = '{rule}' needs validation examples; raise data.val_fraction or try --select last")
    if rule == "clean-val" and not has_truth:
        raise ConfigError("select = 'clean-val' needs clean labels, and the data has none; try --select noisy-val")
    if rule == "best-test" and not has_test:
        raise ConfigError("select = 'best-test' needs a test set, and the data has none; try --select noisy-val")


def effective_rule(rule: str, *, clean_val: bool) -> str:
    """Return the rule that is in fact used: where the validation labels are clean, ``noisy-val`` is ``clean-val``."""
    return "clean-val" if rule == "noisy-val" and clean_val else rule


def protocol(rule: str, *, clean_val: bool = False) -> str:
    """Describe how the model was selected, and whether that used the truth."""
    rule = effective_rule(rule, clean_val=clean_val)
    return f"{rule} (uses the truth: {USES_TRUTH[rule]})" if rule in USES_TRUTH else rule
