"""leakage: examples that train or validate, and are in a test set, too, or nearly so; or train, and validate, too."""

import numpy as np

from unflip.issues.audit import AuditInput, CheckResult, no_issues


def find_leakage(audited: AuditInput) -> CheckResult:
    """Return the training and validation examples that have a partner in another part; each once, with the closest."""
    duplicates = audited.duplicates
    if duplicates is None or len(duplicates.parts) == 1:
        return no_issues()
    own = {"train": duplicates.rows_of("train")} | (
        {"val": duplicates.rows_of("val")} if "val" in duplicates.parts else {}
    )
    found = [
        (*duplicates.partners(rows, duplicates.rows_of(other)), other)
        for name, rows in own.items()
        for other in duplicates.parts
        if other != name and other != "train"
    ]
    rows, scores = (np.concatenate([part[place] for part in found]) for place in (0, 2))
    sets = np.repeat(np.arange(len(found)), [len(part[0]) for part in found])
    others = np.concatenate([part[1] - duplicates.rows_of(part[3]).start for part in found])
    best = np.lexsort((sets, -scores, rows))
    best = best[np.unique(rows[best], return_index=True)[1]]
    rows, scores, sets, others = (of_all[best] for of_all in (rows, scores, sets, others))

    def reason(position: int) -> str:
        name, row = found[sets[position]][3], int(others[position])
        part = audited.data.parts()[name]
        called = f"example {row}" if part.ids is None else part.ids[row]
        label = "" if part.labels is None else f" ({part.labels[row]})"
        how = "the same as" if scores[position] == 1 else "nearly the same as"
        return f"{how} {called}{label} of '{name}'"

    return CheckResult(rows, scores, np.ones(len(rows), bool), reason)
