"""Leakage: training or validation examples with a near-duplicate in a test set, or training ones in validation."""

import numpy as np

from unflip.issues.audit import AuditInput, CheckResult, no_issues


def find_leakage(audited: AuditInput) -> CheckResult:
    """Return the training and validation examples with a near-duplicate in another split, each with the closest one."""
    duplicates = audited.duplicates
    if duplicates is None or len(duplicates.parts) == 1:
        return no_issues()
    matches = [
        (*duplicates.partners(duplicates.rows_of(name), duplicates.rows_of(other)), other)
        for name in ("train", "val")
        for other in duplicates.parts
        if name in duplicates.parts and other not in (name, "train")
    ]
    rows, scores = (np.concatenate([match[place] for match in matches]) for place in (0, 2))
    sets = np.repeat(np.arange(len(matches)), [len(match[0]) for match in matches])
    others = np.concatenate([match[1] - duplicates.rows_of(match[3]).start for match in matches])
    best = np.lexsort((sets, -scores, rows))
    best = best[np.unique(rows[best], return_index=True)[1]]
    rows, scores, sets, others = (column[best] for column in (rows, scores, sets, others))

    def reason(position: int) -> str:
        name, row = matches[sets[position]][3], int(others[position])
        part = audited.data.parts()[name]
        example = f"example {row}" if part.ids is None else part.ids[row]
        label = "" if part.labels is None else f" ({part.labels[row]})"
        how = "the same as" if scores[position] == 1 else "nearly the same as"
        return f"{how} {example}{label} of '{name}'"

    return CheckResult(rows, scores, np.ones(len(rows), bool), reason)
