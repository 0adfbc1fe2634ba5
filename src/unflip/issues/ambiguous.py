"""Ambiguous examples: two classes are about equally likely, by views that have not learned the label."""

import numpy as np

from unflip.issues.audit import AuditInput, CheckResult

_RATIO = 2 / 3  # of the second to the likeliest class, from which on both are about equally likely
_BOTH = 0.8  # probability of the two together


def find_ambiguous(audited: AuditInput) -> CheckResult:
    """Score examples by how near the second class comes to the likeliest, and by how far other classes are ruled out.

    With probabilities p of the likeliest and q of the second class the score is (q / p) (p + q): 1 where both are one
    half. Flagged is an example where q is at least 2/3 of p and both together are at least 0.8. Examples that were
    judged in-sample or could not be judged, and those that people decided about, are left out.
    """
    table = audited.table
    judged = table["out_of_sample"].to_numpy() & ~np.isnan(table["label_quality"].to_numpy())
    asked = np.flatnonzero(judged & ~table["reviewed"].to_numpy(zero_copy_only=False))
    first, second = (table[f"prob_{name}"].to_numpy()[asked].astype(float) for name in ("top1", "top2"))
    ratio, both = second / np.maximum(first, 1e-12), first + second
    names = audited.class_names
    pairs = np.stack([table[name].to_numpy()[asked] for name in ("top1", "top2")], 1)

    def reason(at: int) -> str:
        a, b = pairs[at]
        return f"{names[a]} ({first[at]:.2f}) or {names[b]} ({second[at]:.2f}): the two likeliest classes"

    return CheckResult(asked, (ratio * both).clip(0, 1), (ratio >= _RATIO) & (both >= _BOTH), reason)
