"""Ambiguous examples: two classes are about equally likely out of sample."""

import numpy as np

from unflip.issues.audit import AuditInput, CheckResult

_MIN_RATIO = 2 / 3  # of the second to the first probability
_MIN_BOTH = 0.8  # sum of the two probabilities


def find_ambiguous(audited: AuditInput) -> CheckResult:
    """Score examples by how close the two most likely classes are, and by how unlikely all others are.

    With p and q the probabilities of the most and second most likely class, the score is (q / p) (p + q): 1 where both
    are one half. An example is flagged if q / p is at least 2/3 and p + q at least 0.8. Reviewed examples and
    those without out-of-sample probabilities are skipped.
    """
    table = audited.table
    scored = table["out_of_sample"].to_numpy() & ~np.isnan(table["label_quality"].to_numpy())
    rows = np.flatnonzero(scored & ~table["reviewed"].to_numpy(zero_copy_only=False))
    first, second = (table[f"prob_{name}"].to_numpy()[rows].astype(float) for name in ("top1", "top2"))
    ratio, both = second / np.maximum(first, 1e-12), first + second
    names = audited.class_names
    pairs = np.stack([table[name].to_numpy()[rows] for name in ("top1", "top2")], 1)

    def reason(at: int) -> str:
        a, b = pairs[at]
        return f"{names[a]} ({first[at]:.2f}) or {names[b]} ({second[at]:.2f}): the two most likely classes"

    return CheckResult(rows, (ratio * both).clip(0, 1), (ratio >= _MIN_RATIO) & (both >= _MIN_BOTH), reason)
