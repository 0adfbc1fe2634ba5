"""Weak classes: pairs that are confused, classes with few examples beside others, and with too few to judge any."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc

from unflip.data.arrays import Array
from unflip.issues.audit import AuditInput, CheckResult
from unflip.runs.labels import REMOVED, peoples_labels

_CONFUSED = 0.05  # share of a class that may be taken for another one, by chance or not
_TIMES = 1.5  # as often as if a class's confusions were spread evenly over the others
_CHANCE = 0.01  # that any pair is flagged although it is not confused more than that
_SMALL = 0.1  # of the mean number of examples per class


class _Weakness(NamedTuple):
    score: float
    flag: bool
    reason: str


def find_class_quality(audited: AuditInput) -> CheckResult:
    """Say of classes what may be wrong with them; issues belong to no example.

    *Confused*: of the n_a examples given as a, c_ab are likeliest b by views that have not learned their labels. A pair
    is flagged if in both directions the lower bound of the share c_ab / n_a (Clopper and Pearson 1934, at a chance of
    1 % over all ordered pairs that occur) is above 5 %, and above one and a half times the share that b would have if
    all confusions of a were spread evenly. Its score is twice the smaller share: 1 where half of both classes are taken
    for the other. *Small*: a tenth of the mean size or less. *Too few*: no label of the class could be judged.
    """
    table = audited.table.filter(pc.not_equal(audited.table["split"], REMOVED))
    decided = table["reviewed"].to_numpy(zero_copy_only=False)
    labels = peoples_labels(table)
    counts = np.bincount(labels, minlength=len(audited.class_names))
    known = np.bincount(labels[~np.isnan(table["label_quality"].to_numpy())], minlength=len(counts)) > 0
    asked = table["out_of_sample"].to_numpy() & ~decided
    confused = _confused(audited.class_names, labels[asked], table["top1"].to_numpy()[asked])
    found = [*confused, *_sizes(audited.class_names, counts, ~known & (counts > 0))]
    flags, scores = np.array([each.flag for each in found], bool), np.array([each.score for each in found], float)
    return CheckResult(np.full(len(found), -1), scores, flags, lambda at: found[at].reason)


def _confused(names: Sequence[str], given: Array, top1: Array) -> Iterator[_Weakness]:
    from scipy.stats import beta

    sizes = np.bincount(given, minlength=len(names))
    wrong = given != top1
    errors = np.bincount(given[wrong], minlength=len(names))
    pairs, found = np.unique(given[wrong] * len(names) + top1[wrong], return_counts=True)
    a, b = pairs // len(names), pairs % len(names)
    evenly = errors[a] / sizes[a] / max(1, len(names) - 1)
    least = beta.ppf(_CHANCE / max(1, len(pairs)), found, sizes[a] - found + 1)
    beyond = least > np.maximum(_CONFUSED, _TIMES * evenly)
    place = {pair: at for at, pair in enumerate(pairs.tolist())}
    for at in np.flatnonzero(a < b).tolist():
        back = place.get(int(b[at] * len(names) + a[at]))
        if back is None:
            continue
        there, again = found[at] / sizes[a[at]], found[back] / sizes[b[at]]
        one, other = names[a[at]], names[b[at]]
        flag = bool(beyond[at] and beyond[back])
        reason = f"{one} and {other}: {there:.0%} of {one} look like {other}, {again:.0%} of {other} like {one}"
        reason += "; merge them, or write a better guideline?" if flag else ""
        yield _Weakness(min(1.0, 2 * min(there, again)), flag, reason)


def _sizes(names: Sequence[str], counts: Array, unscored: Array) -> Iterator[_Weakness]:
    mean = counts.sum() / max(1, (counts > 0).sum())
    for at in np.flatnonzero(unscored | ((counts > 0) & (counts <= _SMALL * mean))).tolist():
        examples = f"{counts[at]:,} example{'' if counts[at] == 1 else 's'}"
        if unscored[at]:
            labels = "its label" if counts[at] == 1 else "their labels"
            yield _Weakness(1.0, True, f"{names[at]}: {examples}, too few to judge {labels}; add some or merge it")
        else:
            reason = f"{names[at]}: {examples}, where a class has {mean:,.0f} on average; add some or merge it"
            yield _Weakness(float(1 - counts[at] / mean), True, reason)
